"""Tools, observations and child jobs on the real road: channel, worker, journal."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import cortex
from actors.journal.journal import StateFolder
from cortex.values.limits import Limits
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.in_process_job import PRICE, FunctionModel, MeetingModel, Run, reply
from tests.edge.support.virtual_clock import VirtualRuntime, in_virtual_time
from tests.support.patience import PATIENCE_S

BEGUN: Counter[int] = Counter()
WORLD: dict[str, Any] = {"page": "first", "reads": 0, "deeds": 0}


@cortex.tool(repeatable=True)
def read_page(name: str) -> str:
    """The page as it is now."""
    WORLD["reads"] += 1
    return str(WORLD[name])


@cortex.tool()
def deed(what: str, idempotency_key: str = "") -> dict[str, str]:
    """Something that must not be done twice."""
    WORLD["deeds"] += 1
    return {"did": what, "key": idempotency_key}


class Reader(cortex.Program, frozen=True):
    """Asks a question about a page, ``times`` times; the page may be believed for ``trust_s`` seconds."""

    tools: ClassVar = {"read_page": read_page}
    times: int = 1
    trust_s: float = 60.0

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        yield cortex.Goal("ask", 0)

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("ask"):
            page = next(iter(k.items_of("page")), None)
            if page is None:
                yield cortex.Observe(goal, "page", "read_page", {"name": "page"}, trust_s=self.trust_s)
            else:
                part = cortex.Part(cortex.Role.DOCUMENT, f"{page.value} {goal.value}")
                yield cortex.Ask(goal, cortex.Prompt("ask", (part,)), uses=(page,))

    def absorb(self, k: cortex.State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[cortex.Change]:
        if goal.value + 1 < self.times:
            yield cortex.Goal("ask", goal.value + 1)
        yield cortex.Resolve(goal, reply.text)


class Doer(cortex.Program, frozen=True):
    """Does one deed."""

    tools: ClassVar = {"deed": deed}

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        yield cortex.Goal("do")

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("do"):
            yield cortex.RunTool(goal, "deed", {"what": "it"})

    def absorb(self, k: cortex.State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[cortex.Change]:
        return ()


GATE = threading.Event()


@cortex.tool
def gated(number: int) -> int:
    """Begins, and waits for the gate."""
    BEGUN[number] += 1
    GATE.wait(2 * PATIENCE_S)  # or its place would be another's before the job is killed
    return number


class Deeds(cortex.Program, frozen=True):
    """Many deeds at once."""

    tools: ClassVar = {"gated": gated}
    count: int = 20

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        for number in range(self.count):
            yield cortex.Goal("do", number)

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("do"):
            yield cortex.RunTool(goal, "gated", {"number": goal.value})


class Sums(cortex.Program, frozen=True):
    """Halves a list until one call can answer: recursion as child jobs."""

    numbers: tuple[int, ...]

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        yield cortex.Goal("sum", list(self.numbers))

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("sum"):
            if len(goal.value) <= 2:
                yield cortex.Ask(goal, cortex.Prompt("sum", (cortex.Part(cortex.Role.GOAL, repr(goal.value)),)))
            elif not goal.children:
                half = len(goal.value) // 2
                yield cortex.Goal("half", goal.value[:half], parent=goal.id)
                yield cortex.Goal("half", goal.value[half:], parent=goal.id)
                yield cortex.Wait(goal)
            else:
                yield cortex.Resolve(goal, sum(child.answer for child in k.children(goal)))
        for goal in k.open("half"):
            yield cortex.Spawn(goal, Sums(numbers=tuple(goal.value)))

    def absorb(self, k: cortex.State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[cortex.Change]:
        yield cortex.Resolve(goal, int(reply.text))


class Steps(cortex.Program, frozen=True):
    """One call after another."""

    named: str
    times: int = 6

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        yield cortex.Goal("step", 1)

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("step"):
            part = cortex.Part(cortex.Role.GOAL, f"{self.named} {goal.value}")
            yield cortex.Ask(goal, cortex.Prompt("step", (part,)))

    def absorb(self, k: cortex.State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[cortex.Change]:
        if goal.value < self.times:
            yield cortex.Goal("step", goal.value + 1)
        yield cortex.Resolve(goal, reply.text)


class Walks(cortex.Program, frozen=True):
    """Several of these, as child jobs."""

    walks: int = 2

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        for walk in range(self.walks):
            yield cortex.Goal("walk", walk)

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("walk"):
            yield cortex.Spawn(goal, Steps(named=f"walk {goal.value}"))


def adds(body: bytes) -> Any:
    asked = msgspec.json.decode(body)["messages"][0]["content"]
    return reply(str(sum(msgspec.json.decode(asked))))


def fresh_world() -> None:
    WORLD.update(page="first", reads=0, deeds=0)


async def test_an_observation_is_read_once_while_it_may_be_believed(tmp_path: Path) -> None:
    fresh_world()
    model = FunctionModel()
    run = await Run(tmp_path, model, program=Reader(times=5)).to_end()
    assert run.facts["outcome"] == "complete"
    assert WORLD["reads"] == 1
    assert len(model.asked) == 5


async def test_one_whose_source_changed_between_read_and_use_is_read_again(tmp_path: Path) -> None:
    """It is believed for no longer than the turn in which it was taken; the prompt that is sent has the new text."""
    fresh_world()

    def and_change(body: bytes) -> Any:
        WORLD["page"] = f"changed {WORLD['reads']}"
        return reply("ok")

    model = FunctionModel(and_change, pause_s=0.01)
    await Run(tmp_path, model, program=Reader(times=3, trust_s=0.0)).to_end()
    parts = [msgspec.json.decode(body)["messages"][0]["content"] for body in model.asked]
    assert parts == ["first 0", "changed 1 1", "changed 2 2"]
    assert WORLD["reads"] == 3


async def test_a_tool_gets_the_calls_id_and_its_value_is_the_goals_answer(tmp_path: Path) -> None:
    fresh_world()
    run = await Run(tmp_path, FunctionModel(), program=Doer()).to_end()
    assert run.answer == {"did": "it", "key": "j/1/tool-1"}
    assert WORLD["deeds"] == 1


async def test_a_deed_whose_worker_died_is_not_done_again(tmp_path: Path) -> None:
    """Nobody knows what it did: its goal fails and says so."""
    fresh_world()
    model = FunctionModel()
    run = Run(tmp_path, model, program=Doer())

    async def never(*_: Any) -> None:
        WORLD["deeds"] += 1
        await asyncio.Event().wait()

    worker = await run.runtime.start_actor("worker", "worker:0")
    run.runtime.find(worker.name).run = never
    await run.crash_after(lambda: WORLD["deeds"] == 1)
    again = await Run(tmp_path, model, program=Doer()).to_end()
    assert WORLD["deeds"] == 1
    assert again.facts["rows_failed"] == 1
    from actors.api.client import last_state

    (goal,) = last_state(StateFolder(tmp_path), "j").goals_of("do")
    assert goal.failure is not None
    assert "effect unknown" in goal.failure.message


async def test_of_the_deeds_of_a_job_that_died_only_those_that_had_begun_are_of_unknown_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.worker.run_places.RUNS_MAX", 4)
    BEGUN.clear()
    GATE.clear()
    await Run(tmp_path, FunctionModel(), program=Deeds()).crash_after(lambda: BEGUN.total() == 4)
    GATE.set()
    again = await Run(tmp_path, FunctionModel(), program=Deeds()).to_end()
    assert (again.facts["rows_failed"], again.facts["rows_succeeded"]) == (4, 16)
    assert Counter(range(20)) == BEGUN, "each began once"
    from actors.api.client import last_state

    failed = [goal for goal in last_state(StateFolder(tmp_path), "j").goals_of("do") if goal.failure is not None]
    assert all(goal.failure.message.startswith("effect unknown") for goal in failed if goal.failure is not None)


async def test_child_jobs_answer_their_goals_and_their_bill_is_the_parents(tmp_path: Path) -> None:
    model = FunctionModel(adds)
    program = Sums(numbers=tuple(range(10)))
    run = await Run(tmp_path, model, program=program, limits=Limits(max_cost_nusd=10**10), price=PRICE).to_end()
    assert run.answer == 45
    assert len(model.asked) >= 4
    one = 10 * 3 + 2 * 15
    assert run.facts["cost_usd"] * 1_000_000 == one * len(model.asked)
    assert run.facts["input_tokens"] == 10 * len(model.asked)


async def test_a_parent_killed_among_its_children_ends_the_same_and_pays_no_answer_twice(tmp_path: Path) -> None:
    model = FunctionModel(adds, pause_s=0.002)
    program = Sums(numbers=tuple(range(17)))
    for enough in (1, 3, 5):
        run = Run(tmp_path, model, program=program)
        await run.crash_after(lambda enough=enough: len(model.complete) >= enough)  # type: ignore[misc]
    run = await Run(tmp_path, model, program=program).to_end()
    assert run.answer == sum(range(17))
    again = sum(count - 1 for count in Counter(model.complete).values())
    assert again <= 3 * 8


@in_virtual_time
async def test_a_job_that_is_drained_rests_with_its_children_and_is_resumed_with_them(tmp_path: Path) -> None:
    """The calls in flight are finished, nothing new is asked in a child either, and no goal fails for it."""
    model = FunctionModel(lambda body: stop() and reply("ok"), pause_s=0.01)
    run = Run(tmp_path, model, program=Walks(), runtime=VirtualRuntime())

    def stop() -> bool:
        if len(model.asked) == 4:
            asyncio.get_running_loop().create_task(run.driver.stop("drain", "test"))
        return True

    run = await run.to_end()
    assert (run.facts["outcome"], run.facts["rows_failed"]) == ("partial", 0)
    assert len(model.complete) == len(model.asked) < 8
    again = await Run(tmp_path, model, program=Walks(), runtime=VirtualRuntime()).to_end()
    assert (again.facts["outcome"], again.facts["rows_succeeded"]) == ("complete", 2)
    assert sorted(Counter(model.complete).values()) == [1] * 12


async def test_an_account_that_is_blocked_in_a_child_fails_no_goal(tmp_path: Path) -> None:
    blocked = Failure(FailureKind.BLOCKED, "Your credit balance is too low", 400)
    model = FunctionModel(lambda body: blocked)
    program = Sums(numbers=tuple(range(8)))
    run = await Run(tmp_path, model, program=program).to_end()
    assert (run.facts["outcome"], run.facts["rows_failed"]) == ("partial", 0)
    assert run.facts["why"].startswith("blocked: ")
    again = await Run(tmp_path, FunctionModel(adds), program=program).to_end()
    assert (again.facts["outcome"], again.answer) == ("complete", sum(range(8)))


async def test_child_jobs_together_keep_to_the_calls_at_once_that_their_user_allows(tmp_path: Path) -> None:
    model = MeetingModel(2, pause_s=0.005)
    run = await Run(tmp_path, model, program=Walks(walks=6), limits=Limits(concurrency=2)).to_end()
    assert run.facts["outcome"] == "complete"
    assert (len(model.asked), model.most_at_once) == (36, 2)
