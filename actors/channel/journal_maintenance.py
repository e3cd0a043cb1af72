"""What is done to a journal after a turn is on disk, so that it is quick to open again, and as small as it may be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import copy

from actors.history import final_state
from actors.history.final_state import SNAPSHOT_BYTES_MAX
from actors.history.redaction import JournalRedaction
from actors.history.results import ResultBuffer
from actors.journal.journal import DatabaseUnreachable, Journal
from cortex.state import events
from cortex.state.program import Program
from cortex.state.state import State

LAST_EVENTS = 5_000
"""A job that has ended is opened from a snapshot of its own where more than so many events came after the last one: to
replay fewer takes less than a tenth of a second."""
BYTES_AN_EVENT = 60
"""Where most of K stands in pieces, a snapshot is due when it takes no more for each event since the last: 3 µs."""
SNAPSHOTS_KEPT = 2
"""A job goes on from the last one; the one before is there for whoever reads results, or looks back, a little behind.
Further back, K is replayed from the turns, which all stay."""


class JournalMaintenance:
    """Of one channel's journal. ``kept`` hears of each snapshot before it is written."""

    def __init__(
        self, source: Journal, k: State, kept: Callable[[int], object], program: Program, results: ResultBuffer
    ) -> None:
        self._journal = source
        self._program, self._result_buffer = program, results
        self._closes, self._closed = final_state.wanted(k), False
        self._kept = kept
        self._redaction, self._thins = JournalRedaction(source, k, kept), not k.terms.keeps_text
        self._pieces = source.pieces()
        self._bytes = 0
        """Of the last snapshot of this life, without its pieces."""
        self._events = 0
        """That came since the last snapshot."""

    def record_turn(self, count: int, turn: events.Turn, outcome: str) -> None:
        """So many events came in a turn, after which the job has ended so, or goes on."""
        self._events += count
        self._closed = self._closed and all(final_state.stands(outcome, batch) for batch in turn.batches)

    def look(self, k: State, seq: int) -> None:
        """A turn is on disk, and K is as it left it. What cannot be done now, a database being away, is done after a
        later one. Raises ``StoreError``."""
        if not self._thins and not k.outcome and self._events < k.terms.limits.snapshot_events:
            return  # after nearly every turn
        with contextlib.suppress(DatabaseUnreachable):
            self._redaction.look(k, seq)
            if self._events >= self._enough(k):
                self._write(k, seq)
                self._events = 0
            if self._closes and k.outcome and not self._closed:
                lines = self._result_buffer.all(k.emitted)
                final_state.write(self._journal, k, self._program, seq, lines, lambda: self._write(k, seq))
                self._closed = True

    def _enough(self, k: State) -> int:
        """Events after which a snapshot is due: soon enough to recover within seconds, and so seldom that the cost of a
        call does not grow with those before it: a K that is written whole has grown by a sixth, and is so written some
        seven times; one of which nearly all stands in pieces may be written as often as a small one."""
        usual = k.terms.limits.snapshot_events
        if k.outcome and k.terms.keeps_text:
            return min(usual, LAST_EVENTS)
        grown = (len(k.goals) + len(k.items)) // 6
        return max(usual, min(grown, self._bytes // BYTES_AN_EVENT) if self._pieces.held else grown)

    def _write(self, k: State, seq: int) -> bool:
        """A snapshot, and before it the pieces that belong to it. False: it would be too large. Where something cannot
        be kept, the snapshot before is as it was, and the next one goes on from there."""
        keeps_text, pieces = k.terms.keeps_text, copy(self._pieces)
        more = pieces.more(k) if keeps_text else []  # else turns are left that only a whole one stands in for
        blob = pieces.snapshot(k)
        if max(map(len, (blob, *more))) > SNAPSHOT_BYTES_MAX:
            return False
        for number, piece in enumerate(more, pieces.next - len(more)):
            self._journal.piece(pieces.generation, number, piece)
        self._kept(seq)
        self._journal.snapshot(seq, k.emitted, blob, SNAPSHOTS_KEPT if keeps_text else 0)
        self._pieces, self._bytes = pieces, len(blob)
        self._journal.sweep()
        return True
