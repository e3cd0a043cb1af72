"""How many coroutines of a branch are called for how many calls, and how soon all calls are out."""

from __future__ import annotations

import asyncio
from collections import deque

from actors.branch.in_flight import InFlightCall
from actors.branch.task_pool import TaskPool
from cortex.state.commands import Call


def _calls(count: int) -> list[InFlightCall]:
    return [InFlightCall("j", "j", Call(goal, "0", 1, b"", b"", 1, 1, 60.0), 0.0) for goal in range(count)]


async def test_where_a_model_answers_at_once_one_hand_makes_nearly_all_calls() -> None:
    made: list[tuple[int, object]] = []

    async def make(queue: deque[InFlightCall], task: asyncio.Task[None]) -> None:
        while queue:
            made.append((queue.popleft().call.goal, task))

    hands = TaskPool(make)
    for _ in range(2):
        hands.give(_calls(256))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [goal for goal, _ in made] == [*range(256), *range(256)]
    assert len(hands.tasks) <= 4
    assert hands.queued == 0
    await hands.close()


async def test_a_hundred_calls_that_take_time_are_out_after_a_few_rounds_of_the_loop() -> None:
    out: set[int] = set()
    answer = asyncio.Event()

    async def make(queue: deque[InFlightCall], task: asyncio.Task[None]) -> None:
        while queue:
            out.add(queue.popleft().call.goal)
            await answer.wait()

    hands = TaskPool(make)
    for start in (1, 2):  # hands that are made, and hands that wait
        hands.give(_calls(100))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(out) == 100, f"the {start}. time"
        answer.set()
        for _ in range(10):
            await asyncio.sleep(0)
        answer.clear()
        out.clear()
    assert len(hands.tasks) == 100, "as many as calls were ever under way at once"
    await hands.close()
    assert not hands.tasks
