"""Dry run of a program over a job's records, without a model: how far it comes, and what it would ask in addition.

The program is begun anew under the job's terms. A call for which the job has a reply gets it, in the recorded order and
at the recorded time; a call without a recorded reply is listed, with its estimated cost, and stays unanswered. No model
is asked, no tool is run, and nothing is written.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import msgspec

from cortex.calls.request import question_hash
from cortex.flows.answer_types import TEXT
from cortex.flows.awaitables import ToolRequest
from cortex.journal import codec as journal
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import ENDED, State, flight_key
from cortex.values.display import clipped, simulated, text_of
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.prompt import with_model
from cortex.values.reply import Reply, Usage
from policies.estimates.price import cost_nusd
from policies.failures.failure import Failure, FailureKind

PERMITS = 1_000_000
"""Permits of every route in a dry run."""
TICKS_MAX = 100_000
"""Consecutive ticks without another event after which the program is taken to wait for nothing else."""


class EventStamp(NamedTuple):
    """Time of a recorded event, and its position: journal, turn, place in the turn."""

    at_s: float
    journal: int
    seq: int
    position: int


class RecordedJob(Protocol):
    """Records of a job."""

    @property
    def output_tokens(self) -> tuple[int, int]:
        """Total output tokens of all replies, and the number of replies."""

    def reply_to(self, question: bytes) -> EventStamp | None:
        """Return the position of the reply to this question, if there is one."""

    def reply(self, stamp: EventStamp) -> Reply:
        """Return the reply at this position."""

    def failure_of(self, question: bytes) -> tuple[EventStamp, Failure] | None:
        """Return the final failure of this question, if it failed."""

    def tool_run(self, key: str) -> tuple[EventStamp, events.Observed] | None:
        """Return the next unused result of such a run (``tool_key``), if there is one."""


class NewCall(msgspec.Struct, frozen=True):
    """Call for which the job has no reply."""

    job: str
    """Name of the job: the tried one, or a child job of it."""
    goal: int
    sample: str
    kind: str
    """Kind of its goal."""
    constructor: str
    prompt: str
    """Beginning of its prompt."""
    input_tokens: int
    """Estimate from the tokens of answered prompts of this length."""
    output_tokens: int
    """Estimate: mean of the recorded replies, or ``max_tokens`` if there are none."""
    cost_nusd: int | None
    """Cost of these tokens at the route's price; None if no price is known."""
    cost_max_nusd: int | None
    """Highest cost of one attempt: the amount that the ledger would reserve."""


class NewRun(msgspec.Struct, frozen=True):
    """Tool run for which the job has no result."""

    job: str
    goal: int
    tool: str
    arguments: str


class DryRunTotals(msgspec.Struct):
    """Totals of a dry run, child jobs included."""

    calls: list[NewCall] = msgspec.field(default_factory=list)
    runs: list[NewRun] = msgspec.field(default_factory=list)
    waits: list[str] = msgspec.field(default_factory=list)
    """Names of external answers that were never given."""
    reused: int = 0
    """Calls answered by recorded replies."""
    failed: int = 0
    """Calls that failed for good as recorded; a real run would ask them again."""
    runs_reused: int = 0
    let_go: int = 0
    """Calls and runs without a record that were not needed in the end: a join was met without them."""
    asked_bytes: int = 0
    """Bytes of answered requests."""
    asked_tokens: int = 0
    """Input tokens of answered requests."""


def tool_key(tool: str, arguments: dict[str, Any]) -> str:
    """Return the key by which two runs of a tool are equal: its name and its arguments."""
    return ToolRequest(tool, arguments, TEXT, False).digest()


class DryRun:
    """Dry run of one job. ``load`` builds the program of a child job from its location and its fields."""

    def __init__(
        self, terms: JobTerms, program: Program, records: RecordedJob, load: Callable[[str, bytes], Program],
        totals: DryRunTotals | None = None,
    ) -> None:  # fmt: skip
        self.k: State = journal.open_job(unbounded(terms))
        self.program = program
        self.totals = DryRunTotals() if totals is None else totals
        self._records = records
        self._load = load
        self._coming: list[tuple[EventStamp, int, events.Event | commands.Call]] = []
        self._given_answers: dict[str, events.AnswerGiven] = {}
        self._pushed = 0
        self._open: dict[int, NewCall | NewRun | None] = {}
        """Goals that wait for an unrecorded call, run or child job."""

    def run(self, at_s: float, entries: Iterable[tuple[EventStamp, events.Event]] = ()) -> State:
        """Run from this time; ``entries`` are the job's other events: rows, external answers."""
        for stamp, event in entries:
            self._push(stamp, event)
        routes = self.k.terms.routes  # fallbacks get no permits: their recorded replies are found by hash
        places = [0, *range(1 + len(self.k.terms.fallbacks), len(routes))]
        self._turn(at_s, events.Opened(self.k.terms, 1), *(events.PermitsGranted(PERMITS, place) for place in places))
        ticks = 0
        while not self.k.outcome or (self.k.outcome == "partial" and self._coming):
            due_s = None if self.k.outcome else self.k.due_at_s()
            if self._coming and (due_s is None or self._coming[0][0].at_s <= due_s):
                stamp, _, what = heapq.heappop(self._coming)
                self._take_event(stamp, self._answer(what, stamp) if isinstance(what, commands.Call) else what)
                ticks = 0
            elif due_s is not None and (self._coming or not self._stuck()) and ticks < TICKS_MAX:
                self._turn(due_s, events.Ticked())
                ticks += 1
            else:
                break
        self._count()
        return self.k

    @property
    def answer(self) -> Any:
        """The program's answer, as far as it came; None if the program raises on an incomplete K."""
        try:
            return through_json(self.program.answer(self.k))
        except Exception:  # an author's code may raise anything
            return None

    def _stuck(self) -> bool:
        """True if a live goal waits for something that is not recorded."""
        for goal_id in [goal_id for goal_id in self._open if not self._lives(goal_id)]:
            del self._open[goal_id]
            self.totals.let_go += 1
        return bool(self._open)

    def _lives(self, goal_id: int) -> bool:
        goal = self.k.goals.get(goal_id)
        return goal is not None and goal.status not in ENDED

    def _count(self) -> None:
        self._stuck()
        self.totals.calls += [each for each in self._open.values() if isinstance(each, NewCall)]
        self.totals.runs += [each for each in self._open.values() if isinstance(each, NewRun)]
        self.totals.waits += self.k.awaited()

    def _push(self, stamp: EventStamp, what: events.Event | commands.Call) -> None:
        """Schedule an event, or the recorded reply to this call, for its recorded time."""
        self._pushed += 1
        heapq.heappush(self._coming, (stamp, self._pushed, what))

    def _take_event(self, stamp: EventStamp, event: events.Event) -> None:
        if isinstance(event, events.AnswerGiven) and event.name not in self.k.expected:
            self._given_answers[event.name] = event  # the program expects the answer later than in the recording
            return
        if self.k.outcome:  # the job rested, as in the recording
            self._turn(stamp.at_s, events.Resumed(""), event)
        else:
            self._turn(stamp.at_s, event)

    def _turn(self, at_s: float, *batch: events.Event) -> None:
        turn = events.Turn(max(self.k.at_s, at_s), (batch,))
        for command in step(self.k, self.program, turn):
            if isinstance(command, commands.Call):
                self._call(command)
            elif isinstance(command, commands.StartToolRun):
                self._tool(command)
            elif isinstance(command, commands.LaunchChildJob):
                self._child(command)
        for name in [name for name in self._given_answers if name in self.k.expected]:
            self._push(EventStamp(self.k.at_s, 0, 0, 0), self._given_answers.pop(name))

    # -- calls -----------------------------------------------------------------------------------------------------

    def _call(self, call: commands.Call) -> None:
        for question in self._questions(call):
            stamp = self._records.reply_to(question)
            if stamp is not None:
                self._push(stamp, call)
                return
        for question in self._questions(call):
            failed = self._records.failure_of(question)
            if failed is not None:
                self.totals.failed += 1
                self._push(failed[0], events.AttemptFailed(call.goal, call.sample, call.attempt, failed[1]))
                return
        self._open[call.goal] = self._new(call)

    def _questions(self, call: commands.Call) -> Iterable[bytes]:
        """The call's own hash, then its hashes on the job's fallbacks."""
        yield call.hash
        for route in () if call.route else self.k.terms.fallbacks:
            yield question_hash(route.endpoint, with_model(call.body, route.model), call.sample)

    def _answer(self, call: commands.Call, stamp: EventStamp) -> events.Event:
        reply = self._records.reply(stamp)
        totals = self.totals
        totals.reused += 1
        if not reply.usage.unknown:
            totals.asked_bytes += len(call.body)
            totals.asked_tokens += reply.usage.input_tokens_billed
        return events.Answered(call.goal, call.sample, call.attempt, call.hash, reply)

    def _new(self, call: commands.Call) -> NewCall:
        totals, goal = self.totals, self.k.goals.get(call.goal)
        size, route = len(call.body), self.k.terms.routes[call.route]
        if totals.asked_bytes and totals.asked_tokens:
            input_tokens = -(-size * totals.asked_tokens // totals.asked_bytes)
        else:
            input_tokens = self.k.estimate.tokens(size)
        output_tokens = call.output_tokens_max
        all_tokens, replies = self._records.output_tokens
        if replies:
            output_tokens = min(output_tokens, -(-all_tokens // replies))
        charge = self.k.flights[flight_key(call.goal, call.attempt)].charge
        return NewCall(
            self.k.terms.job, call.goal, call.sample, goal.kind if goal is not None else "",
            goal.constructor if goal is not None else "", shown(call.body), input_tokens, output_tokens,
            _cost(route, Usage(input_tokens, output_tokens)),
            None if route.price is None and not simulated(route) else charge.nusd,
        )  # fmt: skip

    # -- tools and child jobs -----------------------------------------------------------------------------------------

    def _tool(self, run: commands.StartToolRun) -> None:
        found = self._records.tool_run(tool_key(run.tool, run.arguments))
        if found is None:
            arguments = msgspec.json.encode(run.arguments).decode()
            self._open[run.goal] = NewRun(self.k.terms.job, run.goal, run.tool, clipped(arguments))
            return
        self.totals.runs_reused += 1
        stamp, was = found
        self._push(stamp, events.Observed(run.goal, run.attempt, was.value, was.read_at_s, was.failure))

    def _child(self, launch: commands.LaunchChildJob) -> None:
        """Try a child job over the same records; one that does not end leaves its goal open."""
        terms = msgspec.structs.replace(
            self.k.terms, job=f"{self.k.terms.job}~{launch.goal}", program=launch.program,
            params_json=launch.params_json, streams=False, origin=f"{self.k.terms.drawn_as}~{launch.goal}",
        )  # fmt: skip
        try:
            program = self._load(launch.program, launch.params_json)
        except ValueError as error:
            self._ends(launch, None, Failure(FailureKind.FAULTY, str(error)))
            return
        child = DryRun(terms, program, self._records, self._load, self.totals)
        k = child.run(self.k.at_s)
        if not k.outcome:
            self._open[launch.goal] = None
        elif k.outcome == "complete":
            self._ends(launch, child.answer, None)
        else:
            text = f"child job {terms.job} ended {k.outcome}: {k.why}"
            self._ends(launch, None, Failure(FailureKind.FAULTY, text))

    def _ends(self, launch: commands.LaunchChildJob, answer: Any, failure: Failure | None) -> None:
        now = EventStamp(self.k.at_s, 0, 0, 0)
        self._push(now, events.ChildJobEnded(launch.goal, launch.attempt, answer, failure=failure))


def _cost(route: Route, usage: Usage) -> int | None:
    if route.price is None:
        return 0 if simulated(route) else None
    return cost_nusd(route.price, usage)


def unbounded(terms: JobTerms) -> JobTerms:
    """Return the terms without limits that apply only to a real run: money, time, rates, concurrency."""
    limits = terms.limits
    free = msgspec.structs.replace(
        Limits(concurrency=PERMITS, window_rows=PERMITS, alike_first=0, rejected_alike_max=PERMITS),
        **{name: getattr(limits, name) for name in _KEPT},
    )
    return msgspec.structs.replace(terms, limits=free, fresh=False)


_KEPT = (
    "prompt_tokens_max", "parts_max", "output_tokens_max", "resamples_max", "depth_max", "plan_goals_max", "goals_max",
    "selects_max", "faulty_in_row_max", "retry", "timeout",
)  # fmt: skip
"""Limits that determine what is asked, and by which goals."""


def through_json(value: Any) -> Any:
    """Return a value as it is after encoding to JSON and decoding."""
    return msgspec.json.decode(msgspec.json.encode(value))


def shown(body: bytes) -> str:
    """Return the beginning of a request's text, on one line."""
    return clipped(text_of(body))
