"""Metrics that are sent: over HTTP and gRPC to a real receiver, and to one that is down."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.sdk.metrics.export import MetricExportResult

from actors.observability.base.settings import TelemetrySettings
from actors.observability.metrics import otlp_export
from actors.observability.metrics.instruments import INSTRUMENTS
from actors.observability.metrics.otlp_export import MetricExports
from actors.observability.metrics.registry import LAST_KEPT, Metrics
from actors.observability.metrics.samples import MetricSamples, NumberSample, spread
from actors.observability.wiring import TelemetryParts
from cortex.state import events
from cortex.state.state import State
from cortex.values.limits import JobTerms, Route
from tests.edge.support.in_process_job import PRICE, FunctionModel, reply
from tests.edge.support.metered_job import counting, run_of
from tests.support.otlp_collector import closing_waits
from tests.support.patience import PATIENCE_S

FAST = {"OTEL_METRIC_EXPORT_INTERVAL": "50", "OTEL_LOGS_EXPORTER": "none"}  # the receiver takes no logs


class Receiver:
    """What came, newest last: by name, the metric as OTLP has it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []

    def take(self, request: Any, headers: dict[str, str]) -> None:
        self.requests.append(request)
        self.headers.append(headers)

    def metrics(self, request: Any) -> dict[str, Any]:
        return {
            metric.name: metric
            for resource in request.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
        }  # fmt: skip

    def last(self, job: str = "j") -> dict[str, Any]:
        """Of the last request that tells of the job."""
        return next(found for each in reversed(self.requests) if "cortex.calls" in (found := self.metrics(each)))


@pytest.fixture(params=["http/protobuf", "grpc"])
def receiver(request: pytest.FixtureRequest) -> Iterator[tuple[Receiver, dict[str, str]]]:
    """A receiver in this process, and the variables that name it."""
    with closing_waits():
        yield from _received(request.param)


def _received(protocol: str) -> Iterator[tuple[Receiver, dict[str, str]]]:
    found = Receiver()
    if protocol == "grpc":

        class Service(metrics_service_pb2_grpc.MetricsServiceServicer):
            def Export(self, sent: Any, context: Any) -> Any:
                found.take(sent, {str(key): str(value) for key, value in context.invocation_metadata()})
                return metrics_service_pb2.ExportMetricsServiceResponse()

        server = grpc.server(ThreadPoolExecutor(2))
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Service(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield found, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        server.stop(None).wait()
        return

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            blob = self.rfile.read(int(self.headers["content-length"]))
            headers = {key.lower(): value for key, value in self.headers.items()}
            found.take(metrics_service_pb2.ExportMetricsServiceRequest.FromString(blob), headers)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *told: Any) -> None: ...

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield found, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{web.server_port}"}
    web.shutdown()
    web.server_close()


def _sums(metric: Any) -> dict[str, float]:
    points = metric.sum.data_points
    return {
        ",".join(f"{a.key}={a.value.string_value}" for a in point.attributes if a.key != "cortex.job.id"):
        point.as_double or point.as_int
        for point in points
    }  # fmt: skip


async def test_a_collector_is_told_what_the_job_says_itself(tmp_path, receiver):
    found, environ = receiver
    shown = {**environ, **FAST, "OTEL_EXPORTER_OTLP_HEADERS": "x-token=abc", "OTEL_SERVICE_NAME": "mine",
            "OTEL_TRACES_EXPORTER": "none"}  # fmt: skip
    def told() -> int:
        return sum("cortex.calls" in found.metrics(each) for each in list(found.requests))

    class Watched(FunctionModel):
        """The last call is answered once the job was told of several times."""

        async def call(self, body: bytes, **more: Any) -> Any:
            answer = await super().call(body, **more)
            async with asyncio.timeout(PATIENCE_S):
                while len(self.complete) == 150 and told() < 3:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.005)
            return answer

    model = Watched(lambda body: reply("ok"), pause_s=0.1)
    run = run_of(tmp_path, model, 150, price=PRICE, telemetry=counting(**shown))
    facts = (await run.to_end()).facts
    assert found.headers[0]["x-token"] == "abc"
    last = found.last()
    assert _sums(last["cortex.calls"]) == {
        "cortex.outcome=answered": 150, "cortex.outcome=reused": 0, "cortex.outcome=failed": 0,
    }  # fmt: skip
    assert sum(_sums(last["cortex.cost.usd"]).values()) == pytest.approx(facts["cost_usd"])
    duration = last["gen_ai.client.operation.duration"].histogram.data_points[0]
    assert duration.count == sum(duration.bucket_counts) == 150 and duration.sum > 150 * 0.1
    assert list(duration.explicit_bounds) == list(INSTRUMENTS["gen_ai.client.operation.duration"].bounds)
    assert last["cortex.turn.duration"].unit == "s" and last["cortex.cost.usd"].sum.is_monotonic
    assert last["cortex.calls"].sum.aggregation_temporality == 2  # cumulative
    assert last["cortex.permits"].WhichOneof("data") == "sum" and not last["cortex.permits"].sum.is_monotonic
    resource = found.requests[0].resource_metrics[0].resource
    assert {a.key: a.value.string_value for a in resource.attributes}["service.name"] == "mine"
    counts = [
        _sums(metrics["cortex.calls"])["cortex.outcome=answered"]
        for each in found.requests if "cortex.calls" in (metrics := found.metrics(each))
    ]  # fmt: skip
    assert counts == sorted(counts) and len(counts) > 2
    began = {p.start_time_unix_nano for each in found.requests for m in found.metrics(each).values()
             if m.name == "cortex.calls" for p in m.sum.data_points}  # fmt: skip
    assert len(began) == 1, "counters that a journal keeps began when the job did"


@pytest.mark.parametrize("receiver", ["http/protobuf"], indirect=True)
async def test_what_has_come_since_where_a_collector_prefers_that(tmp_path, receiver):
    found, environ = receiver
    facts = {
        **environ,
        **FAST,
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
        "OTEL_TRACES_EXPORTER": "none",
    }
    model = FunctionModel(lambda body: reply("ok"), pause_s=0.01)
    await run_of(tmp_path, model, 150, telemetry=counting(**facts)).to_end()
    once = {each.SerializeToString(): each for each in found.requests}  # an exporter repeats what was acknowledged late
    entries = [metrics for each in once.values() if "cortex.calls" in (metrics := found.metrics(each))]
    assert {each["cortex.calls"].sum.aggregation_temporality for each in entries} == {1}
    assert sum(_sums(each["cortex.calls"])["cortex.outcome=answered"] for each in entries) == 150
    durations = [each["gen_ai.client.operation.duration"].histogram for each in entries
                 if "gen_ai.client.operation.duration" in each]  # fmt: skip
    assert sum(point.count for each in durations for point in each.data_points) == 150


class _Hangs:
    """A collector that takes its time until it is let, as one does whose host answers nothing."""

    def __init__(self, well: bool = False, let: threading.Event | None = None) -> None:
        self.well, self.let = well, let
        self.sent = self.answered = 0
        self.ended = False

    def export(self, told: Any, timeout_millis: float = 0.0, **_: Any) -> MetricExportResult:
        self.sent += 1
        if self.let is not None:
            self.let.wait(PATIENCE_S)
        self.answered += 1
        return MetricExportResult.SUCCESS if self.well else MetricExportResult.FAILURE

    def shutdown(self, timeout_millis: float = 0.0, **_: Any) -> None:
        self.ended = True


def test_one_warning_for_a_collector_that_is_down_and_a_word_when_it_is_back(caplog):
    caplog.set_level(logging.INFO, "cortex")
    collector = _Hangs()
    some = MetricSamples(0.0, [NumberSample("cortex.jobs", (), 1)])
    exports = MetricExports(lambda: collector, lambda: some, TelemetrySettings(), "http://collector:4318", 0.005)  # type: ignore[arg-type]
    deadline_s = time.monotonic() + PATIENCE_S
    while collector.sent < 10 and time.monotonic() < deadline_s:
        time.sleep(0.005)
    collector.well = True
    while not any("again" in record.getMessage() for record in caplog.records) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    exports.close()
    parts = [record for record in caplog.records if record.name == "cortex.observing.metrics"]
    assert [record.levelname for record in parts] == ["WARNING", "INFO"]
    assert "http://collector:4318" in parts[0].getMessage() and "jobs go on" in parts[0].getMessage()
    assert collector.ended


async def test_nothing_waits_for_a_collector_that_hangs(tmp_path, monkeypatch):
    """Neither the job nor its end, which has a bound: what is slow is in a thread of its own."""
    telemetry, let = counting(), threading.Event()
    assert telemetry.metrics is not None
    metrics = telemetry.metrics
    collector = _Hangs(let=let)
    metrics._make_exports = lambda read, settings: [
        MetricExports(lambda: collector, read, TelemetrySettings(), "there", 0.01)
    ]  # type: ignore[list-item, arg-type]
    close, in_loop = telemetry.close, list[bool]()

    def closed() -> None:
        in_loop.append(threading.current_thread() is threading.main_thread())
        close()

    monkeypatch.setattr(telemetry, "close", closed)
    run = run_of(tmp_path, FunctionModel(), 300, telemetry=telemetry)
    await run.to_end()
    assert (collector.sent, collector.answered) == (1, 0)
    assert in_loop == [False]
    let.set()


async def test_what_is_kept_for_a_collector_that_is_down_is_bounded(tmp_path):
    class Idle:
        def close(self) -> None: ...

    metrics = Metrics(exports=lambda read, settings: [Idle()])
    for n in range(3 * LAST_KEPT):
        meter = metrics.watch(f"job-{n}", str(tmp_path))
        route = Route(endpoint="http://x", model="m")
        terms = JobTerms(job=f"job-{n}", program="batch", params_json=b"{}", fingerprint="f", route=route)
        meter.turn(1, events.Turn(1.0, ((events.Ticked(),),)), [], State(terms=terms))
        meter.close()
    assert len(metrics._last) == LAST_KEPT and not metrics._meters
    read = metrics.read(for_good=True)
    assert read.points and not metrics._last


def test_a_loop_that_has_ended_or_is_busy_leaves_nothing_unawaited_and_nothing_read_for_nobody(tmp_path, monkeypatch):
    class Idle:
        def close(self) -> None: ...

    metrics = Metrics(exports=lambda read, settings: [Idle()])
    loop = asyncio.new_event_loop()

    async def ended_job() -> None:
        meter = metrics.watch("j", str(tmp_path))
        route = Route(endpoint="http://x", model="m")
        terms = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=route)
        meter.turn(1, events.Turn(1.0, ((events.Ticked(),),)), [], State(terms=terms))
        meter.close()

    loop.run_until_complete(ended_job())
    monkeypatch.setattr("actors.observability.metrics.registry.READ_S", 0.01)
    assert metrics.read_elsewhere() is None, "the loop does not turn"
    loop.run_until_complete(asyncio.sleep(0))
    assert metrics._last, "what ended was read for somebody who had gone"
    loop.close()
    gc.collect()  # what earlier tests left warns here, and not below
    with warnings.catch_warnings(record=True) as parts:
        warnings.simplefilter("always")
        found = metrics.read_elsewhere()
        gc.collect()
    assert found is not None and found.points and not metrics._last
    assert not parts, [str(each.message) for each in parts]


async def test_a_collector_that_nobody_hears_of_is_told_of_in_one_line(tmp_path, caplog, capfd):
    """Through the real exporter: its own complaints, one with every try, are not shown."""
    found = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_METRIC_EXPORT_INTERVAL": "100",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "200", "OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}  # fmt: skip
    model = FunctionModel(lambda body: reply("ok"), pause_s=0.02)
    run = run_of(tmp_path, model, 400, telemetry=counting(**found))
    facts = (await run.to_end()).facts
    assert facts["rows_succeeded"] == 400
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in loud] == ["cortex.observing.metrics"], [record.getMessage() for record in loud]
    assert "http://127.0.0.1:9/v1/metrics" in loud[0].getMessage()


@pytest.mark.parametrize("well", [False, True])
def test_a_request_that_outlives_the_close_adds_no_line_when_it_ends(well, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "cortex")
    monkeypatch.setattr(otlp_export, "CLOSE_S", 0.05)
    began, go = threading.Event(), threading.Event()

    class Slow(_Hangs):
        def export(self, told: Any, timeout_millis: float = 0.0, **_: Any) -> MetricExportResult:
            began.set()
            assert go.wait(PATIENCE_S)
            return super().export(told)

    collector = Slow(well=well)
    some = MetricSamples(0.0, [NumberSample("cortex.jobs", (), 1)])
    exports = MetricExports(lambda: collector, lambda: some, TelemetrySettings(), "there", 0.01)  # type: ignore[arg-type]
    assert began.wait(PATIENCE_S)
    exports.close()
    assert len(caplog.records) == 1
    go.set()
    exports._thread.join(PATIENCE_S)
    assert collector.ended and len(caplog.records) == 1


def test_idle_sends_nothing():
    collector = _Hangs(well=True)
    exports = MetricExports(lambda: collector, lambda: MetricSamples(0.0), TelemetrySettings(), "there", 0.005)  # type: ignore[arg-type]
    time.sleep(0.1)
    exports.close()
    assert collector.sent == 0
    assert spread("cortex.turn.duration", ()).count == 0


def test_all_that_waits_is_let_out_at_once_since_each_part_may_wait_for_a_collector() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)

    class Waits:
        met = False

        def close(self) -> None:
            both.wait()
            self.met = True

    class Fails:
        def close(self) -> None:
            raise ValueError("no")

    one, other = Waits(), Waits()
    TelemetryParts(TelemetrySettings(), [one, Fails(), other]).close()  # type: ignore[list-item]
    assert one.met and other.met
