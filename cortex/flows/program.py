"""Flow as a program: its parameters are the function's parameters, its goals are what the function awaits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from cortex.flows.answer_types import TURN_ANSWER, AnswerType, declared
from cortex.flows.awaitables import CallRequest, ExternalRequest, FlowError, FlowRequest, ToolRequest
from cortex.flows.context import Context, hints_of
from cortex.flows.determinism import first
from cortex.flows.runner import FlowRun, ReplayMismatch, RunStart, named
from cortex.state.changes import Abandon, Ask, Change, Expect, Fail, Resolve
from cortex.state.events import Row
from cortex.state.program import Program
from cortex.state.state import ENDED, Goal, State, Status
from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.endings import Ending
from cortex.values.reply import Malformed, Reply, ending_message
from policies.estimates.price import cost_nusd
from policies.failures.failure import Failure, FailureKind

RUN = "run"
"""Kind of the top goal of a run."""


class _Tools(Mapping[str, Callable[..., Any]]):
    """Tools that a function uses, by name; looked up on access, since they may be defined after the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def _found(self) -> dict[str, Callable[..., Any]]:
        outside = {**getattr(self._function, "__globals__", {}), **inspect.getclosurevars(self._function).nonlocals}
        functions = filter(inspect.isfunction, outside.values())
        return {function.__name__: function for function in functions if hasattr(function, "repeatable")}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._found()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())


class _LiveRuns:
    """Runs in progress in one K, rebuilt from K when needed."""

    def __init__(self, program: Flow, k: State) -> None:
        self.k = k
        self._program = program
        self._runs: dict[int, FlowRun] = {}
        self.restless: dict[int, None] = dict.fromkeys(goal.id for goal in k.goals_of(RUN) if goal.status not in ENDED)

    def run(self, goal: Goal) -> FlowRun:
        """Return the run of a top goal, in the state of K. Raises ``ReplayMismatch``."""
        run = self._runs.get(goal.id)
        if run is None:
            program = self._program
            own, made = program.own_file(), program.begun(goal)
            terms = self.k.terms
            start = RunStart(
                goal.id, terms.drawn_as, goal.value["at_s"], own, made, program._returns, terms.asks_structured
            )
            run = FlowRun(start)
            run.remake(self.k, goal)
            self._runs[goal.id] = run
            self.restless[goal.id] = None
        return run

    def request(self, goal: Goal) -> FlowRequest | None:
        """Return the request that a goal was made for; None if it is not awaited any more. Raises
        ``ReplayMismatch``.
        """
        parent = self.k.goals.get(goal.parent)
        if parent is None or parent.status in ENDED:
            return None
        return self.run(parent).request(self.k, parent, goal)

    def note(self, goal: Goal) -> None:
        """Note that this goal ends now."""
        run = self._runs.get(goal.parent)
        if run is not None:
            run.news.add(goal.id)
        self.restless[goal.parent] = None

    def forget(self, goal: Goal) -> None:
        """Remove an ended run."""
        run = self._runs.pop(goal.id, None)
        self.restless.pop(goal.id, None)
        if run is not None:
            run.close()


class Flow(Program, frozen=True, dict=True):
    """Base class of the programs that ``cortex.flow`` makes. A job has one run of it, or with rows one run for each
    row.

    ``function`` is the author's function. A row is a JSON object: its fields are parameters that override the job's.
    """

    function: ClassVar[Callable[..., Any]]
    """The author's async function."""
    traced: ClassVar[bool] = True
    asks_at_once: ClassVar[bool] = True
    _returns: ClassVar[AnswerType | None] = None
    required: ClassVar[tuple[str, ...]] = ()
    """Parameters without a default."""

    def own_file(self) -> str:
        """Return the path of the file that defines the function, as in its code object."""
        return str(self.function.__code__.co_filename)

    def params(self) -> dict[str, Any]:
        """Return the parameters that were given, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not msgspec.UNSET}

    def begun(self, goal: Goal) -> Callable[[FlowRun], Any]:
        """Return the function that makes the coroutine of a run."""

        def body(run: FlowRun) -> Any:
            given = self.params()
            for name, value in (goal.value.get("row") or {}).items():
                given[name] = msgspec.convert(value, type(self).kinds()[name], strict=False)
            return self.function(Context(run, given), **given)

        return body

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Return the types of the parameters."""
        return {field.name: field.type for field in msgspec.structs.fields(cls)}

    def _live(self, k: State) -> _LiveRuns:
        live: _LiveRuns | None = self.__dict__.get("live")
        if live is None or live.k is not k:
            live = self.__dict__["live"] = _LiveRuns(self, k)
        return live

    # -- the program -----------------------------------------------------------------------------------------------

    def begin(self, k: State) -> Iterable[Change]:
        complaint = first(self.function)
        if complaint:
            raise FlowError(complaint)
        if k.terms.streams:
            return
        missing = [name for name in self.required if name not in self.params()]
        if missing:
            raise FlowError(f"{self.function.__name__} needs {', '.join(missing)}")
        yield Goal(RUN, {"at_s": k.at_s})

    def read(self, k: State, row: Row) -> Iterable[Change]:
        if not row.refusal:
            yield Goal(RUN, {"at_s": k.at_s, **self._row(row)})

    def _row(self, row: Row) -> dict[str, Any]:
        """A row's parameters, or the reason why it is invalid."""
        kinds = self.kinds()
        try:
            if too_deep(row.body):
                raise ValueError(f"a row is {deep_words()}")
            given = msgspec.json.decode(row.body)
            if not isinstance(given, dict):
                raise ValueError("a row is a JSON object whose fields are parameters")
            for name, value in given.items():
                if name not in kinds:
                    raise ValueError(f"{self.function.__name__} has no parameter {name!r}")
                try:
                    msgspec.convert(value, kinds[name], strict=False)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
            missing = [name for name in self.required if name not in given and name not in self.params()]
            if missing:
                raise ValueError(f"{self.function.__name__} needs {', '.join(missing)}")
        except ValueError as error:
            return {"bad": f"row {row.key}: {error}"}
        return {"row": given}

    def select(self, k: State) -> Iterable[Ask | Change]:
        live = self._live(k)
        if k.open_by_kind.get(RUN):
            live.restless.update(dict.fromkeys(goal.id for goal in k.open(RUN)))
        asks: list[Ask] = []
        if live.restless:
            waiting, live.restless = live.restless, {}
            for goal_id in waiting:
                run_goal = k.goals.get(goal_id)
                if run_goal is not None and run_goal.status not in ENDED:
                    yield from self._gone_on(live, k, run_goal, asks)
        for kind in ("timer", "tool", "child", "wait"):
            if not k.open_by_kind.get(kind):
                continue
            for goal in k.open(kind):
                request = live.request(goal)
                if request is not None:
                    if kind == "timer":
                        live.note(goal)
                    yield request.change(goal)
        for goal in k.open("ask"):  # some may be missing in that index: called up for their lane
            request = live.request(goal)
            if request is not None:
                yield request.change(goal)
        if not k.terms.role_routes:  # otherwise they wait for their lanes, once they are in K
            yield from asks

    def _gone_on(self, live: _LiveRuns, k: State, goal: Goal, asks: list[Ask]) -> list[Change]:
        bad = goal.value.get("bad")
        if bad:
            return [Fail(goal, bad, FailureKind.REJECTED)]
        run = live.run(goal)
        changed = run.go_on(k, goal)
        if run.changes:
            asks += run.changes
            run.changes = []
        if changed and isinstance(changed[-1], (Resolve, Fail)):
            live.forget(goal)
        elif run.restless:
            live.restless[goal.id] = None
        return changed

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        live = self._live(k)
        request = live.request(goal)
        if not isinstance(request, CallRequest):
            return (Abandon(goal),)  # abandoned by something that ended earlier in this turn
        ending = reply.ending
        kind = _no_answer(request, ending)
        if kind is not None and not (kind is FailureKind.CUT and _may_be_complete(request, reply.text)):
            live.note(goal)
            return (Fail(goal, ending_message(ending, reply, reply.text), kind),)
        try:
            answer = request.returns.read(reply, brief=request.structured)
        except Malformed as error:
            if kind is not None:
                live.note(goal)
                return (Fail(goal, ending_message(ending, reply, reply.text), kind),)
            if request.again is None or goal.resamples < request.again:
                raise
            live.note(goal)
            return (Fail(goal, str(error)),)
        if request.returns is TURN_ANSWER:
            if ending is Ending.EMPTY and request.on_cut != "keep":  # only thinking: no words and no use of a tool
                live.note(goal)
                return (Fail(goal, ending_message(ending, reply, ""), FailureKind.EMPTY),)
            place = k.terms.lane_places(k.terms.roles.get(request.role, 0))[0]
            price = k.terms.routes[place].price
            if price is not None:
                took = k.took if reply.usage.unknown else None
                answer["cost_nusd"] = cost_nusd(price, reply.usage) if took is None else took.nusd
        live.note(goal)
        return (Resolve(goal, answer),)

    def absorbed(self, k: State, goal: Goal, value: Any) -> Iterable[Change]:
        live = self._live(k)
        request = live.request(goal)
        if request is None:
            yield Abandon(goal)
            return
        if isinstance(request, (ToolRequest, ExternalRequest)):
            try:
                value = request.returns.from_plain(value)
            except Malformed as error:
                if isinstance(request, ExternalRequest):
                    yield Expect(goal, request.name)  # the answer is still awaited, which is visible to the user
                    return
                live.note(goal)
                text = f"{request.name}: its return value does not fit its return annotation: {error}"
                yield Fail(goal, text, FailureKind.FAULTY)
                return
        live.note(goal)
        yield Resolve(goal, value)

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        live = self._live(k)
        if goal.kind == RUN:
            live.forget(goal)
        else:
            live.note(goal)
        yield Fail(goal, failure.message)

    def unmet(self, k: State) -> str:
        """Return the failure of a run that is the whole job. With rows, each row fails by itself."""
        failed = [goal.failure for goal in k.goals_of(RUN) if goal.failure is not None and not k.terms.streams]
        return f"{failed[0].kind}: {failed[0].message}" if failed else ""

    def answer(self, k: State) -> Any:
        runs = list(k.goals_of(RUN))
        if k.terms.streams:
            return [goal.answer for goal in runs if goal.status == Status.RESOLVED]
        return runs[0].answer if runs else None

    def differs(self, kind: str, value: Any, goal: Goal | None) -> str:
        if goal is not None and goal.kind == kind and isinstance(value, list) and goal.value[1:] == value[1:]:
            return ""  # only its line has changed
        before = named(value) if isinstance(value, list) else f"a {kind}"
        now = named(goal.value) if goal is not None and isinstance(goal.value, list) else "nothing"
        return _differs(f"it now asks {now} where its journal has {before}")

    def remade(self, k: State) -> str:
        live = self._live(k)
        for goal in list(k.goals_of(RUN)):
            if goal.status == Status.WAITING:
                try:
                    live.run(goal)
                except ReplayMismatch as error:
                    return _differs(str(error))
        return ""


def _no_answer(request: CallRequest, ending: Ending) -> FailureKind | None:
    """Kind of failure of a reply with this ending; None if it is an answer. Turns of a conversation may use tools."""
    if request.on_cut == "keep" or ending in (Ending.WHOLE, Ending.UNKNOWN):
        return None
    if request.returns is TURN_ANSWER and ending in (Ending.TOOL_USE, Ending.EMPTY):
        return None  # `as_said` asks again for a turn without blocks
    return FailureKind(ending.value)


def _may_be_complete(request: CallRequest, text: str) -> bool:
    """True if a reply that was cut may hold all of a typed answer: only JSON objects and lists show their own end."""
    return not request.returns.is_text and text.rstrip().endswith(("}", "]", "```"))


def _differs(why: str) -> str:
    return f"the flow is not what it was: {why}. It is not deterministic, or what it uses has changed"


def takes(program: Flow, k: State, name: str) -> str:
    """Return a description of the awaited external answer of this name, for a user who gave an invalid one."""
    live = program._live(k)
    requests = (live.request(k.goals[goal]) for goal in k.expected.get(name, ()) if goal in k.goals)
    text = next((each.returns.instruction for each in requests if isinstance(each, ExternalRequest)), "")
    return " ".join(text.removeprefix("Answer with ").removesuffix(".").removesuffix(" alone").split())


def flow(function: Callable[..., Any]) -> type[Flow]:
    """Make a program of an async function whose first parameter is ``ctx``; the others are the program's parameters.

        @cortex.flow
        async def label(ctx, texts: list[str]) -> list[str]:
            return await ctx.map(lambda text: ctx.ask(text, returns=Literal["bug", "praise"]), texts)

        cortex.run(label(texts=[...]), model="sim")

    The function is ordinary Python: loops, branches, other async functions. It awaits only what ``ctx`` returns, and
    reads no clock and no randomness but those of ``ctx``, so that it can be replayed. See ``cortex.Context``. Raises
    ``TypeError`` for a function that cannot be a flow.
    """
    name = getattr(function, "__name__", "flow")
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is no async function")
    hints = hints_of(function)
    fields: list[Any] = []
    required: list[str] = []
    named_only = False
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise TypeError(f"{name} takes no ctx")
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: {parameter} cannot be given by name, as the parameters of a program are")
        if parameter.name in _TAKEN:
            raise TypeError(f"{name}: a parameter cannot be named {parameter.name}: every program has that for itself")
        kind = hints.get(parameter.name, Any)
        named_only |= parameter.kind == parameter.KEYWORD_ONLY
        if parameter.default is parameter.empty:
            required.append(parameter.name)
            fields.append((parameter.name, kind | msgspec.UnsetType if kind is not Any else Any, msgspec.UNSET))
        else:
            fields.append((parameter.name, kind, _default(parameter.default)))
    made: Any = msgspec.defstruct(
        name, fields, bases=(Flow,), module=function.__module__, frozen=True, kw_only=named_only,
        namespace={
            "__doc__": function.__doc__, "__qualname__": function.__qualname__, "function": staticmethod(function),
            "required": tuple(required), "tools": _Tools(function),
            "_returns": declared(hints.get("return", Any)),
        },
    )  # fmt: skip
    program: type[Flow] = made
    return program


_TAKEN = frozenset({"function", *(each for each in dir(Flow) if not each.startswith("_"))} - {"name"})


def _default(value: Any) -> Any:
    """A default value that programs do not share."""
    if isinstance(value, (list, dict, set)):
        return msgspec.field(default_factory=lambda: type(value)(value))
    return value
