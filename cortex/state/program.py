"""The author's face: a program is a few pure functions over K.

    class Label(cortex.Program):
        texts: list[str]

        def begin(self, k):
            for text in self.texts:
                yield cortex.Goal("label", text)

        def select(self, k):
            for goal in k.open("label"):
                yield cortex.Ask(goal, cortex.Prompt("label", (cortex.Part(cortex.Role.GOAL, goal.value),)))

        def absorb(self, k, goal, reply):
            yield cortex.Resolve(goal, cortex.as_choice(reply, ("bug", "praise")))

Its fields are its parameters: typed, checked, and kept in the journal, so that a job can be resumed without them being
given again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, overload

import msgspec

from cortex.state.changes import Ask, Change, Emit, Fail, Resolve, Vote
from cortex.state.events import Row, Turn
from cortex.state.state import Goal, State, Status
from cortex.values.reply import Reply
from policies.failures.failure import Failure

F = TypeVar("F", bound=Callable[..., Any])


class FastReplay(Protocol):
    """A program's own replay of turns whose outcome is known without ``step``; K comes out the same, byte for byte."""

    def took(self, turn: Turn) -> bool:
        """Whether this turn was taken; else K is whole again, and ``step`` is to take it."""

    def stepped(self, k: State, program: Program, turn: Turn) -> None:
        """``step`` took this turn: look whether the next ones can be taken here."""

    def end(self) -> None:
        """Make K whole: the replay is over."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all programs. Override what differs; ``select`` and ``absorb`` at least.

    The methods are pure: they read K and yield changes. ``absorb`` and ``absorbed`` may raise ``Malformed`` (discard
    this, ask for another sample); whatever else they raise fails the goal as FAULTY and the job goes on. What
    ``begin``, ``read``, ``select`` and ``satisfied`` raise concerns no goal alone, and stops the job. A prompt that is
    too large need not be fitted by the program: it is fitted by its parts' rules, or its goal comes back too large.
    """

    name: ClassVar[str] = ""
    tools: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    """Functions that workers run, by name; see ``tool``."""
    keeps: ClassVar[bool] = True
    """Whether ended top goals stay in K. Without it memory is flat, however many there are."""
    rows_are_goals: ClassVar[bool] = True
    """Whether the answer of every top goal is a result of the job; without it results are what the program emits."""
    reads_refusals: ClassVar[bool] = False
    """Whether a reply in which the model declined is absorbed like any other; else its goal's call has failed."""
    traced: ClassVar[bool] = False
    """Whether order is a part of what it does: then goals that end are numbered, and those that it makes are written
    down, so that a replay in which it makes others is noticed."""
    files: ClassVar[str] = ""
    """The parameter that a command line's INPUTS are, whole files and folders; without one they are rows."""
    asks_again: ClassVar[bool] = False
    """Whether rows that failed can be asked again, each by itself, when the job is over: no other row has seen that
    they failed, and nothing is left of them in K."""
    asks_at_once: ClassVar[bool] = False
    """A goal that select makes and asks for in one round changes nothing else that it would say."""
    asks_once: ClassVar[bool] = False
    """Every question of a run differs from every other, so looking for equal ones is not worth it."""

    calls_models: ClassVar[bool] = True
    """Whether it asks a model itself; select of one that does not needs no permit."""

    def rows_are_requests(self) -> bool:
        """Whether a row of the source is a whole request, which names its model and ``max_tokens`` itself."""
        return False

    def fast_replay(self) -> FastReplay | None:
        """A replay of this program's turns that is quicker than ``step``; None, the default, where there is none."""
        return None

    def begin(self, k: State) -> Iterable[Change]:
        """The first goals and items."""
        return ()

    def read(self, k: State, row: Row) -> Iterable[Change]:
        """What one row of the source becomes; by default a goal of kind ``row``, or nothing where it was refused."""
        if not row.refusal:
            yield Goal("row", row.body)

    def select(self, k: State) -> Iterable[Ask | Vote | Change]:
        """The next calls, best first. The loop takes as many as there are permits, and asks again later."""
        raise NotImplementedError(f"{type(self).__name__} has no select")

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """What a reply changes. It must resolve, fail, reopen or set waiting the goal that was asked."""
        raise NotImplementedError(f"{type(self).__name__} has no absorb")

    def ballot(self, k: State, goal: Goal, reply: Reply) -> Any:
        """What a reply votes for, where the goal is voted on: equal values (plain data) agree. By default its text.

        ``Malformed`` is a red flag: the reply is discarded, and another sample asked for.
        """
        return reply.text.strip()

    def absorbed(self, k: State, goal: Goal, value: Any) -> Iterable[Change]:
        """What the value of a tool run or of a child job changes; by default it is the goal's answer."""
        yield Resolve(goal, value)

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        """What the final failure of a goal's call changes; by default the goal fails."""
        yield Fail(goal, failure.message)

    def satisfied(self, k: State) -> bool:
        """Whether the top goal is met; by default when no goal is left and the source is read to its end."""
        return k.live == 0 and k.source_ended

    def unmet(self, k: State) -> str:
        """Why the job has failed, though nothing is left to do: one line; by default it has not."""
        return ""

    def differs(self, kind: str, value: Any, goal: Goal | None) -> str:
        """One line for its author: replayed, it made this goal, or none, where its journal has such a one; empty where
        the difference means nothing."""
        now = "none" if goal is None else f"{goal.kind} {goal.value!r:.80}"
        return f"it made a goal {kind} {value!r:.80} before, and now {now}"

    def remade(self, k: State) -> str:
        """K was replayed, or read from a snapshot: make again what is kept beside it. One line where that differs."""
        return ""

    def answer(self, k: State) -> Any:
        """The job's answer, from K when it is satisfied; by default the answers of the top goals."""
        tops = [goal for goal in k.goals.values() if goal.parent == 0]
        answers = [goal.answer for goal in tops if goal.status == Status.RESOLVED]
        return answers[0] if len(tops) == 1 and answers else answers


@overload
def tool(function: F, /) -> F:
    """``@tool``: it may not be repeated."""


@overload
def tool(*, repeatable: bool = False) -> Callable[[F], F]:
    """``@tool(repeatable=True)``: it may."""


def tool(function: Any = None, /, *, repeatable: bool = False) -> Any:
    """Mark a function as a tool: ``@tool``, or ``@tool(repeatable=True)``.

    One that may be repeated is run again when its worker dies; else its goal fails.
    """

    def mark(function: Any) -> Any:
        function.repeatable = repeatable
        return function

    return mark if function is None else mark(function)


def offered(*, repeatable: bool = False) -> Callable[[F], F]:
    """Mark a function without a body as a tool that the edge offers under its name: ``actors.worker.builtin_tools``
    finds it.

    So a program that ships with Cortex stays pure and has typed tools all the same.
    """

    def mark(function: Any) -> Any:
        function.repeatable = repeatable
        function.offered = True
        return function

    return mark


def params_of(program: Program) -> bytes:
    """A program's fields as deterministic JSON: the same of the program that is built of it again, so that a job which
    was given 1 where the field is a float is not taken for another when it is resumed."""
    given = msgspec.json.encode(program, order="sorted")
    try:
        return msgspec.json.encode(msgspec.json.decode(given, type=type(program), strict=False), order="sorted")
    except msgspec.ValidationError:
        return given  # whoever builds it says which field does not fit


def build(type_: type[Program], params_json: bytes) -> Program:
    """A program from its class and its fields. Raises ``ValueError`` naming the field that does not fit."""
    try:
        return msgspec.json.decode(params_json, type=type_, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{type_.__name__}: {error}") from None


__all__ = ["Emit", "Program", "build", "offered", "params_of", "tool"]
