"""Comparison of Cortex with alternatives in one run: ``python -m benchmarks.peers --json``.

Each peer is installed from PyPI into its own environment (`environments.toml`, kept in a cache folder) and runs its
own script (`scripts/`): N different questions to the benchmarks' server at 20 ms an answer (``http``), and the same
with a model that answers at once (``null``). Peers and Cortex take turns, each in a fresh process; medians over the
rounds. ``http`` is the server's view, from the first request to the last answer; ``null`` is from the first question
to the last answer that the caller has; start-up does not count. The server checks that nothing is asked twice, the
script that each call has its own answer. Slow peers are given fewer calls. ``--kill`` kills peers that keep something
with SIGKILL half way, starts them again and counts repeated calls. A peer that cannot run is named and has no figure.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import figures, rows
from benchmarks.harness.server import RunningServer
from benchmarks.peers import environments, runs
from benchmarks.peers.known import PEERS, Peer

WORKS = ("http", "null")
LEAST = 300
"""Least number of calls that `--share` leaves: the first calls are all asked at once and give no rate."""
AIMS = {
    "asyncio: at least 2.5 times one process with messages.create on aiohttp": ("asyncio", 2.5),
    "DBOS: at least 10 times a durable peer": ("dbos", 10.0),
    "bare: at least 95 % of two bare processes": ("bare", 0.95),
}


def installed(names: Iterable[str], json_only: bool) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the Python of each environment, and the reasons for missing ones."""
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            pythons[name] = environments.python(name)
        except environments.NotInstalled as error:
            missing[name] = f"not installed: {error}"
            figures.said(f"{name}: {missing[name]}", json_only)
    return pythons, missing


class Table:
    """Results so far, a row a peer."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        for peer in peers:
            self.rows[peer.name] = {"durable": peer.durable, **{work: {"rounds": []} for work in peer.works}}

    def ran(self, peer: Peer, work: str, calls: int, rate: float, cpu_us: float) -> None:
        """Add a round."""
        row = self.rows[peer.name][work]
        row["calls"] = calls
        row["rounds"].append(rate)
        row.setdefault("cpu_us", []).append(round(cpu_us))
        row.setdefault("loads_1min", []).append(round(os.getloadavg()[0], 1))

    def failed(self, peer: Peer, work: str, why: str) -> None:
        """Record a failure: a peer that failed once has no figure, whatever its other rounds gave."""
        self.rows[peer.name][work] = {"not_run": why}

    def runs(self, peer: Peer, work: str) -> bool:
        """Return whether the peer supports this work and has not failed."""
        return "rounds" in self.rows[peer.name].get(work, {})

    def close(self, ours: tuple[str, ...] = ("inline", "local")) -> dict[str, Any]:
        """Return medians, and our rate as a multiple of each peer's."""
        for row in self.rows.values():
            for work in WORKS:
                if row.get(work, {}).get("rounds"):
                    row[work]["calls_per_s"] = figures.median(row[work]["rounds"], 0)
                    row[work]["cpu_us_a_call"] = figures.median(row[work].pop("cpu_us"), 0)
                    row[work]["rounds"] = [round(rate) for rate in row[work]["rounds"]]
        for row in self.rows.values():
            for work in WORKS:
                for own in ours:
                    mine = self.rows.get(own, {}).get(work, {}).get("calls_per_s")
                    theirs = row.get(work, {}).get("calls_per_s")
                    if mine and theirs:
                        row[work][f"{own}_to_it"] = round(mine / theirs, 2)
        return self.rows


def aims(found: dict[str, Any]) -> dict[str, Any]:
    """Return the goals over HTTP and the values reached."""
    facts = {}
    for sentence, (peer, least) in AIMS.items():
        row = found.get(peer, {}).get("http", {})
        ratios = {own: row[f"{own}_to_it"] for own in ("inline", "local") if f"{own}_to_it" in row}
        if ratios:
            facts[sentence] = {"ratios": ratios, "reached": {own: ratio >= least for own, ratio in ratios.items()}}
    return facts


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds of all peers."""
    names = given.peers.split(",") if given.peers else list(PEERS)
    peers = [PEERS[name] for name in names]
    pythons, missing = installed((peer.environment for peer in peers if peer.environment), given.json)
    found: dict[str, Any] = {"machine": figures.machine()}
    table = Table(peers)
    for peer in peers:
        for work in peer.works if peer.environment in missing else ():
            table.failed(peer, work, missing[peer.environment])
    until_s = time.monotonic() + 60 * given.minutes
    kept = tempfile.TemporaryDirectory(prefix="peers-", dir=given.state, ignore_cleanup_errors=True)
    with kept as folder, RunningServer(given.delay_ms) as server:
        bench = runs.Bench(Path(folder), server, pythons, given.at_once, given.concurrency)
        for round_ in range(given.rounds):
            for work in given.works.split(","):
                for peer in peers:
                    if not table.runs(peer, work) or time.monotonic() > until_s:
                        continue
                    calls = max(min(LEAST, peer.works[work]), round(peer.works[work] * given.share))
                    try:
                        rate, cpu_us = bench.measured(peer, work, calls)
                    except runs.Failed as error:
                        table.failed(peer, work, str(error))
                        figures.said(f"round {round_ + 1} {peer.name:18} {work} not run: {error}", given.json)
                        continue
                    table.ran(peer, work, calls, rate, cpu_us)
                    text = f"{rate:8.0f} calls/s, {cpu_us:6.0f} µs of CPU a call, load {os.getloadavg()[0]:.1f}"
                    figures.said(f"round {round_ + 1} {peer.name:18} {work} {text}", given.json)
        for peer in peers if given.kill else ():
            if peer.keeps and table.runs(peer, "http"):
                table.rows[peer.name]["killed"] = text = bench.killed(peer, peer.kill_calls)
                figures.said(f"killed  {peer.name:18} {text}", given.json)
    found["peers"] = table.close()
    found["aims"] = aims(found["peers"])
    found["versions"] = {name: environments.versions(python) for name, python in pythons.items()}
    found["load_1min_after"] = round(os.getloadavg()[0], 2)
    return found | {key: getattr(given, key) for key in ("rounds", "delay_ms", "at_once", "concurrency", "share")}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=120.0, help="minutes after which no run starts")
    parser.add_argument("--peers", default="", help=f"any of {', '.join(PEERS)}")
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--share", type=float, default=1.0, help="share of each peer's calls")
    parser.add_argument("--kill", action="store_true", help="count calls repeated after a kill -9")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--at-once", type=int, default=100, help="calls at once of each peer")
    parser.add_argument("--concurrency", type=int, default=300, help="permits of a cortex batch")
    parser.add_argument("--state", default=None, help="folder on the disk to measure")
    parser.add_argument("--plot", type=Path, help="draw the table into this folder (extra `claims`)")
    given = parser.parse_args()
    for chosen, there in ((given.peers, PEERS), (given.works, WORKS)):
        if unknown := set(filter(None, chosen.split(","))) - set(there):
            parser.error(f"no such thing: {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    try:
        found = measure(given)
    except rows.Lost as error:
        parser.exit(1, f"{error}\n")
    if given.plot:
        from benchmarks.peers.plots import saved

        found["plots"] = saved(given.plot, found)
    figures.tell(found)


if __name__ == "__main__":
    main()
