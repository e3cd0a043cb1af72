"""ralph as a whole job in one process: crashes in the middle, a quota that resets, a prompt that stays within M."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from pathlib import Path
from typing import Any

import pytest

from actors.common.process_owner import this_owner
from actors.driver.driver import Driver
from actors.history.catalog import last_state
from actors.jobs.opening import Opening
from actors.journal.journal import StateFolder
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from actors.worker.builtin_tools import BuiltinTools
from actors.workspace.tree import STORE
from cortex.programs.ralph import Ralph
from cortex.state.program import params_of
from cortex.values.limits import JobTerms, Limits, Route
from policies.failures.failure import Failure
from tests.edge.support.in_process_job import ListSink, Run, armed
from tests.edge.support.virtual_clock import VirtualRuntime, virtually
from tests.support.workspace_fixture import CHECK, TASK, solved, workshop

ITEMS = 30


def program(folder: Path, **params: Any) -> Ralph:
    return Ralph(folder=str(folder), task=TASK, check=CHECK, **params)


def answers(folder: Path) -> str:
    return "".join(sorted((folder / "answers.txt").read_text().splitlines(keepends=True)))


async def test_it_works_in_rounds_until_the_check_passes_and_no_prompt_was_larger_than_m(tmp_path):
    folder = workshop(tmp_path / "work", ITEMS)
    window = 4_096 + 2_500
    model = SimulatedModel(SimulatorSettings(seed=3, context_window=window))
    (folder / "ballast.txt").write_text("nothing of interest here\n" * 2_000)
    run = await Run(tmp_path / "state", model, program=program(folder), window=window).to_end()  # type: ignore[arg-type]
    assert run.answer["passed"] and run.answer["rounds"] >= ITEMS / 8 and run.sink.values == [run.answer]
    assert answers(folder) == solved(ITEMS) and not (folder / STORE).exists()
    tally = model.provider.tally
    assert tally.prompts_too_long == 0
    assert tally.largest_prompt_tokens > 1_000 and tally.largest_request_tokens <= window
    assert set(tally.skills) == {"edits"}


async def test_mistakes_are_found_by_the_check_and_put_right_in_a_later_round(tmp_path):
    wrong = 0
    for seed in range(6):  # which prompts are mistaken depends on their text, and so on this machine's Python
        folder = workshop(tmp_path / f"work-{seed}", ITEMS)
        model = SimulatedModel(SimulatorSettings(seed=seed, error=0.3))
        run = await Run(tmp_path / f"state-{seed}", model, program=program(folder, quiet_rounds=9)).to_end()  # type: ignore[arg-type]
        assert run.answer["passed"] and answers(folder) == solved(ITEMS)
        wrong += model.provider.tally.wrong_answers
    assert wrong > 0


@pytest.mark.parametrize("die_after", [0, 1, 2, 4])
async def test_killed_in_the_middle_it_ends_with_the_same_folder_and_pays_for_nothing_twice(tmp_path, die_after):
    wanted = await Run(
        tmp_path / "straight",
        SimulatedModel(),
        program=program(workshop(tmp_path / "other", ITEMS)),  # type: ignore[arg-type]
    ).to_end()
    folder = workshop(tmp_path / "work", ITEMS)
    model = SimulatedModel()
    worked = model.provider.tally
    first = Run(tmp_path / "state", model, program=program(folder))  # type: ignore[arg-type]
    await first.crash_after(lambda: worked.worked >= die_after and (folder / STORE).exists())
    again = await Run(tmp_path / "state", model, program=program(folder)).to_end()  # type: ignore[arg-type]
    assert (
        again.answer == wanted.answer
        and (folder / "answers.txt").read_text() == (tmp_path / "other" / "answers.txt").read_text()
    )
    assert worked.worked <= wanted.answer["rounds"] + 1, "one was in flight"


async def test_a_check_that_never_passes_ends_stagnated_and_the_folder_keeps_what_was_done(tmp_path):
    folder = workshop(tmp_path / "work", ITEMS, more='print("9 problems"); sys.exit(1)')
    run = await Run(tmp_path / "state", SimulatedModel(), program=program(folder)).to_end()  # type: ignore[arg-type]
    assert (run.answer["ended"], run.answer["failing"], run.answer["passed"]) == ("stagnated", 9, False)
    assert run.facts["outcome"] == "complete" and run.facts["rows_failed"] == 1
    assert (folder / "answers.txt").exists() and not (folder / STORE).exists()


async def test_a_check_that_hangs_costs_its_time_and_ends_stagnated(tmp_path):
    folder = workshop(tmp_path / "work", 3)
    hanging = Ralph(folder=str(folder), task=TASK, check="sleep 60", check_timeout_s=0.1, quiet_rounds=1, reframes=0)
    run = await Run(tmp_path / "state", SimulatedModel(), program=hanging).to_end()  # type: ignore[arg-type]
    assert run.answer["ended"] == "stagnated" and "did not end within 0.1 s" in run.answer["check"]


AHEAD_S = 600.0
RESET_S = 31 * 86_400.0
"""The first of February 1970, UTC."""


class Evening(VirtualRuntime):
    """Some time before."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = lambda: RESET_S - AHEAD_S + asyncio.get_running_loop().time()


class Quota(SimulatedModel):
    """A simulated provider whose account reaches its spend limit after some answers, until the day that it names."""

    def __init__(self, clock: Any, good: int, fault: str) -> None:
        super().__init__(clock=clock)
        self.good, self.fault = good, fault
        self.refused_at_s: list[float] = []

    async def call(self, body: bytes, **bounds: Any) -> Any:
        spent = self.provider.tally.worked >= self.good and self._clock() < RESET_S
        self.provider.change({"faults": {self.fault: 1.0} if spent else {}})
        answer = await super().call(body, **bounds)
        if isinstance(answer, Failure):
            self.refused_at_s.append(self._clock())
        return answer


@pytest.mark.parametrize("fault", ["spend_limit", "tier_cap"])
def test_when_the_quota_is_used_up_it_pauses_until_the_provider_names_and_goes_on(tmp_path, fault):
    """No storm of retries: the first refusals, and then a probe a minute at most, which pays for nothing."""
    folder = workshop(tmp_path / "work", ITEMS)

    async def whole() -> tuple[Any, Any, Quota]:
        runtime = Evening()
        model = Quota(runtime.now_s, 2, fault)
        made = program(folder)
        terms = JobTerms(
            job="j", program="ralph", params_json=params_of(made), fingerprint="f",
            route=Route(endpoint=model.endpoint, model="m"), limits=Limits(blocked_wait_s=7_200.0),
        )  # fmt: skip
        opening = Opening(terms=terms, owner=this_owner("inline"), who="test")
        driver = Driver(runtime, str(tmp_path / "state"), opening, armed(terms, model), source=None, sink=ListSink())  # type: ignore[arg-type]
        try:
            return await driver.run(), await driver.answer(), model
        finally:
            await runtime.close()

    facts, answer, model = virtually(whole())
    assert answer["passed"] and answers(folder) == solved(ITEMS)
    assert 1 <= len(model.refused_at_s) <= 3 + AHEAD_S / 60, model.refused_at_s
    assert min(b - a for a, b in itertools.pairwise(model.refused_at_s[2:])) >= 60
    assert RESET_S <= last_state(StateFolder(tmp_path / "state"), "j").at_s < RESET_S + 90, "the next probe finds out"
    assert model.provider.tally.worked == answer["rounds"] == facts["paid_calls"]


def test_every_worker_has_the_tools_that_the_program_names_with_the_parameters_that_it_names():
    offered = {name: BuiltinTools().find(name) for name in Ralph.tools}
    assert all(offered.values())
    for name, function in Ralph.tools.items():
        lines = [each for each in inspect.signature(offered[name]).parameters if each != "idempotency_key"]
        assert lines == list(inspect.signature(function).parameters)
