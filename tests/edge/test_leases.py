"""A lease outlives the channel that held it and the cortex that gave it; nobody is granted what another may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from actors.cortex_actor import Cortex
from actors.lease import Lease
from actors.ports import Away, Gone
from cortex.journal import open_job
from cortex.limits import Limits
from cortex.scheduler import LEASE_S
from tests.stage import terms


class FakeChannel:
    """Holds what it is told to hold; ``trouble`` is raised when it is asked."""

    def __init__(self, answer: bool | Exception = True) -> None:
        self.answer = answer
        self.granted: list[int] = []

    async def ask(self, method: str, *args: Any) -> Any:
        assert method == "rejoin"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def tell(self, method: str, permits: int) -> None:
        self.granted.append(permits)


class FakeRuntime:
    """A clock that stands still, and channels by name."""

    def __init__(self, **channels: FakeChannel) -> None:
        self.channels = channels
        self.at_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.at_s

    async def names(self, prefix: str) -> tuple[str, ...]:
        return tuple(prefix + name for name in self.channels)

    def peer(self, name: str) -> Any:
        return self.channels[name.partition(":")[2]]


async def _again(runtime: FakeRuntime) -> Cortex:
    cortex = Cortex(runtime)  # type: ignore[arg-type]
    await cortex.begin(again=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return cortex


async def test_a_cortex_that_came_back_grants_nothing_new_until_all_have_told_what_they_hold() -> None:
    runtime = FakeRuntime(a=FakeChannel(), b=FakeChannel())
    cortex = await _again(runtime)
    assert await cortex.join("a", "p", 100, 40) == 40
    assert await cortex.join("b", "p", 100, 60) == 50, "all has been told: b gives back what is above its share"
    assert runtime.channels["a"].granted == []
    await cortex.join("b", "p", 100, 50)
    assert runtime.channels["a"].granted == [50]
    await cortex.close()


async def test_a_new_job_waits_for_the_silence_to_end_only_while_somebody_is_not_heard() -> None:
    waiting = FakeRuntime(a=FakeChannel(Away()))
    cortex = await _again(waiting)
    assert await cortex.join("new", "p", 100, 0) == 0
    waiting.at_s += LEASE_S
    assert await cortex.join("new", "p", 100, 0) == 100
    await cortex.close()

    for answer in (False, Gone()):
        heard = FakeRuntime(a=FakeChannel(answer))
        cortex = await _again(heard)
        assert await cortex.join("new", "p", 100, 0) == 100
        await cortex.close()


async def test_a_channel_that_came_back_claims_the_lease_it_had() -> None:
    told: list[int] = []

    class Peer:
        async def ask(self, method: str, *args: Any) -> Any:
            assert method == "join"
            told.append(args[3])
            return args[3]

    class Runtime:
        def peer(self, name: str) -> Peer:
            return Peer()

    k = open_job(terms(Limits(concurrency=96)))
    taken: list[int] = []
    lease = Lease("j", Runtime(), lambda: k, taken.append, claim=96)  # type: ignore[arg-type, return-value]
    holding = asyncio.create_task(lease.hold())
    await _until(lambda: bool(taken))
    lease.look()  # a turn before the grant is in K: nothing is given back
    await asyncio.sleep(0)
    k.shares[0].permits = taken[-1]
    lease.look()
    await asyncio.sleep(0)
    assert (told, taken) == ([96], [96])
    k.shares[0].permits = 30
    lease.look()
    await _until(lambda: len(told) == 2)
    assert told == [96, 30]
    holding.cancel()


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0)
