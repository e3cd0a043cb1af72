"""What the watch over leases keeps of each job and each route."""

from __future__ import annotations

from policies.failures.breaker import BreakerState


class Held:
    """What one job may be using of one route."""

    __slots__ = ("granted", "held", "pool")

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.held = 0
        """As it told last."""
        self.granted: list[tuple[str, int, int]] = []
        """(cortex, serial, permits) of grants that it may take in yet."""

    def most(self) -> int:
        """The most that it may be using."""
        return max(self.held, max((permits for _, _, permits in self.granted), default=0))


class Out:
    """Calls of one route that are out, over all jobs."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.calls: dict[tuple[str, int, int], float] = {}
        """(job, goal, attempt) and when it is over at the latest."""
        self.probes: dict[tuple[str, int, int], float] = {}
        self.state = BreakerState.CLOSED
        self.generation = 0
        self.open_until_s = 0.0
        """Decided when it opened, and not by whoever adopted it; 0 once good probes have closed it."""
        self.stay = 0
        """The breaker's generation in that stay."""
        self.told: set[str] = set()
        """Jobs that have heard of it, and can tell a cortex that was started again."""
        self.telling: set[tuple[str, int, str, int, bytes]] = set()
        """Claims that left after that: one that had left before, and comes late, cannot tell of it."""
        self.binds = False
        """The present cortex opened it, or somebody told it in time."""
        self.opened_s = 0.0
        self.leave = 0
        """Requests that may still be begun since the breaker opened: the permits out at that moment."""

    def bound(self, now_s: float) -> bool:
        """Whether nothing may be granted without bound: it is open, or was to stay so."""
        return self.binds and now_s < self.open_until_s
