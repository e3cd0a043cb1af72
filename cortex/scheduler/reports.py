"""What actors tell the cortex, and what it tells them: counts, times and leases; never a prompt or a reply.

A *route* is endpoint, credential and model: breakers, signals and prices belong to it. A *pool* is what the provider
limits together, endpoint, credential and model class: concurrency and rates belong to it. Both are named by text
(``policies.failures.route_choice``). Durations travel, never times of day: two machines' clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from policies.limits.limit import RateLimits


class _Wire(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common form between actors: an array."""


class RouteSignals(_Wire, frozen=True):
    """What became of attempts at one route that were begun under one generation of its breaker, since the last report.

    Only what the provider was asked counts: local refusals and cancellations are left out, and so is time spent in a
    queue of ours.
    """

    route: str
    pool: str
    generation: int = 0
    begun: int = 0
    answered: int = 0
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    """Attempts that failed, by ``FailureKind``."""
    slow: int = 0
    """Attempts, answered or timed out, that took more than half of the time they may take."""
    input_tokens: int = 0
    """As billed by the answers."""
    output_tokens: int = 0
    latency_s: float = 0.0
    """Sum over the answered attempts."""
    samples: tuple[tuple[float, int], ...] = ()
    """(seconds, output tokens) of some answered attempts, at most 16."""
    retry_after_s: float = 0.0
    """The longest wait that the provider asked for; 0 where it did not."""
    rate: RateLimits | None = None
    """What the latest answer told of the rate limits."""
    said: str = ""
    """The words of the latest BLOCKED or UNAUTHORISED."""
    in_flight: int = 0
    """Attempts at this route under way here now, of every generation."""


class ToolSignals(_Wire, frozen=True):
    """What became of runs of one tool since the last report."""

    tool: str
    """``job's program place/tool name``."""
    generation: int = 0
    answered: int = 0
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    slow: int = 0
    latency_s: float = 0.0


class ProgressReport(_Wire, frozen=True):
    """Signs of real progress of a branch or a worker. Sent again under the same number until it was heard."""

    subject: str
    """Its name, ``branch:0``."""
    incarnation: str
    node: str
    number: int
    """Counts reports of this incarnation; one that was heard before is not counted twice."""
    phase: str
    """starting, idle, queued, calling, running, draining."""
    in_flight: int = 0
    queued: int = 0
    overdue_s: float = 0.0
    """How far the most overdue attempt here is past its deadline: above the grace, asking it to stop did not help."""
    streamed: int = 0
    """Bytes of unfinished answers: a long answer that keeps growing is no stall."""
    done: int = 0
    """Attempts or runs that ended here, ever."""
    routes: tuple[RouteSignals, ...] = ()
    tools: tuple[ToolSignals, ...] = ()


class Claim(_Wire, frozen=True):
    """What a job holds of one route."""

    route: str
    pool: str
    held: int
    """Permits it may use now, or uses still: never less than what is in flight there."""
    heard: int = 0
    """Serial of the last grant that it has taken in, of the cortex named in the claims."""
    memo: bytes = b""
    """What the cortex asked it to keep: the last that was known of this pool's limits and this route's breaker."""
    blocked: str = ""
    """Why the account is blocked, as far as this job knows."""


class Claims(_Wire, frozen=True):
    """A channel asks for its share, or renews it."""

    job: str
    epoch: int
    cortex: str
    """Incarnation of the cortex that it last heard; empty if none."""
    wanted: int
    """Calls it could have in flight now; 0 where it has nothing to ask."""
    concurrency: int
    """The most that its user allows it and its child jobs together."""
    claims: tuple[Claim, ...]
    """By preference: the route, then its declared fallbacks. None for a job of message batches alone: it joins all the
    same, since it needs branches and workers."""
    weight: float = 1.0
    """Its priority."""
    headroom: float = 0.0
    """Share of what the provider allows that its user keeps free for other traffic."""
    call_timeout_s: float = 60.0
    """The longest that one of its attempts may take."""
    progress: int = 0
    """Calls that it has settled, ever."""
    demand: int = 0
    """Tool runs that wait or run: workers are wanted."""
    staff: int = 0
    """``staff_digest`` of the branches and workers that it knows of: it is told of them until this is right."""
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Requests, input and output tokens a second that its user allows it and its child jobs together; 0: no bound."""
    others: tuple[Claims, ...] = ()
    """The same for each of its roles that has a route of its own, under their names (``families.member_of``): told
    together, so that nothing is unknown of a job that has been heard."""


def staff_digest(branches: Iterable[str], workers: Iterable[str]) -> int:
    """Names of branches and workers in one number, never 0: two sides that have the same know the same."""
    named = "\n".join((*branches, "", *workers)).encode()
    return 1 + int.from_bytes(blake2b(named, digest_size=7).digest())


PACED_BY = "paced by "
"""How it begins to say why, where a rate that was set by hand is all that holds calls back."""


class Grant(_Wire, frozen=True):
    """What a job may use of one route from now on, in place of what it had."""

    job: str
    route: str
    cortex: str
    """Incarnation of the cortex that grants."""
    serial: int
    """Grows with every grant of this incarnation: an older one that arrives later is ignored."""
    permits: int
    """Attempts in flight at once."""
    starts: int = -1
    """Attempts that may be begun under this grant at all (probes); -1: any number."""
    generation: int = 0
    """Of the route's breaker: attempts carry it, so that late results of an earlier state can be told apart."""
    requests_per_s: float = 0.0
    """0: no bound; so for tokens."""
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    for_s: float = 0.0
    """How long the lease holds, counted from the moment at which its holder last asked; 0: no longer than before."""
    why: str = ""
    """Why it is less than was asked for, in a few words; empty where nothing is the matter."""
    again_s: float = 0.0
    """Seconds until an open breaker is to be probed; 0: it is not open, or nobody knows."""
    memo: bytes = b""
