"""One attempt that goes well: what is sent, and what comes back, at once or as a stream; and token counts.

Every test that sends runs on both roads.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys

import pytest

from actors.ports.model import Model
from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.messages.client import COUNTED_FIELDS, AnthropicModel
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import ReportedBucket
from tests.edge.providers.test_stream import events_of
from tests.edge.support.scripted_http_server import (
    MESSAGE,
    Answer,
    Asked,
    Step,
    chunked,
    compact,
    http,
    scripted,
    streamed,
)
from tests.edge.support.wired_model import BODY, CREDENTIAL, KEY, ROADS, Connect, always, connected, error, failed
from tests.support.patience import PATIENCE_S

connect = pytest.fixture(params=ROADS)(connected)

# ------------------------------------------------------------------------------------------ what is sent


async def test_a_call_sends_its_bytes_and_brings_a_reply(connect: Connect) -> None:
    async with connect(always(http(MESSAGE))) as (server, model):
        port: Model = model
        reply = await port.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
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
        await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
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
        assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S), Reply)
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
        assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S), Reply)
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert "other" not in server.asked[0].headers.values()


async def test_a_header_alone_opens_the_door_and_no_key_is_looked_for(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_PROFILE", "nobody")  # given no key, the SDK would look for this one's on disk
    credential = Credential(custom_headers=(("X-Api-Key", "abc"),))
    async with connect(always(http(MESSAGE)), credential) as (server, model):
        reply = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
    assert isinstance(reply, Reply), reply
    assert "authorization" not in server.asked[0].headers


async def test_a_base_url_may_have_a_path(connect: Connect) -> None:
    async with scripted(always(http(MESSAGE))) as server:
        for base_url in (f"{server.url}/llm", f"{server.url}/llm/"):
            async with connect(always([]), Credential(api_key=KEY, base_url=base_url), base_url="") as (_, model):
                assert model.endpoint == f"{server.url}/llm"
                await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
    assert [asked.target for asked in server.asked] == ["/llm/v1/messages"] * 2


def test_the_endpoint_shows_no_password() -> None:
    model = AnthropicModel(Credential(api_key=KEY, base_url="https://me:pass-word@gateway.example/a"))
    assert model.endpoint == "https://gateway.example/a"
    assert "pass-word" not in repr(model) and KEY not in repr(model)
    with pytest.raises(CredentialError):
        AnthropicModel(Credential(api_key=KEY), base_url="gateway.example")


def test_the_sdk_is_imported_only_when_needed() -> None:
    code = (
        "import sys, actors.providers.messages.client; sys.exit('anthropic' in sys.modules or 'httpx2' in sys.modules)"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0


async def test_as_many_calls_as_asked_for_are_under_way_at_once(connect: Connect) -> None:
    together = asyncio.Barrier(150)

    async def wait_for_all(_: Asked) -> Answer:
        await together.wait()
        return http(MESSAGE)

    async with connect(wait_for_all, concurrency=150) as (server, model):
        calls = [model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S) for _ in range(150)]
        replies = await asyncio.gather(*calls)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert server.connections == 150


async def test_a_connection_is_used_again(connect: Connect) -> None:
    async with connect(always(http(MESSAGE))) as (server, model):
        for _ in range(5):
            await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
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
    bucket = ReportedBucket(50, 49, 30.0)
    async with connect(lambda _: next(answers)) as (_, model):
        seen = [model.rate]
        for _ in range(3):
            await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
            seen.append(model.rate)
    assert [rate and rate.requests for rate in seen] == [None, bucket, bucket, ReportedBucket(9, None, None)]


async def test_a_packed_answer_is_unpacked(connect: Connect) -> None:
    packed = gzip.compress(compact(MESSAGE))
    async with connect(always(http(packed, content_encoding="gzip"))) as (_, model):
        reply = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
    assert isinstance(reply, Reply) and reply.body == compact(MESSAGE)


# ------------------------------------------------------------------------------------------------ streams


async def test_a_long_reply_is_streamed_and_a_short_one_is_not(connect: Connect) -> None:
    def script(asked: Asked) -> Answer:
        return chunked(streamed(events_of(MESSAGE))) if asked.json.get("stream") else http(MESSAGE)

    seen: list[int] = []
    async with connect(script) as (server, model):
        short = await model.call(BODY, output_tokens_max=8_000, timeout_s=PATIENCE_S)
        long = await model.call(BODY + b"\n", output_tokens_max=8_001, timeout_s=PATIENCE_S, progress=seen.append)
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
            reply = await model.call(BODY, output_tokens_max=output_tokens_max, timeout_s=PATIENCE_S)
            assert isinstance(reply, Reply), reply


async def test_a_server_that_hangs_up_without_a_word_costs_no_call_either() -> None:
    def script(asked: Asked) -> Answer:
        return [*chunked(streamed(events_of(MESSAGE))), Step.CUT] if asked.json.get("stream") else http(MESSAGE)

    async with scripted(script) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        for output_tokens_max in (9_000, 10, 9_000, 9_000, 10):
            reply = await model.call(BODY, output_tokens_max=output_tokens_max, timeout_s=PATIENCE_S)
            assert isinstance(reply, Reply), reply
        await model.close()


async def test_an_answer_in_one_piece_is_taken_where_a_stream_was_asked_for(connect: Connect) -> None:
    seen: list[int] = []
    async with connect(always(http(MESSAGE))) as (_, model):
        reply = await model.call(BODY, output_tokens_max=9_000, timeout_s=PATIENCE_S, progress=seen.append)
    assert isinstance(reply, Reply) and seen == [len(compact(MESSAGE))]


async def test_an_error_inside_a_stream_is_named(connect: Connect) -> None:
    events = [*events_of(MESSAGE)[:5], error("overloaded_error", f"busy, {KEY}")]
    async with connect(always(chunked(streamed(events)))) as (_, model):
        failure = await failed(model, output_tokens_max=9_000)
    assert failure == Failure(
        FailureKind.OVERLOADED, "busy, [redacted]", 200, "overloaded_error", answer_came=True
    )


async def test_the_sdk_puts_the_same_stream_together_to_the_same_message() -> None:
    import anthropic

    async with scripted(always(chunked(streamed(events_of(MESSAGE))))) as server:
        model = AnthropicModel(Credential(api_key=KEY), base_url=server.url)
        ours = await model.call(BODY, output_tokens_max=9_000, timeout_s=PATIENCE_S)
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
