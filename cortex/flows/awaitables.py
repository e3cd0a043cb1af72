"""Awaitables of a flow: a call, a tool run, another program, an external answer, a timer, or a group of these.

They are descriptions: nothing begins before it is awaited, and only ``cortex.flows.runner`` begins anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from cortex.flows.answer_types import TEXT, AnswerType
from cortex.state.changes import Ask, Change, Expect, Resolve, RunTool, Spawn
from cortex.state.program import Program, params_of
from cortex.state.state import Goal
from cortex.values.conversation import Conversation
from cortex.values.prompt import Prompt
from policies.decisions.join import Join
from policies.failures.failure import FailureKind

PREVIEW_CHARACTERS = 60
"""Length of a request's preview, in characters."""
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class CallFailed(Exception):
    """Final failure of something that a flow awaited: its kind, and its story. Raised, or kept in place of an
    answer.
    """

    def __init__(self, kind: FailureKind, story: str) -> None:
        super().__init__(f"{kind}: {story}")
        self.kind = kind
        self.story = story

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallFailed) and (self.kind, self.story) == (other.kind, other.story)

    __hash__ = Exception.__hash__


class FlowError(RuntimeError):
    """The function does something that a flow cannot. The message names file, line and what to do instead."""


class Joined(list[Any]):
    """Available answers of a join, in the order of its arguments.

    ``partial``: the join could not be met in full, or its deadline came first. ``failures``: failures by argument
    position. ``missing``: positions of arguments that were still running, and are abandoned.
    """

    def __init__(
        self, values: Sequence[Any] = (), partial: bool = False, failures: dict[int, CallFailed] | None = None,
        missing: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(values)
        self.partial, self.failures, self.missing = partial, failures or {}, missing


class FlowAwaitable:
    """Object that a flow's coroutine may await."""

    __slots__ = ()

    def __await__(self) -> Generator[FlowAwaitable, Any, Any]:
        return (yield self)


class FlowRequest(FlowAwaitable):
    """Request of a flow: one goal in K."""

    __slots__ = ("due_at_s", "goal", "keeps", "place", "waiter")
    kind = ""

    def __init__(self, keeps: bool = False) -> None:
        self.keeps = keeps
        """True if a failure becomes its value instead of being raised."""
        self.waiter: Any = None
        self.goal = 0
        self.place = ""
        self.due_at_s = 0.0

    def preview(self) -> str:
        """Return a short description for people."""
        return ""

    def identity(self) -> Any:
        """Return all data that distinguishes this request from others."""
        raise NotImplementedError

    def digest(self) -> str:
        """Return a hash of its identity, 16 hex digits."""
        return blake2b(_encoder.encode((self.kind, self.identity())), digest_size=8).hexdigest()

    def change(self, goal: Goal) -> Ask | Change:
        """Return the change that carries out the request for its goal."""
        raise NotImplementedError

    def begin(self, now_s: float) -> None:
        """Note that it was awaited at this time of the run."""

    def value(self, kept: Any) -> Any:
        """Return the coroutine's value for the plain data in K."""
        return kept

    def __str__(self) -> str:
        """Raise TypeError: without an ``await`` a prompt would hold a memory address, which differs in each replay."""
        raise TypeError("what ctx gives is put into a text before it is awaited: write await before it")


class CallRequest(FlowRequest):
    """Request for one bounded call."""

    __slots__ = (
        "again", "asked", "on_cut", "output_tokens_max", "params", "returns", "role", "sample", "stride", "structured",
    )  # fmt: skip
    kind = "ask"

    def __init__(
        self, prompt: Prompt | Conversation, returns: AnswerType, role: str, params: dict[str, Any] | None,
        output_tokens_max: int | None, sample: int, stride: int, again: int | None, keeps: bool,
        on_cut: str = "fail", structured: bool = False,
    ) -> None:  # fmt: skip
        self.keeps, self.waiter, self.goal, self.place, self.due_at_s = keeps, None, 0, "", 0.0
        self.asked, self.returns, self.role, self.params = prompt, returns, role, params
        self.on_cut = on_cut
        self.structured = structured and isinstance(prompt, Prompt) and returns.structured is not None
        self.output_tokens_max, self.sample, self.stride, self.again = output_tokens_max, sample, stride, again

    def preview(self) -> str:
        return self.asked.preview()[:PREVIEW_CHARACTERS]

    def identity(self) -> Any:
        return self.asked, self.returns.instruction, self.role, self.params, self.output_tokens_max, self.sample

    def change(self, goal: Goal) -> Ask:
        prompt = self.asked
        if goal.refused:
            prompt = prompt.noted(f"Your last answer was refused: {goal.refused}", "refusal")
        params = self.params
        if self.structured:
            form = {"format": {"type": "json_schema", "schema": self.returns.structured}}
            params = {**(params or {}), "output_config": {**((params or {}).get("output_config") or {}), **form}}
        elif self.returns.instruction:
            prompt = prompt.noted(self.returns.instruction, "form")
        sample = str(self.sample + self.stride * goal.resamples)
        return Ask(goal, prompt, None, self.output_tokens_max, params, sample, role=self.role)

    def value(self, kept: Any) -> Any:
        return self.returns.value(kept)


class ToolRequest(FlowRequest):
    """Request for one run of a tool."""

    __slots__ = ("arguments", "name", "returns")
    kind = "tool"

    def __init__(self, name: str, arguments: dict[str, Any], returns: AnswerType, keeps: bool) -> None:
        super().__init__(keeps)
        self.name, self.arguments, self.returns = name, arguments, returns

    def preview(self) -> str:
        return self.name

    def identity(self) -> Any:
        return self.name, self.arguments

    def change(self, goal: Goal) -> Change:
        return RunTool(goal, self.name, self.arguments)

    def value(self, kept: Any) -> Any:
        return self.returns.value(kept)


class ChildRequest(FlowRequest):
    """Request for the answer of another program."""

    __slots__ = ("max_cost_nusd", "program")
    kind = "child"

    def __init__(self, program: Program, max_cost_nusd: int | None, keeps: bool) -> None:
        super().__init__(keeps)
        self.program, self.max_cost_nusd = program, max_cost_nusd

    def preview(self) -> str:
        return type(self.program).__name__

    def identity(self) -> Any:
        return type(self.program).__qualname__, params_of(self.program), self.max_cost_nusd

    def change(self, goal: Goal) -> Change:
        return Spawn(goal, self.program, self.max_cost_nusd)


class ExternalRequest(FlowRequest):
    """Request for an answer that a user gives under a name."""

    __slots__ = ("about", "name", "returns")
    kind = "wait"

    def __init__(self, name: str, returns: AnswerType, about: str = "") -> None:
        super().__init__()
        self.name, self.returns, self.about = name, returns, about

    def preview(self) -> str:
        return self.about or self.name

    def identity(self) -> Any:
        return self.name

    def change(self, goal: Goal) -> Change:
        return Expect(goal, self.name)

    def value(self, kept: Any) -> Any:
        return self.returns.value(kept)


class TimerRequest(FlowRequest):
    """Request for a wake-up after some seconds."""

    __slots__ = ("seconds",)
    kind = "timer"

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def preview(self) -> str:
        return f"{self.seconds:g} s"

    def identity(self) -> Any:
        return self.seconds

    def change(self, goal: Goal) -> Change:
        return Resolve(goal)

    def begin(self, now_s: float) -> None:
        self.due_at_s = now_s + self.seconds


class CheckpointRequest(FlowAwaitable):
    """Checkpoint: plain data, and the type to convert it back to."""

    __slots__ = ("kept", "returns")

    def __init__(self, kept: Any, returns: AnswerType) -> None:
        self.kept, self.returns = kept, returns


class AwaitGroup(FlowAwaitable):
    """Awaitables in a group, under a join; at most ``at_once`` of them run together."""

    __slots__ = (
        "at_once", "count", "failures", "filling", "join", "make", "on_failure", "over", "path", "running", "started",
        "task", "timer", "values", "waiter",
    )  # fmt: skip

    def __init__(
        self, make: Callable[[int], Any], count: int, *, on_failure: str, at_once: int, join: Join | None = None
    ) -> None:  # fmt: skip
        self.make, self.count, self.on_failure, self.join, self.at_once = make, count, on_failure, join, at_once
        self.waiter: Any = None
        self.task: Any = None
        self.path = ""
        self.started = 0
        self.filling = self.over = False
        self.running: dict[int, Any] = {}
        self.values: dict[int, Any] = {}
        self.failures: dict[int, CallFailed] = {}
        self.timer: TimerRequest | None = None

    def result(self, partial: bool) -> list[Any]:
        """Return the group's value: entries in the order of its arguments, whatever the order of their arrival."""
        places = range(self.count)
        if self.join is not None:
            values = [self.values[place] for place in places if place in self.values]
            missing = tuple(place for place in places if place not in self.values and place not in self.failures)
            return Joined(values, partial, dict(sorted(self.failures.items())), missing)
        if self.on_failure == "keep":
            return [self.values[place] if place in self.values else self.failures[place] for place in places]
        return [self.values[place] for place in places if place in self.values]


__all__ = [
    "TEXT",
    "AwaitGroup",
    "CallFailed",
    "CallRequest",
    "CheckpointRequest",
    "ChildRequest",
    "ExternalRequest",
    "FlowAwaitable",
    "FlowError",
    "FlowRequest",
    "Joined",
    "TimerRequest",
    "ToolRequest",
]  # fmt: skip
