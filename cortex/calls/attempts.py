"""Settlement of attempts: each is answered or broken, and settled exactly once.

Every function handles one flight of K and returns, as data, what remains to be decided about its goal.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from cortex.admission import budget_slices, hedging
from cortex.admission.pauses import alike, block
from cortex.admission.permits import (
    failed_there,
    give_pace_back,
    learn_patience,
    may_move_on,
    release_permit,
    unspend,
)
from cortex.calls import lost_turns
from cortex.calls.cache_warming import prefix_settled
from cortex.calls.request import AS_GIVEN, waits_of
from cortex.goals.lifecycle import ASKED, OPEN, asked, keep_late, leave_call, note_refused, reopen
from cortex.state import commands, events
from cortex.state.state import ENDED, Goal, InFlightAttempt, LostAttempt, State, Status, flight_key
from cortex.values.election import VOTE, next_sample
from cortex.values.ledger import ReplyTimings, note_bill
from cortex.values.reply import Usage
from policies.failures.failure import RULES, Failure, FailureKind
from policies.failures.peers import moves_on
from policies.failures.retry import backoff_s, beyond_patience, is_away, lapsed, may_retry

_REMEMBERED = ReplyTimings(reused=True)
_REFUSED_HERE = (FailureKind.TOO_LARGE, FailureKind.CANCELLED, FailureKind.TIMED_OUT)
"""Kinds of failure that no branch reports to the scheduler if the call was not sent (`actors.branch.branch`). A probe
that failed for want of a connection is reported, and replaced by the scheduler."""
_DRAW_BYTES = 6
REST_S = 1.0
"""Seconds for which a route rests at most after a call came back from an open breaker that K has not heard of. A grant
takes milliseconds; a lost one is repeated with the next claim, after 5 s at most."""
REST_LEAST_S = 0.01
"""Seconds for which it rests at least: a probe that is due now takes a grant as well."""


def drawn(call_id: str, attempt: int) -> float:
    """Return a number in [0, 1) derived from this attempt's id: randomness that replays."""
    digest = blake2b(f"{call_id}/{attempt}".encode(), digest_size=_DRAW_BYTES).digest()
    return int.from_bytes(digest, "big") / (1 << (8 * _DRAW_BYTES))


def answered(k: State, event: events.Answered, out: list[commands.Command]) -> list[Goal]:
    """Settle a paid reply, and return the goals that absorb it: none if the reply came before or comes too late.

    An attempt is settled once. An attempt that was given up as lost may still be answered: then its real usage replaces
    the assumed charge, and the goals that ask the same question now take the reply.
    """
    goal = k.goals.get(event.goal)
    key = flight_key(event.goal, event.attempt)
    flight = k.flights.get(key)
    if flight is None or lost_turns.is_of_another(k, flight, event):
        return _late(k, goal, event, out)
    del k.flights[key]
    usage, question, place = event.reply.usage, flight.hash, flight.route
    release_permit(k, flight, usage)
    learn_patience(k, flight, event.elapsed_s)
    if flight.prefix:
        prefix_settled(k, flight, warmed=True)
    if k.asking:
        no_longer_asking(k, flight)
    if flight.text_bytes:
        k.estimate = k.estimate.update(flight.text_bytes, usage.input_tokens_billed)
    price = k.terms.routes[place].price if place else k.terms.route.price
    noted = None if budget_slices.unbounded(k) else k.shares[place]
    nusd = k.ledger.settle(flight.charge, usage, price, noted, flight.output_max)
    k.took = ReplyTimings(event.elapsed_s, nusd)
    asked_again = question in k.asking
    if flight.followers or asked_again:
        sharing = (event.goal, *flight.followers, *_asking_again(k, question))
        waiting = _awaiting(k, sharing, question)
    else:
        waiting = _asks(goal, question)
    if not waiting or (goal is not None and goal.assumed):
        k.ledger.paid_again += 1
    _count(k, waiting, usage)
    alone = not asked_again and goal is not None and event.attempt == goal.tries and not goal.hedge
    _take(k, waiting, alone, out)
    return waiting


def _late(k: State, goal: Goal | None, event: events.Answered, out: list[commands.Command]) -> list[Goal]:
    """Settle a reply to an attempt that was given up as lost, or count one to an unknown attempt as dropped."""
    missing = goal.assumed.get(event.attempt) if goal is not None and goal.assumed else None
    ended = missing is None and k.late
    if ended:
        missing = k.late.get(flight_key(event.goal, event.attempt))
    if missing is None or lost_turns.is_of_another(k, missing, event):
        k.tally.dropped += 1
        if k.on_decision is not None:
            k.on_decision(event.goal, "dropped", {"attempt": event.attempt})
        return []
    if ended:
        del k.late[flight_key(event.goal, event.attempt)]
    elif goal is not None and goal.assumed:
        del goal.assumed[event.attempt]
    nusd = None
    price = k.terms.routes[missing.route].price if missing.route >= 0 else None
    if event.reply.usage.unknown:
        nusd = k.ledger.count_unknown(missing.charge, price)
    elif missing.route >= 0:  # otherwise the assumed charge stays
        k.ledger.unassume(missing.charge)
        nusd = k.ledger.know(event.reply.usage, price, missing.charge.day)
        if not budget_slices.unbounded(k):
            note_bill(k.shares[missing.route], missing.charge, price, missing.output_max, nusd or 0, event.reply.usage)
    k.took = ReplyTimings(event.elapsed_s, nusd)
    waiting = _awaiting(k, (event.goal, *_asking_again(k, missing.question)), missing.question)
    _count(k, waiting, event.reply.usage)
    _take(k, waiting, False, out)
    return waiting


def _count(k: State, waiting: list[Goal], usage: Usage) -> None:
    """Count a paid reply that these goals awaited."""
    k.successes += 1
    k.tally.uncounted += usage.unknown
    if k.alike:
        k.alike = 0
    if waiting:
        k.tally.answered += len(waiting)
    else:
        k.tally.dropped += 1


def _asking_again(k: State, question: bytes) -> tuple[int, ...]:
    """Goals for which another attempt is asking the same question now."""
    key = k.asking.get(question)
    if key is None:
        return ()
    other = k.flights[key]
    return (other.goal, *other.followers)


def recalled(k: State, event: events.ReplyRecalled, out: list[commands.Command]) -> list[Goal]:
    """Settle a call whose reply was stored: nothing was sent, nothing is paid. Return the goals that absorb it."""
    goal = k.goals.get(event.goal)
    if goal is None:
        return []
    key = flight_key(goal.id, goal.tries)
    flight = k.flights.get(key)
    goal_ids: tuple[int, ...] = (goal.id,)
    question = event.hash
    if flight is not None and (flight.sent or flight.hash) == event.hash:
        question = flight.hash
        del k.flights[key]
        release_permit(k, flight, None, paid=False)
        give_pace_back(k, flight)
        unspend(k, flight)
        if flight.prefix:
            prefix_settled(k, flight, warmed=False)
        no_longer_asking(k, flight)
        k.ledger.release(flight.charge)
        k.ledger.attempts -= 1
        goal_ids += tuple(flight.followers)
    k.took = _REMEMBERED
    waiting = _awaiting(k, goal_ids, question)
    k.ledger.reused_calls += bool(waiting)
    _take(k, waiting, False, out)
    return waiting


def _awaiting(k: State, goal_ids: tuple[int, ...], question: bytes) -> list[Goal]:
    """Goals among these that await an answer to this question."""
    return [goal for goal_id in dict.fromkeys(goal_ids) for goal in _asks(k.goals.get(goal_id), question)]


def _asks(goal: Goal | None, question: bytes) -> list[Goal]:
    """`[goal]` if it awaits this question (OPEN or ASKED; a goal that waits for its retry takes the reply too), else
    `[]`.
    """
    return [goal] if goal is not None and goal.question == question and goal.status <= ASKED else []


def _take(k: State, goals: list[Goal], alone: bool, out: list[commands.Command]) -> None:
    """Note that these goals have their reply.

    An attempt that replaced the answered one is abandoned, unless other goals await it; ``alone``: there was none.
    """
    for goal in goals:
        if goal.status == OPEN:
            asked(k, goal)
        if alone:
            goal.question = b""
        else:
            leave_call(k, goal, out)
        if goal.broken:
            goal.broken = goal.throttles = 0
        if goal.tried:
            goal.tried = 0
        if goal.failure is not None:
            goal.failure = None


def no_longer_asking(k: State, flight: InFlightAttempt) -> None:
    """Remove the flight from the index of questions: a later equal question makes its own attempt."""
    if k.asking.get(flight.hash) == flight_key(flight.goal, flight.attempt):
        del k.asking[flight.hash]


class FinalFailure(msgspec.Struct, frozen=True):
    """Goal whose call has failed for good, and the failure."""

    goal: Goal
    failure: Failure


def broke(k: State, event: events.AttemptFailed) -> list[FinalFailure]:
    """Settle an attempt without a reply. Its goals are tried again or held; goals to be given up are returned."""
    flight = k.flights.pop(flight_key(event.goal, event.attempt), None)
    if flight is None:
        return []
    no_longer_asking(k, flight)
    failure = event.failure
    paid = failure.may_be_billed
    release_permit(k, flight, None, paid)
    if not failure.sent and failure.kind in _REFUSED_HERE:
        give_pace_back(k, flight)
        unspend(k, flight)
    if flight.prefix:
        prefix_settled(k, flight, warmed=False)
    k.tally.attempt_failed(failure.kind)
    if RULES[failure.kind].breaker:
        failed_there(k, flight, failure)
    asking = asked_by(k, flight)
    if paid:
        assume(k, flight, bool(asking))
    else:
        k.ledger.release(flight.charge)
    if asking and (other := hedging.other_of(k, flight)) is not None:
        _apply_route_failure(k, failure, flight)
        hedging.leave_to(k, other, flight)
        if k.on_decision is not None:
            k.on_decision(other.goal, "left_to_hedge", {"attempt": other.attempt})
        return []
    if k.stopping or k.outcome:
        for goal in asking:
            reopen(k, goal)
        return []
    if not asking and not _long_ago(k, flight):
        # no goal awaits it any more, but its failure still says something about its route
        _apply_route_failure(k, failure, flight)
    verdicts: list[FinalFailure] = []
    for goal in asking:
        if goal is asking[0]:
            verdict = _again(k, goal, failure, flight)
        else:
            verdict = _alike(k, asking[0], bool(verdicts), goal, failure)
        if verdict is not None:
            verdicts.append(verdict)
    return verdicts


def given_back(k: State, event: events.GivenBack) -> None:
    """Take back a call that met an open breaker at its branch. Its goals are open again at once, for a fallback too.

    The scheduler's grants say when the route may be used again. If the branch knew more of the breaker than K does, the
    grant that says so is on its way or is lost: the route rests `REST_S` then, so that calls do not go to and fro.
    """
    key = flight_key(event.goal, event.attempt)
    flight = k.flights.get(key)
    if flight is None or flight.submission:
        return
    share = k.shares[flight.route]
    if share.generation < event.generation:
        rest_s = min(max(event.again_s, REST_LEAST_S), REST_S) if event.again_s else REST_S
        share.hold_until_s = max(share.hold_until_s, k.at_s + rest_s)
    if k.on_decision is not None:
        seen = {"place": flight.route, "generation": event.generation, "again_s": event.again_s}
        k.on_decision(event.goal, "given_back", seen)
    take_back(k, (key,))


def take_back(k: State, keys: Iterable[int]) -> None:
    """Take back attempts that were never sent: their permits and their money are free, and their goals are open
    again.
    """
    for key in keys:
        flight = k.flights.pop(key)
        release_permit(k, flight, None, paid=False)
        give_pace_back(k, flight)
        no_longer_asking(k, flight)
        if flight.prefix:
            prefix_settled(k, flight, warmed=False)
        k.ledger.release(flight.charge)
        k.ledger.attempts -= 1
        goal = k.goals.get(flight.goal)
        if goal is not None:
            goal.unsent += 1
        asking = asked_by(k, flight)
        if asking and (other := hedging.other_of(k, flight)) is not None:
            hedging.never_sent(k, other, flight)
            continue
        for each in asking:
            reopen(k, each)


def asked_by(k: State, flight: InFlightAttempt) -> list[Goal]:
    """Return the goals that await this attempt."""
    if flight.abandoned:
        return []
    goals = _awaiting(k, (flight.goal, *flight.followers), flight.hash)
    return [goal for goal in goals if goal.status == Status.ASKED]


def assume(k: State, flight: InFlightAttempt, awaited: bool) -> None:
    """Keep the full charge of an attempt with unknown cost as assumed, until its reply arrives after all."""
    k.ledger.assume(flight.charge)
    goal = k.goals.get(flight.goal)
    live = goal is not None and goal.status not in ENDED
    k.ledger.paid_again += not awaited or bool(goal is not None and goal.assumed)
    missing = LostAttempt(flight.charge, flight.hash, flight.route, flight.output_max)
    if goal is not None and live:
        goal.assumed = {**(goal.assumed or {}), flight.attempt: missing}
    else:
        keep_late(k, flight.goal, {flight.attempt: missing})


def _alike(k: State, head: Goal, given_up: bool, goal: Goal, failure: Failure) -> FinalFailure | None:
    """Treat a goal that shared another goal's attempt in the same way as that goal."""
    rule = RULES[failure.kind].again
    if rule == "resample":
        return malformed(k, goal, failure.message)
    if rule == "select":
        return too_large(k, goal, failure)
    if given_up:
        return FinalFailure(goal, failure)
    goal.broken, goal.throttles = head.broken, head.throttles
    reopen(k, goal, head.due_at_s)
    return None


def _again(k: State, goal: Goal, failure: Failure, flight: InFlightAttempt) -> FinalFailure | None:
    """Apply the rule of the failure's kind. This is the only place where a retry is decided."""
    if failure.kind == FailureKind.OVER_BUDGET:
        k.paused, k.paused_at_s = failure, k.at_s
        reopen(k, goal)
        if k.on_decision is not None:
            k.on_decision(goal.id, "paused", {"failure": failure})
        return None
    if failure.kind == FailureKind.CANCELLED and failure.error_type:
        return _cancelled_there(k, goal, failure, flight)
    if failure.kind == FailureKind.CANCELLED:  # not cancelled by this job: the branch was told to end
        failure = msgspec.structs.replace(failure, kind=FailureKind.LOST)
    rule = RULES[failure.kind].again
    if rule == "resample":
        return malformed(k, goal, failure.message)
    if rule == "select":
        return too_large(k, goal, failure)
    if rule == "no":
        return _refused(k, goal, failure, flight)
    if k.terms.is_peer(flight.route) and _goes_to_a_peer(k, goal, failure, flight):
        return None
    policy = k.terms.limits.retry
    broken, throttles = goal.broken + 1, goal.throttles + (failure.kind == FailureKind.THROTTLED)
    k.retries = lapsed(policy, k.retries, k.successes)
    paid = waits_of(goal, goal.question)
    if failure.kind == FailureKind.UNREADABLE and paid <= 1 and goal.kept is None:
        # twice the permits: calls that were sent after the first such answer brought no other
        most = max(k.terms.limits.rejected_alike_max, 2 * k.shares[flight.route].permits)
        if _in_row(k, failure) >= most:
            return _hold(k, goal, alike(failure, k.alike), flight)
    decision = may_retry(policy, failure, broken, k.retries, k.successes, throttles, paid)
    if k.on_decision is not None:
        seen = {"broken": broken, "throttles": throttles, "retries": k.retries, "successes": k.successes}
        k.on_decision(goal.id, "retry", {"decision": decision, "policy": policy, **seen})
    if decision.hold:
        return _hold(k, goal, failure, flight)
    goal.broken, goal.throttles = broken, throttles
    if not decision.again and _away(k, failure, flight):
        goal.broken = goal.throttles = 0
        return _hold(k, goal, failure, flight)
    if not decision.again:
        if failure.kind == FailureKind.EXPIRED:
            failure = msgspec.structs.replace(failure, message=f"{failure.message}, {broken} times")
        return FinalFailure(goal, failure)
    if failure.kind == FailureKind.LOST:
        reopen(k, goal)  # its actor died: no reason to wait
        return None
    _apply_route_failure(k, failure, flight)
    if k.moved and flight.route <= k.terms.peers and RULES[failure.kind].breaker:
        # The goal continues on another route, so it needs no wait and no retry budget for this one. Such goals are few:
        # those in flight when the breaker opened, and then its probes.
        reopen(k, goal)
        if k.on_decision is not None:
            k.on_decision(goal.id, "goes_elsewhere", {"place": flight.route})
        return None
    if failure.kind != FailureKind.THROTTLED:
        k.retries += 1
    draw = drawn(k.chance_id(goal.id, goal.sample), goal.tries)
    wait_s = backoff_s(policy, goal.broken, failure.kind, failure.retry_after_s, draw, decision.deferred)
    if k.on_decision is not None:
        k.on_decision(goal.id, "backoff", {"wait_s": wait_s, "draw": draw, "retry_after_s": failure.retry_after_s})
    reopen(k, goal, k.at_s + wait_s)
    return None


def _goes_to_a_peer(k: State, goal: Goal, failure: Failure, flight: InFlightAttempt) -> bool:
    """Let another server of the same model take a call that one did not take, without a wait, and without using up an
    attempt. Return False if the failure counts, or if no other server takes calls.
    """
    tried = goal.tried | 1 << flight.route
    if not moves_on(failure, tried) or beyond_patience(k.terms.limits.retry, failure):
        return False
    goal.tried = tried
    if not may_move_on(k, tried):
        return False
    _apply_route_failure(k, failure, flight)
    reopen(k, goal)
    if k.on_decision is not None:
        k.on_decision(goal.id, "goes_elsewhere", {"place": flight.route})
    return True


def _away(k: State, failure: Failure, flight: InFlightAttempt) -> bool:
    """Return whether a call failed because nothing answers at its route: it says nothing about the goal."""
    share = k.shares[flight.route]
    return share.failing is not None and is_away(failure, k.at_s - share.failing_s)


def _apply_route_failure(k: State, failure: Failure, flight: InFlightAttempt) -> None:
    """Apply the failure's effects on its route (block, Retry-After), without charging a goal."""
    if RULES[failure.kind].again == "hold" or beyond_patience(k.terms.limits.retry, failure):
        block(k, flight, failure)
    elif failure.kind == FailureKind.THROTTLED and failure.retry_after_s is not None:
        share = k.shares[flight.route]
        if not share.strays:
            share.hold_as_told(k.at_s + failure.retry_after_s)


def _hold(k: State, goal: Goal, failure: Failure, flight: InFlightAttempt) -> FinalFailure | None:
    """Hold a goal that is not at fault: its route is blocked, and the goal stays open."""
    if not _long_ago(k, flight):
        block(k, flight, failure)
    reopen(k, goal)
    return None


def _cancelled_there(k: State, goal: Goal, failure: Failure, flight: InFlightAttempt) -> FinalFailure | None:
    """Pause after a person cancelled the goal's message batch at the provider: it is sent again when the job is
    resumed.
    """
    if not _long_ago(k, flight):
        k.paused, k.paused_at_s = failure, k.at_s
    reopen(k, goal)
    return None


def _long_ago(k: State, flight: InFlightAttempt) -> bool:
    """True if the flight was submitted in an earlier run: its failure says nothing about the account now."""
    made = k.submissions.get(flight.submission)
    return made is not None and made.orphaned


def _refused(k: State, goal: Goal, failure: Failure, flight: InFlightAttempt) -> FinalFailure | None:
    """Give up a goal that the provider refused; many consecutive refusals with the same words mean a blocked
    account.

    A goal with a checkpoint was answered before, so the refusal concerns its changed request, not the account.
    """
    if k.on_decision is not None:
        k.on_decision(goal.id, "refused", {"failure": failure, "alike": k.alike, "limits": k.terms.limits})
    if (
        failure.kind == FailureKind.REJECTED
        and goal.kept is None
        and _in_row(k, failure) >= k.terms.limits.rejected_alike_max
    ):
        return _hold(k, goal, alike(failure, k.alike), flight)
    return FinalFailure(goal, failure)


def _in_row(k: State, failure: Failure) -> int:
    """Count one more goal with a failure of these words; return the number of consecutive ones."""
    k.alike = k.alike + 1 if failure.message == k.alike_said else 1
    k.alike_said = failure.message
    return k.alike


def malformed(k: State, goal: Goal, text: str) -> FinalFailure | None:
    """Discard a refused reply and reopen the goal with the next sample, `limits.resamples_max` times at most.

    Returns a verdict if the goal is given up.
    """
    goal.question = b""
    note_refused(goal, text)
    sample = _next_sample(k, goal)
    if k.on_decision is not None:
        seen = {"why": text, "resamples": goal.resamples, "resamples_max": k.terms.limits.resamples_max}
        k.on_decision(goal.id, "resample", {"sample": sample, **seen})
    if sample < 0:
        return FinalFailure(goal, Failure(FailureKind.MALFORMED, text))
    goal.sample = str(sample)
    goal.broken = goal.throttles = goal.tried = 0
    reopen(k, goal)
    return None


def _next_sample(k: State, goal: Goal) -> int:
    """Next sample of the goal's question, or of the election that it is a vote in; -1 if there is none."""
    if goal.kind == VOTE:
        return next_sample(k.elections[goal.parent])
    if goal.resamples > k.terms.limits.resamples_max or not goal.sample.isdecimal():
        return -1
    return int(goal.sample) + 1


def too_large(k: State, goal: Goal, failure: Failure) -> FinalFailure | None:
    """Return the goal to select, which sees ``goal.too_large`` and must ask for less; give up what cannot be shortened.

    Returns a verdict if the goal is given up.
    """
    if goal.kind == VOTE:  # all votes of its election are too large
        return FinalFailure(goal, failure)
    goal.too_large += 1
    goal.question = b""
    if failure.status >= 400:  # the provider contradicts the estimate
        k.estimate = k.estimate.tightened()
    if k.on_decision is not None:
        seen = {"failure": failure, "too_large": goal.too_large, "tightenings": k.estimate.tightenings}
        k.on_decision(goal.id, "too_large", {"as_given": goal.constructor == AS_GIVEN, **seen})
    if goal.constructor == AS_GIVEN or goal.too_large > 2:
        return FinalFailure(goal, failure)
    if goal.status != Status.OPEN:
        reopen(k, goal)
    return None
