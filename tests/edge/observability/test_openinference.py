"""What viewers that read OpenInference get: kinds always, cost where a price is known, texts where they were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import cortex
from actors.observability.base import conventions
from actors.observability.base.conventions import describe_span, job_of
from actors.observability.base.openinference import VALUE_CHARS_MAX
from actors.observability.base.settings import CHARS_MAX
from actors.observability.wiring import of_environ
from cortex.programs.batch import Batch
from cortex.tracing.spans import Span, SpanIds, SpanKind
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.in_process_job import PRICE, FunctionModel, ListSource, Run, body, reply, rows
from tests.support.otlp_collector import HttpCollector, attributes, well_formed

SAMPLED = {"OTEL_TRACES_SAMPLER": "always_on"}
TOLD = SAMPLED | {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}
USAGE = Usage(1_000, 100, 200, 30)
COST_USD = (1_000 * 3 + 100 * 15 + 200 * 3 + 30 * 3.75) / 1e6
VALUES = ("input.value", "input.mime_type", "output.value", "output.mime_type")


async def told(
    folder: Path, collector: HttpCollector, environ: dict[str, str], model: FunctionModel | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Run a job and return the attributes of the spans that the collector got, with their names."""
    if "program" not in options:
        options = {"source": ListSource(rows(2)), "program": Batch()} | options
    run = Run(folder, model or well(), telemetry=of_environ(collector.environ() | environ), **options)
    await run.to_end()
    assert run.facts["outcome"] == "complete", run.facts
    well_formed(collector)
    return [{"name": span.name} | attributes(span) for span in collector.spans]


def named(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"].partition(" ")[0] == name]


@pytest.fixture
def collector():
    with HttpCollector() as made:
        yield made


def well() -> FunctionModel:
    return FunctionModel(lambda _: reply("ok", USAGE), endpoint="http://a.example")


def lost_once() -> FunctionModel:
    """Return a model that fails once, so that a call is no single exchange: the general encoder writes it."""
    model = FunctionModel(lambda _: lost() if len(model.asked) == 1 else reply("ok", USAGE), endpoint="http://a.example")
    return model


def lost() -> Failure:
    return Failure(FailureKind.TRANSIENT, "", status=500)


async def test_each_span_has_a_kind_and_no_text(tmp_path, collector):
    spans = await told(tmp_path, collector, SAMPLED)
    kinds = {span["name"].partition(" ")[0]: span["openinference.span.kind"] for span in spans}
    assert kinds == {
        "goal": "CHAIN", "select": "PROMPT", "chat": "LLM", "attempt": "CHAIN", "absorb": "CHAIN",
        "invoke_workflow": "CHAIN",
    }  # fmt: skip
    assert not [name for span in spans for name in VALUES if name in span]


@pytest.mark.parametrize("model", [well, lost_once])
@pytest.mark.parametrize("environ", [SAMPLED, TOLD], ids=["sampled", "told"])
async def test_a_call_has_its_cost_and_nothing_else_has(tmp_path, collector, model, environ):
    spans = await told(tmp_path, collector, environ, model(), price=PRICE)
    for call in named(spans, "chat"):
        assert call["llm.cost.total"] == call["gen_ai.usage.cost"] == pytest.approx(COST_USD)
        assert (call["llm.token_count.prompt"], call["llm.token_count.total"]) == (1_230, 1_330)
        assert call["llm.token_count.prompt_details.cache_read"] == call["gen_ai.usage.cache_read.input_tokens"] == 200
        assert call["llm.token_count.prompt_details.cache_write"] == 30
    assert [span["name"] for span in spans if "llm.cost.total" in span] == ["chat m"] * 2
    (job,) = named(spans, "invoke_workflow")
    assert job["cortex.cost.known_usd"] == pytest.approx(2 * COST_USD)


@pytest.mark.parametrize("usage", [USAGE, Usage(unknown=True)], ids=["no price", "no usage"])
async def test_a_cost_that_is_not_known_is_not_told(tmp_path, collector, usage):
    model = FunctionModel(lambda _: reply("ok", usage), endpoint="http://a.example")
    spans = await told(tmp_path, collector, SAMPLED, model, price=PRICE if usage.unknown else None)
    assert named(spans, "chat") and not [span for span in spans if "llm.cost.total" in span]


@pytest.mark.parametrize("model", [well, lost_once])
async def test_a_row_has_the_text_of_its_question_and_of_its_answer_where_texts_are_told(tmp_path, collector, model):
    spans = await told(tmp_path, collector, TOLD, model())
    for span in named(spans, "goal") + named(spans, "chat"):
        found = {name: span[name] for name in VALUES}
        assert found.pop("input.value") in ("row 0", "row 1")
        assert found == {"input.mime_type": "text/plain", "output.value": "ok", "output.mime_type": "text/plain"}
    assert not [name for span in named(spans, "attempt") + named(spans, "select") for name in VALUES if name in span]


async def test_a_job_that_keeps_no_text_tells_none(tmp_path, collector):
    spans = await told(tmp_path, collector, TOLD, keeps_text=False)
    assert spans and not [name for span in spans for name in VALUES if name in span]
    assert not [span for span in spans if "gen_ai.input.messages" in span]


MALFORMED: list[tuple[str, str]] = [
    ('[{"role":"user","content":[{"type":"text","text":["x"]}]}]', '["x"]'),
    ('[{"role":"user","content":[{"type":"text","text":{"a":1}}]}]', '{"a":1}'),
    ('[{"role":"user","content":[{"type":"text","text":7}]}]', "7"),
    ('[{"role":"user","content":[{"type":"text","text":null},{"type":"text","text":"x"}]}]', "nullx"),
    ('[{"role":["user"],"content":[{"type":["text"],"text":"x"}]}]', '[{"type":["text"]}]'),
    ('[{"role":"user","content":[{"type":"thinking","thinking":[1]}]}]', '[{"type":"reasoning","content":"[1]"}]'),
    ('[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":7}]}]}]',
     '[{"type":"tool_call_response","id":"t","response":[{"type":7}]}]'),
    # No form of the Messages API: no text.
    *((text, "") for text in ('[{"role":"user","content":[{"type":"text"}]}]', '[{"role":"user","content":{"type":"text"}}]',
                              '[{"role":"user","content":7}]', '[{"role":"user","content":null}]', '["x"]', '"x"', "7", "{}", "[]")),
    (f'[{{"role":"user","content":[{{"type":"tool_use","id":"t","name":"f","input":{"[" * 900}{"]" * 900}}}]}}]', ""),
]  # fmt: skip
"""Messages of a body that is not in the form of the Messages API, and the text of its span; empty: any, or none."""


@pytest.mark.parametrize("limit", [CHARS_MAX, 1])
@pytest.mark.parametrize(("messages", "text"), MALFORMED)
def test_a_text_of_another_type_is_told_as_json(messages: str, text: str, limit: int):
    job = job_of("j", SpanIds.of("j", 1.0), chars_max=limit)
    system = "" if limit == 1 else ',"system":[{"type":"text","text":{}}]'
    facts = {"goal": 1, "status": "ok", "prompt": f'{{"messages":{messages}{system}}}'.encode()}
    facts["reply"] = b'{"stop_reason":[],"content":[{"type":"text","text":[1]}]}'
    span = describe_span(Span(SpanKind.GOAL, 1, 1, 0, "g", 0.0, 1.0, facts=facts), job)
    told = dict(span.attributes)
    assert not text or told["input.value"] in ([text] if limit > 1 else ["…", text])
    assert told["output.value"] == ("[1]" if limit > 1 else "…")


@pytest.mark.parametrize("model", [well, lost_once])
async def test_a_malformed_row_does_not_end_the_tracing_of_its_job(tmp_path, collector, caplog, model):
    source = ListSource([msgspec.structs.replace(rows(1)[0], key=f"r{i}", body=f'{{"messages":{told}}}'.encode())
                         for i, (told, _) in enumerate(MALFORMED)])  # fmt: skip
    spans = await told(tmp_path, collector, TOLD, model(), source=source, program=Batch())
    asked = [goal["cortex.row.key"] for goal in named(spans, "goal") if "error.type" not in goal]
    assert asked and {span["cortex.sample"] for span in named(spans, "chat")} >= set(asked)
    assert len(named(spans, "goal")) == len(MALFORMED)
    assert len(named(spans, "invoke_workflow")) == 1
    warned = [each for each in caplog.records if each.levelname == "WARNING"]
    assert {each.name for each in warned} <= {"cortex.job"}, "of the rows themselves, and nothing of their tracing"


@pytest.mark.parametrize("model", [well, lost_once])
@pytest.mark.parametrize("exporters", ["otlp", "otlp,file"])
async def test_a_span_that_cannot_be_described_is_dropped_alone(tmp_path, collector, caplog, monkeypatch, model, exporters):
    """The warning has no text of the error, which may be that of a row."""
    absorb = conventions._DESCRIBE[SpanKind.ABSORB]
    traces: list[int] = []

    def fails(span: Span, facts: dict[str, Any]) -> Any:
        traces.append(span.trace)
        if span.trace == traces[0]:
            raise LookupError("row 1")
        return absorb(span, facts)

    monkeypatch.setitem(conventions._DESCRIBE, SpanKind.ABSORB, fails)
    environ = TOLD | {"OTEL_TRACES_EXPORTER": exporters}
    spans = await told(tmp_path, collector, environ, model(), source=ListSource(rows(3)))
    assert [len(named(spans, name)) for name in ("chat", "goal", "absorb", "invoke_workflow")] == [3, 3, 2, 1]
    assert [each.message for each in caplog.records if each.name == "cortex.traces"] == [
        "a span of kind ABSORB was dropped: LookupError while describing it", "1 spans were dropped",
    ]  # fmt: skip


@cortex.tool(repeatable=True)
def weather(place: str) -> str:
    return f"rain in {place}"


@cortex.flow
async def looks(ctx: cortex.Context, place: str = "Kiel") -> str:
    """Looks, without a call."""
    return str(await ctx.run(weather, place=place))


@pytest.mark.parametrize("environ", [SAMPLED, TOLD], ids=["sampled", "told"])
async def test_a_tool_has_its_arguments_and_its_result_where_texts_are_told(tmp_path, collector, environ):
    spans = await told(tmp_path, collector, environ, program=looks())
    (used,) = named(spans, "execute_tool")
    assert (used["openinference.span.kind"], used["tool.name"]) == ("TOOL", used["gen_ai.tool.name"])
    found = {name: used.get(name) for name in VALUES}
    assert found == dict.fromkeys(VALUES) if environ is SAMPLED else {
        "input.value": '{"place":"Kiel"}', "input.mime_type": "application/json", "output.value": '"rain in Kiel"',
        "output.mime_type": "application/json",
    }  # fmt: skip
    assert any("rain in Kiel" in goal.get("output.value", "") for goal in named(spans, "goal")) == (environ is TOLD)


@pytest.mark.parametrize("limit", [0, 20])
async def test_texts_are_as_long_as_the_settings_allow(tmp_path, collector, limit):
    long = "x" * (VALUE_CHARS_MAX + 1)
    model = FunctionModel(lambda _: said(long), endpoint="http://a.example")
    environ = TOLD | ({"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": str(limit)} if limit else {})
    source = ListSource([msgspec.structs.replace(rows(1)[0], body=body(long))])
    spans = await told(tmp_path, collector, environ, model, source=source, program=Batch())
    (call,), (row,) = named(spans, "chat"), named(spans, "goal")
    assert len(call["input.value"]) == len(row["input.value"]) == len(row["output.value"]) == limit or VALUE_CHARS_MAX
    (question,) = msgspec.json.decode(call["gen_ai.input.messages"])
    assert len(question["parts"][0]["content"]) == limit or len(long)
    (answer,) = msgspec.json.decode(call["gen_ai.output.messages"])
    text, use = answer["parts"]
    assert len(text["content"]) == limit or len(long)
    assert use["arguments"] == ('{"a":"' + "x" * (limit - 7) + "…" if limit else {"a": long})


def said(text: str) -> Reply:
    blocks = [{"type": "text", "text": text}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": text}}]
    return Reply(msgspec.json.encode({"content": blocks, "stop_reason": "end_turn"}), "end_turn", "m", USAGE)
