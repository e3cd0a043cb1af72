"""Hedges: a call without an answer is sent a second time, and the first answer counts (a join ``any`` over two).

Both are attempts at the same question, each with its own permit and reservation, so caps and limits hold; the retry
budget bounds their number, so that a slow provider does not double the load. When one is answered the other is
abandoned, and counts as paid again if it was answered too. If one fails, the goal waits for the other.
"""

from __future__ import annotations

from cortex.admission import budget_slices
from cortex.admission.permits import begin, way
from cortex.state import commands
from cortex.state.state import TRIES_MAX, Goal, InFlightAttempt, State, Status, flight_key
from cortex.values.ledger import Charge
from policies.failures.retry import budget, lapsed
from policies.failures.timeout import attempt_timeout_s


def look(k: State, out: list[commands.Command]) -> None:
    """Send again what has waited long enough at ``k.at_s``, as far as permits and money allow."""
    while k.unhedged:
        key, due_at_s = next(iter(k.unhedged.items()))
        if due_at_s > k.at_s:
            return
        flight = k.flights.get(key)
        goal = k.goals.get(flight.goal) if flight is not None else None
        if flight is None or goal is None or not _slow(goal, flight):
            del k.unhedged[key]
        elif not _affordable(k, flight):
            return
        else:
            del k.unhedged[key]
            _ask_again(k, goal, flight, out)


def _slow(goal: Goal, flight: InFlightAttempt) -> bool:
    alone = not goal.hedge and goal.tries == flight.attempt and goal.next_attempt <= TRIES_MAX
    return alone and goal.status == Status.ASKED and goal.question == flight.hash and not flight.abandoned


def _affordable(k: State, flight: InFlightAttempt) -> bool:
    limits, policy = k.terms.limits, k.terms.limits.retry
    k.retries = lapsed(policy, k.retries, k.successes)
    return (
        len(k.flights) < limits.concurrency
        and way(k, k.terms.lane_at(flight.route)) >= 0
        and k.shares[flight.route].free(k.at_s) > 0
        and k.retries < budget(policy, k.successes)
        and budget_slices.affords(k, _charge(k, flight))
    )


def _charge(k: State, flight: InFlightAttempt) -> Charge:
    """Charge of a second attempt."""
    place = flight.route
    return flight.charge.raised_by(k.shares[place].excess, k.ledger.day, k.terms.routes[place].price, flight.output_max)


def _ask_again(k: State, goal: Goal, flight: InFlightAttempt, out: list[commands.Command]) -> None:
    terms, place = k.terms, flight.route
    goal.hedge = flight.attempt
    goal.count_attempt()
    k.retries += 1
    k.tally.hedges += 1
    if k.on_decision is not None:
        seen = {"retries": k.retries, "successes": k.successes, "limits": terms.limits}
        k.on_decision(goal.id, "hedged", {"flight": flight, "waited_s": k.at_s - flight.asked_at_s, **seen})
    charge = _charge(k, flight)
    k.ledger.reserve(charge)
    bound = flight.charge.bounds[1] - flight.output_max
    share = k.shares[place]
    bounded = share.bounded if share.starts > 0 else 0
    paced = begin(k, place, bound, flight.output_max)
    k.flights[flight_key(goal.id, goal.tries)] = InFlightAttempt(
        goal.id, goal.tries, flight.sample, flight.hash, k.at_s, charge, flight.text_bytes, place, flight.sent,
        flight.output_max, paced, share.blocked is not None, bounded=bounded,
    )  # fmt: skip
    out.append(
        commands.Call(
            goal.id, flight.sample, goal.tries, flight.sent or flight.hash, flight.body, flight.output_max,
            terms.prompt_tokens_max(flight.output_max, place),
            attempt_timeout_s(terms.limits.timeout, flight.output_max, bound, share.patience), place,
            share.generation,
        )
    )  # fmt: skip


def other_of(k: State, flight: InFlightAttempt) -> InFlightAttempt | None:
    """Return the other attempt in flight at the same question for the same goal, if any."""
    goal = k.goals.get(flight.goal)
    if goal is None or not goal.hedge or flight.attempt not in (goal.hedge, goal.tries):
        return None
    attempt = goal.tries if flight.attempt == goal.hedge else goal.hedge
    other = k.flights.get(flight_key(goal.id, attempt))
    return other if other is not None and not other.abandoned and other.hash == flight.hash else None


def never_sent(k: State, other: InFlightAttempt, flight: InFlightAttempt) -> None:
    """Let the goals of an attempt that was never sent await the other one. A hedge that was not sent is none."""
    if flight.attempt > other.attempt:
        k.retries = max(0, k.retries - 1)
        k.tally.hedges -= 1
    leave_to(k, other, flight)


def leave_to(k: State, other: InFlightAttempt, flight: InFlightAttempt) -> None:
    """Let all goals that await this failed attempt await the other one."""
    goal = k.goals[flight.goal]
    goal.hedge = other.attempt if other.attempt != goal.tries else 0
    other.followers += flight.followers
    if k.asking.get(flight.hash, -1) not in k.flights and other.followers:
        k.asking[flight.hash] = flight_key(other.goal, other.attempt)
