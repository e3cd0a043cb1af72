"""``hanoi``: the Towers of Hanoi, one move a call, each move voted on.

The run of Meyerson et al., Solving a Million-Step LLM Task with Zero Errors, 2025 (arXiv 2511.09030): 20 disks,
1,048,575 moves, k = 3. A call sees the strategy, the previous move and the current configuration, and nothing else;
what the configuration is, how far the run has come and whether a move may be made is kept by code. One difference:
there the model writes the next configuration too, here it names the move alone.

K stays as small as it begins: a goal holds where the disks are, is followed by the next one, and leaves memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

from cortex.state.changes import Change, Emit, Fail, Resolve, Vote
from cortex.state.program import Program
from cortex.state.state import Goal, Item, State
from cortex.values.prompt import Part, Prompt, Role
from cortex.values.reply import Malformed, Reply

STRATEGY = """Towers of Hanoi with pegs 0, 1 and 2. A move takes the top disk of a peg and puts it on another peg, never on a smaller disk.
Strategy: if the previous move was not of disk 1, move disk 1 to the next peg in the cycle {cycle}.
If the previous move was of disk 1, make the only legal move of another disk."""  # noqa: E501 - a paragraph of the prompt
CYCLES = ("0 -> 1 -> 2 -> 0", "0 -> 2 -> 1 -> 0")
"""Which way disk 1 goes round, for an even and for an odd number of disks, so that all end on peg 2."""
FORM = "Answer with the move alone, in this form: move = [disk, from peg, to peg]"
REPLY_TOKENS_MAX = 40
"""A move has about ten tokens; a longer reply has lost its way."""
TARGET = "2"

_GOAL = Role.GOAL  # looked up once, as what is the same in each prompt is made once
_STRATEGIES = tuple(Part(_GOAL, STRATEGY.format(cycle=cycle)) for cycle in CYCLES)
_FORM = Part(_GOAL, FORM)
_MOVE = re.compile(r"move = \[([1-9]\d*), ([012]), ([012])\]")


class Hanoi(Program, frozen=True):
    """Move ``disks`` disks from peg 0 to peg 2; a move is made when it is ``k`` votes ahead of every other."""

    name: ClassVar[str] = "hanoi"
    keeps: ClassVar[bool] = False
    rows_are_goals: ClassVar[bool] = False
    asks_once: ClassVar[bool] = True  # no configuration comes twice

    disks: int = 3
    k: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.disks <= 64:
            raise ValueError(f"disks must be 1 to 64, not {self.disks}")
        if self.k < 1:
            raise ValueError(f"k must be 1 or more, not {self.k}")

    def begin(self, k: State) -> Iterable[Change]:
        """All disks on peg 0. A goal's value: the moves made so far, each disk's peg from disk 1 on, the last move."""
        yield Goal("move", [0, "0" * self.disks, None])

    def select(self, k: State) -> Iterable[Vote]:
        """The one move that is next."""
        for goal in k.open("move"):
            yield Vote(goal, self.prompt(k, goal), k=self.k, output_tokens_max=REPLY_TOKENS_MAX)

    def prompt(self, k: State, goal: Goal) -> Prompt:
        """The strategy, the previous move, the current configuration."""
        _, places, last = goal.value
        said = "Previous move: " + ("none" if last is None else "disk {} from peg {} to peg {}".format(*last))
        strategy = _STRATEGIES[self.disks % 2]
        return Prompt("move", (strategy, Part(_GOAL, said), Part(_GOAL, pegs_said(places)), _FORM))

    def ballot(self, k: State, goal: Goal, reply: Reply) -> list[int]:
        """The move, where the reply is one and nothing else."""
        return move_of(reply.text)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Make the move that won, and go on from there."""
        made, places, _ = goal.value
        move = move_of(reply.text)
        after = moved(places, move)
        if after is None:
            yield Fail(goal, f"move {made + 1}, {move}, is not legal from {places}")
            return
        yield Emit(move)
        yield Resolve(goal)
        if after == TARGET * self.disks:
            yield Item("solved", made + 1)
        elif made + 1 < 2**self.disks - 1:
            yield Goal("move", [made + 1, after, move])

    def satisfied(self, k: State) -> bool:
        """Only when all disks are on peg 2: a chain that broke off has failed, and says why."""
        return next(iter(k.items_of("solved")), None) is not None

    def answer(self, k: State) -> dict[str, Any]:
        """Whether all disks are on peg 2, after how many moves, and how many samples that took."""
        solved = [item.value for item in k.items_of("solved")]
        return {"solved": bool(solved), "moves": k.emitted, "samples": k.tally.calls}


def pegs_said(places: str) -> str:
    """A configuration, a line for each peg, its disks from bottom to top."""
    pegs = {"0": "Peg 0:", "1": "Peg 1:", "2": "Peg 2:"}
    for disk in range(len(places), 0, -1):
        pegs[places[disk - 1]] += f" {disk}"
    return "\n".join(pegs.values())


def move_of(text: str) -> list[int]:
    """The move that a reply is: disk, from peg, to peg. Raises ``Malformed`` for any other text."""
    found = _MOVE.fullmatch(text)
    if found is None:
        raise Malformed(f"not a move: {text[:60]!r}")
    return list(map(int, found.groups()))


def moved(places: str, move: list[int]) -> str | None:
    """The configuration after a move; None where it may not be made."""
    disk, taken, put = move
    smaller = places[: disk - 1]
    if disk > len(places) or places[disk - 1] != str(taken) or taken == put:
        return None
    if str(taken) in smaller or str(put) in smaller:  # it is not on top, or would lie on a smaller one
        return None
    return f"{smaller}{put}{places[disk:]}"
