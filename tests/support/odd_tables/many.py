"""Table of many rows, of which one in a hundred is odd in one of twenty ways: CSV written by rules of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from tests.support.odd_tables.table import ID, TEXT, Fate

EVERY: Final = 100
"""One record in this many is odd."""
NOTE: Final = "note"
"""Third column, which nobody asks about."""
LARGE: Final = 30_000
"""Characters of a prompt that is over ``PROMPT_TOKENS_MAX``."""
PROMPT_TOKENS_MAX: Final = 2_000


class Outcome(msgspec.Struct, frozen=True):
    """What becomes of a record, and its cells if it has a result line. Without cells the record is unreadable."""

    fate: Fate
    cells: dict[str, str] = {}
    error: str = ""
    """Begin of the error in the result line."""


Made = tuple[str | bytes, Outcome]


def _row(id: str, text: str, note: str = "") -> Made:  # noqa: A002
    written = (f'"{each.replace(chr(34), chr(34) * 2)}"' for each in (id, text, note))
    return ",".join(written), Outcome(Fate.ASKED, {ID: id, TEXT: text, NOTE: note})


def _unreadable(record: str | bytes) -> Made:
    return record, Outcome(Fate.TOLD)


def _failed(id: str, text: str, error: str) -> Made:  # noqa: A002
    return f"{id},{text},n", Outcome(Fate.TOLD, {ID: id, TEXT: text, NOTE: "n"}, error)


WAYS: Final[dict[str, Callable[[int], Made]]] = {
    "a lone CR": lambda i: _row(f"r{i}", f"It\rcrashes {i}\r"),
    "line breaks": lambda i: _row(f"r{i}", f"It\n\r\ncrashes {i}", "\n"),
    "NUL": lambda i: _row(f"r{i}", f"It\0crashes {i}", "\0"),
    "a mark in a cell": lambda i: _row(f"r{i}", f"\ufeffIt crashes {i}\n\ufeff", "\ufeff"),
    "separators of Unicode": lambda i: _row(f"r{i}", f"It\u2028crashes\u2029{i}\x85\x0b\x0c\x1c", "\u202e"),
    "quotes and delimiters": lambda i: _row(f"r{i}", f'"It", ""crashes"" {i};\t|', "'"),
    "formulas": lambda i: _row(f"r{i}", f"=HYPERLINK(\"{i}\")", "@SUM(1+1)*cmd|' /C calc'!A0"),
    "a URL as id": lambda i: _row(f"https://example.org/{i}?q=a,b&c=d#e", f"It crashes {i}", "{{text}}"),
    "an id of 2,048 characters": lambda i: _row(f"{i}-".ljust(2_048, "x"), f"It crashes {i}", "00042"),
    "a wide cell": lambda i: _row(f"r{i}", f"It crashes {i}", 'a"' * 10_000),
    "too few cells": lambda i: _unreadable(f"r{i},It crashes"),
    "too many cells": lambda i: _unreadable(f"r{i},It crashes,n,more"),
    "text after a quote": lambda i: _unreadable(f'r{i},"It" crashes,n'),
    "no UTF-8": lambda i: _unreadable(f"r{i},It crashes ".encode() + b"\xff\xfe,n"),
    "an id again": lambda i: _unreadable(f"r{i - 1},It crashes again,n"),
    "no id": lambda i: _unreadable(f" ,It crashes {i},n"),
    "the header again": lambda i: _unreadable(f"{ID},{TEXT},{NOTE}"),
    "no text": lambda i: _failed(f"r{i}", "\u3000 ", "rejected: there is nothing to ask"),
    "an id of 2,049 characters": lambda i: _failed(f"{i}-".ljust(2_049, "x"), "It crashes", "rejected: id has 2,049"),
    "a prompt that is too large": lambda i: _failed(f"r{i}", "x" * LARGE, "too_large: "),
}


def records(count: int) -> Iterator[Made]:
    """Yield records in order. An odd one stands in the middle of each ``EVERY``; its way is the next of ``WAYS``."""
    ways = list(WAYS.values())
    for i in range(count):
        if i % EVERY == EVERY // 2:
            yield ways[i // EVERY % len(ways)](i)
        else:
            yield f"r{i},It crashes {i} times,n", Outcome(Fate.ASKED, {ID: f"r{i}", TEXT: f"It crashes {i} times", NOTE: "n"})
