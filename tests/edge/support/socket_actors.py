"""Actors of one node, and whoever asks them over their sockets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from actors.cluster.sockets.addresses import SocketAddresses
from actors.cluster.sockets.client import SocketConnection, SocketConnections
from actors.cluster.sockets.server import SocketServer

NAME = "channel:j"


class Unreadable(Exception):
    """One that cannot be made again from what it was made of."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Actor:
    """Answers, raises, or waits, as it is asked. ``here`` tells two processes of one actor apart."""

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
    """Runs what nobody waits for, until a test does."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def done(self) -> None:
        tasks, self.tasks = self.tasks, []
        await asyncio.gather(*tasks)


class Node:
    """A node: its sockets, and whom it has."""

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
        """The line to an actor, found."""
        async with asyncio.timeout(10):
            while (found := self.lines.to(name)) is None:
                await self.background.done()
                await asyncio.sleep(0)
        return found


@asynccontextmanager
async def a_node() -> AsyncIterator[Node]:
    """One that lets go of everything at its end."""
    with tempfile.TemporaryDirectory(prefix="cx-", dir="/tmp") as folder:  # a socket's path must be short
        made = Node(folder)
        yield made
        await made.background.done()
        made.lines.close()
        for listener in made.listeners:
            listener.close()
        for _ in range(5):  # both ends of each line hear of it
            await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.001)
