"""The connections of a road: how many there are, who gets one, and how long they rest."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from actors.providers.transport import connection_pool
from actors.providers.transport.connection import HttpConnection
from actors.providers.transport.connection_pool import ConnectionPool
from tests.edge.providers.test_connection import LENGTH, Made, Wire
from tests.edge.support.socket_actors import until
from tests.support.patience import PATIENCE_S

REQUEST: Any = object()


class Connector:
    """Makes connections that go nowhere; the next as many as `failing` cannot be made."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.failing, self.closed = 0, False
        self.slow: asyncio.Event | None = None
        self.connecting: asyncio.Future[Any] | None = None

    async def connect(self, request: Any, *_: Any) -> Made:
        assert request is REQUEST
        if self.slow is not None:
            self.connecting = asyncio.ensure_future(self.slow.wait())
            await self.connecting
        if self.failing:
            self.failing -= 1
            raise aiohttp.ClientConnectionError("refused")
        self.made.append(Made(Wire()))
        return self.made[-1]

    async def close(self) -> None:
        """As aiohttp's does: what is looked up meanwhile is cancelled, and so is whoever waits for it."""
        self.closed = True
        if self.connecting is not None:
            self.connecting.cancel()

    @property
    def open(self) -> int:
        return sum(not made.transport.ended for made in self.made if made.transport is not None)


def pool_of(places: int) -> tuple[ConnectionPool, Connector]:
    connector = Connector()
    return ConnectionPool(connector, places), connector  # type: ignore[arg-type]


async def lent(pool: ConnectionPool, connect_s: float = PATIENCE_S) -> HttpConnection:
    return pool.lend_rested() or await pool.lend(REQUEST, connect_s)


async def test_no_more_than_it_may_have_and_the_last_that_came_back_goes_first() -> None:
    pool, connector = pool_of(3)
    taken = [await lent(pool) for _ in range(3)]
    with pytest.raises(TimeoutError):
        await lent(pool, 0.01)
    for connection in taken:
        pool.give_back(connection)
    assert [await lent(pool) for _ in range(3)] == taken[::-1]
    assert len(connector.made) == 3


async def test_who_waits_gets_a_place_in_turn_and_a_place_that_nobody_takes_goes_on() -> None:
    pool, connector = pool_of(1)
    first = await lent(pool)
    waiting = [asyncio.create_task(lent(pool)) for _ in range(4)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # while it waits
    pool.give_back(first)
    waiting[1].cancel()  # in the very round in which it got the place
    assert await waiting[2] is first and not waiting[3].done()
    first.parts.append(b"a part of an answer")
    pool.drop(first)
    assert not first.parts
    assert await waiting[3] is not first
    assert [task.cancelled() for task in waiting] == [True, True, False, False]
    assert (len(connector.made), connector.open) == (2, 1)


async def test_a_place_is_free_again_where_no_connection_was_made() -> None:
    pool, connector = pool_of(1)
    connector.failing = 3
    for _ in range(3):
        with pytest.raises(aiohttp.ClientConnectionError, match="refused"):
            await lent(pool)
    connector.slow = asyncio.Event()
    with pytest.raises(TimeoutError):
        await lent(pool, 0.01)
    cancelled = asyncio.create_task(lent(pool))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    connector.slow.set()
    await asyncio.wait_for(lent(pool), PATIENCE_S)


async def test_one_that_was_closed_while_it_rested_is_not_lent() -> None:
    pool, connector = pool_of(2)
    first, second = await lent(pool), await lent(pool)
    pool.give_back(first)
    pool.give_back(second)
    second.connection_lost(None)
    first.data_received(LENGTH)
    third = await lent(pool)
    assert third not in (first, second)
    pool.give_back(third)
    wire = connector.made[-1].transport
    assert wire is not None
    wire.abort()  # which nobody has been told yet
    fourth = await lent(pool)
    assert fourth is not third
    pool.give_back(fourth)
    fourth.eof_received()
    assert await lent(pool) is not fourth


async def test_one_that_rested_too_long_is_closed_whether_or_not_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_pool, "KEEP_S", 0.05)
    pool, connector = pool_of(3)
    old, young, used = [await lent(pool) for _ in range(3)]
    pool.give_back(old)
    pool.give_back(young)
    old.rested_s -= 1
    young.rested_s -= 1
    assert await lent(pool) not in (old, young) and connector.open == 2
    pool.give_back(used)
    used.rested_s += 0.02  # it is too young when they are looked at for the first time
    await until(lambda: connector.open == 1)  # that which is lent still
    await until(lambda: pool._sweep is None)  # nothing rests, so nothing is looked for
    pool.give_back(await lent(pool))
    await until(lambda: pool._sweep is not None)
    await pool.close()


async def test_who_waits_or_connects_when_it_is_closed_hears_of_it() -> None:
    pool, connector = pool_of(2)
    first = await lent(pool)
    head = first.ask(b"request")
    connector.slow = asyncio.Event()
    waiting = [asyncio.create_task(lent(pool)) for _ in range(3)]
    await asyncio.sleep(0.01)
    await pool.close()
    assert connector.closed
    with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
        await head
    for task in waiting:  # the first connects
        with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
            await task
    with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
        await lent(pool)
    pool.give_back(first)  # whose answer came last
    assert connector.open == 0 and pool.lend_rested() is None
