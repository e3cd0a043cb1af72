"""Clock of a job: it goes on as it went, whatever is done to the clock of a machine, between two runs and during one."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pytest

from actors.channel.job_clock import JobClock, KeptClock, base_at
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.limits.budgets import FolderBudgets
from actors.maintenance import offline_edits
from actors.runtime.inline import InlineRuntime
from cortex.values.limits import Limits
from policies.failures.failure import Failure, FailureKind
from policies.limits.slices import Budget, day_of
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, reply, rows
from tests.edge.support.virtual_clock import VirtualRuntime, virtually
from tests.support.state_machine_harness import PRICE

DAY_S, YEAR_S = 86_400.0, 365 * 86_400.0
NOW_S = 1_790_000_000.0
STEPS = (-YEAR_S, -DAY_S, -2.0, 0.0, 2.0, DAY_S, YEAR_S)


class Machine(VirtualRuntime):
    """Runtime whose clock is set by a test, and whose start has an id."""

    def __init__(self, boot: str = "one", up_s: float = 0.0) -> None:
        super().__init__()
        self.boot, self.up_s, self.set_s = boot, up_s, 0.0

    def now_s(self) -> float:
        return NOW_S + asyncio.get_running_loop().time() + self.set_s

    def steady_s(self) -> float:
        return super().steady_s() + self.up_s

    def boot_id(self) -> str:
        return self.boot


@pytest.mark.parametrize("step_s", STEPS)
def test_the_same_start_of_a_machine_tells_how_long_nothing_ran(step_s: float) -> None:
    kept = KeptClock("one", NOW_S - 500)
    base_s = base_at(kept, "one", 530.0, NOW_S + 30 + step_s, (NOW_S, 0.0), None)
    assert base_s + 530.0 == NOW_S + 30


@pytest.mark.parametrize("step_s", STEPS)
def test_the_clock_of_a_database_tells_it_elsewhere(step_s: float) -> None:
    base_s = base_at(KeptClock("one", NOW_S - 500), "other", 7.0, NOW_S + 30 + step_s, (NOW_S, 0.0), 30.0)
    assert base_s + 7.0 == NOW_S + 30


@pytest.mark.parametrize("step_s", STEPS)
@pytest.mark.parametrize("boot", ["", "other"])
def test_without_one_the_job_goes_on_where_it_was_and_never_goes_back(step_s: float, boot: str) -> None:
    base_s = base_at(KeptClock("one", 1.0), boot, 7.0, NOW_S + 30 + step_s, (NOW_S, 0.0), None)
    assert base_s + 7.0 == max(NOW_S, NOW_S + 30 + step_s)


def test_a_count_that_went_back_is_of_another_start() -> None:
    assert base_at(KeptClock("one", NOW_S - 500), "one", 400.0, NOW_S + 30, (NOW_S, 0.0), None) + 400.0 == NOW_S + 30
    assert base_at(None, "one", 400.0, NOW_S + 30, (0.0, 0.0), None) + 400.0 == NOW_S + 30, "the first turn"


def test_how_far_the_machine_is_ahead_is_told_when_its_clock_was_set() -> None:
    async def told() -> list[float]:
        machine = Machine()
        clock = JobClock(machine, NOW_S)  # type: ignore[arg-type]
        found = []
        for step_s in (0.0, 0.4, -DAY_S, YEAR_S, 0.0):
            machine.set_s = step_s
            await asyncio.sleep(2.0)
            found.append(clock.ahead_s(clock.now_s()))
            assert clock.now_s() == NOW_S + asyncio.get_running_loop().time()
        return found

    assert virtually(told()) == [0.0, 0.0, -DAY_S, YEAR_S, 0.0]


def _waiting(waited: list[float], machine: Machine, step_s: float) -> FunctionModel:
    """A model that refuses each row once, for 20 s; the clock is set once all are refused."""
    begun: dict[bytes, float] = {}

    def answer(body: bytes) -> object:
        now_s = asyncio.get_running_loop().time()
        if body not in begun:
            begun[body] = now_s
            machine.set_s = step_s if len(begun) == 4 else machine.set_s
            return Failure(FailureKind.THROTTLED, "later", retry_after_s=20.0)
        waited.append(now_s - begun[body])
        return reply("ok")

    return FunctionModel(answer)  # type: ignore[arg-type]


@pytest.mark.parametrize("step_s", STEPS)
def test_rows_wait_as_long_as_they_were_told_to(tmp_path: Path, step_s: float) -> None:
    """Without the job's clock, a clock set back stops them for as long, and one set ahead makes them all due."""

    async def run() -> list[float]:
        waited: list[float] = []
        machine = Machine()
        model = _waiting(waited, machine, step_s)
        async with asyncio.timeout(600):
            done = await Run(tmp_path, model, source=ListSource(rows(4)), runtime=machine).to_end()
        assert done.facts["outcome"] == "complete"
        return waited

    waited = virtually(run())
    assert len(waited) == 4 and all(20.0 <= each < 60.0 for each in waited), waited


@pytest.mark.parametrize("step_s", STEPS)
def test_a_job_that_is_resumed_after_the_clock_was_set_waits_for_the_rest(tmp_path: Path, step_s: float) -> None:
    async def run() -> list[float]:
        waited: list[float] = []
        first = Machine()
        model = _waiting(waited, first, 0.0)
        one = Run(tmp_path, model, source=ListSource(rows(4)), runtime=first)
        await one.crash_after(lambda: len(model.asked) >= 4)
        second = Machine()
        second.set_s = step_s
        async with asyncio.timeout(600):
            await Run(tmp_path, model, source=ListSource(rows(4)), runtime=second).to_end()
        return waited

    waited = virtually(run())
    assert len(waited) == 4 and all(each < 60.0 for each in waited), waited


@pytest.mark.parametrize(("step_s", "ends"), [(0.0, False), (-DAY_S, False), (DAY_S, True)])
def test_a_deadline_is_a_date_of_the_machine(tmp_path: Path, step_s: float, ends: bool) -> None:
    """Rows wait for 20 s. The deadline is an hour away: only a clock that is set a day ahead makes it pass."""

    async def run() -> object:
        machine = Machine()
        model = _waiting([], machine, step_s)
        limits = Limits(deadline_at_s=NOW_S + 3_600)
        async with asyncio.timeout(600):
            done = await Run(tmp_path, model, source=ListSource(rows(4)), runtime=machine, limits=limits).to_end()
        return done.facts["outcome"]

    assert virtually(run()) == ("partial" if ends else "complete")


@pytest.mark.parametrize("step_s", [-YEAR_S, DAY_S])
def test_a_budget_lends_whatever_the_clock_was_set_to_and_once_it_is_right_again(tmp_path: Path, step_s: float) -> None:
    """Two jobs: one is begun before, one while the clock is wrong. Each goes on then, and after it."""
    books = FolderBudgets(StateFolder(tmp_path).prepare(), lambda: NOW_S)
    books.put(Budget("team", "a", "day", 10**9))

    async def run(job: str, up_s: float, step_s: float, ends: bool = True) -> object:
        machine, model = Machine(up_s=up_s), FunctionModel(pause_s=1.0)
        machine.set_s = up_s + step_s
        one = Run(
            tmp_path, model, source=ListSource(rows(8)), runtime=machine, job=job, price=PRICE, labels={"team": "a"},
            fresh=True, limits=Limits(output_tokens_max=8, concurrency=2),
        )  # fmt: skip
        if not ends:
            return await one.crash_after(lambda: len(model.asked) > 2)
        async with asyncio.timeout(600):
            return (await one.to_end()).facts["outcome"]

    virtually(run("before", 100.0, 0.0, ends=False))
    virtually(run("meanwhile", 200.0, step_s, ends=False))
    assert virtually(run("before", 300.0, step_s)) == "complete"
    assert virtually(run("meanwhile", 400.0, 0.0)) == "complete"
    assert virtually(run("after", 500.0, 0.0)) == "complete"
    (budget,) = books.read().values()
    assert budget.window == day_of(NOW_S)
    assert set(budget.holdings) == {"before", "meanwhile", "after"}


async def test_a_turn_of_a_machine_whose_clock_is_not_set_costs_no_byte(tmp_path: Path) -> None:
    await Run(tmp_path, FunctionModel(), source=ListSource(rows(3)), runtime=InlineRuntime()).to_end()
    with closing(StateFolder(tmp_path).journal("j")) as source:
        assert {turn.ahead_s for _, turn in source.turns()} == {0.0}
        assert {blob[0] for _, blob in source.blobs(source.seq)} == {0x93}


@pytest.mark.parametrize("step_s", STEPS)
def test_an_edit_of_a_job_at_rest_is_made_at_the_time_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """An edit on a machine that is a year ahead would take each pending submission for settled, and each wait for over."""

    async def half() -> None:
        model = FunctionModel(lambda body: reply("ok") if len(model.complete) < 5 else None)
        one = Run(tmp_path, model, source=ListSource(rows(9)), limits=Limits(deadline_at_s=time.time() + 10 * YEAR_S))
        await one.crash_after(lambda: len(model.complete) > 3)

    asyncio.run(half())
    folder, real_s = StateFolder(tmp_path), time.time
    monkeypatch.setattr(offline_edits._Machine, "now_s", staticmethod(lambda: real_s() + step_s))
    before = last_state(folder, "j")
    after = offline_edits.set_limits(folder, "j", "ann", {})
    assert 0.0 <= after.at_s - before.at_s < 60.0
    assert abs(after.ahead_s - step_s) < 2.5
    again = last_state(folder, "j")
    assert (again.at_s, again.ahead_s) == (after.at_s, after.ahead_s)
