"""Actors of one node, and clients that call them over sockets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from actors.cluster.sockets.addresses import SocketAddresses
from actors.cluster.sockets.client import SocketConnection, SocketConnections
from actors.cluster.sockets.server import SocketServer
from tests.support.patience import PATIENCE_S

NAME = "channel:j"


class Unreadable(Exception):
    """Exception that cannot be unpickled from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Actor:
    """Actor that answers, raises, or waits, as asked. ``here`` distinguishes two processes of one actor."""

    def __init__(self, here: str = "first") -> None:
        self.here = here
        self.go_on = asyncio.Event()
        self.heard: list[tuple[str, tuple[Any, ...]]] = []

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        self.heard.append((method, args))
        if method == "wait":
            await self.go_on.wait()
        if method == "raise":
            raise args[0]
        return self.here, *args


class Background:
    """Runner of background tasks that a test can wait for."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def done(self) -> None:
        tasks, self.tasks = self.tasks, []
        await asyncio.gather(*tasks)


class Node:
    """Node with its sockets and actors."""

    def __init__(self, folder: str) -> None:
        self.sockets = SocketAddresses(folder, "n")
        self.background = Background()
        self.lines = SocketConnections(self.sockets, self.background)
        self.listeners: list[SocketServer] = []

    async def opened(self, actor: Actor, name: str = NAME) -> SocketServer:
        listener = SocketServer(self.sockets, name, actor.call)
        await listener.open()
        self.listeners.append(listener)
        return listener

    async def line(self, name: str = NAME) -> SocketConnection:
        """Return the connection to an actor, once it is found."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := self.lines.to(name)) is None:
                await self.background.done()
                await asyncio.sleep(0)
        return found


@asynccontextmanager
async def a_node() -> AsyncIterator[Node]:
    """Return a node that is closed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="cx-", dir="/tmp") as folder:  # a socket's path must be short
        made = Node(folder)
        yield made
        await made.background.done()
        made.lines.close()
        for listener in made.listeners:
            listener.close()
        for _ in range(5):  # both ends of each connection notice it
            await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.001)
