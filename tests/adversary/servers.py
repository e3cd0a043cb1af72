"""Hostile Messages servers: wrong HTTP, wrong JSON, endless bodies, lies about time, keys and other rows.

Of six rows two get honest answers. Whatever the server does to the others, the command ends in time, with bounded
memory, and no row has another row's answer.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.adversary.verdicts import Attack, Verdict
from tests.adversary.victim import KEY, WITHIN_S, Victim, results_of, write_requests, wrong_rows
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, Step, chunked, compact, http

ROWS = 6
HONEST = 2
"""Rows that get honest answers, the last ones."""
DEADLINE = "+15s"
"""Deadline of the job: after it nothing new is asked, and the command ends."""
PEAK_MB = 700.0
"""Memory of a command at most: a body may have 64 MB, and four are read at once."""
ESC = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
SHORT = ("endless body", "drip", "header flood", "gzip bomb", "redirect", "escapes in an error", "key in an error",
         "huge usage", "deep reply", "half a reply", "not json", "retry after 3,000 years")  # fmt: skip


def attacks(short: bool) -> Iterator[Attack]:
    """Yield an attack for each mode."""
    for mode in SHORT if short else MODES:
        yield Attack("servers", mode, partial(_mode, mode))


def _message(row: str, **changed: Any) -> dict[str, Any]:
    return {**MESSAGE, "content": [{"type": "text", "text": f"answer of {row}"}], **changed}


def _error(message: str, status: int = 400, kind: str = "invalid_request_error", **headers: str) -> Answer:
    return http({"type": "error", "error": {"type": kind, "message": message}}, status, **headers)


def _raw(head: str, body: bytes = b"") -> Answer:
    return [head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body]


def _endless(piece: bytes, head: bytes) -> Any:
    """Send a head, and a piece again and again; the client must hang up."""
    return itertools.chain([head], itertools.repeat(piece))


def _with_usage(**counts: Any) -> Callable[[str], Any]:
    return lambda row: http(_message(row, usage={**MESSAGE["usage"], **counts}))


def _packed(data: bytes, encoding: str, head: str = "") -> Answer:
    fields = f"content-type: application/json\ncontent-encoding: {encoding}\ncontent-length: {len(data)}{head}"
    return _raw(f"HTTP/1.1 200 OK\n{fields}", data)


def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(400)), packer.flush()])


def _deep(depth: int) -> bytes:
    return compact(_message("x")).replace(b'"answer of x"', b'{"a":' * depth + b"1" + b"}" * depth)


_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_CHUNKS = _OK + b"transfer-encoding: chunked\r\n\r\n"
_MB = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
MODES: dict[str, Callable[[str], Iterable[bytes | Step]]] = {
    "endless body": lambda row: _endless(_MB, _CHUNKS),
    "endless head": lambda row: _endless(b"x-more: " + b"y" * 4_000 + b"\r\n", _OK),
    "endless 100 Continue": lambda row: _endless(b"HTTP/1.1 100 Continue\r\n\r\n", b""),
    "header flood": lambda row: [_OK + b"".join(b"x-%d: y\r\n" % at for at in range(50_000)) + b"\r\n{}"],
    "drip": lambda row: _slowly(_CHUNKS, b"1\r\n \r\n"),
    "drip of the head": lambda row: _slowly(b"HTTP/1.1 200 OK\r\n", b"x"),
    "body of 100 MB": lambda row: http(b'{"a":"' + b"x" * 100_000_000 + b'"}'),
    "gzip bomb": lambda row: _packed(_bomb(), "gzip"),
    "gzip in gzip": lambda row: _packed(gzip.compress(gzip.compress(compact(_message(row)))), "gzip"),
    "gzip that is none": lambda row: _packed(compact(_message(row)), "gzip"),
    "br that is none": lambda row: _packed(compact(_message(row)), "br"),
    "http/2 bytes": lambda row: [b"\0\0\x12\4\0\0\0\0\0" + b"\0" * 18],
    "http/0.9": lambda row: [compact(_message(row)), Step.CUT],
    "101": lambda row: _raw("HTTP/1.1 101 Switching Protocols\nupgrade: websocket\nconnection: upgrade"),
    "204": lambda row: _raw("HTTP/1.1 204 No Content"),
    "status 999": lambda row: _raw("HTTP/1.1 999 Odd\ncontent-length: 2", b"{}"),
    "two lengths": lambda row: _raw("HTTP/1.1 200 OK\ncontent-length: 2\ncontent-length: 20", b"{}"),
    "length and chunks": lambda row: _raw("HTTP/1.1 200 OK\ncontent-length: 3\ntransfer-encoding: chunked", b"0\r\n\r\n"),
    "length too large": lambda row: [*_raw(f"HTTP/1.1 200 OK\ncontent-length: {1 << 40}", b"{}"), Step.CUT],
    "length below zero": lambda row: _raw("HTTP/1.1 200 OK\ncontent-length: -1", b"{}"),
    "carriage return in a header": lambda row: _raw("HTTP/1.1 200 OK\nx: a\rb\ncontent-length: 2", b"{}"),
    "nothing": lambda row: [Step.CUT],
    "reset": lambda row: [Step.RESET],
    "silence": lambda row: [Step.HANG],
    "half a reply": lambda row: [http(_message(row))[0][:-20], Step.CUT],  # type: ignore[index]
    "redirect": lambda row: _raw("HTTP/1.1 307 T\nlocation: http://127.0.0.1:9/v1/messages\ncontent-length: 0"),
    "redirect to a file": lambda row: _raw("HTTP/1.1 302 F\nlocation: FILE:/etc/passwd\ncontent-length: 0"),
    "not json": lambda row: http(b"yes"),
    "empty object": lambda row: http({}),
    "a list": lambda row: http(b"[]"),
    "null": lambda row: http(b"null"),
    "half a surrogate pair": lambda row: http(compact(_message(row)).replace(b"answer", b"\\ud800")),
    "nul in the text": lambda row: http(compact(_message(row)).replace(b"answer", b"\\u0000")),
    "deep reply": lambda row: http(_deep(100_000)),
    "huge usage": _with_usage(input_tokens=9 * 10**18, output_tokens=9 * 10**18),
    "usage beyond 64 bits": _with_usage(input_tokens=10**40),
    "usage below zero": _with_usage(input_tokens=-5, output_tokens=-5),
    "usage is text": _with_usage(input_tokens="many"),
    "same id for all": lambda row: http(_message(row, id="msg_same")),
    "duplicate keys": lambda row: http(compact(_message(row))[:-1] + b',"content":[]}'),
    "two answers": lambda row: [*http(_message(row)), *http(_message("another"))],
    "escapes in an error": lambda row: _error(f"no {ESC}", kind=f"bad{ESC}"),
    "key in an error": lambda row: _error(f"bad key {KEY}", 400),
    "key in a page": lambda row: http(f"<html><title>{KEY}</title>".encode(), 403, "text/html"),
    "retry after 3,000 years": lambda row: _error("later", 429, "rate_limit_error", retry_after=str(3_000 * 31_536_000)),
    "retry after nonsense": lambda row: _error("later", 429, "rate_limit_error", retry_after="-1e999"),
    "limits of nonsense": lambda row: http(
        _message(row), anthropic_ratelimit_requests_remaining="-9", anthropic_ratelimit_requests_reset="never"
    ),
    "stream in place of json": lambda row: chunked(b"event: ping\ndata: {}\n\n" * 3),
}  # fmt: skip
"""Modes by name."""


def _slowly(head: bytes, piece: bytes) -> Iterator[bytes]:
    yield head
    until_s = time.monotonic() + 2 * WITHIN_S
    while time.monotonic() < until_s:
        time.sleep(0.2)  # in the server's own thread
        yield piece


def _answer(mode: str, asked: Asked) -> Any:
    found = re.search(rb"Say (r\d+)", asked.body)
    row = found[1].decode() if found else "nobody"
    if found is None or int(row[1:]) >= ROWS - HONEST:
        return http(_message(row))
    return MODES[mode](row)


def _mode(mode: str, folder: Path) -> Verdict:
    names = write_requests(folder / "in.jsonl", ROWS)
    with served(partial(_answer, mode)) as server:
        victim = Victim(folder, server.url)
        ended = victim.run(
            "batch", "in.jsonl", "-o", "out.jsonl", "--job", "j", "--concurrency", 4, "--deadline", DEADLINE,
            "--timeout", "5s", within_s=WITHIN_S,
        )  # fmt: skip
        asked = len(server.asked)
    found = results_of(folder / "out.jsonl")
    wrong = [*ended.faults(), *victim.keys_in_files(), *filter(None, [wrong_rows(found, names, whole=False)])]
    if ended.code not in (0, 1, 3):
        wrong.append(f"exit code {ended.code} after {ended.took_s:.0f} s: {ended.text[-200:]}")
    if ended.peak_mb > PEAK_MB:
        wrong.append(f"{ended.peak_mb:.0f} MB")
    for name, (result, *_) in found.items():
        text = json.dumps(result)
        others = [other for other in (*names, "another") if other != name and f"answer of {other}" in text]
        if others:
            wrong.append(f"{name} has the answer of {others[0]}")
    good = [name for name in names[-HONEST:] if f"answer of {name}" in json.dumps(found.get(name, ""))]
    told = f"exit code {ended.code}, {len(good)} of {HONEST} honest rows, {asked} requests, {ended.peak_mb:.0f} MB"
    return Verdict(not wrong, "; ".join(wrong) or told)
