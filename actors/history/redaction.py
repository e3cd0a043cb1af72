"""``--no-keep-text``: what a job asked and was answered leaves its journal once the results that it led to are on disk.

A snapshot of K stands in for the turns before it. They go when the sink holds, on disk, all results that were given out
by then: so a run that is killed at any moment recovers from the snapshot and the turns after it, as ever. What is open
at that moment (a window of rows at most, and with input order the results that wait for their turn) is in the snapshot
until the next one; what is still to be asked is in it while the job rests. Once the job is over nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.history import costs
from actors.journal.journal import Journal
from cortex.journal import codec
from cortex.state.state import State

RESULTS = 5_000
"""So many new results at the most before the next snapshot is taken."""
LOOK_S = 5.0
"""And so much time, of the turns' own."""


class JournalRedaction:
    """Of one channel's journal."""

    def __init__(self, source: Journal, k: State, kept: Callable[[int], object] = lambda seq: None) -> None:
        """``kept`` hears of each snapshot before it is written."""
        self._journal = source
        self._kept = kept
        self._on = not k.terms.keeps_text
        self._taken = (0, 0)
        """The snapshot whose turns are to go: turn, and results given out by then."""
        self._next = (k.emitted + RESULTS, k.at_s + LOOK_S)
        if self._on:
            source.zero_what_goes()

    def look(self, k: State, seq: int) -> None:
        """A turn is on disk: what may go now goes."""
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
