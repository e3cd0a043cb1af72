"""Responses that the tests of the official SDKs know, over both APIs: errors, odd bodies, streams.

Read for cases: openai/openai-python at e43b4224 and anthropics/anthropic-sdk-python at 009b0353. Each case names the
file of its shape; the bodies are written anew. Cases that other tables have are left out here: error types by status
(`tests/unit/policies/failures/test_failure.py`), errors of the servers (`test_chat_errors.py`), `retry-after`
(`test_headers.py`), flaws beside an answer (`flawed_bodies.py`), a refusal and a cut answer (`test_chat_response.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from actors.providers.messages.client import AnthropicModel
from cortex.values.endings import Ending
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.providers.test_chat_client import BODY as CHAT_BODY
from tests.edge.providers.test_chat_client import client
from tests.edge.providers.test_chat_response import chunks, completion
from tests.edge.providers.test_stream import events_of
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, compact, http, streamed
from tests.edge.support.wired_model import BODY, CREDENTIAL
from tests.support.patience import PATIENCE_S

K = FailureKind
LONG = 9_000
"""Bound of a reply that is streamed."""


class Case(NamedTuple):
    """Response, and its outcome: a failure of this kind, or a reply of this ending; words of its message or text."""

    name: str
    source: str
    answer: Answer
    outcome: FailureKind | Ending
    words: str = ""
    wait_s: float | None = None


async def over_messages(script: Callable[[Asked], Answer], tokens: int) -> Reply | Failure:
    with served(script) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        found = await model.call(BODY, output_tokens_max=tokens, timeout_s=PATIENCE_S)
        await model.close()
    return found


async def over_chat(script: Callable[[Asked], Answer], tokens: int) -> Reply | Failure:
    with served(script) as server:
        model = client(server)
        found = await model.call(CHAT_BODY, output_tokens_max=tokens, timeout_s=PATIENCE_S)
        await model.close()
    return found


def named(message: Any, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"message": message, "type": kind}}


CLIENT, STREAMING, MIDDLEWARE = "tests/test_client.py", "tests/test_streaming.py", "tests/test_middleware.py"
EXCEPTIONS = "src/openai/_exceptions.py"
NONE = "and no explanation"
EITHER = [
    Case("an empty error", CLIENT, http({"error": {}}, 400), K.REJECTED, f"status 400 {NONE}"),
    Case("an empty error of the limit", CLIENT, http({"error": {}}, 429, retry_after="121"), K.THROTTLED, NONE, 121.0),
    Case("a date beyond years", CLIENT, http({"error": {}}, 429, retry_after="Fri, 29 Sep 100000 16:26:57 GMT"), K.THROTTLED, NONE),
    Case("a day that is none", CLIENT, http({"error": {}}, 429, retry_after="Zun, 29 Sep 2023 16:26:27 GMT"), K.THROTTLED, NONE, 0.0),
    Case("a wait beyond numbers", CLIENT, http({"error": {}}, 429, retry_after="9" * 35), K.THROTTLED, NONE),
    Case("a wait in milliseconds", "tests/test_debug_logging.py", http({"error": {"message": "x"}}, 500, retry_after_ms="1"), K.TRANSIENT, "x", 0.001),
    Case("an error that is a text", CLIENT, http({"error": "server error"}, 500), K.TRANSIENT, "server error"),
    Case("an error that is nothing", CLIENT, http(b"", 500), K.TRANSIENT, f"status 500 {NONE}"),
    Case("an error that is null", EXCEPTIONS, http(b"null", 500), K.TRANSIENT, "null"),
    Case("an error that is a list", EXCEPTIONS, http([1, 2], 400), K.REJECTED, "[1,2]"),
    Case("a message that is an object", EXCEPTIONS, http(named({"a": 1}), 400), K.REJECTED),
    Case("no code, 401", CLIENT, http(named("Unauthorized"), 401), K.UNAUTHORISED, "Unauthorized"),
    Case("no code, 403", CLIENT, http(named("Forbidden"), 403), K.UNAUTHORISED, "Forbidden"),
    Case("OAuth", EXCEPTIONS, http({"error": "invalid_grant", "error_description": "The token has expired."}, 401), K.UNAUTHORISED, "invalid_grant: The token has expired"),
    Case("a redirect", CLIENT, http(b"", 302, location="http://elsewhere.example/redirected"), K.BLOCKED, "redirect to http://elsewhere.example/redirected"),
    Case("a lock that timed out", "src/openai/_base_client.py", http(named("locked"), 409), K.TRANSIENT, "locked"),
    Case("a request that timed out", "src/openai/_base_client.py", http(named("late"), 408), K.TRANSIENT, "late"),
    Case("a request that may be repeated, whatever its status", "src/openai/_base_client.py", http(named("later"), 400, x_should_retry="true"), K.TRANSIENT, "later"),
    Case("a server error that may not be repeated", "src/openai/_base_client.py", http(named("broken", "server_error"), 500, x_should_retry="false"), K.REJECTED, "broken"),
    Case("a limit that waiting does not lift", "src/openai/_base_client.py", http(named("used up", "rate_limit_error"), 429, x_should_retry="false"), K.BLOCKED, "used up: the provider says that trying again does not help"),
    Case("a limit with an end", "src/openai/_base_client.py", http(named("slow", "rate_limit_error"), 429, x_should_retry="false", retry_after="9"), K.THROTTLED, "slow", 9.0),
    Case("a full provider, by a proxy that gave up", "src/openai/_base_client.py", http(named("Overloaded", "overloaded_error"), 529, x_should_retry="false"), K.OVERLOADED, "Overloaded"),
    Case("too large, called invalid", MIDDLEWARE, http(named("Request too large"), 413), K.TOO_LARGE, "Request too large"),
    Case("overloaded", MIDDLEWARE, http(named("Overloaded", "overloaded_error"), 529), K.OVERLOADED, "Overloaded"),
    Case("a text where JSON was due", CLIENT, http(b"my-custom-format", content_type="text/plain"), K.TRANSIENT),
    Case("another object", CLIENT, http({"foo": {"invalid": True}}), K.UNREADABLE, "foo"),
]  # fmt: skip

EVENTS = events_of(MESSAGE)
START = {"type": "message_start", "message": MESSAGE | {"content": [], "stop_reason": None, "usage": {"input_tokens": 20, "output_tokens": 1}}}
STOP = {"type": "message_stop"}


def stream(*data: bytes) -> Answer:
    return http(b"".join(data), content_type="text/event-stream")


def block(index: int, opened: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    grown = [{"type": "content_block_delta", "index": index, "delta": each} for each in deltas]
    return [{"type": "content_block_start", "index": index, "content_block": opened}, *grown, {"type": "content_block_stop", "index": index}]


def ended(reason: str, **more: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None} | more, "usage": {"output_tokens": 8}}


HELLO = block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello there!"})
FRAMING = "tests/test_sse_framing.py"
MESSAGES = [
    Case("an error as the first event", STREAMING, stream(b"event: error\n", b"data: %s\n\n" % compact(named("Overloaded", "overloaded_error"))), K.OVERLOADED, "Overloaded"),
    Case("an error event of words", "src/anthropic/_streaming.py", stream(b"event: error\n", b"data: upstream is gone\n\n"), K.TRANSIENT, "upstream is gone"),
    Case("a refusal without a word", "tests/lib/streaming/fixtures/refusal_response.txt", stream(streamed([START, *block(0, {"type": "text", "text": ""}), ended("refusal", stop_details={"type": "refusal", "category": "cyber", "explanation": "No."}), STOP])), Ending.REFUSED),
    Case("a tool's input cut at the bound", "tests/lib/streaming/fixtures/incomplete_partial_json_response.txt", stream(streamed([START, *block(0, {"type": "tool_use", "id": "t", "name": "make", "input": {}}, {"type": "input_json_delta", "partial_json": ""}, {"type": "input_json_delta", "partial_json": '{"filename": "taxes'}), ended("max_tokens"), STOP])), Ending.CUT),
    Case("a fallback of the provider's", "tests/lib/streaming/fixtures/fallback_response.txt", stream(streamed([START, *block(0, {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}), *HELLO, ended("end_turn"), STOP])), Ending.WHOLE, "Hello there!"),
    Case("a compaction", "tests/lib/streaming/fixtures/compaction_response.txt", stream(streamed([START, *block(0, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "Earlier.", "encrypted_content": "x"}), *HELLO, ended("end_turn"), STOP])), Ending.WHOLE, "Hello there!"),
    Case("an event without data", STREAMING, stream(b"event: ping\n\n", streamed(EVENTS)), Ending.WHOLE, "yes"),
    Case("data of several lines", STREAMING, stream(streamed(EVENTS).replace(b'data: {"type"', b'data: {\ndata:\ndata: "type"')), Ending.WHOLE, "yes"),
    Case("mixed ends of lines", FRAMING, stream(streamed(EVENTS).replace(b"\n\n", b"\n\r")), Ending.WHOLE, "yes"),
    Case("lines that mean nothing", FRAMING, stream(b"ignored:x\n:x\n" * 2_000, streamed(EVENTS)), Ending.WHOLE, "yes"),
]  # fmt: skip

YES = chunks({"role": "assistant", "content": "yes"})


def chat_stream(*values: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: %s\n\n" % compact(each) for each in values) + end


REFUSED = chunks({"role": "assistant", "content": None}, {"refusal": "I'm very sorry, "}, {"refusal": "but no."})
CHAT = [
    Case("an error as the first event", STREAMING, stream(chat_stream({"error": {"message": "slow", "code": "rate_limit_exceeded"}})), K.THROTTLED, "slow"),
    Case("an error of the stream that is a text", "src/openai/_streaming.py", stream(chat_stream({"error": "gone"})), K.TRANSIENT, "gone"),
    Case("an error of the stream without words", "src/openai/_streaming.py", stream(chat_stream({"error": {"message": None}})), K.TRANSIENT),
    Case("an error without the object around it", "vLLM before 0.10", stream(chat_stream({"object": "error", "message": "This model's maximum context length is 8 tokens", "type": "BadRequestError", "code": 400})), K.TOO_LARGE, "maximum context length"),
    Case("an error event of words", "src/openai/_streaming.py", stream(b"event: error\n", b"data: upstream is gone\n\n"), K.TRANSIENT, "upstream is gone"),
    Case("a refusal in pieces", "tests/lib/chat/test_completions_streaming.py", stream(chat_stream(*REFUSED)), Ending.REFUSED),
    Case("an event without data", STREAMING, stream(b"event: ping\n\n", chat_stream(*YES)), Ending.WHOLE, "yes"),
    Case("data of several lines", STREAMING, stream(chat_stream(*YES).replace(b'data: {"', b'data: {\ndata:\ndata: "')), Ending.WHOLE, "yes"),
    Case("a line separator of Unicode", STREAMING, stream(chat_stream(*chunks({"content": "yes\u2028no"}))), Ending.WHOLE, "yes\u2028no"),
    Case("mixed ends of lines", FRAMING, stream(chat_stream(*YES).replace(b"\n\n", b"\n\r")), Ending.WHOLE, "yes"),
    Case("padding against eavesdroppers", "tests/lib/chat/test_completions_streaming.py", stream(chat_stream(*(each | {"obfuscation": "Xy12"} for each in YES))), Ending.WHOLE, "yes"),
    Case("no choice", CLIENT, http({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}), K.UNREADABLE),
    Case("a type of content of nobody", CLIENT, http(completion({"content": "yes"}), content_type="application/text"), Ending.WHOLE, "yes"),
]  # fmt: skip


def _checked(case: Case, found: Reply | Failure) -> None:
    if isinstance(case.outcome, Ending):
        assert isinstance(found, Reply), found
        assert found.ending is case.outcome and case.words in found.text
        return
    assert isinstance(found, Failure), found
    assert (found.kind, found.retry_after_s) == (case.outcome, case.wait_s), found
    assert case.words in found.message and "\n" not in found.message


@pytest.mark.parametrize("case", [*EITHER, *MESSAGES], ids=lambda case: case.name)
async def test_over_the_messages_api(case: Case) -> None:
    tokens = LONG if case in MESSAGES else 16
    _checked(case, await over_messages(lambda _: case.answer, tokens))


@pytest.mark.parametrize("case", [*EITHER, *CHAT], ids=lambda case: case.name)
async def test_over_chat_completions(case: Case) -> None:
    tokens = LONG if case in CHAT else 16
    _checked(case, await over_chat(lambda _: case.answer, tokens))
