"""Fast path of answers: plain answers of a turn, one after another.

Nearly every answer is plain: its goal was asked, awaits exactly this attempt, and shares it with no other goal. What
plain answers have in common is looked up once. For all other events ``cortex.loop.step`` has the general path, which
would produce the same K and the same commands for a plain answer (``tests/properties/test_fast_paths.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from cortex.admission.permits import release_permit
from cortex.calls.program_hooks import Out, fast_fold, fold_reply, fold_vote
from cortex.goals.apply_changes_fast import may_apply_fast
from cortex.goals.lifecycle import ASKED
from cortex.state.events import Answered, Event
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.canonical import REFUSAL
from cortex.values.election import VOTE
from cortex.values.ledger import ReplyTimings
from policies.estimates.tokens import TEACHES_BYTES_MIN


def fast_absorb(k: State, program: Program, happened: Iterator[Event], out: Out) -> Event | None:
    """Fold plain answers into K, and return the first event that is not one; None if all were."""
    if not may_apply_fast(k, program, out):
        return next(happened, None)
    flights, goals, shares, ledger, tally = k.flights, k.goals, k.shares, k.ledger, k.tally
    reads_refusals = program.reads_refusals
    other: Event | None = None
    for event in happened:
        if type(event) is not Answered:
            other = event
            break
        goal_id, attempt = event.goal, event.attempt
        goal, key = goals.get(goal_id), goal_id << 20 | attempt
        flight = flights.get(key)
        if (
            goal is None or flight is None or goal.status is not ASKED or goal.question != flight.hash
            or goal.tries != attempt or goal.hedge or goal.assumed or flight.followers or flight.prefix
            or k.unhedged or (k.elections and goal.kind != VOTE) or (k.asking and k.asking.get(flight.hash, key) != key)
        ):  # fmt: skip
            other = event
            break
        del flights[key]
        reply = event.reply
        usage, place = reply.usage, flight.route
        share = shares[place]
        if flight.paced is None and not flight.probe and share.failing is None:
            share.in_flight -= 1
        else:
            release_permit(k, flight, usage)
        if k.asking:
            k.asking.pop(flight.hash, None)
        if flight.text_bytes >= TEACHES_BYTES_MIN:
            k.estimate = k.estimate.update(flight.text_bytes, usage.input_tokens_billed)
        price = k.terms.routes[place].price if place else k.terms.route.price
        k.took = ReplyTimings(event.elapsed_s, ledger.settle(flight.charge, usage, price))
        k.successes += 1
        tally.answered += 1
        if k.alike:
            k.alike = 0
        goal.question = b""
        if goal.broken:
            goal.broken = goal.throttles = 0
        if goal.failure is not None:
            goal.failure = None
        if reply.stop_reason == REFUSAL and not reads_refusals:
            fold_reply(k, program, goal, reply, out)
        elif goal.kind == VOTE:
            fold_vote(k, program, goal, reply, out)
        else:
            fast_fold(k, program, goal, reply, out)
    if k.took is not None:
        k.took = None
    return other
