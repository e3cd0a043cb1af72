"""Table of which one record in a hundred is odd, in twenty ways in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

EVERY: Final = 100

BAD: Final[dict[str, bytes]] = {
    "too few cells": b"%s,a\n",
    "too many cells": b"%s,a,b,c\n",
    "a quote that is never closed": b'%s,"never closed,1\n',
    "text after a closing quote": b'%s,"a" b,1\n',
    "bytes that are no UTF-8": b"%s,caf\xe9,1\n",
    "an id again": b"r0,again %s,1\n",
    "no id": b" ,text %s,1\n",
    "the header again": b"id,text,n\n",
}
"""Records that are no rows; ``%s`` is the place of the id."""
REFUSED: Final[dict[str, bytes]] = {"no text": b"%s,,1\n", "a long id": b"%s" + b"i" * 3_000 + b",a,1\n"}
"""Rows that are not sent."""
BLANK: Final[dict[str, bytes]] = {"an empty line": b"\n", "white space": b"  \t\n"}
"""Lines that are no records."""
ASKED: Final[dict[str, tuple[bytes, str]]] = {
    "NUL": (b"%s,a\0b,1\n", "a\0b"),
    "CR": (b'%s,"a\rb",1\n', "a\rb"),
    "CR LF": (b'%s,"a\r\nb",1\r\n', "a\r\nb"),
    "a mark": (b"\xef\xbb\xbf%s,a,1\n", "a"),
    "a huge cell": (b'%s,"' + b"ab c,d " * 20_000 + b'",1\n', "ab c,d " * 20_000),
    "several lines": (b'%s,"a\nb\nc",1\n', "a\nb\nc"),
    "doubled quotes": (b'%s,"say ""hi"", ""you""",1\n', 'say "hi", "you"'),
    "a line separator": ("%s,a\u2028b \U0001f600,1\n".encode(), "a\u2028b \U0001f600"),
}
"""Rows that are asked, with their texts."""
WAYS: Final = (*BAD, *REFUSED, *BLANK, *ASKED)


class TwentyWays(msgspec.Struct):
    """Records of such a table, by what becomes of them."""

    texts: dict[str, str] = {}
    """Texts of the rows that are asked, by id."""
    refused: list[str] = []
    """Ids of the rows that are not sent."""
    bad: list[bytes] = []
    """Records that are no rows, as they stand in the file."""


def write(path: Path, count: int) -> TwentyWays:
    """Write a table of ``count`` lines or records below its header, and return what becomes of each."""
    found = TwentyWays()
    with path.open("wb") as file:
        file.write(b"id,text,n\n")
        for place in range(count):
            key = f"r{place}"
            if place % EVERY != EVERY // 2:
                file.write(f"{key},é of {place},{place}\n".encode())
                found.texts[key] = f"é of {place}"
                continue
            way = WAYS[place // EVERY % len(WAYS)]
            record = (BAD | REFUSED | BLANK).get(way) or ASKED[way][0]
            record = record.replace(b"%s", key.encode())
            file.write(record)
            if way in BAD:
                found.bad.append(record)
            elif way in REFUSED:
                found.refused.append(record.decode().partition(",")[0])
            elif way in ASKED:
                found.texts[key] = ASKED[way][1]
    return found
