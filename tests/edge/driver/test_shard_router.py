"""Rows that a driver deals to shards whose figures and answers overtake each other."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors.driver.sharding import DriverHooks, RoundWindows, ShardRouter
from actors.ports.runtime import PeerUnavailable
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
