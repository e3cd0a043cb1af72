"""The life of an attempt: asked under the ledger, answered or broken, settled exactly once.

Every function here moves one flight of K and says, as data, what remains to be decided about its goal.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from cortex import commands, events
from cortex.changes import Ask
from cortex.ledger import worst_charge
from cortex.prompt import DoesNotFit, Prompt, request_body
from cortex.state import Flight, Goal, State, Status, flight_key
from cortex.transitions import asked, reopen
from policies.failure import RULES, Failure, FailureKind
from policies.retry import backoff_s, may_retry
from policies.timeout import attempt_timeout_s
from policies.tokens import body_tokens_bound, tokens_bound

AS_GIVEN = "as given"
"""The constructor's name of a request that the input brought whole: there is nothing to render, shorten or split."""

_DRAW_BYTES = 6


def question_hash(endpoint: str, body: bytes, sample: str) -> bytes:
    """The identity of a question: endpoint, model, prompt and parameters (all in the body), and sample. 16 bytes."""
    digest = blake2b(endpoint.encode(), digest_size=16)
    digest.update(b"\0" + sample.encode() + b"\0")
    digest.update(body)
    return digest.digest()


def drawn(call_id: str, attempt: int) -> float:
    """A number in [0, 1) that belongs to this attempt: chance that replays."""
    digest = blake2b(f"{call_id}/{attempt}".encode(), digest_size=_DRAW_BYTES).digest()
    return int.from_bytes(digest, "big") / (1 << (8 * _DRAW_BYTES))


# -- asking ------------------------------------------------------------------------------------------------------


def ask(k: State, goal: Goal, wish: Ask, once: bool, out: list[commands.Command]) -> None:
    """Send this goal's call, share one that asks the same at this moment, or note that the ledger refuses.

    ``once`` says that no two questions of the run are equal. Raises ``DoesNotFit`` where no prompt within M can be made
    of it, having changed nothing.
    """
    output_tokens_max = wish.output_tokens_max or k.terms.limits.output_tokens_max
    tokens_max = k.terms.prompt_tokens_max(output_tokens_max)
    body, constructor, text_bytes = _rendered(k, wish, output_tokens_max, tokens_max)
    sample = wish.sample if wish.sample is not None else goal.sample
    question = question_hash(k.terms.route.endpoint, body, sample)
    shared = None if once else k.flights.get(k.asking.get(question, -1))
    bound = body_tokens_bound(body)
    caching = b'"cache_control"' in body
    charge = worst_charge(k.terms.route.price, min(bound, tokens_max), output_tokens_max, caching)
    limits = k.terms.limits
    if shared is None and not k.ledger.allows(charge, limits.max_cost_nusd, limits.max_job_tokens):
        k.short = True
        return
    asked(k, goal)
    k.tally.calls += goal.question != question
    goal.sample, goal.constructor, goal.question = sample, constructor, question
    if shared is not None:
        shared.followers.append(goal.id)
        return
    goal.tries += 1
    k.ledger.reserve(charge)
    k.ledger.paid_again += bool(goal.assumed)
    key = flight_key(goal.id, goal.tries)
    k.flights[key] = Flight(goal.id, goal.tries, sample, question, k.at_s, charge, text_bytes)
    if not once:
        k.asking[question] = key
    timeout_s = attempt_timeout_s(limits.timeout, output_tokens_max, bound)
    out.append(
        commands.Call(goal.id, sample, goal.tries, question, body, output_tokens_max, tokens_max, timeout_s)
    )


def _rendered(k: State, wish: Ask, output_tokens_max: int, tokens_max: int) -> tuple[bytes, str, int]:
    """The request, its constructor's name, and the UTF-8 bytes of its text, from which the estimate learns.

    A request that the input brought whole teaches nothing: nobody packs it, and its bytes are JSON as much as text.
    """
    if tokens_max <= 0:
        raise DoesNotFit(f"a reply of {output_tokens_max} tokens leaves no room for a prompt")
    if wish.prompt is None:
        if wish.body is None:
            raise ValueError("an Ask needs a prompt or a body")
        return wish.body, AS_GIVEN, 0
    prompt = _fitted(k, wish.prompt, tokens_max)
    body = request_body(prompt, k.terms.route.model, output_tokens_max, wish.params)
    return body, prompt.constructor, len(prompt.text().encode())


def _fitted(k: State, prompt: Prompt, tokens_max: int) -> Prompt:
    """The prompt itself where its bytes alone prove that it fits, else one made to fit by the calibrated estimate."""
    parts_max = k.terms.limits.parts_max
    if len(prompt.parts) <= parts_max and tokens_bound(prompt.text()) <= tokens_max:
        return prompt
    return prompt.fit(tokens_max, k.tokens, parts_max)


# -- settling ----------------------------------------------------------------------------------------------------


def answered(k: State, event: events.Answered, out: list[commands.Command]) -> list[Goal]:
    """Settle a paid reply, and name the goals that shall absorb it: none where it comes again or too late."""
    flight = k.flights.pop(flight_key(event.goal, event.attempt), None)
    goal = k.goals.get(event.goal)
    price = k.terms.route.price
    goal_ids = [event.goal]
    if flight is not None:
        _no_longer_asking(k, flight)
        k.ledger.release(flight.charge)
        k.ledger.know(event.reply.usage, price)
        k.estimate = k.estimate.update(flight.text_bytes, event.reply.usage.input_tokens_billed)
        goal_ids += flight.followers
    elif goal is not None and goal.assumed and event.attempt in goal.assumed:
        k.ledger.unassume(goal.assumed.pop(event.attempt))
        k.ledger.know(event.reply.usage, price)
    k.successes += 1
    k.alike = 0
    waiting = [goal for goal_id in goal_ids if (goal := _awaiting(k, goal_id, event.hash)) is not None]
    k.tally.dropped += not waiting
    for goal in waiting:
        _abandon_others(k, goal, out)
    return waiting


def recalled(k: State, event: events.Recalled) -> list[Goal]:
    """Settle a call whose reply was remembered: nothing was sent, nothing is paid."""
    goal = k.goals.get(event.goal)
    if goal is None:
        return []
    flight = k.flights.pop(flight_key(event.goal, goal.tries), None)
    goal_ids = [event.goal]
    if flight is not None:
        _no_longer_asking(k, flight)
        k.ledger.release(flight.charge)
        k.ledger.attempts -= 1
        goal_ids += flight.followers
    k.ledger.reused_calls += 1
    return [goal for goal_id in goal_ids if (goal := _awaiting(k, goal_id, event.hash)) is not None]


def _awaiting(k: State, goal_id: int, question: bytes) -> Goal | None:
    """The goal, if this reply answers what it asks; one that waits to be asked again takes it just as gladly."""
    goal = k.goals.get(goal_id)
    if goal is None or goal.question != question or goal.status not in (Status.OPEN, Status.ASKED):
        return None
    if goal.status == Status.OPEN:
        asked(k, goal)
    goal.question = b""
    goal.broken = goal.throttles = 0
    return goal


def _abandon_others(k: State, goal: Goal, out: list[commands.Command]) -> None:
    """A late reply answered the goal: the attempt that replaced the lost one is cancelled."""
    flight = k.flights.get(flight_key(goal.id, goal.tries))
    if flight is not None and not flight.abandoned and not flight.followers:
        flight.abandoned = True
        out.append(commands.Abandon(goal.id, flight.attempt))


def _no_longer_asking(k: State, flight: Flight) -> None:
    if k.asking.get(flight.hash) == flight_key(flight.goal, flight.attempt):
        del k.asking[flight.hash]


class Verdict(msgspec.Struct, frozen=True):
    """A goal whose call has failed for good, and how."""

    goal: Goal
    failure: Failure


def broke(k: State, event: events.Broke) -> Verdict | None:
    """Settle an attempt that brought no reply; its goal is tried again, held, or given up: then the verdict says so."""
    flight = k.flights.pop(flight_key(event.goal, event.attempt), None)
    if flight is None:
        return None
    _no_longer_asking(k, flight)
    failure = event.failure
    k.tally.failures[failure.kind] = k.tally.failures.get(failure.kind, 0) + 1
    for follower_id in flight.followers:
        follower = k.goals.get(follower_id)
        if follower is not None and follower.status == Status.ASKED and follower.question == flight.hash:
            reopen(k, follower)
    goal = k.goals.get(event.goal)
    waits = goal is not None and goal.status == Status.ASKED and goal.question == flight.hash
    if not failure.sent or failure.status >= 400:
        k.ledger.release(flight.charge)
    else:
        k.ledger.assume(flight.charge)
        if goal is not None and waits:
            goal.assumed = {**(goal.assumed or {}), event.attempt: flight.charge}
    if goal is None or not waits:
        return None
    if flight.abandoned or k.stopping or k.outcome:
        reopen(k, goal)
        return None
    return _again(k, goal, failure)


def _again(k: State, goal: Goal, failure: Failure) -> Verdict | None:
    """What the failure's kind asks for: the one place where a retry is decided."""
    rule = RULES[failure.kind].again
    if rule == "resample":
        return malformed(k, goal, failure.message)
    if rule == "select":
        return too_large(k, goal, failure)
    if rule == "no":
        return _refused(k, goal, failure)
    policy = k.terms.limits.retry
    goal.broken += 1
    goal.throttles += failure.kind == FailureKind.THROTTLED
    decision = may_retry(policy, failure, goal.broken, k.retries, k.successes, goal.throttles)
    if decision.hold:
        k.paused = failure
        reopen(k, goal)
        return None
    if not decision.again:
        return Verdict(goal, failure)
    if failure.kind == FailureKind.LOST:
        reopen(k, goal)  # it died with its actor: no reason to wait
        return None
    if failure.kind != FailureKind.THROTTLED:
        k.retries += 1
    elif failure.retry_after_s is not None:
        k.hold_until_s = max(k.hold_until_s, k.at_s + failure.retry_after_s)
    draw = drawn(k.call_id(goal.id, goal.sample), goal.tries)
    wait_s = backoff_s(policy, goal.broken, failure.kind, failure.retry_after_s, draw, decision.deferred)
    reopen(k, goal, k.at_s + wait_s)
    return None


def _refused(k: State, goal: Goal, failure: Failure) -> Verdict | None:
    """The provider refused this goal; the same words for many in a row are about the account, not the rows."""
    if failure.kind == FailureKind.REJECTED:
        k.alike = k.alike + 1 if failure.message == k.alike_said else 1
        k.alike_said = failure.message
        if k.alike >= k.terms.limits.rejected_alike_max:
            said = f"the last {k.alike} goals were all refused with: {failure.message}"
            k.paused = msgspec.structs.replace(failure, kind=FailureKind.BLOCKED, message=said)
            reopen(k, goal)
            return None
    return Verdict(goal, failure)


def malformed(k: State, goal: Goal, said: str) -> Verdict | None:
    """A complete reply was refused: discard it and ask under the next number, so many times."""
    kind = FailureKind.MALFORMED
    k.tally.failures[kind] = k.tally.failures.get(kind, 0) + 1
    goal.question = b""
    goal.resamples += 1
    if goal.resamples > k.terms.limits.resamples_max or not goal.sample.isdecimal():
        return Verdict(goal, Failure(kind, said))
    goal.sample = str(int(goal.sample) + 1)
    goal.broken = goal.throttles = 0
    reopen(k, goal)
    return None


def too_large(k: State, goal: Goal, failure: Failure) -> Verdict | None:
    """Back to select, which sees ``goal.too_large`` and must ask for less; what it cannot shrink is the end."""
    goal.too_large += 1
    goal.question = b""
    if failure.status >= 400:  # the provider says so, against our estimate
        k.estimate = k.estimate.tightened()
    if goal.constructor == AS_GIVEN or goal.too_large > 2:
        return Verdict(goal, failure)
    if goal.status != Status.OPEN:
        reopen(k, goal)
    return None
