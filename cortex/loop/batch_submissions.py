"""Message batches in K: calls are submitted many at a time, and come back over hours.

    calls in hand -> SubmissionIntended -> submit -> SubmissionAccepted -> results, as they appear -> ResultsCollected
                         |          |
                         |          +-> SubmissionRejected: surely not made; sent again, or the job pauses
                         +- crash --+-> SubmissionUncertain: searched for among the provider's batches
                                            -> SubmissionAccepted, SubmissionRejected or SubmissionUnreadable

The intent is in the journal before the request is sent, so every submission is known to a successor of the channel; and
while the outcome of an intent is unknown its calls stay in flight, so none of them is submitted again.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from cortex.admission.pauses import block
from cortex.admission.permits import release_permit
from cortex.calls.attempts import asked_by, assume, broke, drawn, no_longer_asking, take_back
from cortex.calls.program_hooks import Out, give_up
from cortex.goals.lifecycle import reopen
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import CancelledBatch, InFlightAttempt, State, flight_key
from cortex.values.batch_record import Submission, SubmissionStatus
from policies.estimates.batching import NEVER_BEGAN, QUEUE_FULL, results_expired
from policies.failures.failure import RULES, Failure, FailureKind
from policies.failures.retry import backoff_s, lapsed, may_retry

_LEAVES_K = frozenset({SubmissionStatus.OUT, SubmissionStatus.DOUBTED, SubmissionStatus.ASKING})
"""States that a stopping job need not wait for: the next run continues them."""


def custom_id(k: State, flight: InFlightAttempt) -> str:
    """Return the name of an attempt within its batch: 32 hex digits, unique to this run of the job."""
    named = f"{k.began_at_s!r}/{k.call_id(flight.goal, flight.sample)}/{flight.attempt}"
    return blake2b(named.encode(), digest_size=16).hexdigest()


# -- events of a submission -------------------------------------------------------------------------------------------


def intended(k: State, event: events.SubmissionIntended, out: Out) -> None:
    """Start a submission of calls in hand. Calls that are abandoned are left out; a stopping job takes all back."""
    if event.number < k.next_submission:
        return  # duplicate message
    k.next_submission = event.number + 1
    batched = [place for place, route in enumerate(k.terms.routes) if route.batched and place == event.route]
    flights = {key: k.flights[key] for key in event.keys if key in k.flights}
    keys = [key for key, flight in flights.items() if flight.route in batched and not flight.submission]
    if k.outcome or k.closing or k.paused is not None:
        take_back(k, keys)
        return
    made = Submission(event.number, event.route, keys, event.marker, k.at_s, 0.0, marker_at_s=event.marker_at_s)
    k.submissions[made.number] = made
    for key in keys:
        k.flights[key].submission = made.number
    _send(k, made, out)


def submitted(k: State, event: events.SubmissionAccepted, out: Out) -> None:
    """Note that the provider has the submission, under this name."""
    made = k.submissions.get(event.number)
    if made is None or made.stand == SubmissionStatus.OUT:
        return
    made.stand, made.name, made.due_at_s, made.failure = SubmissionStatus.OUT, event.name, 0.0, None
    if not k.finished:
        out.append(commands.CollectResults(made.number))


def unsubmitted(k: State, event: events.SubmissionRejected) -> None:
    """Handle a submission that the provider certainly does not have: retry it, or pause the job; no row fails.

    If the bodies are gone, or the job stops anyway, its calls are taken back and asked anew.
    """
    made, failure = k.submissions.get(event.number), event.failure
    never_began = failure.error_type in NEVER_BEGAN and not event.who
    told = never_began or (failure.kind == FailureKind.LOST and not event.who)
    if made is None or (made.stand == SubmissionStatus.OUT and not told):
        return
    if not event.who:
        k.tally.attempt_failed(failure.kind)
    if event.who and made.name:  # it existed, and its results cannot be had: its cost stays unknown
        del k.submissions[made.number]
        _give_up(k, [key for key in made.keys if key in k.flights])
        return
    lost = made.orphaned or failure.kind == FailureKind.LOST or bool(event.who)
    if lost or k.outcome or k.closing or k.paused is not None:
        _dissolve(k, made)
        return
    if never_began:
        _never_began(k, made, failure)
        return
    made.throttles += failure.kind == FailureKind.THROTTLED
    policy = k.terms.limits.retry
    k.retries = lapsed(policy, k.retries, k.successes)
    decision = may_retry(policy, failure, made.tries, k.retries, k.successes, made.throttles)
    if not decision.again:
        first = next((k.flights[key] for key in made.keys if key in k.flights), None)
        if first is not None:
            block(k, first, _refused(made, failure))
        _dissolve(k, made)
        return
    k.retries += failure.kind != FailureKind.THROTTLED
    draw = drawn(f"{k.terms.drawn_as}/submission/{made.number}", made.tries)
    wait_s = backoff_s(policy, made.tries, failure.kind, failure.retry_after_s, draw, decision.deferred)
    made.stand, made.failure, made.due_at_s = SubmissionStatus.RESTING, failure, k.at_s + wait_s
    share = k.shares[made.route]
    share.hold_until_s = max(share.hold_until_s, made.due_at_s)  # another submission would fail too
    if failure.retry_after_s is not None:
        share.hold_as_told(made.due_at_s)


def _never_began(k: State, made: Submission, failure: Failure) -> None:
    """Take back a batch that was made and not begun. A full queue is waited for, any number of times: it empties as
    batches end. Anything else would meet the next batch too."""
    if failure.error_type == QUEUE_FULL:
        share = k.shares[made.route]
        share.hold_until_s = max(share.hold_until_s, k.at_s + k.terms.limits.batching.poll_max_s)
    elif (first := next((k.flights[key] for key in made.keys if key in k.flights), None)) is not None:
        block(k, first, _refused(made, failure))
    _dissolve(k, made)


def _refused(made: Submission, failure: Failure) -> Failure:
    """Failure that blocks the route. An error that would be the row's own fault in a single call is no row's fault
    here.
    """
    if RULES[failure.kind].again == "hold":
        return failure
    text = f"the provider does not take {made.story()}: {failure.message}"
    return Failure(FailureKind.BLOCKED, text, failure.status, failure.error_type, failure.retry_after_s, False)


def doubted(k: State, event: events.SubmissionUncertain, out: Out) -> None:
    """Handle a submission whose request ended without a known outcome: only the provider's list may lag behind."""
    made = k.submissions.get(event.number)
    if made is None or made.stand != SubmissionStatus.INTENDED:
        return
    made.stand, made.failure = SubmissionStatus.DOUBTED, event.failure
    settles_s = k.at_s + k.terms.limits.batching.settle_s
    made.settled_at_s = min(made.settled_at_s, settles_s)  # a branch that hung is noticed long after the deadline
    out.append(commands.FindSubmission(made.number))


def stuck(k: State, event: events.SubmissionUnreadable) -> None:
    """Pause the job, resumable, because a submission cannot be followed without a person's answer.

    Where the job itself cancelled the batch, its rows are asked anew, unasked, once no provider keeps the results.
    """
    made = k.submissions.get(event.number)
    if made is None or made.stand not in _LEAVES_K:
        return
    holds = RULES[event.failure.kind].again == "hold"
    if made.cancelled and not holds and results_expired(event.failure.status, made.intended_at_s, k.at_s):
        del k.submissions[made.number]
        _give_up(k, [key for key in made.keys if key in k.flights])
        return
    made.stand, made.failure = SubmissionStatus.ASKING, event.failure
    k.paused_at_s = k.at_s
    if holds:
        k.paused = event.failure  # the cause is the account: once it is in order, the next run continues
        return
    job, number = k.terms.job, made.number
    text = f"what became of {made.story()} cannot be decided: {event.failure.message}. Look at the provider's batches; "
    answers = f"--submitted {number}=BATCH_ID, or --not-submitted {number} to send its requests again"
    k.paused = Failure(FailureKind.LOST, f"{text}then: cortex resume {job} {answers}")


def collected(k: State, program: Program, event: events.ResultsCollected, out: Out) -> None:
    """Finish a submission whose results were read to the end. A request without a result may be billed, and is asked
    once more at most.
    """
    made = k.submissions.pop(event.number, None)
    if made is None:
        return
    out.append(commands.DiscardFiles(made.number, made.route, made.name))
    text = f"the results of batch {made.name} hold no line for it"
    missing = Failure(FailureKind.TRANSIENT, text, 200, answer_came=True)  # perhaps in a line that cannot be read
    for key in made.keys:
        flight = k.flights.get(key)
        if flight is None:
            continue
        for verdict in broke(k, events.AttemptFailed(flight.goal, flight.sample, flight.attempt, missing)):
            give_up(k, program, verdict.goal, verdict.failure, out)


# -- time, end and start of the job -----------------------------------------------------------------------------------


def wake(k: State, out: Out) -> None:
    """Send submissions that are due again, without abandoned calls."""
    for made in list(k.submissions.values()):
        if made.stand == SubmissionStatus.RESTING and made.due_at_s <= k.at_s and not k.outcome:
            made.tries += 1
            _send(k, made, out)


def _send(k: State, made: Submission, out: Out) -> None:
    flights = {key: k.flights[key] for key in made.keys if key in k.flights}
    take_back(k, [key for key, flight in flights.items() if flight.abandoned])
    made.keys = [key for key in flights if key in k.flights]
    if not made.keys:
        del k.submissions[made.number]
        return
    batching = k.terms.limits.batching
    made.stand, made.due_at_s, made.failure = SubmissionStatus.INTENDED, 0.0, None
    made.settled_at_s = k.at_s + batching.submit_timeout_s + batching.settle_s
    out.append(commands.SubmitBatch(made.number))


def rejoin(k: State) -> set[int]:
    """Adapt to a new incarnation of the channel, without the bodies of the old one; return the attempts that live on.

    Attempts without an intent were never sent, and refused ones are not with the provider: both are asked anew.
    Intended submissions may be with the provider. Submissions that are with the provider need no channel.
    """
    for made in list(k.submissions.values()):
        if made.stand == SubmissionStatus.RESTING:
            _dissolve(k, made)
        else:
            made.orphaned = True
            if made.stand == SubmissionStatus.INTENDED:
                made.stand = SubmissionStatus.DOUBTED
    take_back(k, _in_hand(k))
    return {key for key, flight in k.flights.items() if flight.submission}


def take_up(k: State, out: Out) -> None:
    """Follow up on every submission, for a channel that follows none yet."""
    for made in k.submissions.values():
        if made.stand == SubmissionStatus.ASKING:
            made.stand = SubmissionStatus.OUT if made.name else SubmissionStatus.DOUBTED
        if made.stand == SubmissionStatus.OUT:
            out.append(commands.CollectResults(made.number))
        elif made.stand == SubmissionStatus.DOUBTED:
            out.append(commands.FindSubmission(made.number))


def hold_back(k: State) -> None:
    """Take back what has not been sent, because the job stops or pauses."""
    for made in [made for made in k.submissions.values() if made.stand == SubmissionStatus.RESTING]:
        _dissolve(k, made)
    if k.flights and any(route.batched for route in k.terms.routes):
        take_back(k, _in_hand(k))


def keeps_waiting(k: State, flight: InFlightAttempt) -> bool:
    """Return True if a stopping job must wait for this attempt: the next run cannot continue it."""
    return not (flight.submission and k.submissions[flight.submission].stand in _LEAVES_K)


def on_the_way(k: State) -> bool:
    """Return True if a submission request may be in progress: then the job cannot end."""
    return any(made.stand == SubmissionStatus.INTENDED for made in k.submissions.values())


def nameless(k: State) -> bool:
    """Return True if the provider may have a batch whose name nobody knows yet: then a job cannot end for good, since
    the batch could not be cancelled. The provider works off what is not cancelled, and bills it.
    """
    return any(
        made.stand in (SubmissionStatus.INTENDED, SubmissionStatus.DOUBTED) for made in k.submissions.values()
    )


def withdraw(k: State, out: Out) -> None:
    """Cancel all batches at the provider, because the job has ended for good. Files of a batch whose last result ended
    the job are deleted.

    A complete job may have failed rows opened again. The provider bills what it worked off before it took the
    cancellation and keeps those results (Anthropic: "batch results may include some requests that completed before the
    cancellation", https://docs.claude.com/en/docs/build-with-claude/batch-processing), so that its attempts are kept.
    """
    for made in k.submissions.values():
        if made.name:
            left = any(key in k.flights for key in made.keys)
            end = commands.CancelSubmission if left else commands.DiscardFiles
            out.append(end(made.number, made.route, made.name))
            if k.outcome == "complete":
                _keep(k, made)
    k.submissions.clear()


def _keep(k: State, made: Submission) -> None:
    """Take the attempts of a cancelled batch whose rows have failed out of flight. They stay charged in full until
    their results are read."""
    keys = [key for key in made.keys if key in k.flights and k.flights[key].abandoned]
    if not keys:
        return
    flights = [k.flights.pop(key) for key in keys]
    for flight in flights:
        k.ledger.assume(flight.charge)
        flight.followers, flight.probe, flight.paced = [], False, None
    made.keys, made.orphaned, made.cancelled = keys, True, True
    k.cancelled[made.number] = CancelledBatch(made, flights)


def look_again(k: State, other_model: bool) -> None:
    """Put the attempts of cancelled batches in flight again, because failed rows are opened again: their results are
    read, and rows that ask the same question wait for them (``cortex.calls.request``).

    The same holds for attempts in batches that go on although their row has failed. ``other_model``: the rows are asked
    of another model, and the results stay unread.
    """
    batches, k.cancelled = k.cancelled, {}
    if other_model:
        return
    for batch in batches.values():
        k.submissions[batch.made.number] = batch.made
        for flight in batch.flights:
            k.flights[flight_key(flight.goal, flight.attempt)] = flight
            k.shares[flight.route].in_flight += 1
            k.ledger.unassume(flight.charge)
            k.ledger.reserve(flight.charge, 0)
    for key, flight in k.flights.items():
        if flight.submission and flight.abandoned:
            k.asking.setdefault(flight.hash, key)


def _in_hand(k: State) -> list[int]:
    """Attempts on routes of message batches that belong to no submission yet."""
    batched = [route.batched for route in k.terms.routes]
    return [key for key, flight in k.flights.items() if batched[flight.route] and not flight.submission]


def _dissolve(k: State, made: Submission) -> None:
    del k.submissions[made.number]
    take_back(k, [key for key in made.keys if key in k.flights])


def _give_up(k: State, keys: Iterable[int]) -> None:
    """Give up attempts that may be billed: they stay charged in full, and their goals are open again."""
    for key in keys:
        flight = k.flights.pop(key)
        release_permit(k, flight, None)
        no_longer_asking(k, flight)
        goals = asked_by(k, flight)
        assume(k, flight, bool(goals))
        for goal in goals:
            reopen(k, goal)
