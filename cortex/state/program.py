"""Base class of programs: a program is a few pure functions over K.

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

The fields of a program are its parameters: typed, checked, and stored in the journal, so that a job is resumed without
giving them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, overload

import msgspec

from cortex.state.changes import Ask, Change, Emit, Fail, Resolve, Vote
from cortex.state.events import Row, Turn
from cortex.state.state import Goal, State, Status
from cortex.values.reply import Malformed, Reply
from policies.failures.failure import Failure

F = TypeVar("F", bound=Callable[..., Any])


class FastReplay(Protocol):
    """A program's own replay of turns whose outcome is known without ``step``. K must come out the same, byte for
    byte.
    """

    def take(self, turn: Turn) -> bool:
        """Return True if this turn was applied; otherwise K is complete again, and ``step`` must take the turn."""

    def stepped(self, k: State, program: Program, turn: Turn) -> None:
        """Note that ``step`` took this turn: check whether the next turns can be applied."""

    def end(self) -> None:
        """Complete K at the end of the replay."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all programs. Override what differs; ``select`` and ``absorb`` at least.

    The methods are pure: they read K and yield changes. ``absorb`` and ``absorbed`` may raise ``Malformed`` (discard
    the reply, ask for another sample); any other exception fails the goal as FAULTY, and the job continues. An
    exception in ``begin``, ``read``, ``select`` or ``satisfied`` concerns no single goal, and stops the job. A program
    need not fit a prompt that is too large: the prompt is fitted by the rules of its parts, or the goal returns with
    ``too_large`` raised.
    """

    name: ClassVar[str] = ""
    """Name of the program in job files and on the command line."""
    tools: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    """Functions that workers run, by name; see ``tool``."""
    keeps: ClassVar[bool] = True
    """True if ended top goals stay in K. If False, memory stays flat for any number of goals."""
    rows_are_goals: ClassVar[bool] = True
    """True if the answer of every top goal is a result of the job. If False, results are what the program emits."""
    reads_refusals: ClassVar[bool] = False
    """True if a reply in which the model declined is absorbed like any other. If False, the goal's call has failed."""
    traced: ClassVar[bool] = False
    """True if order matters to the program: goals that end are numbered, and goals that are made are recorded, so that
    a replay that makes other goals is detected."""
    files: ClassVar[str] = ""
    """Parameter that receives the command line's INPUTS as whole files and folders; empty: the inputs are rows."""
    asks_again: ClassVar[bool] = False
    """True if failed rows can be asked again, each by itself, after the job: no other row saw their failure, and K
    keeps nothing of them."""
    asks_at_once: ClassVar[bool] = False
    """True if a goal that select makes and asks for in one round changes nothing else that select would yield."""
    asks_once: ClassVar[bool] = False
    """True if all questions of a run differ, so that the search for equal questions is skipped."""

    calls_models: ClassVar[bool] = True
    """True if the program asks a model itself. If False, its select needs no permit."""

    def rows_are_requests(self) -> bool:
        """Return True if a row of the source is a whole request, with its own model and ``max_tokens``. Default:
        False.
        """
        return False

    def answer_types(self) -> tuple[str, ...]:
        """Return the places of the Python types that check answers, which are registered before the program takes a
        turn. Default: none.
        """
        return ()

    def fast_replay(self) -> FastReplay | None:
        """Return a replay of this program's turns that is faster than ``step``, or None (the default)."""
        return None

    def begin(self, k: State) -> Iterable[Change]:
        """Yield the first goals and items."""
        return ()

    def read(self, k: State, row: Row) -> Iterable[Change]:
        """Yield what a row of the source becomes; by default a goal of kind ``row``, or nothing if the row was
        refused.
        """
        if not row.refusal:
            yield Goal("row", row.body)

    def select(self, k: State) -> Iterable[Ask | Vote | Change]:
        """Yield the next calls, best first. The loop takes as many as there are permits, and calls select again
        later.
        """
        raise NotImplementedError(f"{type(self).__name__} has no select")

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Yield what a reply changes. The asked goal must be resolved, failed, reopened or set waiting.

        ``reply.ending`` says whether it is whole: one that was cut, or holds no text, comes here like any other.
        """
        raise NotImplementedError(f"{type(self).__name__} has no absorb")

    def ballot(self, k: State, goal: Goal, reply: Reply) -> Any:
        """Return what a reply votes for, in a vote on the goal: equal values (plain data) agree. By default the reply's
        text, which must not be empty. A reply that was cut or paused is no vote, and does not come here.

        Raise ``Malformed`` for a red flag: the reply is discarded, and another sample is requested.
        """
        text = reply.text.strip()
        if not text:
            raise Malformed("the reply is empty")
        return text

    def absorbed(self, k: State, goal: Goal, value: Any) -> Iterable[Change]:
        """Yield what the result of a tool run or of a child job changes; by default it becomes the goal's answer."""
        yield Resolve(goal, value)

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        """Yield what the final failure of a goal's call changes; by default the goal fails."""
        yield Fail(goal, failure.message)

    def satisfied(self, k: State) -> bool:
        """Return whether the job is done; by default when no goal is live and the source is read to its end."""
        return k.live == 0 and k.source_ended

    def unmet(self, k: State) -> str:
        """Return the reason, in one line, why a job with nothing left to do has failed; by default empty: it has
        not.
        """
        return ""

    def differs(self, kind: str, value: Any, goal: Goal | None) -> str:
        """Return a line for the author if a replay made another goal (or none) than the journal has; empty to ignore
        it.
        """
        now = "none" if goal is None else f"{goal.kind} {goal.value!r:.80}"
        return f"it made a goal {kind} {value!r:.80} before, and now {now}"

    def remade(self, k: State) -> str:
        """Rebuild the state that the program keeps beside K, after a replay or a snapshot. Return a line if it
        differs.
        """
        return ""

    def answer(self, k: State) -> Any:
        """Return the job's answer from K, once satisfied; by default the answers of the resolved top goals.

        With exactly one top goal, its answer alone is returned.
        """
        tops = [goal for goal in k.goals.values() if goal.parent == 0]
        answers = [goal.answer for goal in tops if goal.status == Status.RESOLVED]
        return answers[0] if len(tops) == 1 and answers else answers


@overload
def tool(function: F, /) -> F:
    """Mark a function as a tool that must not be repeated: ``@tool``."""


@overload
def tool(
    *, repeatable: bool = False, timeout_s: float | None = None, at_once: int | None = None
) -> Callable[[F], F]:
    """Mark a function as a tool: ``@tool(repeatable=True)``."""


def tool(
    function: Any = None, /, *, repeatable: bool = False, timeout_s: float | None = None, at_once: int | None = None
) -> Any:
    """Mark a function as a tool: ``@tool``, or ``@tool(repeatable=True, timeout_s=30, at_once=4)``.

    A repeatable tool is run again when its worker dies; otherwise the goal fails, unless the run had not begun. A run
    may take ``timeout_s`` seconds from its beginning, by default an hour. ``at_once`` bounds its runs of one job under
    way at once, on all workers together; by default as many as the workers begin. Raises ``ValueError`` for bounds that
    make no sense.
    """
    if timeout_s is not None and not 0 < timeout_s < float("inf"):
        raise ValueError(f"timeout_s must be above 0, not {timeout_s}")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once must be 1 or more, not {at_once}")

    def mark(function: Any) -> Any:
        function.repeatable = repeatable
        function.timeout_s, function.at_once = timeout_s, at_once
        return function

    return mark if function is None else mark(function)


def offered(*, repeatable: bool = False) -> Callable[[F], F]:
    """Mark a function without a body as a tool that workers implement under its name (``actors.worker.builtin_tools``).

    So a program that ships with Cortex stays pure and has typed tools.
    """

    def mark(function: Any) -> Any:
        function.repeatable = repeatable
        function.offered = True
        return function

    return mark


def params_of(program: Program) -> bytes:
    """Return a program's fields as deterministic JSON.

    The JSON equals that of the program rebuilt from it, so a job that was given 1 for a float field is recognised when
    it is resumed.
    """
    given = msgspec.json.encode(program, order="sorted")
    try:
        return msgspec.json.encode(msgspec.json.decode(given, type=type(program), strict=False), order="sorted")
    except msgspec.ValidationError:
        return given  # `build` reports which field is wrong


def build(type_: type[Program], params_json: bytes) -> Program:
    """Build a program from its class and its fields. Raises ``ValueError`` naming the field that is wrong."""
    try:
        return msgspec.json.decode(params_json, type=type_, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{type_.__name__}: {error}") from None


__all__ = ["Emit", "Program", "build", "offered", "params_of", "tool"]
