"""When a channel says that it has room for rows: in time, and not for a few of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.channel.backpressure import Backpressure, thresholds

WINDOW, PERMITS = 2_048, 10


class Window:
    """A channel's: so many rows are in it, of which so many can be asked at once."""

    def __init__(self) -> None:
        self.open, self.outcome, self.over = WINDOW, "", False
        self.permits = PERMITS

    @property
    def offered(self) -> int:
        return max(0, self.open - self.permits)

    def rows_wanted(self) -> int:
        return 0 if self.outcome else WINDOW - self.open


@pytest.fixture
def window() -> Window:
    return Window()


async def _asks(window: Window, narrower: int = 0, wait_s: float = 3_600.0) -> tuple[Backpressure, asyncio.Task[int]]:
    state: Any = window
    appetite = Backpressure(lambda: state, lambda: window.over)
    waits = asyncio.create_task(appetite.room(*thresholds(WINDOW, narrower), wait_s))
    await asyncio.sleep(0)
    return appetite, waits


async def _turns(appetite: Backpressure, waits: asyncio.Task[int]) -> bool:
    """After a turn: is who waits told?"""
    appetite.look()
    for _ in range(3):
        await asyncio.sleep(0)
    return waits.done()


async def test_rows_are_wanted_when_half_of_the_window_is_free(window: Window) -> None:
    appetite, waits = await _asks(window)
    for _ in range(WINDOW // 2 - 1):
        window.open -= 1
        assert not await _turns(appetite, waits)
    window.open -= 1
    assert await _turns(appetite, waits)
    assert waits.result() == WINDOW // 2


async def test_before_that_where_what_may_be_asked_is_nearly_used_up(window: Window) -> None:
    window.permits = WINDOW - 40
    appetite, waits = await _asks(window)
    assert not waits.done(), "none is wanted at all"
    window.open -= 1
    assert await _turns(appetite, waits)
    assert waits.result() == 1


async def test_a_job_that_may_ask_nothing_now_wants_nothing_more(window: Window) -> None:
    window.permits = 0
    window.open -= 5
    _, waits = await _asks(window, wait_s=0.01)
    assert not waits.done()
    assert await waits == 5, "after the time that was given, in any case"


async def test_long_rows_have_a_narrower_window(window: Window) -> None:
    appetite, waits = await _asks(window, narrower=WINDOW - 48)
    window.open -= WINDOW - 48
    assert not await _turns(appetite, waits)
    window.open -= 24
    assert await _turns(appetite, waits)


async def test_whoever_waits_hears_of_the_end_when_it_is_on_disk_and_not_before(window: Window) -> None:
    appetite, waits = await _asks(window)
    window.outcome = "complete"
    assert not await _turns(appetite, waits), "it would be told that nothing is over, and ask again at once, for ever"
    window.over = True
    assert await _turns(appetite, waits)
    assert waits.result() == 0


async def test_a_channel_that_closes_or_breaks_lets_them_go(window: Window) -> None:
    appetite, waits = await _asks(window)
    appetite.close()
    assert await waits == 0


def test_thresholds_are_of_the_room_that_there_is() -> None:
    assert thresholds(2_048, 0) == (1_024, 1)
    assert thresholds(2_048, 2_000) == (2_024, 2_001)
    assert thresholds(1, 0) == (1, 1)
