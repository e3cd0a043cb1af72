"""A job's leave to make calls: what it may use of each of its routes, and what it uses.

Routes are named by their place in the terms: the job's own is 0, then its fallbacks. A call goes to the first of them
that has a permit free.
"""

from __future__ import annotations

import msgspec


class Share(msgspec.Struct):
    """What a job was granted of one route, and how much of it is in use."""

    permits: int = 0
    """Attempts in flight at once."""
    starts: int = -1
    """Attempts that may still be begun under the grant at all; -1: any number."""
    generation: int = 0
    """Of the route's breaker, as last told."""
    in_flight: int = 0
    """Attempts under way here, those that nobody awaits any more included."""
    hold_until_s: float = 0.0
    """The provider said to wait: nothing is asked here before."""
    why: str = ""
    """Why it is less than was asked for; empty where nothing is the matter."""
    memo: bytes = b""
    """What the cortex wants told back, should it have to begin anew."""

    def free(self, at_s: float) -> int:
        """Attempts that may be begun here now."""
        if self.hold_until_s > at_s:
            return 0
        free = self.permits - self.in_flight
        if 0 <= self.starts < free:
            free = self.starts
        return free if free > 0 else 0


def free(shares: list[Share], at_s: float) -> int:
    """Attempts that may be begun now, over all routes."""
    if len(shares) == 1:
        return shares[0].free(at_s)
    return sum(share.free(at_s) for share in shares)


def held_until_s(shares: list[Share], at_s: float) -> float:
    """When the first of the routes that are held back may be asked again; 0 where none with a permit is held."""
    held = [share.hold_until_s for share in shares if share.permits > 0 and share.hold_until_s > at_s]
    return min(held) if held else 0.0
