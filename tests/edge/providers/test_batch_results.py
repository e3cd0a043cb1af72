"""Ends of a request in a message batch: each type of result has its kind and its words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from actors.providers.batches import exchange
from actors.providers.messages.batch_results import read_result
from actors.providers.transport.body import UnreadableResponse
from cortex.values.reply import Reply
from policies.failures.failure import BATCH_ERRORS, RULES, Failure, FailureKind

MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "bug"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1},
}  # fmt: skip
K = FailureKind
ERRORS = {
    "invalid_request_error": (K.REJECTED, 400), "authentication_error": (K.UNAUTHORISED, 401), "billing_error": (K.BLOCKED, 402),
    "permission_error": (K.UNAUTHORISED, 403), "not_found_error": (K.REJECTED, 404), "rate_limit_error": (K.THROTTLED, 429),
    "timeout_error": (K.TRANSIENT, 500), "api_error": (K.TRANSIENT, 500), "overloaded_error": (K.OVERLOADED, 529),
}  # fmt: skip


def _errored(kind: str) -> dict[str, Any]:
    return {"type": "errored", "error": {"type": "error", "error": {"type": kind, "message": "It failed."}}}


RESULTS: list[tuple[dict[str, Any], FailureKind, int, str, str]] = [
    *[(_errored(name), kind, status, name, "It failed.") for name, (kind, status) in ERRORS.items()],
    ({"type": "expired"}, K.EXPIRED, 0, "expired", "the provider did not process this request before its message batch expired"),
    ({"type": "canceled"}, K.CANCELLED, 0, "canceled", "this request's batch was cancelled at the provider before it was worked off"),
    ({"type": "vanished"}, K.TRANSIENT, 500, "", "the provider gave no message but 'vanished'"),
    ({"type": "succeeded"}, K.UNREADABLE, 200, "", ""),
]  # fmt: skip


def _outcome(result: dict[str, Any]) -> Reply | Failure:
    found = read_result(msgspec.json.encode({"custom_id": "a", "result": result}))
    assert found[0] == "a"
    return found[1]


@pytest.mark.parametrize(("result", "kind", "status", "error_type", "text"), RESULTS)
def test_a_request_without_a_reply(result: dict[str, Any], kind: K, status: int, error_type: str, text: str) -> None:
    failure = _outcome(result)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.status, failure.error_type) == (kind, status, error_type)
    assert failure.message == text or not text
    assert failure.may_be_billed == (kind is K.UNREADABLE)


def test_a_request_with_a_reply() -> None:
    assert isinstance(_outcome({"type": "succeeded", "message": MESSAGE}), Reply)
    assert isinstance(_outcome({"type": "of tomorrow", "message": MESSAGE}), Reply)


def test_each_error_of_the_format_has_its_row() -> None:
    assert ERRORS.keys() == BATCH_ERRORS


def test_an_expired_request_is_asked_again_and_blames_no_route() -> None:
    rule = RULES[K.EXPIRED]
    assert (rule.again, rule.breaker) == ("backoff", False)


async def test_results_of_a_batch_are_bounded_in_lines_and_in_the_length_of_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that never ends is told apart from a large batch."""

    async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async def lines(*parts: bytes) -> list[bytes]:
        return [line async for line in exchange.lines_of(chunks(*parts))]

    monkeypatch.setattr(exchange, "LINES_MAX", 3)
    monkeypatch.setattr(exchange, "BODY_BYTES_MAX", 5)
    assert await lines(b"a\nb", b"b\nc\n", b"d") == [b"a", b"bb", b"c", b"d"]
    for parts, words in (((b"\n" * 4,), "do not end: more than 3 lines"), ((b"123", b"456"), "longer than 5 bytes")):
        with pytest.raises(UnreadableResponse, match=words):
            await lines(*parts)
