"""Budgets: what all jobs of a label commit in a day never passes the budget, whatever dies, is lost, raised or late.

The jobs are real Ks under the real lending; what lies between them (requests that die on their way, jobs that are killed
and come back, midnight, a person who raises and lowers) is drawn from a seed.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cortex.admission import budget_slices
from cortex.scheduler import budgets
from cortex.scheduler.budgets import BudgetRequest
from cortex.state import commands, events
from cortex.values.limits import Limits
from policies.estimates.price import cost_nusd
from policies.limits import slices
from policies.limits.slices import DAY_S, Budget, day_of
from tests.support.state_machine_harness import PRICE, USAGE, Flat, Stage

CAP = 2_500_000
MIDNIGHT_S = 20_000.0 * DAY_S


class Job:
    """One K, as its channel and its allowance hold it."""

    def __init__(self, name: str, town: Town, ahead_s: float = 0.0) -> None:
        self.name, self.town, self.ahead_s = name, town, ahead_s
        texts = tuple(f"text {n}" for n in range(80))
        self.stage = Stage(
            Flat(texts=texts),
            job=name,
            price=PRICE,
            labels={"team": "a"},
            limits=Limits(output_tokens_max=20),
            permits=0,
        )
        self.calls: list[commands.Call] = []
        self.epoch, self.dead = 1, False
        self.turn()
        self.ask()
        self.turn(events.PermitsGranted(5))

    @property
    def k(self) -> Any:
        return self.stage.k

    @property
    def at_s(self) -> float:
        """The job's own time."""
        return self.town.at_s + self.ahead_s

    def turn(self, *happened: events.Event) -> None:
        out = self.stage.turn(*happened, at_s=self.at_s)
        for call in (each for each in out if isinstance(each, commands.Call)):
            self.calls.append(call)
            flight = next(f for f in self.k.flights.values() if (f.goal, f.attempt) == (call.goal, call.attempt))
            self.town.spent[self.name, call.goal, call.attempt] = (day_of(self.town.at_s), flight.charge.nusd)
        self.town.doubt()

    def ask(self, lost: bool = False, over: bool = False) -> None:
        """As ``actors.channel.leases.budget_client`` does it; the answer may be lost, never late."""
        k = self.k
        ledger = k.ledger.__class__(**{n: getattr(k.ledger, n) for n in k.ledger.__struct_fields__})
        ledger.turn_to(self.at_s)
        held = k.purse.slices if k.purse is not None else ()
        asked = BudgetRequest(
            job=self.name, labels={"team": "a"}, day=ledger.day, day_nusd=ledger.day_nusd, month_nusd=ledger.month_nusd,
            holds={each.budget: each.upto_nusd for each in held if each.window == ledger.day},
            lacks_nusd=k.purse.lacks_nusd if k.purse is not None else 0, over=over,
            open_nusd=budget_slices.open_nusd(k), at_s=self.at_s,
        )  # fmt: skip
        answer = budgets.ask([self.town.budget], asked, self.town.at_s)
        if not lost and not over:
            self.turn(events.BudgetLeased(answer.slices, answer.reason, answer.again_s))

    def answer(self, chance: Random) -> None:
        if self.calls:
            call = self.calls.pop(chance.randrange(len(self.calls)))
            if (found := self.town.spent.get((self.name, call.goal, call.attempt))) is not None:
                self.town.spent[self.name, call.goal, call.attempt] = (found[0], cost_nusd(PRICE, USAGE))
            self.turn(self.stage.answered(call))

    def come_back(self) -> None:
        self.dead, self.epoch = False, self.epoch + 1
        self.turn(
            events.Rejoined(self.epoch), events.PermitsGranted(5), *([events.Resumed("a")] if self.k.outcome else [])
        )


class Town:
    """Jobs under one budget, and the truth about them."""

    def __init__(self, seed: int, ahead_s: tuple[float, ...] = (0.0, 0.0, 0.0)) -> None:
        self.chance = Random(seed)
        self.at_s = MIDNIGHT_S - 30
        self.budget = Budget("team", "a", slices.DAY, CAP)
        self.spent: dict[tuple[str, int, int], tuple[int, int]] = {}
        """By attempt: the day on which it was begun, and what it cost, or may cost while nobody knows."""
        self.most: dict[int, int] = {}
        """By day: the greatest cap of that day."""
        self.jobs = [Job(f"j{n}", self, by_s) for n, by_s in enumerate(ahead_s)]

    def doubt(self) -> None:
        day = day_of(self.at_s)
        self.most[day] = max(self.most.get(day, 0), self.budget.cap_nusd)
        for each, most in self.most.items():
            assert sum(nusd for of, nusd in self.spent.values() if of == each) <= most, "the sum passed the budget"

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.at_s += self.chance.random()
            job = self.chance.choice(self.jobs)
            what = self.chance.random()
            if job.dead:
                if what < 0.2:
                    job.come_back()
                elif what < 0.4:
                    self.bury(job)
            elif what < 0.45:
                job.answer(self.chance)
            elif what < 0.85:
                job.ask(lost=self.chance.random() < 0.15)
            elif what < 0.9:
                job.dead = True
            elif what < 0.93:
                job.come_back()
            elif what < 0.96:
                self.budget.cap_nusd = round(CAP * self.chance.uniform(0.5, 2))
            else:
                job.turn(events.Ticked())
            self.doubt()

    def bury(self, job: Job) -> None:
        """As ``actors.limits.budgets`` does it, from the journal of a job whose process is gone."""
        held = self.budget.holdings.get(job.name)
        if held is not None:
            ledger = job.k.ledger
            if ledger.day > (window := slices.window_in(self.budget, held)):
                return
            held.held_nusd = held.used_nusd = ledger.day_nusd if ledger.day == window else 0
            held.over = True


@pytest.mark.parametrize("seed", range(12))
def test_the_budget_holds_whatever_dies_and_whoever_raises_it(seed):
    town = Town(seed)
    town.live(160)
    assert len({day for day, _ in town.spent.values()}) == 2, "no midnight in it"


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S, 7 * 3_600, -7 * 3_600, 366 * DAY_S, -19_000 * DAY_S])
@pytest.mark.parametrize("seed", range(3))
def test_the_budget_holds_where_clocks_were_set_and_lends_to_every_job(by_s, seed):
    """A day is one of the clock that the budget has; the jobs' own times may be any others."""
    town = Town(seed, (0.0, by_s, by_s + 7_300))
    town.live(240)
    assert all(each.k.ledger.attempts for each in town.jobs), "a job waited for the clock of another"


def test_all_of_it_is_used():
    town = Town(1)
    cap_nusd = town.budget.cap_nusd = 3 * CAP
    for _ in range(900):
        job = town.chance.choice(town.jobs)
        job.answer(town.chance)
        job.ask()
        if all(each.k.outcome for each in town.jobs):
            break
    used = sum(nusd for _, nusd in town.spent.values())
    worst = max(each.k.purse.lacks_nusd for each in town.jobs)
    assert cap_nusd - worst < used <= cap_nusd
    assert all(each.k.outcome == "partial" and "the budget team=a" in each.k.why for each in town.jobs)
    assert all(each.k.tally.answered > 10 for each in town.jobs), "one had it all"


def _comes_back() -> None:
    """A job dies with a slice unused, the others use that up, and it comes back."""
    town = Town(2)
    dead, *others = town.jobs
    dead.turn(events.PermitsGranted(0))
    while dead.calls:
        dead.answer(town.chance)
    dead.ask()
    slack_nusd = dead.k.purse.slices[0].upto_nusd - dead.k.ledger.day_nusd
    assert slack_nusd > 400_000
    town.bury(dead)
    for _ in range(200):
        for each in others:
            each.answer(town.chance)
            each.ask()
    asked = dead.k.ledger.attempts
    dead.come_back()
    assert dead.k.ledger.attempts == asked and not dead.k.outcome, "it began something before it was lent anything"


def test_one_that_comes_back_begins_nothing_under_an_old_slice():
    _comes_back()


def _lives() -> None:
    for seed in range(12):
        Town(seed).live(160)


def _keeps_slices(k: Any) -> None:
    """Planted: a new incarnation goes on with what the one before it was lent."""


def _counts_what_is_used(self: Any) -> int:
    """Planted: what was lent and may be spent by now is forgotten."""
    return int(self.used_nusd)


def _any_window(k: Any, slice_: Any, charge: Any) -> bool:
    """Planted: yesterday's slice is spent today."""
    return bool(budget_slices.used_nusd(k, slice_.period) + charge.nusd <= slice_.upto_nusd)


@pytest.mark.parametrize(
    ("where", "name", "fault", "story"),
    [
        (budget_slices, "void", _keeps_slices, _comes_back),
        (slices.Holding, "counted_nusd", property(_counts_what_is_used), _lives),
        (budget_slices, "_fits", _any_window, _lives),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, where, name, fault, story):
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(AssertionError, match=r"the sum passed|began something"):
        story()
