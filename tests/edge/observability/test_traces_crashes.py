"""After any death and resume nothing that a collector received is an orphan, and nothing was told twice as another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from actors.observability.wiring import of_environ
from cortex.programs.batch import Batch
from cortex.state.program import Program
from cortex.values.limits import Limits
from policies.decisions.trace_sampling import FIRST_SPANS
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy
from tests.edge.support.in_process_job import FunctionModel, ListSink, ListSource, Run, reply, rows
from tests.support.otlp_collector import HttpCollector, attributes, well_formed
from tests.support.sample_programs import Planner

LIMITS = Limits(retry=RetryPolicy(base_s=0.01, cap_s=0.02), concurrency=4, snapshot_events=13)
ENVIRON = {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_BSP_SCHEDULE_DELAY": "5", "OTEL_LOGS_EXPORTER": "none"}


class Life:
    """One incarnation after another over one folder, each killed after so many calls more."""

    def __init__(
        self, folder: Path, environ: dict[str, str], program: Program, rows_count: int, pause_s: float
    ) -> None:
        self.folder, self.environ, self.program = folder, environ | ENVIRON, program
        self.rows = rows_count
        self.sink, self.limits = ListSink(), LIMITS
        self.model = FunctionModel(self._answer, endpoint="http://a.example", pause_s=pause_s)

    def _answer(self, body: bytes) -> object:
        answer = msgspec.json.decode(body)["messages"][0]["content"]
        if str(answer).startswith("plan"):
            return reply("split:3" if str(answer).count(".") < 2 else "leaf")
        return reply("ok")

    def run(self) -> Run:
        source = ListSource(rows(self.rows)) if self.rows else None
        return Run(
            self.folder, self.model, source=source, sink=self.sink, program=self.program, limits=self.limits,
            telemetry=of_environ(self.environ),
        )  # fmt: skip

    async def killed_after(self, calls: int) -> None:
        begun = len(self.model.complete)
        await self.run().crash_after(lambda: len(self.model.complete) >= begun + calls)

    async def to_end(self) -> Run:
        return await self.run().to_end()


@pytest.mark.parametrize(
    "calls", [1, pytest.param(5, marks=pytest.mark.long), 9, pytest.param(17, marks=pytest.mark.long)]
)
async def test_rows_whose_channel_dies_and_comes_back(tmp_path, calls):
    with HttpCollector() as collector:
        life = Life(tmp_path, collector.environ(), Batch(), 40, 0.003)
        await life.killed_after(calls)
        await life.killed_after(calls)
        run = await life.to_end()
        assert run.facts["outcome"] == "complete"
        well_formed(collector)
        tops = collector.named("goal row")
        assert sorted(attributes(span)["cortex.row.key"] for span in tops) == sorted(f"r{i}" for i in range(40))
        assert len(collector.named("chat")) == 40, "one inference span a call, however often it was sent"
        lost = [s for s in collector.named("attempt") if attributes(s).get("error.type") == "lost"]
        assert len(collector.named("attempt")) == 40 + len(lost)
        (job,) = collector.named("invoke_workflow")
        assert attributes(job)["cortex.rows.succeeded"] == 40


@pytest.mark.parametrize(
    "calls", [1, pytest.param(4, marks=pytest.mark.long), 8, pytest.param(13, marks=pytest.mark.long)]
)
async def test_a_tree_whose_channel_dies_and_comes_back(tmp_path, calls):
    with HttpCollector() as collector:
        life = Life(tmp_path, collector.environ(), Planner(roots=("r",), deep=4), 0, 0.003)
        await life.killed_after(calls)
        await life.killed_after(calls)
        run = await life.to_end()
        assert run.facts["outcome"] == "complete", run.facts
        well_formed(collector)
        assert len(collector.named("goal node")) == 13
        (tree,) = [spans for spans in collector.traces.values() if any(s.name == "goal node" for s in spans)]
        assert len([s for s in tree if s.name == "goal node" and not s.parent_span_id]) == 1


async def test_a_job_that_rests_and_goes_on_tells_of_what_lived_twice_and_links_the_second_to_the_first(tmp_path):
    with HttpCollector() as collector:
        life = Life(tmp_path, collector.environ(), Batch(), 60, 0.02)
        run = life.run()
        task = asyncio.create_task(run.to_end())
        while len(life.model.complete) < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await run.driver.stop("drain", "me")
        assert (await task).facts["outcome"] == "partial"
        well_formed(collector)
        first = {s.span_id for s in collector.named("goal row") if attributes(s)["cortex.goal.status"] == "open"}
        assert first
        assert (await life.to_end()).facts["outcome"] == "complete"
        well_formed(collector)
        again = [s for s in collector.named("goal row") if "cortex.goal.part" in attributes(s)]
        assert {link.span_id for s in again for link in s.links} & first
        done = [s for s in collector.named("goal row") if attributes(s)["cortex.goal.status"] == "resolved"]
        assert len(done) == 60
        assert len(collector.named("invoke_workflow")) == 2


async def test_a_program_that_changed_begins_anew_and_leaves_no_orphan(tmp_path):
    with HttpCollector() as collector:
        life = Life(tmp_path, collector.environ(), Planner(roots=("r",), deep=4), 0, 0.003)
        await life.killed_after(6)
        life.program = Planner(roots=("r", "s"), deep=3)
        assert (await life.to_end()).facts["outcome"] == "complete"
        well_formed(collector)


async def test_what_was_out_is_not_told_again(tmp_path):
    with HttpCollector() as collector:
        life = Life(tmp_path, collector.environ(), Batch(), 10, 0.0)
        await life.to_end()
        count = len(collector.spans)
        await life.to_end()
        assert len(collector.spans) == count


async def test_a_job_from_before_there_were_traces_is_not_told_in_hindsight(tmp_path):
    with HttpCollector() as collector:
        life = Life(tmp_path, {"OTEL_SDK_DISABLED": "true"}, Batch(), 40, 0.003)
        await life.killed_after(10)
        life.environ = collector.environ() | ENVIRON
        assert (await life.to_end()).facts["outcome"] == "complete"
        well_formed(collector)
        assert len(collector.named("goal row")) < 40
        assert len(collector.named("invoke_workflow")) == 1


@pytest.mark.parametrize(
    "samplers, out", [(("always_on", "", "always_on"), FIRST_SPANS), (("", "always_on", ""), FIRST_SPANS // 2)]
)
async def test_what_is_told_again_under_another_sampler_is_told_as_it_was(tmp_path, samplers, out):
    """A call that was rescued is told as it looks in hindsight, which is not how it is told where all are kept."""
    with HttpCollector() as collector:
        environ = collector.environ() | {"OTEL_METRICS_EXPORTER": "none"}
        life = Life(tmp_path, environ, Batch(), 600, 0.001)
        life.limits = replace(LIMITS, concurrency=40, snapshot_events=100_000)
        answered = life.model._answer
        refused = Failure(FailureKind.TRANSIENT, "reset")
        life.model._answer = lambda body: refused if len(life.model.asked) % 7 == 0 else answered(body)
        first, second, third = [life.environ | environ | {"OTEL_TRACES_SAMPLER": each} for each in samplers]
        life.environ = first
        await life.killed_after(500)
        while len(collector.spans) <= out:  # noqa: ASYNC110 - to be told again, and differently if it could be
            await asyncio.sleep(0.001)
        life.environ = second
        await life.killed_after(20)
        life.environ = third
        assert (await life.to_end()).facts["outcome"] == "complete"
        well_formed(collector)
        assert len(collector.spans) > sum(map(len, collector.traces.values())), "something was told twice"
