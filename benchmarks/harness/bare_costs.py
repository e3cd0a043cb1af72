"""Yardsticks of a job's overhead: bare commits on the same disk, and round trips between two bare Ray actors."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

COMMITS = TRIPS = 1_000
WARM = 50
"""Uncounted calls at the beginning: waiting for the first permit, first execution of code."""
STEP_BYTES = 1_150
"""Journal bytes of a voted step: three replies of the simulated provider."""
MEMORY = Path("/dev/shm")


_numbers = itertools.count()


def another(job: str) -> str:
    """Return a job name new to this process: on a Ray that stays up an equal name means the same job."""
    return f"{job}-{next(_numbers):03d}"


def commits_ms(folder: Path, size_bytes: int) -> list[float]:
    """Return the milliseconds of ``COMMITS`` bare commits of ``size_bytes`` on the folder's disk."""
    with tempfile.TemporaryDirectory(dir=folder) as state:
        db = sqlite3.connect(Path(state) / "commits.sqlite", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA wal_autocheckpoint=250")
        db.execute("CREATE TABLE turns (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
        took = []
        for _ in range(COMMITS):
            blob = os.urandom(size_bytes)
            began_s = time.perf_counter()
            db.execute("INSERT INTO turns (blob) VALUES (?)", (blob,))
            took.append(1e3 * (time.perf_counter() - began_s))
        db.close()
    return took


def commit_us(folder: Path) -> float:
    """Return the median microseconds of a commit of a voted step's bytes."""
    return 1e3 * statistics.median(commits_ms(folder, STEP_BYTES))


class PrivateRay:
    """Private Ray as made by ``--cluster local``, kept for all chains of this process, with two actors that echo."""

    cluster = "local"

    def __init__(self) -> None:
        import ray

        from actors.runtime.ray_runtime import start_runtime

        self._runtime = asyncio.run(start_runtime("local", dict(os.environ), begin=False))
        self._ray: Any = ray

        class Echo:
            async def echo(self, blob: bytes) -> bytes:
                return blob

            async def trips_ms(self, other: Any, count: int, size_bytes: int) -> list[float]:
                took, blob = [], bytes(size_bytes)
                for _ in range(count):
                    began_s = time.perf_counter()
                    await other.echo.remote(blob)
                    took.append(1e3 * (time.perf_counter() - began_s))
                return took

        made: Any = ray.remote(Echo)
        self._actors = made.options(num_cpus=0).remote(), made.options(num_cpus=0).remote()

    def trips_ms(self, size_bytes: int) -> list[float]:
        """Return the milliseconds of round trips with ``size_bytes`` each way, one after another."""
        first, second = self._actors
        found: list[float] = self._ray.get(first.trips_ms.remote(second, TRIPS + WARM, size_bytes))
        return found[WARM:]

    def close(self) -> None:
        """End the Ray."""
        asyncio.run(self._runtime.close())
