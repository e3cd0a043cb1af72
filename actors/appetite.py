"""When to ask a channel again how many rows it wants: each asking costs both sides a message, each window a commit."""

from __future__ import annotations

PAUSE_S = 0.04
"""As long as nothing is known; and twice as long each time that nothing was wanted."""
PAUSE_LEAST_S, PAUSE_MAX_S = 0.005, 0.16


class Appetite:
    """How fast rows leave a window, seen from two looks. ``window_rows``: how many are open in the channel at once."""

    def __init__(self, window_rows: int) -> None:
        self._half = window_rows / 2
        self._seen: tuple[float, int] | None = None
        self._pause_s = PAUSE_S

    def fed(self, at_s: float, wanted: int) -> None:
        """A window was taken, and the channel wants so many more; or it is the first look. Seconds of any clock."""
        self._seen = (at_s, wanted)

    def looked(self, at_s: float, wanted: int) -> None:
        """It was asked."""
        before, self._seen = self._seen, (at_s, wanted)
        if before is None or wanted <= before[1] or at_s <= before[0]:
            self._pause_s = PAUSE_S if wanted > 0 else min(2 * self._pause_s, PAUSE_MAX_S)
            return
        left_s = self._half * (at_s - before[0]) / (wanted - before[1])
        self._pause_s = min(max(left_s, PAUSE_LEAST_S), PAUSE_MAX_S)

    def pause_s(self, wanted: int) -> float:
        """How long to wait where so many are wanted: until half of the window is free, as far as that can be told."""
        return min(self._pause_s, max(PAUSE_LEAST_S, self._pause_s * (1 - wanted / self._half)))
