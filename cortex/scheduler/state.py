"""State of the scheduler (``cortex.scheduler.step.step``), and its settings.

Holds the current jobs, pools, routes, tools, branches, workers and nodes, never calls: nothing in it grows with
finished work. It encodes and decodes with msgspec. Times are those of the events, in seconds.
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
"""Seconds for which a lease holds unless renewed. Channels renew after a third of it."""
NEVER: Final = float("inf")
"""Time value "never"."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the scheduler. Raises ValueError, in one line, for a value that makes no sense."""

    limit: LimitPolicy = LimitPolicy()
    """Adaptive limit of pools."""
    breaker: BreakerPolicy = ROUTE
    """Breakers of routes."""
    tool: BreakerPolicy = TOOL
    """Breakers of tools."""
    node: BreakerPolicy = NODE
    """Breakers of nodes."""
    restart: RestartPolicy = BRANCH
    """Supervision of branches and workers."""
    channel: RestartPolicy = CHANNEL
    """Supervision of channels."""
    lease_s: float = LEASE_S
    """Seconds for which a lease holds unless renewed."""
    branches_min: int = 1
    """Branches while there is a job; without a job there are none."""
    branches_max: int = 1
    """Largest number of branches."""
    calls_per_branch: int = 100
    """Calls in flight of one branch, which runs a pool of as many coroutines."""
    calls_per_s_per_branch: float = 4000.0
    """Calls per second that one core sends over HTTP: a private Ray with one branch made 4,300 to 5,200
    (``benchmarks.http``)."""
    workers_max: int = 1
    """Largest number of workers."""
    runs_per_worker: int = 4
    """Tool runs of one worker at once."""
    fewer_after_s: float = 30.0
    """Seconds for which fewer members must have been enough before one is retired."""
    tool_timeout_s: float = 60.0
    """Seconds after which a tool run that was a probe counts as lost."""
    reports_per_s: float = 400.0
    """Reports per second of all branches and workers together."""
    report_s: float = 0.25
    """Seconds between two reports of one branch or worker."""

    def __post_init__(self) -> None:
        if not 0 <= self.branches_min <= self.branches_max or self.branches_max < 1:
            raise ValueError(
                f"0 <= branches_min <= branches_max and branches_max >= 1 must hold, "
                f"not {self.branches_min}, {self.branches_max}"
            )
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
    """Part of one route that a job holds."""

    pool: str
    want: int = 0
    """Permits that the job could use on this route now: its whole demand on the route it was sent to, else 0."""
    held: int = 0
    """Permits that it may use or still uses, as last reported."""
    acknowledged: int = 0
    """Serial of the latest grant that it has confirmed."""
    announced: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """(serial, permits) of unconfirmed grants, newest last, without those that a later one exceeds: the first is the
    largest."""
    share: int = 0
    """Permits that it shall have by the last division."""
    counted: int = 0
    """Permits that it may be using: the largest of `held` and of the unconfirmed grants."""
    grant: Grant | None = None
    """Newest grant."""
    probes: list[float] = msgspec.field(default_factory=list)
    """Deadlines of the probes allowed in the route's current half-open stay that it has not returned."""
    probed_s: float = -NEVER
    """Time of its latest probe."""
    blocked: str = ""
    """Reason why the account is blocked, as the job reports; empty: it is not."""
    phase: float = 0.0
    """Phase of its pace among the holders of the pool, from 0 to 1 (``policies.limits.pace.put_off``)."""


class JobClaims(msgspec.Struct):
    """Claims of one channel."""

    epoch: int
    until_s: float
    """End of its lease. After it the job begins nothing new, and its permits count until ``free_s``."""
    free_s: float = 0.0
    """Time at which the last call of an expired job must have ended."""
    asked: int = 0
    """Calls that it could have in flight."""
    want: int = 0
    """The part of `asked` that its user's limits allow it within its family."""
    concurrency: int = 0
    """Concurrency that its user allows to the family."""
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Rates that its user allows to the family, per second (``job_families``)."""
    weight: float = 1.0
    headroom: float = 0.0
    call_timeout_s: float = 60.0
    runs: int = 0
    """Tool runs that wait or run."""
    expired: bool = False
    """True if its lease has expired."""
    holds: dict[str, RouteHolding] = msgspec.field(default_factory=dict)
    """Holdings by route, in the job's order of preference."""
    share: str = ""
    """Route that its demand goes to; empty: no route is usable."""
    probing: tuple[str, ...] = ()
    """Routes that it prefers to `share`, if their probes succeed."""
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    deaths: list[float] = msgspec.field(default_factory=list)
    dead: bool = False
    """True if the death was reported; its next epoch is not a second death."""
    condemned: bool = False
    """True if the job was stopped because its channel keeps dying."""
    peers: int = 0
    """Number of routes after the first that share its demand with it."""
    spread_s: float = -NEVER
    """Time at which its demand was last divided among these."""


class RouteState(msgspec.Struct):
    """Health of one route."""

    pool: str
    breaker: Breaker = msgspec.field(default_factory=Breaker)
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    jobs: dict[str, bool] = msgspec.field(default_factory=dict)
    """Jobs with a claim on it, in the order in which they came."""
    stamp: tuple[int, int] = (0, 0)
    """Stamp of the memo that it was adopted from."""
    writer: str = ""
    """Incarnation of the scheduler that wrote that memo."""
    seen_here: bool = False
    """True if results moved its breaker, or probes are out, in this incarnation of the scheduler: memos are then
    ignored."""
    answered_s: float = -NEVER
    """Time of the latest report with answers."""
    given_back: int = 0
    """Calls that met its open breaker at a branch and were not sent."""
    told_s: float = -NEVER
    """Time of the latest report in which the server's own metrics told of its queue."""


class PoolState(msgspec.Struct):
    """Limits and holders of one pool."""

    limit: PoolLimit
    caps: PoolCaps = NO_CAPS
    capped: bool = False
    """True if an operator set `caps` in this incarnation of the scheduler: memos are then ignored."""
    lent: TenantShare | None = None
    """Share of the account that this cluster may use; None: no other cluster draws on it."""
    lent_until_s: float = NEVER
    bounds: PoolCaps = NO_CAPS
    """Operator caps of this cluster, combined with its part of the caps of all clusters, at the last division."""
    allowed: PoolAllowance = PoolAllowance(0)
    """Bounds of the pool at the last division."""
    routes: dict[str, bool] = msgspec.field(default_factory=dict)
    in_use: int = 0
    """Sum of ``counted`` over all holders."""
    in_flight: int = 0
    """Attempts in flight, as the branches reported."""
    unknown: int = -1
    """Part of ``in_flight`` after a restart that belongs to no reporting holder; -1: not counted yet."""
    wanted: int = 0
    """Demand of all jobs together at the last division."""
    level: float = NEVER
    """Permits per unit of weight at the last division, for jobs that want more."""
    granted: int = 0
    """Permits of all current grants."""
    headroom: float = 0.0
    """Largest headroom that any of its jobs asks for."""
    announced: bool = True
    """False if new caps are not sent to all holders yet: each gets a new grant at the next division."""
    holders: int = 0
    shared_s: float = -NEVER
    """Time of the last division."""
    late: bool = False
    """True if something has changed since the last division."""
    again_s: float = NEVER
    """Time at which the pool is to be divided again."""
    rated_s: float = -NEVER
    """Time at which the rates were last sent to all holders."""
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Rates as last sent to all holders."""
    probed_s: float = -NEVER
    """Time of the latest probe of a blocked route: one a minute over all routes of the pool."""
    stamp: tuple[int, int] = (0, 0)
    """Stamp of the memo that it was adopted from."""
    left_s: float = 0.0
    """Time at which its last job left."""
    grew_s: float = -NEVER
    """Time at which slow start last allowed more."""


class ToolState(msgspec.Struct):
    """Health of one tool."""

    breaker: Breaker = msgspec.field(default_factory=Breaker)
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    asked_s: float = 0.0
    """Time of the latest request to run it."""


class Member(msgspec.Struct):
    """Branch or worker."""

    role: str
    slot: int
    state: str = "wanted"
    """wanted (not ordered yet), starting, up, draining, retiring, killed."""
    since_s: float = 0.0
    node: str = ""
    incarnation: str = ""
    number: int = 0
    """Number of its latest report."""
    phase: str = ""
    in_flight: int = 0
    queued: int = 0
    overdue_s: float = 0.0
    flights: dict[str, int] = msgspec.field(default_factory=dict)
    """Attempts in flight, by pool."""
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    deaths: list[float] = msgspec.field(default_factory=list)
    died_on: str = ""
    """Node of its latest death."""
    died_there: int = 0
    """Deaths in a row on that node."""
    start_s: float = 0.0
    """Earliest time of its start."""
    stillborn: int = 0
    """Consecutive starts after which it did not become alive in time."""
    pinged_s: float = -NEVER
    unconfirmed: bool = False
    """True if a ping was not answered."""
    probe: str = ""
    """Half-open node that it was placed on to test the node."""
    probe_until_s: float = 0.0
    """Deadline of that test: afterwards another member may be placed there."""
    empty_s: float = 0.0
    """While draining: time since which it has no work."""
    past: tuple[str, int] = ("", 0)
    """Earlier incarnation, and the number of its latest report: a late report of it is counted once."""
    drained: str = ""
    """User who asked to drain this member."""


class NodeState(msgspec.Struct):
    """Machine of the cluster."""

    breaker: Breaker = msgspec.field(default_factory=Breaker)
    seen: HealthBuffer = msgspec.field(default_factory=HealthBuffer)
    alive: bool = True
    drained: str = ""
    """User who asked to drain it."""
    host: str = ""
    """Name of its pod or host; empty if it is not known."""


class LostNode(msgspec.Struct, frozen=True):
    """Node that was lost, and not drained or ended on purpose."""

    host: str
    """Name of its pod or host, else the node's own name."""
    at_s: float
    """Time of the loss, by the scheduler's clock."""
    now_s: float
    """Unix time of the loss."""
    short: int = 0
    """Number of nodes that must come until it is replaced: earlier losses are replaced first. 0: it is replaced, or was
    lost before the scheduler began, which does not know."""


class SchedulerState(msgspec.Struct):
    """State of the scheduler. ``SchedulerState(settings)`` is a scheduler that has received no event."""

    settings: SchedulerSettings = SchedulerSettings()
    cortex: str = ""
    """Incarnation of the scheduler."""
    at_s: float = -NEVER
    due_s: float = NEVER
    """Time before which time alone changes nothing."""
    serial: int = 0
    """Serial of the latest grant."""
    era: int = 1
    """Number of scheduler incarnations, as far as is known; decides which of two memos is newer."""
    silent_until_s: float = -NEVER
    """After a restart: time before which unreported permits may still be held."""
    probes_from_s: float = -NEVER
    """After a restart with a silent channel: time before which that channel's probes may be out."""
    shared: bool = False
    """True if other clusters draw on the same accounts."""
    drawn: int = 0
    """State of the random number sequence."""
    stale: dict[str, bool] = msgspec.field(default_factory=dict)
    """Pools with changes since their last division."""
    again: bool = False
    """True if another incarnation came before this one."""
    adopting_until_s: float = -NEVER
    """After a restart: time before which the newer of two memos counts."""
    jobs: dict[str, JobClaims] = msgspec.field(default_factory=dict)
    left: dict[str, int] = msgspec.field(default_factory=dict)
    """Jobs that left lately, with their epoch: a claim of that epoch arrives late."""
    families: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Families of more than one job: the root's name, and the members (``job_families``)."""
    routes: dict[str, RouteState] = msgspec.field(default_factory=dict)
    not_closed: dict[str, bool] = msgspec.field(default_factory=dict)
    """Routes whose breaker is not closed: branches are told of them with every answer to a report."""
    pools: dict[str, PoolState] = msgspec.field(default_factory=dict)
    tools: dict[str, ToolState] = msgspec.field(default_factory=dict)
    members: dict[str, Member] = msgspec.field(default_factory=dict)
    ended: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    """Incarnation and number of the last report of retired members, for late reports."""
    nodes: dict[str, NodeState] = msgspec.field(default_factory=dict)
    lost: dict[str, LostNode] = msgspec.field(default_factory=dict)
    """Nodes lost lately, the latest last (``cortex.scheduler.lost_nodes``)."""
    branches: tuple[str, ...] = ()
    """Branches that take work, as last sent."""
    workers: tuple[str, ...] = ()
    """Workers that take work, as last sent."""
    announced_s: float = -NEVER
    """Time at which these were last sent."""
    worse: tuple[str, ...] = ()
    """Nodes that were worse than others at the last check."""
    worse_s: float = -NEVER
    """Time of that check."""
    check_s: float = NEVER
    """Time of the next check of branches and workers."""
    deaf_until_s: float = -NEVER
    """After an absence of the scheduler itself: time before which silence is ignored."""
    resize: bool = False
    """True if a change may affect the number of branches or workers."""
    restaff: bool = False
    """True if the existing branches or workers changed."""
    wanted: tuple[int, int] = (0, 0)
    """Branches and workers wanted at the last check."""
    calls_per_s: float = 0.0
    """Calls begun per second over all routes."""
    fewer_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Time since which fewer members would have been enough, by role."""
    kills: dict[str, int] = msgspec.field(default_factory=dict)
    """Members ended by force in this incarnation, by role."""
    restarts: dict[str, int] = msgspec.field(default_factory=dict)
    """Members started again in this incarnation, by role."""
    found_s: float = -NEVER
    """After a restart: time before which branches and workers may be alive that were not reported yet."""

    def wake(self, at_s: float) -> None:
        """Schedule a check at this time."""
        self.due_s = min(self.due_s, at_s)

    def draw(self) -> float:
        """Return the next of a fixed sequence of numbers in [0, 1): randomness that replays.

        A linear congruential generator modulo 2^64 with Knuth's constants (MMIX), read from its upper bits.
        """
        self.drawn = (self.drawn * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.drawn >> 11) / (1 << 53)

    def seed(self, text: str) -> None:
        """Begin another sequence of random numbers."""
        self.drawn = zlib.crc32(text.encode())
