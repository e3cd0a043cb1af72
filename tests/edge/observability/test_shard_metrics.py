"""Metrics of a job with shards: everything once, under the name of the job, with the series of one job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.history.annotated_turns import readings
from actors.journal.journal import StateFolder
from actors.observability.metrics.cardinality_limit import SERIES_MAX
from actors.observability.metrics.instruments import JOB, SHARD
from actors.observability.metrics.samples import HistogramSample, MetricSamples, NumberSample, spread
from actors.observability.metrics.shard_fold import ShardFold
from actors.report.aggregate import fold
from cortex.programs.batch import Batch
from cortex.programs.shards import Shards
from cortex.values.limits import Limits
from tests.edge.observability.test_metrics import flaky
from tests.edge.support.in_process_job import PRICE
from tests.edge.support.metered_job import Found, counting, found_in, metrics_of, of, run_of
from tests.support.patience import PATIENCE_S

DURATION = "gen_ai_client_operation_duration_seconds"
ROWS = 64


async def _seen(folder: Any, shards: int, wanted: float = 0) -> tuple[list[Found], dict[str, Any]]:
    """Every reading of a job while it runs, and its figures. No call is answered before a reading has told of more
    calls under way than are ``wanted``."""
    telemetry, seen, model = counting(), list[Found](), flaky()
    answered = model.call

    async def call(body: bytes, **more: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while wanted and not any(_in_flight(found) > wanted for found in seen):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        return await answered(body, **more)

    model.call = call  # type: ignore[method-assign]
    program = Shards(shards=shards, batch=Batch()) if shards > 1 else Batch()
    metrics = metrics_of(telemetry)
    gone = metrics._gone

    def leaves(meter: Any) -> None:
        seen.append(found_in(metrics.read()))
        gone(meter)

    metrics._gone = leaves  # type: ignore[method-assign]
    run = run_of(folder, model, ROWS, program=program, price=PRICE, telemetry=telemetry, limits=Limits(concurrency=8))
    running = asyncio.create_task(run.to_end())
    while not running.done():
        seen.append(found_in(metrics.read()))
        await asyncio.sleep(0.005)
    return seen, (await running).facts


def _in_flight(found: Found) -> float:
    """Calls under way by a reading; 0 before the job has told of any."""
    return sum(value for (name, _), value in found.items() if name == "cortex_calls_in_flight")


@pytest.mark.parametrize("shards", [1, 8])
async def test_a_job_is_counted_once_and_has_the_series_of_one(tmp_path, shards):
    seen, facts = await _seen(tmp_path, shards)
    jobs = {dict(labels).get("cortex_job_id", "j") for found in seen for _, labels in found}
    assert jobs == {"j"}
    assert not any("cortex_shard" in dict(labels) for found in seen for _, labels in found)
    last = [found for found in seen if any(name == "cortex_rows_total" for name, _ in found)][-1]
    assert of(last, "cortex_rows_total") == of(last, "cortex_rows_expected") == ROWS == facts["rows_succeeded"]
    assert of(last, "cortex_calls_total", cortex_outcome="answered") == facts["calls"] == ROWS
    assert of(last, "cortex_attempts_total") == facts["attempts"] > ROWS
    assert of(last, "cortex_cost_usd_total") == pytest.approx(facts["cost_usd"])
    assert of(last, f"{DURATION}_count", error_type="overloaded") == facts["failures"]["overloaded"]
    assert of(last, f"{DURATION}_count") == facts["attempts"]
    assert len(last) < 250 < SERIES_MAX
    for name in ("cortex_rows_total", "cortex_calls_total", f"{DURATION}_count", "cortex_cost_usd_total"):
        counts = [sum(value for (own, _), value in found.items() if own == name) for found in seen[: seen.index(last) + 1]]
        assert counts == sorted(counts), name


@pytest.mark.parametrize("shards", [1, 4])
async def test_the_report_counts_a_job_with_shards_once(tmp_path, shards):
    _, facts = await _seen(tmp_path, shards)
    figures = fold(readings(StateFolder(str(tmp_path)), "j"))
    failed = sum(count.count for count in figures.failures.values())
    assert (figures.calls, figures.attempts, failed) == (facts["calls"], facts["attempts"], sum(facts["failures"].values()))
    assert sum(each.known_nusd for each in figures.jobs.values()) == facts["known_nusd"]


async def test_what_is_in_flight_is_that_of_all_shards(tmp_path):
    seen, _ = await _seen(tmp_path, 4, wanted=1)
    assert 1 < max(map(_in_flight, seen)) <= 8


# -- the fold --------------------------------------------------------------------------------------------------------


def _histogram(count: int, shard: str = "1") -> HistogramSample:
    made = spread("cortex.turn.duration", ((JOB, "j"), (SHARD, shard), ("cortex.phase", "step")))
    for _ in range(count):
        made.add(0.002)
    return made


def _parent() -> NumberSample:
    return NumberSample("cortex.rows.expected", ((JOB, "j"),), 9)


def _counts(samples: MetricSamples) -> dict[tuple[Any, ...], int]:
    return {each.labels: each.count for each in samples.spreads}


WHOLE = ((JOB, "j"), ("cortex.phase", "step"))


def test_a_shard_that_is_gone_or_begins_anew_counts_on():
    fold = ShardFold()

    def read(*some: HistogramSample) -> int:
        return _counts(fold.folded(MetricSamples(0.0, [_parent()], list(some))))[WHOLE]

    assert read(_histogram(3), _histogram(4, "2")) == 7
    assert read(_histogram(5)) == 9, "the second was not reached"
    assert read(_histogram(1), _histogram(6, "2")) == 12, "the first has a new channel, which counts from 0"
    assert read(_histogram(2)) == 13
    fold.note([_histogram(9, "3")])
    assert read() == 22
    assert _counts(fold.folded(MetricSamples(0.0, [], []))) == {}, "the job is over"
    assert read(_histogram(1)) == 1


def test_a_shard_whose_job_is_elsewhere_tells_of_itself():
    """As on Ray's port, where each process is scraped alone."""
    samples = MetricSamples(0.0, [NumberSample("cortex.queue", ((JOB, "j"), (SHARD, "1")), 3)], [_histogram(2)])
    found = ShardFold().folded(samples)
    assert (found.points, _counts(found)) == (samples.points, _counts(samples))


def test_what_adds_up_is_added_and_the_worst_of_the_rest_is_told():
    def point(name: str, value: float, shard: str = "") -> NumberSample:
        return NumberSample(name, ((JOB, "j"), (SHARD, shard)) if shard else ((JOB, "j"),), value)

    every = [_parent()]
    for name in ("cortex.calls.in_flight", "cortex.journal.lag", "cortex.disk.free", "cortex.job.progressed"):
        every += [point(name, 5), point(name, 7, "1"), point(name, 2, "2")]
    found = {each.name: each.value for each in ShardFold().folded(MetricSamples(0.0, every)).points}
    assert found == {
        "cortex.rows.expected": 9, "cortex.calls.in_flight": 14, "cortex.journal.lag": 7, "cortex.disk.free": 2,
        "cortex.job.progressed": 7,
    }  # fmt: skip


def test_shards_that_outlive_their_job_by_a_moment_are_not_told():
    fold = ShardFold()
    part = NumberSample("cortex.queue", ((JOB, "j"), (SHARD, "1")), 3)
    fold.folded(MetricSamples(0.0, [_parent(), part], [_histogram(2)]))
    for _ in range(2):
        after = fold.folded(MetricSamples(0.0, [part], [_histogram(2)]))
        assert (after.points, after.spreads) == ([], [])
