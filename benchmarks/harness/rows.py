"""Requests of the benchmarks as bodies and input files, and checks of their answers."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from benchmarks.harness.server import CALLS_MAX

MODEL = "bench"
OUTPUT_TOKENS_MAX = 16
_FILL = "The quick brown fox jumps over the lazy dog. "


def prompt(number: int, size_bytes: int = 0) -> str:
    """Return the prompt of one call, at least ``size_bytes`` long. The benchmarks' server finds the number in it."""
    text = f"Repeat this and nothing else: row {number:06d}"
    missing = size_bytes - len(text) - 1
    return text if missing <= 0 else f"{text} {(_FILL * (missing // len(_FILL) + 1))[:missing]}"


def params(number: int, size_bytes: int = 0) -> dict[str, object]:
    """Return one Messages request."""
    messages = [{"role": "user", "content": prompt(number, size_bytes)}]
    return {"model": MODEL, "max_tokens": OUTPUT_TOKENS_MAX, "messages": messages}


def write_input(path: Path, calls: int, size_bytes: int = 0) -> None:
    """Write an input of `cortex batch`. ``size_bytes``: approximate length of a line."""
    if calls > CALLS_MAX:
        raise ValueError(f"at most {CALLS_MAX} calls can be told apart, not {calls}")
    around = len(_line(0, 0)) - len(prompt(0))
    with path.open("wb") as out:
        for number in range(calls):
            out.write(_line(number, size_bytes - around))


def _line(number: int, prompt_bytes: int) -> bytes:
    return msgspec.json.encode({"custom_id": f"r{number:06d}", "params": params(number, prompt_bytes)}) + b"\n"


class _Block(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    content: list[_Block]


class _Result(msgspec.Struct):
    type: str
    message: _Message | None = None


class _Row(msgspec.Struct):
    custom_id: str
    result: _Result


class Lost(AssertionError):
    """Error: a call was lost, doubled or swapped, so the run has no figure."""


def results(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (custom_id, text of the answer) of each result line; the result's type if there is no message."""
    decoder = msgspec.json.Decoder(_Row)
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        for line in lines:
            row = decoder.decode(line)
            message = row.result.message
            text = row.result.type if message is None else message.content[0].text
            yield row.custom_id, text


def check_all(found: Iterable[tuple[str, str]], calls: int, echoed: bool = True) -> None:
    """Check that every call has exactly one answer, its own (``echoed``). Raises ``Lost``."""
    seen = bytearray(calls)
    for key, text in found:
        number = int(key[1:])
        if seen[number]:
            raise Lost(f"{key} has two results")
        if echoed and text != f"row {number:06d}":
            raise Lost(f"{key} has the answer {text!r}")
        seen[number] = 1
    if missing := seen.count(0):
        raise Lost(f"{missing} of {calls} calls have no result, the first is r{seen.index(0):06d}")
