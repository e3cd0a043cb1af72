"""Memory of a large batch: ``python -m benchmarks.memory --json``.

`cortex batch` on 200,000 requests of 1 KB with the simulated provider at no latency. The resident memory of every
process of the job is sampled; reported are each peak and the rise over the second half (by results written) of the
line fitted through it.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import command, figures, rows
from benchmarks.harness.processes import Sample, Watch, fitted_slope

PEAK_MB_MAX = 700.0
RISE_MB_MAX = 10.0
"""Goal for the rise over the second half: 100 bytes a call at the full size."""
RESULT_BYTES = 430
"""Approximate length of a result line, used for the share of the work done."""


def watched(input_: Path, folder: Path, calls: int, options: list[str]) -> tuple[dict[str, list[Sample]], float]:
    """Run `cortex batch` under the sampler; return samples by process and the seconds taken."""
    output = folder / "results.jsonl"
    argv = command.arguments(input_, output, folder / "state", "--model", "sim", *options)
    began = time.perf_counter()
    with subprocess.Popen(
        argv, env=command.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        expected_bytes = calls * RESULT_BYTES
        watch = Watch(process.pid, lambda: output.stat().st_size / expected_bytes if output.exists() else 0.0)
        out, text = process.communicate()
        watch.stop()
    if process.returncode != 0:
        raise RuntimeError(f"cortex batch ended with {process.returncode}: {text[-2_000:]}")
    summary = msgspec.json.decode(out.splitlines()[-1])
    if (summary["outcome"], summary["rows_succeeded"]) != ("complete", calls):
        raise rows.Lost(f"{calls} calls, and the summary says {summary}")
    rows.check_all(rows.results(output), calls, echoed=False)
    final = output.stat().st_size / expected_bytes
    samples = {
        name: [msgspec.structs.replace(one, done=one.done / final) for one in some]
        for name, some in watch.samples.items()
    }
    return samples, time.perf_counter() - began


def read(samples: list[Sample]) -> dict[str, float]:
    """Return the peak of one process and the slope of its second half."""
    half = [(one.done, one.rss_mb) for one in samples if 0.5 <= one.done < 0.999]
    rise_mb = fitted_slope(half) / 2  # the slope is per whole work, and the half has half of the work
    return {
        "peak_mb": round(max(one.rss_mb for one in samples), 1),
        "second_half_rise_mb": round(rise_mb, 2),
        "second_half_mean_mb": round(sum(y for _, y in half) / len(half), 1) if half else 0.0,
        "samples": len(samples),
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run once for each cluster."""
    found: dict[str, Any] = {
        "calls": given.calls, "request_bytes": given.size_bytes, "machine": figures.machine(), "reached": True,
    }  # fmt: skip
    options = ["--concurrency", str(given.concurrency), *(f"--sim={setting}" for setting in given.sim)]
    for cluster in given.clusters.split(","):
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            folder = Path(name)
            input_ = folder / "requests.jsonl"
            rows.write_input(input_, given.calls, given.size_bytes)
            samples, whole_s = watched(input_, folder, given.calls, [*options, "--cluster", cluster])
            if given.samples:
                Path(f"{given.samples}-{cluster}.json").write_bytes(msgspec.json.encode(samples))
        processes = {name: read(some) for name, some in samples.items() if len(some) > 1}
        peak_mb = max(one["peak_mb"] for one in processes.values())
        rise_mb = max(one["second_half_rise_mb"] for one in processes.values())
        found[cluster] = {
            "peak_mb": peak_mb,
            "second_half_rise_mb": rise_mb,
            "whole_s": round(whole_s, 1),
            "calls_per_s": round(given.calls / whole_s),
            "processes": processes,
        }
        found["reached"] &= peak_mb < PEAK_MB_MAX and rise_mb < RISE_MB_MAX
        for what, one in sorted(processes.items(), key=lambda item: -item[1]["peak_mb"]):
            text = f"peak {one['peak_mb']:6.1f} MB, second half {one['second_half_rise_mb']:+.2f} MB"
            figures.said(f"{cluster:7} {what:40} {text}", given.json)
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--size-bytes", type=int, default=1_000, help="bytes of a request line")
    parser.add_argument("--concurrency", type=int, default=300)
    parser.add_argument("--clusters", default="inline,local", help="inline, local, or both separated by a comma")
    parser.add_argument("--sim", action="append", default=[], metavar="NAME=VALUE", help="provider setting")
    parser.add_argument("--samples", default="", metavar="STEM", help="write the samples to STEM-inline.json and so on")
    figures.tell(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
