"""Programs whose calls follow each other: each prompt contains the answer before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import cortex
from cortex.programs.hanoi import Hanoi
from cortex.state.changes import Ask, Change, Resolve
from cortex.state.program import Program
from cortex.state.state import Goal, Item, State
from cortex.values.prompt import Part, Prompt, Role
from cortex.values.reply import Reply

OUTPUT_TOKENS_MAX = 16
SAMPLES_APART = 1_000


def question(number: int, before: str) -> str:
    """Return the prompt of one call, which needs the answer to the previous call."""
    return f"Repeat this and nothing else: {number} after {len(before)}"


class Chain(Program, frozen=True):
    """Program of ``calls`` calls, one after another. K stays as small as at the start."""

    name: ClassVar[str] = "chain"
    keeps: ClassVar[bool] = False
    rows_are_goals: ClassVar[bool] = False
    asks_once: ClassVar[bool] = True

    calls: int = 1_000

    def begin(self, k: State) -> Iterable[Change]:
        """Open the first goal, whose value is its number and the previous answer."""
        yield Goal("link", [0, ""])

    def select(self, k: State) -> Iterable[Ask]:
        """Return the next call."""
        for goal in k.open("link"):
            prompt = Prompt("link", (Part(Role.GOAL, question(*goal.value)),))
            yield Ask(goal, prompt, output_tokens_max=OUTPUT_TOKENS_MAX)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Continue with the next number."""
        number = goal.value[0] + 1
        yield Resolve(goal)
        yield Goal("link", [number, reply.text]) if number < self.calls else Item("told", reply.text)

    def satisfied(self, k: State) -> bool:
        """Return whether the last call is answered."""
        return any(True for _ in k.items_of("told"))

    def answer(self, k: State) -> Any:
        """Return the number of calls."""
        return k.tally.calls


class Towers(Hanoi, frozen=True):
    """Program of several towers at once, each a chain: their sample numbers are disjoint, so no two questions are
    equal."""

    name: ClassVar[str] = "towers"

    chains: int = 16

    def begin(self, k: State) -> Iterable[Change]:
        """Return all disks of all towers on peg 0."""
        for chain_ in range(self.chains):
            yield Goal("move", [0, "0" * self.disks, None], sample=str(chain_ * SAMPLES_APART))

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Make the move that won and continue on the same tower."""
        for change in super().absorb(k, goal, reply):
            yield Goal("move", change.value, sample=goal.sample) if type(change) is Goal else change

    def satisfied(self, k: State) -> bool:
        """Return whether all disks of all towers are on peg 2."""
        return sum(1 for _ in k.items_of("solved")) == self.chains

    def answer(self, k: State) -> Any:
        """Return the answer in the form of one tower's."""
        return {"solved": self.satisfied(k), "moves": k.emitted, "samples": k.tally.calls}


@cortex.flow
async def chain(ctx: Any, calls: int) -> int:
    """Flow form of ``Chain``."""
    text = ""
    for number in range(calls):
        text = await ctx.ask(question(number, text), max_tokens=OUTPUT_TOKENS_MAX)
    return calls
