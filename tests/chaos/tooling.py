"""A program whose work is done by workers alone, so that there are some to kill."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, ClassVar

import cortex


@cortex.tool(repeatable=True)
def squared(number: int) -> int:
    """Slow enough to be killed in the middle."""
    time.sleep(0.2)
    return number * number


class Squares(cortex.Program):
    """The squares of the numbers below ``count``, a tool run each; the answer is their sum."""

    count: int = 100
    tools: ClassVar[dict[str, Any]] = {"squared": squared}

    def begin(self, k: cortex.State) -> Iterable[Any]:
        for number in range(self.count):
            yield cortex.Goal("number", number)

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("number"):
            yield cortex.RunTool(goal, "squared", {"number": goal.value})

    def answer(self, k: cortex.State) -> int:
        return sum(goal.answer for goal in k.goals_of("number"))
