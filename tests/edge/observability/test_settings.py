"""The standard variables, as they are read: defaults, one signal's own, complaints; and no key in anything shown."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from actors.observability.base.settings import HEADERS, TelemetrySettings
from actors.providers.credentials.environment import scrub
from tests.support.patience import PATIENCE_S


def read(**environ: str) -> TelemetrySettings:
    return TelemetrySettings.from_environ(environ)


def test_where_nothing_is_said_spans_stay_in_the_state_folder():
    found = read()
    assert found.traces.exporters == ("file",)
    assert found.metrics.exporters == found.logs.exporters == ()
    assert (found.service, found.sampler, found.propagators, found.captures) == ("cortex", "", (), False)
    assert found.problems == ()


@pytest.mark.parametrize(
    ("environ", "exporters", "protocol", "endpoint"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",), "http/protobuf", "http://localhost:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, ("otlp",), "http/protobuf", "http://c:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/x"}, ("otlp",), "http/protobuf", "http://c/x"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ("otlp",),
            "grpc",
            "http://c:4317",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            ("otlp",),
            "grpc",
            "http://localhost:4317",
        ),
        ({"OTEL_TRACES_EXPORTER": "none"}, (), "http/protobuf", "http://localhost:4318/v1/traces"),
        ({"OTEL_TRACES_EXPORTER": "otlp, file"}, ("otlp", "file"), "http/protobuf", "http://localhost:4318/v1/traces"),
    ],
)
def test_where_traces_go(environ, exporters, protocol, endpoint):
    found = read(**environ).traces
    assert (found.exporters, found.protocol, found.endpoint) == (exporters, protocol, endpoint)


def test_switched_off_nothing_is_told():
    found = read(OTEL_SDK_DISABLED="true", OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4318", OTEL_PROPAGATORS="tracecontext")
    assert found.traces.exporters == found.metrics.exporters == found.logs.exporters == ()
    assert found.propagators == ()


def test_a_signals_own_word_goes_before_the_common_one():
    found = read(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://all:4318",
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://metrics:9/m",
        OTEL_EXPORTER_OTLP_HEADERS="x-key=one,Team=a%20b",
        OTEL_EXPORTER_OTLP_LOGS_HEADERS="x-key=two",
        OTEL_EXPORTER_OTLP_TIMEOUT="2500",
    )
    assert found.metrics.endpoint == "http://metrics:9/m"
    assert found.logs.endpoint == "http://all:4318/v1/logs"
    assert found.traces.headers == (("x-key", "one"), ("team", "a b"))
    assert found.logs.headers == (("x-key", "two"),)
    assert found.traces.timeout_s == 2.5


def test_names_sampler_and_content():
    found = read(
        OTEL_SERVICE_NAME="rows",
        OTEL_RESOURCE_ATTRIBUTES="service.name=other,team=a%2Cb,env=test",
        OTEL_TRACES_SAMPLER="parentbased_traceidratio",
        OTEL_TRACES_SAMPLER_ARG="0.25",
        OTEL_PROPAGATORS="tracecontext,baggage",
        OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY",
    )
    assert (found.service, found.resource) == ("rows", (("team", "a,b"), ("env", "test")))
    assert (found.sampler, found.ratio) == ("parentbased_traceidratio", 0.25)
    assert found.propagators == ("tracecontext", "baggage")
    assert found.captures
    assert read(OTEL_RESOURCE_ATTRIBUTES="service.name=other").service == "other"


def test_the_limit_of_texts_is_the_standards_and_that_of_spans_goes_first():
    assert read().chars_max > 1 << 60
    assert read(OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT="100").chars_max == 100
    both = {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "100", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "50"}
    assert read(**both).chars_max == 50


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_SDK_DISABLED", "yes"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_BSP_SCHEDULE_DELAY", "nan"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "sk-secret-without-equals"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "some"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "0"),
    ],
)
def test_what_is_not_understood_is_complained_of_once_and_left_out(name, value):
    found = read(**{name: value})
    assert len(found.problems) == 1, found.problems
    assert name in found.problems[0]
    assert "sk-secret" not in found.problems[0]
    assert msgspec.structs.replace(found, problems=()) in (read(), read(OTEL_TRACES_EXPORTER="none"))


def test_headers_are_shown_nowhere_and_leave_the_environment():
    secret = "Bearer sk-very-secret-9"
    environ = dict.fromkeys(HEADERS, f"authorization={secret}") | {"PATH": "/bin"}
    found = TelemetrySettings.from_environ(environ)
    for shown in (repr(found), str(found), f"{found.traces!r}", repr(found.traces.__rich_repr__())):
        assert "secret" not in shown
    assert set(scrub(environ)) == set(HEADERS)
    assert environ == {"PATH": "/bin"}


def test_headers_travel_apart():
    with_key = read(OTEL_EXPORTER_OTLP_TRACES_HEADERS="x-key=one", OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4318")
    without = read(OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4318")
    assert without.headers() == {}
    assert without.with_headers(with_key.headers()) == with_key
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(with_key), type=TelemetrySettings) == with_key


MADE = """
import os, sys
from actors.observability.traces import exporters
from actors.observability.logs import otlp_export as otlp_logs
from actors.observability.metrics import otlp_export as otlp_metrics
from actors.observability.base.settings import SignalSettings

signal = SignalSettings(exporters=("otlp",), endpoint="http://127.0.0.1:9", protocol="grpc")
made = {
    "traces": lambda: exporters._over_grpc(signal), "logs": lambda: otlp_logs.exporter_of(signal),
    "metrics": lambda: otlp_metrics.exporter_of(signal, "otlp"),
}
assert "grpc" not in sys.modules, "nothing else imports it"
made[sys.argv[1]]()
assert "grpc" in sys.modules
print(os.environ["GRPC_ENABLE_FORK_SUPPORT"])
"""


@pytest.mark.parametrize(
    ("signal", "users", "is_"), [("traces", "", "0"), ("logs", "", "0"), ("metrics", "", "0"), ("logs", "1", "1")]
)
def test_what_ray_forks_beside_an_exporter_over_grpc_does_not_die_of_its_handlers(signal, users, is_):
    kept = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    facts = kept | ({"GRPC_ENABLE_FORK_SUPPORT": users} if users else {})
    command = [sys.executable, "-c", MADE, signal]
    done = subprocess.run(command, env=facts, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout.strip(), done.returncode) == (is_, 0), done.stderr
