"""One trial: a batch against a provider with mixed faults, havoc meanwhile, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.killer import Havoc
from tests.chaos.ray_cluster import Ground, Size, largest, look
from tests.cluster.cluster_processes import Commands, Provider, names_in, write_rows

FAULTS = {
    "throttled": 0.015, "throttled_bare": 0.02, "overloaded": 0.03, "server_error": 0.025, "unavailable": 0.02,
    "reset": 0.02, "reset_late": 0.03, "wrong_content_type": 0.019,
    "refusal": 0.02, "hang": 0.001,
}  # fmt: skip
"""20 %. Most may be tried again, and cost retries a little less than the budget for them grows; refusals are answers.
3.5 % are 429s, with Retry-After and without it, that come whatever is sent. No reply is cut: one that came, whole or in
part, is paid for at most once more, so a row fails after two of them (2 % of the calls: one row in 2,500)."""
GAUGE_ROWS = 300
GAUGE_PERMITS = 12
"""Fewer than a pool begins with: as many connections before as after."""
PARTIAL = 3
"""The exit code of what is resumable."""
SQUARES = 60
FILES_MORE = 12
MB_MORE = 40.0
"""What a process may have more after it all than before, and still not have grown: sockets to those that came back,
and the pages that an allocator keeps."""


class Setup(msgspec.Struct, frozen=True):
    """How large, how long, how often."""

    rows: int = 20_000
    every_s: float = 4.0
    latency_ms: float = 250.0
    hang_s: float = 20.0
    permits: int = 64
    kills_max: int = 1_000
    seed: int = 1
    gauged: bool = True
    """Whether each role's processes are measured before and after."""
    timeout_s: float = 1_800.0


class Outcome(msgspec.Struct):
    """What was seen."""

    kills: dict[str, int]
    permits_out: int
    second_answers: int
    answered: int
    requests: int
    faults: int
    squares: int
    elapsed_s: float
    before: dict[str, Size]
    after: dict[str, Size]
    driver: tuple[Size, Size]
    """At its largest in the first half of its run, and in the second."""

    def told(self) -> str:
        """In a few lines."""
        killed = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kills.items()))
        lines = [
            f"{self.answered} rows in {self.elapsed_s:.0f} s, each once, through {sum(self.kills.values())} kills: {killed}",
            f"{self.faults} of {self.requests} requests met a fault; {self.squares} tool jobs were right meanwhile",
            f"{self.second_answers} second complete answers; {self.permits_out} permits out at the kills, summed",
        ]
        for role, seen in [*self.after.items(), ("driver", self.driver[1])]:
            was = self.driver[0] if role == "driver" else self.before.get(role, Size(0, 0, 0.0))
            lines.append(
                f"{role}: {was.files} -> {seen.files} files, {was.threads} -> {seen.threads} threads, {was.mb:.0f} -> {seen.mb:.0f} MB"
            )
        return "\n".join(lines)

    def complaints(self) -> list[str]:
        """What must not be; the rows were checked before."""
        found = []
        if self.second_answers > self.permits_out:
            found.append(f"{self.second_answers} second answers, {self.permits_out} permits out")
        if self.faults < 0.1 * self.requests:
            found.append(f"only {self.faults} of {self.requests} requests met a fault: this was no trial")
        for role, seen in [*self.after.items(), ("driver", self.driver[1])]:
            was = self.driver[0] if role == "driver" else self.before.get(role)
            if was and (seen.files > was.files + FILES_MORE or seen.mb > was.mb + MB_MORE):
                found.append(
                    f"the {role} grew from {was.files} files, {was.mb:.0f} MB to {seen.files}, {seen.mb:.0f} MB"
                )
        return found


class Trial:
    """A trial on one ground, its files in one folder."""

    def __init__(self, ground: Ground, runtime: Any, folder: Path, setup: Setup, say: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._folder = folder
        self._setup = setup
        self._provider = Provider(
            faults=FAULTS,
            latency_ms=setup.latency_ms,
            seed=setup.seed,
            hang_s=setup.hang_s,
            remembered_max=4 * setup.rows,
        )
        self._commands = Commands(folder, self._provider.url, ground.head.address)
        self._havoc = Havoc(ground, runtime, "chaos", setup.every_s, setup.seed, say)
        self._ground = ground

    async def run(self) -> Outcome:
        """All of it. Raises AssertionError for a row that is not there once, or a job that does not end."""
        before = await self._gauge("before") if self._setup.gauged else {}
        answered_before = self._provider.stats()
        names = write_rows(self._folder / "in.jsonl", self._setup.rows, "c")
        began_s = time.monotonic()
        driver = self._batch("in.jsonl", "out.jsonl", "chaos", self._setup.permits)
        over = asyncio.Event()
        havoc = asyncio.create_task(self._havoc.until(over, self._setup.rows * 99 // 100, self._setup.kills_max))
        tools = asyncio.create_task(self._tools(over))
        looks: list[Size] = []
        watch = asyncio.create_task(self._watch(driver.pid, looks))
        try:
            await _ended(driver, self._setup.timeout_s, havoc)
            elapsed_s = time.monotonic() - began_s
            over.set()
            await havoc
            squares = await tools
        finally:
            for task in (havoc, tools, watch):
                task.cancel()
        self._ground.settle()
        assert Counter(names_in(self._folder / "out.jsonl")) == Counter(names)
        stats = self._provider.stats()
        after = await self._gauge("after") if self._setup.gauged else {}
        return Outcome(
            kills=dict(self._havoc.kills), permits_out=self._havoc.permits_out,
            second_answers=stats["second_complete_answers_by_user"],
            answered=stats["distinct_users_answered"] - answered_before["distinct_users_answered"],
            requests=stats["requests"], faults=sum(stats["faults"].values()), squares=squares, elapsed_s=elapsed_s,
            before=before, after=after, driver=(largest(looks[: len(looks) // 2]), largest(looks[len(looks) // 2 :])),
        )  # fmt: skip

    def _batch(self, rows: str, out: str, job: str, permits: int) -> subprocess.Popen[str]:
        return self._commands.start("batch", rows, "-o", out, "--job", job, "--concurrency", str(permits))

    async def _gauge(self, name: str) -> dict[str, Size]:
        """The size of each role's processes while a small batch and a tool job, always the same, are under way."""
        write_rows(self._folder / f"{name}.jsonl", GAUGE_ROWS, name)
        driver = self._batch(f"{name}.jsonl", f"{name}-out.jsonl", name, GAUGE_PERMITS)
        tools = self._squares(f"{name}-tools")
        seen: dict[str, Size] = {}
        while driver.poll() is None or tools.poll() is None:
            for role, sizes in (await self._havoc.census()).items():
                seen[role] = largest([sizes, seen.get(role, sizes)])
            await asyncio.sleep(0.3)
        await _ended(driver, 60)
        await self._right(f"{name}-tools", tools)
        return seen

    def _squares(self, job: str) -> subprocess.Popen[str]:
        program = ["tests.chaos.tooling:Squares", "-p", f"count={SQUARES}", "--model", "sim"]
        return self._commands.start("run", *program, "--job", job, "--json")

    async def _right(self, job: str, tools: subprocess.Popen[str]) -> None:
        """The right answer came; after a resume, where the node died on which this job's own journal was written."""
        await asyncio.to_thread(tools.wait)
        for _ in range(3):
            if tools.returncode == PARTIAL:
                tools = self._commands.start("resume", job, "--json")
                await asyncio.to_thread(tools.wait)
        text = await _ended(tools, 60)
        answer = json.loads(text.splitlines()[-1])["answer"]
        assert answer == sum(number * number for number in range(SQUARES)), text

    async def _tools(self, over: asyncio.Event) -> int:
        """One tool job after the other, so that workers live; how many there were."""
        done = 0
        while not over.is_set():
            await self._right(f"tools-{done}", self._squares(f"tools-{done}"))
            done += 1
        return done

    async def _watch(self, pid: int, looks: list[Size]) -> None:
        while True:
            seen = look(pid)
            if seen.files:
                looks.append(seen)
            await asyncio.sleep(0.5)

    def close(self) -> None:
        """Leave nothing running."""
        try:
            self._commands.close()
        finally:
            self._provider.close()


async def _ended(driver: subprocess.Popen[str], timeout_s: float, meanwhile: asyncio.Task[None] | None = None) -> str:
    """Wait for a command; what it said. An error of what runs meanwhile is raised."""
    waiting = asyncio.create_task(asyncio.to_thread(driver.communicate))
    await asyncio.wait({waiting}, timeout=timeout_s)
    late = not waiting.done()
    if late:
        driver.kill()
    text, _ = await waiting
    if late and meanwhile is not None and meanwhile.done():
        await meanwhile
    assert not late, f"not ended within {timeout_s:.0f} s: {text[-2_000:]}"
    assert driver.returncode == 0, f"ended with {driver.returncode}: {text[-4_000:]}"
    return str(text)


@contextlib.contextmanager
def trial(
    ground: Ground, runtime: Any, folder: Path, setup: Setup, say: Callable[[str], None] = print
) -> Iterator[Trial]:
    """A trial, and nothing left of it."""
    made = Trial(ground, runtime, folder, setup, say)
    try:
        yield made
    finally:
        made.close()
