"""Socket of an actor, at which other actors of its node call its methods."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from actors.cluster.sockets.addresses import FramedSocket, SocketAddresses, forget, keep_from_children
from actors.cluster.sockets.serialization import opened, sealed

ANSWERED, RAISED = b"\0", b"\1"
"""First byte of a message: an answer, or an error raised by the method."""

Handler = Callable[[str, tuple[Any, ...]], Awaitable[Any]]
"""Function that calls a method of the actor, by name and arguments."""

_log = logging.getLogger("cortex.socket")


class SocketServer:
    """Socket of one actor. If it cannot be opened, the actor is called by Ray."""

    def __init__(self, sockets: SocketAddresses, name: str, handle: Handler) -> None:
        self._sockets = sockets
        self._path = sockets.path(name)
        self._handle = handle
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = False
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._descriptor = -1

    async def open(self) -> None:
        """Open the socket, if it is not open. It atomically replaces the socket of an earlier process of the same
        actor.
        """
        if self._begun:
            return
        self._begun = True
        bound_at = f"{self._path}.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(bound_at)  # left by an earlier process with this id, which died at that moment
            listening = self._sockets.bound(bound_at)
            self._descriptor = listening.fileno()
            keep_from_children(self._descriptor)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(
                lambda: _ServerConnection(self._handle, self._tasks), sock=listening
            )
            self._inode = os.stat(bound_at).st_ino
            os.rename(bound_at, self._path)
        except OSError as error:
            _log.info("no socket: other actors of this node call by Ray: %s", error)
            self._end()
            with contextlib.suppress(OSError):
                os.unlink(bound_at)

    def close(self) -> None:
        """Accept no more connections and remove the file. Connected peers still get their answers."""
        self._begun = False
        if self._server is not None:
            self._end()
            with contextlib.suppress(OSError):
                if os.stat(self._path).st_ino == self._inode:  # else the path belongs to the next process of this actor
                    os.unlink(self._path)

    def _end(self) -> None:
        forget(self._descriptor)
        server, self._server = self._server, None
        if server is not None:
            server.close()


class _ServerConnection(FramedSocket):
    """Connection of a peer, on the actor's side."""

    def __init__(self, handle: Handler, tasks: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._handle = handle
        self._tasks = tasks

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio: send the greeting."""
        super().connection_made(transport)
        self.send(0, b"")

    def on_frame(self, number: int, letter: bytes) -> None:
        """Handle a request."""
        task = asyncio.get_running_loop().create_task(self._answer(number, letter))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, letter: bytes) -> None:
        try:
            method, args = opened(letter)
            self.send(number, ANSWERED + sealed(await self._handle(method, args)))
        except Exception as error:
            self.send(number, RAISED + _error_pickle(error))
        except BaseException as error:  # the actor ends, or a library panics: the caller must not wait for ever
            self.send(number, RAISED + _error_pickle(error))
            raise


def _error_pickle(error: BaseException) -> bytes:
    """Serialize an error so that the caller can raise it. Of errors that are no ``Exception``, only a cancellation is
    sent as it is.
    """
    if isinstance(error, (Exception, asyncio.CancelledError)):
        with contextlib.suppress(Exception):
            letter = sealed(error)
            opened(letter)
            return letter
    return sealed(RuntimeError(f"{type(error).__name__}: {error}"))
