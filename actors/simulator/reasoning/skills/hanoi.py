"""Next move of a puzzle with disks on pegs, by the strategy that the text states.

The puzzle is known only from the text: strategy, pegs and previous move are needed.
"""

import re
from typing import Final

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.thought import Thought

_CYCLE: Final = re.compile(r"(\d+) -> (\d+) -> (\d+) -> \1")
_MOVE: Final = re.compile(r"disk (\d+) from peg (\d+) to peg (\d+)")
_NO_MOVE: Final = re.compile(r"previous move: none", re.IGNORECASE)
_PEG: Final = re.compile(r"^peg (\d+):((?: \d+)*) *$", re.MULTILINE | re.IGNORECASE)
_SMALLEST: Final = 1


def move(reading: ParsedPrompt) -> Thought | None:
    """Return a move as ``move = [disk, from, to]``.

    All mistaken readers make the same mistake, the worst case for votes: disk 1 to the wrong peg, or disk 1 when
    another disk must move.
    """
    text = reading.text
    arrow = text.find(" -> ")
    cycle = _CYCLE.search(text, text.rfind(" ", 0, arrow) + 1) if arrow > 0 else None
    if cycle is None:
        return None
    pegs = {int(name): [int(disk) for disk in disks.split()] for name, disks in _PEG.findall(text)}
    order = [int(peg) for peg in cycle.groups()]
    if sorted(order) != sorted(pegs):
        return None
    at = next((peg for peg, disks in pegs.items() if disks[-1:] == [_SMALLEST]), None)
    moves = _MOVE.findall(text)
    if at is None or not (moves or _NO_MOVE.search(text)):
        return None
    on, back = order[(order.index(at) + 1) % 3], order[(order.index(at) + 2) % 3]
    smallest = _move_text(_SMALLEST, at, on)
    if not moves or int(moves[-1][0]) != _SMALLEST:
        return Thought(smallest, (_move_text(_SMALLEST, at, back),))
    tops = {peg: pegs[peg][-1] for peg in (on, back) if pegs[peg]}
    if not tops:
        return Thought(smallest, (_move_text(_SMALLEST, at, back),))
    taken = min(tops, key=tops.__getitem__)
    return Thought(_move_text(tops[taken], taken, back if taken == on else on), (smallest,))


def _move_text(disk: int, taken: int, put: int) -> str:
    return f"move = [{disk}, {taken}, {put}]"
