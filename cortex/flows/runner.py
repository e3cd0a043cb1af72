"""Run of a flow: its coroutines, driven by ``send`` between the turns of the loop, without an event loop.

Everything a coroutine awaits becomes a goal, a child of the run's goal; when that has ended the coroutine continues
with its answer. The coroutines are no part of K and need not be: the function is begun again and receives the answers
of K's goals in the order in which they ended (``Goal.ended``), and then stands where it stood. The code is the same
live and in a replay: requests that K knows are matched, and only further ones are made.

A checkpoint shortens this. It stores its value under its place in the code, drops the goals made since the run first
reached that place, and begins the function again: there it receives the latest value. So the work after a checkpoint
depends only on its value and on what came before the first visit, whether the run continues or was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import msgspec

from cortex.calls.attempts import drawn
from cortex.flows.answer_types import AnswerType, holds_failure, value_to_plain
from cortex.flows.awaitables import CallFailed, CallRequest, CheckpointRequest, FlowError, FlowRequest
from cortex.flows.coroutine_scheduler import CoroutineScheduler, FlowTask
from cortex.flows.source_positions import raised_at, route
from cortex.state.changes import Abandon, Ask, Change, Checkpoint, Fail, Log, Resolve, Wait
from cortex.state.state import ENDED, Goal, State, Status
from cortex.values.reply import Malformed
from policies.failures.failure import FailureKind


class ReplayMismatch(Exception):
    """A replayed function does not ask what it asked before. The message is one line for its author."""


class RunStart(msgspec.Struct, frozen=True):
    """Start of a run: its goal, and the function that makes its coroutine."""

    run: int
    job: str
    """Job name from which random numbers are derived."""
    began_at_s: float
    own: str
    """Path of the author's file."""
    body: Callable[[FlowRun], Coroutine[Any, Any, Any]]
    returns: AnswerType | None = None
    """Type of its answer, if the author annotated it."""
    structured: Callable[[str], bool] = lambda role: False
    """Function that returns whether calls of a role ask by structured outputs."""


class _SavedCheckpoint(msgspec.Struct):
    """Checkpoint that the run has passed, as listed in ``goal.kept``."""

    place: str
    made: int
    """Number of requests made before the first visit."""
    value: Any
    at_s: float
    visits: int = 1


class FlowRun:
    """Run of a flow: a top goal of kind ``run``."""

    def __init__(self, start: RunStart) -> None:
        self._start = start
        self._tasks = CoroutineScheduler(self, start.own)
        self.now_s = start.began_at_s
        """Time at which the latest answer given to the run ended."""
        self.news: set[int] = set()
        """Children that may have ended since the run last continued."""
        self._pending: dict[int, FlowRequest] = {}
        """Awaited requests that have a goal in K, by goal."""
        self._fresh: dict[int, FlowRequest] = {}
        """Requests without a goal in K yet, by number."""
        self._made = self._linked = self._since = 0
        self._unwanted: list[FlowRequest] = []
        self.changes: list[Ask] = []
        """Calls whose goals were made last: they may be asked as soon as the goals are in K."""
        self._logs: list[Log] = []
        self._marks: list[_SavedCheckpoint] = []
        self._passed = 0
        """Number of checkpoints that the coroutine has passed since it was begun."""
        self._cut: int | None = None
        """Number of children that K must keep, after a new checkpoint; None: no new checkpoint."""
        self._anew = self._remaking = False
        self._known: list[int] = []
        self._goals: dict[int, Goal] = {}

    def structured(self, role: str) -> bool:
        """Return whether calls of a role ask by structured outputs."""
        return self._start.structured(role)

    @property
    def restless(self) -> bool:
        """True if the run must continue as soon as K has goals for its requests: some of them are to be abandoned."""
        return bool(self._unwanted)

    def request(self, k: State, goal: Goal, child: Goal) -> FlowRequest | None:
        """Return the request that this child was made for; None if it is not awaited any more.

        Raises ``ReplayMismatch``.
        """
        if self.news:
            self._take_ended(k, goal)
        elif self._fresh:
            self._link()
        return self._pending.get(child.id)

    def remake(self, k: State, goal: Goal) -> None:
        """Begin the function, and replay it up to the state of K. Raises ``ReplayMismatch``."""
        self._remaking = goal.status != Status.OPEN
        self._marks = msgspec.convert(goal.kept or [], list[_SavedCheckpoint])
        self._see(k, goal)
        self._linked = len(goal.children)
        self._begin()
        self._settle(self._ended(goal.children))
        if self._made < self._linked and self._cut is None:
            first = k.goals[goal.children[self._made]]
            raise ReplayMismatch(f"{self._tasks.where()} asks nothing more where its journal has {named(first.value)}")
        if self._remaking and not self._fresh and self._tasks.ended is None:
            self._logs.clear()  # all lines were logged before
        self._remaking = False

    def go_on(self, k: State, goal: Goal) -> list[Change]:
        """Continue with what has ended since, and return the changes. Raises ``ReplayMismatch``."""
        self._take_ended(k, goal)
        return list(self._changes(k, goal))

    def close(self) -> None:
        """End all coroutines where they stand."""
        self._tasks.close()

    def draw(self) -> float:
        """Return a random number in [0, 1) derived from the running coroutine and the number of this draw."""
        task = self._tasks.current
        assert task is not None, "only a coroutine of the run draws"
        task.draws += 1
        return drawn(f"{self._start.job}/{self._start.run}/{task.path}", task.draws)

    def log(self, text: str) -> None:
        """Log a line for observers of the job, once: not again in a replay."""
        if self._passed == len(self._marks):
            self._logs.append(Log(text))

    # -- what the coroutines ask -----------------------------------------------------------------------------------

    def asks(self, request: FlowRequest, task: FlowTask) -> None:
        """Register a request awaited by a coroutine: match it with K's goal, or note it as new. Raises
        ``ReplayMismatch``.
        """
        index, self._made = self._made, self._made + 1
        request.begin(self.now_s)
        if index >= len(self._known):
            request.place = self._tasks.where(task)
            self._fresh[index] = request
            return
        goal = self._goals[self._known[index]]
        kind, digest = goal.kind, goal.value[2]
        if kind != request.kind or digest != request.digest():
            now = named([self._tasks.where(task), request.preview()])
            raise ReplayMismatch(f"it now asks {now} where its journal has {named(goal.value)}")
        request.goal = goal.id
        self._pending[goal.id] = request

    def drops(self, request: FlowRequest) -> None:
        """Drop a request that is not awaited any more."""
        request.waiter = None
        self._pending.pop(request.goal, None)
        self._unwanted.append(request)

    def saves(self, saved: CheckpointRequest, task: FlowTask) -> None:
        """Handle a checkpoint: give it its value, or begin the function again so that it receives it."""
        place = route(task.coroutine)
        again = next((i for i, mark in enumerate(self._marks[: self._passed]) if mark.place == place), None)
        if again is not None:
            mark = self._marks[again]
            del self._marks[again + 1 :]
            mark.value, mark.at_s, mark.visits = saved.kept, self.now_s, mark.visits + 1
            self._anew = True
            self._cut_to(mark.made)
            return
        if self._passed == len(self._marks):
            if self._made < len(self._known):
                raise ReplayMismatch(f"{self._tasks.where(task)} is a checkpoint where its journal has none")
            self._marks.append(_SavedCheckpoint(place, self._made, saved.kept, self.now_s))
            self._cut_to(self._made)
        mark = self._marks[self._passed]
        if (mark.place, mark.made) != (place, self._made):
            raise ReplayMismatch(f"{self._tasks.where(task)} is a checkpoint where its journal has none")
        self._passed += 1
        self.now_s = max(self.now_s, mark.at_s)
        task.path, task.forks, task.draws = f"{place}#{mark.visits}", 0, 0
        self._tasks.resume(task, saved.returns.value(mark.value), None)

    def _cut_to(self, made: int) -> None:
        keep = min(made, len(self._known))
        self._cut = keep if self._cut is None else min(self._cut, keep)
        if keep < len(self._known):
            self._known = self._known[:keep]
        for index in [index for index in self._fresh if index >= made]:
            del self._fresh[index]

    # -- between K and the coroutines ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._tasks.close()
        self._made = self._passed = 0
        self._anew = False
        self._pending.clear()
        self._unwanted.clear()
        self.now_s = self._start.began_at_s
        self._tasks.begin(self._start.body(self))

    def _take_ended(self, k: State, goal: Goal) -> None:
        """Take in what has ended since the last call."""
        self._see(k, goal)
        self._link()
        if len(self.news) == 1:  # the usual case
            (child,) = self.news
            found = k.goals.get(child)
            if found is None or found.status in ENDED:
                self.news.clear()
                self._settle([found] if found is not None else [])
            else:
                self._settle([])
            return
        news = [child for child in self.news if child in k.goals]
        ended = self._ended(news)
        self.news = set(news).difference(goal.id for goal in ended) if len(ended) < len(news) else set()
        self._settle(ended)

    def _see(self, k: State, goal: Goal) -> None:
        self._known, self._goals = goal.children, k.goals

    def _link(self) -> None:
        """Assign the goals that K now has to new requests."""
        while self._linked < len(self._known) and self._known[self._linked] >= self._since:
            request = self._fresh.pop(self._linked)
            request.goal = self._known[self._linked]
            if request.waiter is not None:
                self._pending[request.goal] = request
            self._linked += 1

    def _ended(self, children: Iterable[int]) -> list[Goal]:
        """The ended ones of these goals, in the order in which they ended."""
        ended = [goal for child in children if (goal := self._goals[child]).status in ENDED]
        ended.sort(key=lambda goal: goal.ended)
        return ended

    def _settle(self, ended: list[Goal]) -> None:
        """Let the coroutines run as far as possible with the results of these goals."""
        self._run_on(ended)
        if not self._anew:
            return
        rounds = 0
        while self._anew:
            self._begin()
            self._run_on(self._ended(self._known))
            rounds += 1
            if rounds > ROUNDS_MAX:
                self._tasks.fail("goes round its checkpoint and awaits nothing else")
                return

    def _run_on(self, ended: list[Goal]) -> None:
        self._tasks.drive()
        for goal in ended:
            if self._anew:
                return  # other ended goals were dropped by the checkpoint
            request = self._pending.pop(goal.id, None)
            if request is None:
                last = min(self._made, len(self._known)) - 1
                if last < 0 or goal.id > self._known[last]:
                    raise ReplayMismatch(f"it does not ask, any more, what its journal has: {named(goal.value)}")
                continue  # it was abandoned
            if self._remaking and self._logs and not self._fresh:
                self._logs.clear()  # the recorded run continued from this point
            self.now_s = goal.ended_at_s
            value, error = _came_to(request, goal)
            self._tasks.give(request.waiter, value, error)
            self._tasks.drive()

    def _changes(self, k: State, goal: Goal) -> Iterator[Change]:
        """Changes of K that the coroutines have caused."""
        if self._logs:
            logs, self._logs = self._logs, []
            yield from logs
        if goal.status == Status.OPEN:
            yield Wait(goal, None)
        if self._cut is not None:
            self._linked, self._cut = self._cut, None
            self._known = goal.children  # the children after this change
            yield Checkpoint(goal, msgspec.to_builtins(self._marks), self._linked)
        ended = self._tasks.ended
        if ended is not None:
            self.close()
            yield _end(goal, ended, self._start)
            return
        self._since = k.next_goal
        for _, request in sorted(self._fresh.items()) if len(self._fresh) > 1 else self._fresh.items():
            value = [request.place, request.preview(), request.digest()]
            made = Goal(request.kind, value, parent=goal.id, due_at_s=request.due_at_s)
            if type(request) is CallRequest and request.waiter is not None:
                self.changes.append(request.change(made))
            yield made
        if not self._unwanted:
            return
        unwanted, self._unwanted = self._unwanted, []
        for request in unwanted:
            child = k.goals.get(request.goal)
            if not request.goal:
                self._unwanted.append(request)
            elif child is not None and child.status not in ENDED:
                yield Abandon(child)


ROUNDS_MAX = 1_000_000
"""Restarts at a checkpoint without another await after which the run fails."""


def named(value: Any) -> str:
    """Return a request's name from its goal's value."""
    return f"{value[0]} {value[1]!r}"


def _came_to(request: FlowRequest, goal: Goal) -> tuple[Any, Exception | None]:
    if goal.status == Status.RESOLVED:
        try:
            return request.value(goal.answer), None
        except Exception as error:  # an author's type may raise anything
            return None, error
    failure = goal.failure
    kind, why = (failure.kind, failure.message) if failure is not None else (FailureKind.CANCELLED, "it was let go")
    failed = CallFailed(kind, f"{goal.value[0]}: {why}")
    return (failed, None) if request.keeps else (None, failed)


def _end(goal: Goal, ended: tuple[Any, BaseException | None], start: RunStart) -> Change:
    value, error = ended
    if error is None:
        try:
            answer = value_to_plain(value)
            if start.returns is not None and not holds_failure(answer):
                start.returns.held(answer)
            return Resolve(goal, answer)
        except Malformed as other:
            return Fail(goal, f"its return value does not fit its return annotation: {other}", FailureKind.FAULTY)
        except (TypeError, ValueError, OverflowError) as refused:
            return Fail(goal, f"its return value cannot be an answer: {refused}", FailureKind.FAULTY)
    if isinstance(error, CallFailed):
        return Fail(goal, error.story, error.kind)
    if isinstance(error, FlowError):
        return Fail(goal, str(error), FailureKind.FAULTY)
    place = raised_at(error.__traceback__, start.own)
    words = " ".join(str(error).split())
    return Fail(goal, f"{place + ': ' if place else ''}{type(error).__name__}: {words}", FailureKind.FAULTY)
