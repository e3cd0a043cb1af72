"""The thread that a private Ray hangs on outlives every loop that asked for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from actors.cluster.pinned_thread import PinnedThread


def _fail() -> None:
    raise ValueError("said")


def test_all_is_done_in_one_thread_that_stays_when_loops_and_threads_end() -> None:
    keeper = PinnedThread("kept")
    found: list[threading.Thread] = []

    def job() -> None:
        found.append(asyncio.run(keeper.run(threading.current_thread)))

    for _ in range(2):
        one = threading.Thread(target=job)
        one.start()
        one.join()
    assert found[0] is found[1]
    assert found[0].is_alive()
    assert found[0].daemon, "it must not hold up the end of the process"


async def test_what_a_function_raises_is_raised_and_the_next_one_runs() -> None:
    keeper = PinnedThread("kept")
    with pytest.raises(ValueError, match="said"):
        await keeper.run(_fail)
    assert await keeper.run(lambda: 7) == 7
