"""Every bound of the system in one frozen struct, validated at birth."""

from __future__ import annotations

import msgspec

from policies.estimates.batching import Batching
from policies.estimates.price import Price
from policies.failures.retry import RetryPolicy
from policies.failures.route_choice import route_name
from policies.failures.timeout import TimeoutPolicy

MESSAGES = "messages"
BATCHES = "batches"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a job may use at most. Raises ``ValueError`` with one clear line for a bound that makes no sense.

    Sizes are counts unless the name ends in a unit. ``None`` means that the user set no bound of their own.
    """

    concurrency: int = 100
    """Calls in flight at once, at most, over all routes; the cortex may lease fewer, and what is more is not used."""
    prompt_tokens_max: int | None = None
    """M, where the user wants it smaller than the context window less the reply."""
    parts_max: int = 200
    """Parts in one prompt: what fits can still be too much to use."""
    output_tokens_max: int = 1_024
    """Reply length asked for where a program states none."""
    max_cost_nusd: int | None = None
    """Cap on known plus assumed plus reserved money, in 1e-9 USD."""
    max_job_tokens: int | None = None
    """Cap on known plus assumed plus reserved tokens, input and output together."""
    requests_per_min: float | None = None
    """Rates over all branches of this job; the provider's own limits hold besides. So for tokens."""
    input_tokens_per_min: float | None = None
    output_tokens_per_min: float | None = None
    headroom: float = 0.0
    """Share of what the provider allows that is kept free for other traffic."""
    priority: float = 1.0
    """Weight among the jobs that share a pool: twice as much gets twice the share."""
    deadline_at_s: float | None = None
    """When the job ends partial, whatever is left, in seconds since 1970."""
    goal_timeout_s: float | None = None
    """How long one top goal (a row) may take, from its first attempt to its end, all attempts and waits together; then
    it fails, TIMED_OUT."""
    max_failed: float | None = None
    """Failed rows that end the job: from 1 a count, below 1 a share of the finished ones."""
    alike_first: int = 50
    """So many finished rows, the first of a run, that all failed alike stop the job; 0: never."""
    warm_prefix: bool = False
    """Where prompts share a long prefix that the provider may cache, one goes ahead and the rest wait for it."""
    hedge_after_s: float | None = None
    """A call that has no answer after so long is asked a second time; the first answer counts, both are paid."""
    blocked_wait_s: float = 0.0
    """How long a job waits for a blocked account to open again before it ends partial; 0: not at all."""
    resamples_max: int = 4
    """Malformed replies of one goal that are discarded and asked again."""
    depth_max: int = 24
    """How deep planned goals may nest."""
    plan_goals_max: int = 10_000
    """Goals that one absorbed reply may add."""
    goals_max: int = 20_000_000
    """Goals that one job may ever have."""
    selects_max: int = 64
    """Rounds of symbolic changes that select may make in one turn before it must ask something."""
    rejected_alike_max: int = 20
    """The same refusal of this many goals in a row, no success between, is taken for a blocked account."""
    faulty_in_row_max: int = 20
    """Goals in a row on which the program's own code raised before the job stops."""
    window_rows: int = 2_048
    """Rows of a source that are open in K at once."""
    snapshot_events: int = 50_000
    """Events between two snapshots, so that recovery is bounded."""
    message_calls_max: int = 256
    """Calls in one message between actors."""
    message_bytes_max: int = 90_000
    """Bytes in one message: above 100 KB Ray takes the slow road through its object store."""
    batching: Batching = Batching()
    """How calls of a route of message batches are submitted and looked after."""
    retry: RetryPolicy = RetryPolicy()
    timeout: TimeoutPolicy = TimeoutPolicy()

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < _INFINITE:
                raise ValueError(f"{name} must be above zero, not {value}")
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
    """Where calls go: endpoint, credential (a fingerprint, never the key) and model; with its window and its price."""

    endpoint: str
    model: str
    credential: str = ""
    context_window: int = 200_000
    """Tokens that prompt and reply share."""
    price: Price | None = None
    """None where no price is known: then money cannot be counted, and a cap in money is refused at the door."""
    via: str = MESSAGES
    """By which of the provider's roads: ``messages``, one call a request, or ``batches``, many calls a submission, at
    the price of that road, which is what ``price`` says."""

    @property
    def batched(self) -> bool:
        """Whether its calls go out in message batches."""
        return self.via == BATCHES

    def __post_init__(self) -> None:
        if self.via not in (MESSAGES, BATCHES):
            raise ValueError(f"via must be {MESSAGES} or {BATCHES}, not {self.via!r}")
        if self.context_window < 2:
            raise ValueError(f"context_window must hold a prompt and a reply, not {self.context_window} tokens")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a job runs under, written into its journal when it opens: nothing that step reads stands elsewhere."""

    job: str
    program: str
    """Where the program's class is found, ``module:Class`` or the name of a ready program."""
    params_json: bytes
    """The program's own fields."""
    fingerprint: str
    """Hash over the program's source, its parameters and the release; a change starts K anew."""
    route: Route
    fallbacks: tuple[Route, ...] = ()
    """Where work moves, in this order, while a route's breaker is open."""
    role_routes: tuple[Route, ...] = ()
    """Routes that are asked for a role alone."""
    roles: dict[str, int] = msgspec.field(default_factory=dict)
    """The lane of each role that was given a model: 0 the job's own, else its route's number, from 1, among
    ``role_routes``. A role that is not here has the job's own model."""
    limits: Limits = Limits()
    limits_by: str = ""
    """Who changed them last, and when; empty while they are those that it began with."""
    limits_at_s: float = 0.0
    shard: bool = False
    """Whether it is a part of another job: then it tells that one what it has come to, which lends it money."""
    streams: bool = False
    """Whether rows of a source follow; without it the source counts as read to its end."""
    fresh: bool = False
    """Ask anew, whatever is remembered."""
    keeps_text: bool = True
    """Whether the journal keeps what was asked and answered; else it leaves once the results are on disk."""
    places: dict[str, str] = msgspec.field(default_factory=dict)
    """Where input and output are, for whoever resumes; the core does not read it."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """What its user calls it by, for traces and reports; the core does not read them."""
    origin: str = ""
    """The job that it was forked from: chance is drawn in that one's name, so that it replays as it was."""

    def __post_init__(self) -> None:
        for what, routes in (("a fallback", (self.route, *self.fallbacks)), ("a role's", self.role_routes)):
            named = [route_name(route.endpoint, route.credential, route.model) for route in routes]
            again = next((name for name in named if named.count(name) > 1), None)
            if again is not None:
                raise ValueError(f"{what} must be another route: {again} is named twice")
        if set(self.roles.values()) - {0} != set(range(1, 1 + len(self.role_routes))):
            raise ValueError(f"roles {self.roles} for {len(self.role_routes)} routes of their own")

    @property
    def drawn_as(self) -> str:
        """The name in which chance is drawn."""
        return self.origin or self.job

    @property
    def routes(self) -> tuple[Route, ...]:
        """The job's own route, its fallbacks, its roles': grants, flights and calls name a route by its place here."""
        return (self.route, *self.fallbacks, *self.role_routes)

    def with_routes(self, routes: tuple[Route, ...]) -> Terms:
        """The same with these in their places: another credential, another price."""
        end = 1 + len(self.fallbacks)
        return msgspec.structs.replace(self, route=routes[0], fallbacks=routes[1:end], role_routes=routes[end:])

    def lane_at(self, place: int) -> int:
        """The lane that the route in this place belongs to: 0 is the job's own route with its fallbacks."""
        return max(0, place - len(self.fallbacks))

    def lane_places(self, lane: int) -> range:
        """The places of a lane's routes, by preference."""
        own = 1 + len(self.fallbacks)
        return range(own) if not lane else range(own + lane - 1, own + lane)

    def prompt_tokens_max(self, output_tokens_max: int, place: int = 0) -> int:
        """M for a call that may answer with so many tokens, on the route in this place.

        The window less the reply, or the user's smaller number.
        """
        route = self.routes[place] if place else self.route
        room = route.context_window - output_tokens_max
        own = self.limits.prompt_tokens_max
        return room if own is None else min(room, own)
