"""Faults of the simulated provider: a table by name, in the provider's own wording.

Wording and status codes are those of https://docs.claude.com/en/api/errors and of responses that users of the real
provider reported; ``error_code`` values are those that the official SDK lists.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

Form = Literal["status", "reset", "hang", "truncated", "invalid_json", "slow_drip", "wrong_type", "message", "stream"]
"""Effect of a fault on the answer.

status         an error response instead            reset      the connection is reset, nothing is sent hang
nothing is sent, for long            truncated  the body ends half way, and the connection closes invalid_json   a whole
body that is not JSON        slow_drip  the whole body, a little at a time wrong_type     a web page with status 200
message    a whole message with an unusual end stream         a stream ends with an error event; without a stream, the
error response
"""


class ErrorResponse(msgspec.Struct, frozen=True):
    """Error response of the provider."""

    status: int
    error_type: str
    message: str
    error_code: str = ""
    """Value of ``error.details.error_code``, if given: a stable code of the cause."""
    retry_after_s: int | None = None


class SimulatedFault(msgspec.Struct, frozen=True):
    """Kind of fault. ``worked``: the answer was computed, so a real provider would bill it."""

    name: str
    form: Form
    worked: bool
    refusal: ErrorResponse | None = None


CREDIT: Final = ErrorResponse(
    400,
    "invalid_request_error",
    "Your credit balance is too low to access the Anthropic API. "
    "Please go to Plans & Billing to upgrade or purchase credits.",
)

_SPEND_LIMIT = ErrorResponse(
    400,
    "invalid_request_error",
    "You have reached your specified API usage limits. You will regain access on {next_month} at 00:00 UTC.",
)
_TIER_CAP = ErrorResponse(
    429,
    "rate_limit_error",
    "Your organization has reached the monthly usage limit of its tier. "
    "You will regain access on {next_month} at 00:00 UTC.",
    error_code="enforced_spend_limit_reached",
)
_THROTTLED = ErrorResponse(
    429,
    "rate_limit_error",
    "This request would exceed your organization's rate limit. "
    "For details, refer to: https://docs.claude.com/en/api/rate-limits.",
)
_BILLING = ErrorResponse(
    402,
    "billing_error",
    "There is an issue with your billing or payment information. Please review it in the Console.",
)
_OVERLOADED = ErrorResponse(529, "overloaded_error", "Overloaded")


def _status(name: str, refusal: ErrorResponse) -> SimulatedFault:
    return SimulatedFault(name, "status", False, refusal)


_ALL: Final = (
    _status("throttled", msgspec.structs.replace(_THROTTLED, retry_after_s=1)),
    _status("throttled_bare", _THROTTLED),
    _status("overloaded", _OVERLOADED),
    _status("server_error", ErrorResponse(500, "api_error", "Internal server error")),
    _status("unavailable", ErrorResponse(503, "api_error", "Service unavailable")),
    _status("billing", _BILLING),
    _status("credit", CREDIT),
    _status("spend_limit", _SPEND_LIMIT),
    _status("tier_cap", _TIER_CAP),
    _status("unknown_model", ErrorResponse(404, "not_found_error", "model: {model}")),
    _status("unauthorised", ErrorResponse(401, "authentication_error", "invalid x-api-key")),
    SimulatedFault("reset", "reset", False),
    SimulatedFault("reset_late", "reset", True),
    SimulatedFault("hang", "hang", True),
    SimulatedFault("truncated", "truncated", True),
    SimulatedFault("invalid_json", "invalid_json", True),
    SimulatedFault("slow_drip", "slow_drip", True),
    SimulatedFault("wrong_content_type", "wrong_type", True),
    SimulatedFault("refusal", "message", True),
    SimulatedFault("empty", "message", True),
    SimulatedFault("stream_error", "stream", True, _OVERLOADED),
)

FAULTS: Final[Mapping[str, SimulatedFault]] = MappingProxyType({fault.name: fault for fault in _ALL})
"""Fault by name, in the order in which shares are laid on the line from 0 to 1."""


def drawn(shares: Mapping[str, float], at: float) -> SimulatedFault | None:
    """Return the fault at the draw ``at``; None beyond all shares."""
    reached = 0.0
    for name, fault in FAULTS.items():
        share = shares.get(name)
        if share:
            reached += share
            if at < reached:
                return fault
    return None


def filled(refusal: ErrorResponse, model: str, next_month: str, retry_after_s: int | None = None) -> ErrorResponse:
    """Return a refusal with its placeholders filled: model name, first day of next month (ISO), wait."""
    message = refusal.message.replace("{model}", model).replace("{next_month}", next_month)
    wait = refusal.retry_after_s if retry_after_s is None else retry_after_s
    return msgspec.structs.replace(refusal, message=message, retry_after_s=wait)
