"""``hanoi``: the Towers of Hanoi, one move per call, each move decided by a vote.

The run of Meyerson et al., Solving a Million-Step LLM Task with Zero Errors, 2025 (arXiv 2511.09030): 20 disks,
1,048,575 moves, k = 3. A call sees the strategy, the previous move and the current configuration, and nothing else;
code keeps the configuration and the progress, and checks each move. One difference: in the paper the model also writes
the next configuration; here it only names the move.

K stays as small as it begins: a goal holds the positions of the disks, is followed by the next goal, and leaves memory.
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
"""Directions in which disk 1 moves, for an even and for an odd number of disks, so that all disks end on peg 2."""
FORM = "Answer with the move alone, in this form: move = [disk, from peg, to peg]"
REPLY_TOKENS_MAX = 40
"""``max_tokens``: a move has about ten tokens; a longer reply has lost its way."""
TARGET = "2"

_GOAL = Role.GOAL  # constant parts are built once; enum members are slow to access
_STRATEGIES = tuple(Part(_GOAL, STRATEGY.format(cycle=cycle)) for cycle in CYCLES)
_FORM = Part(_GOAL, FORM)
_MOVE = re.compile(r"move = \[([1-9]\d*), ([012]), ([012])\]")


class Hanoi(Program, frozen=True):
    """Move ``disks`` disks from peg 0 to peg 2; a move is made when it is ``k`` votes ahead of every other."""

    name: ClassVar[str] = "hanoi"
    keeps: ClassVar[bool] = False
    rows_are_goals: ClassVar[bool] = False
    asks_once: ClassVar[bool] = True  # no configuration occurs twice

    disks: int = 3
    k: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.disks <= 64:
            raise ValueError(f"disks must be 1 to 64, not {self.disks}")
        if self.k < 1:
            raise ValueError(f"k must be 1 or more, not {self.k}")

    def begin(self, k: State) -> Iterable[Change]:
        """Yield the first goal: all disks on peg 0.

        A goal's value: number of moves made, peg of each disk from disk 1 on, previous move.
        """
        yield Goal("move", [0, "0" * self.disks, None])

    def select(self, k: State) -> Iterable[Vote]:
        """Yield the vote on the next move."""
        for goal in k.open("move"):
            yield Vote(goal, self.prompt(k, goal), k=self.k, output_tokens_max=REPLY_TOKENS_MAX)

    def prompt(self, k: State, goal: Goal) -> Prompt:
        """Return the prompt: the strategy, the previous move, the current configuration."""
        _, places, last = goal.value
        text = "Previous move: " + ("none" if last is None else "disk {} from peg {} to peg {}".format(*last))
        strategy = _STRATEGIES[self.disks % 2]
        return Prompt("move", (strategy, Part(_GOAL, text), Part(_GOAL, pegs_text(places)), _FORM))

    def ballot(self, k: State, goal: Goal, reply: Reply) -> list[int]:
        """Return the move, if the reply is one and nothing else."""
        return move_of(reply.text)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Make the winning move, and yield the next goal."""
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
        """Return True when all disks are on peg 2: a chain that broke off has failed, with the reason."""
        return next(iter(k.items_of("solved")), None) is not None

    def answer(self, k: State) -> dict[str, Any]:
        """Return whether all disks are on peg 2, after how many moves, and with how many samples."""
        solved = [item.value for item in k.items_of("solved")]
        return {"solved": bool(solved), "moves": k.emitted, "samples": k.tally.calls}


def pegs_text(places: str) -> str:
    """Return the text of a configuration: a line for each peg, its disks from bottom to top."""
    pegs = {"0": "Peg 0:", "1": "Peg 1:", "2": "Peg 2:"}
    for disk in range(len(places), 0, -1):
        pegs[places[disk - 1]] += f" {disk}"
    return "\n".join(pegs.values())


def move_of(text: str) -> list[int]:
    """Return the move in a reply: disk, from peg, to peg. Raises ``Malformed`` for any other text."""
    found = _MOVE.fullmatch(text)
    if found is None:
        raise Malformed(f"not a move: {text[:60]!r}")
    return list(map(int, found.groups()))


def moved(places: str, move: list[int]) -> str | None:
    """Return the configuration after a move; None if the move is illegal."""
    disk, taken, put = move
    smaller = places[: disk - 1]
    if disk > len(places) or places[disk - 1] != str(taken) or taken == put:
        return None
    if str(taken) in smaller or str(put) in smaller:  # the disk is not on top, or would lie on a smaller one
        return None
    return f"{smaller}{put}{places[disk:]}"
