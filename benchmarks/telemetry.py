"""Cost of telemetry: ``python -m benchmarks.telemetry --json``.

`cortex batch` against the server of `benchmarks.http` (20 ms an answer), in turns: without telemetry, with the
default, and with every span kept, in the state folder or sent to a collector over OTLP. The figure is the median over
the rounds of the ratio to the round's run without telemetry, so that other load slows both. The CPU of each run's own
processes depends less on other load; on Ray it covers processes that end with the run. Server and collector run on the
same machine, unlike a user's, and their cost is reported too (``server_cpu_us``, ``collector_cpu_us``). Where
everything is kept and sent, a run without all its spans has no figure: the collector stores requests and reads them
after the run.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.harness import command, figures, rows
from benchmarks.harness.server import RunningServer
from benchmarks.http import check_counts

WAYS: dict[str, dict[str, str]] = {
    "off": {"OTEL_SDK_DISABLED": "true"},
    "default": {},
    "all": {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_EXPORTER": "otlp"},
    "all_file": {"OTEL_TRACES_SAMPLER": "always_on"},
}
DEFAULT = "off,default,all"


SPANS_A_CALL = 5
"""Spans of a row that is answered at once: goal, choice, call, attempt, absorbing."""


class Sink:
    """Collector that stores requests and decodes them only on demand."""

    def __init__(self) -> None:
        outer = self
        self.size_bytes = 0
        self.cpu_s = 0.0
        self.bodies: list[bytes] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                began_s = time.thread_time()
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.size_bytes += len(body)
                if self.path.endswith("/v1/traces"):
                    outer.bodies.append(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()
                outer.cpu_s += time.thread_time() - began_s

            def log_message(self, *told: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def check(self, calls: int) -> None:
        """Read the requests since the last check, in any order. Raises ``rows.Lost`` unless they hold exactly all
        spans of ``calls`` calls and of their job."""
        ids: set[bytes] = set()
        count = 0
        for body in self.bodies:
            for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
                for of_scope in of_process.scope_spans:
                    count += len(of_scope.spans)
                    ids.update(span.span_id for span in of_scope.spans)
        self.bodies.clear()
        if not len(ids) == count == SPANS_A_CALL * calls + 1:
            raise rows.Lost(f"{calls} calls and their job, and {count} spans came, {len(ids)} different ones")

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


def cpu_s() -> float:
    """Return the CPU seconds of finished children, their own children included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds. Raises ``rows.Lost`` where a call is not answered exactly once."""
    names = given.ways.split(",")
    rates: dict[str, list[float]] = {name: [] for name in names}
    used: dict[str, list[float]] = {name: [] for name in names}
    found: dict[str, Any] = {"machine": figures.machine()}
    server_us: list[float] = []
    sink = Sink()
    with tempfile.TemporaryDirectory(prefix="bench-") as place, RunningServer(given.delay_ms) as server:
        folder = Path(place)
        rows.write_input(folder / "in.jsonl", given.calls)
        for round_ in range(given.rounds):
            for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
                server.reset()
                wire = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint} if name == "all" else {}
                before_s = cpu_s()
                _run(folder, f"{round_}-{name}", given, server.url, WAYS[name] | wire)
                used[name].append(1e6 * (cpu_s() - before_s) / given.calls)
                counts = server.counts()
                check_counts(counts, given.calls, name)
                if name == "all":
                    sink.check(given.calls)
                rates[name].append(counts.calls_per_s)
                server_us.append(1e6 * counts.cpu_s / given.calls)
                text = f"{counts.calls_per_s:7.0f} calls/s, {used[name][-1]:6.0f} us of CPU a call"
                figures.said(f"round {round_ + 1} {name:10} {text}", given.json)
    sink.close()
    for name in names:
        ratios = [rate / off for rate, off in zip(rates[name], rates["off"], strict=True)]
        more_us = [mine - off for mine, off in zip(used[name], used["off"], strict=True)]
        found[name] = {
            "calls_per_s": figures.median(rates[name], 0),
            "ratio": figures.median(ratios, 3),
            "cpu_us": figures.median(used[name], 0),
            "cpu_more_us": figures.median(more_us, 0),
        }
    shape = {"calls": given.calls, "rounds": given.rounds, "delay_ms": given.delay_ms, "cluster": given.cluster}
    sent = max(1, given.calls * given.rounds * ("all" in names))
    found["server_cpu_us"] = figures.median(server_us)
    found["collector_cpu_us"] = round(1e6 * sink.cpu_s / sent, 1)
    found["sent_bytes_a_call"] = round(sink.size_bytes / sent)
    return {**found, **shape, "concurrency": given.concurrency}


def _run(folder: Path, name: str, given: argparse.Namespace, url: str, environ: dict[str, str]) -> None:
    output = folder / f"results-{name}.jsonl"
    where = ["--base-url", url, "--model", rows.MODEL, "--cluster", given.cluster]
    run = command.batch(
        folder / "in.jsonl", output, folder / f"state-{name}", *where, "--concurrency", str(given.concurrency),
        environ=environ,
    )  # fmt: skip
    entries = (run.summary["outcome"], run.summary["rows_succeeded"], run.summary["attempts"])
    if entries != ("complete", given.calls, given.calls):
        raise rows.Lost(f"{given.calls} calls, and the summary says {entries}")
    rows.check_all(rows.results(output), given.calls)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=DEFAULT, help=f"any of {', '.join(WAYS)}; off first")
    parser.add_argument("--cluster", default="inline", help="inline or local")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--concurrency", type=int, default=300)
    given = parser.parse_args()
    names = given.ways.split(",")
    if unknown := set(names) - set(WAYS):
        parser.error(f"no such way: {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    if names[0] != "off":
        parser.error("off comes first: the others are compared with it")
    figures.tell(measure(given))


if __name__ == "__main__":
    main()
