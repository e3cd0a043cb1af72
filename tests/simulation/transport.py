"""Simulated messages between lives: they take time, overtake each other, get lost, or are duplicated."""

from __future__ import annotations

import asyncio
from typing import Any

from actors.common.errors import UserError
from actors.ports.runtime import PeerGone, PeerUnavailable
from tests.simulation.loop import NOBODY, Killed, Life

AT_MOST_ONCE = frozenset({"run", "start"})
"""Methods whose messages are never duplicated: a run of a tool that may not be repeated, the start of a channel, and
the submission of a message batch. On a cluster no message is duplicated, since tasks are not retried."""


class Message:
    """Call of a method, and the future of its answer."""

    __slots__ = ("args", "future", "life", "lost_answer", "method", "name", "sent_s")

    def __init__(self, life: Life, name: str, method: str, args: Any, future: Any) -> None:
        self.life, self.name, self.method, self.args, self.future = life, name, method, args, future
        self.lost_answer = False
        self.sent_s = 0.0


class Transport:
    """Transport of a ``world``, which provides lives, plan and randomness."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._loop = world.loop
        self._plan = world.plan
        self._random = world.plan.chance("transport").random
        self._choice = world.plan.chance("trouble").choice
        self._endless = world.plan.chance("endless").random
        self.sent = 0

    def ask(self, life: Life, name: str, method: str, args: Any) -> asyncio.Future[Any]:
        """Send a message; return the future of its answer."""
        future = self._loop.create_future()
        self.post(life, name, method, args, future)
        return future  # type: ignore[no-any-return]

    def post(self, life: Life, name: str, method: str, args: Any, future: Any) -> None:
        """Send a message."""
        self.sent += 1
        world, plan = self._world, self._plan
        world.watch.sent(life, name, method, args)
        message = Message(life, name, method, args, future)
        message.sent_s = self._loop.time()
        delay_s = plan.hop_s * (0.5 + self._random()) + life.node.lag_s
        if world.cut and (
            (life.name in world.cut and name == "cortex") or (name in world.cut and life.name == "cortex")
        ):
            self._fail(message, PeerUnavailable(name), plan.silence_s * self._random())
            return
        if world.calm or self._random() >= plan.trouble:
            self._loop.call_at(self._loop.time() + delay_s, self._arrive, message, context=NOBODY)
            return
        trouble = self._choice(plan.troubles)
        if world.tells:
            world.tell(f"{life.name} -> {name}.{method} is {trouble}")
        if trouble == "lost":
            self._fail(message, PeerUnavailable(name), plan.silence_s * self._random())
            return
        if trouble == "late":
            delay_s += plan.late_s * self._random()
        elif trouble == "unanswered":
            message.lost_answer = True
        elif not _at_most_once(method, args):
            twin = Message(life, name, method, args, None)
            twin.sent_s = message.sent_s
            self._loop.call_later(delay_s + plan.late_s * self._random(), self._arrive, twin, context=NOBODY)
        self._loop.call_later(delay_s, self._arrive, message, context=NOBODY)

    def hang_up(self, life: Life) -> None:
        """Fail the messages that a dead life was answering; in some worlds some of them neither fail nor end."""
        for message in life.serving:
            after_s = 0.01 + 0.5 * self._random()
            if self._never_ends(message):
                if self._world.tells:
                    self._world.tell(f"{message.life.name} -> {message.name}.{message.method} never ends")
                continue
            self._fail(message, PeerUnavailable(life.name), after_s)
        life.serving = {}

    def _never_ends(self, message: Message) -> bool:
        """Return whether a question to a killed actor stays open for ever."""
        share = self._plan.endless
        return bool(share) and self._endless() < share

    def _fail(self, message: Message, error: Exception, after_s: float) -> None:
        if message.future is not None:
            self._loop.call_later(after_s, _raise, message.future, error, context=NOBODY)

    def _arrive(self, message: Message) -> None:
        world = self._world
        life = world.lives.get(message.name)
        if life is not None and life.node is message.life.node and message.sent_s <= life.node.lost_s:
            return  # it was lost with the memory of the machine
        if life is None:
            coming = message.name in world.coming
            self._fail(message, PeerUnavailable(message.name) if coming else PeerGone(message.name), 0.02)
            return
        if world.tells and message.method not in _DULL:
            world.tell(f"{message.life.name} -> {message.name}.{message.method}{_short(message.args)}")
        life.serving[message] = None
        work = life.seat.call(message.method, message.args)
        task: asyncio.Task[Any] = self._loop.create_task(work, name="m", context=life.context)
        task.add_done_callback(lambda task: self._answered(life, message, task), context=NOBODY)

    def _answered(self, life: Life, message: Message, task: asyncio.Task[Any]) -> None:
        if message not in life.serving:
            if not task.cancelled():
                task.exception()
            return
        del life.serving[message]
        error: BaseException | None = PeerUnavailable(message.name) if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, (PeerUnavailable, PeerGone, UserError, Killed)):
            self._world.watch.say(f"{message.name}.{message.method} raised {type(error).__name__}: {error}", error)
        if message.future is None:
            return
        delay_s = self._plan.hop_s * (0.5 + self._random()) + life.node.lag_s
        if message.lost_answer or isinstance(error, Killed):
            self._fail(message, PeerUnavailable(message.name), self._plan.silence_s * self._random())
        elif error is not None:
            self._fail(message, error, delay_s)  # type: ignore[arg-type]
        else:
            self._loop.call_at(self._loop.time() + delay_s, self._answer, message, task.result(), context=NOBODY)

    def _answer(self, message: Message, value: Any) -> None:
        if not message.future.done():
            if message.method == "join":
                self._world.watch.answered(message, value)
            message.future.set_result(value)


def _at_most_once(method: str, args: Any) -> bool:
    return method in AT_MOST_ONCE or (method == "batches" and b"submit" in args[3][:9])


_DULL = frozenset({"hello", "results", "status", "report", "beat"})


def _short(args: Any) -> str:
    shown = (f"<{len(arg)}>" if isinstance(arg, bytes) else str(arg) for arg in args)
    return f"({', '.join(shown)})"[:160]


def _raise(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
