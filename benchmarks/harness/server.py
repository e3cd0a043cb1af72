"""Local provider cheap enough not to be the limit: it answers after a delay, for about 30 µs of CPU.

``POST /v1/messages``, ``POST /v1/chat/completions`` and ``POST /v1/responses`` are answered alike, each in its form.

Runs in its own process: ``python -m benchmarks.harness.server``, or ``RunningServer``. Of a request it reads the
number (``row 000123`` in the prompt) and whether structured output is wanted; it repeats the number in the answer,
plain or as JSON with the fields of ``benchmarks.table``, and counts how often each number came. ``GET /counts``
returns the counts, ``POST /reset`` clears them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
import urllib.request
from array import array
from heapq import heappop, heappush
from types import TracebackType
from typing import cast

import msgspec

MARK = b"row "
"""Marker before a request's number in its prompt."""
DIGITS = 6
CALLS_MAX = 10**DIGITS
GOLDEN = 0.618034
"""Golden section: its multiples modulo 1 lie far apart, and so do the delays of neighbouring numbers."""
SWEEP_S = 0.001
"""Seconds between sweeps; one sweep sends all answers that are due."""

_ANSWER = (
    b'{"id":"msg_%06d","type":"message","role":"assistant","model":"bench",'
    b'"content":[{"type":"text","text":"row %06d"}],"stop_reason":"end_turn","stop_sequence":null,'
    b'"usage":{"input_tokens":40,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":4,'
    b'"service_tier":"standard"}}'
)
_COMPLETION = (
    b'{"id":"chatcmpl-%06d","object":"chat.completion","created":1790000000,"model":"bench",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"row %06d","refusal":null},"logprobs":null,'
    b'"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":40,"completion_tokens":4,"total_tokens":44,"prompt_tokens_details":{"cached_tokens":0}},'
    b'"service_tier":"default"}'
)
_RESPONSE = (
    b'{"id":"resp_%06d","object":"response","created_at":1790000000,"status":"completed","error":null,'
    b'"incomplete_details":null,"instructions":null,"model":"bench","output":[{"id":"msg_1","type":"message",'
    b'"status":"completed","role":"assistant",'
    b'"content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"row %06d"}]}],"parallel_tool_calls":true,'
    b'"usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":0},"output_tokens":4,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":44},"store":false}'
)
_PLAIN, _TYPED = b'"row %06d"', rb'"{\"number\":%d,\"parity\":\"%b\",\"share\":%.3f,\"said\":\"row %06d\"}"'
_FORMS = (_ANSWER, _COMPLETION, _RESPONSE)
_FITTING = tuple(form.replace(_PLAIN, _TYPED) for form in _FORMS)
_STRUCTURED = (b'"output_config"', b'"response_format"', b'"json_schema"')
_PATHS = (b"post /v1/messages ", b"post /v1/chat/completions ", b"post /v1/responses ")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nrequest-id: req_%06d\r\ncontent-length: %d\r\n\r\n"


class Counts(msgspec.Struct):
    """Counts since the last reset. Times are seconds of one monotonic clock."""

    requests: int = 0
    distinct: int = 0
    doubled: int = 0
    connections: int = 0
    in_flight_max: int = 0
    held_s: float = 0.0
    """Sum of the seconds that all answered requests spent here."""
    first_s: float = 0.0
    """Time of the first request."""
    last_s: float = 0.0
    """Time of the last answer."""
    cpu_s: float = 0.0
    """CPU seconds of the server."""

    @property
    def calls_per_s(self) -> float:
        """Return answered requests a second, from the first request to the last answer."""
        return self.requests / (self.last_s - self.first_s) if self.last_s > self.first_s else 0.0

    @property
    def in_flight_mean(self) -> float:
        """Return the mean number of requests at the server."""
        return self.held_s / (self.last_s - self.first_s) if self.last_s > self.first_s else 0.0


def answer(number: int, api: int = 0, fitting: bool = False) -> bytes:
    """Return a whole response to the request of this number. ``api``: 0, a message; 1, a chat completion; 2, a
    response of OpenAI's Responses API. ``fitting``: to a request with a schema."""
    if fitting:
        parity = (b"even", b"odd")[number & 1]
        body = _FITTING[api] % (number, number, parity, number % 1_000 / 1_000, number)
    else:
        body = _FORMS[api] % (number, number)
    return _HEAD % (number, len(body)) + body


class Board:
    """Counts, and the answers that wait for their time."""

    def __init__(self, delay_s: float, spread: float = 0.0) -> None:
        """Set the delay. ``spread``: largest share by which answers come sooner or later, fixed by their number."""
        self._delay_s, self._spread = delay_s, spread
        self._waiting: list[tuple[float, int, asyncio.Transport, int, int, bool]] = []
        """Heap ordered by due time; the second item breaks ties by order of arrival."""
        self._sweeping, self._came = False, 0
        self._loop = asyncio.get_running_loop()
        self.reset()

    def reset(self) -> None:
        """Clear the counts."""
        self.counts = Counts()
        self._seen = array("I", bytes(4 * CALLS_MAX))
        self._cpu_s = time.process_time()

    def said(self) -> bytes:
        """Return the counts as JSON."""
        self.counts.cpu_s = time.process_time() - self._cpu_s
        return msgspec.json.encode(self.counts)

    def take(self, transport: asyncio.Transport, body: bytes | bytearray, api: int) -> None:
        """Take one request by an API (``answer``); its answer leaves after its delay."""
        now_s = time.monotonic()
        if (at := body.find(MARK)) < 0:  # request of a client that checks limits first, not a call
            self._wait(now_s + self._delay_s, transport, 0, api, _STRUCTURED[api] in body)
            return
        start = at + len(MARK)
        number = int(body[start : start + DIGITS])
        before = self._seen[number]
        self._seen[number] = before + 1
        self.counts.requests += 1
        self.counts.distinct += before == 0
        self.counts.doubled += before == 1
        if not self.counts.first_s:
            self.counts.first_s = now_s
        delay_s = self._delay_s
        if self._spread:
            delay_s *= 1 + self._spread * (2 * (number * GOLDEN % 1) - 1)
        self._wait(now_s + delay_s, transport, number, api, _STRUCTURED[api] in body)

    def _wait(self, due_s: float, transport: asyncio.Transport, number: int, api: int, fitting: bool) -> None:
        self._came += 1
        heappush(self._waiting, (due_s, self._came, transport, number, api, fitting))
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later((1 - self._spread) * self._delay_s, self._sweep)

    def _sweep(self) -> None:
        now_s = time.monotonic()
        waiting, held_s = self._waiting, 0.0
        self.counts.in_flight_max = max(self.counts.in_flight_max, len(waiting))
        while waiting and waiting[0][0] <= now_s:
            due_s, _, transport, number, api, fitting = heappop(waiting)
            held_s += now_s - due_s + self._delay_s  # mean, if there is a spread
            if not transport.is_closing():
                transport.write(answer(number, api, fitting))
        self.counts.last_s = now_s
        self.counts.held_s += held_s
        if waiting:
            next_s = SWEEP_S if self._spread else max(SWEEP_S, waiting[0][0] - now_s)  # later ones may be due earlier
            self._loop.call_later(next_s, self._sweep)
        else:
            self._sweeping = False


class Connection(asyncio.Protocol):
    """HTTP/1.1 connection with keep-alive: requests with a Content-Length, one after another."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._buffer = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport of a new connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._board.counts.connections += 1

    def data_received(self, data: bytes) -> None:
        """Take every complete request."""
        buffer = self._buffer
        buffer += data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(buffer[:end]).lower()
            size = 0
            if (at := head.find(b"content-length:")) >= 0:
                size = int(head[at + 15 :].split(b"\r\n", 1)[0])
            whole = end + 4 + size
            if len(buffer) < whole:
                return
            api = next((at for at, path in enumerate(_PATHS) if head.startswith(path)), -1)
            if api >= 0:
                self._board.take(self._transport, buffer[end + 4 : whole], api)
            else:
                self._other(head)
            del buffer[:whole]

    def _other(self, head: bytes) -> None:
        if head.startswith(b"post /reset "):
            self._board.reset()
        status, body = b"200 OK", self._board.said()
        if not head.startswith((b"get /counts ", b"post /reset ")):
            status, body = b"404 Not Found", b'{"type":"error","error":{"type":"not_found_error","message":"not here"}}'
        lines = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(lines + body)


async def serve(delay_s: float, port: int, spread: float = 0.0) -> None:
    """Print the port on standard output; serve until standard input ends."""
    loop = asyncio.get_running_loop()
    board = Board(delay_s, spread)
    server = await loop.create_server(lambda: Connection(board), "127.0.0.1", port, backlog=1_024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


class RunningServer:
    """Server in its own process, which ends with this one."""

    def __init__(self, delay_ms: float = 20.0, spread: float = 0.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.server", "--delay-ms", str(delay_ms), "--spread", str(spread)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # end of input is the signal to stop
        self._process.wait(10)
        self._process.stdout.close()

    def counts(self) -> Counts:
        """Return the counts since the last reset."""
        with self._opener.open(f"{self.url}/counts", timeout=10) as answer:
            return msgspec.json.decode(answer.read(), type=Counts)

    def reset(self) -> None:
        """Clear the counts."""
        with self._opener.open(f"{self.url}/reset", data=b"", timeout=10):
            pass


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--spread", type=float, default=0.0, help="largest deviation, as a share of the delay")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        import uvloop

        uvloop.run(serve(given.delay_ms / 1_000, given.port, given.spread))


if __name__ == "__main__":
    main()
