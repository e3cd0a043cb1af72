"""Record of a run of ``rlm``, read from K: the pieces that led to its answer, and every call with its result.

The function is run once more over a K that has all its answers: awaits are answered from K, and nothing is asked.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from cortex.flows.awaitables import AwaitGroup, CallFailed, CallRequest, FlowRequest, ToolRequest
from cortex.flows.context import Context
from cortex.flows.runner import FlowRun, RunStart
from cortex.programs.rlm import rlm
from cortex.state.sandbox import PieceCallResult, PieceOutcome, SandboxPiece
from cortex.state.state import Goal, State, Status
from policies.failures.failure import FailureKind


class RecordedRun(msgspec.Struct):
    """Run that reached an answer."""

    params: dict[str, Any]
    answer: Any = None
    pieces: list[SandboxPiece] = []
    """Pieces that were kept, and the piece that submitted, each with the results of its calls."""
    prompts: list[list[str]] = []
    """Prompts of each piece's calls, in order."""
    writing_calls: int = 0
    """Number of calls that wrote pieces."""
    recursed: bool = False
    """True if a piece called ``rlm``."""


class _KnownAnswers:
    """Answers in K, by request."""

    def __init__(self, k: State, run: Goal) -> None:
        self._goals: dict[tuple[str, str], Goal] = {}
        for number in run.children:
            goal = k.goals[number]
            if goal.status == Status.RESOLVED or (goal.kind, goal.value[2]) not in self._goals:
                self._goals[goal.kind, goal.value[2]] = goal
        self.asked: list[tuple[FlowRequest, Any]] = []

    def value(self, awaited: Any) -> Any:
        """Return the recorded value. Raises ``CallFailed`` as in the run, and ``LookupError`` for an unrecorded
        request.
        """
        if isinstance(awaited, AwaitGroup):
            return awaited.result(False) if self._filled(awaited) else []
        goal = self._goals.get((awaited.kind, awaited.digest()))
        if goal is None:
            raise LookupError(f"its journal has no answer to {awaited.kind} {awaited.preview()!r}")
        if goal.status == Status.RESOLVED:
            value = awaited.value(goal.answer)
        else:
            failure = goal.failure
            kind, why = (failure.kind, failure.message) if failure else (FailureKind.CANCELLED, "it was let go")
            value = CallFailed(kind, f"{goal.value[0]}: {why}")
            if not awaited.keeps:
                raise value
        self.asked.append((awaited, value))
        return value

    def _filled(self, group: AwaitGroup) -> bool:
        for index in range(group.count):
            entry = group.make(index)
            group.values[index] = self.through(entry) if isinstance(entry, Coroutine) else self.value(entry)
        return True

    def through(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return a coroutine's value, with each of its awaits answered."""
        value: Any = None
        error: BaseException | None = None
        try:
            while True:
                awaited = coroutine.send(value) if error is None else coroutine.throw(error)
                try:
                    value, error = self.value(awaited), None
                except CallFailed as failed:
                    value, error = None, failed
        except StopIteration as stop:
            return stop.value


def recorded(program: Any, k: State) -> RecordedRun:
    """Return the record of a run. Raises ``LookupError`` if K lacks an answer, or if the run reached no answer."""
    runs = list(k.goals_of("run"))
    if len(runs) != 1 or runs[0].status != Status.RESOLVED:
        raise LookupError("it came to no answer")
    params = program.params()
    known = _KnownAnswers(k, runs[0])
    progress = FlowRun(RunStart(runs[0].id, k.terms.job, runs[0].value["at_s"], program.own_file(), _nothing))
    try:
        answer = known.through(rlm.function(Context(progress, params), **params))
    except CallFailed as failed:
        raise LookupError(f"it came to no answer: {failed.story}") from None
    found = RecordedRun(params, answer)
    asked: dict[str, list[str]] = {}
    for request, value in known.asked:
        if isinstance(request, ToolRequest) and isinstance(value, PieceOutcome):
            pieces = msgspec.convert(request.arguments["pieces"], list[SandboxPiece])
            asked.setdefault(_key(pieces[-1], len(pieces)), []).extend(wanted.prompt for wanted in value.calls)
            found.recursed = found.recursed or any(wanted.recurse for wanted in value.calls)
            if value.submitted:
                found.pieces = pieces
        elif isinstance(request, CallRequest) and request.role == "":
            found.writing_calls += 1
    found.prompts = [asked.get(_key(piece, at + 1), []) for at, piece in enumerate(found.pieces)]
    return found


def _key(piece: SandboxPiece, place: int) -> str:
    return f"{place} {piece.code}"


def _nothing(run: FlowRun) -> Any:
    raise AssertionError("it is driven by hand")


def calls_of(recorded: RecordedRun) -> list[tuple[str, PieceCallResult]]:
    """Return every call of the pieces with its result, in order."""
    calls: list[tuple[str, PieceCallResult]] = []
    for prompts, piece in zip(recorded.prompts, recorded.pieces, strict=True):
        calls += zip(prompts, piece.said, strict=True)
    return calls
