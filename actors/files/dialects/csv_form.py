"""Form of a CSV file: delimiter, quoting, lines above the header and line ends, found in the file's first records.

The delimiter is found as DuckDB's sniffer does: the first records are read with each candidate, and the candidate is
taken under which most records have the same number of cells
(https://duckdb.org/2023/10/27/csv-sniffer). The count that matters is that of the header. The columns that the prompt
and ``--id`` name decide first: they stand in the header under one candidate only, nearly always.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from actors.files.dialects.dialect import BACKSLASH, NONE, Dialect

DELIMITERS: Final = ",;\t|"
_NAMES: Final = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
RECORDS_MAX: Final = 1_000
"""Records that are examined."""
SAMPLE_BYTES: Final = 262_144
"""Bytes that are examined."""
TITLE_LINES_MAX: Final = 50
"""Lines in which a header below titles is looked for."""
CLOSE: Final = 0.02
"""Difference between the shares of alike records below which two delimiters are equally likely."""

_LONE_CR: Final = re.compile(rb"\r[^\n]")
_SEP_LINE: Final = re.compile(r'"?sep=(.)"?[\r\n]*', re.IGNORECASE)
"""First line by which Excel is told the delimiter."""


CELL_MAX: Final = 1 << 30
"""Characters of the largest cell that the csv module reads; by default it refuses one over 131,072."""


def allow_large_cells() -> None:
    """Let the csv module read cells of up to ``CELL_MAX`` characters.

    The limit holds for the whole process: it is never lowered, for others read CSV in it as well.
    """
    if csv.field_size_limit() < CELL_MAX:
        csv.field_size_limit(CELL_MAX)


class CsvForm(msgspec.Struct, frozen=True):
    """Form in which a CSV file is read."""

    delimiter: str = ","
    quoting: str = ""
    """Quoting as given: one of ``dialect.QUOTINGS``, or empty."""
    skip_lines: int = 0
    universal: bool = False
    """True if CR alone ends a line too."""

    @property
    def delimiter_name(self) -> str:
        """Name of the delimiter for errors."""
        return _NAMES.get(self.delimiter, "delimiter")

    def reader(self, lines: Iterator[str]) -> Any:
        """Return a reader of the records in these lines."""
        allow_large_cells()
        if self.quoting == NONE:
            return csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE, strict=True)
        escape = "\\" if self.quoting == BACKSLASH else None
        return csv.reader(lines, delimiter=self.delimiter, escapechar=escape, strict=True)


class Candidate(msgspec.Struct, frozen=True):
    """Delimiter, with the first record and the share of the records that are as wide."""

    delimiter: str
    names: tuple[str, ...]
    share: float


class UnclearForm(ValueError):
    """CSV file whose form is ambiguous, or not read unless an option says so. The message follows the file's name."""


def form_of(sample: bytes, given: Dialect, *, cut: bool, tabs: bool, wanted: Collection[str]) -> CsvForm:
    """Return the form of a CSV file.

    - ``sample``: the first bytes of the file, as UTF-8; ``cut``: the file has more.
    - ``tabs``: the file's name says that its delimiter is a tab.
    - ``wanted``: columns that the file must have.

    Raises ``UnclearForm``.
    """
    universal = _LONE_CR.search(sample) is not None or (not cut and sample.endswith(b"\r"))
    lines = lines_of(sample, cut)[given.skip_lines :]
    delimiter, skip = given.delimiter, given.skip_lines
    if lines and (sep := _SEP_LINE.fullmatch(lines[0])):
        delimiter, skip, lines = delimiter or sep[1], skip + 1, lines[1:]
    delimiter = delimiter or ("\t" if tabs else "") or _found(lines, given, cut, wanted)
    form = CsvForm(delimiter, given.quoting, skip, universal)
    if not given.quoting and _escapes(form, lines, cut):
        text = 'holds quotes that follow a backslash (\\"), as MySQL and Spark write them: give --quoting backslash'
        raise UnclearForm(f"{text} (with --quoting minimal such lines are unreadable)")
    return form


def lines_of(sample: bytes, cut: bool) -> list[str]:
    """Return the lines in a sample with their ends; of a sample that is ``cut`` only complete lines, if there is one.
    """
    lines = list(io.StringIO(sample.decode(errors="replace").removeprefix("\ufeff"), newline=""))
    return lines[:-1] if cut and len(lines) > 1 else lines


def header_below(sample: bytes, cut: bool, wanted: Collection[str], form: CsvForm) -> int:
    """Return how many lines stand above a line that holds all wanted columns; 0 if there is none."""
    for number, line in enumerate(lines_of(sample, cut)[:TITLE_LINES_MAX]):
        if number <= form.skip_lines:
            continue
        for delimiter in (form.delimiter, *DELIMITERS):
            cells = _records(CsvForm(delimiter, form.quoting), [line], False)
            if cells and cells[0] and {each.strip() for each in cells[0]} >= set(wanted):
                return number
    return 0


def swallows_lines(cells: list[str], delimiter: str, width: int) -> bool:
    """Return True if a record of several lines consists of lines that are records by themselves: its quotes are text.

    The lines are told from the cells, since a quote that is removed changes no line's count of delimiters.
    """
    lines = delimiter.join(cells).splitlines()
    return width > 1 and len(lines) > 1 and all(line.count(delimiter) == width - 1 for line in lines)


# -- the delimiter -----------------------------------------------------------------------------------------------------


def _found(lines: list[str], given: Dialect, cut: bool, wanted: Collection[str]) -> str:
    """Return the delimiter. Raises ``UnclearForm`` if two are equally likely."""
    each = [_candidate(CsvForm(delimiter, given.quoting), lines, cut) for delimiter in DELIMITERS]
    candidates = [one for one in each if one is not None]
    if given.no_header:
        candidates = [_numbered(one) for one in candidates]
    matching = [one for one in candidates if wanted and set(wanted) <= set(one.names)]
    pool = matching or [one for one in candidates if len(one.names) > 1] or candidates
    if not pool:
        return ","
    best = max(one.share for one in pool)
    likely = [one for one in pool if one.share >= best - CLOSE]
    if len(likely) > 1 and all(len(one.names) > 1 for one in likely) and best > 0.5:
        ways = " or ".join(f"--delimiter {_shown(one.delimiter)}" for one in likely)
        raise UnclearForm(f"can be read with more than one delimiter: give {ways}")
    return likely[0].delimiter if len(likely[0].names) > 1 else max(likely, key=lambda one: one.share).delimiter


def _candidate(form: CsvForm, lines: list[str], cut: bool) -> Candidate | None:
    """Return the candidate of a delimiter; None if the first record is no CSV."""
    records = _records(form, lines, cut)
    if not records or records[0] is None:
        return None
    width = len(records[0])
    names = tuple(cell.strip() for cell in records[0])
    return Candidate(form.delimiter, names, sum(len(each or ()) == width for each in records) / len(records))


def _numbered(one: Candidate) -> Candidate:
    names = tuple(f"column_{place}" for place in range(1, len(one.names) + 1))
    return msgspec.structs.replace(one, names=names)


def _records(form: CsvForm, lines: list[str], cut: bool) -> list[list[str] | None]:
    """Return the first records that are not blank; None for a record that is no CSV."""
    reader = form.reader(iter(lines))
    found: list[list[str] | None] = []
    for _ in range(RECORDS_MAX):
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error:
            found.append(None)
            continue
        if cells:
            found.append(cells)
    else:
        return found
    return found[:-1] if cut and len(found) > 1 else found  # the last one may go on


def _escapes(form: CsvForm, lines: list[str], cut: bool) -> bool:
    """Return True if records that are no CSV are all CSV where a backslash escapes a quote."""
    some = list(islice(lines, 4 * RECORDS_MAX))
    if not any('\\"' in line for line in some) or None not in _records(form, some, cut):
        return False
    escaped = _records(msgspec.structs.replace(form, quoting=BACKSLASH), some, cut)
    widths = [len(each or ()) for each in escaped]
    return None not in escaped and widths.count(widths[0]) >= 0.9 * len(widths)


def _shown(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else f"'{delimiter}'"
