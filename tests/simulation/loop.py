"""Event loop whose time jumps to the next timer. Nothing waits, and equal starts give equal runs.

Code in the loop belongs to a *life*, one incarnation of an actor. A killed life executes no further line, not even a
``finally``; a frozen life continues when it thaws, later than its timers said.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """The current life is dead; no code of this project catches this exception."""


class Life:
    """Incarnation of an actor, as the loop sees it."""

    __slots__ = ("at_death", "context", "dead", "frozen", "fuse", "halted", "name", "node", "parked", "seat", "serving",
                 "zombie")  # fmt: skip

    def __init__(self, name: str, node: Any) -> None:
        self.name = name
        self.node = node
        self.context = contextvars.Context()
        self.context.run(LIFE.set, self)
        self.halted = self.dead = self.frozen = self.zombie = False
        self.fuse = 0
        """Callbacks until the life is killed; 0: not set."""
        self.at_death: Callable[[], None] = lambda: None
        self.parked: list[Handle] = []
        self.seat: Any = None
        self.serving: dict[Any, None] = {}
        """Messages that the life is answering."""


LIFE: contextvars.ContextVar[Life] = contextvars.ContextVar("life")
NOBODY = contextvars.Context()
"""Context of callbacks of the simulation itself, not of an actor."""


class Handle:
    """Scheduled callback."""

    __slots__ = ("args", "callback", "context", "gone", "when_s")

    def __init__(self, callback: Any, args: Any, context: contextvars.Context, when_s: float) -> None:
        self.callback, self.args, self.context, self.when_s = callback, args, context, when_s
        self.gone = False

    def cancel(self) -> None:
        """Cancel the callback."""
        self.gone = True
        self.callback = self.args = None

    def cancelled(self) -> bool:
        """Return whether the callback was cancelled."""
        return self.gone

    def when(self) -> float:
        """Return the due time."""
        return self.when_s


class VirtualLoop(asyncio.AbstractEventLoop):
    """Event loop with a heap of timers and no selector. ``run`` ends with ``done``, or when no timer is left."""

    def __init__(self, many_lives: bool = False) -> None:
        self._now_s = 0.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0
        self.ran = 0
        """Number of callbacks that ran."""
        self.jumps = 0
        self.over = False
        self.complaints: list[str] = []
        """Exceptions that were never retrieved, as reported to the loop."""
        self.kept: list[Any] = []
        """Callbacks of dead lives, kept so that none of their objects is finalized."""
        self.tasks: list[Any] | None = [] if many_lives else None
        """All tasks, where there are many lives; None: those of the moment are kept at each death."""
        self.thread_s: Callable[[], float] = lambda: 0.0
        """Return the seconds of work in a thread."""

    def run(self, done: Callable[[], bool], until_s: float = float("inf")) -> None:
        """Run callbacks in the order of their times. Raises errors of the simulation's own callbacks."""
        asyncio._set_running_loop(self)
        try:
            while not done():
                self._round()
                if not self._ready and not self._jump(until_s):
                    return
        finally:
            asyncio._set_running_loop(None)

    def _round(self) -> None:
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if handle.gone:
                continue
            context = handle.context
            life = context.get(LIFE)
            if life is not None and life.halted:
                if life.dead:
                    self.kept.append(handle)
                    continue
                if life.frozen:
                    life.parked.append(handle)
                    continue
                context.run(handle.callback, *handle.args)
                life.fuse -= 1
                if life.fuse <= 0 and not life.dead:
                    life.at_death()
                continue
            self.ran += 1
            context.run(handle.callback, *handle.args)

    def _jump(self, until_s: float) -> bool:
        """Advance to the time of the next timer; return False if there is none."""
        timers = self._timers
        while timers and timers[0][2].gone:
            heapq.heappop(timers)
        if not timers or timers[0][0] > until_s:
            if until_s != float("inf"):
                self._now_s = max(self._now_s, until_s)
            return False
        self.jumps += 1
        self._now_s = now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= now_s:
            handle = heapq.heappop(timers)[2]
            if not handle.gone:
                self._ready.append(handle)
        return True

    def thaw(self, life: Life) -> None:
        """Resume a frozen life."""
        life.frozen = False
        life.halted = life.dead or life.fuse > 0
        self._ready.extend(life.parked)
        life.parked = []

    # -- interface of asyncio
    # --------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.over

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, context if context is not None else contextvars.copy_context(), self._now_s)
        if not self.over:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, context if context is not None else contextvars.copy_context(), when)
        if not self.over:
            self._count += 1
            heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name or "t", context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        if self.tasks is not None:
            self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Run the function at once; its result arrives after a while."""
        future = self.create_future()
        try:
            settle, value = _result, func(*args)
        except Exception as error:
            settle, value = _exception, error
        self.call_later(self.thread_s(), settle, future, value)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.over and not isinstance(error, Killed):
            self.complaints.append(f"{context['message']}: {error!r}")


def _result(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _exception(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
