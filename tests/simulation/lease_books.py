"""Records of the watch over leases, for each job and each route."""

from __future__ import annotations

from policies.failures.breaker import BreakerState


class Held:
    """Permits of one route that one job may be using."""

    __slots__ = ("granted", "held", "pool")

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.held = 0
        """Permits that the job last reported."""
        self.granted: list[tuple[str, int, int]] = []
        """(cortex, serial, permits) of grants that the job may still accept."""

    def most(self) -> int:
        """Return the most permits that the job may be using."""
        return max(self.held, max((permits for _, _, permits in self.granted), default=0))


class Out:
    """Calls under way on one route, over all jobs."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.calls: dict[tuple[str, int, int], float] = {}
        """(job, goal, attempt) -> latest end."""
        self.probes: dict[tuple[str, int, int], float] = {}
        self.state = BreakerState.CLOSED
        self.generation = 0
        self.open_until_s = 0.0
        """End of the open state as decided at its opening, not at an adoption; 0 once good probes have closed it."""
        self.stay = 0
        """Generation of the breaker in that open state."""
        self.told: set[str] = set()
        """Jobs that know of it, and can report it to a restarted cortex."""
        self.telling: set[tuple[str, int, str, int, bytes]] = set()
        """Claims sent after that: a late claim that was sent before cannot report it."""
        self.binds = False
        """True if the present cortex opened it, or learnt of it in time."""
        self.opened_s = 0.0
        self.leave = 0
        """Requests that may still begin: the permits granted when the breaker opened, less those used."""

    def bound(self, now_s: float) -> bool:
        """Return whether no unbounded grant may be given: the breaker is open, or must stay open."""
        return self.binds and now_s < self.open_until_s
