"""Budgets in a database: jobs of several state folders share one, and it is never passed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder, StoreError
from actors.journal.postgres.account_store import DatabaseAccounts
from actors.limits.budgets import SharedBudgets, books_of, identity
from cortex.scheduler.budgets import BudgetRequest
from policies.limits.limit import PoolCaps
from policies.limits.slices import Budget, day_of
from policies.limits.tenancy import TenantRequest as Claim

LABELS = {"team": "search"}
DOLLAR = 10**9


def _folder(path: Path) -> StateFolder:
    return StateFolder(path).prepare()


def _books(database: str, folder: StateFolder) -> SharedBudgets:
    found = books_of(folder, database)
    assert isinstance(found, SharedBudgets)
    return found


def _asked(job: str, used: int = 0, holds: int = 0, lacks: int = 0, day: int = 0, **more: bool) -> BudgetRequest:
    return BudgetRequest(
        job=job, labels=LABELS, day=day or day_of(time.time()), day_nusd=used, month_nusd=used,
        holds={"team=search a day": holds}, lacks_nusd=lacks, **more,
    )  # fmt: skip


@pytest.fixture
def two(database: str, tmp_path: Path) -> tuple[SharedBudgets, SharedBudgets]:
    StateFolder(database).prepare()
    one, other = (_books(database, _folder(tmp_path / name)) for name in "ab")
    one.put(Budget("team", "search", "day", 10 * DOLLAR, "ann", time.time()))
    return one, other


def test_what_two_jobs_of_one_name_in_two_folders_may_spend_is_never_more_than_the_budget(
    two: tuple[SharedBudgets, SharedBudgets],
) -> None:
    used, holds = [0, 0], [0, 0]
    for turn in range(200):
        place = turn % 2
        answer = two[place].ask(_asked("j", used[place], holds[place], lacks=DOLLAR // 10))
        holds[place] = answer.slices[0].upto_nusd
        assert sum(holds) <= 10 * DOLLAR
        used[place] = min(holds[place], used[place] + DOLLAR // 10)
    assert sum(used) > 9.5 * DOLLAR, "they may go on to its end"
    assert (
        "the budget team=search of $10.00 a day has" in two[0].ask(_asked("j", used[0], holds[0], lacks=DOLLAR)).reason
    )
    (budget,) = two[1].read().values()
    assert len(budget.holdings) == 2


def test_a_clock_ahead_of_the_servers_begins_no_new_day(two: tuple[SharedBudgets, SharedBudgets]) -> None:
    one, other = two
    held = one.ask(_asked("j", 0, 0, lacks=9 * DOLLAR)).slices[0].upto_nusd
    tomorrow = day_of(time.time()) + 1
    (ahead,) = other.ask(_asked("k", 0, 0, lacks=9 * DOLLAR, day=tomorrow)).slices
    assert (ahead.window, ahead.upto_nusd) == (tomorrow, 0)
    (budget,) = one.read().values()
    assert (budget.window, budget.counted_nusd) == (tomorrow - 1, held)


def test_a_name_that_is_taken_again_begins_with_nothing_and_what_was_used_stays_used(
    two: tuple[SharedBudgets, SharedBudgets],
) -> None:
    one, other = two
    held = one.ask(_asked("j", lacks=DOLLAR)).slices[0].upto_nusd
    (again,) = one.ask(_asked("j", lacks=DOLLAR, new=True)).slices
    assert held + again.upto_nusd <= 10 * DOLLAR
    (budget,) = other.read().values()
    assert budget.counted_nusd == held + again.upto_nusd


def test_a_state_folder_has_one_name_wherever_it_is_looked_at_from(tmp_path: Path, database: str) -> None:
    one, other = _folder(tmp_path / "a"), StateFolder(database).prepare()
    assert identity(one) == identity(_folder(tmp_path / "a")) != identity(other) == identity(StateFolder(database))


def test_accounts_are_shared_by_the_servers_clock(database: str) -> None:
    one, other = DatabaseAccounts(database), DatabaseAccounts(database)
    one.prepare()
    one.cap("pool", PoolCaps(concurrency=3, who="ann"))
    assert one.ask("pool", Claim(tenant="a", want=9, linger_s=1.0)).permits == 3
    share = other.ask("pool", Claim(tenant="b", want=9, linger_s=1.0))
    assert (share.permits, share.caps.who, share.tenants) == (0, "ann", 2)
    one.leave("pool", "a")
    assert other.ask("pool", Claim(tenant="b", want=9, linger_s=1.0)).permits == 3
    assert other.caps()["pool"].concurrency == 3


def test_an_address_that_holds_a_password_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        books_of(_folder(tmp_path), "postgresql://u:hush@h/d")
    assert "hush" not in str(caught.value)
