"""Tool runs and child jobs whose workers, channels or answers raise what nobody expects: their goals never wait on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import cortex
from actors.channel.tool_runs import CHILD_LOOK_S, FAULTS_MAX, ToolRuns
from actors.journal.journal import StoreError
from actors.ports.runtime import PeerGone, PeerUnavailable
from actors.ports.telemetry import JobObservers
from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.ledger import ChildJobBill
from cortex.values.limits import JobTerms, Limits, Route
from policies.failures.failure import FailureKind
from tests.edge.support.in_process_job import PRICE, FunctionModel, Run, reply
from tests.edge.support.virtual_clock import VirtualRuntime, virtually

BILL = {
    "known_nusd": 7, "assumed_nusd": 1, "input_tokens": 10, "cache_read_tokens": 2, "cache_creation_tokens": 1,
    "output_tokens": 5, "assumed_tokens": 3,
}  # fmt: skip
RUN = commands.StartToolRun(1, 1, "t", {}, "j/1/t", 5.0)


class FakeChild:
    """Channel of a child job. ``errors``: what its methods raise; ``away``: it is being restarted."""

    name = "channel:j~1"

    def __init__(self, outcome: str = "running", **errors: Exception) -> None:
        self.outcome, self.errors = outcome, errors
        self.away = False
        self.stopping = ""
        self.asked: list[tuple[str, ...]] = []

    def tell(self, method: str, *args: Any) -> None:
        if method == "stop" and not self.away:
            self.stopping = args[0]

    async def ask(self, method: str, *args: Any) -> Any:
        if self.away:
            raise PeerUnavailable(self.name)
        if method in self.errors:
            raise self.errors[method]
        if method == "stop":
            self.asked.append(args)
            self.stopping = args[0]
        if method == "results":
            await asyncio.sleep(CHILD_LOOK_S)
        if method == "status":
            facts = {"outcome": self.outcome, "broken": "", "why": "", "unarmed": [], "lines": [], "epoch": 1}
            return msgspec.json.encode(facts | BILL | {"stopping": self.stopping})
        return True if method == "seal" else b'"answer"'


class FakeRuntime:
    """Runtime of a channel with one child; ``errors``: what the starts of the child raise in turn."""

    def __init__(self, child: FakeChild, *errors: Exception) -> None:
        self.child, self.errors = child, list(errors)
        self.starts = 0
        self.ended: list[str] = []
        self.cortex: dict[str, Any] = {"admit": (True, 0.0, 4)}
        self.worker: dict[str, Any] = {"hold": "ticket"}
        self.told: list[tuple[Any, ...]] = []

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def peer(self, name: str) -> Any:
        if name.startswith("channel:"):
            return self.child
        return Answering(self.cortex if name == "cortex" else self.worker, self.told)

    async def start_actor(self, role: str, name: str, *args: Any) -> Any:
        self.starts += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.child

    async def end_actor(self, name: str) -> None:
        self.ended.append(name)

    def share_program(self, where: str, params_json: bytes) -> None: ...

    def fingerprint(self, where: str, params_json: bytes) -> str:
        return "f"


class Answering:
    def __init__(self, answers: dict[str, Any], told: list[tuple[Any, ...]]) -> None:
        self.answers, self.told = answers, told

    async def ask(self, method: str, *args: Any) -> Any:
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tell(self, *message: Any) -> None:
        self.told.append(message)


def made(runtime: FakeRuntime, put: list[events.Event]) -> tuple[ToolRuns, State]:
    async def put_durably(batch: list[events.Event]) -> None:
        put.extend(batch)

    route = Route(endpoint="e", credential="c", model="m")
    terms = JobTerms(job="j", program="p", params_json=b"{}", fingerprint="f", route=route, limits=Limits())
    runs = ToolRuns("j", "", runtime, put.extend, print, JobObservers([]), put_durably, lambda: 50.0)  # type: ignore[arg-type]
    runs.staffed(("worker:0",))
    return runs, State(terms=terms)


def child(shards: int = 0) -> commands.LaunchChildJob:
    return commands.LaunchChildJob(1, 1, "p", b"{}", None, None, shards)


def ended(runtime: FakeRuntime, launch: commands.LaunchChildJob, before: ChildJobBill | None = None) -> Any:
    """The event of a child's end."""

    async def play() -> Any:
        put: list[events.Event] = []
        runs, k = made(runtime, put)
        if before is not None:
            k.billed[1] = before
        runs.begin(launch, k)
        await asyncio.sleep(60)
        await runs.close()
        (event,) = put
        return event

    return virtually(play())


class Strange(Exception):
    """Error that no interface names."""

    def __str__(self) -> str:
        raise TypeError("an error without a text")


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), ValueError("bad"), StoreError("no"), Strange()])
@pytest.mark.parametrize("outcome", ["complete", "partial"])
def test_a_child_whose_answer_raises_ends_with_its_real_cost(outcome: str, error: Exception) -> None:
    runtime = FakeRuntime(FakeChild(outcome, answer=error))
    event = ended(runtime, child())
    assert (event.known_nusd, event.assumed_nusd, event.input_tokens, event.output_tokens) == (7, 1, 13, 5)
    assert (event.answer, event.partial, event.assumed_tokens) == (None, outcome == "partial", 3)
    assert event.failure.kind == FailureKind.FAULTY
    assert (type(error).__name__ in event.failure.message) == (outcome == "complete"), "a partial one has its own reason"
    assert runtime.ended == ["channel:j~1"]


@pytest.mark.parametrize("method", ["start", "results", "status", "seal"])
@pytest.mark.parametrize("shards", [0, 2])
def test_a_child_that_raises_what_nobody_expects_is_tried_again_and_then_ended(method: str, shards: int) -> None:
    """A shard rests in place of that: its rows are resumed, and its channel has results that the driver wants."""
    runtime = FakeRuntime(FakeChild("complete" if method == "seal" else "running", **{method: Strange()}))
    event = ended(runtime, child(shards))
    assert (event.failure.kind, event.partial) == (FailureKind.FAULTY, bool(shards))
    assert (runtime.starts, runtime.ended) == (FAULTS_MAX, [] if shards else ["channel:j~1"])
    assert runtime.child.stopping == ("drain" if shards else "")
    assert event.known_nusd == (7 if method == "seal" and not shards else 0), "as last told; a shard's report is its bill"


def test_a_passing_trouble_of_the_cluster_fails_no_child() -> None:
    runtime = FakeRuntime(FakeChild("complete"), *[RuntimeError("the head is away")] * (FAULTS_MAX - 1))
    event = ended(runtime, child())
    assert (event.answer, event.failure, event.known_nusd) == ("answer", None, 7)


@pytest.mark.parametrize("error", [ValueError("no such program"), StoreError("the disk is full"), Strange()])
def test_a_child_that_cannot_be_joined_again_keeps_the_bill_of_its_earlier_end(error: Exception) -> None:
    """Else the parent would take back what it has already counted."""
    event = ended(FakeRuntime(FakeChild(), *[error] * FAULTS_MAX), child(), ChildJobBill(20, 3, 40, 9, 2))
    assert (event.known_nusd, event.assumed_nusd, event.input_tokens) == (20, 3, 40)
    assert (event.output_tokens, event.assumed_tokens) == (9, 2)


@pytest.mark.parametrize("shards", [0, 2])
@pytest.mark.parametrize("how", ["drain", "cancel"])
def test_a_stop_that_a_restarting_child_has_missed_is_said_again_until_it_follows(shards: int, how: str) -> None:
    async def play() -> None:
        runtime, put = FakeRuntime(FakeChild()), list[events.Event]()
        runs, k = made(runtime, put)
        runs.begin(child(shards), k)
        await asyncio.sleep(2 * CHILD_LOOK_S)
        runtime.child.away = True
        if how == "cancel":
            runs.abandon(1, 1)
        else:
            runs.begin(commands.SuspendChildJob(1, 1), k)
        await asyncio.sleep(2 * CHILD_LOOK_S)
        runtime.child.away = False
        await asyncio.sleep(10 * CHILD_LOOK_S)
        assert runtime.child.asked == [(how, "job j")], "once: it follows from then on"
        runtime.child.stopping = "cancel"
        await asyncio.sleep(10 * CHILD_LOOK_S)
        assert len(runtime.child.asked) == 1, "nothing comes after a cancellation"
        await runs.close()

    virtually(play())


def test_a_child_that_breaks_before_it_hears_of_a_stop_is_read_as_broken() -> None:
    """The error of the stop is no end: the child's next status says why it broke, and what it cost."""

    async def play() -> None:
        runtime, put = FakeRuntime(FakeChild(stop=StoreError("its disk is full"))), list[events.Event]()
        runs, k = made(runtime, put)
        runtime.child.away = True
        runs.begin(child(), k)
        runs.begin(commands.SuspendChildJob(1, 1), k)
        runtime.child.away = False
        runtime.child.stopping = "deadline"
        await asyncio.sleep(3 * CHILD_LOOK_S)
        assert put == []
        runtime.child.outcome = "complete"
        await asyncio.sleep(3 * CHILD_LOOK_S)
        assert [event.known_nusd for event in put if isinstance(event, events.ChildJobEnded)] == [7]
        await runs.close()

    virtually(play())


@pytest.mark.parametrize(
    ("where", "method", "answer", "begun"),
    [
        ("cortex", "admit", KeyError("j"), False),
        ("worker", "hold", Strange(), False),
        ("worker", "run", MemoryError(), True),
        ("worker", "run", b"\xc1", True),
    ],
)
def test_a_tool_run_that_meets_an_unexpected_error_fails_its_goal(
    where: str, method: str, answer: Any, begun: bool
) -> None:
    async def play() -> None:
        runtime, put = FakeRuntime(FakeChild()), list[events.Event]()
        getattr(runtime, where)[method] = answer
        runs, k = made(runtime, put)
        runs.begin(RUN, k)
        await asyncio.sleep(1)
        (event,) = put
        assert isinstance(event, events.Observed)
        assert event.failure is not None
        assert (event.failure.kind, event.failure.sent) == (FailureKind.FAULTY, begun)
        assert runs.waiting() == 0
        assert runtime.told == ([("returned", "p/t", 4)] if method == "hold" else []), "its admission was not used"

    virtually(play())


class Kid(cortex.Program, frozen=True):
    """One call, and an answer that cannot be computed."""

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        yield cortex.Goal("text")

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("text"):
            yield cortex.Ask(goal, cortex.Prompt("p", (cortex.Part(cortex.Role.GOAL, "Say it."),)))

    def absorb(self, k: cortex.State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[cortex.Change]:
        yield cortex.Resolve(goal, reply.text)

    def answer(self, k: cortex.State) -> Any:
        return 1 / 0


class Parent(cortex.Program, frozen=True):
    """One child job."""

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        yield cortex.Goal("top")

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("top"):
            yield cortex.Spawn(goal, Kid())


@cortex.tool(repeatable=True)
def leaks() -> None:
    """A tool whose own event loop leaves a cancellation behind, as a client library's cancel scope may."""
    raise asyncio.CancelledError("of its own loop")


class Leaky(cortex.Program, frozen=True):
    """One run of a tool."""

    tools: ClassVar = {"leaks": leaks}

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        yield cortex.Goal("top")

    def select(self, k: cortex.State) -> Iterable[Any]:
        for goal in k.open("top"):
            yield cortex.RunTool(goal, "leaks", {})


@pytest.mark.parametrize(
    ("program", "words", "calls"),
    [(Parent(), "ZeroDivisionError: division by zero", 1), (Leaky(), "raised CancelledError: of its own loop", 0)],
)
def test_a_job_ends_though_a_child_cannot_answer_or_a_tool_leaks_a_cancellation(
    tmp_path: Path, program: cortex.Program, words: str, calls: int
) -> None:
    async def play() -> Run:
        run = Run(tmp_path, FunctionModel(lambda _: reply("ok")), program=program, price=PRICE, runtime=VirtualRuntime())
        async with asyncio.timeout(600):
            return await run.to_end()

    run = virtually(play())
    assert run.facts["rows_failed"] == 1
    assert run.facts["cost_usd"] * 1_000_000 == calls * (10 * 3 + 2 * 15), "what the child has paid is the parent's"
    from actors.api.client import last_state
    from actors.journal.journal import StateFolder

    (goal,) = last_state(StateFolder(tmp_path), "j").goals_of("top")
    assert goal.failure is not None
    assert words in goal.failure.message


def test_peers_that_are_away_are_not_unexpected() -> None:
    for error in (PeerUnavailable("x"), PeerGone("x")):
        runtime = FakeRuntime(FakeChild("complete"), *[error] * (2 * FAULTS_MAX))
        assert ended(runtime, child()).failure is None
