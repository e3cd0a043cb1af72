"""Job with metrics: its telemetry, readings of it, and a parsed Prometheus page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from actors.observability.metrics.prometheus_text import page
from actors.observability.metrics.registry import Metrics
from actors.observability.metrics.samples import MetricSamples
from actors.observability.wiring import TelemetryParts, of_environ
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def counting(**environ: str) -> TelemetryParts:
    """Return the telemetry of a process with metrics."""
    made = of_environ(environ, counts=True)
    assert isinstance(made, TelemetryParts)
    return made


def metrics_of(telemetry: TelemetryParts) -> Metrics:
    assert telemetry.metrics is not None
    return telemetry.metrics


def run_of(folder: Path, model: FunctionModel, count: int = 20, **more: Any) -> Run:
    return Run(folder, model, source=ListSource(rows(count)), **more)


def found_in(readings: MetricSamples, accept: str = "text/plain") -> Found:
    """Return the value of each series by its name and labels in Prometheus' form."""
    body, _ = page(readings, {}, accept)
    return parsed(body.decode())


def parsed(text: str) -> Found:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(found: Found, name: str, **labels: str) -> float:
    """Return the sum over series of this name that have these labels."""
    some = [value for (own, has), value in found.items() if own == name and set(labels.items()) <= has]
    assert some, f"no {name} with {labels} in {sorted({own for own, _ in found})}"
    return sum(some)
