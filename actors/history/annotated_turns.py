"""A job's journal, turn by turn, with the subject of each event.

If the job's program is unchanged, its turns are replayed and everything is known: an attempt's route, its reservation,
its goal, its request. If the program has changed or is gone, only the data of the events is available.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from actors.common.gc_tuning import unwatched
from actors.journal.errors import never_began
from actors.journal.journal import Journal, NoSuchJob, StateFolder
from actors.programs import loader
from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import Goal, InFlightAttempt, State, flight_key
from cortex.values.display import simulated
from cortex.values.limits import JobTerms, Route
from cortex.values.reply import Usage
from policies.estimates.price import cost_nusd
from policies.failures.failure import Failure, FailureKind

Ending = events.Answered | events.ReplyRecalled | events.AttemptFailed
_ENDING = (events.Answered, events.ReplyRecalled, events.AttemptFailed)


class SettledAttempt(msgspec.Struct):
    """Attempt that has ended, or a call that needed no attempt because its reply was remembered."""

    event: Ending
    at_s: float
    goal: Goal | None = None
    """Goal in its state after the turn. None: K no longer holds the goal, or the journal is read without its
    program."""
    flight: InFlightAttempt | None = None
    place: int = 0
    """Index of the job's route."""
    known_nusd: int = 0
    assumed_nusd: int = 0
    """Charge in 1e-9 USD that stays although no cost was reported; negative if the reply came late after all."""
    counts: bool = True
    """False if the call had been answered before this reply."""
    late: bool = False
    """Whether the attempt had been counted as lost before its reply came."""

    @property
    def elapsed_s(self) -> float:
        """Duration of the request in seconds; 0 if nothing was sent, or if unknown."""
        return 0.0 if isinstance(self.event, events.ReplyRecalled) else max(0.0, self.event.elapsed_s)

    @property
    def waited_s(self) -> float:
        """Seconds that the attempt waited at its branch before it was sent."""
        return 0.0 if isinstance(self.event, events.ReplyRecalled) else max(0.0, self.event.waited_s)

    @property
    def begun_s(self) -> float:
        """Time at which the request was sent, Unix time."""
        return self.at_s - self.elapsed_s

    @property
    def by(self) -> str:
        """Name of the branch; empty if no branch made the attempt."""
        return "" if isinstance(self.event, events.ReplyRecalled) else self.event.by


class AnnotatedTurn(msgspec.Struct):
    """Turn with the attempts that it settled and the commands that it led to."""

    seq: int
    turn: events.Turn
    settled: list[SettledAttempt]
    left: list[InFlightAttempt]
    """Attempts in flight when the job ended: they stay charged in full."""
    out: list[commands.Command]
    """Commands of the turn; empty if the journal is read without its program."""


class JournalReader:
    """Reader of one journal, from the turn that last opened the job to the last turn at the time of construction."""

    def __init__(self, name: str, source: Journal) -> None:
        """Read the opening turn. Raises ``NoSuchJob`` if no turn opens the job."""
        self.name = name
        self.seq = source.seq
        self._source = source
        self._after = source.opened_at()
        first = next(source.turns(self._after), None)
        terms = codec.opening(first[1]) if first is not None else None
        if first is None or terms is None:
            raise NoSuchJob(never_began(name))
        self.opened = first[1]
        self.terms: JobTerms = terms
        self.begin_s = float(first[1].at_s)
        self.end_s = float(next(turn.at_s for _, turn in source.turns(self.seq - 1)))
        self.turns = self.seq - self._after
        self.k: State | None = None
        """State after the turn read last; None if the journal is read without its program."""
        self.program, self.same = _program(terms)
        if self.program is not None and not self.same and not self._as_before():
            self.program = None

    @property
    def changed(self) -> bool:
        """Whether the program behaves differently now, or is gone. K is not read then."""
        return self.program is None

    @property
    def account(self) -> codec.CarriedAccount | None:
        """Totals recorded in the journal itself, which need no program."""
        blob = self._source.account(self.seq)
        return codec.decode_account(blob) if blob else None

    def steps(self) -> Iterator[AnnotatedTurn]:
        """Yield turn by turn. May be called several times."""
        with unwatched():
            if self.program is None:
                yield from self._alone()
            else:
                yield from self._replayed(self.program)

    def _turns(self) -> Iterator[tuple[int, events.Turn]]:
        for seq, turn in self._source.turns(self._after):
            if seq > self.seq:
                return
            yield seq, turn

    def _as_before(self) -> bool:
        """Return whether a program whose source differs (a comment, another release) still asks identical questions."""
        assert self.program is not None
        with unwatched():
            return all(
                each.flight is None or (each.flight.sent or each.flight.hash) == each.event.hash
                for one in self._replayed(self.program) for each in one.settled
                if isinstance(each.event, events.Answered)
            )  # fmt: skip

    def _alone(self) -> Iterator[AnnotatedTurn]:
        self.terms = _terms(self.opened)
        for seq, turn in self._turns():
            settled = []
            for batch in turn.batches:
                for event in batch:
                    if isinstance(event, _ENDING):
                        settled.append(self._guessed(event, turn.at_s))
                    elif isinstance(event, events.LimitsSet) and event.route is not None:
                        self.terms = msgspec.structs.replace(self.terms, route=event.route)
            yield AnnotatedTurn(seq, turn, settled, [], [])

    def _guessed(self, event: Ending, at_s: float) -> SettledAttempt:
        """Return an attempt whose route is guessed from the model that answered."""
        routes = self.terms.routes
        if not isinstance(event, events.Answered):
            return SettledAttempt(event, at_s)
        names = [route.model for route in routes]
        place = names.index(event.reply.model) if event.reply.model in names else 0
        return SettledAttempt(event, at_s, place=place, known_nusd=_cost(routes[place], event.reply.usage))

    def _replayed(self, program: Program) -> Iterator[AnnotatedTurn]:
        k = self.k = codec.open_job(_terms(self.opened))
        live: dict[int, InFlightAttempt] = {}
        for seq, turn in self._turns():
            met: list[SettledAttempt] = []
            before: dict[int, Goal] = {}
            for batch in turn.batches:
                for event in batch:
                    if isinstance(event, _ENDING) and (goal := k.goals.get(event.goal)) is not None:
                        before[event.goal] = goal
                        if isinstance(event, events.Answered) and goal.assumed and event.attempt in goal.assumed:
                            met.append(_late(k, event, turn.at_s, goal))
            late = {(each.event.goal, _attempt(each.event)) for each in met}
            for batch in turn.batches:
                for event in batch:
                    if isinstance(event, events.GivenBack):
                        live.pop(flight_key(event.goal, event.attempt), None)  # it was no attempt
                    elif isinstance(event, _ENDING) and (event.goal, _attempt(event)) not in late:
                        met += _settled(k, event, turn.at_s, before.get(event.goal), live)
            out = step(k, program, turn)
            for command in out:
                if isinstance(command, commands.Call):
                    key = flight_key(command.goal, command.attempt)
                    if key in k.flights:
                        live[key] = k.flights[key]
            left = [live.pop(key) for key in [*live] if key not in k.flights] if len(live) != len(k.flights) else []
            if left and any(isinstance(event, events.Rejoined) for batch in turn.batches for event in batch):
                met += [_died(k, flight, turn.at_s) for flight in left]
                left = []
            self.terms = k.terms
            yield AnnotatedTurn(seq, turn, met, left, out)


def readings(folder: StateFolder, job: str) -> list[JournalReader]:
    """Return the readers of the job and of its child jobs that have begun. Raises ``NoSuchJob``. Changes no journal."""
    found = [JournalReader(job, folder.journal(job))]
    for name in sorted(name for name in folder.jobs() if name.startswith(f"{job}~")):
        try:
            found.append(JournalReader(name, folder.journal(name)))
        except NoSuchJob:
            continue  # a child job that was named and never began
    return found


def _terms(opened: events.Turn) -> JobTerms:
    terms = codec.opening(opened)
    assert terms is not None, "the first turn read opens the job"
    return terms


def _program(terms: JobTerms) -> tuple[Program | None, bool]:
    """Return the program, and whether it is byte for byte unchanged."""
    try:
        same = loader.is_unchanged(terms.program, terms.params_json, terms.fingerprint)
        return loader.load(terms.program, terms.params_json), same
    except ValueError:
        return None, False


def _attempt(event: Ending) -> int:
    return 0 if isinstance(event, events.ReplyRecalled) else event.attempt


def _cost(route: Route, usage: Usage) -> int:
    if route.price is None:
        return 0
    return cost_nusd(route.price, usage)


def priced(route: Route) -> bool:
    """Return whether the cost of calls at this route is known; the simulated provider is free of charge."""
    return route.price is not None or simulated(route)


def _late(k: State, event: events.Answered, at_s: float, goal: Goal) -> SettledAttempt:
    """Return the late reply of an attempt that was counted as lost: its real cost replaces the assumed charge."""
    assert goal.assumed is not None
    missing = goal.assumed[event.attempt]
    if missing.route < 0:
        return SettledAttempt(event, at_s, goal, late=True)
    if event.reply.usage.unknown:
        return SettledAttempt(event, at_s, goal, None, missing.route, late=True)  # the assumed charge stays
    known = _cost(k.terms.routes[missing.route], event.reply.usage)
    return SettledAttempt(event, at_s, goal, None, missing.route, known, -missing.charge.nusd, late=True)


def _settled(
    k: State, event: Ending, at_s: float, goal: Goal | None, live: dict[int, InFlightAttempt]
) -> list[SettledAttempt]:
    if isinstance(event, events.ReplyRecalled):
        flight = live.pop(flight_key(goal.id, goal.tries), None) if goal is not None else None
        return [SettledAttempt(event, at_s, goal, flight, flight.route if flight is not None else 0)] if goal else []
    flight = live.pop(flight_key(event.goal, event.attempt), None)
    if isinstance(event, events.AttemptFailed):
        if flight is None:
            return []  # a repeated event, or one after the answer
        paid = event.failure.may_be_billed
        return [SettledAttempt(event, at_s, goal, flight, flight.route, 0, flight.charge.nusd if paid else 0)]
    if flight is None:
        return [SettledAttempt(event, at_s, goal, counts=False)]
    if event.reply.usage.unknown:
        return [SettledAttempt(event, at_s, goal, flight, flight.route, 0, flight.charge.nusd)]
    return [
        SettledAttempt(event, at_s, goal, flight, flight.route, _cost(k.terms.routes[flight.route], event.reply.usage))
    ]


def _died(k: State, flight: InFlightAttempt, at_s: float) -> SettledAttempt:
    """Return the failure of an attempt that was lost with its branch, or with the previous run."""
    event = events.AttemptFailed(
        flight.goal, flight.sample, flight.attempt, Failure(FailureKind.LOST, "its channel, branch or node died"),
        elapsed_s=max(0.0, at_s - flight.asked_at_s),
    )  # fmt: skip
    return SettledAttempt(event, at_s, k.goals.get(flight.goal), flight, flight.route, 0, flight.charge.nusd)
