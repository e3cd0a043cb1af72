"""Maintenance of a journal after a turn is on disk: snapshots, redaction, and the final state."""

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
"""Events since the last snapshot from which an ended job has a snapshot of its own. Fewer are replayed in less than a
tenth of a second."""
BYTES_AN_EVENT = 60
"""Bytes of a snapshot for each event since the last, at most, if most of K is stored in pieces: 3 µs an event."""
SNAPSHOTS_KEPT = 2
"""Snapshots that are kept. A job resumes from the last one; the one before is for readers of results and of past states
that are a little behind. For earlier states K is replayed from the turns, which all stay."""


class JournalMaintenance:
    """Maintenance of one channel's journal. ``kept`` is called with the turn of each snapshot before it is written."""

    def __init__(
        self, source: Journal, k: State, kept: Callable[[int], object], program: Program, results: ResultBuffer
    ) -> None:
        self._journal = source
        self._program, self._result_buffer = program, results
        self._closes, self._closed = final_state.wanted(k), False
        self._kept = kept
        self._redaction, self._thins = JournalRedaction(source, k, kept), not k.terms.keeps_text
        self._pieces = source.pieces()
        self._ended = False
        self._bytes = 0
        """Bytes of the last snapshot that this channel has written, without its pieces."""
        self._events = 0
        """Events since the last snapshot."""

    def record_turn(self, count: int, turn: events.Turn, outcome: str) -> None:
        """Record a turn of this many events. ``outcome``: the job's outcome after it, empty while the job runs."""
        self._events += count
        self._closed = self._closed and all(final_state.stands(outcome, batch) for batch in turn.batches)

    def look(self, k: State, seq: int) -> None:
        """Do the maintenance that is due after a turn. ``k`` is the state after it.

        If the database is unreachable, the maintenance is done after a later turn. Raises ``StoreError``.
        """
        if not self._thins and not k.outcome and self._events < k.terms.limits.snapshot_events:
            return  # after nearly every turn
        with contextlib.suppress(DatabaseUnreachable):
            self._redaction.look(k, seq)
            if self._events >= self._enough(k):
                self._write(k, seq)
                self._events = 0
            if k.outcome and not self._ended:
                self._journal.note_end()
                self._ended = True
            if self._closes and k.outcome and not self._closed:
                lines = self._result_buffer.all(k.emitted)
                final_state.write(self._journal, k, self._program, seq, lines, lambda: self._write(k, seq))
                self._closed = True

    def _enough(self, k: State) -> int:
        """Return the number of events after which a snapshot is due.

        That is soon enough to recover within seconds, and seldom enough that the cost of a call does not grow with the
        number of calls before it. A K that is written whole must have grown by a sixth, so it is written some seven
        times in a job; a K of which nearly all is stored in pieces may be written as often as a small one.
        """
        usual = k.terms.limits.snapshot_events
        if k.outcome and k.terms.keeps_text:
            return min(usual, LAST_EVENTS)
        grown = (len(k.goals) + len(k.items)) // 6
        return max(usual, min(grown, self._bytes // BYTES_AN_EVENT) if self._pieces.held else grown)

    def _write(self, k: State, seq: int) -> bool:
        """Write a snapshot, after the pieces that belong to it.

        Return False, with nothing written, if it would be too large.

        If writing fails, the snapshot before stays valid, and the next one continues from there.
        """
        keeps_text, pieces = k.terms.keeps_text, copy(self._pieces)
        # otherwise the remaining turns are covered by a whole snapshot only
        more = pieces.more(k) if keeps_text else []
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
