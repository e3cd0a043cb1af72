"""Failed rows: their selection, and the source that gives them to their job again.

Both read the job's journal, since the input may be gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import msgspec

from actors.common.errors import UserError
from actors.files.sources.row_source import WINDOW_BYTES_MAX, SourceWindow
from actors.history.result_history import Load, lines
from actors.journal.journal import Journal, StateFolder
from actors.ports.rows import Source
from cortex.state import events
from cortex.state.state import State
from cortex.values.prompt import with_model


class NoFailedRows(UserError):
    """The job has no failed row of the named kinds."""


def reopening(
    source: Journal, load: Load, kinds: Collection[str], *, who: str, position: int, ended: bool = True,
    model: str = "", output_tokens_max: int = 0, requests: bool = True,
) -> events.RowsReopened:  # fmt: skip
    """Return the event that reopens a job's failed rows of these kinds; without kinds, all of them.

    ``position``: position in the source; ``ended``: False if rows of the source were not read yet. ``requests``: True
    if rows are whole requests. Raises ``NoFailedRows``, and ``UserError`` for a retry that an earlier release left
    unfinished.
    """
    found = []
    for line in lines(source, load):
        if line is None:
            break
        if line.row and (not kinds or line.kind in kinds):
            found.append(line)
    if not found:
        raise NoFailedRows("no row failed" + (f" of kind {' or '.join(sorted(kinds))}" if kinds else ""))
    before = source.reopenings()
    last = before[-1][1] if before else None
    if not ended and last is not None and not last.kind_of:
        first = f"cortex resume {source.job} first"
        raise UserError(f"job {source.job} has rows that an earlier release was to ask again: {first}")
    model = model or (last.model if last else "")
    output_tokens_max = output_tokens_max or (last.output_tokens_max if last else 0)
    counts = dict(sorted(Counter(line.kind for line in found).items()))
    places = {kind: place for place, kind in enumerate(counts)}
    return events.RowsReopened(
        who, len(before) + 1, tuple(line.row for line in found), tuple(line.index for line in found),
        counts, position, ordered=found[0].order >= 0, model=model,
        output_tokens_max=output_tokens_max, requests=requests, kind_of=tuple(places[line.kind] for line in found),
        input_at=-1 if ended else input_position(last, position),
    )  # fmt: skip


def input_position(last: events.RowsReopened | None, position: int) -> int:
    """Return the position in the input at a position in the job's source; -1 if the input was read to its end.

    ``last``: the latest reopening, whose rows stand between the rows of the input.
    """
    if last is None:
        return position
    fed = max(0, position - last.base - len(last.keys))
    return last.input_at + fed if last.input_at >= 0 else -1


def input_is_left(folder: StateFolder, k: State) -> bool:
    """Return whether a job with reopened rows has more of its input to read."""
    if k.source_ended:
        return False
    with closing(folder.journal(k.terms.job)) as source:
        found = source.reopenings()
    return bool(found) and found[-1][1].input_at >= 0


class RetriedRows:
    """Source of a job's rows: those of its input, and failed rows that were reopened, from the journal.

    Positions of reopened rows follow the last position that was read: one a row, in the order of the input. The rest of
    the input follows them, if it was not read to its end; otherwise ``source`` may be None.
    """

    def __init__(self, folder: StateFolder, job: str, source: Source | None = None) -> None:
        self._folder = folder
        self._job = job
        self._source = source
        self._journal: Journal | None = None
        self._reopened: events.RowsReopened | None = None
        self._rows: Iterator[events.Row] = iter(())
        self._position = 0

    def seek(self, position: int) -> None:
        """Continue at a position."""
        self._let_go()
        self._journal = self._folder.journal(self._job)
        found = self._journal.reopenings()
        self._reopened = found[-1][1] if found else None
        if self._reopened is None:
            assert self._source is not None, "only what was opened again needs no source"
            self._source.seek(position)
            return
        self._rows = self._read(self._journal, self._reopened)
        self._position = max(position, self._reopened.base)
        for _ in islice(self._rows, self._position - self._reopened.base):
            pass
        if self._reopened.input_at >= 0:
            assert self._source is not None, "the rest of the input needs its source"
            self._source.seek(input_position(self._reopened, self._position))

    def read(self, rows_max: int) -> Any:
        """Return the next rows."""
        again = self._reopened
        if again is None:
            assert self._source is not None
            return self._source.read(rows_max)
        end = again.base + len(again.keys)
        if again.input_at >= 0 and self._position >= end:
            assert self._source is not None
            window = self._source.read(rows_max)
            self._position = end + window.position - again.input_at
            return SourceWindow(window.rows, self._position, window.ended)
        rows: list[events.Row] = []
        size = 0
        while len(rows) < rows_max and size < WINDOW_BYTES_MAX and (row := next(self._rows, None)) is not None:
            rows.append(row)
            size += len(row.body)
        self._position += len(rows)
        return SourceWindow(tuple(rows), self._position, self._position >= end and again.input_at < 0)

    def close(self) -> None:
        """Close journal and source."""
        self._let_go()
        if self._source is not None:
            self._source.close()

    def _let_go(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    @staticmethod
    def _read(source: Journal, again: events.RowsReopened) -> Iterator[events.Row]:
        """Yield each reopened row of the input once, although windows may have been read twice."""
        wanted = set(again.keys)
        place, position = -1, 0
        for _, turn in source.turns(source.opened_at()):
            for event in (event for batch in turn.batches for event in batch):
                if type(event) is not events.RowsRead or event.start != position:
                    continue
                position = event.position
                for row in event.rows:
                    if row.place >= 0:
                        continue
                    place += 1
                    if row.key in wanted:
                        wanted.discard(row.key)
                        yield _as_asked(row, place, again)
            if not wanted:
                return


def _as_asked(row: events.Row, place: int, again: events.RowsReopened) -> events.Row:
    body, tokens = row.body, row.output_tokens_max
    if again.model and again.requests:
        body = with_model(body, again.model)
    if again.output_tokens_max:
        tokens = again.output_tokens_max
        body = _with_tokens(body, tokens) if again.requests else body
    return msgspec.structs.replace(row, body=body, output_tokens_max=tokens, place=place)


def _with_tokens(body: bytes, tokens: int) -> bytes:
    """Return the request with another limit on reply tokens; the order of members is kept."""
    request = msgspec.json.decode(body, type=dict[str, msgspec.Raw])  # with its numbers as they are written
    return msgspec.json.encode({**request, "max_tokens": tokens})
