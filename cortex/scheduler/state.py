"""What the cortex knows of its cluster: the state of ``cortex.scheduler.step.step``, and its settings.

It holds jobs, pools, routes, tools, branches, workers and nodes that are there, never calls: nothing here grows with
what was finished. It encodes and decodes with msgspec. Times are the events', in seconds.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from cortex.scheduler.health import HealthBuffer
from cortex.scheduler.reports import Grant
from policies.failures.breaker import NODE, ROUTE, TOOL, Breaker, BreakerPolicy
from policies.failures.restart import BRANCH, CHANNEL, RestartPolicy
from policies.limits.limit import NO_CAPS, LimitPolicy, PoolAllowance, PoolCaps, PoolLimit
from policies.limits.tenancy import TenantShare

LEASE_S: Final = 15.0
"""How long a lease holds unless renewed. Channels renew at a third of it."""
NEVER: Final = float("inf")


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every knob. Raises ValueError, one line, for a bound that makes no sense."""

    limit: LimitPolicy = LimitPolicy()
    breaker: BreakerPolicy = ROUTE
    tool: BreakerPolicy = TOOL
    node: BreakerPolicy = NODE
    restart: RestartPolicy = BRANCH
    channel: RestartPolicy = CHANNEL
    lease_s: float = LEASE_S
    branches_min: int = 1
    """While there is a job; none are kept without one."""
    branches_max: int = 1
    calls_per_branch: int = 100
    """In flight at once; a branch runs a pool of so many coroutines."""
    calls_per_s_per_branch: float = 4000.0
    """What one core sends over HTTP: a private Ray with one branch made 4,300 to 5,200 (``benchmarks.http``)."""
    workers_max: int = 1
    runs_per_worker: int = 4
    fewer_after_s: float = 30.0
    """So long must fewer have been enough before one is retired."""
    tool_timeout_s: float = 60.0
    """After it a run of a tool that was a probe is taken for lost."""
    reports_per_s: float = 400.0
    """Of all branches and workers together."""
    report_s: float = 0.25
    """Between two reports of one."""

    def __post_init__(self) -> None:
        if not 0 <= self.branches_min <= self.branches_max or self.branches_max < 1:
            raise ValueError(f"0 <= branches_min <= branches_max >= 1, not {self.branches_min}, {self.branches_max}")
        if self.workers_max < 0:
            raise ValueError(f"workers_max must be 0 or more, not {self.workers_max}")
        for name in ("calls_per_branch", "runs_per_worker"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        times = ("lease_s", "calls_per_s_per_branch", "fewer_after_s", "tool_timeout_s", "reports_per_s", "report_s")
        for name in times:
            if not 0 < getattr(self, name) < NEVER:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


class RouteHolding(msgspec.Struct):
    """What a job has of one route."""

    pool: str
    want: int = 0
    """Permits it could use here now: its whole demand on the one route that it was sent to, else 0."""
    held: int = 0
    """As it last told: what it may use or still uses."""
    heard: int = 0
    """Serial of the last grant that it had taken in by then."""
    told: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """(serial, permits) of grants that it may take in yet, the newest last; those that a later one exceeds left out,
    so that the first is the greatest."""
    share: int = 0
    """Permits that it is to have, as of the last sharing."""
    counted: int = 0
    """Permits that it may be using: the greatest of what it holds and of what it may take in yet."""
    grant: Grant | None = None
    """The newest grant."""
    probes: int = 0
    """Probes that it was given leave for in the route's present stay half open, and has not returned."""
    probed_s: float = -NEVER
    blocked: str = ""


class JobClaims(msgspec.Struct):
    """One channel's claims."""

    epoch: int
    until_s: float
    """Its lease. After it nothing new is begun, and what it had counts until ``free_s``."""
    free_s: float = 0.0
    asked: int = 0
    """Calls that it could have in flight."""
    want: int = 0
    """The same within what its user allows it and its family."""
    concurrency: int = 0
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """By hand, a second, as it told them: ``families``."""
    weight: float = 1.0
    headroom: float = 0.0
    call_timeout_s: float = 60.0
    runs: int = 0
    """Tool runs that wait or run."""
    expired: bool = False
    holds: dict[str, RouteHolding] = msgspec.field(default_factory=dict)
    """By route, in the job's order of preference."""
    share: str = ""
    """The route that its demand goes to; empty: none may be asked."""
    probing: tuple[str, ...] = ()
    """Routes that it would rather use, if their probes were good."""
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    deaths: list[float] = msgspec.field(default_factory=list)
    dead: bool = False
    """Told so; its next epoch is no second death."""
    condemned: bool = False


class RouteState(msgspec.Struct):
    """One route: its health."""

    pool: str
    breaker: Breaker = msgspec.field(default_factory=Breaker)
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    jobs: dict[str, bool] = msgspec.field(default_factory=dict)
    """Those with a claim on it, in the order in which they came."""
    stamp: tuple[int, int] = (0, 0)
    """Of the memo that it was adopted from."""
    seen_here: bool = False
    """Its breaker was moved by results, or has probes out, in the life of this incarnation of the cortex: no memo
    knows better."""


class PoolState(msgspec.Struct):
    """One pool: its limits, and who draws on it."""

    limit: PoolLimit
    caps: PoolCaps = NO_CAPS
    capped: bool = False
    """By hand, in the life of this incarnation of the cortex: no memo knows better."""
    lent: TenantShare | None = None
    """What this cluster may use of it; None: no other draws on the account."""
    lent_until_s: float = NEVER
    bounds: PoolCaps = NO_CAPS
    """By hand, for this cluster alone, and its part of what was set for all clusters: as of the last sharing."""
    allowed: PoolAllowance = PoolAllowance(0)
    """As of the last sharing."""
    routes: dict[str, bool] = msgspec.field(default_factory=dict)
    in_use: int = 0
    """The sum of ``counted``."""
    in_flight: int = 0
    """Attempts under way, as the branches told."""
    unknown: int = -1
    """After a restart, of ``in_flight``: calls of nobody who told of them. -1: not counted yet."""
    wanted: int = 0
    """By all jobs together, as of the last sharing."""
    level: float = NEVER
    """Permits for each unit of weight, as of the last sharing: what a job gets that wants more."""
    granted: int = 0
    """By the grants as they are now."""
    headroom: float = 0.0
    """The largest that any of its jobs asks for."""
    told: bool = True
    """Every holder has what is known by hand; otherwise each gets a new grant at the next sharing."""
    holders: int = 0
    shared_s: float = -NEVER
    late: bool = False
    """Something changed since then that the shares do not show yet."""
    again_s: float = NEVER
    """When it is to be divided again by time alone."""
    rated_s: float = -NEVER
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """As last told to all holders, and when."""
    probed_s: float = -NEVER
    """When a probe of a blocked route was last let out: one a minute, over all routes of the pool."""
    stamp: tuple[int, int] = (0, 0)
    """Of the memo that it was adopted from."""
    left_s: float = 0.0
    """When its last job left."""
    grew_s: float = -NEVER
    """When slow start last allowed more."""


class ToolState(msgspec.Struct):
    """One tool: its health."""

    breaker: Breaker = msgspec.field(default_factory=Breaker)
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    asked_s: float = 0.0


class Member(msgspec.Struct):
    """A branch or a worker."""

    role: str
    slot: int
    state: str = "wanted"
    """wanted (not ordered yet), starting, up, draining, retiring, killed."""
    since_s: float = 0.0
    node: str = ""
    incarnation: str = ""
    number: int = 0
    """Of its last report."""
    phase: str = ""
    in_flight: int = 0
    queued: int = 0
    overdue_s: float = 0.0
    flights: dict[str, int] = msgspec.field(default_factory=dict)
    """Attempts under way, by pool."""
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    deaths: list[float] = msgspec.field(default_factory=list)
    start_s: float = 0.0
    """Not to be started before."""
    stillborn: int = 0
    """Starts in a row after which it did not come to life in time."""
    pinged_s: float = -NEVER
    unheard: bool = False
    probe: str = ""
    """The half open node that it was placed on to see whether it is well."""
    empty_s: float = 0.0
    """While draining: since when it has nothing."""
    past: tuple[str, int] = ("", 0)
    """The incarnation before, and the number of its last report: what it told late is counted once."""
    drained: str = ""
    """Who asked for it alone to be emptied."""


class NodeState(msgspec.Struct):
    """A machine."""

    breaker: Breaker = msgspec.field(default_factory=Breaker)
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    alive: bool = True
    drained: str = ""
    """Who asked for it to be emptied."""


class SchedulerState(msgspec.Struct):
    """The state. ``SchedulerState(settings)`` is a cortex that has heard of nothing."""

    settings: SchedulerSettings = SchedulerSettings()
    cortex: str = ""
    at_s: float = -NEVER
    due_s: float = NEVER
    """Time alone changes nothing before."""
    serial: int = 0
    era: int = 1
    """Cortex incarnations, as far as is known: what is newer of two memos."""
    silent_until_s: float = -NEVER
    """After a restart: before this, what is not told to be held might still be."""
    probes_from_s: float = -NEVER
    """After a restart in which a channel kept silent: before this, probes that it was given may be out."""
    shared: bool = False
    """Other clusters draw on the same accounts."""
    drawn: int = 0
    stale: dict[str, bool] = msgspec.field(default_factory=dict)
    """Pools of which something changed since their last sharing."""
    again: bool = False
    """Another incarnation was before this one."""
    adopting_until_s: float = -NEVER
    """After a restart: before this, of two memos the newer counts."""
    jobs: dict[str, JobClaims] = msgspec.field(default_factory=dict)
    left: dict[str, int] = msgspec.field(default_factory=dict)
    """Jobs that left of late, and the epoch in which they did: a claim that comes after it has been on its way."""
    kin: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Families of more than one job: the root's name, and who is of it (``families``)."""
    routes: dict[str, RouteState] = msgspec.field(default_factory=dict)
    pools: dict[str, PoolState] = msgspec.field(default_factory=dict)
    tools: dict[str, ToolState] = msgspec.field(default_factory=dict)
    members: dict[str, Member] = msgspec.field(default_factory=dict)
    ended: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    """Retired members: incarnation and number of the last report, for those that come late."""
    nodes: dict[str, NodeState] = msgspec.field(default_factory=dict)
    branches: tuple[str, ...] = ()
    """Those that take work, as last told; so for the workers."""
    workers: tuple[str, ...] = ()
    told_s: float = -NEVER
    """When that was."""
    worse: tuple[str, ...] = ()
    """Nodes that were worse than others when that was last looked at."""
    worse_s: float = -NEVER
    check_s: float = NEVER
    """When branches and workers are looked at next."""
    deaf_until_s: float = -NEVER
    """The cortex itself was away: before this, nobody's silence is held against them."""
    resize: bool = False
    """Something changed that the number of branches or workers depends on."""
    restaff: bool = False
    """Something changed with those that are there."""
    wanted: tuple[int, int] = (0, 0)
    """Branches and workers, as of the last look."""
    calls_per_s: float = 0.0
    fewer_s: dict[str, float] = msgspec.field(default_factory=dict)
    """By role: since when fewer would have been enough."""
    kills: dict[str, int] = msgspec.field(default_factory=dict)
    restarts: dict[str, int] = msgspec.field(default_factory=dict)
    """By role: how many were ended by force, and how many were started again, in the life of this incarnation."""
    found_s: float = -NEVER
    """After a restart: before this, branches and workers may live that were not told of."""

    def wake(self, at_s: float) -> None:
        """Something is to be looked at then."""
        self.due_s = min(self.due_s, at_s)

    def draw(self) -> float:
        """The next of a fixed row of numbers in [0, 1): chance that is the same whenever the events are.

        A linear congruential generator modulo 2^64 with Knuth's constants (MMIX), read from its upper bits.
        """
        self.drawn = (self.drawn * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.drawn >> 11) / (1 << 53)

    def seed(self, text: str) -> None:
        """Begin another row of numbers."""
        self.drawn = zlib.crc32(text.encode())
