"""Odd table: a file, the options that read it, and what becomes of each of its records."""

from __future__ import annotations

import codecs
import gzip
from enum import StrEnum
from typing import Any

import msgspec
from hypothesis import strategies as st

ID, TEXT = "id", "text"
TOLD_MAX = 8
"""Records of a table that are told: ``Answers.bad`` lists the first ten."""


class Fate(StrEnum):
    """What becomes of a record."""

    ASKED = "asked"
    """The row has one result line, with an answer."""
    TOLD = "told"
    """The record is told among the bad ones. The output has a line with an error for it, or none."""


class Record(msgspec.Struct, frozen=True):
    """Record of a table."""

    fate: Fate
    odd: str
    """What is odd about the record; ``plain`` for nothing."""
    cells: dict[str, Any] = {}
    """Values by column, if the row is asked."""
    line: int = 0
    """Line of the file in which the record begins, from 1; the row, from 1, of Parquet. 0: not known."""


class OddTable(msgspec.Struct, frozen=True):
    """Table with its records in order."""

    name: str
    content: bytes
    columns: list[str]
    """Columns as the results name them."""
    records: list[Record]
    options: dict[str, Any] = {}
    """Options of ``cortex.batch`` without which the file is another one."""
    if_unclear: dict[str, Any] = {}
    """Options that are given if the file is refused as unclear without them."""

    @property
    def text(self) -> bytes:
        """Content after decompression."""
        return gzip.decompress(self.content) if self.name.endswith(".gz") else self.content

    @property
    def is_utf8(self) -> bool:
        """Whether the content is text in UTF-8."""
        utf_16 = self.text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return bool(self.content) and not (self.name.endswith(".parquet") or utf_16 or "encoding" in self.options)

    @property
    def asked(self) -> list[Record]:
        """Records that are asked, in order."""
        return [record for record in self.records if record.fate is Fate.ASKED]

    @property
    def told(self) -> list[Record]:
        """Records that are told, in order."""
        return [record for record in self.records if record.fate is Fate.TOLD]


_FRAGMENTS = (
    "a", "word", "Zeile", " ", "  ", '"', '""', "'", "\r", "\n", "\r\n", "\n\n", "\r\r\n", "\0", "\ufeff", "\u2028", "\u2029",
    "\x85", "\x0b", "\x0c", "\x1a", "\x1c", "\x7f", "\xa0", ",", ";", "\t", "|", "\\", "\\n", '\\"', "=1+1", "@SUM(A1)", "-1",
    "+1", "#", "NULL", "NaN", "None", "null", "N/A", "true", "2024-02-30", "2024-01-01T00:00:00Z", "00042", "1e5", ".5",
    "9007199254740993", "1,000.50", "{{text}}", "{{", "}}", "<b>&amp;", '{"a": 1}', "[1]", "%s", "é", "ß", "€", "Ω", "日本",
    "漢字", "😀", "e\u0301", "\u202e", "\u200b", "\ufffd", "https://example.org/a?b=c&d=e,f",
)  # fmt: skip
"""Pieces of cells that readers and writers of tables are known to mistake."""
HUGE = 70_000
"""Characters of a huge cell: more than a line buffer, and more than the limit of a field of ``csv`` (131,072) if each
of its quotes is doubled."""


def _fits(text: str, encoding: str) -> bool:
    try:
        return text.encode(encoding).decode(encoding) == text
    except UnicodeError:
        return False


def cells(encoding: str = "utf-8") -> st.SearchStrategy[str]:
    """Return texts of odd pieces, some of them huge, that the encoding has."""
    pieces = [each for each in _FRAGMENTS if _fits(each, encoding)]
    small = st.lists(st.sampled_from(pieces), max_size=4).map("".join)
    huge = st.sampled_from(["x", '"', "ab\n"]).map(lambda piece: (piece * HUGE)[:HUGE])
    return st.one_of(small, small, small, small, small, small, small, small, huge)


def asked_texts(encoding: str = "utf-8") -> st.SearchStrategy[str]:
    """Return texts that hold something to ask."""
    return cells(encoding).map(lambda text: text if text.strip() else text + "ask")


_IDS = (
    "r{n}", "{n}", "{n:05}", "https://example.org/{n}?q=a,b&c=d;e", "ключ {n}", "日本-{n}", 'the "{n}"', "{n}\nand more",
    "{n}\tor", "/data/{n}/" + "deep/" * 30, "u:" + "x" * 2_000 + "{n}", "4-{n}-{n}", "={n}", "naïve-{n}", "{n}.0",
)  # fmt: skip


def ids(place: int, encoding: str = "utf-8") -> st.SearchStrategy[str]:
    """Return ids that no other place gets."""
    return st.sampled_from([made for each in _IDS if _fits(made := each.format(n=f"7{place}"), encoding)])
