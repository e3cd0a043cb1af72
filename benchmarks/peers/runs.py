"""Run of one peer, or of Cortex: calls a second, and calls repeated after a kill -9."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import http
from benchmarks.harness import command, rows
from benchmarks.harness.server import RunningServer
from benchmarks.peers.known import Peer

RUN_S = 300
ROUNDS_OF_CALLS = 3
"""Least calls of a run, as a multiple of the calls at once."""
SCRIPTS = Path(__file__).with_name("scripts")


class Failed(Exception):
    """Error: reason why a run has no figure, in one line."""


class Bench:
    """Runs, one after another, each with its own state folder."""

    def __init__(
        self, folder: Path, server: RunningServer, pythons: Mapping[str, Path], at_once: int, concurrency: int
    ) -> None:
        self._folder = folder
        self._server = server
        self._pythons = pythons
        self._at_once = at_once
        self._concurrency = concurrency
        self._runs = 0

    def measured(self, peer: Peer, work: str, calls: int) -> tuple[float, float]:
        """Return calls a second and CPU a call in µs (0 where not all processes can be seen).

        Our CPU includes start-up. Raises ``Failed``, and ``rows.Lost`` where Cortex loses a call.
        """
        if calls < ROUNDS_OF_CALLS * self._at_once_of(peer):
            raise Failed(
                f"{calls} calls, {self._at_once_of(peer)} at once, are no rate: all are asked at the beginning"
            )
        state = self._state(peer)
        self._server.reset()
        if work == "null" or peer.environment:
            facts = self._answered(peer, self._argv(peer, work, calls, state), calls, state)
        else:
            road = http.Bench(state, self._server.url, calls, self._concurrency, self._at_once).roads
            before_s = _cpu_s()
            road["ray" if peer.name == "local" else peer.name]()
            facts = {"cpu_s": _cpu_s() - before_s}
        cpu_us = facts.get("cpu_s", 0.0) / calls * 1e6 if peer.processes_seen else 0.0
        if work == "null":
            return float(facts["answered"] / facts["took_s"]), cpu_us
        counts = self._server.counts()
        try:
            http.check_counts(counts, calls, peer.name)
        except rows.Lost as error:
            if not peer.environment:
                raise
            raise Failed(str(error)) from None
        return counts.calls_per_s, cpu_us

    def killed(self, peer: Peer, calls: int) -> dict[str, Any]:
        """Kill with SIGKILL when half of the calls have come and start again; return the server's counts. Raises
        ``rows.Lost`` where Cortex lost or doubled a result; a peer's script checks its own."""
        state = self._state(peer)
        self._server.reset()
        argv = self._argv(peer, "http", calls, state)
        first = subprocess.Popen(
            argv, cwd=self._cwd(peer, state), env=_environment(), start_new_session=True, **_SILENT
        )
        until_s = time.monotonic() + RUN_S
        while (seen := self._server.counts().requests) < calls // 2:
            if first.poll() is not None or time.monotonic() > until_s:
                return {"not_run": "it ended, or stood still, before half of the calls had come"}
            time.sleep(0.002)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        time.sleep(0.1)  # answers in transit reach nobody
        seen = self._server.counts().requests
        try:
            self._answered(peer, argv, calls, state)
        except Failed as error:
            return {"calls": calls, "asked_when_killed": seen, "not_run": str(error)}
        if not peer.environment:
            rows.check_all(rows.results(state / "results.jsonl"), calls)
        return {"calls": calls, "asked_when_killed": seen, "asked_again": self._server.counts().requests - calls}

    def _state(self, peer: Peer) -> Path:
        self._runs += 1
        state = self._folder / f"{self._runs}-{peer.name}"
        state.mkdir()
        return state

    def _at_once_of(self, peer: Peer) -> int:
        return min(self._at_once, peer.at_once_max)

    @staticmethod
    def _cwd(peer: Peer, state: Path) -> Path | None:
        return state if peer.environment else None  # a peer must not find our modules

    def _argv(self, peer: Peer, work: str, calls: int, state: Path) -> list[str]:
        shape = ["--calls", str(calls), "--state", str(state)]
        if not peer.environment and work == "null":
            return [sys.executable, "-m", "benchmarks.peers.ours", *shape, "--at-once", str(self._concurrency)]
        if not peer.environment:
            asked, output = state / "requests.jsonl", state / "results.jsonl"
            rows.write_input(asked, calls)
            where = ["--base-url", self._server.url, "--model", rows.MODEL, "--cluster", peer.name]
            return command.arguments(asked, output, state / "state", *where, "--concurrency", str(self._concurrency))
        how = ["--url", self._server.url, "--work", work, "--at-once", str(self._at_once_of(peer))]
        more = ["--cpus", str(os.cpu_count() or 1), "--variant", peer.variant]
        return [str(self._pythons[peer.environment]), str(SCRIPTS / f"{peer.road}.py"), *shape, *how, *more]

    def _answered(self, peer: Peer, argv: list[str], calls: int, state: Path) -> dict[str, Any]:
        """Run to the end; return the object on the last line of output."""
        errors = state / "stderr"
        with errors.open("w") as wrapper:
            running = subprocess.Popen(
                argv, cwd=self._cwd(peer, state), env=_environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=wrapper, text=True, start_new_session=True,
            )  # fmt: skip
            try:
                text, _ = running.communicate(timeout=RUN_S)
            except subprocess.TimeoutExpired:
                raise Failed(f"not through after {RUN_S} s") from None
            finally:  # a session of its own would outlive an interrupted benchmark
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)
                    running.communicate()
        if running.returncode:
            last = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()][-1:]
            raise Failed(f"exit code {running.returncode}: {''.join(last)[:300]}")
        found: dict[str, Any] = msgspec.json.decode(text.splitlines()[-1])
        if found.get("answered", found.get("rows_succeeded")) != calls:
            raise Failed(f"{calls} calls, and it says {found}")
        return found


_SILENT: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _cpu_s() -> float:
    """Return the CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    """Return our environment without our modules on the path."""
    return {**command.environment(), "PYTHONPATH": "", "PYTHONUNBUFFERED": "1"}
