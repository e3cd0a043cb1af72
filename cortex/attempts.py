"""The life of an attempt: asked under the ledger, answered or broken, settled exactly once.

Every function here moves one flight of K and says, as data, what remains to be decided about its goal.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from cortex import commands, events
from cortex.changes import Ask
from cortex.ledger import worst_charge
from cortex.moves import ASKED, OPEN, asked, leave_call, reopen, set_status
from cortex.prompt import DoesNotFit, Prompt, request_body
from cortex.state import ENDED, TRIES_MAX, Flight, Goal, State, Status, flight_key
from policies.failure import RULES, Failure, FailureKind
from policies.retry import backoff_s, may_retry
from policies.timeout import attempt_timeout_s
from policies.tokens import body_tokens_bound, tokens_bound

AS_GIVEN = "as given"
"""The constructor's name of a request that the input brought whole: there is nothing to render, shorten or split."""

_DRAW_BYTES = 6


def question_hash(endpoint: str, body: bytes, sample: str) -> bytes:
    """The identity of a question: endpoint, model, prompt and parameters (all in the body), and sample. 16 bytes."""
    head = f"{len(endpoint)} {len(sample)} {endpoint}{sample}".encode()
    return blake2b(head + body, digest_size=16).digest()


def drawn(call_id: str, attempt: int) -> float:
    """A number in [0, 1) that belongs to this attempt: chance that replays."""
    digest = blake2b(f"{call_id}/{attempt}".encode(), digest_size=_DRAW_BYTES).digest()
    return int.from_bytes(digest, "big") / (1 << (8 * _DRAW_BYTES))


# -- asking ------------------------------------------------------------------------------------------------------


def ask(k: State, goal: Goal, wish: Ask, once: bool, out: list[commands.Command]) -> bool:
    """Send this goal's call, share one that asks the same at this moment (then True), or note that the ledger refuses.

    ``once`` says that no two questions of the run are equal. Raises ``DoesNotFit`` where no prompt within M can be made
    of it, having changed nothing.
    """
    route, limits = k.terms.route, k.terms.limits
    output_tokens_max = wish.output_tokens_max or limits.output_tokens_max
    tokens_max = k.terms.prompt_tokens_max(output_tokens_max)
    body, constructor, text_bytes = _rendered(k, wish, output_tokens_max, tokens_max)
    sample = wish.sample if wish.sample is not None else goal.sample
    question = question_hash(route.endpoint, body, sample)
    if not once and (shared := _same_question(k, question)) is not None:
        _asks_now(k, goal, sample, constructor, question)
        shared.followers.append(goal.id)
        return True
    bound = body_tokens_bound(body)
    caching = route.price is not None and b'"cache_control"' in body
    charge = worst_charge(route.price, bound if bound < tokens_max else tokens_max, output_tokens_max, caching)
    if not k.ledger.allows(charge, limits.max_cost_nusd, limits.max_job_tokens):
        k.short = True
        return False
    if goal.tries >= TRIES_MAX:
        raise ValueError(f"more than {TRIES_MAX} attempts at one goal: {goal.story()}")
    _asks_now(k, goal, sample, constructor, question)
    attempt = goal.tries = goal.tries + 1
    k.ledger.reserve(charge)
    key = flight_key(goal.id, attempt)
    k.flights[key] = Flight(goal.id, attempt, sample, question, k.at_s, charge, text_bytes)
    if not once:
        k.asking[question] = key
    timeout_s = attempt_timeout_s(limits.timeout, output_tokens_max, bound)
    out.append(commands.Call(goal.id, sample, attempt, question, body, output_tokens_max, tokens_max, timeout_s))
    return False


def _asks_now(k: State, goal: Goal, sample: str, constructor: str, question: bytes) -> None:
    set_status(k, goal, ASKED)
    if k.reading:
        k.reading.pop(goal.id, None)
    if goal.question != question:
        k.tally.calls += 1
    goal.sample, goal.constructor, goal.question = sample, constructor, question


def _same_question(k: State, question: bytes) -> Flight | None:
    """The attempt that is asking this now; not one that was told to stop."""
    flight = k.flights.get(k.asking.get(question, -1))
    return None if flight is None or flight.abandoned else flight


def _rendered(k: State, wish: Ask, output_tokens_max: int, tokens_max: int) -> tuple[bytes, str, int]:
    """The request, its constructor's name, and the UTF-8 bytes of its text, from which the estimate learns.

    A request that the input brought whole teaches nothing: nobody packs it, and its bytes are JSON as much as text.
    """
    if output_tokens_max < 0:
        raise ValueError(f"output_tokens_max must be above zero, not {output_tokens_max}")
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
    """Settle a paid reply, and name the goals that shall absorb it: none where it comes again or too late.

    An attempt is settled once. One that was given up for lost may still be answered: then its real usage takes the
    assumption's place, and whoever asks the same question now takes the reply.
    """
    goal = k.goals.get(event.goal)
    flight = k.flights.pop(flight_key(event.goal, event.attempt), None)
    goal_ids: tuple[int, ...] = (event.goal,)
    if flight is not None:
        question = flight.hash
        if k.asking:
            _no_longer_asking(k, flight)
        k.ledger.release(flight.charge)
        if flight.text_bytes:
            k.estimate = k.estimate.update(flight.text_bytes, event.reply.usage.input_tokens_billed)
        if flight.followers:
            goal_ids += tuple(flight.followers)
    elif goal is not None and goal.assumed and event.attempt in goal.assumed:
        question = event.hash
        k.ledger.unassume(goal.assumed.pop(event.attempt))
    else:
        k.tally.dropped += 1
        return []
    k.ledger.know(event.reply.usage, k.terms.route.price)
    k.successes += 1
    k.alike = 0
    asked_again = k.asking.get(question)
    if asked_again is not None:
        other = k.flights[asked_again]
        goal_ids += (other.goal, *other.followers)
    waiting = _awaiting(k, goal_ids, question) if len(goal_ids) > 1 else _asks(goal, question)
    if not waiting:
        k.tally.dropped += 1
    if flight is not None and (not waiting or (goal is not None and goal.assumed)):
        k.ledger.paid_again += 1
    alone = flight is not None and goal is not None and event.attempt == goal.tries and asked_again is None
    _take(k, waiting, alone, out)
    return waiting


def recalled(k: State, event: events.Recalled, out: list[commands.Command]) -> list[Goal]:
    """Settle a call whose reply was remembered: nothing was sent, nothing is paid."""
    goal = k.goals.get(event.goal)
    if goal is None:
        return []
    key = flight_key(goal.id, goal.tries)
    flight = k.flights.get(key)
    goal_ids: tuple[int, ...] = (goal.id,)
    if flight is not None and flight.hash == event.hash:
        del k.flights[key]
        _no_longer_asking(k, flight)
        k.ledger.release(flight.charge)
        k.ledger.attempts -= 1
        goal_ids += tuple(flight.followers)
    waiting = _awaiting(k, goal_ids, event.hash)
    k.ledger.reused_calls += bool(waiting)
    _take(k, waiting, False, out)
    return waiting


def _awaiting(k: State, goal_ids: tuple[int, ...], question: bytes) -> list[Goal]:
    """The goals among these that ask this now."""
    return [goal for goal_id in dict.fromkeys(goal_ids) for goal in _asks(k.goals.get(goal_id), question)]


def _asks(goal: Goal | None, question: bytes) -> list[Goal]:
    """This goal, if it asks this now; one that waits to be asked again takes the reply just as gladly."""
    return [goal] if goal is not None and goal.question == question and goal.status <= ASKED else []


def _take(k: State, goals: list[Goal], alone: bool, out: list[commands.Command]) -> None:
    """These goals have their reply.

    An attempt that replaced the answered one is stopped, unless others await it; ``alone``: there was none.
    """
    for goal in goals:
        if goal.status == OPEN:
            asked(k, goal)
        if alone:
            goal.question = b""
        else:
            leave_call(k, goal, out)
        goal.broken = goal.throttles = 0
        goal.failure = None


def _no_longer_asking(k: State, flight: Flight) -> None:
    if k.asking.get(flight.hash) == flight_key(flight.goal, flight.attempt):
        del k.asking[flight.hash]


class Verdict(msgspec.Struct, frozen=True):
    """A goal whose call has failed for good, and how."""

    goal: Goal
    failure: Failure


def broke(k: State, event: events.Broke) -> list[Verdict]:
    """Settle an attempt that brought no reply. Its goals are tried again or held; those that are given up are named."""
    flight = k.flights.pop(flight_key(event.goal, event.attempt), None)
    if flight is None:
        return []
    _no_longer_asking(k, flight)
    failure = event.failure
    k.tally.failures[failure.kind] = k.tally.failures.get(failure.kind, 0) + 1
    asking = asked_by(k, flight)
    if not failure.sent or failure.status >= 400:
        k.ledger.release(flight.charge)
    else:
        assume(k, flight, bool(asking))
    if k.stopping or k.outcome:
        for goal in asking:
            reopen(k, goal)
        return []
    verdicts: list[Verdict] = []
    for goal in asking:
        if goal is asking[0]:
            verdict = _again(k, goal, failure)
        else:
            verdict = _alike(k, asking[0], bool(verdicts), goal, failure)
        if verdict is not None:
            verdicts.append(verdict)
    return verdicts


def asked_by(k: State, flight: Flight) -> list[Goal]:
    """The goals that await this very attempt."""
    if flight.abandoned:
        return []
    goals = _awaiting(k, (flight.goal, *flight.followers), flight.hash)
    return [goal for goal in goals if goal.status == Status.ASKED]


def assume(k: State, flight: Flight, awaited: bool) -> None:
    """Nobody knows what this attempt cost: it stays charged in full, until its reply turns up after all."""
    k.ledger.assume(flight.charge)
    goal = k.goals.get(flight.goal)
    live = goal is not None and goal.status not in ENDED
    k.ledger.paid_again += not awaited or bool(goal is not None and goal.assumed)
    if goal is not None and live:
        goal.assumed = {**(goal.assumed or {}), flight.attempt: flight.charge}


def _alike(k: State, head: Goal, given_up: bool, goal: Goal, failure: Failure) -> Verdict | None:
    """A goal that shared the attempt of another fares as that one does."""
    rule = RULES[failure.kind].again
    if rule == "resample":
        return malformed(k, goal, failure.message)
    if rule == "select":
        return too_large(k, goal, failure)
    if given_up:
        return Verdict(goal, failure)
    goal.broken, goal.throttles = head.broken, head.throttles
    reopen(k, goal, head.due_at_s)
    return None


def _again(k: State, goal: Goal, failure: Failure) -> Verdict | None:
    """What the failure's kind asks for: the one place where a retry is decided."""
    if failure.kind == FailureKind.OVER_BUDGET:
        return _hold(k, goal, failure)
    if failure.kind == FailureKind.CANCELLED:  # by nobody here: whoever made the call was told to end
        failure = msgspec.structs.replace(failure, kind=FailureKind.LOST)
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
        return _hold(k, goal, failure)
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


def _hold(k: State, goal: Goal, failure: Failure) -> Verdict | None:
    """Not this goal's fault: the job pauses, resumable, and the goal stays open."""
    k.paused = failure
    reopen(k, goal)
    return None


def _refused(k: State, goal: Goal, failure: Failure) -> Verdict | None:
    """The provider refused this goal; the same words for many in a row are about the account, not the rows."""
    if failure.kind == FailureKind.REJECTED:
        k.alike = k.alike + 1 if failure.message == k.alike_said else 1
        k.alike_said = failure.message
        if k.alike >= k.terms.limits.rejected_alike_max:
            said = f"the last {k.alike} goals were all refused with: {failure.message}"
            return _hold(k, goal, msgspec.structs.replace(failure, kind=FailureKind.BLOCKED, message=said))
    return Verdict(goal, failure)


def malformed(k: State, goal: Goal, said: str) -> Verdict | None:
    """A complete reply was refused: discard it and ask under the next number, so many times."""
    goal.question = b""
    goal.resamples += 1
    if goal.resamples > k.terms.limits.resamples_max or not goal.sample.isdecimal():
        return Verdict(goal, Failure(FailureKind.MALFORMED, said))
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
