"""Test bench of the pure core: K of one job, turned by hand, and verified at every turn.

After every turn the invariants of K are checked. A shadow K, which is encoded and decoded between any two turns, as are
its turns, must be equal to the byte and must have returned the same commands. The shadow has a listener, so it takes
the general path throughout, while the first K takes the fast path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import msgspec

from cortex.journal import codec
from cortex.loop.invariants import check
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.changes import Ask, Change
from cortex.state.decision_hook import listen
from cortex.state.program import Program
from cortex.state.state import Goal, State, Status
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.prompt import Part, Prompt, Role
from cortex.values.reply import Reply, Usage
from policies.estimates.price import Price, parse_price
from policies.failures.failure import Failure, FailureKind

PRICE = parse_price("input=3,output=15")
USAGE = Usage(10, 2)


def taken(program: Program, turns: Iterable[events.Turn]) -> Iterator[tuple[commands.StepCommands, State]]:
    """Yield for each of these turns the commands of `step`, and K after it."""
    k: State | None = None
    for turn in turns:
        if (terms := codec.opening(turn)) is not None:
            k = codec.open_job(terms)
        assert k is not None
        yield step(k, program, turn), k


def reply(text: str = "ok", usage: Usage = USAGE, stop_reason: str = "end_turn") -> Reply:
    """Return a message of one text block."""
    body = msgspec.json.encode({"content": [{"type": "text", "text": text}]})
    return Reply(body, stop_reason, "m", usage)


def failure(kind: FailureKind | str, message: str = "no", **more: Any) -> Failure:
    """Return a failure by the name of its kind."""
    return Failure(FailureKind(kind), message, **more)


def terms(
    limits: Limits | None = None, *, price: Price | None = None, streams: bool = False, window: int = 200_000,
    job: str = "j", fingerprint: str = "f", route: Route | None = None, **more: Any,
) -> JobTerms:  # fmt: skip
    """Return terms of a test job."""
    return JobTerms(
        job=job, program="p", params_json=b"{}", fingerprint=fingerprint, limits=limits or Limits(), streams=streams,
        route=route or Route(endpoint="sim", model="m", context_window=window, price=price), **more,
    )  # fmt: skip


def other(model: str = "n", *, price: Price | None = None, window: int = 200_000, endpoint: str = "sim") -> Route:
    """Return a fallback route."""
    return Route(endpoint=endpoint, model=model, context_window=window, price=price)


TAKEN_BACK = object()
"""Placeholder of a result that is to come again."""
EARLIER = object()
"""Placeholder of a result that stands until a better one comes."""


class Stage:
    """Test bench of one job. ``calls`` are those under way, by (goal, attempt); ``emitted``: all results; ``said``: all
    commands.
    """

    def __init__(
        self, program: Program, limits: Limits | None = None, *, permits: int = 8, opened: events.Opened | None = None,
        **of_terms: Any,
    ) -> None:  # fmt: skip
        self.program = program
        self.other = copy.copy(program)
        """Program of the shadow; it shares no attributes with the first program."""
        getattr(self.other, "__dict__", {}).clear()
        self.turns: list[events.Turn] = []
        self.calls: dict[tuple[int, int], commands.Call] = {}
        self.emitted: list[Any] = []
        self.said: list[commands.Command] = []
        self.ended: list[commands.FinishJob] = []
        self.heard: list[tuple[int, str, dict[str, Any]]] = []
        """Decisions of the replay: goal, name, and the values they were based on."""
        opening = opened or events.Opened(terms(limits, **of_terms), 1)
        self.k: State = codec.open_job(opening.terms)
        self.shadow: State = codec.open_job(opening.terms)
        self.turn(opening, at_s=100.0)
        if permits:
            self.turn(events.PermitsGranted(permits))

    def turn(self, *happened: events.Event, at_s: float | None = None) -> list[commands.Command]:
        """Take one turn; time advances by a second unless ``at_s`` is given."""
        now_s = self.k.at_s + 1.0 if at_s is None else at_s
        turn = events.Turn(now_s, (happened,))
        self.turns.append(turn)
        out = step(self.k, self.program, turn)
        check(self.k)
        self._doubt(turn, out)
        self._take_back(turn, out)
        for command in out:
            if isinstance(command, commands.Call):
                self.calls[command.goal, command.attempt] = command
            elif isinstance(command, commands.EmitResult):
                if command.index < len(self.emitted):
                    assert self.emitted[command.index] in (TAKEN_BACK, EARLIER)
                    self.emitted[command.index] = command.value
                else:
                    assert command.index == len(self.emitted)
                    self.emitted.append(command.value)
            elif isinstance(command, commands.FinishJob):
                self.ended.append(command)
        self.said += out
        return out

    def _take_back(self, turn: events.Turn, out: list[commands.Command]) -> None:
        """Apply reopened rows to the results: in ordered output their places stay; otherwise the results are removed.
        """
        for event in (each for batch in turn.batches for each in batch):
            if isinstance(event, events.RowsReopened) and event.edition == self.k.edition:
                gone = [EARLIER if event.kind_of else TAKEN_BACK] if event.ordered else []
                for line in reversed(event.lines):
                    self.emitted[line : line + 1] = gone
        if self.k.outcome in ("failed", "cancelled") and of(out, commands.FinishJob):
            late = {command.order for command in of(out, commands.EmitResult)}
            self.emitted = [v for i, v in enumerate(self.emitted) if v is not TAKEN_BACK or i in late]

    def _doubt(self, turn: events.Turn, out: commands.StepCommands) -> None:
        blob = codec.encode_turn(turn.at_s, [codec.encode_batch(batch) for batch in turn.batches])
        self.shadow = codec.decode_state(codec.encode_state(self.shadow))
        listen(self.shadow, self._hear)  # listening changes nothing
        echo = step(self.shadow, self.other, codec.decode_turn(blob))
        assert _deeds(echo) == _deeds(out), "a replay says something else"
        assert _ids(echo.made) == _ids(out.made) and _ids(echo.ended) == _ids(out.ended), (
            "a replay tells of other goals"
        )
        if codec.encode_state(self.shadow) != codec.encode_state(self.k):
            assert self.shadow == self.k, "a replay makes another K"
            raise AssertionError("a replay makes K with other bytes")

    def _hear(self, goal: int, what: str, seen: dict[str, Any]) -> None:
        self.heard.append((goal, what, seen))

    # -- events --------------------------------------------------------------------------------------------------------

    def call(self, goal: int = 0) -> commands.Call:
        """Return the latest call under way, of one goal or of all."""
        return [call for call in self.calls.values() if goal in (0, call.goal)][-1]

    def answered(
        self, call: commands.Call, text: str = "ok", usage: Usage = USAGE, elapsed_s: float = 0.0
    ) -> events.Answered:
        """Return the event of a reply."""
        self.calls.pop((call.goal, call.attempt), None)
        return events.Answered(call.goal, call.sample, call.attempt, call.hash, reply(text, usage), elapsed_s)

    def broke(
        self, call: commands.Call, kind: FailureKind | str, message: str = "no", **more: Any
    ) -> events.AttemptFailed:
        """Return the event of a failure."""
        self.calls.pop((call.goal, call.attempt), None)
        return events.AttemptFailed(call.goal, call.sample, call.attempt, failure(kind, message, **more))

    def given_back(self, call: commands.Call, generation: int, again_s: float = 0.0) -> events.GivenBack:
        """Return the event of a call that met an open breaker."""
        self.calls.pop((call.goal, call.attempt), None)
        return events.GivenBack(call.goal, call.sample, call.attempt, generation, again_s)

    def answer(self, text: str = "ok", goal: int = 0) -> list[commands.Command]:
        """Take one turn in which the latest call (of a goal) is answered."""
        return self.turn(self.answered(self.call(goal), text))

    def fail(self, kind: FailureKind | str, message: str = "no", goal: int = 0, **more: Any) -> list[commands.Command]:
        """Take one turn in which the latest call (of a goal) fails."""
        return self.turn(self.broke(self.call(goal), kind, message, **more))

    def answer_all(self, text: Callable[[commands.Call], str] | str = "ok") -> None:
        """Answer calls until none is under way."""
        while self.calls:
            call = next(iter(self.calls.values()))
            self.turn(self.answered(call, text if isinstance(text, str) else text(call)))

    # -- access for tests
    # ------------------------------------------------------------------------------------------------

    def goal(self, goal_id: int) -> Goal:
        """Return a goal by its id."""
        return self.k.goals[goal_id]

    def statuses(self) -> list[str]:
        """Return the status of every goal in K, in order."""
        return [goal.status.name.lower() for goal in self.k.goals.values()]


def _ids(goals: Iterable[Goal]) -> list[tuple[int, Status]]:
    return [(goal.id, goal.status) for goal in goals]


def _deeds(out: Iterable[commands.Command]) -> bytes:
    """Return all commands but log lines, encoded: a replay may omit a line."""
    return msgspec.msgpack.encode([command for command in out if not isinstance(command, commands.LogLine)])


def row(key: str, text: str = "hello") -> events.Row:
    """Return a row of a source for ``batch``."""
    body = msgspec.json.encode({"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": text}]})
    return events.Row(key, body, 8)


def fed(*keys: str, start: int = 0, ended: bool = False) -> events.RowsRead:
    """Return a window of rows, each ten bytes long; a row whose name begins with ``!`` was refused."""
    rows = tuple(row(key) if not key.startswith("!") else events.Row(key[1:], refusal="no messages") for key in keys)
    return events.RowsRead(rows, start, start + 10 * len(rows), ended)


def of(out: Iterable[commands.Command], kind: type) -> list[Any]:
    """Return the commands of one kind."""
    return [command for command in out if isinstance(command, kind)]


def asked(call: commands.Call) -> str:
    """Return the text of the request's message."""
    content = msgspec.json.decode(call.body)["messages"][0]["content"]
    assert isinstance(content, str)
    return content


def prompt(text: str, constructor: str = "plain") -> Prompt:
    """Return a prompt of one part."""
    return Prompt(constructor, (Part(Role.GOAL, text),))


def puppet(**methods: Any) -> Program:
    """Return a program with the given methods: functions with the methods' arguments, without ``self``.

    ``begin`` may be a list of functions that make changes. By default every open goal is asked once, with its value as
    the prompt, and resolved with the reply's text.
    """

    def bound(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *args: function(*args)

    body: dict[str, Any] = {name: bound(method) for name, method in methods.items() if callable(method)}
    body |= {name: value for name, value in methods.items() if not callable(value)}
    annotations = {name: ClassVar[Any] for name, value in methods.items() if not callable(value)}
    made = type("Puppet", (Asker,), body | {"__annotations__": annotations}, frozen=True)
    return made()


class Asker(Program, frozen=True):
    """Program that asks every open goal, with its value as the prompt; the reply's text is its answer."""

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open():
            yield Ask(goal, prompt(str(goal.value)))

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        from cortex.state.changes import Resolve

        yield Resolve(goal, reply.text)


class Flat(Asker, frozen=True):
    """Program with one goal a text."""

    texts: tuple[str, ...] = ("a",)

    def begin(self, k: State) -> Iterable[Change]:
        for text in self.texts:
            yield Goal("text", text)


OPEN, ASKED, WAITING = Status.OPEN, Status.ASKED, Status.WAITING
