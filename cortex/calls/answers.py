"""Answers to attempts: each is folded into K once, for every goal that asked.

``absorb`` is the general path. ``fast_absorb`` is the fast path for the answers of a turn, one after another: nearly
every answer is to the only attempt of the only goal that asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from cortex.admission import budget_slices
from cortex.admission.permits import release_permit
from cortex.calls import attempts
from cortex.calls.program_hooks import Out, fast_fold, fold_reply, fold_vote
from cortex.goals.apply_changes import may_apply_fast
from cortex.goals.lifecycle import ASKED
from cortex.state.events import Answered, Event
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.election import VOTE
from cortex.values.endings import WHOLE_REASONS, is_refusal
from cortex.values.ledger import ReplyTimings
from policies.estimates.tokens import TEACHES_BYTES_MIN
from policies.failures.timeout import teaches_from_s


def absorb(k: State, program: Program, event: Answered, out: Out) -> None:
    """Fold a reply into K, once, for every goal that asked: all of what the program yields, or nothing."""
    for goal in attempts.answered(k, event, out):
        fold_reply(k, program, goal, event.reply, out)
    k.took = None


def fast_absorb(k: State, program: Program, happened: Iterator[Event], out: Out) -> Event | None:
    """Fold eligible answers into K as ``absorb`` does (fast path). Return the first other event; None if there is none.

    Eligible is an answer to an attempt that its goal awaits, and no other attempt: the attempt is not shared, hedged or
    of an earlier question, warms no prefix, its usage is known, its duration changes no timeouts, and
    ``may_apply_fast`` holds for the turn. What these answers have in common is looked up once. Equal to ``absorb`` by
    ``tests/properties/test_fast_paths.py``: the same K and the same commands, byte for byte.
    """
    if not may_apply_fast(k, program, out):
        return next(happened, None)
    flights, goals, shares, ledger, tally = k.flights, k.goals, k.shares, k.ledger, k.tally
    unhedged, elections, asking, own_price = k.unhedged, k.elections, k.asking, k.terms.route.price
    reads_refusals = program.reads_refusals
    policy = k.terms.limits.timeout
    capped, unmet = not budget_slices.unbounded(k), k.unmet
    usual_s = min([teaches_from_s(policy, share.patience) for share in shares], default=0.0)
    other: Event | None = None
    for event in happened:
        if type(event) is not Answered:
            other = event
            break
        goal_id, attempt = event.goal, event.attempt
        goal, key = goals.get(goal_id), goal_id << 20 | attempt
        flight, reply, elapsed_s = flights.get(key), event.reply, event.elapsed_s
        usage = reply.usage
        if (
            goal is None or flight is None or goal.status is not ASKED or goal.question != flight.hash
            or goal.tries != attempt or goal.hedge or goal.assumed or flight.followers or flight.prefix
            or unhedged or (elections and goal.kind != VOTE) or (asking and asking.get(flight.hash, key) != key)
            or usage.unknown or elapsed_s > usual_s or (unmet and event.hash != flight.hash)
        ):  # fmt: skip
            other = event
            break
        del flights[key]
        place = flight.route
        share = shares[place]
        if flight.paced is None and not flight.probe and share.failing is None:
            share.in_flight -= 1
        else:
            release_permit(k, flight, usage)
        if asking:
            asking.pop(flight.hash, None)
        if flight.text_bytes >= TEACHES_BYTES_MIN:
            k.estimate = k.estimate.update(flight.text_bytes, usage.input_tokens_billed)
        price = k.terms.routes[place].price if place else own_price
        nusd = ledger.settle(flight.charge, usage, price, share if capped else None, flight.output_max)
        k.took = ReplyTimings(elapsed_s, nusd)
        k.successes += 1
        tally.answered += 1
        if k.alike:
            k.alike = 0
        goal.question = b""
        if goal.broken:
            goal.broken = goal.throttles = 0
        if goal.tried:
            goal.tried = 0
        if goal.failure is not None:
            goal.failure = None
        if not reads_refusals and reply.stop_reason not in WHOLE_REASONS and is_refusal(reply.stop_reason):
            fold_reply(k, program, goal, reply, out)
        elif goal.kind == VOTE:
            fold_vote(k, program, goal, reply, out)
        else:
            fast_fold(k, program, goal, reply, out)
    if k.took is not None:
        k.took = None
    return other
