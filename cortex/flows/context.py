"""``ctx``: what a flow asks of the world. Whatever is awaited here is journalled, and answered from there on replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

import msgspec

from cortex.flows.answer_types import SAID, as_plain, kind_of, returns_of
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
from cortex.state.program import Program
from cortex.values.conversation import Conversation, ToolResult
from cortex.values.plain_values import plain
from cortex.values.prompt import Part, Prompt, Role
from cortex.values.reply import Malformed, ToolUse
from policies.decisions.join import Join

if TYPE_CHECKING:
    from cortex.flows.runner import FlowRun

AT_ONCE = 1_000
"""Entries of one map that are under way at once, where it does not say: so that a million of them need no memory."""
APPROVAL = "approve:"
"""What an answer's name begins with that ``cortex approve`` gives."""
_POLICIES = ("keep", "drop", "raise")


class Context:
    """Handed to a flow as its first argument."""

    def __init__(self, run: FlowRun, params: dict[str, Any]) -> None:
        self._run = run
        self.params = params
        """The flow's own parameters."""

    def ask(
        self, prompt: str | Prompt | Conversation, returns: Any = None, *, system: str = "", model: str = "",
        params: dict[str, Any] | None = None, max_tokens: int | None = None, samples: int = 1, sample: int = 0,
        again: int | None = None, on_failure: str = "raise",
    ) -> FlowAwaitable:  # fmt: skip
        """Make one bounded call; await it for its answer.

        ``returns``: a pydantic model, a msgspec struct, a ``Literal``, or any type that msgspec checks; asked for as a
        schema and checked. What does not fit is asked again, with the error, at most ``again`` times (else the job's
        ``resamples_max``). Without it the answer is the reply's text. ``model``: the role that this call has; which
        model that is, the user says (``cortex run … --role judge=MODEL``), else it is the job's own.
        ``params``: further fields of the request (``temperature``); ``max_tokens`` bounds the reply.

        Of a ``Conversation`` the answer is what is ``Said``: its text, and the uses of tools that it asks for.

        The same question gets the same answer, remembered: ``sample`` numbers askings that shall differ. With
        ``samples`` above 1 it is asked so often, and the answer is a list.

        A call that failed for good raises ``CallFailed``; ``on_failure="keep"`` makes it a value, ``"drop"`` leaves it
        out of a list of samples.
        """
        if on_failure != "raise":
            _one_of(on_failure, _POLICIES)
        if samples < 1 or sample < 0:
            raise ValueError(f"samples must be 1 or more and sample 0 or more, not {samples} and {sample}")
        shown = prompt if isinstance(prompt, (Prompt, Conversation)) else _prompt(prompt, system)
        kept = plain(dict(params)) if params else None
        form = SAID if returns is None and isinstance(prompt, Conversation) else returns_of(returns)

        if samples == 1:
            return CallRequest(shown, form, model, kept, max_tokens, sample, 1, again, on_failure == "keep")

        def question(index: int) -> CallRequest:
            return CallRequest(shown, form, model, kept, max_tokens, sample + index, samples, again, False)

        return AwaitGroup(question, samples, on_failure=on_failure, at_once=samples)

    def map(
        self, fn: Callable[[Any], Any], items: Iterable[Any], *, on_failure: str = "raise", at_once: int = AT_ONCE
    ) -> FlowAwaitable:
        """``fn`` of every item, at most ``at_once`` under way together; a list in the order of the items.

        ``fn`` is an async function, or one that returns something to await. Where it raises ``CallFailed``, that is
        raised here and the others are let go (``raise``), stands in its place (``keep``) or is left out (``drop``).
        """
        _one_of(on_failure, _POLICIES)
        each = list(items)
        if at_once < 1:
            raise ValueError(f"at_once must be 1 or more, not {at_once}")
        return AwaitGroup(lambda index: fn(each[index]), len(each), on_failure=on_failure, at_once=at_once)

    def join(
        self, *awaited: Any, quorum: int | None = None, deadline_s: float | None = None, on_failure: str = "keep"
    ) -> FlowAwaitable:
        """Several at once: coroutines, or whatever ctx gives. A ``Joined``: the list of the answers that are there.

        It ends when all have ended, or ``quorum`` of them have an answer, or after ``deadline_s``; what is under way
        then is let go. Where it could not be met in full it is labelled ``partial``.
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
        """Run a tool on a worker with these arguments, or another program as a child job (``max_cost`` in USD)."""
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
        given = {name: as_plain(value) for name, value in bound.arguments.items()}
        return ToolRequest(what.__name__, given, returns_of(returned_by(what)), keeps)

    async def use(
        self, use: ToolUse, tools: Iterable[Callable[..., Any]], given: Mapping[str, Any] | None = None
    ) -> ToolResult:
        """Use one of these tools as a model asks for it, and make of what comes of it, whatever that is, the result.

        A tool that is not there, arguments that do not fit and a run that fails are told to the model, in one line.
        ``given`` are arguments that the model knows nothing of: they go over its own, where the tool takes them.
        """
        tool = next((each for each in tools if each.__name__ == use.name), None)
        if tool is None:
            return ToolResult(use.id, f"there is no tool {use.name}", failed=True)
        takes = signature(tool).parameters
        arguments = {**use.input, **{name: value for name, value in (given or {}).items() if name in takes}}
        try:
            for name, type_ in hints_of(tool).items():
                if name in arguments:
                    returns_of(type_).told(as_plain(arguments[name]))
            wanted = self.run(tool, on_failure="keep", **arguments)
        except (Malformed, TypeError, ValueError) as error:
            return ToolResult(use.id, f"{use.name}: {' '.join(str(error).split())}", failed=True)
        value = await wanted
        if isinstance(value, CallFailed):
            return ToolResult(use.id, value.story, failed=True)
        return ToolResult(use.id, value if isinstance(value, str) else msgspec.json.encode(as_plain(value)).decode())

    def wait(self, name: str, returns: Any = Any) -> FlowAwaitable:
        """Wait for an answer from outside: ``cortex answer JOB name=value``. Of this type, where one is given."""
        if not name:
            raise ValueError("an answer needs a name")
        return ExternalRequest(name, returns_of(returns))

    def approved(self, name: str, about: str = "") -> FlowAwaitable:
        """Wait until somebody has approved this, or denied it: ``cortex approve JOB NAME``, with ``--deny``. A bool.

        ``about`` is what they read who are to decide.
        """
        if not name:
            raise ValueError("an approval needs a name")
        return ExternalRequest(f"{APPROVAL}{name}", returns_of(bool), about)

    def sleep(self, seconds: float) -> FlowAwaitable:
        """Go on after so many seconds."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a time to sleep is 0 s or more, not {seconds}")
        return TimerRequest(float(seconds))

    def checkpoint(self, value: Any, returns: Any = None) -> FlowAwaitable:
        """``state = await ctx.checkpoint(state)``, in a loop: what was awaited since it was first here is forgotten.

        So a run of any length needs the memory, and after a crash the time, of one round. When it comes by again the
        function is begun anew and gets here the value given last: whatever else it holds is as it was the first time.
        ``returns`` is the value's type, where that is more than the value's own class says (a list of structs).
        """
        return CheckpointRequest(as_plain(value), kind_of(value) if returns is None else returns_of(returns))

    def now(self) -> float:
        """Seconds since 1970, at which what this flow heard last came to its end: the same on replay."""
        return self._run.now_s

    def random(self) -> float:
        """A number in [0, 1): chance that replays."""
        return self._run.draw()

    def log(self, *words: Any) -> None:
        """A line for whoever watches the job: said once, not on replay."""
        self._run.log(" ".join(" ".join(map(str, words)).split("\n")))


def returned_by(function: Callable[..., Any]) -> Any:
    """The type that a function says it returns; Any where it says none."""
    hints = hints_of(function)
    return hints.get("return", Any)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types that a function names; none where they cannot be read."""
    from typing import get_type_hints

    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        return {}


def _prompt(text: str, system: str) -> Prompt:
    if not isinstance(text, str):
        raise TypeError(f"a prompt is text or a cortex.Prompt, not {type(text).__name__}")
    goal = Part(Role.GOAL, plain(text))
    return Prompt("flow", (Part(Role.SYSTEM, plain(system)), goal) if system else (goal,))


def _one_of(given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"on_failure is one of {', '.join(known)}, not {given!r}")


__all__ = ["Context", "hints_of", "returned_by"]
