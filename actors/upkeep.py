"""What is done to a journal after a turn is on disk, so that it is quick to open again, and as small as it may be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from actors.store import Journal, Unreachable
from actors.thinning import Thinning
from cortex import journal
from cortex.state import State

SNAPSHOT_BYTES_MAX = 900_000_000
"""Neither SQLite nor PostgreSQL takes a value of more than 1 GB: a larger K is replayed from its last smaller one."""
LAST_EVENTS = 5_000
"""A job that has ended is opened from a snapshot of its own where more than so many events came after the last one: to
replay fewer takes less than a tenth of a second."""


class Upkeep:
    """Of one channel's journal. ``kept`` hears of each snapshot before it is written."""

    def __init__(self, source: Journal, k: State, kept: Callable[[int], object]) -> None:
        self._journal = source
        self._kept = kept
        self._thinning = Thinning(source, k, kept)
        self._events = 0
        """That came since the last snapshot."""

    def took(self, count: int) -> None:
        """So many events came in a turn."""
        self._events += count

    def look(self, k: State, seq: int) -> None:
        """A turn is on disk, and K is as it left it. What cannot be done now, a database being away, is done after a
        later one. Raises ``StoreError``."""
        with contextlib.suppress(Unreachable):
            self._thinning.look(k, seq)
            if self._events >= _enough(k):
                blob = journal.encode_state(k)
                if len(blob) <= SNAPSHOT_BYTES_MAX:
                    self._kept(seq)
                    self._journal.snapshot(seq, k.emitted, blob)
                self._events = 0


def _enough(k: State) -> int:
    """Events after which a snapshot is due. A K that grows is written down whenever it has grown by half: else the cost
    of a call would grow with those before it."""
    usual = k.terms.limits.snapshot_events
    if k.outcome and k.terms.keeps_text:
        return min(usual, LAST_EVENTS)
    return max(usual, (len(k.goals) + len(k.items)) // 2)
