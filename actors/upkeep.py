"""What is done to a journal after a turn is on disk, so that it is quick to open again, and as small as it may be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from actors.store import Journal, Unreachable
from actors.thinning import Thinning
from cortex import journal
from cortex.state import State


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
            if self._events >= k.terms.limits.snapshot_events:
                self._kept(seq)
                self._journal.snapshot(seq, k.emitted, journal.encode_state(k))
                self._events = 0
