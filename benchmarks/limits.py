"""429 limit of a provider, found and kept over real HTTP: ``python -m benchmarks.limits --json``.

`cortex batch` asks `cortex simulate`, each in its own process; the provider limits requests a minute by a token
bucket. Three providers: limit told in headers, only Retry-After told, nothing told but the 429. Measured from the
**simulated** provider's counts, once a second: the accepted rate over the limit and the share of requests throttled,
from `--from` to `--to` seconds after the first request; and the time of convergence, after which any ten seconds reach
95 % of the limit (requests that the full bucket lends at first count too). Every row must have its answer in the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from actors.simulator.settings import LIMIT_REPORTS
from benchmarks.harness import command, figures, rows

LOOK_S = 1.0
SUSTAINED = 0.95
STAYS_S = 10.0


class Look(msgspec.Struct, frozen=True):
    """Provider's counts at a moment."""

    at_s: float
    accepted: int
    throttled: int


class Provider:
    """`cortex simulate` in its own process."""

    def __init__(self, *settings: str) -> None:
        lines = [word for setting in settings for word in ("--set", setting)]
        argv = [sys.executable, "-m", "actors.cli", "simulate", *lines]
        self._running = subprocess.Popen(argv, env=command.environment(), stdout=subprocess.PIPE, text=True)
        assert self._running.stdout is not None
        self.url = self._running.stdout.readline().split()[-1]

    def stats(self) -> dict[str, Any]:
        """Return all of the provider's counts."""
        with urllib.request.urlopen(f"{self.url}/_sim/stats", timeout=30) as answer:
            return msgspec.json.decode(answer.read(), type=dict[str, Any])

    def look(self) -> Look:
        """Return the counts by now."""
        stats = self.stats()
        return Look(time.monotonic(), stats["requests"] - stats["throttled_by_limit"], stats["throttled_by_limit"])

    def close(self) -> None:
        """End the process."""
        self._running.terminate()
        self._running.wait(10)


def measure(told: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure one provider. Raises ``rows.Lost`` where a row has no answer."""
    calls = round(given.rate * (given.to + 5 + given.burst_s))
    input_, output, state = folder / "in.jsonl", folder / f"{told}.jsonl", folder / f"state-{told}"
    rows.write_input(input_, calls)
    settings = [f"rpm={round(60 * given.rate)}", f"burst_s={given.burst_s}", f"limits_told={told}"]
    provider = Provider(*settings, f"latency_ms={given.latency_ms}", f"remembered_max={10 * calls}")
    try:
        where = ["--base-url", provider.url, "--model", rows.MODEL, "--cluster", given.cluster]
        argv = command.arguments(input_, output, state, *where, "--concurrency", str(given.concurrency))
        running = subprocess.Popen(
            argv, env=command.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        looks = []
        while running.poll() is None:
            looks.append(provider.look())
            time.sleep(LOOK_S)
        assert running.stdout is not None
        summary = msgspec.json.decode(running.stdout.read().splitlines()[-1])
    finally:
        provider.close()
    if (summary["outcome"], summary["rows_succeeded"]) != ("complete", calls):
        raise rows.Lost(f"{calls} rows, and the summary says {summary['outcome']}, {summary['rows_succeeded']}")
    rows.check_all(rows.results(output), calls, echoed=False)
    return reached(looks, given.rate, getattr(given, "from"), given.to)


def reached(looks: list[Look], rate: float, from_s: float, to_s: float) -> dict[str, Any]:
    """Return the figures of a run from the provider's counts over time."""
    began_s = next(look.at_s for look in looks if look.accepted)
    looks = [msgspec.structs.replace(look, at_s=look.at_s - began_s) for look in looks if look.at_s >= began_s]
    inside = [look for look in looks if from_s <= look.at_s <= to_s]
    first, last = inside[0], inside[-1]
    accepted, throttled = last.accepted - first.accepted, last.throttled - first.throttled
    return {
        "sustained": round(accepted / (last.at_s - first.at_s) / rate, 3),
        "throttled": round(throttled / max(accepted + throttled, 1), 4),
        "throttled_before": first.throttled,
        "converged_s": _converged_s(looks, rate),
    }


def _converged_s(looks: list[Look], rate: float) -> float | None:
    for look in looks:
        later = next((other for other in looks if other.at_s >= look.at_s + STAYS_S), None)
        if later and later.accepted - look.accepted >= SUSTAINED * rate * (later.at_s - look.at_s):
            return round(look.at_s, 1)
    return None


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--told", default=",".join(LIMIT_REPORTS), help="limit information sent by the provider")
    parser.add_argument("--rate", type=float, default=30.0, help="provider's limit in requests a second")
    parser.add_argument("--burst-s", type=float, default=5.0, help="bucket size, in seconds at that rate")
    parser.add_argument("--latency-ms", type=float, default=500.0)
    parser.add_argument("--from", type=float, default=30.0, help="seconds after the first request")
    parser.add_argument("--to", type=float, default=80.0)
    parser.add_argument("--cluster", default="inline")
    parser.add_argument("--concurrency", type=int, default=400, help="upper bound of the limit that the job finds")
    given = parser.parse_args()
    if unknown := set(given.told.split(",")) - set(LIMIT_REPORTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(LIMIT_REPORTS)}")
    found: dict[str, Any] = {"machine": figures.machine(), "provider": "simulated", "rate_per_s": given.rate}
    found |= {"burst_s": given.burst_s, "latency_ms": given.latency_ms, "cluster": given.cluster}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for reported in given.told.split(","):
            found[reported] = measure(reported, given, Path(folder))
            figures.said(f"{reported:12} {found[reported]}", given.json)
    figures.tell(found)


if __name__ == "__main__":
    main()
