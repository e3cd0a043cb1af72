"""Pool of the connections of a transport: a bounded number, kept open while they are idle."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import aiohttp

from actors.providers.transport.connection import HttpConnection

KEEP_S: Final = 15.0
"""Longest idle time in seconds of a connection that is used again: aiohttp's default. The server may be about to close
one that is idle for longer."""
_UNTIMED: Final = aiohttp.ClientTimeout()


class ConnectionPool:
    """Connections to one address, each lent to one request at a time. Belongs to one event loop."""

    def __init__(self, connector: aiohttp.BaseConnector, connections_max: int) -> None:
        """``connector`` makes connections, without a limit of its own."""
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._places = connections_max
        """Free places, each for a connection that is lent or about to be."""
        self._lent: set[HttpConnection] = set()
        self._resting: list[HttpConnection] = []
        """Idle connections; the last one that was returned is lent first."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def lend_rested(self) -> HttpConnection | None:
        """Return an idle connection at once; None where there is none, or no place is free."""
        if not self._places or (connection := self._rested()) is None:
            return None
        self._places -= 1
        self._lent.add(connection)
        return connection

    async def lend(self, request: aiohttp.ClientRequest, connect_s: float) -> HttpConnection:
        """Return an idle connection, or a new one for such a request.

        Raises TimeoutError where there is none within `connect_s` seconds, aiohttp's errors where none can be made.
        """
        async with asyncio.timeout(connect_s):
            await self._place()
            try:
                if (connection := self._rested()) is None:
                    connection = HttpConnection(await self._connector.connect(request, [], _UNTIMED))
                self._lent.add(connection)
                return connection
            except BaseException as error:
                self._leave_place()
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and self._closed and not (task and task.cancelling()):
                    raise aiohttp.ClientConnectionError("the connections were closed") from None
                raise

    def give_back(self, connection: HttpConnection) -> None:
        """Take back a connection that may be used again."""
        self._lent.discard(connection)
        connection.rest(self._loop.time())
        if self._closed:
            connection.close()
        else:
            self._resting.append(connection)
            if self._sweep is None:
                self._sweep = self._loop.call_later(KEEP_S, self._swept)
        self._leave_place()

    def drop(self, connection: HttpConnection) -> None:
        """Take back a connection and close it."""
        self._lent.discard(connection)
        self._leave_place()
        connection.close()
        connection.parts.clear()  # an error may hold the connection for long

    async def close(self) -> None:
        """Close all connections; callers that wait for one, or for a response, fail at once."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(aiohttp.ClientConnectionError("the connections were closed"))
        for connection in self._lent:
            connection.fail(aiohttp.ClientConnectionError("the connections were closed"))
        while self._resting:
            self._resting.pop().close()
        await self._connector.close()

    def _rested(self) -> HttpConnection | None:
        oldest_s = self._loop.time() - KEEP_S
        while self._resting:
            connection = self._resting.pop()
            if connection.usable and connection.rested_s >= oldest_s:
                return connection
            connection.close()
        return None

    async def _place(self) -> None:
        """Take a place, or wait for one."""
        if self._closed:
            raise aiohttp.ClientConnectionError("the connections were closed")
        if self._places:
            self._places -= 1
            return
        waiting = self._loop.create_future()
        self._waiting.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._leave_place()  # the place came too late
            raise

    def _leave_place(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._places += 1

    def _swept(self) -> None:
        """Close connections that were idle for too long; run again later, while any is idle."""
        oldest_s = self._loop.time() - KEEP_S
        for connection in self._resting:
            if connection.rested_s < oldest_s:
                connection.close()
        self._resting = [connection for connection in self._resting if connection.usable]
        self._sweep = self._loop.call_later(KEEP_S, self._swept) if self._resting else None
