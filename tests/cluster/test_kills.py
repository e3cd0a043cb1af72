"""kill -9 of everything, at random moments: each row once, and no more paid twice than was in flight at the kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.ports.runtime import PeerGone, PeerUnavailable
from tests.cluster.cluster_processes import PATIENCE_S, Commands, Head, Provider, names_in, write_rows

ROWS = 5_000
PERMITS = 96
PERMITS_LEAST = 1
"""Out at each kill: the limit begins low, and does not grow while the provider is unwell."""
VICTIMS = ("driver", "branch", "channel", "cortex")
TIMES = 5
FAULTS = {
    "overloaded": 0.02, "server_error": 0.015, "reset": 0.005, "reset_late": 0.005, "wrong_content_type": 0.005,
}  # fmt: skip
"""5 %: what a provider does on a bad day and a client may try as often as it likes. A reply that is cut is not among
these: it may be paid for, so a row has at most two of them."""
HALT_S = 60.0
LATENCY_MS = 500.0
"""With 96 at once 5,000 rows take 26 s: a killed cortex is back, and can be killed again, in 4 s, and rows are made
meanwhile. The second batch has three such kills within four."""


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    found = Provider(faults=FAULTS, latency_ms=request.module.LATENCY_MS, seed=1)
    yield found
    found.close()


@pytest.fixture
def begin(provider: Provider, folder: Path) -> Iterator[Callable[..., Batch]]:
    """Makes batches, and sees that none is left behind."""
    made: list[Batch] = []

    def begun(name: str, cluster: str, rows: int = ROWS) -> Batch:
        made.append(Batch(folder, name, provider, cluster, rows))
        return made[-1]

    yield begun
    for batch in made:
        batch.commands.close()


class Batch:
    """One batch, driven by the command line."""

    def __init__(self, folder: Path, name: str, provider: Provider, cluster: str, rows: int = ROWS) -> None:
        self.name = name
        self._provider = provider
        self.out = folder / f"{name}.jsonl"
        self.commands = Commands(folder, provider.url, cluster)
        self._input = folder / f"{name}-in.jsonl"
        self.rows = write_rows(self._input, rows, name)
        self.driver: subprocess.Popen[str] | None = None
        self.options: tuple[str, ...] = ()

    def drive(self, how: str = "batch") -> None:
        """Begin, or go on: by the same command as at first, by ``resume`` or by ``attach``."""
        words = [how, self.name]
        if how == "batch":
            words = [how, str(self._input), "-o", str(self.out), "--job", self.name, "--concurrency", str(PERMITS)]
            words += self.options
        self.driver = self.commands.start(*words)

    def kill_driver(self) -> None:
        assert self.driver is not None
        assert self.driver.poll() is None, f"the driver ended by itself: {self.driver.stdout.read()}"  # type: ignore[union-attr]
        self.driver.kill()
        self.driver.communicate()

    def ended(self) -> str:
        """How the driver ended, and what it said; one that still runs is ended here."""
        assert self.driver is not None
        code = self.driver.poll()
        self.driver.kill()
        text = "" if self.driver.stdout is None or self.driver.stdout.closed else self.driver.communicate()[0]
        return f"the driver ended with {code} and said:\n{text}"

    async def end(self) -> str:
        """Wait until the driver says that all is done; what it said. Fails where the provider hears nothing for
        ``HALT_S``: how long the whole takes is no promise, and on a busy machine the start of a Ray alone takes most.
        """
        assert self.driver is not None
        ended = asyncio.ensure_future(asyncio.to_thread(self.driver.communicate))
        heard, heard_s = -1, time.monotonic()
        while not (await asyncio.wait((ended,), timeout=1))[0]:
            requests = (await asyncio.to_thread(self._provider.stats))["requests"]
            if requests != heard:
                heard, heard_s = requests, time.monotonic()
            elif time.monotonic() - heard_s > HALT_S:
                self.driver.kill()
                raise AssertionError(f"{self.name} came to a halt after {heard} requests, and said:\n{(await ended)[0]}")
        text, _ = await ended
        assert self.driver.returncode == 0, text
        return text

    def check(self) -> None:
        assert Counter(names_in(self.out)) == Counter(self.rows)


@contextlib.asynccontextmanager
async def explained(runtime: Any, head: Head, batch: Batch) -> AsyncIterator[None]:
    """A failure in this block tells who lives, and what driver and actors said last."""
    try:
        yield
    except (AssertionError, TimeoutError) as error:
        with contextlib.suppress(TimeoutError):
            error.add_note(f"actors: {await asyncio.wait_for(runtime.names(''), 5)}")
        error.add_note(f"{batch.ended()}\n{head.logs()}")
        raise


async def facts_of(runtime: Any, job: str) -> dict[str, Any] | None:
    try:
        blob = await asyncio.wait_for(runtime.peer(f"channel:{job}").ask("status"), 5)
    except (PeerUnavailable, PeerGone, TimeoutError):
        return None
    return dict(msgspec.json.decode(blob))


async def when(runtime: Any, batch: Batch, results: int) -> dict[str, Any]:
    """Wait until so many rows have finished, and enough permits are out. A batch that has ended by then proves nothing:
    it was too quick for the kills."""
    deadline_s = time.monotonic() + PATIENCE_S
    facts = None
    while time.monotonic() < deadline_s:
        assert batch.driver is None or batch.driver.poll() is None, f"{batch.name} ended before the kill at {results}"
        facts = await facts_of(runtime, batch.name) or facts
        if facts is None or facts["results"] < results or facts["permits"] < PERMITS_LEAST:
            await asyncio.sleep(0.02)
            continue
        assert facts["outcome"] == "running", facts
        return facts
    raise AssertionError(f"{batch.name} came to a halt before {results} results: {facts}")


async def kill(runtime: Any, name: str, chance: random.Random) -> None:
    """``branch``: any that lives, since their number follows demand."""
    while True:
        names = sorted(await runtime.names("branch:")) if name == "branch" else [name]
        try:
            _, pid = await runtime.peer(chance.choice(names or ["branch:0"])).ask("hello")
            break
        except (PeerUnavailable, PeerGone):  # it was killed just now, or has gone home
            await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.release  # `.ci/run` runs `make chaos`, and the next test
async def test_whoever_dies_every_row_is_there_once(
    runtime: Any, head: Head, provider: Provider, begin: Callable[[str, str], Batch],
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    chance = random.Random(2)
    victims = [victim for victim in VICTIMS for _ in range(TIMES)]
    chance.shuffle(victims)
    batches, kills = 2, len(victims) // 2
    out_at_kills = 0
    for number in range(batches):
        batch = begin(f"b{number}", head.address)
        batch.drive()
        moments = sorted(chance.randrange(100, ROWS * 6 // 10) for _ in range(kills))
        async with explained(runtime, head, batch):
            for moment in moments:
                facts = await when(runtime, batch, moment)
                victim = victims.pop()
                out_at_kills += max(facts["permits"], facts["in_flight"])
                if victim == "driver":
                    batch.kill_driver()
                    batch.drive(chance.choice(("batch", "resume", "attach")))
                else:
                    await kill(runtime, {"channel": f"channel:{batch.name}"}.get(victim, victim), chance)
            await batch.end()
        batch.check()
    assert not victims
    stats = provider.stats()
    again = stats["second_complete_answers_by_user"]
    tell(f"{again} second complete answers; {out_at_kills} permits out at the {batches * kills} kills, summed")
    assert stats["distinct_users_answered"] == batches * ROWS
    assert sum(stats["faults"].values()) > 0.03 * stats["requests"]
    assert again <= out_at_kills


@pytest.mark.parametrize(
    ("times", "rows"), [pytest.param(2, 1_500, marks=pytest.mark.long), pytest.param(5, ROWS, marks=pytest.mark.release)]
)
async def test_a_killed_driver_takes_its_private_ray_along(
    provider: Provider, begin: Callable[..., Batch], tell: Callable[[str], None], times: int, rows: int
) -> None:
    """What it leaves behind is found and ended by the next run; that one goes on where the journal stands."""
    chance = random.Random(3)
    batch = begin("p", "local", rows)
    for moment in sorted(chance.randrange(100, rows * 6 // 10) for _ in range(times)):
        batch.drive()
        await answered(provider, moment)
        batch.kill_driver()
    batch.drive("resume")
    await batch.end()
    batch.check()
    assert list(batch.commands.temporary.iterdir()) == [], "a folder of a killed Ray is left"
    stats = provider.stats()
    again = stats["second_complete_answers_by_user"]
    tell(f"{again} second complete answers; {times * PERMITS} permits out at the {times} kills, summed")
    assert stats["distinct_users_answered"] == rows
    assert again <= times * PERMITS


async def answered(provider: Provider, count: int) -> None:
    """Wait until the provider has answered so many, with most permits out."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        stats = await asyncio.to_thread(provider.stats)
        if stats["distinct_users_answered"] >= count and stats["in_flight"] >= PERMITS_LEAST:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"the run came to a halt: {provider.stats()}")
