"""Program with minimal calls, which leaves the cost that each call has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from benchmarks.harness.rows import OUTPUT_TOKENS_MAX, prompt
from cortex.state.changes import Ask, Resolve
from cortex.state.program import Program
from cortex.state.state import Goal, State
from cortex.values.prompt import Part, Prompt, Role
from cortex.values.reply import Malformed, Reply

_WORD = "row "


class Null(Program, frozen=True):
    """Program of ``calls`` calls, ``ahead`` goals at a time; the answer of each is its number."""

    name: ClassVar[str] = "null"
    keeps: ClassVar[bool] = False
    asks_once: ClassVar[bool] = True

    calls: int = 10_000
    ahead: int = 4_000
    """Open goals, which are the demand by which the scheduler lends permits."""

    def begin(self, k: State) -> Iterable[Any]:
        """Open the first goals."""
        for number in range(min(self.ahead, self.calls)):
            yield Goal(_WORD, number)

    def select(self, k: State) -> Iterable[Any]:
        """Ask every open goal."""
        for goal in k.open(_WORD):
            found = Prompt("null", (Part(Role.GOAL, prompt(goal.value)),))
            yield Ask(goal, found, output_tokens_max=OUTPUT_TOKENS_MAX)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Any]:
        """Check that the answer is the goal's own number; open the next goal."""
        text = reply.text
        if not text.startswith(_WORD):
            raise Malformed(f"no row: {text!r:.40}")
        number = int(text[len(_WORD) :])
        if number != goal.value:
            raise Malformed(f"row {goal.value} was answered with {text!r:.40}")
        yield Resolve(goal, number)
        if goal.value + self.ahead < self.calls:
            yield Goal(_WORD, goal.value + self.ahead)

    def answer(self, k: State) -> None:
        """Return nothing: the answers are the results."""
