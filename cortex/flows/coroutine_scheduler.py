"""Scheduler of a run's coroutines: they run one step after the other, in an order that replays."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from inspect import iscoroutine
from typing import Any, Protocol

from cortex.flows.awaitables import AwaitGroup, CallFailed, CheckpointRequest, FlowError, FlowRequest, TimerRequest
from cortex.flows.source_positions import foreign, place
from policies.decisions.join import Join, JoinVerdict, decide

_ALL = Join("all")
_LATE = -1
"""Index of a group's deadline among its entries."""


class RequestHandler(Protocol):
    """Receiver of the requests of coroutines."""

    def asks(self, request: FlowRequest, task: FlowTask) -> None:
        """Take a newly awaited request."""

    def drops(self, request: FlowRequest) -> None:
        """Drop a request that is not awaited any more."""

    def saves(self, saved: CheckpointRequest, task: FlowTask) -> None:
        """Take a checkpoint of the outermost coroutine."""

    def log(self, text: str) -> None:
        """Log a line for observers."""


class GroupSlot:
    """Entry of a group that waits for its value."""

    __slots__ = ("group", "index", "task")

    def __init__(self, group: AwaitGroup, index: int, task: FlowTask) -> None:
        self.group, self.index, self.task = group, index, task


class FlowTask:
    """Coroutine of a run. ``path`` identifies it within the run, whatever the order of arrivals."""

    __slots__ = ("awaits", "coroutine", "draws", "forks", "over", "path", "waiter")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], path: str, waiter: GroupSlot | None) -> None:
        self.coroutine, self.path, self.waiter = coroutine, path, waiter
        self.awaits: FlowRequest | AwaitGroup | None = None
        self.forks = self.draws = 0
        self.over = False


class CoroutineScheduler:
    """Coroutines of one run. ``own`` is the path of the author's file."""

    def __init__(self, world: RequestHandler, own: str) -> None:
        self._world = world
        self._own = own
        self._root: FlowTask | None = None
        self._ready: deque[tuple[FlowTask, Any, BaseException | None]] = deque()
        self.current: FlowTask | None = None
        """Coroutine that is running now."""
        self.ended: tuple[Any, BaseException | None] | None = None
        """Outcome of the outermost coroutine: its value, or its error."""

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run this coroutine from its first line, as the outermost."""
        self.ended = None
        self._root = FlowTask(coroutine, "", None)
        self.resume(self._root, None, None)

    def resume(self, task: FlowTask, value: Any, error: BaseException | None) -> None:
        """Continue a coroutine with this value or error, in its turn."""
        self._ready.append((task, value, error))

    def give(self, waiter: FlowTask | GroupSlot, value: Any, error: BaseException | None) -> None:
        """Give a value or error to the task or group that waits for it."""
        if isinstance(waiter, FlowTask):
            waiter.awaits = None
            self.resume(waiter, value, error)
        else:
            self._entry_ended(waiter.group, waiter.index, value, error)

    def drive(self) -> None:
        """Run all coroutines that can run, until every one waits for a request."""
        ready = self._ready
        while ready:
            task, value, error = ready.popleft()
            if not task.over:
                self._step(task, value, error)

    def close(self) -> None:
        """End all coroutines where they stand."""
        self._ready.clear()
        if self._root is not None and not self._root.over:
            self._let_go(self._root)
        self._root = None

    def fail(self, text: str) -> None:
        """End the run with an error."""
        where = self.where()
        self.close()
        self.ended = (None, FlowError(f"{where} {text}"))

    def where(self, task: FlowTask | None = None) -> str:
        """Return ``file:line`` at which a coroutine waits; by default the outermost."""
        task = task or self._root
        return place(task.coroutine, self._own) if task is not None else "it"

    # -- one step --------------------------------------------------------------------------------------------------

    def _step(self, task: FlowTask, value: Any, error: BaseException | None) -> None:
        self.current = task
        try:
            got = task.coroutine.send(value) if error is None else task.coroutine.throw(error)
        except StopIteration as stop:
            self._finished(task, stop.value, None)
        except (Exception, SystemExit) as raised:  # an author's code may raise anything
            self._finished(task, None, raised)
        else:
            self._awaits(task, got)
        finally:
            self.current = None

    def _awaits(self, task: FlowTask, got: Any) -> None:
        if isinstance(got, FlowRequest):
            if got.waiter is not None or got.goal:
                self._refuse(task, "awaits a second time what was awaited before: keep the value instead")
                return
            got.waiter, task.awaits = task, got
            self._world.asks(got, task)
        elif isinstance(got, AwaitGroup):
            if got.waiter is not None:
                self._refuse(task, "awaits a second time what was awaited before: keep the value instead")
                return
            got.waiter, task.awaits = task, got
            self._open(got, task)
        elif not isinstance(got, CheckpointRequest):
            self._refuse(task, f"awaits {foreign(task.coroutine, got)}, which only an event loop answers: await ctx's")
        elif task is self._root:
            self._world.saves(got, task)
        else:
            self._refuse(task, "is a checkpoint inside map or join: only the outermost function makes one")

    def _refuse(self, task: FlowTask, text: str) -> None:
        self.resume(task, None, FlowError(f"{self.where(task)} {text}"))

    def _finished(self, task: FlowTask, value: Any, error: BaseException | None) -> None:
        task.over = True
        if task.waiter is None:
            self.ended = (value, error)
        else:
            self._entry_ended(task.waiter.group, task.waiter.index, value, error)

    # -- groups ----------------------------------------------------------------------------------------------------

    def _open(self, group: AwaitGroup, task: FlowTask) -> None:
        task.forks += 1
        path = f"{task.path}/{task.forks}"
        join = group.join
        if join is not None and join.deadline_s is not None:
            group.timer = TimerRequest(join.deadline_s)
            group.timer.waiter = GroupSlot(group, _LATE, task)
            self._world.asks(group.timer, task)
        group.path, group.task = path, task
        self._fill(group)

    def _fill(self, group: AwaitGroup) -> None:
        """Begin as many entries as may run together; then check whether the group has ended."""
        group.filling = True
        while not group.over and group.started < group.count and len(group.running) < group.at_once:
            index, group.started = group.started, group.started + 1
            self._enter(group, index)
        group.filling = False
        self._judge(group, False)

    def _enter(self, group: AwaitGroup, index: int) -> None:
        slot = GroupSlot(group, index, group.task)
        try:
            entry = group.make(index)
        except Exception as error:  # an author's function may raise anything
            self._entry_ended(group, index, None, error)
            return
        if iscoroutine(entry):
            task = group.running[index] = FlowTask(entry, f"{group.path}.{index}", slot)
            self.resume(task, None, None)
        elif isinstance(entry, (FlowRequest, AwaitGroup)):
            if entry.waiter is not None:
                text = f"{self.where(group.task)} awaits a second time what was awaited before: keep the value instead"
                self._entry_ended(group, index, None, FlowError(text))
                return
            entry.waiter = slot
            group.running[index] = entry
            if isinstance(entry, FlowRequest):
                self._world.asks(entry, group.task)
            else:
                self._open(entry, group.task)
        else:
            self._entry_ended(group, index, entry, None)

    def _entry_ended(self, group: AwaitGroup, index: int, value: Any, error: BaseException | None) -> None:
        """Take the outcome of an entry, or the group's deadline."""
        if group.over:
            return
        if index == _LATE:
            group.timer = None
            self._judge(group, True)
            return
        group.running.pop(index, None)
        if error is None:
            group.values[index] = value
        elif isinstance(error, CallFailed) and group.on_failure != "raise":
            group.failures[index] = error
        else:
            self._close(group)
            self.give(group.waiter, None, error)
            return
        if not group.filling:
            self._fill(group)

    def _judge(self, group: AwaitGroup, late: bool) -> None:
        if group.over:
            return
        verdict = decide(group.join or _ALL, group.count, len(group.values), len(group.failures), late)
        if verdict != JoinVerdict.WAIT:
            self._close(group)
            self.give(group.waiter, group.result(verdict != JoinVerdict.MET), None)

    def _close(self, group: AwaitGroup) -> None:
        """Abandon the entries of a group that still run."""
        group.over = True
        running, group.running = group.running, {}
        for index in sorted(running):
            self._let_go(running[index])
        if group.timer is not None:
            self._world.drops(group.timer)
            group.timer = None

    def _let_go(self, entry: FlowTask | FlowRequest | AwaitGroup) -> None:
        if isinstance(entry, FlowRequest):
            self._world.drops(entry)
        elif isinstance(entry, AwaitGroup):
            self._close(entry)
        else:
            entry.over = True
            if entry.awaits is not None:
                self._let_go(entry.awaits)
            where = self.where(entry)
            try:
                entry.coroutine.close()
            except Exception as error:  # an author's `finally` may raise anything
                self._world.log(f"{where}: while it was let go: {type(error).__name__}: {error}")
