"""The failure table, row by row, and the provider's real wording."""

import msgspec
import pytest

from actors.providers.messages.vocabulary import classify
from policies.failures.failure import BATCH_ERRORS, RULES, Failure, FailureKind

K = FailureKind

TABLE = {
    # kind: (again, whose breaker, the batch line's error type)
    K.THROTTLED: ("after", "", "rate_limit_error"),
    K.OVERLOADED: ("backoff", "route", "overloaded_error"),
    K.EXPIRED: ("backoff", "", ""),
    K.TRANSIENT: ("backoff", "route", "api_error"),
    K.UNREADABLE: ("backoff", "", "api_error"),
    K.TIMED_OUT: ("policy", "route", "timeout_error"),
    K.MALFORMED: ("resample", "", "invalid_request_error"),
    K.REFUSED: ("no", "", ""),
    K.CUT: ("no", "", ""),
    K.PAUSED: ("no", "", ""),
    K.EMPTY: ("no", "", ""),
    K.TOOL_USE: ("no", "", ""),
    K.TOO_LARGE: ("select", "", "invalid_request_error"),
    K.BLOCKED: ("hold", "", "billing_error"),
    K.UNAUTHORISED: ("hold", "", "authentication_error"),
    K.REJECTED: ("no", "", "invalid_request_error"),
    K.LOST: ("backoff", "actor", "api_error"),
    K.FAULTY: ("no", "tool", "api_error"),
    K.OVER_BUDGET: ("no", "", ""),
    K.CANCELLED: ("no", "", ""),
}


def test_the_table_has_every_kind() -> None:
    assert set(RULES) == set(FailureKind) == set(TABLE)
    assert len(FailureKind) == 20


@pytest.mark.parametrize("kind", FailureKind)
def test_each_kind_has_its_rule(kind: FailureKind) -> None:
    rule = RULES[kind]
    assert (rule.again, rule.breaker_of, rule.batch_error) == TABLE[kind]
    assert rule.breaker is (kind in {K.OVERLOADED, K.TRANSIENT, K.TIMED_OUT})
    assert rule.batch_error in BATCH_ERRORS | {""}


def test_the_table_cannot_be_written_to() -> None:
    with pytest.raises(TypeError):
        RULES[K.LOST] = RULES[K.REJECTED]  # type: ignore[index]


def test_batch_errors_are_the_nine() -> None:
    assert len(BATCH_ERRORS) == 9


@pytest.mark.parametrize("kind", FailureKind)
def test_a_kinds_value_is_its_name_in_lower_case(kind: FailureKind) -> None:
    assert kind.value == kind.name.lower()


INVALID = "invalid_request_error"
RATE = "rate_limit_error"

CASES = [
    # status, error type, message, details, kind
    (429, RATE, "This request would exceed your account's rate limit.", "", K.THROTTLED),
    (429, RATE, "Number of request tokens has exceeded your per-minute rate limit", "", K.THROTTLED),
    (429, RATE, "Rate limited", "ramp_limit_exceeded", K.THROTTLED),
    (429, "", "", "", K.THROTTLED),
    (429, RATE, "Your organization crossed its threshold", "enforced_spend_limit_reached", K.BLOCKED),
    (429, RATE, "x", '{"error_code":"contract_spend_limit_reached"}', K.BLOCKED),
    (429, RATE, "Monthly spend limit reached for this workspace", "", K.BLOCKED),
    (429, RATE, "Your credit balance is too low to access the API", "", K.BLOCKED),
    (429, RATE, "Extra usage is required for long context requests.", "", K.TOO_LARGE),
    (429, RATE, "Usage credits are required for long context requests.", "", K.TOO_LARGE),
    (
        400,
        INVALID,
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade"
        " or purchase credits.",
        "",
        K.BLOCKED,
    ),
    (
        400,
        INVALID,
        "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00.",
        "",
        K.BLOCKED,
    ),
    (400, INVALID, "You have reached your specified workspace API usage limits. You will", "", K.BLOCKED),
    (400, INVALID, "This organization has been disabled.", "", K.BLOCKED),
    (400, INVALID, "no", "organization_on_hold", K.BLOCKED),
    (400, "billing_error", "pay", "", K.BLOCKED),
    (402, "billing_error", "There is an issue with your payment", "", K.BLOCKED),
    (402, "", "", "", K.BLOCKED),
    (403, "permission_error", "no", "linked_organization_billing_unavailable", K.BLOCKED),
    (400, INVALID, "prompt is too long: 210043 tokens > 200000 maximum", "", K.TOO_LARGE),
    (
        400,
        INVALID,
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length"
        " or `max_tokens` and try again",
        "",
        K.TOO_LARGE,
    ),
    (400, INVALID, "the request exceeds the available context size (512)", "", K.TOO_LARGE),
    (400, INVALID, "This model's maximum context length is 8191 tokens", "", K.TOO_LARGE),
    (413, "request_too_large", "Request exceeds the maximum size", "", K.TOO_LARGE),
    (413, "", "<html>413</html>", "", K.TOO_LARGE),
    (404, "not_found_error", "model: claude-nine", "", K.BLOCKED),
    (404, "not_found_error", "The model `x` does not exist or you do not have access to it.", "", K.BLOCKED),
    (404, "", "model 'llama' not found, try pulling it first", "", K.BLOCKED),
    (400, INVALID, "unknown model claude-nine", "", K.BLOCKED),
    (404, "not_found_error", "Not Found", "", K.REJECTED),
    (404, "", "<html>nginx</html>", "", K.REJECTED),
    (400, INVALID, "model: Input should be a valid string", "", K.REJECTED),
    (401, "authentication_error", "invalid x-api-key", "", K.UNAUTHORISED),
    (403, "permission_error", "Your API key does not have permission", "", K.UNAUTHORISED),
    (403, "", "Forbidden", "", K.UNAUTHORISED),
    (408, "", "", "", K.TRANSIENT),
    (409, "conflict_error", "", "", K.TRANSIENT),
    (500, "api_error", "Internal server error", "", K.TRANSIENT),
    (500, "overloaded_error", "Overloaded", "", K.OVERLOADED),
    (502, "", "<html>Bad gateway</html>", "", K.TRANSIENT),
    (504, "timeout_error", "", "", K.TRANSIENT),
    (520, "", "", "", K.TRANSIENT),
    (503, "", "upstream connect error", "", K.OVERLOADED),
    (529, "overloaded_error", "Overloaded", "", K.OVERLOADED),
    (400, INVALID, "max_tokens: Field required", "", K.REJECTED),
    (400, "", "", "", K.REJECTED),
    (405, "", "", "", K.REJECTED),
    (418, "", "", "", K.REJECTED),
    (422, INVALID, "", "", K.REJECTED),
    # the words of a user's own text, quoted back, say nothing about the account, the model or the size
    (400, INVALID, "messages.0.content.0: bad tag 'credit balance is too low'", "", K.REJECTED),
    (400, INVALID, "messages[3].content: 'spend limit' 'prompt is too long' 'unknown model'", "", K.REJECTED),
    (500, "api_error", "credit balance is too low", "", K.TRANSIENT),
    (422, INVALID, "spend limit", "", K.REJECTED),
    # inside a stream: status 200 and a type
    (200, "overloaded_error", "Overloaded", "", K.OVERLOADED),
    (200, "api_error", "Internal server error", "", K.TRANSIENT),
    (200, "timeout_error", "", "", K.TRANSIENT),
    (200, "rate_limit_error", "slow down", "", K.THROTTLED),
    (200, "rate_limit_error", "", "enforced_spend_limit_reached", K.BLOCKED),
    (200, "billing_error", "", "", K.BLOCKED),
    (200, "authentication_error", "", "", K.UNAUTHORISED),
    (200, "permission_error", "", "", K.UNAUTHORISED),
    (200, "not_found_error", "model: x", "", K.BLOCKED),
    (200, INVALID, "prompt is too long: 9 tokens > 8 maximum", "", K.TOO_LARGE),
    (200, INVALID, "no", "", K.REJECTED),
    (200, "request_too_large", "", "", K.TOO_LARGE),
    (200, "something_new", "", "", K.TRANSIENT),
    # no error by status or type: it could not be read
    (0, "", "connection reset", "", K.TRANSIENT),
    (200, "", "not JSON", "", K.TRANSIENT),
    (302, "", "", "", K.TRANSIENT),
]


@pytest.mark.parametrize(("status", "error_type", "message", "details", "kind"), CASES)
def test_classify(status: int, error_type: str, message: str, details: str, kind: FailureKind) -> None:
    assert classify(status, error_type, message, details) is kind


def test_classify_reads_only_the_beginning_of_a_long_message() -> None:
    assert classify(400, INVALID, "x" * 3_999 + " spend limit") is K.REJECTED
    assert classify(400, INVALID, "spend limit" + "x" * 1_000_000) is K.BLOCKED


def test_a_failure_survives_the_wire() -> None:
    failure = Failure(K.THROTTLED, "slow down", 429, RATE, 3.5, sent=True)
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(failure), type=Failure) == failure
