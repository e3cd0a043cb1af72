"""One attempt that goes wrong: what a refusal, a broken line, silence or a closed door is called. On both roads."""

from __future__ import annotations

import asyncio
import gzip
import json

import msgspec
import pytest

from actors.providers.client import http_model
from actors.providers.messages.client import AnthropicModel
from actors.providers.transport.body import BODY_BYTES_MAX, REPLY_BYTES_LEAST
from actors.providers.transport.failures import without_gateway
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from policies.failures.timeout import TimeoutPolicy, attempt_timeout_s
from tests.edge.providers.test_stream import events_of
from tests.edge.support.scripted_http_server import (
    LATE_S,
    MESSAGE,
    Answer,
    Asked,
    Step,
    chunked,
    compact,
    http,
    refusing,
    scripted,
    streamed,
)
from tests.edge.support.wired_model import BODY, CREDENTIAL, KEY, ROADS, Connect, always, connected, error, failed
from tests.support.patience import PATIENCE_S

connect = pytest.fixture(params=ROADS)(connected)


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
            Failure(
                FailureKind.TRANSIENT,
                "URL/v1/messages answered 502 with a page: Bad gateway authorization: Bearer [redacted]",
                502,
            ),
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
        (  # LiteLLM's proxy without a database, of a wrong key (BerriAI/litellm#12273)
            http({"error": {"message": "No connected db.", "type": "no_db_connection", "code": "400"}}, 400),
            Failure(FailureKind.UNAUTHORISED, "No connected db.", 400, "no_db_connection"),
        ),
        (  # a gateway that calls everything 200
            http(error("overloaded_error", "busy")),
            Failure(FailureKind.OVERLOADED, "busy", 200, "overloaded_error"),
        ),
        (
            http(b"", 307, location="https://elsewhere.example/"),
            Failure(
                FailureKind.BLOCKED,
                "the address answers with a redirect to https://elsewhere.example/: set --base-url to the right one",
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
    async with connect(always(answer)) as (server, model):
        found = await failed(model)
    assert msgspec.structs.replace(found, message=found.message.replace(server.url, "URL")) == expected


BEFORE = "litellm.BadRequestError: AnthropicException - "
UPSTREAM = '{"type":"error","error":{"type":"overloaded_error","message":"prompt is too long: 9 > 8"}}'


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        (f"{BEFORE}Your credit balance is too low", FailureKind.BLOCKED, "Your credit balance is too low"),
        (f"litellm.ContextWindowExceededError: {BEFORE}prompt is too long: 9 > 8", FailureKind.TOO_LARGE, ""),
        (f"{BEFORE}b'{UPSTREAM}'. Received Model Group=m\nAvailable Model Group Fallbacks=None",  # litellm#20575
         FailureKind.TOO_LARGE, "prompt is too long: 9 > 8"),
        (f"{BEFORE}{{cut", FailureKind.REJECTED, "{cut"),
        (f"{BEFORE}Budget has been exceeded! Current cost: 2, Max budget: 1", FailureKind.BLOCKED, "Budget has been"),
        ("ExceededBudget: End User=ann over budget. Spend=2, Budget=1", FailureKind.REJECTED, "ExceededBudget: End"),
        ("The thinking token budget has been exceeded", FailureKind.REJECTED, ""),
        ("messages.0.content: Your credit balance is too low", FailureKind.REJECTED, ""),  # the path of a field
    ],
)  # fmt: skip
async def test_what_litellm_puts_before_an_error_does_not_hide_it(
    connect: Connect, message: str, kind: FailureKind, said: str
) -> None:
    async with connect(always(http(error("invalid_request_error", message), 400))) as (_, model):
        found = await failed(model)
    assert (found.kind, found.error_type) == (kind, "invalid_request_error")
    assert found.message.startswith(said) and "litellm" not in found.message


@pytest.mark.parametrize("none", ["", "None", "null"])
def test_a_gateways_error_without_a_name_has_the_upstreams(none: str) -> None:
    assert without_gateway(none, BEFORE + UPSTREAM) == ("overloaded_error", "prompt is too long: 9 > 8")


async def test_an_explanation_cut_short_leaves_the_status() -> None:
    answer = [*http(error("rate_limit_error", "x"), 429, content_length="900", retry_after="3"), Step.CUT]
    async with scripted(always(answer)) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        failure = await failed(model)
        await model.close()
    text = "the provider answered with status 429 and no explanation"
    assert failure == Failure(FailureKind.THROTTLED, text, 429, "", 3.0)


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ([*http(b"", content_length="900"), Step.CUT], 0, "connection was lost"),
        ([*http(b" \n{", content_length="900"), Step.CUT], 0, "connection was lost"),
        ([*chunked(b"upstream", "application/json", end=False), Step.CUT], 0, "connection was lost"),
        ([http(MESSAGE)[0][:40], Step.CUT], 0, "connection was lost"),  # type: ignore[index]
        ([b"SSH-2.0-OpenSSH\r\n\r\n", Step.CUT], 0, "connection was lost"),
        ([Step.CUT], 0, "connection was lost"),
        ([Step.RESET], 0, "connection was lost"),
        (http(b""), 200, "no JSON"),
        (http(b"upstream timeout", content_type="text/plain"), 200, "no JSON"),
        (http(b"\n <html>", content_type="text/html"), 200, "text/html"),
        (http(b"<html>", content_type=""), 200, "unknown"),
        (http(b"not gzip", content_encoding="gzip"), 0, "connection was lost"),
        (chunked(streamed(events_of(MESSAGE)[:2])), 200, "cut"),
        ([*chunked(streamed(events_of(MESSAGE))[:-300], end=False), Step.CUT], 0, "connection was lost"),
    ],
)
async def test_what_comes_broken_is_transient_and_was_sent(
    connect: Connect, answer: Answer, status: int, words: str
) -> None:
    async with connect(always(answer), concurrency=1) as (_, model):
        failure = await failed(model)
        assert (failure.kind, failure.sent) == (FailureKind.TRANSIENT, True), failure
        # The two roads may notice a broken line at different moments, so the status of one is not that of the other.
        assert failure.status in (0, status)
        assert words in failure.message or failure.status == 0
        again = await failed(model)  # the next call finds the one connection free, or a new one
        assert (again.kind, again.sent) == (FailureKind.TRANSIENT, True), again


WHOLE = compact(MESSAGE)
CUT_IN_TEXT = WHOLE[: WHOLE.index(b"yes") + 2]
CUT_IN_USAGE = WHOLE[: WHOLE.index(b'"output_tokens"')]
PACKED = gzip.compress(WHOLE[:-1], mtime=0)


def cut(body: bytes, kind: str = "application/json", encoding: str = "") -> list[Answer]:
    """Return answers with this body whose connection ends before it is whole: by its length, and by its chunks."""
    if encoding:
        return [[*http(body, content_type=kind, content_length="900", content_encoding=encoding), Step.CUT]]
    return [
        [*http(body, content_type=kind, content_length="900"), Step.CUT], [*chunked(body, kind, end=False), Step.CUT],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [*cut(CUT_IN_USAGE), *cut(WHOLE[:-1]), *cut(PACKED, encoding="gzip")],
)
async def test_an_answer_that_came_whole_is_kept_although_its_connection_ended(connect: Connect, answer: Answer) -> None:
    async with connect(always(answer), concurrency=1) as (server, model):
        found = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
    assert isinstance(found, Reply) and (found.text, len(server.asked)) == ("yes — é", 1), found


@pytest.mark.parametrize(
    "answer",
    [*cut(CUT_IN_TEXT), *cut(WHOLE[:30]), *cut(gzip.compress(CUT_IN_TEXT, mtime=0)[:-8], encoding="gzip")],
)
async def test_an_answer_that_was_cut_had_come_and_may_be_paid(connect: Connect, answer: Answer) -> None:
    async with connect(always(answer), concurrency=1) as (_, model):
        failure = await failed(model)
    assert (failure.kind, failure.sent, failure.answer_came) == (FailureKind.UNREADABLE, True, True), failure
    assert "cut" in failure.message


async def test_a_cut_answer_that_is_labelled_as_text_is_no_other() -> None:
    answers = iter([*cut(CUT_IN_USAGE, "text/plain"), *cut(CUT_IN_TEXT, "text/plain")])
    async with scripted(lambda _: next(answers)) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        found = [await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S) for _ in range(4)]
        await model.close()
    assert [each.text if isinstance(each, Reply) else each.kind for each in found] == [
        "yes — é", "yes — é", FailureKind.UNREADABLE, FailureKind.UNREADABLE,
    ]  # fmt: skip


async def test_an_error_that_was_cut_is_read_as_far_as_it_came(connect: Connect) -> None:
    body = compact(error("overloaded_error", "Overloaded"))
    async with connect(always([*http(body, content_length="900"), Step.CUT])) as (_, model):
        failure = await failed(model)
    assert (failure.kind, failure.message) == (FailureKind.OVERLOADED, "Overloaded"), failure


async def test_an_answer_that_is_not_read_to_its_end_gives_its_connection_back(connect: Connect) -> None:
    page = [*http(b"<html>", content_type="text/html", content_length="900"), Step.HANG]
    async with connect(always(page), concurrency=1) as (server, model):
        failure = await failed(model)
        await asyncio.wait_for(server.left.wait(), PATIENCE_S)
    assert (failure.kind, failure.status) == (FailureKind.TRANSIENT, 200)


@pytest.mark.parametrize("answer", [[Step.LATE], [*http(CUT_IN_TEXT, content_length="900"), Step.LATE]])
async def test_the_attempt_ends_at_its_deadline(connect: Connect, answer: Answer) -> None:
    async with connect(always(answer)) as (server, model):
        await model.open()
        failure = await failed(model, timeout_s=0.9 * LATE_S)
        assert (failure.kind, failure.sent, failure.status) == (FailureKind.TIMED_OUT, True, 0)
        await asyncio.wait_for(server.left.wait(), PATIENCE_S)  # and the connection is gone


async def test_a_silent_stream_is_noticed_before_the_deadline(connect: Connect) -> None:
    answer = [*chunked(streamed(events_of(MESSAGE))[:300], end=False), Step.HANG]
    policy = TimeoutPolicy(first_byte_s=0.1, between_bytes_s=0.2)
    async with connect(always(answer), timeouts=policy, stream_above_tokens=100) as (_, model):
        failure = await failed(model, 2 * PATIENCE_S, output_tokens_max=101)
    assert failure.kind is FailureKind.TIMED_OUT


async def test_no_connection_means_not_sent(connect: Connect) -> None:
    with refusing() as url:
        async with connect(always([]), base_url=url) as (_, model):
            failure = await failed(model)
    assert (failure.kind, failure.sent) == (FailureKind.TRANSIENT, False)
    assert "no connection" in failure.message


async def test_an_unknown_host_means_not_sent(connect: Connect) -> None:
    async with connect(always([]), base_url="http://nobody.localhost:1") as (_, model):
        failure = await failed(model)
    assert (failure.kind, failure.sent) == (FailureKind.TRANSIENT, False)


LONG = MESSAGE | {"content": [{"type": "text", "text": "word " * 60_000}]}
"""Message of 300 KB, where 16 tokens were asked for."""


@pytest.mark.parametrize(
    "answer",
    [
        http(LONG),
        chunked(compact(LONG), "application/json"),
        chunked(compact(LONG), "text/plain"),
        chunked(b"".join(b"event: ping\ndata: {}\n\n" for _ in range(15_000)), "text/event-stream"),
        http(gzip.compress(compact(LONG)), content_encoding="gzip"),
    ],
    ids=["with a length", "in chunks", "unlabelled", "a stream", "compressed"],
)
async def test_a_reply_far_longer_than_was_asked_for_is_not_held(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(http_model, "REPLY_BYTES_LEAST", 1_000)
    most = 1_000 + len(BODY) + 64 * 16
    async with connect(always(answer)) as (_, model):
        failure = await failed(model, output_tokens_max=16)
    words = f"the answer is longer than {most:,} bytes, far more than its max_tokens can come to"
    assert failure.kind is FailureKind.UNREADABLE and words in failure.message
    async with connect(always(answer)) as (_, model):
        outcome = await model.call(BODY, output_tokens_max=6_000, timeout_s=PATIENCE_S)
    assert not isinstance(outcome, Failure) or "longer than" not in outcome.message


@pytest.mark.parametrize(
    ("fields", "streamed", "most"),
    [
        ({}, False, REPLY_BYTES_LEAST + 64 * 100),
        ({}, True, REPLY_BYTES_LEAST + 1_024 * 100),
        ({"logprobs": True}, False, REPLY_BYTES_LEAST + 4_096 * 100),
        ({"prompt_logprobs": 5}, False, BODY_BYTES_MAX),
        ({"modalities": ["text", "audio"]}, False, BODY_BYTES_MAX),
    ],
)
async def test_the_bound_of_a_reply_follows_what_was_asked(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], streamed: bool, most: int
) -> None:
    seen: list[int] = []
    body = compact(json.loads(BODY) | fields)
    async with connect(always(http(MESSAGE)), stream_above_tokens=50 if streamed else 500) as (_, model):
        await model.prepare()
        send = model._transport.send
        monkeypatch.setattr(model._transport, "send", lambda *a, **k: seen.append(k["bytes_max"]) or send(*a, **k))
        await model.call(body, output_tokens_max=100, timeout_s=PATIENCE_S)
    assert seen and most <= seen[0] <= min(BODY_BYTES_MAX, most + len(body) + 20)


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
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(server.left.wait(), PATIENCE_S)
            # With room for one connection, the next call works only if the cancelled one gave it back.
            assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S), Reply)


async def test_after_close_a_call_fails_and_nothing_is_sent(connect: Connect) -> None:
    async with connect(always(http(MESSAGE))) as (server, model):
        await model.close()
        failure = await failed(model)
        await model.close()
    assert (failure.kind, failure.sent, server.asked) == (FailureKind.TRANSIENT, False, [])


async def test_a_longer_timeout_allows_a_stream_a_longer_silence(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that queues sends nothing of a stream until its turn."""
    silences: list[float] = []

    async def sent(form: object, body: bytes, timeout_s: float, silence_s: float, progress: object, bytes_max: int) -> Failure:
        silences.append(silence_s)
        return Failure(FailureKind.TIMED_OUT, "")

    async with connect(always(http(MESSAGE))) as (_, model):
        monkeypatch.setattr(model, "_sent", sent)
        usual_s = attempt_timeout_s(TimeoutPolicy(), 10_000, len(BODY))
        for factor in (0.5, 1.0, 3.0):
            await model.call(BODY, output_tokens_max=10_000, timeout_s=factor * usual_s)
    assert silences == pytest.approx([silences[0], silences[0], 3 * silences[0]])
    assert 60 < silences[0] < 65


@pytest.mark.parametrize("room", range(80, 125, 4))
async def test_a_key_in_an_error_that_is_cut_for_its_length_leaves_no_part_of_itself(connect: Connect, room: int) -> None:
    page = http(f"<html><body>{'x' * room} {KEY} {'y' * 500}</body></html>".encode(), 404, "text/html")
    async with connect(always(page)) as (_, model):
        failure = await failed(model)
    assert not any(KEY[:length] in failure.message for length in range(9, len(KEY)))
