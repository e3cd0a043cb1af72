"""Ends of jobs: what is told of a job after its process, by the cortex and by `cortex metrics`."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from typing import Any

import msgspec
import pytest

from actors.jobs.ending_cause import CAUSES, ROOM_MIN_BYTES, cause_of, is_full
from actors.journal.journal import StateFolder
from actors.observability import folder_metrics
from actors.observability.base.step_timer import StepTimer
from actors.observability.folder_metrics import FolderMetrics
from actors.observability.metrics.instruments import INSTRUMENTS
from actors.observability.metrics.job_ends import (
    KEPT_MAX,
    KEPT_S,
    LATEST,
    JobEnd,
    KeptEnds,
    encoded,
    end_of,
    worth_telling,
)
from actors.observability.metrics.job_meter import JobMeter
from actors.observability.metrics.journal_size import place_of
from actors.observability.metrics.samples import MetricSamples
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.in_process_job import PRICE, FunctionModel
from tests.edge.support.metered_job import counting, found_in, metrics_of, of, run_of

TERMS = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=Route(endpoint="e", model="m"))
ENDED = "cortex_job_ended_timestamp_seconds"


def _blob(job: str, at_s: float, epoch: int = 1) -> bytes:
    return msgspec.msgpack.encode(JobEnd(job, epoch, "partial", "cap", at_s))


def _refusing(kind: FailureKind) -> FunctionModel:
    return FunctionModel(lambda body: Failure(kind, "marked words"))


# -- causes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "why", "cause"),
    [
        ("complete", "", "none"), ("cancelled", "cancel: by ann", "cancel"), ("failed", "nothing is left", "failed"),
        ("interrupted", "", "interrupted"), ("partial", "drain: by ann", "drain"),
        ("partial", "deadline: 10:00 has passed", "deadline"), ("partial", "over_budget: the job's cap", "cap"),
        ("partial", "blocked: no credit", "blocked"), ("partial", "unauthorised: bad key", "blocked"),
        ("partial", "throttled: until tomorrow", "throttled"), ("partial", "max_failed: 3 of 9", "failures"),
        ("partial", "alike: all of the first", "failures"), ("partial", "condemned: its channel dies", "condemned"),
        ("partial", "waits for an answer: x", "answer"), ("partial", "words of a later release", "other"),
    ],
)  # fmt: skip
def test_a_cause_is_a_word_of_a_closed_list(outcome, why, cause):
    assert cause_of(outcome, why) == cause
    assert cause in CAUSES


# -- kept by a process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "limits", "outcome", "cause"),
    [
        (FunctionModel(), Limits(), "complete", "none"),
        (_refusing(FailureKind.BLOCKED), Limits(), "partial", "blocked"),
        (_refusing(FailureKind.UNAUTHORISED), Limits(), "partial", "blocked"),
        (FunctionModel(), Limits(max_cost_nusd=1), "partial", "cap"),
    ],
)
async def test_the_end_of_a_job_outlives_its_channel(tmp_path, model, limits, outcome, cause):
    telemetry = counting()
    facts = (await run_of(tmp_path, model, 20, price=PRICE, limits=limits, telemetry=telemetry).to_end()).facts
    found = found_in(metrics_of(telemetry).read())
    assert of(found, ENDED, cortex_job_id="j", cortex_outcome=outcome, cortex_cause=cause) == pytest.approx(facts["last_turn_at_s"], abs=60)
    assert of(found, "cortex_job_ended_rows", cortex_outcome="succeeded") == facts["rows_succeeded"]
    assert of(found, "cortex_job_ended_rows", cortex_outcome="left") == 20 - facts["rows_succeeded"]
    assert of(found, "cortex_job_ended_cost_usd", cortex_certainty="known") == pytest.approx(facts["cost_usd"])
    assert not any(name.endswith("_total") and "cortex_job_id" in dict(labels) for name, labels in found)
    # and from the journal, after the process
    folder = FolderMetrics(StateFolder(str(tmp_path)))
    kept = found_in(folder.samples())
    told = {key: value for key, value in found.items() if key[0].startswith("cortex_job_ended")}
    assert {key: value for key, value in kept.items() if key[0].startswith("cortex_job_ended")} == pytest.approx(told)
    assert of(kept, "cortex_state_up") == 1 and of(kept, "cortex_disk_free_bytes", cortex_folder=str(tmp_path)) > 0


def test_an_end_is_forgotten_after_a_day_and_when_its_job_goes_on():
    now_s = 1e6
    ends = KeptEnds(lambda: now_s)
    for job, at_s in (("old", now_s - KEPT_S - 1), ("goes-on", now_s), ("left", now_s), ("new", now_s)):
        ends.keep(_blob(job, at_s))
    epochs = {"goes-on": 2, "left": 1}  # what is left still holds its lease
    told = [dict(each.labels)["cortex.job.id"] for each in ends.points(lambda job: epochs.get(job, 0), {"new"})]
    assert set(told) == {"left"}
    assert [dict(each.labels)["cortex.job.id"] for each in ends.points() if "timestamp" in each.name] == ["left", "new"]
    ends.drop("left")
    assert {dict(each.labels)["cortex.job.id"] for each in ends.points()} == {"new"}


def test_the_latest_ends_are_kept():
    ends = KeptEnds(lambda: 1_000.0)
    for number in range(KEPT_MAX + 9):
        ends.keep(_blob(f"j{number}", 900.0 + number / 100))
    ends.keep(_blob("j20", 950.0))
    told = [dict(each.labels)["cortex.job.id"] for each in ends.points() if "timestamp" in each.name]
    assert len(told) == KEPT_MAX and told[0] == "j9" and told[-1] == "j20"


@pytest.mark.parametrize(
    ("early", "kept"),
    [
        (JobEnd("x", 1, "partial", "cap", 1.0), True),
        (JobEnd("x", 1, "interrupted", "interrupted", 1.0), True),
        (JobEnd("x", 1, "complete", "none", 1.0, failed=3), True),
        (JobEnd("x", 1, "complete", "none", 1.0), False),
        (JobEnd("x", 1, "cancelled", "cancel", 1.0), False),
    ],
)
def test_an_end_that_asks_for_a_person_outlasts_many_that_do_not(early, kept):
    later = [JobEnd(f"j{number}", 1, "complete", "none", 2.0 + number) for number in range(3 * KEPT_MAX)]
    told = worth_telling([early, *later])
    assert (early in told) == kept and len(told) == KEPT_MAX and told[:LATEST] == later[: -LATEST - 1 : -1]


def test_many_that_ask_for_a_person_leave_room_for_the_latest():
    """An end that is never told would be one of which nothing is known."""
    early = [JobEnd(f"x{number}", 1, "partial", "cap", 1.0 + number) for number in range(3 * KEPT_MAX)]
    told = worth_telling([*early, last := JobEnd("x", 1, "complete", "none", 1_000.0)])
    assert told[0] == last and len(told) == KEPT_MAX


def test_only_a_cortex_that_outlives_its_jobs_says_how_long_it_keeps_their_ends(monkeypatch):
    from actors.observability.wiring import TelemetryParts, of_process

    for role, standing, told in (("cortex", True, True), ("cortex", False, False), ("channel", True, False)):
        made = of_process(role, "n", standing=standing)
        assert isinstance(made, TelemetryParts)
        points = {point.name: point.value for point in metrics_of(made).read().points}
        assert points.get("cortex.ends.kept", 0) == (KEPT_S if told else 0)


async def test_a_cortex_keeps_what_a_channel_tells_it(tmp_path):
    """As on Ray, where both are processes of their own."""
    telemetry = counting()
    run = run_of(tmp_path, FunctionModel(), telemetry=counting())
    await run.to_end()
    (blob,) = [msgspec.msgpack.encode(end) for end in metrics_of(run.runtime.telemetry).ends._ends.values()]
    telemetry.keep_end(blob)
    assert of(found_in(metrics_of(telemetry).read()), ENDED, cortex_job_id="j") > 0


@pytest.mark.parametrize("ahead_s", [0.0, 86_400.0, -86_400.0])
def test_times_are_those_of_the_clock_that_prometheus_compares_them_with(ahead_s):
    """The clock of a machine was set while the job ran: the job's own time goes on as it was (`events.Turn`)."""
    now_s = 1.7e9 + ahead_s
    k = State(terms=TERMS, at_s=1.7e9, ahead_s=ahead_s, outcome="partial", why="drain: by ann")
    assert end_of(k).at_s == now_s
    ends = KeptEnds(lambda: now_s)
    ends.keep(encoded(k))
    assert any("timestamp" in each.name for each in ends.points())
    meter, timer = JobMeter("j", "/nowhere", lambda: now_s, lambda meter: None), StepTimer(lambda: 7.0)
    turn = events.Turn(1.7e9, (), b"", ahead_s)
    timer.arrived()
    timer._since_s = 2.0
    timer.step(State(terms=TERMS), Batch(), turn, False)
    meter.turn_timed(timer.over(turn))
    meter.turn(1, turn, [], k)
    found = {each.name: each.value for each in meter.points()}
    assert (found["cortex.job.progressed"], found["cortex.journal.lag"]) == (now_s, 5.0)


# -- counters from the first sample on -------------------------------------------------------------------------------


async def test_every_counter_of_a_job_is_there_at_0_before_its_first_rise(tmp_path):
    """Else the first rise is its first sample, and no rate sees it."""
    telemetry = counting()
    kept: list[dict[tuple[str, frozenset[tuple[str, str]]], float]] = []
    metrics_of(telemetry)._gone = lambda meter: kept.append(found_in(MetricSamples(0.0, list(meter.points()))))  # type: ignore[method-assign,assignment]
    await run_of(tmp_path, FunctionModel(), telemetry=telemetry).to_end()
    found = kept[0]
    kinds = {dict(labels)["cortex_kind"] for name, labels in found if name == "cortex_attempts_total"}
    assert kinds == {"answered", *map(str, FailureKind)}
    assert of(found, "cortex_attempts_total", cortex_kind="blocked") == 0
    assert of(found, "cortex_job_blocked") == 0
    counters = {f"{each.prometheus}_total" for name, each in INSTRUMENTS.items() if each.kind == "counter"}
    of_cluster = {"cortex_restarts_total", "cortex_kills_total", "cortex_probes_total"}
    of_cluster |= {"cortex_breaker_opened_total", "cortex_breaker_given_back_total"}
    assert counters - {name for name, _ in found} == of_cluster
    cluster = found_in(metrics_of(telemetry).read())
    assert of(cluster, "cortex_restarts_total", cortex_role="branch") == 0
    assert {name for name, _ in cluster} >= of_cluster


# -- from the state folder -------------------------------------------------------------------------------------------


async def test_a_job_that_runs_has_no_end_and_one_that_was_interrupted_has(tmp_path, monkeypatch):
    telemetry = counting()
    folder = StateFolder(str(tmp_path))
    seen: list[Any] = []

    def look(body: bytes) -> Any:
        if len(seen) < 1:
            seen.append(found_in(FolderMetrics(folder).samples()))
            monkeypatch.setattr(type(folder), "is_held", lambda self, job: False)  # as if its process had died
            seen.append(found_in(FolderMetrics(folder).samples()))
            monkeypatch.undo()
        return FunctionModel()._answer(body)  # type: ignore[attr-defined]

    with folder.prepare().hold("j"):
        await run_of(tmp_path, FunctionModel(look), telemetry=telemetry).to_end()
    running, killed = seen
    assert not any(name == ENDED for name, _ in running)
    assert of(killed, ENDED, cortex_outcome="interrupted", cortex_cause="interrupted") > 0


async def test_an_interruption_that_was_found_on_a_full_disk_has_that_cause_until_the_job_goes_on(tmp_path, monkeypatch):
    folder, found = StateFolder(str(tmp_path)), list[Any]()
    teller = FolderMetrics(folder)

    def look(body: bytes) -> Any:
        if not found:
            monkeypatch.setattr(type(folder), "is_held", lambda self, job: False)  # as if its process had ended
            for free in (ROOM_MIN_BYTES - 1, 0, ROOM_MIN_BYTES):
                monkeypatch.setattr(type(folder), "free_bytes", lambda self, free=free: free)
                found.append(found_in(teller.samples()))
            found.append(found_in(FolderMetrics(folder).samples()))
            monkeypatch.undo()
        return FunctionModel()._answer(body)  # type: ignore[attr-defined]

    with folder.prepare().hold("j"):
        await run_of(tmp_path, FunctionModel(look)).to_end()
    causes = [dict(labels)["cortex_cause"] for each in found for name, labels in each if name == ENDED]
    assert causes == ["disk", "disk", "disk", "interrupted"] and set(causes) <= set(CAUSES)
    ends = found_in(teller.samples())
    assert of(ends, ENDED, cortex_outcome="complete", cortex_cause="none") > 0


@pytest.mark.parametrize(
    ("free_bytes", "full"), [(0, True), (ROOM_MIN_BYTES - 1, True), (ROOM_MIN_BYTES, False), (None, False)]
)
def test_a_disk_without_room_for_a_few_pages_is_full_and_an_unknown_one_is_not(free_bytes, full):
    assert is_full(free_bytes) is full


def test_the_path_of_a_state_folder_is_a_label_in_any_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place_of(StateFolder("state")) == str(tmp_path / "state")
    assert place_of(StateFolder(str(tmp_path / os.fsdecode(b"\xff")))).endswith("?")


async def test_a_journal_is_read_again_only_after_a_write(tmp_path, monkeypatch):
    await run_of(tmp_path, FunctionModel()).to_end()
    read: list[str] = []
    real = folder_metrics.read_job
    monkeypatch.setattr(folder_metrics, "read_job", lambda folder, job: read.append(job) or real(folder, job))
    metrics = FolderMetrics(StateFolder(str(tmp_path)))
    assert found_in(metrics.samples()).keys() == found_in(metrics.samples()).keys()
    assert read == ["j"]
    assert not [point for point in FolderMetrics(StateFolder(str(tmp_path)), kept_s=1e-9).samples().points if "ended" in point.name]


async def test_a_folder_with_many_old_jobs_is_read_a_part_at_a_time_the_latest_first(tmp_path, monkeypatch):
    folder = StateFolder(str(tmp_path)).prepare()
    now_s, jobs = 1e6, {f"j{number}": number * 60.0 for number in range(200)}  # of 200 minutes
    monkeypatch.setattr(type(folder), "jobs", lambda self: list(jobs))
    monkeypatch.setattr(type(folder), "changed_s", lambda self, job: now_s - jobs[job])
    monkeypatch.setattr(folder_metrics, "LATE_MAX", 50)
    metrics = FolderMetrics(folder, now_s=lambda: now_s)
    for count in (61 + 50, 61 + 100, 200, 200):
        metrics.samples()
        assert list(metrics._read) == list(jobs)[:count]


@pytest.mark.parametrize("lock", ["is_held", "is_attended"])
async def test_jobs_that_are_held_take_no_turn_from_older_ends(tmp_path, monkeypatch, lock):
    folder = StateFolder(str(tmp_path)).prepare()
    now_s, jobs = 1e6, {f"j{number}": 4_000.0 + number for number in range(200)}
    monkeypatch.setattr(type(folder), "jobs", lambda self: list(jobs))
    monkeypatch.setattr(type(folder), "changed_s", lambda self, job: now_s - jobs[job])
    monkeypatch.setattr(type(folder), lock, lambda self, job: int(job[1:]) < 60)
    metrics = FolderMetrics(folder, now_s=lambda: now_s)
    for count in (50, 100, 140, 140):
        metrics.samples()
        assert list(metrics._read) == list(jobs)[60 : 60 + count]


async def test_a_folder_that_cannot_be_read_is_not_up(tmp_path, monkeypatch):
    await run_of(tmp_path, FunctionModel()).to_end()
    folder = StateFolder(str(tmp_path))
    monkeypatch.setattr(type(folder), "jobs", lambda self: (_ for _ in ()).throw(OSError("gone")))
    (samples,) = await FolderMetrics(folder).ask()
    found = found_in(samples)
    assert of(found, "cortex_state_up") == 0 and not any("ended" in name for name, _ in found)


async def test_a_folder_that_does_not_answer_is_not_up(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_metrics, "ANSWER_S", 0.0)
    (samples,) = await FolderMetrics(StateFolder(str(tmp_path))).ask()
    assert of(found_in(samples), "cortex_state_up") == 0


async def test_a_finished_job_is_scraped_over_http(tmp_path):
    from actors.observability.metrics.scrape_server import ScrapeServer

    await run_of(tmp_path, FunctionModel()).to_end()
    server = ScrapeServer("127.0.0.1:0", {})
    where = await server.open()
    server.serve(FolderMetrics(StateFolder(str(tmp_path))).ask)
    try:
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(where, timeout=60).read().decode())
    finally:
        await server.close()
    assert f'{ENDED}{{cortex_cause="none",cortex_job_id="j",cortex_outcome="complete"}}' in text
