"""Calls of a job in the order of its journal: requests and their results.

The job's turns, since it was last opened, are replayed with its program. If the program has changed since, the turns
cannot be replayed, and only the replies are known.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from actors.history.catalog import program_of
from actors.journal.errors import never_began
from actors.journal.journal import Journal, NoSuchJob, StateFolder
from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import Goal, InFlightAttempt, State, flight_key
from cortex.values.display import simulated, text_of
from cortex.values.limits import Route
from cortex.values.reply import Reply
from policies.estimates.price import cost_nusd


class CallLogEntry(msgspec.Struct, kw_only=True):
    """Call of a job. Unknown fields are None.

    ``status``: ``answered``, ``remembered`` (nothing was paid), ``shared`` (an equal call was in flight, and both took
    its reply), ``failed``, or ``open``.
    """

    job: str
    goal: int
    sample: str
    question: str
    """Hash of endpoint, model, prompt, parameters and sample: 32 hex digits."""
    status: str
    kind: str | None = None
    """Kind of the goal."""
    constructor: str | None = None
    model: str | None = None
    role: str | None = None
    """Role of the call, if the role has a model of its own."""
    failure: str | None = None
    """Kind of the last failure."""
    attempts: int | None = None
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    cost_usd: float | None = None
    asked_at_s: float | None = None
    """Time of the first attempt, Unix time."""
    elapsed_s: float | None = None
    """Duration in seconds of the attempt that was answered."""
    prompt: str | None = None
    reply: str | None = None


def calls_of(folder: StateFolder, job: str, text: bool = True, children: bool = True) -> Iterator[CallLogEntry]:
    """Yield the calls of a job and of its child jobs, since the job was last opened. Raises ``NoSuchJob``."""
    names = [job]
    if children:
        names += sorted(name for name in folder.jobs() if name.startswith(f"{job}~"))
    for name in names:
        source = folder.journal(name)
        try:
            if name == job and source.seq == 0:
                raise NoSuchJob(never_began(job))
            yield from _CallLogReader(name, source, text).calls()
        finally:
            source.close()


def changed(folder: StateFolder, job: str) -> bool:
    """Return whether a job's program has changed since the job was last opened, or is gone."""
    source = folder.journal(job)
    try:
        _, turn = next(source.turns(source.opened_at()))
        terms = codec.opening(turn)
        assert terms is not None, "a generation begins with its opening"
        return program_of(terms) is None
    finally:
        source.close()


class _CallLogReader:
    """Reader of the calls in one journal."""

    def __init__(self, name: str, source: Journal, text: bool) -> None:
        self._name, self._source, self._text = name, source, text
        self._open: dict[tuple[int, str], CallLogEntry] = {}
        self._k: State
        self._program: Program | None = None

    def calls(self) -> Iterator[CallLogEntry]:
        """Yield each call when it is settled, and the open calls at the end."""
        for _, turn in self._source.turns(self._source.opened_at()):
            terms = codec.opening(turn)
            if terms is not None:
                self._program = program_of(terms)
                self._k = codec.open_job(terms)
            for batch in turn.batches:
                for event in batch:
                    if isinstance(event, (events.Answered, events.ReplyRecalled)):
                        yield from self._answered(event)
                    elif isinstance(event, events.AttemptFailed):
                        self._broke(event)
                    elif isinstance(event, events.GivenBack):
                        self._given_back(event)
            if self._program is not None:
                for command in step(self._k, self._program, turn):
                    if isinstance(command, commands.Call):
                        self._asked(command, turn.at_s)
        yield from self._open.values()

    def _asked(self, call: commands.Call, at_s: float) -> None:
        goal = self._k.goals.get(call.goal)
        line = self._open.get((call.goal, call.sample))
        if line is None:
            line = self._open[call.goal, call.sample] = CallLogEntry(
                job=self._name, goal=call.goal, sample=call.sample, question=call.hash.hex(), status="open",
                kind=goal.kind if goal is not None else None, role=self._role(goal),
                constructor=goal.constructor if goal is not None else None, attempts=0, asked_at_s=at_s,
                prompt=text_of(call.body) if self._text else None,
            )  # fmt: skip
        line.attempts = (line.attempts or 0) + 1
        line.model = self._k.terms.routes[call.route].model

    def _role(self, goal: Goal | None) -> str | None:
        """Return the roles with a model of their own whose lane the goal has, joined by commas; None if there are
        none."""
        lane = goal.lane if goal is not None else 0
        return ", ".join(role for role, own in self._k.terms.roles.items() if lane and own == lane) or None

    def _broke(self, event: events.AttemptFailed) -> None:
        line = self._open.get((event.goal, event.sample))
        if line is not None:
            line.status, line.failure = "failed", str(event.failure.kind)

    def _given_back(self, event: events.GivenBack) -> None:
        line = self._open.get((event.goal, event.sample))
        if line is not None and line.attempts:
            line.attempts -= 1  # nothing was sent

    def _answered(self, event: events.Answered | events.ReplyRecalled) -> Iterator[CallLogEntry]:
        line = self._open.pop((event.goal, event.sample), None)
        remembered = isinstance(event, events.ReplyRecalled)
        reply = event.reply
        assert reply is not None, "the store fills it in"
        if line is None:
            if self._program is not None:
                return  # a repeated reply, or one that came too late
            line = CallLogEntry(
                job=self._name, goal=event.goal, sample=event.sample, question=event.hash.hex(), status=""
            )
        flight = self._flight(event) if self._program is not None else None
        self._reply(line, "remembered" if remembered else "answered", reply)
        line.model = line.model or reply.model
        if isinstance(event, events.Answered):
            line.elapsed_s = event.elapsed_s
            if reply.usage.unknown:
                line.input_tokens = line.output_tokens = None
            else:
                line.input_tokens, line.output_tokens = reply.usage.input_tokens, reply.usage.output_tokens
                line.cache_read_tokens = reply.usage.cache_read_tokens
                line.cache_creation_tokens = reply.usage.cache_creation_tokens
            route = self._k.terms.routes[flight.route if flight is not None else 0]
            line.cost_usd = _cost_usd(route, reply)
        elif line.attempts:
            line.attempts -= 1  # nothing was sent
            line.cost_usd = 0.0
        yield line
        for goal_id in flight.followers if flight is not None else ():
            yield self._shared(goal_id, line)

    def _reply(self, line: CallLogEntry, status: str, reply: Reply) -> None:
        line.status, line.failure = status, None
        line.reply = reply.text if self._text else None

    def _shared(self, goal_id: int, line: CallLogEntry) -> CallLogEntry:
        goal = self._k.goals.get(goal_id)
        return msgspec.structs.replace(
            line, goal=goal_id, status="shared", kind=goal.kind if goal is not None else None, attempts=0,
            sample=goal.sample if goal is not None else line.sample, input_tokens=0, output_tokens=0,
            cache_read_tokens=0, cache_creation_tokens=0, cost_usd=0.0,
        )  # fmt: skip

    def _flight(self, event: events.Answered | events.ReplyRecalled) -> InFlightAttempt | None:
        goal = self._k.goals.get(event.goal)
        attempt = event.attempt if isinstance(event, events.Answered) else goal.tries if goal is not None else 0
        return self._k.flights.get(flight_key(event.goal, attempt))


def _cost_usd(route: Route, reply: Reply) -> float | None:
    if route.price is None:
        return 0.0 if simulated(route) else None
    return None if reply.usage.unknown else cost_nusd(route.price, reply.usage) / 1e9


__all__ = ["CallLogEntry", "calls_of", "changed"]
