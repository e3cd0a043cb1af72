"""Lines of a job's results, read from its journal in the order of the sink.

Reopening failed rows changes the list (``cortex.goals.result_list``), so the turns between two reopenings form a part.
Lines that a later part took back are left out. Without input order the parts follow each other; with input order they
are merged, each being ordered in itself. While the job rests, and for readers who ask for it at any time, the lines
that were taken back and not replaced are listed too, read again from the earlier parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import NamedTuple

import msgspec

from actors.history import final_state
from actors.journal.errors import TextRedacted
from actors.journal.journal import Journal
from actors.programs import loader
from cortex.goals.result_list import chained
from cortex.journal import codec
from cortex.loop.step import step
from cortex.programs.shards import Shards
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.limits import JobTerms

Load = Callable[[JobTerms], Program]
PAGE_TURNS = 16
"""Turns read at a time. A turn may hold a window of rows, up to 8 MB."""


class TurnRange(NamedTuple):
    """Turns after number ``after`` up to ``upto``; ``upto`` is None for the last part, which may grow."""

    after: int
    upto: int | None


def opens_again(source: Journal, batch: list[events.Event]) -> bool:
    """Return whether these events of the next turn reopen failed rows, and announce it to readers of the journal
    beforehand."""
    opens = any(type(event) is events.RowsReopened for event in batch)
    if opens:
        source.will_reopen()
    return opens


def parts_of(source: Journal) -> tuple[list[TurnRange], list[events.RowsReopened]]:
    """Return the parts of the journal at present, and the events that begin each part but the first."""
    found = source.reopenings()
    starts = [source.opened_at(), *(seq - 1 for seq, _ in found)]
    ends: list[int | None] = [*starts[1:], None]
    return [TurnRange(*pair) for pair in zip(starts, ends, strict=True)], [event for _, event in found]


def lines(
    source: Journal, load: Load, index: int = 0, at_rest: bool = False
) -> Generator[commands.EmitResult | None, None, None]:  # fmt: skip
    """Yield the results from ``index`` on, numbered by the present list; None whenever the journal has no more at
    the moment: ``next`` then looks again.

    ``at_rest``: list the results as if the job came to rest now, also of a job that runs or was killed: a row that is
    asked again has its earlier result. For readers who read once.
    """
    if names := shard_names(source, load):
        yield from _together(source, load, names, index)
        return
    ended = final_state.read(source)
    if ended is not None and ended.lines is not None:
        yield from ended.lines[index:]
        return
    parts, reopened = parts_of(source)
    if not reopened:
        yield from _RangeReplay(source, load, parts[0], index).emits()
        return
    ordered = reopened[-1].ordered
    found = (_merged if ordered else _chained)(source, load, parts, reopened, at_rest)
    for place, line in found:
        if line is None or place >= index:
            yield line and commands.EmitResult(place, line.value, line.failed, line.row, line.kind, line.order)


def shard_names(source: Journal, load: Load) -> list[str]:
    """Return the child jobs to which the rows of this job are dealt, in order; empty if the job is not sharded."""
    found = _opening(source)
    if found is None or found[0].program != loader.place_of(Shards):
        return []
    program = load(found[0])
    count = program.shards if isinstance(program, Shards) else 0
    return [f"{source.job}~{found[1] + number}" for number in range(count)]


def _opening(source: Journal) -> tuple[JobTerms, int] | None:
    """Return the terms under which a job was last opened, and its first goal; its first shard if the turn is
    deleted, because the job keeps no text."""
    try:
        for _, turn in source.turns(source.opened_at()):
            opened = [one for batch in turn.batches for one in batch if isinstance(one, events.Opened)]
            return (opened[0].terms, opened[0].first_goal) if opened else None
    except TextRedacted:
        if snapshot := source.latest_snapshot():
            k = codec.decode_state(snapshot[1])
            return k.terms, min(k.shards, default=0)
    return None


def _together(
    source: Journal, load: Load, names: list[str], index: int
) -> Generator[commands.EmitResult | None, None, None]:
    """Yield the results of all shards: round robin if input order was asked for, else one shard after the other."""
    found = _opening(source)
    program = load(found[0]) if found is not None else None
    ordered = isinstance(program, Shards) and program.of.ordered
    opened: list[Journal | None] = [None] * len(names)
    streams: list[Iterator[commands.EmitResult | None]] = [iter(())] * len(names)

    def line_of(number: int) -> commands.EmitResult | None:
        if opened[number] is None:
            if source.folder is None or not source.folder.has(names[number]):
                return None  # the shard has not begun
            found = opened[number] = source.folder.journal(names[number])
            streams[number] = lines(found, load)
        return next(streams[number], None)

    place = turn = 0
    try:
        while True:
            looked = 0
            while looked < len(names):
                line = line_of(turn)
                if line is not None:
                    looked = 0
                    if place >= index:
                        yield commands.EmitResult(place, line.value, line.failed, line.row, line.kind)
                    place += 1
                if ordered and line is None and not _ended(source):
                    break
                if ordered or line is None:
                    turn = (turn + 1) % len(names)
                    looked += line is None
            yield None
    finally:
        for each in opened:
            if each is not None:
                each.close()


def _ended(source: Journal) -> bool:
    """Return whether the job has ended for good, so that a missing row will not come."""
    blob = source.account(source.seq)
    return bool(blob) and codec.decode_account(blob).outcome in ("failed", "cancelled")


class _RangeReplay:
    """Replay of one part, which continues where the journal has grown. ``k`` is K after the turns read."""

    def __init__(self, source: Journal, load: Load, part: TurnRange, index: int = 0) -> None:
        self._source, self._load, self._part = source, load, part
        first = part.after <= source.opened_at()
        snapshot = source.latest_snapshot(index, part.upto) if first else source.latest_snapshot(upto=part.after)
        self._after = snapshot[0] if snapshot else source.opened_at()
        self._index = index
        self.k: State | None = codec.decode_state(snapshot[1]) if snapshot else None

    def emits(self) -> Iterator[commands.EmitResult | None]:
        """Yield the results of this part; None at the journal's end, if the part may grow."""
        program = self._load(self.k.terms) if self.k is not None else None
        while True:
            before = self._after
            for seq, turn in self._source.page(self._after, PAGE_TURNS):
                if self._part.upto is not None and seq > self._part.upto:
                    return
                self._after = seq
                terms = codec.opening(turn)
                if terms is not None or self.k is None:
                    assert terms is not None, "a generation begins with its opening"
                    self.k = codec.open_job(terms)
                    program = self._load(terms)
                assert program is not None
                for command in step(self.k, program, turn):
                    if type(command) is commands.EmitResult and seq > self._part.after and command.index >= self._index:
                        yield command
            if self._after > before:
                continue
            if self._part.upto is not None:
                return
            yield None

    @property
    def over(self) -> bool:
        """Whether the job has ended for good, so that a missing line will not come."""
        return self.k is not None and self.k.outcome in ("failed", "cancelled")


def _chained(
    source: Journal, load: Load, parts: list[TurnRange], reopened: list[events.RowsReopened], at_rest: bool
) -> Iterator[tuple[int, commands.EmitResult | None]]:  # fmt: skip
    """Yield the results in the order of their emission. A part's index is of the list at that time; lines that later
    parts took back are skipped, and follow at the end if they were restored."""
    latest: dict[str, int] = {}
    """For each row that failed, the part with its latest result."""
    told = False
    for number, part in enumerate(parts):
        later = [event.lines for event in reopened[number:]]
        reading = _RangeReplay(source, load, part)
        for line in reading.emits():
            place = line.index if line is not None else 0
            if line is not None and line.row:
                latest[line.row] = number
            for gone in later:
                at = bisect_left(gone, place)
                if line is not None and at < len(gone) and gone[at] == place:
                    break
                place -= at
            else:
                k = reading.k
                if line is None and k is not None and not told and (at_rest or k.restored is not None):
                    told = True
                    yield from enumerate(_restored(source, load, parts, latest, k), chained(k))
                    if at_rest:
                        return  # more would be results of rows that were listed
                yield place, line


def _restored(
    source: Journal, load: Load, parts: list[TurnRange], latest: dict[str, int], k: State
) -> Iterator[commands.EmitResult]:  # fmt: skip
    """Yield the earlier results of reopened rows that were not replaced, in the order of their emission."""
    rows = {*k.withdrawn, *k.standing}
    for number in sorted({latest[row] for row in rows if row in latest}):
        for line in _RangeReplay(source, load, parts[number]).emits():
            if line is not None and line.row in rows and latest[line.row] == number:
                yield line


def _merged(
    source: Journal, load: Load, parts: list[TurnRange], reopened: list[events.RowsReopened], at_rest: bool
) -> Iterator[tuple[int, commands.EmitResult | None]]:  # fmt: skip
    """Yield the results in input order, waiting for a missing line unless the job has ended for good."""
    gone = [{order for event in reopened[number:] for order in event.lines} for number in range(len(parts))]
    readings = [_RangeReplay(source, load, part) for part in parts]
    pairs = zip(readings[:-1], reopened, strict=True)
    streams = [chain(reading.emits(), _waiting(reading, event)) for reading, event in pairs]
    streams.append(chain(readings[-1].emits()))
    heads: dict[int, commands.EmitResult] = {}
    line: commands.EmitResult | None
    place = order = 0

    def fill() -> None:
        for number, stream in enumerate(streams):
            if number not in heads and (head := next(stream, None)) is not None:
                heads[number] = head

    while True:
        fill()
        first = min((line.order for line in heads.values()), default=-1)
        over = readings[-1].over
        if first < 0 or (first != order and not over):
            line = _ahead(readings[-1].k, order, at_rest)
            yield place, line
            place, order = place + (line is not None), order + (line is not None)
            continue
        number = max(number for number, line in heads.items() if line.order == first)
        line = heads[number]
        if first in gone[number]:
            k = readings[-1].k
            assert k is not None, "a part that follows another has a state"
            line = _in_its_place(k, heads[number], at_rest)
            if line is None and not over:
                yield place, None
                continue
        for each in [each for each, head in heads.items() if head.order == first]:
            del heads[each]
        order = first + 1
        if line is not None:
            yield place, line
            place += 1


def _waiting(reading: _RangeReplay, event: events.RowsReopened) -> Iterator[commands.EmitResult]:
    """Yield the results of a part that waited for their turn at its end, and were taken back then."""
    k = reading.k
    for order in event.lines if k is not None and k.held else ():
        if k is not None and order in k.held:
            yield _held(k, order)


def _held(k: State, order: int) -> commands.EmitResult:
    parts = k.failed_held.get(order)
    row, kind = parts or ("", "")
    return commands.EmitResult(order, k.held[order], parts is not None, row, kind, order)


def _ahead(k: State | None, order: int, at_rest: bool) -> commands.EmitResult | None:
    """Return the result in a place behind all reopened rows, which waits for them, if the job rests. Only then is it
    listed, so that its row cannot be asked again."""
    if k is None or not k.again or order not in k.held or not (at_rest or k.restored is not None):
        return None
    return msgspec.structs.replace(_held(k, order), row="")


def _in_its_place(k: State, earlier: commands.EmitResult, at_rest: bool) -> commands.EmitResult | None:
    """Return the result in the place of a reopened row without a result in its turn; None if it has none now.

    ``earlier``: the row's earlier result. While the job rests, a later result that waits for its turn is listed too.
    """
    order = earlier.order
    rests = at_rest or k.restored is not None
    if rests and order in k.again and order in k.held:
        return _held(k, order)
    stands = earlier.row in k.standing and order not in k.again
    return earlier if stands or (rests and (earlier.row in k.standing or earlier.row in k.withdrawn)) else None
