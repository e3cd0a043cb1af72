"""``--no-keep-text``: prompts and replies are deleted from the journal once the results from them are on disk.

A snapshot of K replaces the turns before it. The turns are deleted when the sink has written, to disk, all results
emitted by then, so that a run killed at any moment recovers from the snapshot and the turns after it. Text that is in
progress at the snapshot (a window of rows at most, and with input order the results that wait for their turn) stays in
it until the next snapshot; calls still to be made stay in it while the job rests. After the job has ended no text is
left.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.history import costs
from actors.journal.journal import Journal
from cortex.journal import codec
from cortex.state.state import State

RESULTS = 5_000
"""Most new results before the next snapshot."""
LOOK_S = 5.0
"""Most seconds, by the times of turns, before the next snapshot."""


class JournalRedaction:
    """Redaction of one channel's journal."""

    def __init__(self, source: Journal, k: State, kept: Callable[[int], object] = lambda seq: None) -> None:
        """Set up redaction of ``source``; inactive if the job keeps text. ``kept`` is called with a turn's number
        before each snapshot."""
        self._journal = source
        self._kept = kept
        self._on = not k.terms.keeps_text
        self._taken = (0, 0)
        """Snapshot whose turns are to be deleted: turn, and results emitted by then."""
        self._next = (k.emitted + RESULTS, k.at_s + LOOK_S)
        if self._on:
            source.zero_what_goes()

    def look(self, k: State, seq: int) -> None:
        """Delete the turns that may be deleted, after a turn was written to disk."""
        if not self._on:
            return
        over = bool(k.outcome) and k.written_rows >= k.emitted
        results, at_s = self._next
        if over or (not self._taken[0] and (k.emitted >= results or k.at_s >= at_s)):
            self._kept(seq)
            self._journal.snapshot(seq, k.emitted, codec.encode_state(k))
            self._taken, self._next = (seq, k.emitted), (k.emitted + RESULTS, k.at_s + LOOK_S)
        upto, emitted = self._taken
        if upto and k.written_rows >= emitted:
            costs.keep(self._journal, upto)
            self._journal.drop(upto, shrink=over)
            self._taken = (0, 0)
