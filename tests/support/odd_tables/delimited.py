"""Odd CSV and TSV files, written by rules of their own: nothing is shared with the reader under test."""

from __future__ import annotations

import gzip
from typing import Any

from hypothesis import strategies as st

from tests.support.odd_tables.table import ID, TEXT, TOLD_MAX, Fate, OddTable, Record, asked_texts, cells, ids

ENCODINGS = ("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1", "shift_jis", "utf-16-le")
DETECTED = ("utf-8", "utf-8-sig", "utf-16")
"""Encodings that are known by the first bytes of any file. Others are known if the text is common enough."""
NAMES = ("team", "Team", "", "größe", "line\nbreak", 'a "name"', "x,y", "a;b", "=1", "null", "a\tb", " padded ")
"""Names of further columns. A blank one becomes ``column_`` with its place; spaces around a name are removed."""
LONG_ID = 2_049
"""Characters of an id that is refused."""
ODD = ("no text", "long id", "no id", "id again", "short", "long", "after a quote", "not UTF-8")
"""Records that are told."""


def _cell(text: str, delimiter: str, always: bool) -> str:
    """Return a cell as RFC 4180 writes it."""
    special = always or any(each in text for each in (delimiter, '"', "\r", "\n")) or text.startswith("\ufeff")
    return '"' + text.replace('"', '""') + '"' if special else text


class _Writer:
    """Content of a file, with the line in which each record begins."""

    def __init__(self, delimiter: str, always: bool, encoding: str) -> None:
        self.delimiter, self._always, self._encoding = delimiter, always, encoding
        self.content = b""
        self.line = 1

    def cells(self, values: list[str]) -> str:
        """Return a record without its end."""
        return self.delimiter.join(_cell(value, self.delimiter, self._always) for value in values)

    def add(self, text: str, raw: bytes = b"") -> None:
        """Add text, and bytes that are none in the encoding."""
        self.content += text.encode(self._encoding) + raw
        self.line += text.count("\n")


@st.composite
def delimited_tables(draw: Any, encodings: tuple[str, ...] = ENCODINGS, line_ends: str = "any") -> OddTable:
    """Return CSV and TSV files.

    ``line_ends``: ``any``; or ``lf``, without a carriage return that ends a line.
    """
    encoding = draw(st.sampled_from(encodings))
    suffix = draw(st.sampled_from([".csv", ".csv", ".tsv", ".csv.gz"]))
    delimiter = "\t" if suffix == ".tsv" else draw(st.sampled_from(",,;|\t"))
    plain = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le"}.get(encoding, encoding)
    table = _Writer(delimiter, draw(st.booleans()), plain)
    ends = {"lf": ["\n"], "any": draw(st.sampled_from([["\n"], ["\r\n"], ["\n", "\r\n"], ["\r"]]))}[line_ends]
    end = st.sampled_from(ends)
    fits = [name for name in NAMES if name.encode(plain, "ignore").decode(plain) == name]
    more = draw(st.lists(st.sampled_from(fits), max_size=3, unique_by=str.strip))
    header = draw(st.permutations([ID, TEXT, *more]))
    columns = [name.strip() or f"column_{place}" for place, name in enumerate(header, 1)]
    table.add({"utf-8-sig": "\ufeff", "utf-16": "\ufeff"}.get(encoding, "") + table.cells(header) + draw(end))
    records: list[Record] = []
    for place in range(draw(st.integers(1, 7))):
        if draw(st.integers(0, 9)) == 0:
            table.add(draw(st.sampled_from(["", "", "   "])) + draw(end))  # a blank line is no record
        texts = {name: draw(cells(plain)) for name in columns}
        texts |= {ID: draw(ids(place, plain)), TEXT: draw(asked_texts(plain))}
        odd = "plain" if not place or draw(st.booleans()) else draw(st.sampled_from(ODD))
        repeats = sum(each.odd == "id again" for each in records)
        if (odd == "not UTF-8" and plain != "utf-8") or (odd == "id again" and repeats * 2 >= len(records)):
            odd = "plain"  # a column that most records repeat is refused as no id
        records.append(_add(draw, table, odd, texts, records))
        table.add(draw(end))
    if draw(st.booleans()):  # no line end after the last record
        table = _without_last_end(table, plain)
    if len(records) < TOLD_MAX and draw(st.integers(0, 9)) == 0 and ends != ["\r"]:
        table.add(draw(end))
        records.append(Record(Fate.TOLD, "an open quote", line=table.line))
        table.add(f'open{table.delimiter}"never closed')
    lone_cr = "\r" in table.content.decode(plain, "replace").replace("\r\n", "")
    if lone_cr:  # a line is what ends in CR too, or only what ends in LF: both are right
        records = [Record(each.fate, each.odd, each.cells) for each in records]
    content = gzip.compress(table.content, mtime=0) if suffix.endswith(".gz") else table.content
    options = {} if encoding in DETECTED else {"encoding": encoding}
    return OddTable(f"odd{suffix}", content, columns, records, options, {"delimiter": delimiter, "quoting": "minimal"})


def _without_last_end(table: _Writer, encoding: str) -> _Writer:
    text = table.content
    for end in ("\r\n", "\n", "\r"):
        raw = end.encode(encoding)
        if text.endswith(raw):
            table.content, table.line = text[: -len(raw)], table.line - end.count("\n")
            return table
    return table


def _add(draw: Any, table: _Writer, odd: str, texts: dict[str, str], before: list[Record]) -> Record:
    """Add a record and return what it is."""
    line = table.line
    known = [each.cells[ID] for each in before if each.fate is Fate.ASKED]
    if odd == "no text":
        texts[TEXT] = draw(st.sampled_from(["", " ", "\u2003 "]))
    elif odd == "long id":
        texts[ID] = "i" * LONG_ID
    elif odd == "no id":
        texts[ID] = draw(st.sampled_from(["", " "]))
    elif odd == "id again":
        texts[ID] = draw(st.sampled_from(known))
    if odd in ("short", "long", "after a quote", "not UTF-8"):
        return _add_broken(table, odd, len(texts), line)
    try:
        table.add(table.cells(list(texts.values())))
    except UnicodeEncodeError:  # a space that the encoding has not
        texts[TEXT] = " "
        table.add(table.cells(list(texts.values())))
    return Record(Fate.ASKED, odd, texts, line) if odd == "plain" else Record(Fate.TOLD, odd, line=line)


def _add_broken(table: _Writer, odd: str, width: int, line: int) -> Record:
    """Add a record of one line that is no row."""
    some = [f"s{place}" for place in range(width)]
    if odd == "short":
        table.add(table.cells(some[:-1]))
    elif odd == "long":
        table.add(table.cells([*some, "more"]))
    elif odd == "after a quote":
        table.add(table.delimiter.join([*some[:-1], '"a" b']))
    else:
        table.add(table.cells(some), b"\xff")
    return Record(Fate.TOLD, odd, line=line)
