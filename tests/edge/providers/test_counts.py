"""Counts from outside: bounded at every door, whatever a server, a file or a user writes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.files.batch_request import InvalidRow, RowRefused, RowRules
from actors.jobs.limit_options import bounded
from actors.ports.message_batches import UNKNOWN_REQUESTS, BatchStatus
from actors.providers.chat_completions import batches as chat_batches
from actors.providers.chat_completions.rate_limit_headers import rate_limits as chat_limits
from actors.providers.chat_completions.response import read_completion
from actors.providers.client import keyed_model
from actors.providers.embeddings.wire import read_vectors
from actors.providers.gemini import batches as gemini_batches
from actors.providers.gemini.generate_response import read_generated
from actors.providers.messages import batches
from actors.providers.messages import client as messages_client
from actors.providers.messages.rate_limit_headers import rate_limits
from actors.providers.messages.response import read_message
from actors.providers.mistral import batches as mistral_batches
from actors.providers.responses.response import read_response
from actors.providers.transport.response_headers import NUMBER_MAX, RETRY_AFTER_MAX_S, duration_s, number, retry_after_s
from cortex.journal import codec
from cortex.values.bounds.counts import COUNT_MAX, WHOLE_MAX, count_of
from cortex.values.limits import Limits
from cortex.values.reply import Reply, Usage
from policies.estimates.price import COST_MAX_NUSD, cost_nusd, parse_price

ABSURD = [
    -1, -5, COUNT_MAX + 1, 2**31, 2**63, 2**64, 9 * 10**18, 10**30, 10**400, -(10**30), 1e30, 1.5, -0.5, 1e-300, True,
    "12abc", "-3", "9" * 40, "1e3", "", "٣", [], {}, [3], {"tokens": 3},
]  # fmt: skip
"""Values that are no counts."""
VALUES = st.one_of(
    st.sampled_from(ABSURD), st.integers(), st.integers(0, COUNT_MAX), st.floats(allow_nan=False, allow_infinity=False),
    st.text(), st.booleans(), st.none(), st.decimals(allow_nan=False, allow_infinity=False).map(str),
)  # fmt: skip


def message(counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "a"}],
        "stop_reason": "end_turn", "usage": counts,
    }  # fmt: skip


def completion(counts: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
    return {"id": "c", "model": "m", "choices": [choice], "usage": counts}


def response(counts: dict[str, Any]) -> dict[str, Any]:
    said = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}
    return {"id": "r", "model": "m", "status": "completed", "output": [said], "usage": counts}


def generated(counts: dict[str, Any]) -> dict[str, Any]:
    said = {"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}
    return {"candidates": [said], "modelVersion": "m", "usageMetadata": counts}


def vectors(counts: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "data": [{"index": 0, "embedding": [0.5]}], "usage": counts}


READERS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], Callable[..., Reply], tuple[str, ...]]] = {
    "messages": (message, read_message, ("input_tokens", "output_tokens", "cache_read_input_tokens")),
    "chat completions": (completion, read_completion, ("prompt_tokens", "completion_tokens", "total_tokens")),
    "responses": (response, read_response, ("input_tokens", "output_tokens", "total_tokens")),
    "gemini": (
        generated, lambda body, charset: read_generated(body),
        ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount"),
    ),
    "embeddings": (vectors, read_vectors, ("prompt_tokens", "total_tokens")),
}


def usage_of(reader: str, counts: dict[str, Any]) -> Usage:
    make, read, _ = READERS[reader]
    return read(json.dumps(make(counts)).encode(), "").usage


def assert_bounded(usage: Usage) -> None:
    for figure in msgspec.structs.astuple(usage)[:5]:
        assert type(figure) is int and 0 <= figure <= 2 * COUNT_MAX


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:20])
def test_a_reply_is_kept_and_an_absurd_count_is_not_believed(reader: str, value: Any) -> None:
    _, _, names = READERS[reader]
    for name in names:
        counts = {**dict.fromkeys(names, 0), names[0]: 7, names[1]: 3, name: value}
        assert_bounded(usage_of(reader, counts))
    assert usage_of(reader, dict.fromkeys(names, value)).unknown


@given(st.sampled_from(sorted(READERS)), st.lists(VALUES, min_size=3, max_size=3))
def test_whatever_a_server_counts_a_journal_can_hold(reader: str, values: list[Any]) -> None:
    usage = usage_of(reader, dict(zip(READERS[reader][2], values, strict=False)))
    assert_bounded(usage)
    cost = cost_nusd(parse_price("input=1000000000,output=1000000000"), usage)
    assert 0 <= cost <= COST_MAX_NUSD
    codec.encode_batch([usage, cost])  # type: ignore[list-item]


@given(VALUES)
def test_a_count_is_a_whole_number_within_bounds_or_none(value: Any) -> None:
    found = count_of(value)
    assert found is None or (type(found) is int and 0 <= found <= COUNT_MAX)
    assert found is None or found == (int(value) if isinstance(value, str) else value)


@pytest.mark.parametrize("kind", [messages_client._TokenCount, keyed_model._Count])
@pytest.mark.parametrize("value", [0, *ABSURD], ids=lambda value: repr(value)[:20])
def test_a_counter_that_counts_absurdly_has_not_counted(kind: type, value: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(json.dumps({"input_tokens": value}), type=kind)


@pytest.mark.parametrize("value", [*ABSURD, None], ids=lambda value: repr(value)[:20])
def test_a_batch_is_read_though_its_counts_are_absurd(value: Any) -> None:
    one = {"id": "msgbatch_1", "processing_status": "ended", "created_at": "2026-01-01T00:00:00Z"}
    found = msgspec.json.decode(json.dumps(one | {"request_counts": {"succeeded": value}}), type=batches._Batch).status()
    assert isinstance(found, BatchStatus) and found.ended and found.requests == UNKNOWN_REQUESTS
    two = {"id": "batch_1", "status": "completed", "created_at": 5, "request_counts": {"total": value}}
    three = {"id": "batch_1", "status": "SUCCESS", "created_at": 5, "total_requests": value, "completed_requests": value}
    stats = {"requestCount": value, "successfulRequestCount": value}
    four = {"name": "batches/b1", "metadata": {"state": "BATCH_STATE_SUCCEEDED", "batchStats": stats}}
    for told, kind in ((two, chat_batches._Batch), (three, mistral_batches._Job), (four, gemini_batches._Operation)):
        other = msgspec.json.decode(json.dumps(told), type=kind).known().status()
        assert other.ended and other.requests == 0


TEXTS = st.one_of(
    st.text(max_size=30), st.sampled_from(["nan", "inf", "-inf", "1e400", "1e308", "-1", "9" * 400, "1" * 15 + "d"]),
    st.from_regex(r"\A([0-9]{1,60}(\.[0-9]{1,20})?(ms|s|m|h|d) ?){1,4}\Z"), st.floats().map(str), st.integers().map(str),
)  # fmt: skip


@given(TEXTS)
def test_headers_give_finite_numbers_or_none(text: str) -> None:
    for found in (number(text), duration_s(text)):
        assert found is None or (math.isfinite(found) and 0 <= found < NUMBER_MAX)
    for name in ("retry-after", "retry-after-ms"):
        wait_s = retry_after_s({name: text})
        assert wait_s is None or 0 <= wait_s <= RETRY_AFTER_MAX_S
    for limits in (
        rate_limits({f"anthropic-ratelimit-tokens-{end}": text for end in ("limit", "remaining", "reset")}),
        chat_limits({f"x-ratelimit-{end}-tokens": text for end in ("limit", "remaining", "reset")}),
    ):
        codec.encode_batch([limits])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [10**30, 2**63, COUNT_MAX + 1, -1])
def test_a_row_with_an_absurd_bound_is_refused(value: int) -> None:
    line = {"custom_id": "r", "params": {"model": "m", "max_tokens": value, "messages": [{"role": "user", "content": "a"}]}}
    try:
        row = RowRules().read(json.dumps(line).encode())
    except (InvalidRow, RowRefused) as error:
        raise AssertionError("the row has an id, and gets a result line") from error
    assert row.key == "r" and ("max_tokens is" in row.refusal or "too large" in row.refusal)


@pytest.mark.parametrize("name", ["concurrency", "max_job_tokens", "prompt_tokens_max", "max_output_tokens"])
@pytest.mark.parametrize("value", ["1" * 25, str(WHOLE_MAX + 1), "9" * 5_000, str(2**64)])
def test_an_option_beyond_what_a_journal_holds_is_refused_in_one_line(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="at most") as refused:
        bounded(Limits(), {name: value}, 0.0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["concurrency", "max_cost_nusd", "max_job_tokens", "prompt_tokens_max", "goals_max"])
def test_limits_are_numbers_that_a_journal_holds(name: str) -> None:
    with pytest.raises(ValueError, match="must be at most"):
        Limits(**{name: WHOLE_MAX + 1}, **({"window_rows": WHOLE_MAX} if name == "concurrency" else {}))


@pytest.mark.parametrize("text", ["1e12", "-1", "nan", "inf", "1" * 30])
def test_an_absurd_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at most"):
        parse_price(f"input={text},output=1")
