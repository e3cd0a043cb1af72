"""Calls of turns that the journal has lost.

A journal may lose its end: in a loss of power whose disk had not written what it said, or as a backup that is brought
back. K then stands where it stood before, and would number goals and attempts as the lost turns did. Branches on other
machines may hold calls and replies of these turns, and an answer to one question would be taken for that of another.
So a new channel asks the branches what they hold, and numbers that no turn has given are left out. Where a branch does
not answer in time, the question of a reply is compared with that of its call.
"""

from __future__ import annotations

from collections.abc import Iterable

from cortex.state.events import Answered
from cortex.state.state import InFlightAttempt, LostAttempt, State, flight_key


def unasked(k: State, held: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return those of the calls that branches hold which no turn of this journal has asked. What an earlier channel
    found is not among them."""
    return tuple([(goal, attempt) for goal, attempt in held if _is_unasked(k, goal, attempt)])


def _is_unasked(k: State, number: int, attempt: int) -> bool:
    goal = k.goals.get(number)
    return number >= k.next_goal or (goal is not None and attempt >= goal.next_attempt)


def leave_out(k: State, numbers: Iterable[tuple[int, int]]) -> None:
    """Give none of these numbers (goal, attempt) to a call from now on."""
    for number, attempt in numbers:
        k.next_goal = max(k.next_goal, number + 1)
        goal = k.goals.get(number)
        if goal is None or attempt < goal.next_attempt:
            continue
        goal.given = attempt
        latest = flight_key(number, goal.tries)
        if not (goal.hedge or latest in k.flights or latest in k.errands):
            goal.unsent += attempt - goal.tries
            goal.tries = attempt  # now: the fast path asks for goals without attempts, and looks at nothing else


def is_of_another(k: State, asked: InFlightAttempt | LostAttempt | None, event: Answered) -> bool:
    """Return whether a reply with the numbers of this attempt answers another question, of a turn that is lost."""
    if not k.unmet or asked is None:
        return False
    if type(asked) is InFlightAttempt:
        return event.hash != (asked.sent or asked.hash)
    return 0 <= asked.route <= k.terms.peers and event.hash != asked.question  # type: ignore[union-attr]
