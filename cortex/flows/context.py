"""Context of a flow, ``ctx``: everything awaited through it is journalled, and answered from the journal in a
replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

import msgspec

from cortex.flows.answer_types import TURN_ANSWER, AnswerType, VoteType, kind_of, returns_of, value_to_plain
from cortex.flows.awaitables import (
    AwaitGroup,
    CallFailed,
    CallRequest,
    CheckpointRequest,
    ChildRequest,
    ExternalRequest,
    FlowAwaitable,
    FlowError,
    TimerRequest,
    ToolRequest,
)
from cortex.flows.vote_group import VoteGroup
from cortex.state.program import Program
from cortex.values.conversation import Conversation, ToolResult
from cortex.values.plain_values import to_plain
from cortex.values.prompt import Part, Prompt, Role
from cortex.values.reply import Malformed, ToolUse
from policies.decisions.join import Join
from policies.decisions.pooled_votes import PROBABILITY, VOTES_BY

if TYPE_CHECKING:
    from cortex.flows.runner import FlowRun

TOP_LOGPROBS = 20
"""Alternatives that are asked for each token of a vote: the most that OpenAI gives."""
AT_ONCE = 1_000
"""Default number of entries of one map that run together, so that a million entries need little memory."""
APPROVAL = "approve:"
"""Prefix of the name of an external answer that ``cortex approve`` gives."""
_POLICIES = ("keep", "drop", "raise")


class Context:
    """First argument of a flow: calls, tools, child jobs, timers, external answers, time, randomness."""

    def __init__(self, run: FlowRun, params: dict[str, Any]) -> None:
        self._run = run
        self.params = params
        """Parameters of the flow."""

    def ask(
        self, prompt: str | Prompt | Conversation, returns: Any = None, *, system: str = "", model: str = "",
        params: dict[str, Any] | None = None, max_tokens: int | None = None, samples: int = 1, sample: int = 0,
        again: int | None = None, on_failure: str = "raise", on_cut: str = "fail", votes_by: str = "",
    ) -> FlowAwaitable:  # fmt: skip
        """Make one bounded call; await it for its answer.

        ``returns``: a pydantic model, a msgspec struct, a ``Literal``, or any type that msgspec checks; it is requested
        as a schema, by structured outputs where the model's route has them, and checked. A reply that does not fit is
        asked again, with the error, at most ``again`` times (default: the job's ``resamples_max``). Without ``returns``
        the answer is the reply's text. ``model``: the role of this call; the user assigns a model to it (``cortex run …
        --role judge=MODEL``), otherwise the job's own model is used. ``params``:
        further fields of the request (``temperature``); ``max_tokens`` bounds the reply.

        For a ``Conversation`` the answer is a ``Said``: its text, and the tool uses that it requests.

        Equal questions get the same stored answer: ``sample`` numbers calls that shall differ. With ``samples`` above 1
        the question is asked that many times, and the answer is a list; or with ``votes_by``, the one that wins: by
        ``"count"`` of equal answers, or by ``"probability"``, the mean of the probabilities of the choices of a
        ``Literal`` or a ``bool``, for which log probabilities are asked for, and a vote without them counts whole. With
        ``on_failure="drop"`` it is None where no sample has an answer.

        A reply that is no whole answer has failed: ``kind`` of its ``CallFailed`` is ``cut`` (at ``max_tokens``),
        ``empty``, ``paused`` or ``tool_use``. With ``on_cut="keep"`` the text that came is the answer, and of a
        ``Conversation`` the turn, whose ``stop_reason`` says how it ended. A JSON object or list that was complete
        before the cut is an answer.

        A call that failed for good raises ``CallFailed``; with ``on_failure="keep"`` the failure becomes the value,
        with ``"drop"`` it is left out of a list of samples. Raises ``ValueError`` or ``TypeError`` for invalid
        arguments.
        """
        if on_failure != "raise":
            _one_of(on_failure, _POLICIES)
        if on_cut not in ("fail", "keep"):
            raise ValueError(f"on_cut is one of fail, keep, not {on_cut!r}")
        if samples < 1 or sample < 0:
            raise ValueError(f"samples must be 1 or more and sample 0 or more, not {samples} and {sample}")
        shown = prompt if isinstance(prompt, (Prompt, Conversation)) else _prompt(prompt, system)
        kept = to_plain(dict(params)) if params else None
        form = TURN_ANSWER if returns is None and isinstance(prompt, Conversation) else returns_of(returns)

        how = on_cut, self._run.structured(model)

        if votes_by:
            form, kept = _voted(votes_by, form, kept, samples, on_failure)
        if samples == 1:
            return CallRequest(shown, form, model, kept, max_tokens, sample, 1, again, on_failure == "keep", *how)

        def question(index: int) -> CallRequest:
            return CallRequest(shown, form, model, kept, max_tokens, sample + index, samples, again, False, *how)

        if votes_by:
            return VoteGroup(question, samples, on_failure=on_failure, by=votes_by, returns=returns_of(returns))
        return AwaitGroup(question, samples, on_failure=on_failure, at_once=samples)

    def map(
        self, fn: Callable[[Any], Any], items: Iterable[Any], *, on_failure: str = "raise", at_once: int = AT_ONCE
    ) -> FlowAwaitable:
        """Apply ``fn`` to every item, at most ``at_once`` together; await it for the list of values in the order of the
        items.

        ``fn`` is an async function, or a function that returns an awaitable. If it raises ``CallFailed``, with "raise"
        the error is raised here and the other entries are abandoned, with "keep" it stands in the list in place of the
        value, with "drop" it is left out.
        """
        _one_of(on_failure, _POLICIES)
        each = list(items)
        if at_once < 1:
            raise ValueError(f"at_once must be 1 or more, not {at_once}")
        return AwaitGroup(lambda index: fn(each[index]), len(each), on_failure=on_failure, at_once=at_once)

    def join(
        self, *awaited: Any, quorum: int | None = None, deadline_s: float | None = None, on_failure: str = "keep"
    ) -> FlowAwaitable:
        """Await several coroutines or awaitables of ctx together. The value is a ``Joined``: the list of available
        answers.

        The join ends when all have ended, or ``quorum`` of them have an answer, or after ``deadline_s`` seconds;
        entries still running are then abandoned. If the join could not be met in full, it is labelled ``partial``.
        """
        _one_of(on_failure, ("keep", "raise"))
        if quorum is not None and not 1 <= quorum <= len(awaited):
            raise ValueError(f"a quorum of {quorum} among {len(awaited)}")
        join = Join("all", 0, deadline_s) if quorum is None else Join("quorum", quorum, deadline_s)
        return AwaitGroup(
            awaited.__getitem__, len(awaited), on_failure=on_failure, at_once=max(1, len(awaited)), join=join
        )

    def run(
        self, what: Callable[..., Any] | Program, *args: Any, on_failure: str = "raise", max_cost: float | None = None,
        **named: Any,
    ) -> FlowAwaitable:  # fmt: skip
        """Run a tool on a worker with these arguments, or another program as a child job (``max_cost`` in USD).

        Raises ``FlowError`` for a function that is no tool, ``TypeError`` for arguments that do not fit.
        """
        _one_of(on_failure, ("keep", "raise"))
        keeps = on_failure == "keep"
        if isinstance(what, Program):
            if args or named:
                raise TypeError(f"{type(what).__name__} has its parameters already")
            return ChildRequest(what, None if max_cost is None else round(max_cost * 1e9), keeps)
        if not hasattr(what, "repeatable"):
            name = getattr(what, "__name__", repr(what))
            raise FlowError(f"{name} is no tool: mark it with @cortex.tool, so that a worker runs it")
        try:
            bound = signature(what).bind(*args, **named)
        except TypeError as error:
            raise TypeError(f"{what.__name__}: {error}") from None
        given = {name: value_to_plain(value) for name, value in bound.arguments.items()}
        return ToolRequest(what.__name__, given, returns_of(returned_by(what)), keeps)

    async def use(
        self, use: ToolUse, tools: Iterable[Callable[..., Any]], given: Mapping[str, Any] | None = None
    ) -> ToolResult:
        """Run the one of these tools that a model requests, and return its result for the conversation.

        An unknown tool, arguments that do not fit and a failed run are reported to the model, in one line. ``given``
        are arguments that the model does not know: they replace its own, if the tool takes them.
        """
        tool = next((each for each in tools if each.__name__ == use.name), None)
        if tool is None:
            return ToolResult(use.id, f"there is no tool {use.name}", failed=True)
        takes = signature(tool).parameters
        arguments = {**use.input, **{name: value for name, value in (given or {}).items() if name in takes}}
        try:
            for name, type_ in hints_of(tool).items():
                if name in arguments:
                    returns_of(type_).from_plain(value_to_plain(arguments[name]))
            wanted = self.run(tool, on_failure="keep", **arguments)
        except (Malformed, TypeError, ValueError) as error:
            return ToolResult(use.id, f"{use.name}: {' '.join(str(error).split())}", failed=True)
        value = await wanted
        if isinstance(value, CallFailed):
            return ToolResult(use.id, value.story, failed=True)
        return ToolResult(
            use.id, value if isinstance(value, str) else msgspec.json.encode(value_to_plain(value)).decode()
        )

    def wait(self, name: str, returns: Any = Any) -> FlowAwaitable:
        """Wait for an external answer: ``cortex answer JOB name=value``. ``returns``: its type, if it is to be
        checked.
        """
        if not name:
            raise ValueError("an answer needs a name")
        return ExternalRequest(name, returns_of(returns))

    def approved(self, name: str, about: str = "") -> FlowAwaitable:
        """Wait until a user approves or denies: ``cortex approve JOB NAME``, with ``--deny``. The value is a bool.

        ``about`` is the description shown to the user.
        """
        if not name:
            raise ValueError("an approval needs a name")
        return ExternalRequest(f"{APPROVAL}{name}", returns_of(bool), about)

    def sleep(self, seconds: float) -> FlowAwaitable:
        """Continue after this number of seconds."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a time to sleep is 0 s or more, not {seconds}")
        return TimerRequest(float(seconds))

    def checkpoint(self, value: Any, returns: Any = None) -> FlowAwaitable:
        """Store ``value`` and forget what was awaited since the first visit: ``state = await ctx.checkpoint(state)`` in
        a loop.

        So a run of any length needs the memory, and after a crash the time, of one round. On the next visit the
        function is begun again and receives the latest value at this place; all its other variables are as on the first
        visit. ``returns`` is the value's type, if the value's own class does not determine it (for example a list of
        structs).
        """
        return CheckpointRequest(value_to_plain(value), kind_of(value) if returns is None else returns_of(returns))

    def now(self) -> float:
        """Return the time at which the latest answer given to this flow ended, in seconds since 1970: the same in a
        replay.
        """
        return self._run.now_s

    def random(self) -> float:
        """Return a random number in [0, 1) that is the same in a replay."""
        return self._run.draw()

    def log(self, *words: Any) -> None:
        """Log a line for observers of the job: once, not again in a replay."""
        self._run.log(" ".join(" ".join(map(str, words)).split("\n")))


def _voted(
    by: str, form: AnswerType, params: dict[str, Any] | None, samples: int, on_failure: str
) -> tuple[VoteType, dict[str, Any] | None]:  # fmt: skip
    """Return type and parameters of votes. Raises ``ValueError`` for votes that cannot decide."""
    if by not in VOTES_BY:
        raise ValueError(f"votes_by is one of {', '.join(VOTES_BY)}, not {by!r}")
    if samples < 2 or on_failure == "keep" or form is TURN_ANSWER:
        raise ValueError("votes_by decides between answers: give samples of 2 or more, and no on_failure='keep'")
    vote = VoteType(form.type_)
    if by != PROBABILITY:
        return vote, params
    if not vote.choices:
        raise ValueError("votes_by='probability' needs listed choices: give returns=Literal[…], or bool")
    return vote, {"logprobs": True, "top_logprobs": TOP_LOGPROBS} | (params or {})


def returned_by(function: Callable[..., Any]) -> Any:
    """Return the return annotation of a function; Any if there is none."""
    hints = hints_of(function)
    return hints.get("return", Any)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type annotations of a function; empty if they cannot be resolved."""
    from typing import get_type_hints

    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        return {}


def _prompt(text: str, system: str) -> Prompt:
    if not isinstance(text, str):
        raise TypeError(f"a prompt is text or a cortex.Prompt, not {type(text).__name__}")
    goal = Part(Role.GOAL, to_plain(text))
    return Prompt("flow", (Part(Role.SYSTEM, to_plain(system)), goal) if system else (goal,))


def _one_of(given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"on_failure is one of {', '.join(known)}, not {given!r}")


__all__ = ["Context", "hints_of", "returned_by"]
