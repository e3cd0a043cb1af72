"""Steps a second of one chain, each step voted on with k = 3: ``python -m benchmarks.steps --json``.

A chain cannot hurry: a step begins when the one before is decided and on disk. Measured between the first call and the
last, so starts count for nobody. Two models, in process: one that knows the moves and answers at once, so that what
remains is Cortex alone; and the **simulated** provider, whose bounded reasoner reads each prompt. Beside them, on the
same disk at the same moment: what one commit of SQLite costs that holds as much as a step does, below which no chain
that is on disk step by step can be. On Ray (``--cluster local``): the simulated provider alone, two lengths of chain,
the difference.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import cortex
from actors.cluster.heap import settle
from actors.simulator.inprocess import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from benchmarks import command, figures
from benchmarks.models import Oracle
from cortex.programs.hanoi import Hanoi
from cortex.reply import Reply
from policies.failure import Failure

K = 3
TURN_BYTES = 1_150
"""What a step adds to the journal: three replies of the simulated provider."""
COMMITS = 1_000
SHORT_DISKS = 5
"""The shorter of the two chains on Ray."""


class Timed:
    """A model, and when it was asked first and last."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.endpoint, self.rate = model.endpoint, None
        self.first_s = self.last_s = self.cpu_s = 0.0
        """When; and what this process had used of a core by the first time."""

    async def call(self, body: bytes, **how: Any) -> Reply | Failure:
        """Note the time, and pass it on."""
        self.last_s = time.perf_counter()
        if not self.first_s:
            self.first_s, self.cpu_s = self.last_s, _cpu_s()
        return await self._model.call(body, **how)  # type: ignore[no-any-return]

    async def count_tokens(self, body: bytes) -> int | None:
        """As the model does."""
        return await self._model.count_tokens(body)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """With the model."""
        await self._model.close()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def inline(model: Any, disks: int, folder: Path) -> dict[str, float]:
    """One chain in this process: steps a second, and CPU a step."""
    timed = Timed(model)
    with tempfile.TemporaryDirectory(dir=folder) as state:
        done = cortex.run(Hanoi(disks=disks, k=K), model=timed, state=state, cluster="inline", progress=False)
    assert done.answer["solved"], done
    steps = 2**disks - 2  # between the first call of the first and the last call of the last
    rate, cpu_s = steps / (timed.last_s - timed.first_s), _cpu_s() - timed.cpu_s
    return {"steps_per_s": rate, "cpu_us_per_step": cpu_s / steps * 1e6}


def commit_us(folder: Path) -> float:
    """Microseconds of one commit of a step's bytes to a SQLite journal in this folder; the median."""
    with tempfile.TemporaryDirectory(dir=folder) as state:
        db = sqlite3.connect(Path(state) / "commits.sqlite", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE turns (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
        took = []
        for _ in range(COMMITS):
            blob = os.urandom(TURN_BYTES)
            began_s = time.perf_counter()
            db.execute("INSERT INTO turns (blob) VALUES (?)", (blob,))
            took.append(time.perf_counter() - began_s)
        db.close()
    return statistics.median(took) * 1e6


def on_ray(disks: int, folder: Path) -> dict[str, float]:
    """A chain on a private Ray, less a short one: steps a second."""
    long_s, short_s = (_whole_s(count, folder) for count in (disks, SHORT_DISKS))
    return {"steps_per_s": (2**disks - 2**SHORT_DISKS) / (long_s - short_s)}


def _whole_s(disks: int, folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as state:
        argv = [
            sys.executable, "-m", "actors.cli", "run", "hanoi", "-p", f"disks={disks}", "-p", f"k={K}",
            "--model", "sim", "--sim", "error=0", "--state", state, "--cluster", "local", "--json",
        ]  # fmt: skip
        ended = subprocess.run(argv, env=command.environment(), capture_output=True, text=True, check=True)
    return float(msgspec.json.decode(ended.stdout.splitlines()[-1])["elapsed_s"])


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--disks", type=int, default=12, help="a chain of 2^disks - 1 steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", choices=("inline", "local"), default="inline")
    parser.add_argument("--state", default=tempfile.gettempdir(), help="a folder on the disk that is meant")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    given = parser.parse_args()
    folder = Path(given.state)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "benchmark": "steps", "machine": figures.machine(), "steps": 2**given.disks - 1, "k": K,
        "cluster": given.cluster, "rounds": [],
    }  # fmt: skip
    settle()
    for _ in range(given.rounds):
        measured: dict[str, Any] = {"commit_us": commit_us(folder)}
        if given.cluster == "local":
            measured["simulated"] = on_ray(given.disks, folder)
        else:
            measured["oracle"] = inline(Oracle(given.disks), given.disks, folder)
            measured["simulated"] = inline(SimulatedModel(SimulatorSettings(error=0.0)), given.disks, folder)
        found["rounds"].append(measured)
        figures.said(f"{measured}", given.json)
    for name in ("oracle", "simulated"):
        rates = [each[name]["steps_per_s"] for each in found["rounds"] if name in each]
        if rates:
            found[name] = {"best": round(max(rates)), "median": round(statistics.median(rates))}
    figures.tell(found)


if __name__ == "__main__":
    main()
