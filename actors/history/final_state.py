"""What a job came to, written down when it ends: then it is told without its program, which may change, or go.

Turns are taken again by the program alone that took them. Those of a ready program always can be, since it is part of
this package; an author's may be edited, or have been a cell of a notebook. So beside the journal of such a job there is
a snapshot of K as it ended, its answer, and its results where K does not hold them. What a later turn changes for good
(the job is resumed, or begun anew) makes them void until it ends again. A job that keeps no text keeps none of this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from actors.common.gc_tuning import unwatched
from actors.journal.journal import Journal
from actors.programs.loader import is_ready
from cortex.flows import Flow
from cortex.goals.lifecycle import line_of
from cortex.journal import codec
from cortex.loop.event_handlers import take
from cortex.loop.step import absorb
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State, Status

FACT = "ended"
SNAPSHOT_BYTES_MAX = 900_000_000
"""Neither SQLite nor PostgreSQL takes a value of more than 1 GB: a K that is larger, beside what stands in pieces, is
replayed from its last smaller one."""
LINES_BYTES_MAX = 16_000_000
"""Results of more bytes are not written down a second time."""
_IDLE = (events.ResultsWritten, events.PermitsGranted, events.Ticked)
_NEWS = (events.Opened, events.RowsReopened)


class FinalState(msgspec.Struct, frozen=True, array_like=True):
    """Of a job that has ended."""

    seq: int
    """The turn with which it had: the snapshot of that number is K as it was then."""
    answer: bytes = b"null"
    """As JSON."""
    of_goals: bool = False
    """Whether K's top goals tell the results."""
    lines: list[commands.EmitResult] | None = None
    """The results, where these do not; None: nobody wrote them down."""


class EndedJob(msgspec.Struct, frozen=True):
    """What is known of a job that has ended, whatever its program says today."""

    k: State
    answer: Any
    lines: list[commands.EmitResult] | None
    """Its results; None where its program alone can tell them."""


def wanted(k: State) -> bool:
    """Whether this is written down of a job when it ends. What a child job answers is in the journal of its parent."""
    return k.terms.keeps_text and "~" not in k.terms.job and not is_ready(k.terms.program)


def stands(outcome: str, batch: Iterable[events.Event]) -> bool:
    """Whether a job that has ended so is as it was after these events. What comes late to one that is over for good is
    counted, and decides nothing."""
    if outcome == "partial":
        return all(type(event) in _IDLE for event in batch)
    return bool(outcome) and all(type(event) not in _NEWS for event in batch)


def write(
    source: Journal, k: State, program: Program, seq: int, lines: list[commands.EmitResult] | None,
    snapshot: Callable[[], bool] | None = None,
) -> None:  # fmt: skip
    """Write down what a job came to with turn ``seq``. ``snapshot`` keeps K, or says that it is too large. Raises
    ``StoreError``."""
    if source.replay_from() != seq and not (snapshot() if snapshot is not None else _snapshot(source, k, seq)):
        return
    of_goals = isinstance(program, Flow) and len(_of_goals(k)) == k.emitted
    closing = FinalState(seq, _answer(k, program), of_goals, None if of_goals else lines)
    blob = msgspec.msgpack.encode(closing)
    if len(blob) > LINES_BYTES_MAX:
        blob = msgspec.msgpack.encode(msgspec.structs.replace(closing, lines=None))
    source.set_meta(FACT, blob)


def _snapshot(source: Journal, k: State, seq: int) -> bool:
    blob = codec.encode_state(k)
    if len(blob) <= SNAPSHOT_BYTES_MAX:
        source.snapshot(seq, k.emitted, blob)
    return len(blob) <= SNAPSHOT_BYTES_MAX


def read(source: Journal, rest: bool = False) -> EndedJob | None:
    """What a job came to, if that was written down and is still so. ``rest``: goals, and results that they tell, are
    not wanted, and left out of a large K."""
    blob = source.meta(FACT)
    if blob is None:
        return None
    try:
        closing = msgspec.msgpack.decode(blob, type=FinalState)
    except msgspec.MsgspecError:
        return None  # of a later release
    snapshot = next(source.snapshots(closing.seq - 1, closing.seq), None)
    if closing.seq <= source.opened_at() or snapshot is None:
        return None
    with unwatched():
        known = codec.decode_rest(snapshot[1]) if rest else None
        k = known or codec.decode_state(snapshot[1])
    for _, turn in source.turns(closing.seq):
        happened = [event for batch in turn.batches for event in batch]
        if not stands(k.outcome, happened):
            return None
        if known is not None and not all(type(event) in _IDLE for event in happened):
            return read(source)  # what comes late may be about a goal
        fold(k, turn)
    codec.put_right(k, source.account(source.seq))
    lines = _of_goals(k) if closing.of_goals and known is None else closing.lines
    return EndedJob(k, msgspec.json.decode(closing.answer), lines)


def fold(k: State, turn: events.Turn) -> None:
    """Take a turn that leaves an end as it was: no program is asked."""
    nobody = Program()
    out = commands.StepCommands()
    k.at_s = max(k.at_s, float(turn.at_s))
    k.ledger.turn_to(k.at_s)
    for event in (event for batch in turn.batches for event in batch):
        if type(event) is events.Answered:
            absorb(k, nobody, event, out)
        else:
            take(k, nobody, event, out)


def _answer(k: State, program: Program) -> bytes:
    if k.outcome in ("complete", "partial"):
        with contextlib.suppress(Exception):  # an author's code may raise anything, above all on half of what it needs
            return msgspec.json.encode(program.answer(k))
    return b"null"


def _of_goals(k: State) -> list[commands.EmitResult]:
    """The results of a program whose results are the answers of its top goals, which K keeps and has numbered."""
    tops = (goal for goal in k.goals.values() if not goal.parent and goal.ended)
    entries = [goal for goal in tops if goal.row or goal.status == Status.RESOLVED]
    found = []
    for index, goal in enumerate(sorted(entries, key=lambda goal: goal.ended)):
        kind = str(goal.failure.kind) if goal.status == Status.FAILED and goal.failure is not None else ""
        value = line_of(goal) if goal.row else goal.answer
        found.append(commands.EmitResult(index, value, goal.status != Status.RESOLVED, goal.row, kind))
    return found
