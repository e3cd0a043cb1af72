"""A timer that is put off again and again."""

from __future__ import annotations

import asyncio

from actors.common.timers import LEAST_S, RearmableTimer
from tests.edge.support.virtual_clock import VirtualLoop, virtually


def test_it_rings_at_the_moment_or_before_and_makes_a_timer_only_where_that_is_earlier() -> None:
    rung: list[float] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        alarm = RearmableTimer(lambda: rung.append(loop.time()))
        for put_off_s in (5.0, 6.0, 7.0):
            assert alarm.set(put_off_s)
        assert sum(not timer.cancelled() for timer in loop._scheduled) == 1  # type: ignore[attr-defined]
        await asyncio.sleep(8)
        assert rung == [5.0]
        assert alarm.set(9.0) and alarm.set(2.0)
        assert not alarm.set(LEAST_S / 2) and not alarm.set(-3.0), "that is now"
        await asyncio.sleep(20)
        assert rung == [5.0, 8.0 + LEAST_S]
        alarm.set(1.0)
        alarm.close()
        await asyncio.sleep(2)
        assert len(rung) == 2

    virtually(play())
