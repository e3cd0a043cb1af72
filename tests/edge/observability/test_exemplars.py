"""Points of the latency histogram name traces: of attempts that a collector is told of, and of no others."""

from __future__ import annotations

import pytest

from actors.observability.metrics.registry import decoded
from actors.observability.metrics.samples import Exemplar
from actors.observability.wiring import of_environ
from cortex.programs.batch import Batch
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, reply, rows
from tests.support.otlp_collector import HttpCollector


async def _named(folder, environ) -> list[Exemplar]:
    """Exemplars of a job's last reading while it ran."""
    telemetry = of_environ(environ, counts=True)
    seen: dict[tuple[str, str], Exemplar] = {}
    asked = 0

    def answer(body: bytes) -> Reply | Failure:
        nonlocal asked
        asked += 1
        found = decoded(telemetry.readings())
        for spread in found.spreads if found is not None else ():
            if spread.name == "gen_ai.client.operation.duration":
                seen.update({(each.trace_id, each.span_id): each for each in spread.exemplars.values()})
        return Failure(FailureKind.REJECTED, "no", 400) if asked % 10 == 5 else reply("ok")

    run = Run(
        folder, FunctionModel(answer, pause_s=0.002), source=ListSource(rows(60)), program=Batch(), telemetry=telemetry
    )  # fmt: skip
    await run.to_end()
    telemetry.close()
    return list(seen.values())


async def test_an_exemplar_names_the_span_of_its_attempt(tmp_path):
    with HttpCollector() as collector:
        named = await _named(tmp_path, collector.environ() | {"OTEL_TRACES_SAMPLER": "always_on"})
        spans = {(span.trace_id.hex(), span.span_id.hex()): span for each in collector.traces.values() for span in each}
    assert named
    for each in named:
        span = spans[each.trace_id, each.span_id]
        assert span.name == "attempt"
        took_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert took_s == pytest.approx(each.value, abs=0.05)


async def test_where_a_trace_is_not_kept_none_is_named(tmp_path):
    assert await _named(tmp_path, {"OTEL_TRACES_SAMPLER": "always_off"}) == []
    sampled_out = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
    assert await _named(tmp_path / "2", sampled_out) == []
