"""The Towers of Hanoi, solved and verified without anything of the program's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def solution(disks: int, taken: int = 0, put: int = 2) -> list[list[int]]:
    """The shortest way, as (disk, from, to): the recursion of every textbook."""
    if disks == 0:
        return []
    spare = 3 - taken - put
    return [*solution(disks - 1, taken, spare), [disks, taken, put], *solution(disks - 1, spare, put)]


def verified(disks: int, moves: Iterable[Sequence[int]]) -> bool:
    """Whether these moves, each legal, bring all disks from peg 0 to peg 2 in as few moves as can be."""
    pegs = [list(range(disks, 0, -1)), [], []]
    count = 0
    for disk, taken, put in moves:
        if not pegs[taken] or pegs[taken][-1] != disk or (pegs[put] and pegs[put][-1] < disk):
            return False
        pegs[put].append(pegs[taken].pop())
        count += 1
    return len(pegs[2]) == disks and count == 2**disks - 1
