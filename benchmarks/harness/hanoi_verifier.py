"""Solver and verifier of the Towers of Hanoi, independent of the program under test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def solution(disks: int, taken: int = 0, put: int = 2) -> list[list[int]]:
    """Return the shortest solution as (disk, from, to) by the textbook recursion."""
    if disks == 0:
        return []
    spare = 3 - taken - put
    return [*solution(disks - 1, taken, spare), [disks, taken, put], *solution(disks - 1, spare, put)]


def verified(disks: int, moves: Iterable[Sequence[int]]) -> bool:
    """Return whether the moves are legal and bring all disks from peg 0 to peg 2 in the fewest moves."""
    pegs = [list(range(disks, 0, -1)), [], []]
    count = 0
    for disk, taken, put in moves:
        if not pegs[taken] or pegs[taken][-1] != disk or (pegs[put] and pegs[put][-1] < disk):
            return False
        pegs[put].append(pegs[taken].pop())
        count += 1
    return len(pegs[2]) == disks and count == 2**disks - 1
