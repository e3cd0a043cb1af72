"""What kind of failure is this, and what does each kind ask for?

The closed list of failure kinds, the table of what each one means for retries, breakers and result files,
and the one function that reads a provider's answer into a kind. A failure never travels as text that could be
read as an answer: it is always a `Failure`.
"""

import enum
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from policies.failures import cloud_errors


class FailureKind(enum.StrEnum):
    """The closed list. The value, in lower case, is what journals, metrics and users see."""

    THROTTLED = enum.auto()  # the provider's rate limit
    OVERLOADED = enum.auto()  # the provider is out of capacity, for everybody
    TRANSIENT = enum.auto()  # server error, lost connection, or a body that cannot be read
    TIMED_OUT = enum.auto()  # our own deadline for the attempt passed
    MALFORMED = enum.auto()  # a complete reply that the goal's type, or a vote's red flag, refused
    REFUSED = enum.auto()  # the model declined
    TOO_LARGE = enum.auto()  # over the bound, by our count or by the provider's
    BLOCKED = enum.auto()  # the account or the model, not this request
    UNAUTHORISED = enum.auto()  # the key, or what it may do
    REJECTED = enum.auto()  # the provider finds fault with this request
    LOST = enum.auto()  # the actor or node that held the attempt died
    FAULTY = enum.auto()  # the program's or a tool's own code raised
    OVER_BUDGET = enum.auto()  # the ledger refused
    CANCELLED = enum.auto()  # the user, a join already met, or a drain


class Failure(msgspec.Struct, frozen=True):
    """One attempt that brought no reply, as data."""

    kind: FailureKind
    message: str  # for people; never holds a key
    status: int = 0  # HTTP status; 0 where no response came
    error_type: str = ""  # the provider's own `error.type`
    retry_after_s: float | None = None  # what the provider asked us to wait, seconds
    sent: bool = True  # False: the request never left, so nothing can have been paid

    @property
    def may_be_billed(self) -> bool:
        """Whether the provider may have worked on the request, and bill it: it left, and no answer of the provider's
        own says that it failed, which providers do not bill."""
        return self.sent and (self.status < 400 or self.status in _GAVE_UP_WAITING)


_GAVE_UP_WAITING: Final = frozenset({504, 524})
"""Somebody on the way waited in vain for whoever works on the request, who may go on: 504 of a gateway (RFC 9110,
15.6.5; the Messages API's `timeout_error`, too), 524 of Cloudflare. Not 502, which comes at once where nobody is there
to work."""


Again = Literal["after", "backoff", "policy", "resample", "select", "hold", "no"]
"""When the same goal may be tried again.

after     once Retry-After has passed         backoff   after a jittered wait
policy    as the job's retry policy says      resample  under the next sample number
select    not as it is: back to select        hold      when what blocks it is gone; the goal stays open
no        never
"""

BreakerOf = Literal["", "route", "actor", "tool"]


class Rule(msgspec.Struct, frozen=True):
    """What one kind of failure asks for."""

    again: Again
    breaker_of: BreakerOf  # whose breaker counts it; "actor" is the branch or worker that died, and its node
    batch_error: str  # `error.type` of the row in a batch result file; "" where no `errored` line is written

    @property
    def breaker(self) -> bool:
        """Does it count against the route's breaker, as a sign of the provider's ill health?"""
        return self.breaker_of == "route"


RULES: Final[Mapping[FailureKind, Rule]] = MappingProxyType(
    {
        FailureKind.THROTTLED: Rule("after", "", "rate_limit_error"),
        FailureKind.OVERLOADED: Rule("backoff", "route", "overloaded_error"),
        FailureKind.TRANSIENT: Rule("backoff", "route", "api_error"),
        FailureKind.TIMED_OUT: Rule("policy", "route", "timeout_error"),
        FailureKind.MALFORMED: Rule("resample", "", "invalid_request_error"),
        FailureKind.REFUSED: Rule("no", "", ""),  # the message itself is the row, as `succeeded`
        FailureKind.TOO_LARGE: Rule("select", "", "invalid_request_error"),
        FailureKind.BLOCKED: Rule("hold", "", "billing_error"),
        FailureKind.UNAUTHORISED: Rule("hold", "", "authentication_error"),
        FailureKind.REJECTED: Rule("no", "", "invalid_request_error"),
        FailureKind.LOST: Rule("backoff", "actor", "api_error"),
        FailureKind.FAULTY: Rule("no", "tool", "api_error"),
        FailureKind.OVER_BUDGET: Rule("no", "", ""),  # no line yet, so that a resumed run writes it once
        FailureKind.CANCELLED: Rule("no", "", ""),  # `canceled` is a result type of its own
    }
)
"""Every kind's rule. `batch_error` is one of `BATCH_ERRORS` or empty."""

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
"""The nine error types that a result line of the Message Batches format may carry."""

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

# `error.details.error_code`, the stable way to tell causes apart (listed in the official SDK's
# `types.shared`). All of these are about the account, whatever the status they come with.
_ACCOUNT_CODES: Final = re.compile(
    r"\b(?:enforced_spend_limit_reached|contract_spend_limit_reached|linked_organization_spend_limit_reached"
    r"|linked_organization_billing_unavailable|organization_on_hold|organization_type_not_supported"
    r"|cmek_key_disabled|cmek_key_network_blocked|claude_code_key_creator_not_member)\b"
)

# Wording is the only sign where no code is given: credit and spend limits come as a plain 400.
_ACCOUNT_WORDS: Final = re.compile(
    r"credit balance is too low"
    r"|insufficient credit"
    r"|reached your specified (?:\w+ )?API usage limits"  # a spend limit the user set; names the day it ends
    r"|spend(?:ing)? (?:limit|cap)"
    r"|organization has been disabled",
    re.IGNORECASE,
)
_TOO_LARGE_WORDS: Final = re.compile(
    r"prompt is too long"
    r"|exceeds? (?:the )?(?:model'?s? )?(?:available )?context (?:limit|window|size|length)"
    r"|maximum context length"
    r"|required for long context requests",  # a 429: this account's window is the short one
    re.IGNORECASE,
)
_UNKNOWN_MODEL_WORDS: Final = re.compile(
    r"\bmodel:?(?: \S{1,200})? (?:was |could )?(?:not (?:be )?found|does not exist)"
    r"|\b(?:unknown|invalid|no such) model\b",
    re.IGNORECASE,
)
_MODEL_NAME_ONLY: Final = re.compile(r"^\s*model:")  # at 404 the provider says just "model: claude-nine"
# "messages.0.content: ..." finds fault with a field and may quote what the user wrote there, so its words
# prove nothing about account or model: one odd row must not pause a job.
_FIELD_PATH: Final = re.compile(r"^\s*\w+(?:\.\w+|\[\d+\])+\s*:")

_CHARS_READ: Final = 4_000  # a gateway's error page may be megabytes; what names the cause stands first

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
    """The HTTP status with which the provider sends this `error.type`; 500 for one that it does not document."""
    return _STATUS_OF.get(error_type, 500)


def classify(status: int, error_type: str, message: str, details: str = "") -> FailureKind:
    """The kind of a provider's failed answer.

    `status` is the HTTP status, 0 where no response came; `error_type` and `message` the provider's
    `error.type` and `error.message`; `details` its `error.details.error_code`, or the whole of
    `error.details` as JSON text. An error inside a stream has status 200 and is read by its type. What is no
    error by status or type is TRANSIENT: whoever asks for its kind could not read it. A cloud that serves the model
    has names of its own (`policies.failures.cloud_errors`).
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
    """What the words of a cloud's own error say, beyond its name and status."""
    if cloud_errors.QUOTES.match(message):
        return None
    if cloud_errors.ACCOUNT_WORDS.search(message):
        return FailureKind.BLOCKED
    return FailureKind.TOO_LARGE if cloud_errors.TOO_LARGE_WORDS.search(message) else None
