"""Driver of ``cortex.loop.step.step`` with a scripted model: channel, branch and store in one small synchronous loop.

The model is a function from a request's text to the reply's text (or to a ``Reply``, or a ``Failure``). The branch's
bound applies as in a run: a prompt whose bytes do not prove that it fits M is counted, and refused above M.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program, params_of
from cortex.state.state import Goal, State
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply, Usage
from policies.estimates.tokens import body_tokens_bound
from policies.failures.failure import Failure, FailureKind

Model = Callable[[str], "str | Reply | Failure"]
Counter = Callable[[str], int]

TURNS_MAX = 20_000


def spoken(body: bytes) -> str:
    """Return all text of a request, as the model reads it."""
    request = msgspec.json.decode(body)
    text = "\n\n".join(message["content"] for message in request["messages"])
    return f"{request['system']}\n\n{text}" if "system" in request else text


def by_fours(text: str) -> int:
    """Count four bytes a token, and some for the frame."""
    return len(text.encode()) // 4 + 8


def by_bytes(text: str) -> int:
    """Count a token for every byte, the worst case."""
    return len(text.encode()) + 16


def replied(text: str, stop_reason: str = "end_turn", input_tokens: int = 1, output_tokens: int = 1) -> Reply:
    """Return a reply of one text block."""
    body = msgspec.json.encode({"content": [{"type": "text", "text": text}]})
    return Reply(body, stop_reason, "scripted", Usage(input_tokens, output_tokens))


class Driver:
    """Driver of one job under a scripted model. ``k``: its state; ``calls``: all its calls, in order; ``answered``: the
    calls that reached the model.

    ``order``: seed of the order in which replies arrive (None: order of the calls); ``together``: replies that arrive
    in one turn. ``counter`` counts tokens as the provider would; ``countable``: whether the branch may use it.
    ``terms``: further terms of the job.
    """

    def __init__(
        self, program: Program, model: Model, *, limits: Limits | None = None, permits: int = 16, window: int = 200_000,
        order: int | None = None, together: int = 1, counter: Counter = by_fours, countable: bool = True,
        **terms: Any,
    ) -> None:  # fmt: skip
        route = Route(endpoint="scripted", model="scripted", context_window=window)
        self.terms = JobTerms(
            job="job", program=type(program).name, params_json=params_of(program), fingerprint="f", route=route,
            limits=limits or Limits(), **terms,
        )  # fmt: skip
        self.program, self.model = program, model
        self.together, self.counter, self.countable = together, counter, countable
        self.k: State = codec.open_job(self.terms)
        self.calls: list[commands.Call] = []
        self.answered: list[commands.Call] = []
        self.emitted: list[Any] = []
        self.turns: list[events.Turn] = []
        self.in_flight_max = 0
        self._shuffle = random.Random(order) if order is not None else None
        self._waiting: list[commands.Call] = []
        self.turn(events.Opened(self.terms, 1))
        self.turn(events.PermitsGranted(permits))

    def turn(self, *happened: events.Event, at_s: float | None = None) -> list[commands.Command]:
        """Take one turn and keep it for the journal."""
        turn = events.Turn(len(self.turns) * 1.0 if at_s is None else at_s, (happened,))
        self.turns.append(turn)
        out = step(self.k, self.program, turn)
        for command in out:
            if isinstance(command, commands.Call):
                self.calls.append(command)
                self._waiting.append(command)
            elif isinstance(command, commands.EmitResult):
                self.emitted.append(command.value)
            elif isinstance(command, commands.AbandonAttempt):
                self._waiting = [c for c in self._waiting if (c.goal, c.attempt) != (command.goal, command.attempt)]
        self.in_flight_max = max(self.in_flight_max, len(self._waiting))
        return out

    def advance(self) -> None:
        """Take one turn in which some replies arrive; if none is under way, time passes to the next due moment."""
        if self._waiting:
            self.turn(*(self._answered(self._next()) for _ in range(min(self.together, len(self._waiting)))))
            return
        due_at_s = self.k.due_at_s()
        assert due_at_s is not None, f"nothing under way and nothing due: {list(self.k.goals.values())}"
        self.turn(events.Ticked(), at_s=due_at_s)

    def run(self) -> State:
        """Answer calls until the job has ended. Raises ``AssertionError`` if it does not end."""
        for _ in range(TURNS_MAX):
            if self.k.outcome:
                return self.k
            self.advance()
        raise AssertionError(f"no end after {TURNS_MAX} turns")

    def replayed(self) -> State:
        """Return K from the journal's bytes: every turn encoded, decoded and taken again."""
        blobs = [codec.encode_turn(t.at_s, [codec.encode_batch(batch) for batch in t.batches]) for t in self.turns]
        return codec.replay(None, map(codec.decode_turn, blobs), self.program)

    # -- access for tests ----------------------------------------------------------------------------------------

    @property
    def answer(self) -> Any:
        """The job's answer."""
        return self.program.answer(self.k)

    def goals(self, kind: str) -> Sequence[Goal]:
        """Return all goals of a kind."""
        return list(self.k.goals_of(kind))

    def constructors(self) -> list[str]:
        """Return the constructor of every goal that made a call, in the order of the goals."""
        return [goal.constructor for goal in self.k.goals.values() if goal.constructor]

    def texts(self) -> list[str]:
        """Return the text of each call that reached the model."""
        return [spoken(call.body) for call in self.answered]

    def _next(self) -> commands.Call:
        return self._waiting.pop(self._shuffle.randrange(len(self._waiting)) if self._shuffle is not None else 0)

    def _answered(self, call: commands.Call) -> events.Event:
        text = spoken(call.body)
        tokens = self.counter(text)
        if body_tokens_bound(call.body) > call.prompt_tokens_max:
            if not self.countable:
                failure = Failure(FailureKind.TOO_LARGE, "no counter to ask", sent=False)
                return events.AttemptFailed(call.goal, call.sample, call.attempt, failure)
            if tokens > call.prompt_tokens_max:
                failure = Failure(FailureKind.TOO_LARGE, f"{tokens} tokens", sent=False)
                return events.AttemptFailed(call.goal, call.sample, call.attempt, failure)
        self.answered.append(call)
        reply = self.model(text)
        if isinstance(reply, Failure):
            return events.AttemptFailed(call.goal, call.sample, call.attempt, reply)
        if isinstance(reply, str):
            reply = replied(reply, "end_turn", tokens, by_fours(reply))
        return events.Answered(call.goal, call.sample, call.attempt, call.hash, reply)
