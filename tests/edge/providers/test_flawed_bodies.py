"""Answers with a flaw beside them: each is kept, or refused by its own kind, and none is paid more than twice."""

from __future__ import annotations

import asyncio
import copy
import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.providers.messages.client import AnthropicModel
from actors.providers.messages.response import read_message
from actors.providers.transport.body import UnreadableAnswer
from cortex.journal import codec
from cortex.state import events
from cortex.values.bounds.counts import COUNT_MAX
from cortex.values.endings import Ending
from cortex.values.reply import Reply, text_of
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy, may_retry
from tests.cli.cli_runner import cortex
from tests.edge.providers.flawed_bodies import BOM, EVENTS, KNOWN, PLAIN, STREAMS, TEXT, Shape
from tests.edge.support.scripted_http_server import (
    LATE_S,
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
from tests.edge.support.wired_model import BODY, CREDENTIAL, ROADS, Connect, always, connected
from tests.support.patience import PATIENCE_S
from tests.support.toy_provider.server import serving

__all__ = ["cortex"]

connect = pytest.fixture(params=[road for road in ROADS if road != "told"])(connected)
SHAPES = [*PLAIN, *STREAMS]


def test_the_table_is_large_and_each_shape_has_its_source() -> None:
    assert len(SHAPES) >= 100 and len({(each.name, each.streams) for each in SHAPES}) == len(SHAPES)
    assert all("#" in each.source or "RFC" in each.source or "http" in each.source or " " in each.source for each in SHAPES)


@pytest.mark.parametrize("shape", SHAPES, ids=[f"{'stream' if each.streams else 'plain'}: {each.name}" for each in SHAPES])
async def test_each_shape_is_kept_or_refused(connect: Connect, shape: Shape) -> None:
    async with connect(always(shape.answer)) as (server, model):
        outcome = await model.call(BODY, output_tokens_max=9_000 if shape.streams else 16, timeout_s=PATIENCE_S)
    assert len(server.asked) == 1
    if shape.text is None:
        assert not isinstance(outcome, Reply)
        assert outcome.kind is shape.kind and outcome.status == 200
        came = shape.kind is FailureKind.UNREADABLE or (shape.streams and shape.kind is FailureKind.OVERLOADED)
        assert outcome.answer_came is came
        return
    assert isinstance(outcome, Reply), outcome
    assert (outcome.text, outcome.usage, outcome.ending) == (shape.text, shape.usage, shape.ending)
    body = msgspec.json.decode(outcome.body)  # what a results file holds
    assert (body["type"], body["role"]) == ("message", "assistant") and text_of(outcome.body) == shape.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = [(name,) for name in MESSAGE if name != "content"] + [("usage", name) for name in MESSAGE["usage"]]
MISSING = object()


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(PLACES), JSON | st.just(MISSING), min_size=1, max_size=4), st.data())
def test_no_change_beside_the_content_loses_an_answer_or_has_it_paid_more_than_twice(
    changes: dict[tuple[str, ...], Any], data: st.DataObject
) -> None:
    body: dict[str, Any] = copy.deepcopy(MESSAGE)
    for (*outer, name), value in sorted(changes.items(), key=lambda each: len(each[0]), reverse=True):
        holder = body[outer[0]] if outer else body
        if value is MISSING:
            holder.pop(name, None)
        else:
            holder[name] = value
    names = data.draw(st.permutations(list(body)))
    raw = json.dumps({name: body[name] for name in names}).encode()
    before, behind = data.draw(st.sampled_from([(b"", b""), (BOM, b""), (b" \n", b"\n{}"), (b"", b"[DONE]")]))
    try:
        reply = read_message(before + raw + behind)
    except UnreadableAnswer:
        assert body["role"] in ("user", "system")  # an echo of the request
        return
    assert reply.text == TEXT and 0 <= reply.usage.output_tokens <= COUNT_MAX
    assert text_of(reply.body) == TEXT and codec.decode_batch(codec.encode_batch([answered(reply)]))


def answered(reply: Reply) -> events.Answered:
    return events.Answered(1, "0", 1, b"h", reply)


@pytest.mark.parametrize("kind", FailureKind)
def test_an_answer_that_cannot_be_used_is_paid_at_most_twice(kind: FailureKind) -> None:
    failure = Failure(kind, "x", 200, answer_came=True)
    assert not may_retry(RetryPolicy(), failure, 2, 0, 10**6, paid=2).again


@pytest.mark.parametrize(
    ("answer", "streams"),
    [
        ([*http(MESSAGE, content_length="900"), Step.CUT], False),
        ([*http(MESSAGE, content_length="900"), Step.LATE], False),
        ([*chunked(compact(MESSAGE), "application/json", end=False), Step.CUT], False),
        ([*chunked(compact(MESSAGE), "application/json", end=False), Step.RESET], False),
        ([*chunked(streamed(EVENTS[:-1]), end=False), Step.CUT], True),
        ([*chunked(streamed(EVENTS[:-1]), end=False), Step.LATE], True),
    ],
)
async def test_an_answer_is_kept_whose_connection_ends_badly_behind_it(answer: Answer, streams: bool) -> None:
    async with scripted(always(answer)) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        outcome = await model.call(BODY, output_tokens_max=9_000 if streams else 16, timeout_s=0.9 * LATE_S)
        await model.close()
    assert isinstance(outcome, Reply), outcome
    assert (outcome.text, outcome.usage, outcome.ending) == (TEXT, KNOWN, Ending.WHOLE)


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[Sequence[Shape]], Path]:
    def made(shapes: Sequence[Shape]) -> Path:
        path = tmp_path / "in.csv"
        path.write_text("id,text\n" + "".join(f"r{number},shape {number}.\n" for number in range(len(shapes))))
        return path

    return made


def test_a_table_of_flawed_answers_is_answered_and_charged_at_the_worst(
    cortex: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [each for each in SHAPES if each.ending is Ending.WHOLE and each.text]
    shapes = [each for each in kept if each.usage.unknown][:20] + [each for each in kept if not each.usage.unknown][:10]
    asked, done = _asked_of(cortex, rows(shapes), shapes, monkeypatch, "--max-output-tokens", 16)
    assert done.code == 0, done.err
    with Path("out.csv").open() as file:
        answers = [row["answer"] for row in csv.DictReader(file)]
    assert sorted(answers) == sorted(str(each.text) for each in shapes) and len(answers) == 30
    assert sum(asked.values()) == 30 and done.last["failures"] == {}
    worst = 20 * (16 * 5 + 60) / 1e6  # at the price of claude-haiku-4-5; the bound of a prompt is some 60 tokens
    assert worst / 2 < done.last["cost_assumed_usd"] < worst * 3 and done.last["cost_usd"] > 0
    assert "20 replies without a token count" in done.err
    assert "attempts without a reported cost" in done.err and "no reply" not in done.err
    said = cortex("inspect", "j", "r0").out
    assert "no token count: charged at its worst case" in said
    assert cortex("export", "j", "-o", "calls.csv").code == cortex("report", "j", "-o", "report.html").code == 0
    with Path("calls.csv").open() as file:
        counts = [row["input_tokens"] for row in csv.DictReader(file)]
    assert sorted(counts) == [""] * 20 + ["10"] * 10
    assert "assumed" in Path("report.html").read_text() and cortex("replay", "j").code == 0


def test_no_answer_is_paid_more_than_twice(cortex: Any, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [each for each in SHAPES if each.text is not None or each.kind is FailureKind.UNREADABLE]
    shapes = [each for each in shapes if "pings" not in each.name]  # that one keeps its connection
    asked, done = _asked_of(cortex, rows(shapes), shapes, monkeypatch, "--max-output-tokens", 9_000)
    refused = [each for each in shapes if each.text is None]
    assert max(asked.values()) == 2 and sum(asked.values()) == len(shapes) + len(refused)
    with Path("out.csv").open() as file:
        errors = [row["error"] for row in csv.DictReader(file)]
    said = ("no message", "cut", "no JSON")
    assert len(errors) == len(shapes) and sum(any(word in each for word in said) for each in errors) >= len(refused)
    assert done.last["rows_succeeded"] == len([each for each in shapes if each.text and each.ending is not Ending.CUT])
    assert done.last["failures"] == {"unreadable": 2 * len(refused)} and "breaker" not in done.err


def test_a_server_of_another_api_ends_the_job_before_every_row_is_paid(
    cortex: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [Shape("another API", "", http({"status": "ok"}), None)] * 200
    asked, done = _asked_of(cortex, rows(shapes), shapes, monkeypatch, "--concurrency", 4, latency_s=0.1)
    assert done.code == 3, done.err
    assert max(asked.values()) <= 2 and sum(asked.values()) < 100
    assert "goals were all answered with what cannot be read: the answer is no message: an object with status" in done.err
    assert "see that --base-url names a server that speaks the Messages API" in done.err


def _asked_of(
    cortex: Any, path: Path, shapes: Sequence[Shape], monkeypatch: pytest.MonkeyPatch, *options: object,
    latency_s: float = 0.0,
) -> tuple[Counter[int], Any]:  # fmt: skip
    """Return how often each row of a table was asked, and the outcome of its job."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    asked: Counter[int] = Counter()

    async def script(request: Asked) -> Answer:
        if not request.target.endswith("/messages"):
            return http(b"", 404)
        number = int(re.findall(r"shape (\d+)\.", request.body.decode())[0])
        asked[number] += 1
        await asyncio.sleep(latency_s)
        return shapes[number].answer

    with serving(script) as server:
        done = cortex(
            "batch", path, "--prompt", "{{text}}", "--id", "id", "-o", "out.csv", "--job", "j", "--json", *options,
            "--model", "claude-haiku-4-5", "--price-as", "claude-haiku-4-5", "--max-cost", 100, "--base-url", server.url,
        )  # fmt: skip
    return asked, done
