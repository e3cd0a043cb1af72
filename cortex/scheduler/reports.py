"""Messages between actors and the scheduler: counts, times and leases; never a prompt or a reply.

A *route* is endpoint, credential and model: breakers, signals and prices belong to it. A *pool* is the unit of the
provider's limits, endpoint, credential and model class: concurrency and rates belong to it. Both are named by text
(``policies.failures.route_choice``). Messages hold durations, never times of day: machines' clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from policies.failures.breaker import BreakerState
from policies.limits.limit import RateLimits


class _Wire(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common wire format: an array."""


class RouteSignals(_Wire, frozen=True):
    """Outcomes of attempts on one route, begun in one generation of its breaker, since the last report.

    Only requests to the provider count: local refusals and cancellations are left out, and so is time in local queues.
    """

    route: str
    pool: str
    generation: int = 0
    begun: int = 0
    answered: int = 0
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    """Failed attempts, by ``FailureKind``."""
    slow: int = 0
    """Attempts, answered or timed out, that took more than half of their allowed time."""
    input_tokens: int = 0
    """Input tokens billed by the answers."""
    output_tokens: int = 0
    latency_s: float = 0.0
    """Sum over the answered attempts, in seconds."""
    samples: tuple[tuple[float, int], ...] = ()
    """(seconds, output tokens) of some answered attempts, at most 16."""
    retry_after_s: float = 0.0
    """The longest wait that the provider asked for, in seconds; 0: none."""
    rate: RateLimits | None = None
    """Rate limits in the headers of the latest answer."""
    message: str = ""
    """Message of the latest BLOCKED or UNAUTHORISED failure."""
    in_flight: int = 0
    """Attempts of this branch in flight on this route, of every generation."""
    timed_out_s: float = 0.0
    """Duration of the shortest attempt that timed out, in seconds; 0: none did."""
    prompts: tuple[int, ...] = ()
    """Input tokens of the attempts in `samples`, without those read from a prompt cache."""
    at_server: tuple[int, int] | None = None
    """Requests that the server works on, and requests that wait there, of anybody, as its metrics told since the last
    report; None: they told nothing."""
    given_back: int = 0
    """Calls that met an open breaker at the branch and went back to their channels unsent. They are in no other
    count."""


class ToolSignals(_Wire, frozen=True):
    """Outcomes of runs of one tool since the last report."""

    tool: str
    """``job's program place/tool name``."""
    generation: int = 0
    answered: int = 0
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    slow: int = 0
    latency_s: float = 0.0


class ProgressReport(_Wire, frozen=True):
    """Progress report of a branch or worker. Sent again with the same number until it was received."""

    subject: str
    """Name of the member, for example ``branch:0``."""
    incarnation: str
    node: str
    number: int
    """Number of the report within this incarnation; a report is counted once."""
    phase: str
    """starting, idle, queued, calling, running, draining."""
    in_flight: int = 0
    queued: int = 0
    overdue_s: float = 0.0
    """Seconds by which its most overdue attempt is past its deadline: beyond the grace, asking it to stop did not
    help."""
    streamed: int = 0
    """Bytes of unfinished answers: a long answer that keeps growing is not stalled."""
    done: int = 0
    """Attempts or runs that this incarnation has ended."""
    routes: tuple[RouteSignals, ...] = ()
    tools: tuple[ToolSignals, ...] = ()


class BreakerStanding(_Wire, frozen=True):
    """Breaker of a route that is not closed."""

    route: str
    state: BreakerState
    generation: int
    """Generation of this stay: a call that was granted in an earlier one must not be sent."""
    for_s: float = 0.0
    """Seconds until an open breaker is probed; 0: it is half open."""


class ReportAnswer(_Wire, frozen=True):
    """Answer of the scheduler to a progress report."""

    after_s: float
    """Seconds until the next report is wanted."""
    cortex: str = ""
    """Incarnation of the scheduler."""
    breakers: tuple[BreakerStanding, ...] | None = ()
    """Breakers of all routes that are not closed. None: a restarted scheduler does not know them yet, so that what was
    said before stands."""


class Claim(_Wire, frozen=True):
    """Part of one route that a job holds."""

    route: str
    pool: str
    held: int
    """Permits that it may use now or still uses: never less than its calls in flight there."""
    acknowledged: int = 0
    """Serial of the latest grant that it has received from the scheduler named in the claims."""
    memo: bytes = b""
    """Memo that the scheduler gave it: latest state of this pool's limits and this route's breaker."""
    blocked: str = ""
    """Reason why the account is blocked, as far as this job knows."""
    queues: bool = False
    """True for a server of the user's own, which may queue calls and refuse none."""


class Claims(_Wire, frozen=True):
    """Request of a channel for its share, or renewal."""

    job: str
    epoch: int
    cortex: str
    """Incarnation of the scheduler that it last received a message from; empty if none."""
    wanted: int
    """Calls that it could have in flight now; 0 if it has nothing to ask."""
    concurrency: int
    """Concurrency that its user allows to it and its child jobs together."""
    claims: tuple[Claim, ...]
    """Claims by preference: the route, then its declared fallbacks. Empty for a job of message batches only: it joins
    because it needs branches and workers."""
    weight: float = 1.0
    """Priority of the job."""
    headroom: float = 0.0
    """Share of the provider's limits that its user leaves to other traffic."""
    call_timeout_s: float = 60.0
    """Longest timeout of its attempts, in seconds."""
    progress: int = 0
    """Calls that the job has settled so far."""
    demand: int = 0
    """Tool runs that wait or run: workers are wanted."""
    staff: int = 0
    """``staff_digest`` of the branches and workers that it knows: they are sent to it until this is right."""
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Requests, input and output tokens per second that its user allows to it and its child jobs together; 0: no
    bound."""
    others: tuple[Claims, ...] = ()
    """Claims of its roles with routes of their own, under their names (``job_families.member_of``): sent together, so
    that all of a job's claims are known at once."""
    peers: int = 0
    """Number of claims after the first whose routes rank equal with it: they share the demand by load."""


def staff_digest(branches: Iterable[str], workers: Iterable[str]) -> int:
    """Return a hash of the names of branches and workers, never 0: two sides with equal hashes know the same
    members.
    """
    named = "\n".join((*branches, "", *workers)).encode()
    return 1 + int.from_bytes(blake2b(named, digest_size=7).digest())


PROVIDER_ASKS = "the provider asks to wait"
PACED_BY = "paced by "
"""Beginning of the reason of a grant if a rate set by an operator is the only bound."""


POOL_LIMITS = ("the pool's limit", "a share of the pool's limit")
"""Reasons of a grant if only the learned limit of the pool is the bound: for one holder, or for several."""


class Grant(_Wire, frozen=True):
    """Grant of a share of one route, replacing the earlier one."""

    job: str
    route: str
    cortex: str
    """Incarnation of the scheduler that grants."""
    serial: int
    """Number that grows with every grant of this incarnation: an older grant that arrives later is ignored."""
    permits: int
    """Attempts that may be in flight at once."""
    starts: int = -1
    """Attempts that may be begun under this grant (probes); -1: any number."""
    generation: int = 0
    """Generation of the route's breaker: attempts carry it, so that late results of an earlier state are recognised."""
    requests_per_s: float = 0.0
    """0: no bound, here and in the two token rates."""
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    for_s: float = 0.0
    """Seconds for which the lease holds, from the moment at which its holder last asked; 0: not extended."""
    why: str = ""
    """Reason, in a few words, why it is less than was asked for; empty: no reason."""
    again_s: float = 0.0
    """Seconds until an open breaker is probed; 0: it is not open, or the time is not known."""
    memo: bytes = b""
    """State of the pool and the route, which the holder returns with its claims to a restarted scheduler."""
    strays: bool = False
    """True if refusals are known not to follow load: a Retry-After holds the call that got it, not the route."""
    phase: float = 0.0
    """Share of the time between two calls by which the first one is put off, where rates are new or the route was held
    (``policies.limits.pace.put_off``)."""
