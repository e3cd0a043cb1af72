"""What a collector receives of a job: over HTTP and gRPC, whole and in the right shape; never a key, nor what was said."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cortex
from actors.observability.traces.export_queue import ExportQueue
from actors.observability.traces.exporters import CollectorExporter, traces_path
from actors.observability.wiring import of_environ
from actors.ports.model import TRACEPARENT
from cortex.programs.batch import Batch
from cortex.state.changes import Change, Resolve, Spawn
from cortex.state.state import Goal, State
from cortex.values.limits import Limits
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, reply, rows
from tests.support.otlp_collector import GrpcCollector, HttpCollector, Received, attributes, well_formed
from tests.support.patience import PATIENCE_S
from tests.support.state_machine_harness import Flat

ALL = {"OTEL_TRACES_SAMPLER": "always_on"}
QUICK = Limits(retry=RetryPolicy(base_s=0.01, cap_s=0.02))


async def sent(
    folder: Path, environ: dict[str, str], model: FunctionModel | None = None, count: int = 5, **options: Any
) -> Run:
    options.setdefault("limits", QUICK)
    run = Run(
        folder, model or FunctionModel(endpoint="http://a.example:81"), source=ListSource(rows(count)), program=Batch(),
        telemetry=of_environ(environ), **options,
    )  # fmt: skip
    return await run.to_end()


@pytest.fixture(params=[HttpCollector, GrpcCollector])
def collector(request):
    with request.param() as made:
        yield made


async def test_a_row_is_a_trace_of_its_own_and_the_job_another(tmp_path, collector):
    run = await sent(tmp_path, collector.environ() | ALL)
    assert run.facts["outcome"] == "complete"
    well_formed(collector)
    traces = collector.traces
    assert len(traces) == 6
    job = next(spans for spans in traces.values() if len(spans) == 1)[0]
    assert job.name == "invoke_workflow batch"
    facts = attributes(job)
    assert (facts["cortex.outcome"], facts["cortex.calls"], facts["cortex.rows.succeeded"]) == ("complete", 5, 5)
    assert (facts["gen_ai.operation.name"], facts["gen_ai.workflow.name"]) == ("invoke_workflow", "batch")
    tops = {link.trace_id for link in job.links}
    assert tops == set(traces) - {job.trace_id}
    for trace in tops:
        spans = {span.name: span for span in traces[trace]}
        assert set(spans) == {"goal row", "select", "chat m", "attempt", "absorb"}
        top, call = spans["goal row"], spans["chat m"]
        assert not top.parent_span_id
        assert [link.span_id for link in top.links] == [job.span_id]
        for name in ("select", "chat m", "absorb"):
            assert spans[name].parent_span_id == top.span_id
        assert spans["attempt"].parent_span_id == call.span_id
        assert spans["select"].end_time_unix_nano <= call.start_time_unix_nano
        assert call.start_time_unix_nano <= spans["attempt"].start_time_unix_nano
        assert spans["attempt"].end_time_unix_nano <= call.end_time_unix_nano <= spans["absorb"].start_time_unix_nano
        assert spans["absorb"].end_time_unix_nano <= top.end_time_unix_nano
        assert attributes(call) == {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "m",
            "gen_ai.request.max_tokens": 8, "gen_ai.response.model": "m", "server.address": "a.example",
            "server.port": 81, "gen_ai.response.finish_reasons": ["end_turn"], "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.output_tokens": 2, "cortex.job.id": "j", "session.id": "j", "cortex.attempts": 1,
            "cortex.goal.id": attributes(call)["cortex.goal.id"], "cortex.sample": attributes(call)["cortex.sample"],
            "openinference.span.kind": "LLM", "llm.model_name": "m", "llm.system": "anthropic",
            "llm.token_count.prompt": 10, "llm.token_count.completion": 2, "llm.token_count.total": 12,
            "llm.finish_reason": "end_turn",
        }  # fmt: skip
        assert attributes(spans["attempt"])["cortex.branch"] == "branch:0"
    assert {attributes(span)["cortex.row.key"] for span in collector.named("goal row")} == {f"r{i}" for i in range(5)}
    assert collector.resources[0]["service.name"] == "cortex"


async def test_one_inference_span_a_call_however_often_it_was_tried(tmp_path, collector):
    model = FunctionModel(lambda body: broken() if len(model.asked) <= 3 else reply("ok"), endpoint="http://a.example")
    await sent(tmp_path, collector.environ() | ALL, model, count=1)
    well_formed(collector)
    (call,) = collector.named("chat m")
    attempts = sorted(collector.named("attempt"), key=lambda span: span.start_time_unix_nano)
    assert [attributes(span).get("error.type") for span in attempts] == ["transient"] * 3 + [None]
    assert [span.status.code for span in attempts] == [2, 2, 2, 0]
    assert {span.parent_span_id for span in attempts} == {call.span_id}
    assert attributes(call)["cortex.attempts"] == 4
    assert not call.status.code
    assert len(collector.named("select")) == 1
    assert [attributes(span).get("http.response.status_code") for span in attempts] == [500] * 3 + [None]


def broken() -> Failure:
    return Failure(FailureKind.TRANSIENT, "the prompt said row 0", status=500)


class Parent(Flat, frozen=True):
    """Each goal is answered by a job of its own, and two of them at once by several calls."""

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open():
            yield Spawn(goal, Flat(texts=("x", "y")))

    def absorbed(self, k: State, goal: Goal, value: Any) -> Iterable[Change]:
        yield Resolve(goal, value)


async def test_a_child_job_hangs_below_the_goal_that_launched_it(tmp_path, collector):
    model = FunctionModel(endpoint="http://a.example")
    run = Run(tmp_path, model, program=Parent(texts=("a", "b")), telemetry=of_environ(collector.environ() | ALL))
    assert (await run.to_end()).facts["outcome"] == "complete"
    well_formed(collector)
    traces = collector.traces
    assert {attributes(span)["session.id"] for spans in traces.values() for span in spans} == {"j"}
    own = [span for span in collector.named("invoke_workflow") if attributes(span)["cortex.job.id"] == "j"]
    children = [span for span in collector.named("invoke_workflow") if span not in own]
    assert len(own) == 1 and not own[0].parent_span_id and len(children) == 2
    for child in children:
        launch = next(span for span in traces[child.trace_id] if span.span_id == child.parent_span_id)
        assert launch.name == "child Flat"
        goal = next(span for span in traces[child.trace_id] if span.span_id == launch.parent_span_id)
        assert goal.name == "goal text" and attributes(goal)["cortex.job.id"] == "j"
        assert launch.start_time_unix_nano <= child.start_time_unix_nano
        assert child.end_time_unix_nano <= launch.end_time_unix_nano
        at = (child.trace_id, child.span_id)
        below = {s.trace_id for s in collector.named("goal") for link in s.links if (link.trace_id, link.span_id) == at}
        assert len(below) == 2, "its own goals are traces of their own, linked to it"


@cortex.tool(repeatable=True)
def weather(place: str) -> str:
    return f"rain in {place}"


@cortex.flow
async def looks(ctx: cortex.Context, place: str = "Kiel") -> str:
    """Asks, looks, asks three at once, and answers."""
    await ctx.ask(f"where is {place}?")
    answer = await ctx.run(weather, place=place)
    await ctx.join(*[ctx.ask(f"{answer} {n}") for n in range(3)])
    return str(answer)


async def test_a_tool_and_a_join_have_spans_of_their_own(tmp_path, collector):
    model = FunctionModel(endpoint="http://a.example")
    run = Run(tmp_path, model, program=looks(), telemetry=of_environ(collector.environ() | ALL))
    assert (await run.to_end()).facts["outcome"] == "complete", run.facts
    well_formed(collector)
    (used,) = collector.named("execute_tool")
    facts = attributes(used)
    assert used.name.endswith("weather") and facts["gen_ai.operation.name"] == "execute_tool"
    assert facts["gen_ai.tool.name"] == "weather" and facts["cortex.worker"].startswith("worker:")
    (join,) = collector.named("join")
    goals = {span.span_id: span for span in collector.named("goal")}
    assert len(join.links) == 3 and all(link.span_id in goals for link in join.links)
    assert join.start_time_unix_nano <= min(goals[link.span_id].start_time_unix_nano for link in join.links)
    assert all(link.trace_id == join.trace_id for link in join.links)


async def test_tokens_of_the_prompt_are_those_of_the_cache_too(tmp_path):
    from cortex.values.reply import Usage

    with HttpCollector() as collector:
        model = FunctionModel(lambda body: reply("ok", Usage(10, 3, 200, 30)), endpoint="http://a.example")
        await sent(tmp_path, collector.environ() | ALL, model, count=1)
        (call,) = collector.named("chat")
        facts = attributes(call)
        assert facts["gen_ai.usage.input_tokens"] == 240
        assert facts["gen_ai.usage.cache_read.input_tokens"] == 200
        assert facts["gen_ai.usage.cache_creation.input_tokens"] == 30


@pytest.mark.parametrize("told", ["", "NO_CONTENT", "EVENT_ONLY", "SPAN_ONLY"])
async def test_what_was_said_is_told_only_where_it_was_asked_for(tmp_path, told):
    def answer(body: bytes) -> Reply | Failure:
        return broken() if len(model.asked) == 1 else reply("a private answer")

    model = FunctionModel(answer, endpoint="http://a.example")
    with HttpCollector() as collector:
        environ = collector.environ() | ALL | {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": told}
        await sent(tmp_path, environ | {"OTEL_TRACES_EXPORTER": "otlp,file"}, model, count=2)
        seen = b"".join(collector.requests) + traces_path(tmp_path, "j").read_bytes()
        for text in (b"row 0", b"row 1", b"private answer"):
            assert (text in seen) == (told == "SPAN_ONLY"), text
        if told == "SPAN_ONLY":
            facts = attributes(collector.named("chat")[0])
            (asked,) = msgspec.json.decode(facts["gen_ai.input.messages"])
            assert asked["role"] == "user" and asked["parts"][0]["content"].startswith("row ")
            (answered,) = msgspec.json.decode(facts["gen_ai.output.messages"])
            assert answered == {
                "role": "assistant", "parts": [{"type": "text", "content": "a private answer"}],
                "finish_reason": "end_turn",
            }  # fmt: skip


async def test_headers_go_with_every_export_and_nowhere_else(tmp_path, collector, caplog):
    environ = collector.environ() | ALL | {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=top%20secret"}
    await sent(tmp_path, environ)
    assert all(headers["x-key"] == "top secret" for headers in collector.headers)
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept and not any(b"top secret" in blob for blob in [*kept, *collector.requests])
    assert "top secret" not in caplog.text


async def test_where_nothing_is_said_spans_are_in_the_state_folder_and_nobody_else_reads_them(tmp_path):
    await sent(tmp_path, {})
    path = traces_path(tmp_path, "j")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    found = Received().read(path)
    well_formed(found)
    assert len(found.traces) == 6


@pytest.mark.parametrize("environ", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"},
                                     {"OTEL_TRACES_SAMPLER": "always_off"}])  # fmt: skip
async def test_switched_off_there_is_nothing(tmp_path, environ):
    await sent(tmp_path, environ)
    assert not (tmp_path / "traces").exists()


async def test_the_file_and_the_wire_say_the_same(tmp_path):
    with HttpCollector() as collector:
        await sent(tmp_path, collector.environ() | ALL | {"OTEL_TRACES_EXPORTER": "otlp,file"})
        found = Received().read(traces_path(tmp_path, "j"))
        assert found.traces == collector.traces
        assert found.resources[0] == collector.resources[0]


class Waits(FunctionModel):
    """Answers some calls, by their numbers, once something holds."""

    def __init__(self, conditions: dict[int, Callable[[], bool]]) -> None:
        super().__init__(endpoint="http://a.example")
        self.conditions = conditions

    async def call(self, body: bytes, **more: Any) -> Any:
        holds = self.conditions.get(len(self.asked) + 1, lambda: True)
        answer = await super().call(body, **more)
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - a thread has no event of ours
                await asyncio.sleep(0.001)
        return answer


async def test_a_collector_that_is_down_is_said_once(tmp_path, caplog):
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "500"}
    environ |= ALL | {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=top-secret"}
    environ["OTEL_METRICS_EXPORTER"] = "none"  # they would be told of in a line of their own
    with caplog.at_level(logging.INFO):
        run = await sent(tmp_path, environ, count=200)
    assert run.facts["outcome"] == "complete" and run.facts["rows_succeeded"] == 200
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and r.name == "cortex.traces"]
    down = [line for line in warnings if "accepts no spans" in line]
    assert len(down) == 1, warnings
    assert "http://127.0.0.1:9/v1/traces" in down[0]
    assert len(warnings) == 2 and "spans were dropped" in warnings[1], warnings
    assert "top-secret" not in caplog.text


async def test_a_collector_that_does_not_answer_holds_nobody_up(tmp_path, monkeypatch):
    """Neither the calls nor the end of the job wait for the one request that is out all the time."""
    out, go = list[int](), threading.Event()

    def hangs(self: CollectorExporter, batches: Any) -> str:
        out.append(len(batches))
        go.wait(PATIENCE_S)
        return "no answer"

    monkeypatch.setattr(CollectorExporter, "export", hangs)
    monkeypatch.setattr(ExportQueue.flush, "__defaults__", (0.1,))
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_METRICS_EXPORTER": "none"}
    environ |= ALL | {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50", "OTEL_LOGS_EXPORTER": "none"}
    run = await sent(tmp_path, environ, Waits({200: lambda: bool(out)}), count=200)
    assert run.facts["outcome"] == "complete" and run.facts["rows_succeeded"] == 200
    assert len(out) == 1
    go.set()


async def test_a_collector_that_comes_back_is_told_again(tmp_path, caplog):
    def said(text: str) -> bool:
        return any(text in record.getMessage() for record in list(caplog.records))

    with HttpCollector(status=400) as collector:

        def comes_back() -> bool:
            if said("accepts no spans"):
                collector.status = 200
            return collector.status == 200

        model = Waits({4: comes_back, 8: lambda: said("accepts spans again")})
        environ = collector.environ() | ALL | {"OTEL_BSP_SCHEDULE_DELAY": "50"}
        limits = msgspec.structs.replace(QUICK, concurrency=1)
        await sent(tmp_path, environ, model, count=8, limits=limits)
        assert said("accepts spans again"), caplog.messages
        assert collector.named("goal row")


async def test_a_protocol_whose_package_is_missing_is_one_clear_line(tmp_path, caplog, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with GrpcCollector() as collector:
        run = await sent(tmp_path, collector.environ() | ALL)
    assert run.facts["outcome"] == "complete"
    parts = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert any("pip install 'cortex-bounded-calls[otlp-grpc]'" in line for line in parts), parts
    assert not any("Traceback" in line for line in parts)


@pytest.mark.parametrize("told", ["", "tracecontext,baggage"])
async def test_an_attempts_name_travels_to_the_provider_only_where_that_was_asked_for(tmp_path, collector, told):
    seen: list[str] = []

    def answer(body: bytes) -> Reply | Failure:
        seen.append(TRACEPARENT.get())
        return broken() if len(seen) == 1 else reply("ok")

    model = FunctionModel(answer, endpoint="http://a.example")
    await sent(tmp_path, collector.environ() | ALL | {"OTEL_PROPAGATORS": told}, model, count=3)
    if not told:
        assert set(seen) == {""}
        return
    attempts = {f"00-{s.trace_id.hex()}-{s.span_id.hex()}-01" for s in collector.named("attempt")}
    assert len(seen) == 4 and set(seen) == attempts


async def test_a_goal_that_calls_and_uses_tools_in_turn_is_an_agent(tmp_path):
    with HttpCollector() as collector:
        model = FunctionModel(endpoint="http://a.example")
        await Run(tmp_path, model, program=looks(), telemetry=of_environ(collector.environ() | ALL)).to_end()
        (agent,) = collector.named("invoke_agent")
        assert attributes(agent)["gen_ai.agent.name"] == agent.name.removeprefix("invoke_agent ")
        assert not agent.parent_span_id
