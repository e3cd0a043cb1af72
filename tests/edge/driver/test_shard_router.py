"""Rows that a driver deals to shards whose figures and answers overtake each other."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors.common.errors import UserError
from actors.driver import sharding
from actors.driver.sharding import DriverHooks, RoundWindows, ShardProgress, ShardRouter
from actors.journal.journal import DatabaseUnreachable, StoreError
from actors.ports.runtime import PeerGone, PeerUnavailable
from cortex.goals.shards import dealt
from cortex.state.events import Row
from tests.edge.support.in_process_job import ListSource, rows
from tests.edge.support.virtual_clock import virtually


class Shard:
    """Shard's channel that takes windows as K does. ``delay_s`` returns the seconds that an answer takes; below 0 it
    is lost.
    """

    def __init__(self, delay_s: Any = lambda method: 0.0, wanted: int = 3) -> None:
        self.position, self.ended, self.got, self._delay_s, self._wanted = 0, False, [], delay_s, wanted

    async def ask(self, method: str, *args: Any) -> Any:
        answer = self._answer(method, *args)
        wait_s = self._delay_s(method)
        await asyncio.sleep(abs(wait_s))
        if wait_s < 0:
            raise PeerUnavailable
        return answer

    def _answer(self, method: str, *args: Any) -> Any:
        if method == "status":
            facts = {
                "position": self.position, "source_ended": self.ended, "rows_wanted": self._wanted, "results": 0,
                "results_written": 0, "broken": "", "outcome": "running", "unarmed": [], "unauthorised": False,
            }  # fmt: skip
            return msgspec.json.encode(facts)
        assert method == "feed"
        blob, start, position, ended = args
        if start == self.position and not self.ended:
            self.got += [row.key for row in msgspec.msgpack.decode(blob, type=list[Row])]
            self.position, self.ended = position, ended
        return self._wanted


async def _router(shards: list[Shard]) -> ShardRouter:
    named = {f"channel:j~{number}": shard for number, shard in enumerate(shards, 1)}

    async def figures() -> dict[str, Any]:
        return {"shards": [(name.partition(":")[2], 0, False) for name in named]}

    hooks = DriverHooks(lambda: False, figures, None)  # type: ignore[arg-type]
    runtime: Any = SimpleNamespace(peer=named.__getitem__)
    router = ShardRouter(runtime, "", len(shards), False, hooks, lambda some: 0, False)
    await router.begin()
    return router


@pytest.mark.parametrize("seed", range(10))
def test_every_row_reaches_its_shard_whichever_answers_are_late_or_lost(seed: int) -> None:
    async def played() -> list[Shard]:
        chance = random.Random(seed)

        def delay_s(method: str) -> float:
            lost = chance.random() < 0.1
            return chance.choice((0.0, 0.01, 0.3, 2.0) if method == "status" else (0.0, 0.02)) * (-1 if lost else 1)

        shards = [Shard(delay_s) for _ in range(3)]
        router = await _router(shards)

        async def looking() -> None:
            while True:
                await asyncio.sleep(chance.choice((0.005, 0.05)))
                looks.append(asyncio.create_task(router.look()))

        looks = [asyncio.create_task(asyncio.sleep(0))]
        looks.append(asyncio.create_task(looking()))
        await router.feed(ListSource(rows(50)))
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        return shards

    shards = virtually(played())
    assert [shard.got for shard in shards] == [[f"r{row}" for row in range(at, 50, 3)] for at in range(3)]
    assert all(shard.ended for shard in shards)


async def test_figures_that_were_asked_for_before_a_window_do_not_put_a_shard_back() -> None:
    late = asyncio.Event()
    shard = Shard()
    router = await _router([shard])
    (each,) = router.shards
    answer = shard.ask

    async def held_back(method: str, *args: Any) -> Any:
        found = await answer(method, *args)
        if method == "status" and not late.is_set():
            await late.wait()
        return found

    shard.ask = held_back  # type: ignore[method-assign]
    look = asyncio.create_task(router.look())
    await asyncio.sleep(0.001)
    rounds = RoundWindows(ListSource(rows(10)), 1)
    await router._give(each, dealt(rounds.read(4), 1)[0], rounds)
    late.set()
    await look
    assert (each.position, shard.position) == (4, 4)


async def test_a_window_says_where_it_begins_whatever_the_figures_of_an_earlier_process_said() -> None:
    shard = Shard()
    router = await _router([shard])
    (each,) = router.shards
    rounds = RoundWindows(ListSource(rows(10)), 1)
    await router._give(each, dealt(rounds.read(4), 1)[0], rounds)
    each.position = 0
    await router._give(each, dealt(rounds.read(6), 1)[0], rounds)
    assert shard.got == [f"r{row}" for row in range(10)]


class Source:
    """Shard's channel with results. While it is ``away`` it answers nothing, or only what is not in ``deaf``."""

    def __init__(self, name: str, results: int = 0) -> None:
        self.name, self.results, self.written, self.notes = name, results, 0, 0
        self.away, self.over, self.deaf = False, False, ("results", "status", "written", "seal")

    async def ask(self, method: str, *args: Any) -> Any:
        if self.away and method in self.deaf:
            await asyncio.sleep(0.01)
            raise PeerUnavailable(self.name)
        if method == "results":
            if self.results <= args[0] and not self.over:
                await asyncio.sleep(args[1])
            return msgspec.msgpack.encode([(at, f"{self.name}{at}") for at in range(args[0], self.results)])
        if method == "status":
            facts = {
                "position": 0, "source_ended": True, "rows_wanted": 0, "results": self.results,
                "results_written": self.written, "broken": "", "outcome": "complete" if self.over else "running",
                "unarmed": [], "unauthorised": False,
            }  # fmt: skip
            return msgspec.json.encode(facts)
        if method == "written":
            self.written, self.notes = args[0], self.notes + 1
            return None
        assert method == "seal"
        return True


class Whole:
    """Job of such shards, and its sink."""

    def __init__(self, *shards: Source) -> None:
        self.shards, self.over = shards, False
        self.values: list[str] = []
        self.reports: list[tuple[int, tuple[int, ...], list[int]]] = []
        hooks = DriverHooks(lambda: self.over, None, self._written)  # type: ignore[arg-type]
        self.router = ShardRouter(None, "", len(shards), False, hooks, lambda some: 0, False)  # type: ignore[arg-type]
        self.router.shards = [ShardProgress(each.name, 0, each, False) for each in shards]  # type: ignore[arg-type]
        self.work = asyncio.create_task(self.router.drain(self, 0.5, 1_000))

    async def _written(self, rows: int, size_bytes: int, parts: tuple[int, ...]) -> None:
        self.reports.append((rows, parts, [each.written for each in self.shards]))

    def write(self, values: list[str]) -> None:
        self.values += values

    def flush(self) -> tuple[int, int]:
        return len(self.values), 0

    async def end(self) -> None:
        self.over = True
        for each in self.shards:
            each.over, each.away = True, False
        await asyncio.wait_for(self.work, 30)


def _whole(results: int) -> tuple[Whole, Source]:
    return Whole(shard := Source("j~1", results)), shard


def test_a_shard_that_is_silent_does_not_hold_up_the_results_of_others() -> None:
    async def played() -> Whole:
        job = Whole(Source("a"), Source("b"))
        busy, silent = job.shards
        for second in range(60):
            busy.results += 1
            silent.results += second < 10
            if second == 10:
                silent.away, silent.deaf = True, ("written",)
                silent.results += 1  # it is in the sink, and the shard does not hear of it
            await asyncio.sleep(1)
        assert len(job.values) > 65, "all but the latest"
        assert job.reports[-1][0] <= 21 + 2, "the job's journal has no more than what each shard has noted"
        await job.end()
        return job

    job = virtually(played())
    assert (len(job.values), job.reports[-1][:2]) == (71, (71, (60, 11)))
    for total, parts, noted in job.reports:
        assert total == sum(parts)
        assert all(part <= has for part, has in zip(parts, noted, strict=True))
    assert job.shards[1].notes <= 13, "it is told only of new ones"


def test_a_status_that_does_not_come_is_no_answer() -> None:
    async def played() -> Whole:
        job, shard = _whole(5)
        await asyncio.sleep(2)
        shard.over = job.over = shard.away = True  # it ends, and what is known of it is from before
        shard.deaf = ("status",)
        await asyncio.sleep(0.3)
        assert not job.work.done()
        await job.end()
        assert await job.router.missing() == ""
        return job

    assert len(virtually(played()).values) == 5


def test_a_shard_that_absorbs_a_late_reply_at_the_end_is_looked_at_again() -> None:
    """Its turn is not on disk for a moment, and so it counts as running."""

    async def played() -> str:
        job, shard = _whole(5)
        await asyncio.sleep(2)
        await job.end()
        job.router.shards[0].over = shard.over = False
        asyncio.get_running_loop().call_later(0.2, setattr, shard, "over", True)
        return await job.router.missing()

    assert virtually(played()) == ""


@pytest.mark.parametrize(("ended", "why"), [(True, ""), (False, "the journals of j~1 have lost their end, as by a power cut")])
def test_a_shard_that_is_silent_at_the_end_is_not_waited_for(monkeypatch: Any, ended: bool, why: str) -> None:
    """All of its results are written. Its channel may be on a machine that hangs: its journal says whether it ended."""
    monkeypatch.setattr(sharding, "has_ended", lambda store, name: ended)

    async def played() -> str:
        job, shard = _whole(5)
        await asyncio.sleep(2)
        await job.end()
        shard.away = True
        found = job.router.shards[0]
        found.over = False
        job.router._runtime = SimpleNamespace(store=lambda folder: None)  # type: ignore[assignment]
        async with asyncio.timeout(10):
            return await job.router.missing()

    assert virtually(played()) == why


class Refusing:
    """Runtime whose channel of a shard is gone, and does not begin: ``errors`` in turn."""

    def __init__(self, *errors: StoreError | None) -> None:
        self._errors, self._begun = list(errors), False

    def peer(self, name: str) -> Refusing:
        return self

    name = "channel:j~1"

    async def ask(self, method: str, *args: Any) -> Any:
        if method == "start" and (error := self._errors.pop(0)) is not None:
            raise error
        if method == "start":
            self._begun = True
            return None
        if not self._begun:
            raise PeerGone(self.name)
        return await Source("j~1", 5).ask(method, *args)

    async def start_actor(self, *args: str) -> Refusing:
        return self

    async def end_actor(self, name: str) -> None:
        pass


async def _begun(runtime: Any, **facts: Any) -> ShardRouter:
    async def figures() -> dict[str, Any]:
        return {"shards": [("j~1", 5, True, False)], "outcome": "partial", "results": 5, "results_written": 5} | facts

    router = ShardRouter(
        runtime, "", 1, False, DriverHooks(lambda: True, figures, None), lambda rows: 0, False  # type: ignore[arg-type]
    )  # fmt: skip
    await router.begin()
    return router


async def test_a_journal_that_cannot_be_used_is_named_with_its_error() -> None:
    with pytest.raises(UserError, match="j~1: its format is of a later release"):
        await _begun(Refusing(StoreError("its format is of a later release")))


def test_a_database_that_cannot_be_reached_is_asked_again() -> None:
    away = DatabaseUnreachable("no route to host")
    router = virtually(_begun(Refusing(away, away, None)))
    assert (router.shards[0].lost, router.shards[0].results) == (False, 5)
