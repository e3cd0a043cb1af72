"""Limits and terms of a job: every bound of the system in one frozen struct, validated at construction."""

from __future__ import annotations

import msgspec

from cortex.values.bounds.counts import WHOLE_MAX
from policies.estimates.batching import BatchingPolicy
from policies.estimates.price import Price
from policies.failures.retry import RetryPolicy
from policies.failures.route_choice import route_name
from policies.failures.timeout import TimeoutPolicy

MESSAGES = "messages"
"""Transport of single calls: one request per call."""
BATCHES = "batches"
"""Transport of message batches: many calls in one submission."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a job. Raises ``ValueError``, in one line, for a bound that makes no sense.

    Sizes are counts unless the name ends in a unit. ``None`` means that the user set no bound.
    """

    concurrency: int = 100
    """Calls in flight at once, over all routes; the scheduler may lease fewer, and permits beyond this are not used."""
    prompt_tokens_max: int | None = None
    """M, the prompt bound in tokens, if it is to be smaller than the context window less the reply."""
    parts_max: int = 200
    """Parts in one prompt: even a prompt that fits can hold too many parts to be useful."""
    output_tokens_max: int = 1_024
    """``max_tokens`` of a call if the program states none."""
    max_cost_nusd: int | None = None
    """Cap on known plus assumed plus reserved money, in 1e-9 USD."""
    max_job_tokens: int | None = None
    """Cap on known plus assumed plus reserved tokens, input and output together."""
    requests_per_min: float | None = None
    """Rate over all branches of this job, in addition to the provider's own limits."""
    input_tokens_per_min: float | None = None
    """Rate of input tokens over all branches of this job."""
    output_tokens_per_min: float | None = None
    """Rate of output tokens over all branches of this job."""
    headroom: float = 0.0
    """Share of the provider's limits that is left to other traffic, from 0 to below 1."""
    priority: float = 1.0
    """Weight among the jobs that share a pool: twice the weight gets twice the share."""
    deadline_at_s: float | None = None
    """Time at which the job ends partial, in seconds since 1970."""
    goal_timeout_s: float | None = None
    """Seconds that one top goal (a row) may take from its first attempt to its end, over all attempts and waits; then
    it fails as TIMED_OUT."""
    max_failed: float | None = None
    """Failed rows that end the job, unreadable records of the input included: from 1 a count, below 1 a share of the
    finished rows."""
    alike_first: int = 50
    """Number of finished rows, the first of a run, that stop the job if all of them failed alike; 0: never."""
    warm_prefix: bool = False
    """True if one call goes ahead of others that share a long cacheable prompt prefix, and the others wait for its
    answer."""
    hedge_after_s: float | None = None
    """Seconds without an answer after which a call is sent a second time; the first answer counts, both are billed."""
    blocked_wait_s: float = 0.0
    """Seconds that a job waits for a blocked account to open again before it ends partial; 0: no wait."""
    resamples_max: int = 4
    """Malformed replies of one goal that are discarded and asked again."""
    depth_max: int = 24
    """Depth to which goals may nest."""
    plan_goals_max: int = 10_000
    """Goals that one absorbed reply may add."""
    goals_max: int = 20_000_000
    """Goals that one job may ever have."""
    selects_max: int = 64
    """Rounds of changes without a call that select may make in one turn."""
    rejected_alike_max: int = 20
    """Number of consecutive goals refused with the same words, without a success, that counts as a blocked account."""
    faulty_in_row_max: int = 20
    """Number of consecutive goals on which the program's own code raised that stops the job."""
    window_rows: int = 2_048
    """Rows of a source that are open in K at once; at least ``concurrency``."""
    snapshot_events: int = 50_000
    """Events between two snapshots; bounds the time of a recovery."""
    message_calls_max: int = 256
    """Calls in one message between actors."""
    message_bytes_max: int = 90_000
    """Bytes in one message between actors: above 100 KB Ray uses its slower object store."""
    batching: BatchingPolicy = BatchingPolicy()
    """Settings of message batches."""
    retry: RetryPolicy = RetryPolicy()
    """Settings of retries."""
    timeout: TimeoutPolicy = TimeoutPolicy()
    """Settings of timeouts."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < _INFINITE:
                raise ValueError(f"{name} must be above zero, not {value}")
            if type(value) is int and value > WHOLE_MAX:
                raise ValueError(f"{name} must be at most {WHOLE_MAX}, not {value}")
        for name in ("resamples_max", "alike_first", "blocked_wait_s"):
            if not 0 <= getattr(self, name) < _INFINITE:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if not 0 <= self.headroom < 1:
            raise ValueError(f"headroom must leave something: from 0 to below 1, not {self.headroom}")
        if self.window_rows < self.concurrency:
            raise ValueError(f"window_rows ({self.window_rows}) must be at least concurrency ({self.concurrency})")


_INFINITE = float("inf")
_POSITIVE = (
    "requests_per_min", "input_tokens_per_min", "output_tokens_per_min", "priority", "deadline_at_s", "goal_timeout_s",
    "max_failed", "hedge_after_s", "concurrency", "prompt_tokens_max", "parts_max", "output_tokens_max",
    "max_cost_nusd", "max_job_tokens", "depth_max", "plan_goals_max", "goals_max", "selects_max", "rejected_alike_max",
    "faulty_in_row_max", "window_rows", "snapshot_events", "message_calls_max", "message_bytes_max",
)  # fmt: skip


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Destination of calls: endpoint, credential (a fingerprint, never the key) and model, with context window and
    price.
    """

    endpoint: str
    """URL or name of the provider's endpoint."""
    model: str
    """Model, as the provider names it."""
    credential: str = ""
    """Fingerprint of the credential, never the key."""
    context_window: int = 200_000
    """Tokens that prompt and reply share."""
    price: Price | None = None
    """None: no price is known; then cost is not counted, and a cap in money is refused at submission."""
    via: str = MESSAGES
    """Transport: ``messages``, one request per call, or ``batches``, many calls per submission; ``price`` is the price
    of this transport."""
    output_tokens_max: int | None = None
    """Most tokens of a reply that the model may be asked for; None: not known."""

    @property
    def batched(self) -> bool:
        """True if calls go out in message batches."""
        return self.via == BATCHES

    def __post_init__(self) -> None:
        if self.via not in (MESSAGES, BATCHES):
            raise ValueError(f"via must be {MESSAGES} or {BATCHES}, not {self.via!r}")
        if self.context_window < 2:
            raise ValueError(f"context_window must hold a prompt and a reply, not {self.context_window} tokens")


class JobTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of a job, written into its journal when it opens: everything that step reads is in them."""

    job: str
    """Name of the job."""
    program: str
    """Location of the program's class: ``module:Class``, or the name of a built-in program."""
    params_json: bytes
    """Fields of the program, as JSON."""
    fingerprint: str
    """Hash of the program's source, its parameters and the release; after a change K starts anew."""
    route: Route
    """The job's own route."""
    fallbacks: tuple[Route, ...] = ()
    """Routes to which work moves, in this order, while a route's breaker is open."""
    role_routes: tuple[Route, ...] = ()
    """Routes that are used for roles only."""
    roles: dict[str, int] = msgspec.field(default_factory=dict)
    """Lane of each role with its own model: 0 is the job's own route, else the number, from 1, in ``role_routes``. A
    role that is not listed uses the job's own model."""
    limits: Limits = Limits()
    """Limits of the job."""
    limits_by: str = ""
    """User who changed the limits last; empty while they are the original ones."""
    limits_at_s: float = 0.0
    """Time of that change, in seconds since 1970."""
    shard: bool = False
    """True if the job is a shard of another job: it reports to its parent, which lends it money."""
    streams: bool = False
    """True if rows of a source follow; otherwise the source counts as read to its end."""
    fresh: bool = False
    """True if stored replies are ignored and every call is made anew."""
    keeps_text: bool = True
    """True if the journal keeps prompts and replies; otherwise they are removed once the results are on disk."""
    places: dict[str, str] = msgspec.field(default_factory=dict)
    """Locations of input and output, for a resume; the core does not read them."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels given by the user, for traces and reports; the core does not read them."""
    origin: str = ""
    """Job from which this job was forked: random numbers are derived from its name, so that the fork replays
    unchanged."""
    rows_readable: int = 0
    """Rows of the whole input, counted before the job began; 0: not counted."""
    rows_unreadable: int = 0
    """Records of the whole input from which no row can be read: they count as failed rows for ``max_failed``."""
    structured_lanes: tuple[int, ...] = ()
    """Lanes whose routes all have structured outputs: flows ask for typed answers by them, and in words on other lanes.
    Empty in journals of release 0.1.0."""
    peers: int = 0
    """Number of leading fallbacks that are further servers of the job's own model: they rank equal with its own route,
    and share its work by load."""
    closed: tuple[str, ...] = ()
    """Endpoints among these servers that get no more calls: they were taken out while the job ran. They keep their
    places, by which calls on their way name them."""
    tells_begun: bool = False
    """True if the beginning of each tool run that must not be repeated is journalled. False in journals of earlier
    releases: there any run that was handed out may have begun."""
    notes_written: bool = False
    """True if each shard notes in its own journal how many of its results are in the sink, before its job does. False
    in journals of earlier releases: a shard that has noted less has lost nothing there."""

    def __post_init__(self) -> None:
        if not 0 <= self.peers <= len(self.fallbacks):
            raise ValueError(f"{self.peers} further servers among {len(self.fallbacks)} fallbacks")
        for what, routes in (("a fallback", (self.route, *self.fallbacks)), ("a role's", self.role_routes)):
            named = [route_name(route.endpoint, route.credential, route.model) for route in routes]
            again = next((name for name in named if named.count(name) > 1), None)
            if again is not None:
                raise ValueError(f"{what} must be another route: {again} is named twice")
        if set(self.roles.values()) - {0} != set(range(1, 1 + len(self.role_routes))):
            raise ValueError(f"roles {self.roles} for {len(self.role_routes)} routes of their own")

    @property
    def drawn_as(self) -> str:
        """Name from which random numbers are derived."""
        return self.origin or self.job

    def asks_structured(self, role: str) -> bool:
        """Return whether typed answers of a role are asked for by structured outputs."""
        return self.roles.get(role, 0) in self.structured_lanes

    @property
    def routes(self) -> tuple[Route, ...]:
        """The job's own route, its fallbacks and the routes of roles: grants, flights and calls name a route by its
        index here.
        """
        return (self.route, *self.fallbacks, *self.role_routes)

    def with_routes(self, routes: tuple[Route, ...]) -> JobTerms:
        """Return these terms with other routes in the same positions (other credentials or prices)."""
        end = 1 + len(self.fallbacks)
        return msgspec.structs.replace(self, route=routes[0], fallbacks=routes[1:end], role_routes=routes[end:])

    def lane_at(self, place: int) -> int:
        """Return the lane of the route at this index; lane 0 is the job's own route with its fallbacks."""
        return max(0, place - len(self.fallbacks))

    def is_peer(self, place: int) -> bool:
        """Return whether the route at this index shares its work with others of equal rank."""
        return 0 < self.peers >= place

    def is_closed(self, place: int) -> bool:
        """Return whether the server at this index was taken out."""
        return bool(self.closed) and self.is_peer(place) and self.routes[place].endpoint in self.closed

    def lane_places(self, lane: int) -> range:
        """Return the route indices of a lane, in order of preference."""
        own = 1 + len(self.fallbacks)
        return range(own) if not lane else range(own + lane - 1, own + lane)

    def prompt_tokens_max(self, output_tokens_max: int, place: int = 0) -> int:
        """Return M, the prompt bound in tokens, for a call with this ``max_tokens`` on the route at this index.

        The context window less the reply, or the user's own bound if smaller.
        """
        route = self.routes[place] if place else self.route
        room = route.context_window - output_tokens_max
        own = self.limits.prompt_tokens_max
        return room if own is None else min(room, own)

    def reply_tokens_max(self) -> int | None:
        """Return the largest ``max_tokens`` that every route of the job's own lane is known to take; None: not known.

        A call may move to a fallback, whose model may take fewer tokens.
        """
        known = [each.output_tokens_max for each in (self.route, *self.fallbacks) if each.output_tokens_max is not None]
        return min(known, default=None)
