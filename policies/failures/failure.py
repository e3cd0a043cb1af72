"""Kinds of failure, and what each kind means for retries, breakers and result files.

Holds the closed list of kinds, the table of rules, and `classify`, which reads a provider's answer into a kind. A
failure is never passed on as text that could be read as an answer: it is always a `Failure`.
"""

import enum
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from policies.failures import cloud_errors


class FailureKind(enum.StrEnum):
    """Closed list of failure kinds. The value, in lower case, appears in journals and metrics and is shown to users."""

    THROTTLED = enum.auto()
    """The provider's rate limit."""
    OVERLOADED = enum.auto()
    """The provider is out of capacity, for all its users."""
    TRANSIENT = enum.auto()
    """Server error, lost connection, or a body that cannot be read."""
    TIMED_OUT = enum.auto()
    """The attempt passed its own deadline."""
    MALFORMED = enum.auto()
    """A complete reply that the goal's type, or a vote's red flag, rejected."""
    REFUSED = enum.auto()
    """The model declined."""
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
        FailureKind.TIMED_OUT: FailureRule("policy", "route", "timeout_error"),
        FailureKind.MALFORMED: FailureRule("resample", "", "invalid_request_error"),
        FailureKind.REFUSED: FailureRule("no", "", ""),  # the row is written as `succeeded`, with the message
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

# https://docs.claude.com/en/api/errors. An error inside a stream follows status 200 and has only its type.
_STATUS_OF: Final[Mapping[str, int]] = MappingProxyType(
    {
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "api_error": 500,
        "timeout_error": 504,
        "overloaded_error": 529,
    }
)

# Values of `error.details.error_code`, the stable way to distinguish causes (listed in the official SDK's
# `types.shared`). All of these concern the account, whatever the status.
_ACCOUNT_CODES: Final = re.compile(
    r"\b(?:enforced_spend_limit_reached|contract_spend_limit_reached|linked_organization_spend_limit_reached"
    r"|linked_organization_billing_unavailable|organization_on_hold|organization_type_not_supported"
    r"|cmek_key_disabled|cmek_key_network_blocked|claude_code_key_creator_not_member)\b"
)

# Without a code the wording is the only sign: credit and spend limits come as a plain 400.
_ACCOUNT_WORDS: Final = re.compile(
    r"credit balance is too low"
    r"|insufficient credit"
    # a spend limit set by the user; the message names the day it ends
    r"|reached your specified (?:\w+ )?API usage limits"
    r"|spend(?:ing)? (?:limit|cap)"
    r"|organization has been disabled",
    re.IGNORECASE,
)
_TOO_LARGE_WORDS: Final = re.compile(
    r"prompt is too long"
    r"|exceeds? (?:the )?(?:model'?s? )?(?:available )?context (?:limit|window|size|length)"
    r"|maximum context length"
    r"|required for long context requests",  # a 429: this account has the short context window
    re.IGNORECASE,
)
_UNKNOWN_MODEL_WORDS: Final = re.compile(
    r"\bmodel:?(?: \S{1,200})? (?:was |could )?(?:not (?:be )?found|does not exist)"
    r"|\b(?:unknown|invalid|no such) model\b",
    re.IGNORECASE,
)
_MODEL_NAME_ONLY: Final = re.compile(r"^\s*model:")  # at 404 the message is only "model: claude-nine"
# A message such as "messages.0.content: ..." is about a field and may quote the user's text, so its words prove nothing
# about account or model: one odd row must not pause a job.
_FIELD_PATH: Final = re.compile(r"^\s*\w+(?:\.\w+|\[\d+\])+\s*:")

_CHARS_READ: Final = 4_000  # a gateway's error page may be megabytes; the words that name the cause come first

_BY_STATUS: Final[Mapping[int, FailureKind]] = MappingProxyType(
    {
        401: FailureKind.UNAUTHORISED,
        402: FailureKind.BLOCKED,
        403: FailureKind.UNAUTHORISED,
        408: FailureKind.TRANSIENT,
        409: FailureKind.TRANSIENT,
        413: FailureKind.TOO_LARGE,
        429: FailureKind.THROTTLED,
        503: FailureKind.OVERLOADED,
        529: FailureKind.OVERLOADED,
    }
)


def status_of(error_type: str) -> int:
    """Return the HTTP status that the provider documents for this `error.type`; 500 for an undocumented type."""
    return _STATUS_OF.get(error_type, 500)


def classify(status: int, error_type: str, message: str, details: str = "") -> FailureKind:
    """Return the kind of a provider's failed answer.

    `status` is the HTTP status, 0 without a response; `error_type` and `message` are the provider's `error.type` and
    `error.message`; `details` is `error.details.error_code`, or the whole of `error.details` as JSON text. An error
    inside a stream has status 200 and is classified by its type. An answer that is no error by status or type is
    TRANSIENT: the caller could not read it. Clouds that serve the model have error names of their own
    (`policies.failures.cloud_errors`).
    """
    message, details = message[:_CHARS_READ], details[:_CHARS_READ]
    named = cloud_errors.meaning(error_type)
    if status < 400:
        status = _STATUS_OF.get(error_type, 500)
    if _ACCOUNT_CODES.search(details) or error_type == "billing_error":
        return FailureKind.BLOCKED
    if status == 404 and _MODEL_NAME_ONLY.match(message):
        return FailureKind.BLOCKED
    if (status in (400, 404, 429) or named) and not _FIELD_PATH.match(message):
        if _ACCOUNT_WORDS.search(message) or _UNKNOWN_MODEL_WORDS.search(message):
            return FailureKind.BLOCKED
        if _TOO_LARGE_WORDS.search(message):
            return FailureKind.TOO_LARGE
    if (status in (400, 403, 404, 429) or named) and not _FIELD_PATH.match(message):
        found = _in_clouds(message)
        if found is not None:
            return found
    if named:
        return FailureKind(named)
    if status >= 500 and error_type == "overloaded_error":
        return FailureKind.OVERLOADED
    return _BY_STATUS.get(status, FailureKind.TRANSIENT if status >= 500 else FailureKind.REJECTED)


def _in_clouds(message: str) -> FailureKind | None:
    """Kind by the words of a cloud's own error, if they say more than its name and status."""
    if cloud_errors.QUOTES.match(message):
        return None
    if cloud_errors.ACCOUNT_WORDS.search(message):
        return FailureKind.BLOCKED
    return FailureKind.TOO_LARGE if cloud_errors.TOO_LARGE_WORDS.search(message) else None
