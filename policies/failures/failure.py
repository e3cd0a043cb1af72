"""Kinds of failure, and what each kind means for retries, breakers and result files.

Holds the closed list of kinds and the table of rules. A failure is never passed on as text that could be read as an
answer: it is always a `Failure`. `policies.failures.error_vocabulary` reads a provider's error response into a kind.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec


class FailureKind(enum.StrEnum):
    """Closed list of failure kinds. The value, in lower case, appears in journals and metrics and is shown to users."""

    THROTTLED = enum.auto()
    """The provider's rate limit."""
    OVERLOADED = enum.auto()
    """The provider is out of capacity, for all its users."""
    TRANSIENT = enum.auto()
    """Server error, lost connection, or a body that is no answer of the provider's."""
    UNREADABLE = enum.auto()
    """The provider answered whole, but no message can be read in its answer. It may have been paid for."""
    EXPIRED = enum.auto()
    """The provider did not process the request before its message batch expired, so it was not paid for."""
    TIMED_OUT = enum.auto()
    """The attempt passed its own deadline."""
    MALFORMED = enum.auto()
    """A complete reply that the goal's type, or a vote's red flag, rejected."""
    REFUSED = enum.auto()
    """The model declined."""
    CUT = enum.auto()
    """The reply stopped at `max_tokens` or at the end of the context window, so it is no whole answer."""
    PAUSED = enum.auto()
    """The provider interrupted the model's turn."""
    EMPTY = enum.auto()
    """The reply holds no text."""
    TOOL_USE = enum.auto()
    """The model asked for a tool where an answer was wanted."""
    TOO_LARGE = enum.auto()
    """Prompt over the bound, by own count or by the provider's."""
    BLOCKED = enum.auto()
    """The account or the model is unusable, whatever the request."""
    UNAUTHORISED = enum.auto()
    """The key is invalid or lacks a permission."""
    REJECTED = enum.auto()
    """The provider rejected this request."""
    LOST = enum.auto()
    """The actor or node that held the attempt died."""
    FAULTY = enum.auto()
    """Code of the program or of a tool raised."""
    OVER_BUDGET = enum.auto()
    """The ledger refused."""
    CANCELLED = enum.auto()
    """Cancelled by the user, by a join already met, or by a drain."""


class Failure(msgspec.Struct, frozen=True):
    """Attempt without a reply, as data."""

    kind: FailureKind
    """Kind of the failure."""
    message: str
    """Text for people; never holds a key."""
    status: int = 0
    """HTTP status; 0: no response."""
    error_type: str = ""
    """The provider's own `error.type`."""
    retry_after_s: float | None = None
    """Retry-After of the provider, in seconds."""
    sent: bool = True
    """False: the request was not sent, so nothing can be billed."""
    answer_came: bool = False
    """True if an answer came with the failure, unreadable or in part: the attempt was paid, so that its call is tried
    once more at most (`policies.failures.retry.PAID_ATTEMPTS_MAX`)."""

    @property
    def may_be_billed(self) -> bool:
        """True if the provider may have processed and billed the request: it was sent, and no answer of the provider's
        own says that it failed (providers do not bill such answers).
        """
        return self.sent and (self.status < 400 or self.status in _GAVE_UP_WAITING)


_GAVE_UP_WAITING: Final = frozenset({504, 524})
"""Statuses of a gateway that waited in vain for a server, which may continue: 504 (RFC 9110, 15.6.5; also the Messages
API's `timeout_error`) and 524 of Cloudflare. Not 502, which comes at once when no server is reachable."""


Again = Literal["after", "backoff", "policy", "resample", "select", "hold", "no"]
"""Condition under which the same goal may be tried again.

- after: once Retry-After has passed
- backoff: after a jittered wait
- policy: as the job's retry policy says
- resample: under the next sample number
- select: not unchanged; the goal returns to select
- hold: when the cause is gone; the goal stays open
- no: never"""

BreakerOf = Literal["", "route", "actor", "tool"]
"""Breaker that counts a kind of failure; empty: none."""


class FailureRule(msgspec.Struct, frozen=True):
    """Consequences of one kind of failure."""

    again: Again
    breaker_of: BreakerOf
    """Breaker that counts the failure; "actor": the branch or worker that died, and its node."""
    batch_error: str
    """`error.type` of the row in a batch result file; "": no `errored` line is written."""

    @property
    def breaker(self) -> bool:
        """True if the failure counts against the route's breaker, as a sign of an unhealthy provider."""
        return self.breaker_of == "route"


RULES: Final[Mapping[FailureKind, FailureRule]] = MappingProxyType(
    {
        FailureKind.THROTTLED: FailureRule("after", "", "rate_limit_error"),
        FailureKind.OVERLOADED: FailureRule("backoff", "route", "overloaded_error"),
        FailureKind.TRANSIENT: FailureRule("backoff", "route", "api_error"),
        FailureKind.UNREADABLE: FailureRule("backoff", "", "api_error"),  # once more at most, since paid
        FailureKind.EXPIRED: FailureRule("backoff", "", ""),  # `expired` is a separate result type
        FailureKind.TIMED_OUT: FailureRule("policy", "route", "timeout_error"),
        FailureKind.MALFORMED: FailureRule("resample", "", "invalid_request_error"),
        FailureKind.REFUSED: FailureRule("no", "", ""),  # the row is written as `succeeded`, with the message
        FailureKind.CUT: FailureRule("no", "", ""),  # as REFUSED, and the three below: messages that were paid for
        FailureKind.PAUSED: FailureRule("no", "", ""),
        FailureKind.EMPTY: FailureRule("no", "", ""),
        FailureKind.TOOL_USE: FailureRule("no", "", ""),
        FailureKind.TOO_LARGE: FailureRule("select", "", "invalid_request_error"),
        FailureKind.BLOCKED: FailureRule("hold", "", "billing_error"),
        FailureKind.UNAUTHORISED: FailureRule("hold", "", "authentication_error"),
        FailureKind.REJECTED: FailureRule("no", "", "invalid_request_error"),
        FailureKind.LOST: FailureRule("backoff", "actor", "api_error"),
        FailureKind.FAULTY: FailureRule("no", "tool", "api_error"),
        FailureKind.OVER_BUDGET: FailureRule("no", "", ""),  # no line yet, so that a resumed run writes it once
        FailureKind.CANCELLED: FailureRule("no", "", ""),  # `canceled` is a separate result type
    }
)
"""Rule of every kind. `batch_error` is one of `BATCH_ERRORS` or empty."""

BATCH_ERRORS: Final = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "rate_limit_error",
        "timeout_error",
        "api_error",
        "overloaded_error",
    }
)
"""The nine error types of a result line in the Message Batches format."""

_WITH_TEXT: Final = frozenset({FailureKind.CUT, FailureKind.PAUSED, FailureKind.MALFORMED, FailureKind.FAULTY})
_PAID: Final = frozenset({FailureKind.REFUSED, FailureKind.EMPTY, FailureKind.TOOL_USE})


def outweighs(before: str, now: str) -> bool:
    """Return True if a row's earlier failed result is worth more than the new one of a retry, and stands.

    A reply with text of the answer is worth more than one without, and any paid reply more than none. A row that was
    cancelled during its retry keeps its earlier result.
    """
    return now == FailureKind.CANCELLED or _worth(before) > _worth(now)


def _worth(kind: str) -> int:
    return 2 if kind in _WITH_TEXT else int(kind in _PAID)
