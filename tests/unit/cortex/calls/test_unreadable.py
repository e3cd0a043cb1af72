"""Attempts whose answer cannot be used, and replies whose usage is unknown: what is asked again, and what is charged."""

from __future__ import annotations

import msgspec
import pytest

from cortex.state import events
from cortex.values.ledger import Charge, Ledger
from cortex.values.limits import Limits
from cortex.values.reply import UNKNOWN_USAGE, Usage
from policies.failures.retry import PAID_ATTEMPTS_MAX
from tests.support.state_machine_harness import PRICE, Flat, Stage


def stage_of(*texts: str, **limits: object) -> Stage:
    return Stage(Flat(texts=texts or ("a",)), Limits(**limits), price=PRICE)  # type: ignore[arg-type]


def due(stage: Stage) -> None:
    at_s = stage.k.due_at_s()
    assert at_s is not None
    stage.turn(events.Ticked(), at_s=at_s)


@pytest.mark.parametrize("kind", ["unreadable", "overloaded", "throttled", "transient"])
def test_an_answer_that_came_is_paid_twice_at_most(kind: str) -> None:
    stage = stage_of()
    stage.fail(kind, status=200, answer_came=True)
    assert stage.goal(1).failure is None
    due(stage)
    stage.fail(kind, status=200, answer_came=True)
    assert stage.goal(1).failure.kind == kind and stage.goal(1).tries == PAID_ATTEMPTS_MAX == 2


def test_attempts_that_nobody_paid_leave_the_second_one() -> None:
    stage = stage_of()
    for status in (500, 529, 500):
        stage.fail("transient", status=status)
        due(stage)
    stage.fail("unreadable", status=200, answer_came=True)
    assert stage.goal(1).failure is None, "it may be asked once more"
    due(stage)
    stage.fail("unreadable", status=200, answer_came=True)
    assert stage.goal(1).failure.kind == "unreadable"


def test_an_unreadable_answer_says_nothing_against_the_route() -> None:
    stage = stage_of("a", "b")
    stage.fail("unreadable", status=200, answer_came=True, goal=1)
    assert stage.k.shares[0].failing is None


STRANGE = "the answer is no message: an object with choices"


def test_a_server_that_is_never_understood_blocks_the_route_before_all_rows_are_paid() -> None:
    """No retry is waited for: it comes behind all rows that were not asked yet."""
    texts = tuple(f"text {number}" for number in range(20))
    stage = Stage(Flat(texts=texts), Limits(rejected_alike_max=5), permits=2)
    for goal in (1, 2, 3, 4, 5):
        assert stage.k.paused is None
        stage.fail("unreadable", STRANGE, status=200, answer_came=True, goal=goal)
    assert {stage.goal(goal).status.name for goal in (1, 2, 3, 4, 5)} == {"OPEN"}
    paused = stage.k.paused
    assert paused is not None and paused.kind == "blocked"
    assert paused.message == f"the last 5 goals were all answered with what cannot be read: {STRANGE}"


@pytest.mark.parametrize("permits", [2, 4])
def test_a_moment_of_strange_answers_blocks_nothing(permits: int) -> None:
    """As many as are under way at once may get one; and another answer among them ends the row."""
    texts = tuple(f"text {number}" for number in range(20))
    stage = Stage(Flat(texts=texts), Limits(rejected_alike_max=5), permits=permits)
    for goal in range(1, 6 if permits == 4 else 5):
        stage.fail("unreadable", STRANGE, status=200, answer_came=True, goal=goal)
    assert stage.k.paused is None
    stage.answer(goal=6 if permits == 4 else 5)
    stage.fail("unreadable", STRANGE, status=200, answer_came=True, goal=7)
    assert stage.k.paused is None and stage.k.alike == 1


def test_a_reply_of_unknown_usage_is_charged_at_its_worst_case() -> None:
    stage = stage_of()
    charge = next(iter(stage.k.flights.values())).charge
    stage.turn(stage.answered(stage.call(), usage=UNKNOWN_USAGE))
    ledger = stage.k.ledger
    assert (ledger.known_nusd, ledger.assumed_nusd, ledger.reserved_nusd) == (0, charge.nusd, 0)
    assert (ledger.known_tokens, ledger.assumed_tokens, ledger.paid_calls) == (0, charge.tokens, 1)
    assert (stage.k.tally.uncounted, stage.k.tally.answered, stage.k.tally.succeeded) == (1, 1, 1)


def test_a_late_reply_of_unknown_usage_leaves_the_assumed_charge() -> None:
    stage = stage_of()
    call = stage.call()
    late = stage.answered(call, usage=UNKNOWN_USAGE)
    stage.turn(stage.broke(call, "timed_out"))
    before = msgspec.structs.asdict(stage.k.ledger)
    stage.turn(late)
    after = msgspec.structs.asdict(stage.k.ledger)
    assert after["assumed_nusd"] == before["assumed_nusd"] > 0 and after["known_nusd"] == 0
    assert after["paid_calls"] == 1 and stage.k.tally.uncounted == 1


def test_unknown_usage_teaches_nothing() -> None:
    text = "words and words " * 400
    stage = Stage(Flat(texts=(text, text)), permits=2)
    before = stage.k.tokens(text)
    stage.turn(stage.answered(stage.call(), usage=UNKNOWN_USAGE))
    assert stage.k.tokens(text) == before


def test_a_bill_above_what_was_reserved_is_charged_in_full() -> None:
    ledger = Ledger()
    charge = Charge(1_000, 10)
    ledger.reserve(charge)
    assert ledger.settle(charge, Usage(0, 20_000), PRICE) == 20_000 * 15_000
    assert (ledger.known_nusd, ledger.known_tokens, ledger.reserved_nusd) == (20_000 * 15_000, 20_000, 0)
