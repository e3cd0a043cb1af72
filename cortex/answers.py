"""The fast path of answers: those of a turn that are plain, one after another.

Nearly every answer is plain: its goal was asked, awaits this very attempt and no other, and shares it with nobody. What
such answers have in common is looked up once. For every other event ``loop`` has its general path, and for a plain
answer that would come to the same K and the same commands (``tests/properties/test_fast_paths.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from cortex import events
from cortex.authored import REFUSAL, Out, fold, fold_reply
from cortex.ledger import Took
from cortex.moves import ASKED
from cortex.permits import came_back
from cortex.program import Program
from cortex.state import Flight, Goal, State


def absorb_plainly(k: State, program: Program, happened: Iterator[events.Event], out: Out) -> events.Event | None:
    """Fold these into K as long as they are plain answers, and return the first that is not; None where all were."""
    if k.tell is not None:
        return next(happened, None)
    flights, goals, tally, reads_refusals = k.flights, k.goals, k.tally, program.reads_refusals
    for event in happened:
        if type(event) is not events.Answered or k.elections or k.unhedged:
            return event
        goal_id, attempt, reply = event.goal, event.attempt, event.reply
        goal, key = goals.get(goal_id), goal_id << 20 | attempt
        flight = flights.get(key)
        if goal is None or flight is None or not _is_plain(k, goal, attempt, flight, key):
            return event
        usage, place, charge = reply.usage, flight.route, flight.charge
        del flights[key]
        if k.asking:
            k.asking.pop(flight.hash, None)
        share = k.shares[place]
        if flight.paced is None and not flight.probe and share.failing is None:
            share.in_flight -= 1
        else:
            came_back(k, flight, usage)
        if flight.text_bytes:
            k.estimate = k.estimate.update(flight.text_bytes, usage.input_tokens_billed)
        price = k.terms.routes[place].price if place else k.terms.route.price
        k.took = Took(event.elapsed_s, k.ledger.settle(charge, usage, price))
        k.successes += 1
        if k.alike:
            k.alike = 0
        tally.answered += 1
        goal.question = b""
        if goal.broken:
            goal.broken = goal.throttles = 0
        if goal.failure is not None:
            goal.failure = None
        if reads_refusals or reply.stop_reason != REFUSAL:
            fold(k, program, goal, "absorb", reply, out)
        else:
            fold_reply(k, program, goal, reply, out)
        k.took = None
    return None


def _is_plain(k: State, goal: Goal, attempt: int, flight: Flight, key: int) -> bool:
    """Whether this goal awaits this attempt, and nothing else has to do with either."""
    return (
        goal.status is ASKED and goal.question == flight.hash and goal.tries == attempt and not goal.hedge
        and not goal.assumed and not flight.followers and not flight.prefix
        and (not k.asking or k.asking.get(flight.hash, key) == key)
    )  # fmt: skip
