"""Message batches in K: intents, what became of them, what a job leaves behind when it ends, and what it asks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortex.loop.batch_submissions import custom_id
from cortex.loop.invariants import InvariantViolation, check
from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.state.state import State, flight_key
from cortex.values.batch_record import SubmissionStatus
from cortex.values.limits import Limits, Route
from policies.estimates.batching import KEPT_S, BatchingPolicy
from policies.estimates.price import batch_price
from policies.failures.failure import Failure, FailureKind
from tests.support.state_machine_harness import PRICE, Stage, failure, fed, of, other, row

BATCHED = Route(endpoint="sim", model="m", price=batch_price(PRICE), via="batches")
LIMITS = Limits(batching=BatchingPolicy(submit_timeout_s=300.0, settle_s=60.0))


def stage(rows: int = 3, **more: Any) -> Stage:
    """A job over message batches, its rows in hand at the channel."""
    made = Stage(Batch(), LIMITS, streams=True, **{"route": BATCHED, **more})
    made.turn(fed(*(f"r{index}" for index in range(rows)), ended=True))
    assert len(made.calls) == rows
    return made


def keys(made: Stage) -> tuple[int, ...]:
    return tuple(made.k.flights)


def out_there(rows: int = 3, **more: Any) -> Stage:
    """And now with the provider."""
    made = stage(rows, **more)
    assert made.turn(events.SubmissionIntended(1, 0, keys(made), "b0")) == [commands.SubmitBatch(1)]
    assert made.turn(events.SubmissionAccepted(1, "b1")) == [commands.CollectResults(1)]
    return made


# -- the way out -----------------------------------------------------------------------------------------------------


def test_rows_go_together_and_come_back_one_by_one() -> None:
    made = out_there()
    made.answer("one", goal=1)
    assert len(made.emitted) == 1
    made.fail("overloaded", goal=2, status=529)
    made.answer("three", goal=3)
    assert made.turn(events.ResultsCollected(1)) == [commands.DiscardFiles(1, 0, "b1")]
    assert made.k.submissions == {}
    made.turn(events.Ticked(), at_s=made.k.at_s + 100)
    assert [(call.goal, call.attempt) for call in made.calls.values()] == [(2, 2)]  # the errored one, and it alone
    assert [call.attempt for call in made.calls.values()] == [2]
    assert made.turn(events.SubmissionIntended(2, 0, keys(made), "b1")) == [commands.SubmitBatch(2)]


def test_a_row_without_a_line_in_its_results_is_sent_once_more() -> None:
    """Its line may be one that cannot be read, and paid."""
    made = out_there(1)
    made.turn(events.ResultsCollected(1))
    made.turn(events.Ticked(), at_s=made.k.at_s + 100)
    assert keys(made) == (flight_key(1, 2),)
    made.turn(events.SubmissionIntended(2, 0, keys(made), "b1"))
    made.turn(events.SubmissionAccepted(2, "b2"))
    made.turn(events.ResultsCollected(2))
    assert made.k.tally.failed_for_good == {"transient": 1} and "hold no line for it" in made.k.tally.failed_said


def test_the_price_is_that_of_the_road() -> None:
    """3 USD a million in, 15 out; 10 tokens in and 2 out cost 60,000 nUSD, and half of that here."""
    made = out_there()
    assert made.k.ledger.reserved_nusd > 0
    made.answer_all()
    made.turn(events.ResultsCollected(1))
    assert (made.k.ledger.known_nusd, made.k.ledger.reserved_nusd) == (3 * 30_000, 0)
    assert made.k.outcome == "complete"


def test_an_intent_heard_twice_is_one() -> None:
    made = stage()
    intent = events.SubmissionIntended(1, 0, keys(made), "b0")
    assert made.turn(intent, intent) == [commands.SubmitBatch(1)]
    assert made.turn(intent) == []
    made.turn(events.SubmissionAccepted(1, "b1"))
    assert made.turn(intent, events.SubmissionAccepted(1, "b2")) == []
    assert made.k.submissions[1].name == "b1"


def test_what_nobody_awaits_any_more_stays_here() -> None:
    made = stage()
    goal = made.goal(2)
    made.k.flights[goal.id << 20 | 1].abandoned = made.shadow.flights[goal.id << 20 | 1].abandoned = True
    for k in (made.k, made.shadow):
        k.goals[2].question = b""
        k.goals[2].status = 0  # type: ignore[assignment]
        k.open_by_kind["row"][2] = None
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    assert len(made.k.submissions[1].keys) == 2


def test_ids_are_short_and_belong_to_one_attempt_of_one_run() -> None:
    one, two = stage(), stage(job="j" * 100)
    ids = {custom_id(made.k, flight) for made in (one, two) for flight in made.k.flights.values()}
    assert len(ids) == 6
    assert all(len(each) == 32 and each.isalnum() for each in ids)
    again = stage()
    again.k.began_at_s += 1  # the same job, begun anew in an empty folder
    assert ids.isdisjoint(custom_id(again.k, flight) for flight in again.k.flights.values())


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_full_queue_is_waited_for_and_nothing_is_asked_meanwhile() -> None:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    made.turn(events.SubmissionRejected(1, failure("throttled", status=429, retry_after_s=30.0)))
    due_at_s = made.k.due_at_s()
    assert due_at_s is not None and due_at_s >= made.k.at_s + 30
    assert (made.k.submissions[1].stand, len(made.k.flights)) == (SubmissionStatus.RESTING, 3)
    assert made.k.shares[0].free(made.k.at_s) == 0
    assert made.turn(events.Ticked(), at_s=due_at_s) == [commands.SubmitBatch(1)]
    assert (made.k.submissions[1].tries, made.k.ledger.attempts) == (2, 3)  # the calls themselves were made once


@pytest.mark.parametrize(
    ("kind", "status", "paused"),
    [
        ("blocked", 402, "blocked"),
        ("unauthorised", 401, "unauthorised"),
        ("rejected", 400, "blocked"),
        ("too_large", 413, "blocked"),
    ],
)
def test_a_submission_that_is_refused_for_good_pauses_the_job_and_fails_no_row(
    kind: str, status: int, paused: str
) -> None:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    made.turn(events.SubmissionRejected(1, failure(kind, "because", status=status)))
    assert (made.k.outcome, made.k.why.partition(":")[0]) == ("partial", paused)
    assert "because" in made.k.why
    assert made.statuses() == ["open"] * 3
    assert made.k.ledger.reserved_nusd == made.k.ledger.attempts == made.k.tally.failed == 0


def test_it_is_not_tried_for_ever() -> None:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    for _ in range(50):
        if made.k.outcome:
            break
        made.turn(events.SubmissionRejected(1, failure("overloaded", "busy", status=529)))
        made.turn(events.Ticked(), at_s=made.k.due_at_s() or made.k.at_s)
    assert made.k.outcome == "partial"
    assert made.k.why == "blocked: the provider does not take submission 1 (3 requests): busy"


# -- nobody knows ----------------------------------------------------------------------------------------------------


def test_while_it_is_undecided_nothing_is_submitted_again() -> None:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    assert made.turn(events.SubmissionUncertain(1, failure("timed_out"))) == [commands.FindSubmission(1)]
    assert made.k.submissions[1].settled_at_s == made.k.at_s + 60  # the request is over: only the list may lag
    assert made.turn(events.Ticked(), at_s=made.k.at_s + 10_000) == []
    assert made.statuses() == ["asked"] * 3
    assert made.turn(events.SubmissionAccepted(1, "b7")) == [commands.CollectResults(1)]


@pytest.mark.parametrize("late_s", [0.0, 290.0, 350.0, 1_000.0])
def test_a_branch_that_hung_makes_no_submission_settle_later(late_s: float) -> None:
    """It was noticed minutes after the deadline, and the search for the batch went on for longer than it could matter."""
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    intended_at_s = made.k.at_s
    made.turn(events.SubmissionUncertain(1, failure("transient")), at_s=intended_at_s + late_s)
    assert made.k.submissions[1].settled_at_s == intended_at_s + min(late_s + 60, 360)


def test_what_surely_never_arrived_goes_again_as_it_is() -> None:
    """The channel lives and has the bodies."""
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    made.turn(events.SubmissionUncertain(1, failure("transient")))
    made.turn(events.SubmissionRejected(1, failure("transient")))
    assert made.turn(events.Ticked(), at_s=made.k.due_at_s() or 0.0) == [commands.SubmitBatch(1)]


def test_a_crash_between_the_intent_and_the_answer() -> None:
    """The bodies are gone: found, its results are read; not found, its rows are asked anew. No row is charged twice."""
    for found in (True, False):
        made = stage()
        made.turn(events.SubmissionIntended(1, 0, keys(made)))
        intended_at_s = made.k.at_s
        assert made.turn(events.Rejoined(2), events.PermitsGranted(8)) == [commands.FindSubmission(1)]
        assert made.k.submissions[1].settled_at_s == intended_at_s + 360  # an orphan may still be handing it over
        assert made.statuses() == ["asked"] * 3
        if found:
            assert made.turn(events.SubmissionAccepted(1, "b1")) == [commands.CollectResults(1)]
        else:
            parts = made.turn(events.SubmissionRejected(1, failure("lost", "it was never made", sent=False)))
            assert [(call.goal, call.attempt) for call in of(parts, commands.Call)] == [(1, 2), (2, 2), (3, 2)]
        assert (made.k.ledger.attempts, made.k.ledger.assumed_nusd, made.k.ledger.paid_again) == (3, 0, 0)


def test_a_crash_before_the_intent_loses_nothing_and_costs_nothing() -> None:
    made = stage()
    parts = made.turn(events.Rejoined(2), events.PermitsGranted(8))
    assert [call.attempt for call in of(parts, commands.Call)] == [2, 2, 2]
    assert (made.k.ledger.attempts, made.k.ledger.assumed_nusd) == (3, 0)
    # the old one's, late: nothing of it is wanted
    assert made.turn(events.SubmissionIntended(1, 0, (1 << 20 | 1,))) == []
    assert made.k.submissions == {}


def test_what_is_with_the_provider_outlives_every_actor_here() -> None:
    made = out_there()
    assert made.turn(events.Rejoined(2)) == [commands.CollectResults(1)]
    assert made.k.tally.failures == {}
    made.answer_all()
    made.turn(events.ResultsCollected(1))
    assert made.k.outcome == "complete"


def test_calls_of_the_other_road_are_lost_with_their_branch() -> None:
    made = Stage(Batch(), LIMITS, streams=True, route=BATCHED, fallbacks=(other("n"),), permits=1)
    made.turn(events.PermitsGranted(5, route=1), fed("a", "b", "c", ended=True))
    assert [call.route for call in made.calls.values()] == [0, 1, 1]
    made.turn(events.SubmissionIntended(1, 0, (1 << 20 | 1,)))
    made.turn(events.Rejoined(2))
    assert list(made.k.flights) == [1 << 20 | 1]
    assert made.k.tally.failures == {FailureKind.LOST: 2}


# -- a person must say -----------------------------------------------------------------------------------------------


def asking() -> Stage:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    made.turn(events.Rejoined(2))
    made.turn(events.SubmissionUnreadable(1, failure("rejected", "the list is forbidden", status=403)))
    return made


def test_what_cannot_be_decided_stops_the_job_which_asks() -> None:
    made = asking()
    assert made.k.outcome == "partial"
    assert "what became of submission 1 (3 requests) cannot be decided: the list is forbidden" in made.k.why
    assert "cortex resume j --submitted 1=BATCH_ID, or --not-submitted 1 to send its requests again" in made.k.why
    assert made.statuses() == ["asked"] * 3


@pytest.mark.parametrize(
    ("told", "then"),
    [
        (events.SubmissionAccepted(1, "b9", "ann"), [commands.CollectResults(1)]),
        (None, [commands.FindSubmission(1)]),  # asked to go on without an answer: perhaps it can be decided now
    ],
)
def test_an_answer_goes_on(told: Any, then: list[Any]) -> None:
    made = asking()
    some = (told,) if told is not None else ()
    assert made.turn(events.Rejoined(3), *some, events.Resumed("ann")) == then
    assert made.k.outcome == ""


def test_an_answer_that_it_was_never_submitted_asks_anew() -> None:
    made = asking()
    never = events.SubmissionRejected(1, failure("lost", "said so", sent=False), "ann")
    parts = made.turn(events.Rejoined(3), never, events.Resumed("ann"), events.PermitsGranted(8))
    assert len(of(parts, commands.Call)) == 3
    assert made.k.tally.failures == {}


def test_nobody_may_say_of_what_is_with_the_provider_that_it_is_not() -> None:
    made = out_there()
    made.turn(events.SubmissionRejected(1, failure("lost", sent=False), "ann"))
    assert made.k.submissions[1].stand == SubmissionStatus.OUT


def test_a_batch_that_was_there_and_cannot_be_read_stays_charged_when_its_rows_go_again() -> None:
    """It may have been paid for, whoever says to send it again: the cap holds for both."""
    made = out_there()
    reserved = made.k.ledger.reserved_nusd
    made.turn(events.SubmissionUnreadable(1, failure("rejected", "it is not there any more", status=404)))
    never = events.SubmissionRejected(1, failure("lost", sent=False), "ann")
    parts = made.turn(events.Rejoined(2), never, events.Resumed("ann"), events.PermitsGranted(8))
    assert (made.k.ledger.assumed_nusd, made.k.ledger.reserved_nusd) == (reserved, reserved)
    assert [call.attempt for call in of(parts, commands.Call)] == [2, 2, 2]


def test_an_account_that_is_in_disorder_is_told_as_such_and_the_next_run_looks_again() -> None:
    made = out_there()
    made.turn(events.SubmissionUnreadable(1, failure("unauthorised", "invalid x-api-key", status=401)))
    assert (made.k.outcome, made.k.why) == ("partial", "unauthorised: invalid x-api-key")
    assert made.turn(events.Rejoined(2), events.Resumed("ann")) == [commands.CollectResults(1)]


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_drain_leaves_what_is_with_the_provider_there() -> None:
    made = out_there()
    parts = made.turn(events.Stopped("ann", "drain"))
    assert [type(command) for command in parts] == [commands.FinishJob]
    assert (made.k.outcome, len(made.k.flights), made.k.ledger.assumed_nusd) == ("partial", 3, 0)
    assert made.turn(events.Rejoined(2), events.Resumed("ann"), events.PermitsGranted(8)) == [
        commands.CollectResults(1)
    ]
    made.answer_all()
    made.turn(events.ResultsCollected(1))
    assert (made.k.outcome, made.k.ledger.paid_calls, made.k.ledger.paid_again) == ("complete", 3, 0)


def test_a_drain_takes_back_what_is_in_hand_and_waits_for_what_is_on_its_way() -> None:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)[:2]))
    assert made.turn(events.Stopped("ann", "drain")) == []
    assert (made.k.outcome, len(made.k.flights)) == ("", 2)
    made.turn(events.SubmissionAccepted(1, "b1"))
    assert (made.k.outcome, made.k.ledger.attempts) == ("partial", 2)


def test_a_drain_does_not_wait_for_what_rests() -> None:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    made.turn(events.SubmissionRejected(1, failure("throttled", status=429, retry_after_s=600.0)))
    made.turn(events.Stopped("ann", "drain"))
    assert (made.k.outcome, made.k.flights, made.k.submissions) == ("partial", {}, {})


def test_an_intent_that_comes_after_the_stop_is_not_carried_out() -> None:
    made = stage()
    assert (
        of(made.turn(events.Stopped("ann", "drain"), events.SubmissionIntended(1, 0, keys(made))), commands.SubmitBatch)
        == []
    )
    assert (made.k.outcome, made.k.flights) == ("partial", {})


def test_a_cancelled_job_cancels_its_batches() -> None:
    made = out_there()
    parts = made.turn(events.Stopped("ann", "cancel"))
    assert of(parts, commands.CancelSubmission) == [commands.CancelSubmission(1, 0, "b1")]
    assert (made.k.outcome, made.k.submissions, made.k.flights) == ("cancelled", {}, {})
    assert made.k.ledger.assumed_nusd > 0  # nobody will tell what was worked off by then


def test_files_of_a_batch_whose_last_result_ends_the_job_are_deleted() -> None:
    made = out_there()
    made.answer("one", goal=1)
    made.answer("two", goal=2)
    parts = made.answer("three", goal=3)
    assert made.k.outcome == "complete"
    assert [each for each in parts if type(each) in (commands.CancelSubmission, commands.DiscardFiles)] == [
        commands.DiscardFiles(1, 0, "b1")
    ]


def test_a_cancelled_job_waits_until_it_knows_what_to_cancel() -> None:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made)))
    made.turn(events.Stopped("ann", "cancel"))
    assert made.k.outcome == ""
    assert of(made.turn(events.SubmissionAccepted(1, "b1")), commands.CancelSubmission) == [
        commands.CancelSubmission(1, 0, "b1")
    ]
    assert made.k.outcome == "cancelled"


@pytest.mark.parametrize("doubted", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_job_whose_rows_have_all_timed_out_ends_when_it_knows_what_to_cancel(doubted: bool, there: bool) -> None:
    """The provider works off and bills what is not cancelled."""
    made = Stage(Batch(), msgspec.structs.replace(LIMITS, goal_timeout_s=10.0), streams=True, route=BATCHED)
    made.turn(fed("a", "b", ended=True))
    made.turn(events.SubmissionIntended(1, 0, keys(made), "b0"))
    if doubted:
        made.turn(events.SubmissionUncertain(1, failure(FailureKind.TRANSIENT)))
    made.turn(events.Ticked(), at_s=made.k.at_s + 60.0)
    assert (made.k.live, made.k.outcome) == (0, ""), "every row has its result, and the batch may be there"
    news = events.SubmissionAccepted(1, "b1") if there else events.SubmissionRejected(1, failure(FailureKind.LOST))
    out = made.turn(news)
    assert of(out, commands.CancelSubmission) == [commands.CancelSubmission(1, 0, "b1")] * there
    assert (made.k.outcome, made.k.submissions) == ("complete", {})


# -- rows of a cancelled batch that are asked again ------------------------------------------------------------------


def timed_out(*events_before: events.Event) -> Stage:
    """A complete job of which rows a and b timed out in a batch, which was cancelled."""
    limits = msgspec.structs.replace(LIMITS, goal_timeout_s=10.0)
    made = Stage(Batch(), limits, streams=True, route=BATCHED)
    made.turn(fed("a", "b", ended=True))
    made.turn(events.SubmissionIntended(1, 0, keys(made), "b0"))
    made.turn(events.SubmissionAccepted(1, "b1"), *events_before)
    out = made.turn(events.Ticked(), at_s=made.k.at_s + 60.0)
    assert of(out, commands.CancelSubmission) == [commands.CancelSubmission(1, 0, "b1")]
    assert (made.k.outcome, made.k.flights, made.k.submissions, list(made.k.cancelled)) == ("complete", {}, {}, [1])
    return made


def opened_again(made: Stage, later_s: float = 1.0, **more: Any) -> list[commands.Command]:
    """Open the rows again after that time and feed them. Return the commands."""
    rows = tuple(msgspec.structs.replace(row(key), place=place) for place, key in enumerate("ab"))
    start, kinds = made.k.position, {FailureKind.TIMED_OUT: 2}
    again = events.RowsReopened("ann", made.k.edition + 1, ("a", "b"), (0, 1), kinds, start, kind_of=(0, 0), **more)
    opening = (events.Rejoined(made.k.epoch + 1), again, events.Resumed("ann"), events.PermitsGranted(8))
    out = made.turn(*opening, at_s=made.k.at_s + later_s)
    return [*out, *made.turn(events.RowsRead(rows, start, start + 2, True))]


def read(made: Stage, *results: events.Event) -> list[commands.Command]:
    return made.turn(*results, events.ResultsCollected(1))


def test_a_retry_takes_what_a_cancelled_batch_was_paid_for_and_asks_the_rest() -> None:
    made = timed_out()
    ids = [custom_id(made.k, flight) for flight in made.k.cancelled[1].flights]
    one, two = made.calls.values()
    assumed, before = made.k.ledger.assumed_nusd, made.k.ledger.attempts
    made.calls = {}
    out = opened_again(made)
    assert of(out, commands.CollectResults) == [commands.CollectResults(1)] and not of(out, commands.Call)
    assert assumed > 0 == made.k.ledger.assumed_nusd and not made.k.cancelled
    assert [custom_id(made.k, flight) for flight in made.k.flights.values()] == ids
    refused = made.broke(two, "cancelled", "its batch was cancelled", error_type="canceled", sent=False)
    out = read(made, made.answered(one, "one"), refused)
    assert [call.sample for call in of(out, commands.Call)] == ["b"] and made.k.outcome == ""
    assert len(of(out, commands.EmitResult)) == 1
    ledger = made.k.ledger
    assert (ledger.known_nusd, ledger.assumed_nusd, ledger.attempts, ledger.paid_again) == (30_000, 0, before + 1, 0)


def test_a_row_whose_request_timed_out_again_is_kept_again() -> None:
    made = timed_out()
    opened_again(made)
    out = made.turn(events.Ticked(), at_s=made.k.at_s + 60.0)
    assert of(out, commands.CancelSubmission) and made.k.outcome == "complete" and len(made.k.cancelled) == 1
    assert made.k.ledger.assumed_nusd > 0 == made.k.ledger.reserved_nusd


@pytest.mark.parametrize(("gone", "later_s"), [
    (events.SubmissionUnreadable(1, failure("rejected", status=404)), KEPT_S),
    (events.SubmissionUnreadable(1, failure("rejected", status=410)), 2 * KEPT_S),
    (events.SubmissionRejected(1, failure("lost")), 0.0),
])  # fmt: skip
def test_rows_of_a_cancelled_batch_that_nobody_keeps_are_asked_anew_and_nobody_is_asked(
    gone: events.Event, later_s: float
) -> None:
    made = timed_out()
    opened_again(made, later_s)
    out = made.turn(gone)
    assert [call.sample for call in of(out, commands.Call)] == ["a", "b"] and made.k.paused is None


@pytest.mark.parametrize(("why", "later_s"), [
    (failure("rejected", "it is not there", status=404), 0.0),
    (failure("rejected", "it is not there", status=404), 29 * 86_400.0),
    (failure("rejected", "no such query", status=400), KEPT_S),
    (failure("faulty", "KeyError in the watch of the batch"), KEPT_S),
])  # fmt: skip
def test_rows_of_a_cancelled_batch_that_may_be_there_wait_for_a_person(why: Failure, later_s: float) -> None:
    """They may be paid for, and a provider that does not find a batch now may have it for another key, or later."""
    made = timed_out()
    made.calls = {}
    opened_again(made, later_s)
    out = made.turn(events.SubmissionUnreadable(1, why))
    assert made.k.outcome == "partial" and not of(out, commands.Call)
    assert "batch b1) cannot be decided" in made.k.why and "--not-submitted 1" in made.k.why
    assert made.turn(events.Rejoined(made.k.epoch + 1), events.Resumed("ann")) == [commands.CollectResults(1)]
    assert made.k.outcome == "" and made.k.submissions[1].stand == SubmissionStatus.OUT


def test_a_person_may_have_the_rows_of_a_cancelled_batch_asked_anew() -> None:
    made = timed_out()
    charged = made.k.ledger.assumed_nusd
    opened_again(made)
    made.turn(events.SubmissionUnreadable(1, failure("rejected", status=404)))
    never = events.SubmissionRejected(1, failure("lost", sent=False), "ann")
    out = made.turn(events.Rejoined(made.k.epoch + 1), never, events.Resumed("ann"), events.PermitsGranted(8))
    assert [call.sample for call in of(out, commands.Call)] == ["a", "b"]
    assert made.k.ledger.assumed_nusd == charged > 0


def test_a_retry_with_another_model_reads_nothing_of_a_cancelled_batch() -> None:
    made = timed_out()
    asked = msgspec.structs.replace(BATCHED, model="n")
    out = opened_again(made, route=asked, model="n")
    assert len(of(out, commands.Call)) == 2 and not of(out, commands.CollectResults)
    assert not made.k.cancelled and made.k.ledger.assumed_nusd > 0


def test_a_job_that_was_cancelled_keeps_no_attempts_of_its_batches() -> None:
    made = out_there()
    made.turn(events.Stopped("ann", "cancel"))
    assert (made.k.outcome, made.k.cancelled) == ("cancelled", {})


def test_a_row_that_timed_out_in_a_batch_that_goes_on_waits_for_its_result() -> None:
    """The job has come to rest before the batch ended: nothing was cancelled."""
    made = Stage(Batch(), msgspec.structs.replace(LIMITS, goal_timeout_s=10.0), streams=True, route=BATCHED)
    made.turn(fed("a", "b"))
    made.turn(events.SubmissionIntended(1, 0, keys(made), "b0"))
    made.turn(events.SubmissionAccepted(1, "b1"))
    made.turn(events.Ticked(), at_s=made.k.at_s + 60.0)
    made.turn(events.Stopped("ann", "drain"))
    assert made.k.outcome == "partial" and len(made.k.flights) == 2
    one, two = made.calls.values()
    assert not of(opened_again(made, input_at=made.k.position), commands.Call)
    assert len(of(read(made, made.answered(one), made.answered(two)), commands.EmitResult)) == 2


def test_a_batch_that_was_cancelled_at_the_provider_is_not_sent_again_unasked() -> None:
    made = out_there()
    made.fail("cancelled", "this request's batch was cancelled", goal=1, error_type="canceled", sent=False)
    assert (made.k.outcome, made.goal(1).status.name) == ("partial", "OPEN")
    parts = made.turn(events.Rejoined(2), events.Resumed("ann"), events.PermitsGranted(8))
    assert [call.goal for call in of(parts, commands.Call)] == [1]


def test_a_request_without_a_line_was_perhaps_paid_for() -> None:
    made = out_there()
    made.answer("one", goal=1)
    made.turn(events.ResultsCollected(1))
    assert made.k.tally.failures == {FailureKind.TRANSIENT: 2}
    assert made.k.ledger.assumed_nusd > 0
    assert made.k.submissions == {} and made.k.flights == {}


def test_a_batch_that_died_with_its_simulator_is_asked_anew() -> None:
    made = out_there()
    parts = made.turn(events.SubmissionRejected(1, failure("lost", sent=False)))
    assert len(of(parts, commands.Call)) == 3


# -- doubts ----------------------------------------------------------------------------------------------------------


def _two(k: State) -> None:
    k.submissions[2] = type(k.submissions[1])(2, 0, list(k.submissions[1].keys), "", 0.0, 0.0)
    k.next_submission = 3


BREAKS: dict[str, tuple[Any, str]] = {
    "under another number": (lambda k: k.submissions.update({7: k.submissions.pop(1)}), "stands under 7"),
    "an attempt twice": (_two, "were submitted twice"),
    "without attempts": (lambda k: setattr(k.submissions[1], "keys", []), "of other submissions, or none"),
    "out without a name": (lambda k: setattr(k.submissions[1], "name", ""), "is out, batch ''"),
    "due and not resting": (lambda k: setattr(k.submissions[1], "due_at_s", 5.0), "due at 5.0"),
    "gone, and its attempts are not": (lambda k: k.submissions.clear(), "belongs to no submission 1"),
    "left behind by a job that is over": (lambda k: (setattr(k, "outcome", "complete"), setattr(k, "finished", True)), "submission 1 is out"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_check_names_what_is_broken(name: str) -> None:
    made = out_there()
    breaks, text = BREAKS[name]
    breaks(made.k)
    with pytest.raises(InvariantViolation) as error:
        check(made.k)
    assert text in str(error.value)
