"""HTTP server that answers byte by byte as a test says and records its requests; and a proxy in front of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MESSAGE: dict[str, Any] = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-test",
    "content": [{"type": "text", "text": "yes — é"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 10,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
        "service_tier": "standard",
    },
}


LATE_S = 90.0
"""Time that passes at once (`Step.LATE`): deadlines before it are over, and none is over earlier on a slow machine."""


class Step(enum.Enum):
    """Actions of a server besides sending bytes."""

    HANG = enum.auto()  # keep the connection and send nothing until the client disconnects
    LATE = enum.auto()  # the same, after `LATE_S` have passed: the client shares the event loop and has read all before
    CUT = enum.auto()  # close it
    RESET = enum.auto()  # close the connection with a reset


@dataclass
class Asked:
    """Request as received."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Sequence[bytes | Step]
Script = Callable[[Asked], Answer | Awaitable[Answer]]


@dataclass
class Scripted:
    """Running server."""

    url: str
    script: Script
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has disconnected while the server was hanging."""


def compact(value: Any) -> bytes:
    """Return JSON in the provider's format."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def http(
    body: bytes | dict[str, Any], status: int = 200, content_type: str = "application/json", **headers: str
) -> list[bytes | Step]:
    """Return a whole response. Header names are written with underscores for dashes."""
    data = body if isinstance(body, bytes) else compact(body)
    fields = {"content-type": content_type, "content-length": str(len(data))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return [f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + data]


def streamed(events: Sequence[dict[str, Any]]) -> bytes:
    """Return the text of a stream of events."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), compact(event)) for event in events)


def chunked(
    body: bytes, content_type: str = "text/event-stream", size: int = 100, end: bool = True
) -> list[bytes | Step]:
    """Return a chunked response; without `end` the last chunk is missing."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    data = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + (b"0\r\n\r\n" if end else b"")
    return [f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode(), data]


@contextlib.asynccontextmanager
async def scripted(
    script: Script, context: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Scripted]:
    """Run the server at a loopback address until the block ends. `port`: 0 for a free one."""
    served = Scripted("", script)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        number = served.connections
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, ssl.SSLError):
            while await _answer_one(served, reader, writer, number):
                pass
        tasks.discard(task)
        writer.close()

    server = await asyncio.start_server(serve, host, port, ssl=context, backlog=500)
    port = server.sockets[0].getsockname()[1]
    served.url = f"{'https' if context else 'http'}://{host}:{port}"
    try:
        yield served
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer_one(
    served: Scripted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    asked = Asked(method, target, headers, body, number)
    served.asked.append(asked)
    answer = served.script(asked)
    for part in await answer if isinstance(answer, Awaitable) else answer:
        if isinstance(part, bytes):
            writer.write(part)
            await writer.drain()
        elif part is Step.HANG or part is Step.LATE:
            if part is Step.LATE:
                await _taken_in()
                pass_time()
            await reader.read()
            served.left.set()
            return False
        elif part is Step.RESET:
            writer.transport.abort()
            return False
        else:
            return False
    return True


async def _taken_in() -> None:
    """Wait until the client, in this loop, has read what was sent and gone on."""
    await asyncio.sleep(0.05)
    for _ in range(50):  # the process may have stood still since
        await asyncio.sleep(0)


def pass_time(seconds: float = LATE_S) -> None:
    """Put the clock of the running loop forward, beside real sockets: what waits for a nearer time is due now."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """Return the URL of a loopback port that refuses connections, and that no other server gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@dataclass
class Tunnel:
    """Running proxy for CONNECT, with the targets it was asked for."""

    url: str
    opened: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def tunnel(user_password: str = "") -> AsyncIterator[Tunnel]:
    """Run a proxy on a free loopback port that only supports CONNECT, and requires a password if one is set."""
    running = Tunnel("")
    wanted = "Basic " + base64.b64encode(user_password.encode()).decode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        where = head.split(" ")[1]
        running.opened.append(where)
        if user_password and f"Proxy-Authorization: {wanted}" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        host, _, port = where.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield running
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while block := await reader.read(65_536):
            writer.write(block)
            await writer.drain()
    writer.close()
