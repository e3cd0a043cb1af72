"""One attempt against a server that answers as each test says: what is sent, what comes back, what it is called.

Every test that sends runs on both roads: prepared by the SDK and sent by aiohttp, and through the SDK's client.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from actors import model_direct
from actors.credential import Credential, CredentialError
from actors.model import COUNTED_FIELDS, AnthropicModel
from actors.model_headers import Bucket
from actors.model_port import Model
from cortex.reply import Reply, Usage
from policies.failure import Failure, FailureKind
from policies.timeout import TimeoutPolicy
from tests.edge.scripted import (
    MESSAGE,
    Answer,
    Asked,
    Script,
    Scripted,
    Step,
    chunked,
    compact,
    http,
    scripted,
    streamed,
)
from tests.edge.test_model_stream import events_of

KEY = "sk-ant-api03-verysecretkey-0123456789"
CREDENTIAL = Credential(api_key=KEY)
BODY = b'{"model":"claude-test",  "max_tokens":16,"messages":[{"role":"user","content":"\xc3\xa9?"}]}'

Connect = Callable[..., AbstractAsyncContextManager[tuple[Scripted, AnthropicModel]]]


@pytest.fixture(params=["direct", "sdk"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """A server with a script, and a model that speaks to it on the road of this run."""

    @asynccontextmanager
    async def connected(
        script: Script, credential: Credential = CREDENTIAL, **settings: Any
    ) -> AsyncIterator[tuple[Scripted, AnthropicModel]]:
        async with scripted(script) as server:
            settings = {"base_url": server.url, "through_sdk": request.param == "sdk"} | settings
            model = AnthropicModel(credential, **settings)
            try:
                yield server, model
            finally:
                await model.close()

    return connected


def always(answer: Answer) -> Script:
    return lambda _: answer


async def failed(model: AnthropicModel, timeout_s: float = 5.0, output_tokens_max: int = 16) -> Failure:
    found = await model.call(BODY, output_tokens_max=output_tokens_max, timeout_s=timeout_s)
    assert isinstance(found, Failure)
    return found


# ------------------------------------------------------------------------------------------ what is sent


async def test_a_call_sends_its_bytes_and_brings_a_reply(connect: Connect) -> None:
    async with connect(always(http(MESSAGE))) as (server, model):
        port: Model = model
        reply = await port.call(BODY, output_tokens_max=16, timeout_s=5)
    assert reply == Reply(compact(MESSAGE), "end_turn", "claude-test", Usage(10, 2, 4, 3))
    (asked,) = server.asked
    assert (asked.method, asked.target, asked.body) == ("POST", "/v1/messages", BODY)
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["anthropic-version"]
    assert asked.headers["user-agent"].startswith("AsyncAnthropic/Python")


async def test_the_wire_carries_what_the_sdk_would_send(connect: Connect) -> None:
    """The headers of a `messages.create` by the SDK as it comes, key by key."""
    import anthropic

    async with connect(always(http(MESSAGE))) as (server, model):
        await model.call(BODY, output_tokens_max=16, timeout_s=5)
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url, max_retries=0) as sdk:
            await sdk.messages.create(**json.loads(BODY))
    ours, theirs = (
        {
            name: value
            for name, value in asked.headers.items()
            # the length of another layout, what the client can unpack, and how long it waits
            if name not in ("content-length", "accept-encoding", "connection") and "timeout" not in name
        }
        for asked in server.asked
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("credential", "sent"),
    [
        (Credential(auth_token="tok"), {"authorization": "Bearer tok", "x-api-key": None}),
        (Credential(api_key=KEY, auth_token="tok"), {"authorization": f"Bearer {KEY}"}),
        (
            Credential(api_key=KEY, custom_headers=(("X-Team", "blue"), ("anthropic-beta", "b1"))),
            {"authorization": f"Bearer {KEY}", "x-team": "blue", "anthropic-beta": "b1"},
        ),
        (Credential(custom_headers=(("X-Api-Key", "abc"),)), {"x-api-key": "abc", "authorization": None}),
        (Credential(custom_headers=(("AUTHORIZATION", "Basic abc"),)), {"authorization": "Basic abc"}),
    ],
)
async def test_the_credential_opens_the_door(
    connect: Connect, credential: Credential, sent: dict[str, str | None]
) -> None:
    async with connect(always(http(MESSAGE)), credential) as (server, model):
        assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=5), Reply)
    assert {name: server.asked[0].headers.get(name) for name in sent} == sent


async def test_the_environment_of_the_process_is_not_looked_at(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "ANTHROPIC_API_KEY": "sk-other",
        "ANTHROPIC_AUTH_TOKEN": "other",
        "ANTHROPIC_CUSTOM_HEADERS": "x-other: other\nauthorization: other",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "HTTP_PROXY": "http://127.0.0.1:1",
        "ALL_PROXY": "http://127.0.0.1:1",
        "SSL_CERT_FILE": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    async with connect(always(http(MESSAGE))) as (server, model):
        assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=5), Reply)
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert "other" not in server.asked[0].headers.values()


async def test_a_base_url_may_have_a_path(connect: Connect) -> None:
    async with scripted(always(http(MESSAGE))) as server:
        for base_url in (f"{server.url}/llm", f"{server.url}/llm/"):
            async with connect(always([]), Credential(api_key=KEY, base_url=base_url), base_url="") as (_, model):
                assert model.endpoint == f"{server.url}/llm"
                await model.call(BODY, output_tokens_max=16, timeout_s=5)
    assert [asked.target for asked in server.asked] == ["/llm/v1/messages"] * 2


def test_the_endpoint_shows_no_password() -> None:
    model = AnthropicModel(Credential(api_key=KEY, base_url="https://me:pass-word@gateway.example/a"))
    assert model.endpoint == "https://gateway.example/a"
    assert "pass-word" not in repr(model) and KEY not in repr(model)
    with pytest.raises(CredentialError):
        AnthropicModel(Credential(api_key=KEY), base_url="gateway.example")


def test_the_sdk_is_imported_only_when_needed() -> None:
    code = "import sys, actors.model; sys.exit('anthropic' in sys.modules or 'httpx2' in sys.modules)"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0


async def test_as_many_calls_as_asked_for_are_under_way_at_once(connect: Connect) -> None:
    together = asyncio.Barrier(150)

    async def wait_for_all(_: Asked) -> Answer:
        await together.wait()
        return http(MESSAGE)

    async with connect(wait_for_all, concurrency=150) as (server, model):
        calls = [model.call(BODY, output_tokens_max=16, timeout_s=20) for _ in range(150)]
        replies = await asyncio.gather(*calls)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert server.connections == 150


async def test_a_connection_is_used_again(connect: Connect) -> None:
    async with connect(always(http(MESSAGE))) as (server, model):
        for _ in range(5):
            await model.call(BODY, output_tokens_max=16, timeout_s=5)
    assert server.connections == 1


# ------------------------------------------------------------------------------------ what is read besides


async def test_rate_limits_are_read_from_every_answer(connect: Connect) -> None:
    first = http(
        MESSAGE,
        anthropic_ratelimit_requests_limit="50",
        anthropic_ratelimit_requests_remaining="49",
        anthropic_ratelimit_requests_reset="2026-11-21T10:00:30Z",
        date="Sat, 21 Nov 2026 10:00:00 GMT",
    )
    answers = iter([first, http(MESSAGE), http({}, 429, anthropic_ratelimit_requests_limit="9")])
    told = Bucket(50, 49, 30.0)
    async with connect(lambda _: next(answers)) as (_, model):
        seen = [model.rate]
        for _ in range(3):
            await model.call(BODY, output_tokens_max=16, timeout_s=5)
            seen.append(model.rate)
    assert [rate and rate.requests for rate in seen] == [None, told, told, Bucket(9, None, None)]


async def test_a_packed_answer_is_unpacked(connect: Connect) -> None:
    packed = gzip.compress(compact(MESSAGE))
    async with connect(always(http(packed, content_encoding="gzip"))) as (_, model):
        reply = await model.call(BODY, output_tokens_max=16, timeout_s=5)
    assert isinstance(reply, Reply) and reply.body == compact(MESSAGE)


# ---------------------------------------------------------------------------------------------- failures


def error(kind: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message} | more, "request_id": "req_1"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            http(error("rate_limit_error", "slow down"), 429, retry_after="7"),
            Failure(FailureKind.THROTTLED, "slow down", 429, "rate_limit_error", 7.0),
        ),
        (
            http(error("rate_limit_error", "no", details={"error_code": "enforced_spend_limit_reached"}), 429),
            Failure(FailureKind.BLOCKED, "no", 429, "rate_limit_error"),
        ),
        (
            http(error("overloaded_error", "Overloaded"), 529),
            Failure(FailureKind.OVERLOADED, "Overloaded", 529, "overloaded_error"),
        ),
        (
            http(error("authentication_error", f"invalid key: {KEY}"), 401),
            Failure(FailureKind.UNAUTHORISED, "invalid key: [redacted]", 401, "authentication_error"),
        ),
        (
            http(error("invalid_request_error", "prompt is too long: 9 > 8"), 400),
            Failure(FailureKind.TOO_LARGE, "prompt is too long: 9 > 8", 400, "invalid_request_error"),
        ),
        (
            http(error("invalid_request_error", "max_tokens: must be above 0"), 400),
            Failure(FailureKind.REJECTED, "max_tokens: must be above 0", 400, "invalid_request_error"),
        ),
        (  # a gateway's page, with headers echoed
            http(f"<h1>Bad\n gateway</h1> authorization: Bearer {KEY}".encode(), 502, "text/html"),
            Failure(FailureKind.TRANSIENT, "<h1>Bad gateway</h1> authorization: Bearer [redacted]", 502),
        ),
        (
            http(b"", 500),
            Failure(FailureKind.TRANSIENT, "the provider answered with status 500 and no explanation", 500),
        ),
        (http({"error": "out of words"}, 500), Failure(FailureKind.TRANSIENT, "out of words", 500)),
        (
            http({"error": {"message": 7}}, 503),
            Failure(FailureKind.OVERLOADED, "the provider answered with status 503 and no explanation", 503),
        ),
        (  # a gateway that calls everything 200
            http(error("overloaded_error", "busy")),
            Failure(FailureKind.OVERLOADED, "busy", 200, "overloaded_error"),
        ),
        (
            http(b"", 307, location="https://elsewhere.example/"),
            Failure(
                FailureKind.BLOCKED,
                "the address answers with a redirect to https://elsewhere.example/: "
                "set ANTHROPIC_BASE_URL or --base-url to the right one",
                307,
            ),
        ),
        (
            http(b"", 407),
            Failure(FailureKind.UNAUTHORISED, "the provider answered with status 407 and no explanation", 407),
        ),
    ],
)
async def test_a_refusal_is_named(connect: Connect, answer: Answer, expected: Failure) -> None:
    async with connect(always(answer)) as (_, model):
        assert await failed(model) == expected


async def test_an_explanation_cut_short_leaves_the_status() -> None:
    answer = [*http(error("rate_limit_error", "x"), 429, content_length="900", retry_after="3"), Step.CUT]
    async with scripted(always(answer)) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        failure = await failed(model)
        await model.close()
    said = "the provider answered with status 429 and no explanation"
    assert failure == Failure(FailureKind.THROTTLED, said, 429, "", 3.0)


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ([*http(MESSAGE, content_length="900"), Step.CUT], 0, "connection was lost"),
        ([*chunked(compact(MESSAGE), "application/json", end=False), Step.CUT], 0, "connection was lost"),
        ([http(MESSAGE)[0][:40], Step.CUT], 0, "connection was lost"),  # type: ignore[index]
        ([b"SSH-2.0-OpenSSH\r\n\r\n", Step.CUT], 0, "connection was lost"),
        ([Step.CUT], 0, "connection was lost"),
        ([Step.RESET], 0, "connection was lost"),
        (http(compact(MESSAGE)[:-9]), 200, "no JSON"),
        (http(b""), 200, "no JSON"),
        (http(MESSAGE | {"usage": {}}), 200, "input_tokens"),
        (http(MESSAGE, content_type="text/html"), 200, "text/html"),
        (http(MESSAGE, content_type=""), 200, "unknown"),
        (http(b"not gzip", content_encoding="gzip"), 0, "connection was lost"),
        (chunked(streamed(events_of(MESSAGE)[:-1])), 200, "cut"),
        ([*chunked(streamed(events_of(MESSAGE))[:-300], end=False), Step.CUT], 0, "connection was lost"),
    ],
)
async def test_what_comes_broken_is_transient_and_was_sent(
    connect: Connect, answer: Answer, status: int, words: str
) -> None:
    async with connect(always(answer)) as (_, model):
        failure = await failed(model)
        assert (failure.kind, failure.sent) == (FailureKind.TRANSIENT, True), failure
        # The two roads may notice a broken line at different moments, so the status of one is not that of the other.
        assert failure.status in (0, status)
        assert words in failure.message or failure.status == 0
        again = await failed(model)  # and the next call is not spoiled by it
        assert again.kind is FailureKind.TRANSIENT


@pytest.mark.parametrize("answer", [[Step.HANG], [http(MESSAGE)[0][:-9], Step.HANG]])  # type: ignore[index]
async def test_the_attempt_ends_at_its_deadline(connect: Connect, answer: Answer) -> None:
    async with connect(always(answer)) as (server, model):
        await model.open()
        failure = await failed(model, timeout_s=0.15)
        assert (failure.kind, failure.sent, failure.status) == (FailureKind.TIMED_OUT, True, 0)
        await asyncio.wait_for(server.left.wait(), 5)  # and the connection is gone


async def test_a_silent_stream_is_noticed_before_the_deadline(connect: Connect) -> None:
    answer = [*chunked(streamed(events_of(MESSAGE))[:300], end=False), Step.HANG]
    policy = TimeoutPolicy(first_byte_s=0.1, between_bytes_s=0.2)
    async with connect(always(answer), timeouts=policy, stream_above_tokens=100) as (_, model):
        failure = await asyncio.wait_for(failed(model, 60, output_tokens_max=101), 5)
    assert failure.kind is FailureKind.TIMED_OUT


async def test_no_connection_means_not_sent(connect: Connect) -> None:
    async with scripted(always([])) as gone:
        pass
    async with connect(always([]), base_url=gone.url) as (_, model):
        failure = await failed(model)
    assert (failure.kind, failure.sent) == (FailureKind.TRANSIENT, False)
    assert "no connection" in failure.message


async def test_an_unknown_host_means_not_sent(connect: Connect) -> None:
    async with connect(always([]), base_url="http://nobody.localhost:1") as (_, model):
        failure = await failed(model)
    assert (failure.kind, failure.sent) == (FailureKind.TRANSIENT, False)


async def test_an_endless_answer_is_not_held(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_direct, "BODY_BYTES_MAX", 100)
    for answer in (http(MESSAGE), chunked(compact(MESSAGE), "application/json")):
        async with connect(always(answer)) as (_, model):
            failure = await failed(model)
        assert failure.kind is FailureKind.TRANSIENT and "longer than" in failure.message


async def test_a_cancelled_call_leaves_nothing_behind(connect: Connect) -> None:
    hanging: list[Answer] = [[Step.HANG], [http(MESSAGE)[0][:-9], Step.HANG]]  # type: ignore[index]
    for answer in hanging:
        asked = asyncio.Event()

        def script(_: Asked, answer: Answer = answer, asked: asyncio.Event = asked) -> Answer:
            if asked.is_set():
                return http(MESSAGE)
            asked.set()
            return answer

        async with connect(script, concurrency=1) as (server, model):
            call = asyncio.create_task(model.call(BODY, output_tokens_max=16, timeout_s=60))
            await asyncio.wait_for(asked.wait(), 10)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(server.left.wait(), 5)
            # With room for one connection, the next call works only if the cancelled one gave it back.
            assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=5), Reply)


async def test_after_close_a_call_fails_and_nothing_is_sent(connect: Connect) -> None:
    async with connect(always(http(MESSAGE))) as (server, model):
        await model.close()
        failure = await failed(model)
        await model.close()
    assert (failure.kind, failure.sent, server.asked) == (FailureKind.TRANSIENT, False, [])


# ------------------------------------------------------------------------------------------------ streams


async def test_a_long_reply_is_streamed_and_a_short_one_is_not(connect: Connect) -> None:
    def script(asked: Asked) -> Answer:
        return chunked(streamed(events_of(MESSAGE))) if asked.json.get("stream") else http(MESSAGE)

    seen: list[int] = []
    async with connect(script) as (server, model):
        short = await model.call(BODY, output_tokens_max=8_000, timeout_s=5)
        long = await model.call(BODY + b"\n", output_tokens_max=8_001, timeout_s=5, progress=seen.append)
    assert isinstance(long, Reply) and long == short
    assert [asked.json.get("stream") for asked in server.asked] == [None, True]
    assert server.asked[1].json == json.loads(BODY) | {"stream": True}
    assert seen == sorted(seen) and seen[-1] == len(streamed(events_of(MESSAGE)))


async def test_a_server_that_hangs_up_after_a_stream_costs_no_call(connect: Connect) -> None:
    def script(asked: Asked) -> Answer:
        if not asked.json.get("stream"):
            return http(MESSAGE)
        head, body = chunked(streamed(events_of(MESSAGE)))
        assert isinstance(head, bytes) and asked.headers["connection"] == "close"
        return [head[:-2] + b"connection: close\r\n\r\n", body, Step.CUT]

    async with connect(script, concurrency=1) as (_, model):
        for output_tokens_max in (9_000, 10, 9_000, 9_000, 10):
            reply = await model.call(BODY, output_tokens_max=output_tokens_max, timeout_s=5)
            assert isinstance(reply, Reply), reply


async def test_a_server_that_hangs_up_without_a_word_costs_no_call_either() -> None:
    def script(asked: Asked) -> Answer:
        return [*chunked(streamed(events_of(MESSAGE))), Step.CUT] if asked.json.get("stream") else http(MESSAGE)

    async with scripted(script) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        for output_tokens_max in (9_000, 10, 9_000, 9_000, 10):
            reply = await model.call(BODY, output_tokens_max=output_tokens_max, timeout_s=5)
            assert isinstance(reply, Reply), reply
        await model.close()


async def test_an_answer_in_one_piece_is_taken_where_a_stream_was_asked_for(connect: Connect) -> None:
    seen: list[int] = []
    async with connect(always(http(MESSAGE))) as (_, model):
        reply = await model.call(BODY, output_tokens_max=9_000, timeout_s=5, progress=seen.append)
    assert isinstance(reply, Reply) and seen == [len(compact(MESSAGE))]


async def test_an_error_inside_a_stream_is_named(connect: Connect) -> None:
    events = [*events_of(MESSAGE)[:5], error("overloaded_error", f"busy, {KEY}")]
    async with connect(always(chunked(streamed(events)))) as (_, model):
        failure = await failed(model, output_tokens_max=9_000)
    assert failure == Failure(FailureKind.OVERLOADED, "busy, [redacted]", 200, "overloaded_error")


async def test_the_sdk_puts_the_same_stream_together_to_the_same_message() -> None:
    import anthropic

    async with scripted(always(chunked(streamed(events_of(MESSAGE))))) as server:
        model = AnthropicModel(Credential(api_key=KEY), base_url=server.url)
        ours = await model.call(BODY, output_tokens_max=9_000, timeout_s=5)
        await model.close()
        async with (
            anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url, max_retries=0) as sdk,
            sdk.messages.stream(**json.loads(BODY)) as stream,
        ):
            theirs = (await stream.get_final_message()).to_dict()
    assert isinstance(ours, Reply)
    assert theirs.pop("stop_details") is None  # a field that the SDK adds where the provider left it out
    assert json.loads(ours.body) == theirs


# ----------------------------------------------------------------------------------------------- counting


async def test_tokens_are_counted_by_the_provider(connect: Connect) -> None:
    body = compact(
        json.loads(BODY) | {"system": "s", "tools": [], "temperature": 1, "metadata": {}, "stop_sequences": []}
    )
    async with connect(always(http({"input_tokens": 14}))) as (server, model):
        assert await model.count_tokens(body) == 14
    (asked,) = server.asked
    assert asked.target == "/v1/messages/count_tokens"
    assert asked.json == {"model": "claude-test", "messages": json.loads(BODY)["messages"], "system": "s", "tools": []}


def test_the_fields_that_are_counted_are_those_of_the_sdk() -> None:
    from anthropic.types import message_count_tokens_params, message_create_params

    counted = message_count_tokens_params.MessageCountTokensParams.__annotations__
    created = message_create_params.MessageCreateParamsBase.__annotations__
    not_in_a_body = {"user_profile_id", "workspace_id"}  # the SDK sends these as headers
    assert set(counted) & set(created) - not_in_a_body == COUNTED_FIELDS


@pytest.mark.parametrize(
    ("answer", "asked_again"),
    [
        (http(error("not_found_error", "Not Found"), 404), False),
        (http(b"", 405), False),
        (http(error("not_found_error", "model: claude-nine"), 404), True),
        (http(error("api_error", "x"), 500), True),
        (http({"tokens": 3}), True),
        (http(b"x"), True),
        ([Step.RESET], True),
    ],
)
async def test_a_count_that_cannot_be_had_is_none(connect: Connect, answer: Answer, asked_again: bool) -> None:
    async with connect(always(answer)) as (server, model):
        assert await model.count_tokens(BODY) is None
        assert await model.count_tokens(BODY) is None
        assert await model.count_tokens(b"[no request") is None
    assert len(server.asked) == 1 + asked_again
