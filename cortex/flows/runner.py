"""A flow under way: its coroutines, driven by ``send`` between the turns of the loop, without an event loop.

Whatever a coroutine awaits becomes a goal, a child of the run's own; when that has ended the coroutine goes on with its
answer. The coroutines are no part of K, and need not be: the function is begun anew and fed the answers of the goals
that K has, in the order in which those ended (``Goal.ended``), and then stands where it stood. Live and replayed it is
the same code: what K knows already is matched, and only what goes beyond it is made.

A checkpoint cuts that short. It notes its value under the place in the code where it stands, drops the goals made since
the run first came to that place, and begins the function anew: there it gets the value noted last. So what follows a
checkpoint depends on its value and on what came before the first visit, in a run that goes on and in one that was
killed alike.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import msgspec

from cortex.calls.attempts import drawn
from cortex.flows.answer_types import AnswerType, as_plain, holds_failure
from cortex.flows.awaitables import CallFailed, CallRequest, CheckpointRequest, FlowError, FlowRequest
from cortex.flows.coroutine_scheduler import CoroutineScheduler, FlowTask
from cortex.flows.source_positions import raised_at, route
from cortex.state.changes import Abandon, Ask, Change, Checkpoint, Fail, Log, Resolve, Wait
from cortex.state.state import ENDED, Goal, State, Status
from cortex.values.reply import Malformed
from policies.failures.failure import FailureKind


class ReplayMismatch(Exception):
    """Replayed, the function does not ask what it asked before. The message is one line for its author."""


class RunStart(msgspec.Struct, frozen=True):
    """What a run is begun with: who it is for, and how its coroutine is made."""

    run: int
    job: str
    """In whose name chance is drawn."""
    began_at_s: float
    own: str
    """The author's file."""
    body: Callable[[FlowRun], Coroutine[Any, Any, Any]]
    returns: AnswerType | None = None
    """What its answer must be, where the author said so."""


class _SavedCheckpoint(msgspec.Struct):
    """A checkpoint that the run stands behind, as ``goal.kept`` lists it."""

    place: str
    made: int
    """Requests made before the first visit."""
    value: Any
    at_s: float
    visits: int = 1


class FlowRun:
    """One run of a flow: a top goal of kind ``run``."""

    def __init__(self, start: RunStart) -> None:
        self._start = start
        self._tasks = CoroutineScheduler(self, start.own)
        self.now_s = start.began_at_s
        """When what it heard last came to its end."""
        self.news: set[int] = set()
        """Children that may have ended since it last went on."""
        self._pending: dict[int, FlowRequest] = {}
        """Requests that K has a goal for, by that goal, while somebody waits for them."""
        self._fresh: dict[int, FlowRequest] = {}
        """Requests that K has no goal for yet, by their number."""
        self._made = self._linked = self._since = 0
        self._unwanted: list[FlowRequest] = []
        self.wishes: list[Ask] = []
        """Questions whose goals were made last: they may be asked as soon as those are in K."""
        self._logs: list[Log] = []
        self._marks: list[_SavedCheckpoint] = []
        self._passed = 0
        """Marks that the coroutine has come by since it was begun."""
        self._cut: int | None = None
        """Children that K is to keep, where a checkpoint was made since it last heard of one."""
        self._anew = self._remaking = False
        self._known: list[int] = []
        self._goals: dict[int, Goal] = {}

    @property
    def restless(self) -> bool:
        """Whether it must be looked at again when K has goals for what it asked: some of that it has let go."""
        return bool(self._unwanted)

    def request(self, k: State, goal: Goal, child: Goal) -> FlowRequest | None:
        """What this child was made for; None where, by all that has ended until now, nobody waits for it any more.

        Raises ``ReplayMismatch``.
        """
        if self.news:
            self._hear(k, goal)
        elif self._fresh:
            self._link()
        return self._pending.get(child.id)

    def remake(self, k: State, goal: Goal) -> None:
        """Begin, and come to where K stands. Raises ``ReplayMismatch``."""
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
            self._logs.clear()  # all of it was said before
        self._remaking = False

    def go_on(self, k: State, goal: Goal) -> list[Change]:
        """Hear what has ended since; what that changes. Raises ``ReplayMismatch``."""
        self._hear(k, goal)
        return list(self._changes(k, goal))

    def close(self) -> None:
        """End all coroutines where they stand."""
        self._tasks.close()

    def draw(self) -> float:
        """A number in [0, 1) that belongs to the coroutine under way, and to this draw of it."""
        task = self._tasks.current
        assert task is not None, "only a coroutine of the run draws"
        task.draws += 1
        return drawn(f"{self._start.job}/{self._start.run}/{task.path}", task.draws)

    def log(self, text: str) -> None:
        """A line for whoever watches; not when it is replayed."""
        if self._passed == len(self._marks):
            self._logs.append(Log(text))

    # -- what the coroutines ask -----------------------------------------------------------------------------------

    def asks(self, request: FlowRequest, task: FlowTask) -> None:
        """A coroutine awaits this: the goal that K has for it, or a new one. Raises ``ReplayMismatch``."""
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
        """Nobody waits for this any more."""
        request.waiter = None
        self._pending.pop(request.goal, None)
        self._unwanted.append(request)

    def saves(self, saved: CheckpointRequest, task: FlowTask) -> None:
        """The function is at a checkpoint: it gets its value there, or begins anew so that it does."""
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

    def _hear(self, k: State, goal: Goal) -> None:
        """What has ended since it was last looked at."""
        self._see(k, goal)
        self._link()
        if len(self.news) == 1:  # as one thing after the other has it
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
        """Requests that K had no goal for have one now."""
        while self._linked < len(self._known) and self._known[self._linked] >= self._since:
            request = self._fresh.pop(self._linked)
            request.goal = self._known[self._linked]
            if request.waiter is not None:
                self._pending[request.goal] = request
            self._linked += 1

    def _ended(self, children: Iterable[int]) -> list[Goal]:
        """Those of these goals that have ended, in the order in which they did."""
        ended = [goal for child in children if (goal := self._goals[child]).status in ENDED]
        ended.sort(key=lambda goal: goal.ended)
        return ended

    def _settle(self, ended: list[Goal]) -> None:
        """Let the coroutines run as far as they come with what these goals came to."""
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
                return  # what else has ended was dropped by the checkpoint
            request = self._pending.pop(goal.id, None)
            if request is None:
                last = min(self._made, len(self._known)) - 1
                if last < 0 or goal.id > self._known[last]:
                    raise ReplayMismatch(f"it does not ask, any more, what its journal has: {named(goal.value)}")
                continue  # it was let go
            if self._remaking and self._logs and not self._fresh:
                self._logs.clear()  # it had gone on from there before
            self.now_s = goal.ended_at_s
            value, error = _came_to(request, goal)
            self._tasks.give(request.waiter, value, error)
            self._tasks.drive()

    def _changes(self, k: State, goal: Goal) -> Iterator[Change]:
        """What the coroutines have come to, for K."""
        if self._logs:
            logs, self._logs = self._logs, []
            yield from logs
        if goal.status == Status.OPEN:
            yield Wait(goal, None)
        if self._cut is not None:
            self._linked, self._cut = self._cut, None
            self._known = goal.children  # as they will be when this is done
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
                self.wishes.append(request.wish(made))
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


def named(value: Any) -> str:
    """A request, as its goal's value names it."""
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
            answer = as_plain(value)
            if start.returns is not None and not holds_failure(answer):
                start.returns.held(answer)
            return Resolve(goal, answer)
        except Malformed as other:
            return Fail(goal, f"it returns what it does not say it returns: {other}", FailureKind.FAULTY)
        except (TypeError, ValueError, OverflowError) as refused:
            return Fail(goal, f"what it returns cannot be an answer: {refused}", FailureKind.FAULTY)
    if isinstance(error, CallFailed):
        return Fail(goal, error.story, error.kind)
    if isinstance(error, FlowError):
        return Fail(goal, str(error), FailureKind.FAULTY)
    place = raised_at(error.__traceback__, start.own)
    words = " ".join(str(error).split())
    return Fail(goal, f"{place + ': ' if place else ''}{type(error).__name__}: {words}", FailureKind.FAULTY)
