"""The collector's configuration: a pipeline for each signal, and an exporter of its own that takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from k8s.chart.files import TEXTS
from tests.manifests import collector
from tests.manifests.rendering import K8S, named, rendered
from tests.manifests.test_policies import put
from tests.manifests.test_traffic import BRANCH, COLLECTOR, HEAD, PASS, REFUSED, WORKER, at, wrong
from tests.manifests.test_valid import with_components
from tests.manifests.traffic import End


def container(found: list[dict[str, Any]]) -> dict[str, Any]:
    (one,) = named(found, "Deployment", "cortex-collector")["spec"]["template"]["spec"]["containers"]
    return one


@pytest.fixture
def config() -> dict[str, Any]:
    (found,) = [one for one in rendered("collector") if one["kind"] == "ConfigMap"]
    return yaml.safe_load(found["data"]["config.yaml"])


@pytest.fixture
def variables() -> set[str]:
    return {each["name"] for each in container(rendered("collector"))["env"]}


def test_each_signal_has_a_pipeline_and_an_exporter_that_takes_it(config, variables):
    assert collector.findings(config, variables) == []
    assert set(config["service"]["pipelines"]) == {"traces", "metrics", "logs"}


def test_the_components_are_those_of_the_image(config):
    assert container(rendered("collector"))["image"] == "otel/opentelemetry-collector:0.159.0", "look at its manifest again"


PIPELINES = "service.pipelines."
WRONG: list[tuple[Callable[[Any], None], str]] = [
    (put(PIPELINES + "logs.exporters.0", "otlp_http/traces"), "logs: otlp_http/traces sends it where traces go"),
    (put(PIPELINES + "metrics.exporters.0", "otlp_http/metric"), "metrics: otlp_http/metric is not among the exporters"),
    (put(PIPELINES + "logs.receivers.0", "otlp/2"), "logs: otlp/2 is not among the receivers"),
    (put(PIPELINES + "traces.processors.0", "batch"), "traces: the memory limiter is not first"),
    (lambda one: one["service"]["pipelines"].pop("logs"), "no pipeline takes logs"),
    (put("exporters.otlp_http/logs.endpoint", ""), "otlp_http/logs has no endpoint"),
    (put("exporters.otlp_http/logs.endpoint", "${env:METRICS_ENDPOINT}"), "otlp_http/logs has ${env:METRICS_ENDPOINT}, which is another signal's"),
    (put("exporters.otlp_http/logs.endpoint", "${env:LOGS_ADDRESS}"), "nobody sets LOGS_ADDRESS"),
    (put("exporters.otlphttp", {"endpoint": "http://a"}), "the image has no exporter otlphttp"),
    (put("exporters.debug", {}), "debug is used by no pipeline"),
    (put("service.extensions.1", "bearertokenauth"), "extension bearertokenauth is not there"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_what_the_collector_would_refuse_is_seen(config, variables, change, told):
    change(config)
    assert told in collector.findings(config, variables)


@pytest.mark.parametrize(
    ("exporter", "signal"), [("prometheusremotewrite", "logs"), ("prometheus", "traces"), ("zipkin", "metrics")]
)
def test_an_exporter_gets_no_signal_that_it_does_not_take(config, variables, exporter, signal):
    config["exporters"][exporter] = {}
    config["service"]["pipelines"][signal]["exporters"] = [exporter]
    assert f"{signal}: {exporter} takes no {signal}" in collector.findings(config, variables)


def test_addresses_are_values_and_secrets_are_none():
    told = {each["name"]: each for each in container(rendered("overlays/production"))["env"]}
    for signal in ("traces", "metrics", "logs"):
        assert TEXTS[told[f"{signal.upper()}_ENDPOINT"]["value"]] == ("collector", signal)
        key = told[f"{signal.upper()}_AUTHORIZATION"]["valueFrom"]["secretKeyRef"]
        assert key == {"name": "cortex-telemetry", "key": signal, "optional": True}


def test_metrics_are_told_once():
    """Prometheus scrapes Ray's port; without it, the collector gets them."""
    from k8s.chart.sources import without

    whole = rendered("overlays/production")
    for found, wanted in ((whole, {"none"}), (without("prometheus", whole), {None}), (without("collector", whole), {"none"})):
        spec = named(found, "RayCluster", "cortex")["spec"]
        pods = [group["template"]["spec"]["containers"][0] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
        variables = [{each["name"]: each.get("value") for each in pod["env"]} for pod in pods]
        assert {each.get("OTEL_METRICS_EXPORTER") for each in variables} == wanted


def test_backends_in_the_cluster_are_reached_by_the_collector_alone(tmp_path):
    backends = [(End({"app": "loki"}, "monitoring"), 3100), (End({"app": "tempo"}, "monitoring"), 4318), (End({"app": "prometheus"}, "monitoring"), 9090)]
    rows = [(COLLECTOR, end, port, "TCP") for end, port in backends]
    assert wrong(rendered("overlays/production"), rows, False) == []
    found = with_components(K8S / "overlays" / "production", tmp_path, K8S / "collector" / "inside")
    assert wrong(found, rows, True) == [] and wrong(found, PASS, True) + wrong(found, REFUSED, False) == []
    others = [(each, end, port, "TCP") for each in (HEAD, BRANCH, WORKER) for end, port in backends]
    others += [(COLLECTOR, End({"app": "loki"}, "shop"), 3100, "TCP"), (COLLECTOR, backends[0][0], 22, "TCP"), (COLLECTOR, at("10.0.0.1"), 3100, "TCP")]
    assert wrong(found, others, False) == []
