"""CPU of our code as a multiple of a bare loop's, in pairs that take turns, so that other load slows both alike.
Reported, not judged."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

import cortex
from actors.api.client import new_loop
from actors.api.session import Session
from actors.common.gc_tuning import settle
from actors.files.sinks.jsonl_sink import FileSink
from actors.files.sources.row_source import BatchSource
from actors.jobs.spec import JobSpec
from actors.routing.model_spec import ModelSpec
from benchmarks.harness import baselines, rows
from benchmarks.harness.bare_costs import commit_us
from benchmarks.harness.models import AtOnce, Oracle
from benchmarks.harness.server import RunningServer
from cortex.programs.batch import Batch
from cortex.programs.hanoi import Hanoi
from cortex.values.limits import Limits
from cortex.values.reply import Reply

ROUNDS = 3
CALLS = 10_000
REQUESTS = 1_500
DISKS = 9
Timed = Callable[[], float]
"""Function that makes one run and returns CPU seconds a call."""


def batch(folder: Path) -> float:
    """Run `cortex batch` inline: rows from a file, results into a file, journal on disk."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place)
        rows.write_input(path / "in.jsonl", CALLS)
        began_s = time.process_time()
        source = BatchSource(str(path / "in.jsonl"), model="bench", output_tokens_max=None, spool=path / "spool")
        source.check()
        order = JobSpec(
            program=Batch(), model_spec=ModelSpec(model="bench"), job="pair", state=place, cluster="inline",
            limits=Limits(concurrency=300),
        )  # fmt: skip
        sink = FileSink(str(path / "out.jsonl"))
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(Session(order, {}, model=AtOnce(), source=source, sink=sink).run())
        source.close()
        spent_s = time.process_time() - began_s
        rows.check_all(rows.results(path / "out.jsonl"), CALLS)
    return spent_s / CALLS


def workers(folder: Path) -> float:
    """Make the same calls with 300 asyncio workers, from a file into a file, and nothing else."""
    model = AtOnce()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place)
        rows.write_input(path / "in.jsonl", CALLS)
        began_s = time.process_time()
        with (path / "in.jsonl").open("rb") as lines, (path / "out.jsonl").open("wb") as out:
            bodies = (msgspec.json.encode(msgspec.json.decode(line)["params"]) for line in lines)

            async def hand() -> int:
                answered = 0
                for body in bodies:
                    reply = await model.call(body, output_tokens_max=16, timeout_s=60.0)
                    assert isinstance(reply, Reply)
                    out.write(reply.body + b"\n")
                    answered += 1
                return answered

            async def all_of_them() -> int:
                return sum(await asyncio.gather(*(hand() for _ in range(300))))

            with asyncio.Runner(loop_factory=new_loop) as runner:
                answered = runner.run(all_of_them())
        if answered != CALLS:
            raise rows.Lost(f"{answered} of {CALLS} calls were answered")
        return (time.process_time() - began_s) / CALLS


def chain(folder: Path) -> float:
    """Run a voted chain; return the cost of a step."""
    with tempfile.TemporaryDirectory(dir=folder) as state:
        began_s = time.process_time()
        done = cortex.run(Hanoi(disks=DISKS, k=3), model=Oracle(), state=state, cluster="inline", progress=False)
        spent_s = time.process_time() - began_s
    assert done.answer["solved"], done
    return spent_s / (2**DISKS - 1)


def road(url: str) -> float:
    """Run the client of a branch."""
    began_s = time.process_time()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(baselines.bare(url, iter(range(REQUESTS)), 20))
    return (time.process_time() - began_s) / REQUESTS


def session(url: str) -> float:
    """Run a minimal aiohttp session."""

    async def all_of_them() -> int:
        async with aiohttp.ClientSession() as http:

            async def ask(number: int) -> str:
                body = msgspec.json.encode(rows.params(number))
                async with http.post(f"{url}/v1/messages", data=body) as answer:
                    return str(msgspec.json.decode(await answer.read())["content"][0]["text"])

            return await baselines.in_parallel(ask, iter(range(REQUESTS)), 20)

    began_s = time.process_time()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(all_of_them())
    return (time.process_time() - began_s) / REQUESTS


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """Run all pairs; return the medians of both, in microseconds of CPU a call, and of their ratios."""
    settle()
    found = {}
    with tempfile.TemporaryDirectory(prefix="pairs-") as place, RunningServer(delay_ms=0.0) as server:
        folder = Path(place)
        pairs: dict[str, tuple[Timed, Timed]] = {
            "batch, to 300 workers of asyncio": (lambda: batch(folder), lambda: workers(folder)),
            "a voted step, to a commit's wall clock": (lambda: chain(folder), lambda: commit_us(folder) / 1e6),
            "http, to a bare session of aiohttp": (lambda: road(server.url), lambda: session(server.url)),
        }
        for name, (ours, bare) in pairs.items():
            ours(), bare()
            times = [(ours(), bare()) for _ in range(ROUNDS)]
            us = [round(1e6 * statistics.median(each), 1) for each in zip(*times, strict=True)]
            each = [round(mine / other, 2) for mine, other in times]
            found[name] = {"us": us[0], "bare_us": us[1], "ratio": statistics.median(each), "rounds": each}
            say(f"{name}: {found[name]['ratio']} times ({us[0]} and {us[1]} us a call; rounds {each})")
    return found
