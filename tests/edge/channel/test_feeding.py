"""Windows of rows that reach a channel again, because their turn waits for a database."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import msgspec
import pytest

from actors.channel.feeding import RowIntake
from actors.journal.journal import StoreError
from actors.journal.retrying import PATIENCE_S
from actors.messaging.answer_bounds import in_time
from actors.ports.runtime import PeerUnavailable
from tests.edge.support.in_process_job import rows
from tests.edge.support.virtual_clock import virtually

AGAIN_S = 0.5
"""Seconds until a driver asks a channel again that did not answer."""
WINDOW = (msgspec.msgpack.encode(rows(3)), 0, 3, False)


class Stuck:
    """Row intake of a channel whose turns are not written until ``turn`` says so."""

    def __init__(self) -> None:
        self.inbox: list[bytes] = []
        self.turn = asyncio.get_running_loop().create_future()
        self.handled: set[asyncio.Task[int]] = set()
        state: Any = self
        self.intake = RowIntake(self._put, lambda: state, lambda: False)

    def rows_wanted(self) -> int:
        return 7

    async def _put(self, blob: bytes, size: int, batch: object = None) -> None:
        self.inbox.append(blob)
        await asyncio.shield(self.turn)

    async def asked(self, *window: Any) -> int:
        """Feed a window by a message, as over Ray: the actor goes on with it after the sender has given up."""

        async def remote(method: str, args: Any) -> Any:
            handled = asyncio.create_task(self.intake.feed(*args))
            self.handled.add(handled)
            handled.add_done_callback(self._answers)
            return await asyncio.shield(handled)

        return int(await in_time("channel:j", remote, "feed", window))

    def _answers(self, handled: asyncio.Task[int]) -> None:
        """Drop a request with its answer, whether anybody waits for it or not."""
        self.handled.discard(handled)
        handled.exception()

    async def insists(self) -> int:
        """Feed ``WINDOW``, again and again until it is on disk."""
        while True:
            try:
                return await self.asked(*WINDOW)
            except PeerUnavailable:
                await asyncio.sleep(AGAIN_S)


def test_a_window_that_is_sent_again_while_its_turn_waits_is_one_message() -> None:
    async def played() -> None:
        stuck, loop, most = Stuck(), asyncio.get_running_loop(), 0
        feeding = asyncio.create_task(stuck.insists())
        while loop.time() < PATIENCE_S - 1:
            await asyncio.sleep(10)
            most = max(most, len(stuck.handled))
        assert len(stuck.inbox) == 1 and most <= 2, "neither the inbox nor the waiting requests keep copies"
        stuck.turn.set_result(None)
        assert await feeding == 7 and len(stuck.inbox) == 1
        assert stuck.intake._window is None, "a window on disk is not kept in memory"
        assert await stuck.asked(*WINDOW) == 7 and len(stuck.inbox) == 2, "of what is on disk, K knows what it has read"

    virtually(played())


@pytest.mark.parametrize("other", [(WINDOW[0], 3, 6, False), (WINDOW[0], 0, 3, True), (b"\x90", 0, 3, False)])
def test_another_window_is_a_message_of_its_own(other: tuple[bytes, int, int, bool]) -> None:
    async def played() -> None:
        stuck = Stuck()
        first, second = asyncio.create_task(stuck.asked(*WINDOW)), asyncio.create_task(stuck.asked(*other))
        await asyncio.sleep(1)
        assert len(stuck.inbox) == 2
        stuck.turn.set_result(None)
        assert await asyncio.gather(first, second) == [7, 7]

    virtually(played())


def test_each_sender_of_a_window_is_told_that_its_turn_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def played() -> None:
        stuck = Stuck()
        with pytest.raises(PeerUnavailable):
            await stuck.asked(*WINDOW)
        again = asyncio.create_task(stuck.asked(*WINDOW))
        await asyncio.sleep(1)
        stuck.turn.set_exception(StoreError("the disk is full"))
        with pytest.raises(StoreError, match="the disk is full"):
            await again

    async def alone() -> None:
        stuck = Stuck()
        with pytest.raises(PeerUnavailable):
            await stuck.asked(*WINDOW)
        stuck.turn.set_exception(StoreError("the disk is full"))
        await asyncio.sleep(1)

    gc.collect()  # what other tests have left is told now, and not below
    caplog.clear()
    with caplog.at_level(logging.ERROR, "asyncio"):
        virtually(played())
        virtually(alone())
        gc.collect()
    assert not caplog.records, "an error that nobody waits for is told by the channel, not by asyncio"
