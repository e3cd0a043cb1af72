"""Connections to the sockets of other actors on the same node.

If a connection breaks off, its actor is ``PeerUnavailable``: the request may have been received or not, as with Ray.
The next request goes by Ray, which knows the state of the actor, until the actor is found at its socket again.
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
"""Seconds between two searches for the same actor's socket."""
LINES_MAX = 200
"""Connections of one process at most. A process may have 1,024 files open by default, and other actors connect to it
too. A process at that limit accepts no connection."""
LOOKED_MAX = 1_000
"""Names kept with the time of the last search, at most: a cortex meets a channel for each job."""

Background = Callable[[Coroutine[Any, Any, None]], None]


class SocketConnection(FramedSocket):
    """Connection to one actor, in one event loop. ``lost`` is called when it ends."""

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
        """True if a request can be sent from the running event loop.

        A greeting is required first, since the system also connects to a process that hangs.
        """
        return self._greeted and not self._broken and self.loop is asyncio.get_running_loop()

    @property
    def over(self) -> bool:
        """True if the connection is closed for good."""
        return self._broken or self.loop.is_closed()

    async def ask(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method and wait. Raises ``PeerUnavailable`` if the connection breaks off, or what the method raised.
        """
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
        """Handle a greeting or an answer. An answer may arrive after its request was cancelled."""
        self._greeted = True
        asked = self._asked.get(number)
        if asked is not None and not asked.done():
            asked.set_result(letter)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        super().connection_lost(exc)
        self.close()

    def close(self) -> None:
        """Close the connection. Open requests raise ``PeerUnavailable``."""
        self._broken = True
        self.transport.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(PeerUnavailable(self.name))
        self._lost(self)


class SocketConnections:
    """Connections of one process. ``sockets`` is None if the process is on no node: then there are none."""

    def __init__(self, sockets: SocketAddresses | None, background: Background) -> None:
        self.sockets = sockets
        self._background = background
        self._lines: dict[str, SocketConnection] = {}
        self._looked_s: dict[str, float] = {}

    def to(self, name: str) -> SocketConnection | None:
        """Return the connection to an actor, if there is one; else search for its socket in the background, at
        intervals.
        """
        line = self._lines.get(name)
        if line is not None and line.over:  # its event loop ended without a notice
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
        with contextlib.suppress(OSError):  # the process of the socket is dead
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
        """Close the connection to an actor that was ended: the next actor of this name is a different one."""
        line = self._lines.get(name)
        if line is not None and not line.over:
            line.close()

    def close(self) -> None:
        """Close all connections, for good."""
        self.sockets = None
        for name in list(self._lines):
            self.forget(name)
