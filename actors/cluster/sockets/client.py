"""Lines to the sockets of other actors on the same node.

A line that breaks off is an actor that is ``PeerUnavailable``: it may have heard what was asked, or not, as with Ray.
Whoever asks it next asks by Ray, which knows what became of it, until it is found at its socket again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

from actors.cluster.sockets.addresses import FramedSocket, SocketAddresses
from actors.cluster.sockets.serialization import cause_of, opened, sealed
from actors.cluster.sockets.server import RAISED
from actors.ports.runtime import PeerUnavailable

AGAIN_S = 1.0
"""How long after one look for an actor's socket the next one is worth it."""
LINES_MAX = 200
"""A process may have 1,024 files open, by default, and there are those who have a line to it. One that has no file left
greets nobody."""
LOOKED_MAX = 1_000
"""So many names are kept with the time at which they were looked for: a cortex meets a channel for each job."""

Background = Callable[[Coroutine[Any, Any, None]], None]


class SocketConnection(FramedSocket):
    """To one actor, in one event loop. ``lost`` hears of its end."""

    def __init__(self, name: str, lost: Callable[[SocketConnection], None]) -> None:
        super().__init__()
        self.name = name
        self._lost = lost
        self.loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._number = 0
        self._greeted = self._broken = False

    @property
    def serves(self) -> bool:
        """Whether it can be asked through, by whoever runs now: the system connects us to a process that hangs, too."""
        return self._greeted and not self._broken and self.loop is asyncio.get_running_loop()

    @property
    def over(self) -> bool:
        """Whether it will never serve again."""
        return self._broken or self.loop.is_closed()

    async def ask(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call and wait. Raises ``PeerUnavailable`` where the line breaks off, or what the method raised."""
        letter = sealed((method, args))
        number = self._number = self._number + 1
        asked = self._asked[number] = self.loop.create_future()
        try:
            self.send(number, letter)
            answer = await asked
        finally:
            self._asked.pop(number, None)
        content = opened(answer[1:])
        if answer.startswith(RAISED):
            raise cause_of(content, self.name)
        return content

    def on_frame(self, number: int, letter: bytes) -> None:
        """A greeting; or an answer, which may come when nobody waits any more."""
        self._greeted = True
        asked = self._asked.get(number)
        if asked is not None and not asked.done():
            asked.set_result(letter)

    def connection_lost(self, exc: Exception | None) -> None:
        """By asyncio."""
        super().connection_lost(exc)
        self.close()

    def close(self) -> None:
        """Let go of it: whoever waits hears that the actor is away."""
        self._broken = True
        self.transport.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(PeerUnavailable(self.name))
        self._lost(self)


class SocketConnections:
    """Those that one process has. ``sockets`` is None where it is on no node: then there are none."""

    def __init__(self, sockets: SocketAddresses | None, background: Background) -> None:
        self.sockets = sockets
        self._background = background
        self._lines: dict[str, SocketConnection] = {}
        self._looked_s: dict[str, float] = {}

    def to(self, name: str) -> SocketConnection | None:
        """The line to this actor, if there is one. Else it is looked for meanwhile, now and then."""
        line = self._lines.get(name)
        if line is not None and line.over:  # its loop has ended, and could not tell
            del self._lines[name]
            line = None
        if line is None and self.sockets is not None and len(self._lines) < LINES_MAX:
            self._look(name, self.sockets)
        return line if line is not None and line.serves else None

    def _look(self, name: str, sockets: SocketAddresses) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s.get(name, -AGAIN_S) >= AGAIN_S:
            if len(self._looked_s) >= LOOKED_MAX:
                self._looked_s = {each: at_s for each, at_s in self._looked_s.items() if now_s - at_s < AGAIN_S}
            self._looked_s[name] = now_s
            path = sockets.path(name)
            if os.path.exists(path) and sockets.are_safe():
                self._background(self._connect(name, path))

    async def _connect(self, name: str, path: str) -> None:
        with contextlib.suppress(OSError):  # whoever was there is dead
            loop = asyncio.get_running_loop()
            _, line = await loop.create_unix_connection(lambda: SocketConnection(name, self._lost), path)
            if line.over:
                return
            if name in self._lines or self.sockets is None:
                line.close()
            else:
                self._lines[name] = line

    def _lost(self, line: SocketConnection) -> None:
        if self._lines.get(line.name) is line:
            del self._lines[line.name]

    def forget(self, name: str) -> None:
        """This actor was ended: who has its name next is another."""
        line = self._lines.get(name)
        if line is not None and not line.over:
            line.close()

    def close(self) -> None:
        """Let go of all, for good."""
        self.sockets = None
        for name in list(self._lines):
            self.forget(name)
