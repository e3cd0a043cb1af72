"""What is counted of a job, and how it is shown: readings, the bound on series, Prometheus' page."""

from __future__ import annotations

import asyncio
import random
import re
import urllib.request
from typing import Any

import msgspec
import pytest
from opentelemetry.exporter.prometheus._mapping import map_unit, sanitize_full_name
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from actors.observability.base.step_timer import StepTimer
from actors.observability.metrics import job_samples
from actors.observability.metrics.cardinality_limit import CardinalityLimit
from actors.observability.metrics.cluster_samples import of_cluster
from actors.observability.metrics.endpoint import MetricsEndpoint
from actors.observability.metrics.instruments import DEPRECATED, INSTRUMENTS, JOB
from actors.observability.metrics.job_meter import JobMeter
from actors.observability.metrics.prometheus_text import page
from actors.observability.metrics.ray_export import RayGauges, numbers
from actors.observability.metrics.samples import Exemplar, MetricSamples, NumberSample, spread, together
from actors.observability.metrics.scrape_server import ListenError, ScrapeServer, place_of
from cortex.journal import codec
from cortex.programs.batch import Batch
from cortex.programs.table import Table
from cortex.scheduler.state import LostNode, NodeState, PoolState, RouteState, SchedulerState
from cortex.state import events
from cortex.state.budget_slice import BudgetSlices
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits
from cortex.values.limits import Route as Place
from cortex.values.reply import Reply, Usage
from policies.failures import breaker
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import LimitPolicy, new
from tests.edge.support.in_process_job import PRICE, FunctionModel, ListSource, Run, reply
from tests.edge.support.metered_job import counting, found_in, metrics_of, of, parsed, run_of
from tests.support.patience import PATIENCE_S
from tests.support.state_machine_harness import terms

PLACE = Place(endpoint="https://api.example.com:8443/v1", model="m")
TERMS = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=PLACE)


# -- a job -----------------------------------------------------------------------------------------------------------


def flaky(every: int = 4) -> FunctionModel:
    """Each so many-th attempt finds the provider overloaded."""
    asked = 0

    def answer(body: bytes) -> Reply | Failure:
        nonlocal asked
        asked += 1
        if asked % every == 0:
            return Failure(FailureKind.OVERLOADED, "marked words of the provider", 529)
        return reply("ok", Usage(10, 2, 3, 4))

    return FunctionModel(answer, pause_s=0.001)


async def test_what_is_counted_is_what_the_job_says_itself(tmp_path):
    telemetry = counting()
    run = run_of(tmp_path, flaky(), 40, price=PRICE, telemetry=telemetry, limits=Limits(max_cost_nusd=10**9))
    kept: list[MetricSamples] = []
    gone = metrics_of(telemetry)._gone
    metrics_of(telemetry)._gone = lambda meter: (kept.append(metrics_of(telemetry).read()), gone(meter))  # type: ignore[assignment, method-assign, misc, func-returns-value]
    facts = (await run.to_end()).facts
    found = found_in(kept[0])
    assert of(found, "cortex_calls_total", cortex_outcome="answered") == facts["calls"] == 40
    assert of(found, "cortex_attempts_total") == facts["attempts"]
    assert of(found, "cortex_attempts_total", cortex_kind="overloaded") == facts["failures"]["overloaded"] > 0
    assert of(found, "cortex_retries_total") == facts["attempts"] - 40
    assert of(found, "cortex_rows_total", cortex_outcome="succeeded") == facts["rows_succeeded"]
    assert of(found, "cortex_rows_expected") == 40
    assert of(found, "cortex_cost_usd_total") == pytest.approx(facts["cost_usd"])
    assert of(found, "cortex_cost_cap_usd") == 1.0
    assert of(found, "cortex_tokens_total", cortex_token_type="cache_read") == facts["cache_read_tokens"] == 120
    assert of(found, "cortex_calls_in_flight") == of(found, "cortex_queue") == 0
    name = "gen_ai_client_operation_duration_seconds"
    assert of(found, f"{name}_count") == facts["attempts"]
    assert of(found, f"{name}_count", error_type="overloaded") == facts["failures"]["overloaded"]
    assert of(found, f"{name}_bucket", le="+Inf", gen_ai_request_model="m") == facts["attempts"]
    usage = "gen_ai_client_token_usage"
    assert of(found, f"{usage}_sum", gen_ai_token_type="input") == 40 * 17  # with what the cache read and wrote
    assert of(found, f"{usage}_sum", gen_ai_token_type="output") == 40 * 2
    for phase in ("step", "commit", "absorb", "select"):
        assert of(found, "cortex_turn_duration_seconds_count", cortex_phase=phase) > 0
    step, absorb = (of(found, "cortex_turn_duration_seconds_sum", cortex_phase=each) for each in ("step", "absorb"))
    assert step >= absorb > 0
    assert of(found, "cortex_journal_lag_seconds") >= 0 and of(found, "cortex_journal_size_bytes") > 1_000
    assert of(found, "cortex_disk_free_bytes", cortex_job_id="j", cortex_folder=str(tmp_path)) > 0
    assert of(found, "cortex_pool_limit") > 0 and of(found, "cortex_members", cortex_role="branch") == 1
    assert not [labels for _, labels in found if {"goal", "call"} & {name for name, _ in labels}]


ENDS = [
    ("end_turn", "ok"), ("max_tokens", "ok"), ("max_tokens", ""), ("pause_turn", "ok"), ("end_turn", ""),
    ("refusal", ""), ("odd", "ok"), ("end_turn", "ok"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "succeeded"), [(Batch(), 8), (Table(prompt="{{text}}", id="id", on_cut="keep"), 4)])
async def test_rows_are_counted_by_the_ending_of_their_reply(tmp_path, program, succeeded):
    """Whether the program keeps such replies or fails their rows."""
    replies = iter([reply(text, Usage(10, 2), stop_reason) for stop_reason, text in ENDS])
    telemetry = counting()
    kept: list[MetricSamples] = []
    metrics_of(telemetry)._gone = lambda meter: kept.append(metrics_of(telemetry).read())  # type: ignore[assignment, method-assign]
    rows = [events.Row(str(n), msgspec.json.encode({"id": n, "text": "a"})) for n in range(8)]
    model = FunctionModel(lambda body: next(replies))
    run = Run(tmp_path, model, source=ListSource(rows), telemetry=telemetry, program=program)
    facts = (await run.to_end()).facts
    found = {dict(labels)["cortex_ending"]: count for (name, labels), count in found_in(kept[0]).items()
             if name == "cortex_rows_endings_total"}  # fmt: skip
    assert found == {"whole": 2, "cut": 2, "paused": 1, "tool_use": 0, "empty": 1, "refused": 1, "unknown": 1}
    assert facts["rows_succeeded"] == succeeded


async def test_a_jobs_series_vanish_with_it(tmp_path):
    telemetry = counting()
    run = run_of(tmp_path, FunctionModel(), telemetry=telemetry)
    await run.to_end()
    found = found_in(metrics_of(telemetry).read())
    left = {name for name, labels in found if any(label == "cortex_job_id" for label, _ in labels)}
    assert left == {f"cortex_job_ended_{what}" for what in ("timestamp_seconds", "rows", "cost_usd")}


async def test_counters_go_on_where_they_were_when_a_channel_comes_back(tmp_path):
    """K keeps them: a killed run that is begun again counts on, and so does a job that is resumed."""
    model = FunctionModel(lambda body: reply("ok"), pause_s=0.002)
    first = counting()
    run = run_of(tmp_path, model, 200, telemetry=first)
    await run.crash_after(lambda: len(run.sink.values) >= 30)
    before = found_in(metrics_of(first).read())
    again = counting()
    entries: list[float] = []
    other = run_of(tmp_path, model, 200, telemetry=again, sink=run.sink)

    async def look() -> None:
        while True:
            found = found_in(metrics_of(again).read())
            if any(name == "cortex_calls_total" for name, _ in found):
                entries.append(of(found, "cortex_calls_total", cortex_outcome="answered"))
            await asyncio.sleep(0.002)

    looking = asyncio.create_task(look())
    await other.to_end()
    looking.cancel()
    assert entries == sorted(entries)
    assert entries[0] >= of(before, "cortex_calls_total", cortex_outcome="answered") >= 30
    assert entries[-1] <= 200


def test_values_are_counted_as_one_by_one():
    rng = random.Random(7)
    for name in ("gen_ai.client.token.usage", "cortex.turn.duration"):
        bounds = INSTRUMENTS[name].bounds
        values = [rng.choice([*bounds, rng.random() * 2 * bounds[-1], 0.0]) for _ in range(500)]
        many, single = spread(name, ()), spread(name, ())
        for value in values:
            single.add(value)
        many.add_all(list(values))
        assert many.counts == single.counts and many.count == 500
        assert many.total == pytest.approx(single.total)


def _answered(goal: int, elapsed_s: float, route_tries: int = 1) -> events.Answered:
    return events.Answered(
        goal, "0", route_tries, b"h", Reply(b"{}", "end_turn", "m", Usage(5, 1)), elapsed_s, 0.0, "branch:0"
    )


def test_the_lag_of_the_journal_grows_while_a_commit_does_not_end():
    """As in an outage of the database: the last measured lag says nothing of it."""
    now_s = 1_000.0
    meter = JobMeter("j", "/nowhere", lambda: now_s, lambda meter: None)
    timer = StepTimer(lambda: now_s)
    meter.timed_by(timer.unsaved_s)
    k, turn = State(terms=TERMS), events.Turn(now_s, ((events.Ticked(),),))

    def lag() -> float:
        return next(point.value for point in meter.points() if point.name == "cortex.journal.lag")

    timer.arrived()
    timer.step(k, Batch(), turn, False)
    now_s += 0.5
    meter.turn_timed(timer.over(turn))
    meter.turn(1, turn, [], k)
    assert lag() == 0.5
    timer.arrived()
    now_s += 2
    assert lag() == 2, "the event waits for its turn"
    timer.step(k, Batch(), turn, True)
    for waited_s in (30, 600):
        now_s += waited_s
        assert lag() == timer.unsaved_s() > waited_s, "the commit does not end"
    meter.turn_timed(timer.over(turn))
    now_s += 3
    assert timer.unsaved_s() == 633, "what came during the step still waits"


def test_an_attempt_counts_for_the_route_that_it_went_to():
    from cortex.state import commands

    other = Place(endpoint="https://other.example.com", model="n")
    terms = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=PLACE, fallbacks=(other,))
    k = State(terms=terms)
    meter = JobMeter("j", "/nowhere", lambda: 0.0, lambda meter: None)
    calls = [commands.Call(goal, "0", 1, b"", b"", 1, 1, 1.0, goal % 2) for goal in (1, 2, 3)]
    meter.turn(1, events.Turn(1.0, ((events.Ticked(),),)), [*calls], k)
    broke = events.AttemptFailed(3, "0", 1, Failure(FailureKind.TIMED_OUT, "", sent=True), 9.0, 0.0, "branch:0")
    meter.turn(2, events.Turn(2.0, ((_answered(1, 0.5), _answered(2, 0.5), broke),)), [], k)
    found = found_in(MetricSamples(0.0, [], list(meter.spreads())))
    name = "gen_ai_client_operation_duration_seconds_count"
    assert of(found, name, gen_ai_request_model="m", server_address="api.example.com", server_port="8443") == 1
    assert of(found, name, gen_ai_request_model="n", server_address="other.example.com") == 2
    assert of(found, name, gen_ai_request_model="n", error_type="timed_out") == 1


def test_an_exemplar_is_a_call_of_its_bucket_whose_trace_is_kept():
    asked: list[int] = []

    def sampled(k: State, event: Any) -> tuple[str, str] | None:
        asked.append(event.goal)
        return (f"{event.goal:032x}", f"{event.goal:016x}") if event.goal != 1 else None

    meter = JobMeter("j", "/nowhere", lambda: 0.0, lambda meter: None, sampled)
    k = State(terms=TERMS)
    meter.turn(1, events.Turn(10.0, ((_answered(1, 0.5),),)), [], k)
    meter.turn(2, events.Turn(10.1, ((_answered(2, 0.5), _answered(3, 7.0), _answered(4, 0.5)),)), [], k)
    meter.turn(3, events.Turn(10.2, ((_answered(5, 0.6),),)), [], k)
    body, kind = page(MetricSamples(0.0, [], list(meter.spreads())), {}, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    samples = [sample for family in openmetrics(body.decode()) for sample in family.samples]
    shown = {sample.exemplar.labels["trace_id"]: sample for sample in samples if sample.exemplar}
    assert {int(trace, 16) for trace in shown} == {3, 4}
    assert shown[f"{4:032x}"].labels["le"] == "0.64" and shown[f"{4:032x}"].exemplar.value == 0.5
    assert asked == [1, 4, 3], "a bucket that shows a call looks for no other within a second"
    assert b"trace_id" not in page(MetricSamples(0.0, [], list(meter.spreads())), {}, "text/plain")[0]


@pytest.mark.parametrize(
    ("purse", "outcome", "told"),
    [
        (None, "", 0),
        (BudgetSlices(lacks_nusd=5), "", 0),  # more may come in a moment
        (BudgetSlices(reason="the budget has $0.00 left"), "", 1),
        (BudgetSlices(reason="the budget has $0.00 left"), "partial", 0),
    ],
)
def test_a_job_that_waits_for_a_budget_is_told_as_such(purse: BudgetSlices | None, outcome: str, told: int) -> None:
    samples = {each.name: each.value for each in job_samples.of_job(State(terms=TERMS, purse=purse, outcome=outcome))}
    assert samples["cortex.job.over_budget"] == told


_DAY_S = 86_400.0


@pytest.mark.parametrize("ahead_s", [0.0, _DAY_S, -_DAY_S])
def test_times_that_are_exported_are_those_of_the_machines_clock(ahead_s):
    """The clock was set while the job ran. A scraper, a collector and `time()` know the machine's clock alone."""
    from opentelemetry.sdk.resources import Resource

    from actors.observability.metrics.otlp_export import otlp

    began_s, at_s, deadline_s = 1.7e9, 1.7e9 + 100.0, 1.7e9 + ahead_s + 500.0
    now_s = at_s + ahead_s
    meter = JobMeter("j", "/nowhere", lambda: now_s, lambda meter: None, lambda k, event: ("a" * 32, "b" * 16))
    terms = msgspec.structs.replace(TERMS, limits=Limits(deadline_at_s=deadline_s))
    k = State(terms=terms, at_s=at_s, ahead_s=ahead_s, began_at_s=began_s)
    meter.turn(1, events.Turn(at_s, ((_answered(1, 0.5),),), b"", ahead_s), [], k)
    samples = MetricSamples(began_s, list(meter.points()), list(meter.spreads()), {"j": meter.began_s})
    points = {point.name: point.value for point in samples.points}
    assert points["cortex.job.progressed"] == now_s and points["cortex.job.deadline"] == deadline_s
    assert [each.at_s for one in samples.spreads for each in one.exemplars.values()] == [now_s]
    made = [
        point for metric in otlp(samples, Resource({}), now_s).resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    ]  # fmt: skip
    assert all((point.start_time_unix_nano or 0) <= point.time_unix_nano for point in made)
    shown = [each for point in made for each in getattr(point, "exemplars", ())]
    assert [each.time_unix_nano for each in shown] == [int(now_s * 1e9)]


@pytest.mark.parametrize(("moved_s", "shown"), [(0.1, 1), (1.0, 2), (3600.0, 2), (-3600.0, 2)])
def test_an_exemplar_is_replaced_after_a_second_and_when_the_clock_was_set_back(moved_s, shown):
    def sampled(k: State, event: Any) -> tuple[str, str]:
        return f"{event.goal:032x}", f"{event.goal:016x}"

    meter, k = JobMeter("j", "/nowhere", lambda: 0.0, lambda meter: None, sampled), State(terms=TERMS)
    meter.turn(1, events.Turn(1.7e9, ((_answered(1, 0.5),),)), [], k)
    meter.turn(2, events.Turn(1.7e9 + 0.05, ((_answered(2, 0.5),),), b"", moved_s - 0.05), [], k)
    (found,) = [each for one in meter.spreads() for each in one.exemplars.values()]
    assert int(found.trace_id, 16) == shown


# -- a cluster -------------------------------------------------------------------------------------------------------


def _route(pool: str) -> RouteState:
    return RouteState(pool)


def test_breakers_count_how_often_they_opened_and_probed():
    state = SchedulerState()
    route = state.routes["r"] = _route("p")
    breaker.block(breaker.ROUTE, route.breaker, 10.0, 0.0, "no credit", 0.0)
    found = found_in(MetricSamples(0.0, list(of_cluster(state))))
    assert not any(name == "cortex_breaker_state" for name, _ in found), "no job uses it: its key was replaced"
    assert of(found, "cortex_breaker_opened_total", cortex_subject="r") == 1
    route.jobs["j"] = True
    found = found_in(MetricSamples(0.0, list(of_cluster(state))))
    assert of(found, "cortex_breaker_state", cortex_subject="r", cortex_subject_kind="route") == 2
    assert of(found, "cortex_breaker_blocked", cortex_subject="r", cortex_subject_kind="route") == 1
    assert of(found, "cortex_breaker_opened_total", cortex_subject="r") == 1
    breaker.passed(breaker.ROUTE, route.breaker, 1e6)
    breaker.probe_out(breaker.ROUTE, route.breaker, 1e6, 1e6 + 9)
    found = found_in(MetricSamples(0.0, list(of_cluster(state))))
    assert of(found, "cortex_breaker_state", cortex_subject="r") == 1
    assert of(found, "cortex_breaker_blocked", cortex_subject="r") == 1, "until a call is answered"
    assert of(found, "cortex_probes_total", cortex_subject="r") == 1


def test_a_lost_node_is_told_by_its_host_with_the_time_of_its_loss():
    state = SchedulerState()
    state.nodes["a"] = NodeState()
    assert not any("lost" in name for name, _ in found_in(MetricSamples(0.0, list(of_cluster(state)))))
    for name, host, at_s in (("b", "pod-b", 1e9), ("c", "vm", 1e9 + 5), ("d", "vm", 1e9 + 9)):
        state.lost[name] = LostNode(host, 1.0, at_s)
    found = found_in(MetricSamples(0.0, list(of_cluster(state))))
    assert of(found, "cortex_nodes", cortex_state="lost") == 3
    assert of(found, "cortex_node_lost_timestamp_seconds", cortex_node="pod-b") == 1e9
    assert of(found, "cortex_node_lost_timestamp_seconds", cortex_node="vm") == 1e9 + 9, "the latest on a host"


# -- the bound -------------------------------------------------------------------------------------------------------


def _series(readings: MetricSamples) -> int:
    return len(found_in(readings))


def _many(jobs: int, routes: int, calls: int = 5) -> MetricSamples:
    state = SchedulerState()
    for n in range(routes):
        state.routes[f"route {n}"] = _route(f"pool {n}")
        state.pools[f"pool {n}"] = PoolState(new(LimitPolicy()))
        state.nodes[f"node {n}"] = NodeState()
    found = MetricSamples(0.0, list(of_cluster(state)))
    for n in range(jobs):
        meter = JobMeter(f"job-{n}", "/nowhere", lambda: 0.0, lambda meter: None)
        k = State(terms=JobTerms(job=f"job-{n}", program="batch", params_json=b"{}", fingerprint="f", route=PLACE))
        k.tally.answered = calls
        meter.turn(1, events.Turn(1.0, (tuple(_answered(goal, 0.5) for goal in range(calls)),)), [], k)
        found.points += meter.points()
        found.spreads += meter.spreads()
    return found


@pytest.mark.parametrize(("jobs", "routes"), [(500, 300), (1, 300), (500, 0), (3, 2)])
def test_no_more_than_a_thousand_series_and_nothing_lost_of_what_adds_up(jobs, routes):
    many = _many(jobs, routes)
    shown = CardinalityLimit().under(many)
    assert _series(shown) <= 1_000
    whole, bounded = found_in(many), found_in(shown)
    for name in ("cortex_calls_total", "gen_ai_client_operation_duration_seconds_count", "cortex_permits"):
        assert of(whole, name) == of(bounded, name)
    if jobs > 3 or routes > 2:
        assert of(bounded, "cortex_calls_total" if jobs > 3 else "cortex_pool_limit", otel_metric_overflow="true") >= 0
    else:
        assert whole == bounded
    one = "job-0"
    assert of(bounded, "cortex_calls_total", cortex_job_id=one, cortex_outcome="answered") == 5


def test_what_is_told_together_never_decreases_and_no_line_comes_and_goes():
    ceiling = CardinalityLimit()
    before = found_in(ceiling.under(_many(60, 0)))
    after = found_in(ceiling.under(_many(50, 0)))
    name = "cortex_calls_total"
    assert of(after, name, otel_metric_overflow="true") == of(before, name, otel_metric_overflow="true") > 0
    assert {key for key in after if key[0] == name} == {key for key in before if key[0] == name}
    grown = found_in(ceiling.under(_many(50, 0, calls=9)))
    assert of(grown, name, otel_metric_overflow="true") > of(after, name, otel_metric_overflow="true")


# -- names and pages -------------------------------------------------------------------------------------------------


def test_names_are_those_of_opentelemetrys_own_exporter():
    for each in INSTRUMENTS.values():
        name, unit = sanitize_full_name(each.name), map_unit(each.unit)
        assert each.prometheus == (f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name), each.name


NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
"""A name in lower case: prometheus.io/docs/practices/naming, and the naming of OpenTelemetry's semantic conventions."""


def test_every_name_is_in_lower_case_but_those_that_another_has_replaced():
    odd = {each.name for each in INSTRUMENTS.values() if not NAME.fullmatch(each.prometheus)}
    assert odd == set(DEPRECATED.values()) == {"cortex.cost", "cortex.cost.assumed", "cortex.cost.reserved", "cortex.cost.cap"}
    for name, old in DEPRECATED.items():
        one, other = INSTRUMENTS[name], INSTRUMENTS[old]
        assert one.kind == other.kind and one.prometheus == other.prometheus.lower(), "one name on Ray's port"


async def test_a_deprecated_name_has_the_value_of_its_successor_and_is_not_on_rays_port(tmp_path):
    telemetry = counting()
    kept: list[MetricSamples] = []
    gone = metrics_of(telemetry)._gone
    metrics_of(telemetry)._gone = lambda meter: (kept.append(metrics_of(telemetry).read()), gone(meter))  # type: ignore[assignment, method-assign, misc, func-returns-value]
    await run_of(tmp_path, flaky(), 4, price=PRICE, telemetry=telemetry, limits=Limits(max_cost_nusd=10**9)).to_end()
    found, ray = found_in(kept[0]), {name for name, _, _, _ in numbers(kept[0])}
    for name, old in DEPRECATED.items():
        total = "_total" if INSTRUMENTS[old].kind == "counter" else ""
        one, other = INSTRUMENTS[name].prometheus + total, INSTRUMENTS[old].prometheus + total
        assert of(found, one) == of(found, other) and of(found, "cortex_cost_usd_total") > 0
        assert one in ray and other not in ray and other.lower() == one


def test_rays_gauges_are_the_same_series_under_the_same_names():
    many = _many(2, 2)
    made: dict[tuple[str, tuple[str, ...]], Any] = {}
    facts: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            assert (name, tag_keys) not in made and description
            made[name, tag_keys] = self
            self.name, self.keys = name, tag_keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tuple(sorted(tags)) == self.keys
            facts[self.name, frozenset(tags.items())] = value

    import msgspec

    gauges = RayGauges(Gauge, lambda: msgspec.msgpack.encode(many))
    gauges.set()
    gauges.set()
    assert facts == {key: value for key, value in found_in(many).items() if "USD" not in key[0]}
    assert len(facts) == len(list(numbers(many)))


def test_of_two_that_know_the_same_the_first_counts():
    one = MetricSamples(2.0, [NumberSample("cortex.jobs", (), 1)], since_s={"j": 1.0})
    other = MetricSamples(1.0, [NumberSample("cortex.jobs", (), 2), NumberSample("cortex.calls", ((JOB, "j"),), 3)])
    found = together([one, other])
    assert (found.began_s, found.since_s) == (1.0, {"j": 1.0})
    assert [point.value for point in found.points] == [1, 3]


def _read(url: str, accept: str = "text/plain") -> tuple[str, str]:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


async def test_a_scrape_over_http_while_the_job_runs(tmp_path):
    from actors.observability.metrics.scrape_server import asking

    telemetry, seen = counting(), list[float]()

    class Watched(FunctionModel):
        """The last call is answered once the others were seen."""

        async def call(self, body: bytes, **more: Any) -> Any:
            answer = await super().call(body, **more)
            async with asyncio.timeout(PATIENCE_S):
                while len(self.complete) == 400 and seen[-1:] != [399.0]:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.005)
            return answer

    run = run_of(tmp_path, Watched(lambda body: reply("ok"), pause_s=0.02), 400, telemetry=telemetry)
    endpoint = MetricsEndpoint({})
    endpoint.address = "127.0.0.1:0"
    async with endpoint:
        assert endpoint.is_open and endpoint.where.startswith("http://127.0.0.1:")
        endpoint.serve(run.runtime, "j")
        running = asyncio.create_task(run.to_end())
        while not running.done():
            body, _ = await asyncio.to_thread(_read, endpoint.where)
            found = parsed(body)
            if any(name == "cortex_calls_total" for name, _ in found):
                seen.append(of(found, "cortex_calls_total"))
            await asyncio.sleep(0.01)
        body, kind = await asyncio.to_thread(_read, endpoint.where, "application/openmetrics-text; version=1.0.0")
        assert "openmetrics" in kind and body.endswith("# EOF\n") and 'target_info{service_name="cortex"} 1' in body
    assert asking is not None
    assert seen == sorted(seen) and 399 in seen and seen[-1] <= 400
    with pytest.raises(OSError):
        await asyncio.to_thread(_read, endpoint.where)


async def test_an_address_that_is_taken_is_told_in_a_line():
    taken = ScrapeServer("127.0.0.1:0", {})
    where = await taken.open()
    try:
        text = where.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(ListenError, match=rf"--metrics-listen {text}: .*address already in use"):
            await ScrapeServer(text, {}).open()
    finally:
        await taken.close()


@pytest.mark.parametrize("said", ["here", "host:", ":", "1:2:x", "host:99999"])
def test_where_nobody_can_listen(said):
    with pytest.raises(ListenError, match="give HOST:PORT"):
        place_of(said)


def test_where_one_can_listen():
    assert place_of("9090") == ("127.0.0.1", 9090)
    assert place_of(":9090") == ("", 9090)
    assert place_of("[::1]:9090") == ("::1", 9090)


async def test_the_standard_variables_open_an_endpoint_too():
    facts = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}
    async with MetricsEndpoint(facts) as endpoint:
        assert endpoint.is_open
    async with MetricsEndpoint({}) as endpoint:
        assert not endpoint.is_open


def test_an_exemplar_travels():
    import msgspec

    own = spread("cortex.turn.duration", ())
    own.exemplars[3] = Exemplar(1.0, 2.0, "a", "b")
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(MetricSamples(0.0, [], [own])), type=MetricSamples)
    assert again.spreads[0].exemplars == own.exemplars


@pytest.mark.parametrize(("places", "count"), [({"rows": "40", "unreadable": "20"}, 20), ({}, 0)])
def test_unreadable_records_of_the_input_are_a_gauge_of_their_own(places, count):
    k = codec.open_job(terms(places=places, streams=True))
    values = {each.name: each.value for each in job_samples.of_job(k)}
    assert (values["cortex.rows.unreadable"], values["cortex.rows.expected"]) == (count, 2 * count)
