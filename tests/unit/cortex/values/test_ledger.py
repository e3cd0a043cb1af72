"""Money and tokens: reserved when asked, settled once, charged in full where nobody knows."""

from __future__ import annotations

import pytest

from cortex.state import commands, events
from cortex.state.changes import Ask, Wait
from cortex.state.state import Goal
from cortex.values.ledger import Charge, ChildJobBill, Ledger, worst_charge
from cortex.values.limits import Limits
from cortex.values.reply import Usage
from policies.decisions.join import Join
from policies.estimates.price import cost_nusd
from tests.support.state_machine_harness import PRICE, Flat, Stage, of, prompt, puppet

ONE = Charge(1_000, 10)


@pytest.mark.parametrize(
    ("spent", "cap_nusd", "cap_tokens", "allowed"),
    [
        ((0, 0, 0), 1_000, None, True),
        ((0, 0, 0), 999, None, False),
        ((500, 0, 0), 1_499, None, False),
        ((0, 500, 0), 1_499, None, False),
        ((0, 0, 500), 1_499, None, False),
        ((200, 200, 100), 1_500, None, True),
        ((0, 0, 0), None, 10, True),
        ((0, 0, 0), None, 9, False),
        ((10**18, 10**18, 10**18), None, None, True),
    ],
)
def test_what_the_caps_allow(spent, cap_nusd, cap_tokens, allowed):
    known, assumed, reserved = spent
    ledger = Ledger(known_nusd=known, assumed_nusd=assumed, reserved_nusd=reserved)
    assert ledger.allows(ONE, cap_nusd, cap_tokens) is allowed


def test_known_assumed_and_reserved_tokens_count_alike():
    assert not Ledger(known_tokens=1, assumed_tokens=1, reserved_tokens=1).allows(ONE, None, 12)
    assert Ledger(known_tokens=1, assumed_tokens=1, reserved_tokens=1).allows(ONE, None, 13)


MOVES = {
    "released": (lambda led: led.release(ONE), (0, 0, 0)),
    "assumed": (lambda led: led.assume(ONE), (0, 1_000, 0)),
    "assumed, then answered": (lambda led: (led.assume(ONE), led.unassume(ONE)), (0, 0, 0)),
    "known": (lambda led: (led.release(ONE), led.know(Usage(10, 2), PRICE)), (60_000, 0, 0)),
    "still under way": (lambda led: None, (0, 0, 1_000)),
}


@pytest.mark.parametrize("name", MOVES)
def test_an_attempt_is_charged_in_one_place(name):
    move, (known, assumed, reserved) = MOVES[name]
    ledger = Ledger()
    ledger.reserve(ONE)
    move(ledger)
    assert (ledger.known_nusd, ledger.assumed_nusd, ledger.reserved_nusd) == (known, assumed, reserved)
    assert (ledger.assumed_tokens, ledger.reserved_tokens) == (assumed // 100, reserved // 100)
    assert ledger.attempts == 1


def test_cached_tokens_are_counted_and_paid():
    ledger = Ledger()
    ledger.know(Usage(1, 2, 4, 8), PRICE)
    assert (ledger.known_tokens, ledger.cache_read_tokens, ledger.cache_creation_tokens) == (15, 4, 8)
    assert ledger.known_nusd == cost_nusd(PRICE, Usage(1, 2, 4, 8)) > 0


def test_without_a_price_tokens_are_counted_all_the_same():
    ledger = Ledger()
    ledger.know(Usage(10, 2), None)
    assert (ledger.known_nusd, ledger.known_tokens, ledger.paid_calls) == (0, 12, 1)


def test_a_childs_bill_is_counted_once_over_all_its_runs():
    ledger = Ledger()
    first, second = ChildJobBill(100, 50, 10, 2, 5), ChildJobBill(180, 20, 18, 4, 2)
    ledger.bill(first, ChildJobBill())
    ledger.bill(second, first)
    assert (ledger.known_nusd, ledger.assumed_nusd) == (180, 20)
    assert (ledger.known_tokens, ledger.assumed_tokens) == (22, 2)
    assert (ledger.input_tokens, ledger.output_tokens) == (18, 4)


@pytest.mark.parametrize(("caching", "nusd"), [(False, 100 * 3_000 + 7 * 15_000), (True, 100 * 6_000 + 7 * 15_000)])
def test_the_worst_case(caching, nusd):
    """Writing to a cache for an hour costs twice plain input; without a price money is nothing and tokens count."""
    assert worst_charge(PRICE, 100, 7, caching) == Charge(nusd, 107)
    assert worst_charge(None, 100, 7, caching) == Charge(0, 107)


# -- in a job ----------------------------------------------------------------------------------------------------------


def one_call(**limits: int) -> tuple[Stage, Charge]:
    stage = Stage(Flat(texts=("a",)), Limits(output_tokens_max=10, **limits), price=PRICE)
    flights = list(stage.k.flights.values())
    return stage, flights[0].charge if flights else Charge(0, 0)


def test_a_call_is_asked_where_its_worst_case_just_fits():
    _, worst = one_call()
    assert worst.nusd > 0
    just, _ = one_call(max_cost_nusd=worst.nusd)
    assert just.calls
    below, _ = one_call(max_cost_nusd=worst.nusd - 1)
    assert not below.calls
    assert (below.k.outcome, below.k.why) == ("partial", "over_budget: the next call could pass the cap")
    by_tokens, _ = one_call(max_job_tokens=worst.tokens - 1)
    assert by_tokens.k.outcome == "partial"


def test_money_that_comes_back_is_spent_again():
    """Each call reserves its worst case and costs much less: one after the other they fit where together they do not."""
    _, worst = one_call()
    stage = Stage(
        Flat(texts=("a", "b", "c")), Limits(output_tokens_max=10, max_cost_nusd=worst.nusd + 100_000), price=PRICE
    )
    assert len(stage.calls) == 1
    stage.answer()
    stage.answer()
    assert len(stage.calls) == 0 and stage.k.outcome == "partial"
    assert (stage.k.ledger.known_nusd, stage.k.ledger.reserved_nusd) == (120_000, 0)


def test_a_call_that_costs_nothing_to_share_is_shared_under_a_full_cap():
    _, worst = one_call()
    stage = Stage(Flat(texts=("a", "a")), Limits(output_tokens_max=10, max_cost_nusd=worst.nusd), price=PRICE)
    assert stage.statuses() == ["asked", "asked"]
    stage.answer()
    assert stage.k.outcome == "complete"


def test_what_nobody_waits_for_any_more_frees_its_money_before_the_job_gives_up():
    """A met join abandons a call; its reservation comes back with it, and only then is the cap said to be reached."""
    _, worst = one_call()

    def select(k):
        for goal in k.open("top"):
            if not goal.children:
                yield Goal("vote", "v", parent=goal.id)
                yield Goal("vote", "w", parent=goal.id)
                yield Wait(goal, Join("any"))
            else:
                yield Ask(goal, prompt("t"))
        for goal in k.open("vote"):
            yield Ask(goal, prompt(goal.value))

    program = puppet(begin=lambda k: [Goal("top")], select=select)
    cap = 2 * worst.nusd + 50_000
    stage = Stage(program, Limits(output_tokens_max=10, max_cost_nusd=cap), price=PRICE)
    first, second = stage.calls.values()
    out = stage.turn(stage.answered(first))
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(3, 1)]
    assert (stage.k.outcome, len(stage.k.flights)) == ("", 1)
    out = stage.turn(stage.broke(second, "cancelled", sent=False))
    assert [call.goal for call in of(out, commands.Call)] == [1]
    stage.answer()
    assert stage.k.outcome == "complete"


def test_a_job_that_begins_anew_remembers_what_it_spent():
    spent = Ledger(known_nusd=90, attempts=3, paid_calls=3)
    opened = events.Opened(one_call()[0].k.terms, 2, first_goal=5, carried=spent)
    stage = Stage(Flat(texts=("a",)), opened=opened)
    stage.answer()
    assert stage.k.ledger.known_nusd == 90 + 60_000
    assert list(stage.k.goals) == [5]
    assert spent == Ledger(known_nusd=90, attempts=3, paid_calls=3), "an event is never changed"
