"""Source of the rows of a table, each with the columns that its prompt needs. Missing columns are reported before any
call.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from actors.files.arrow_values import holds_bytes
from actors.files.bad_records import BadRecord, id_in_line
from actors.files.batch_request import InvalidRow
from actors.files.columns import ARROW, ARROW_TEXT, JSON
from actors.files.dialects.dialect import DETECTED, Dialect
from actors.files.errors import SourceError
from actors.files.json_rows import NAN, Flaw, NoRow, float_holds, read_row
from actors.files.row_values import encode
from actors.files.sources.row_source import InputCheck, InputReader, InputSurvey, RowSource
from actors.files.table_reader import CSV, JSONL, PARQUET, TableFile
from cortex.programs.table import option_for
from cortex.state.events import Row
from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.template import Template, shown

COLUMNS_MAX: Final = 5_000
"""Columns of a table at most that are kept: those of the prompt, or with ``--with-input`` all."""
ID_CHARACTERS_MAX: Final = 2_048
"""Characters of an id at most: URLs and paths are ids as well. The 64 characters of a ``custom_id`` bound requests in
the form of the Message Batches API alone; a message batch gets names of its own (``cortex.loop.batch_submissions``)."""
_SHOWN_MAX: Final = 8
_NAME_SHOWN_MAX: Final = 60
"""Characters of a column's name that an error shows: a file that is no table may have a name of megabytes."""

_encode: Final = encode

_KINDS: Final[dict[type, str]] = {
    str: "text", int: "integer", msgspec.Raw: "number", bool: "boolean", list: "json", dict: "json",
}  # fmt: skip
LONG: Final = "long"
"""Kind of a whole number of up to 64 bits that no float holds: a column that has one and other numbers is text."""
LARGE: Final = "large"
"""Kind of a number that neither 64 bits nor a float hold: a column that has one is text."""
_WORDS: Final = {
    "text": "text", "integer": "a whole number", LONG: "a whole number", LARGE: "a number", "number": "a number",
    "boolean": "true or false", "json": "a list or an object",
}  # fmt: skip


_NUMBERS: Final = frozenset({"integer", "number", LONG, LARGE})
_FLOAT_WHOLE_MAX: Final = 1 << 53
"""Largest number up to which a float holds every whole number (IEEE 754-2019, 3.3)."""


class TableSource(RowSource):
    """Source of the rows of a table: CSV, JSON Lines of objects, or Parquet.

    - ``prompt`` names the columns that are read.
    - ``id``: column that identifies results; if ``numbered``, a column added to the results, with the rows' numbers
      from 1.
    - ``with_input``: all columns are read, since the results repeat them; none may be named like one of ``taken``.
    - ``whole_types``: the results are written with one type a column (Parquet), so a column of mixed kinds is refused,
      and so is a value of Parquet that could not be written again.
    - ``called``: name of the table in errors, in place of its path.
    - ``dialect``: properties of the file that the user gives.
    """

    def __init__(
        self, path: str, *, prompt: Template, id: str, numbered: bool, with_input: bool, spool: Path,  # noqa: A002
        taken: Collection[str] = (), whole_types: bool = False, stdin: BinaryIO | None = None, called: str = "",
        dialect: Dialect = DETECTED,
    ) -> None:  # fmt: skip
        self._table = TableFile(path, spool, stdin, called, dialect)
        super().__init__(self._table)
        self._prompt = prompt
        self._id = id
        self._numbered = numbered
        self._with_input = with_input
        self._taken = frozenset(taken) | ({id} if numbered else set())
        self._whole_types = whole_types
        self._table.exact = whole_types or bool(called)  # rows in memory come back as Arrow
        self._floats: frozenset[str] = frozenset()
        """Columns of Parquet that hold floats."""
        self._wanted = list(dict.fromkeys(([] if numbered else [id]) + list(prompt.columns)))
        self._table.wanted = self._wanted
        self._keep: Callable[[list[str]], Sequence[str]] | None = None
        """Selector of the cells of a CSV record that are kept."""
        self._kinds: dict[str, dict[str, int]] = {}
        """For JSON Lines: column -> kind of value -> line of its first occurrence."""
        self._flaws: Mapping[str, str] = {}
        """Columns of the latest row that cannot be used, and why."""
        self._rows_in_memory = bool(called)
        self.named = id

    wants = "row"

    @property
    def noun(self) -> str:  # type: ignore[override]
        """Unit in which users count the rows."""
        return "row" if self._table.form == PARQUET or self._rows_in_memory else "line"

    # -- the check ---------------------------------------------------------------------------------------------------

    def begin(self, reading: InputReader) -> None:
        """Check that the required columns exist. Raises ``SourceError``."""
        self._kinds = {}
        if self._table.columns is not None:
            self._require(self._table.columns)

    def check(self) -> InputCheck:
        """Check the whole input, as ``RowSource.check``. The columns of JSON Lines are known only after the last
        line.
        """
        new = self._checked is None
        check = super().check()
        if new and self._table.form == JSONL:
            try:
                self._require(list(self._kinds))
            except SourceError:
                self._file.refuse_given(failed=True, bad=False)
                raise
            self._refuse_mixed()
        return check

    def _require(self, columns: list[str]) -> None:
        name = self._table.name
        for each in self._wanted:
            if each not in columns:
                near = difflib.get_close_matches(each, columns, n=1)
                near = near or [name for name in columns if each in re.split(r"\W+", name)]
                shown_columns = _shown_names(columns[:_SHOWN_MAX]) + (", …" if len(columns) > _SHOWN_MAX else "")
                has = "its only column is" if len(columns) == 1 else "its columns are"
                hint = f"did you mean {_shown_names(near[:1])}?" if near else f"{has} {shown_columns}"
                if way_out := self._table.way_out(self._wanted):
                    hint = f"{hint}; {way_out}"
                what = "--id names" if each not in self._prompt.columns else "the prompt names"
                raise SourceError(f"{name} has no column {each!r}, which {what}: {hint}")
        if self._numbered and self._id in self._prompt.columns:
            raise SourceError(
                f"the prompt names the column {self._id!r}, which is also the name of the row numbers: give --id COLUMN"
            )
        if self._with_input:
            both = next((each for each in columns if each in self._taken), None)
            if both is not None:
                option = option_for(both)
                ways = f"{f'give {option}, ' if option else ''}rename the column, or leave --with-input out"
                raise SourceError(f"{name} has a column {both!r}, as have the results: {ways}")
        kept = [each for each in columns if self._with_input or each in self._wanted]
        if len(kept) > COLUMNS_MAX:
            raise SourceError(f"{name} has {len(kept):,} columns, more than {COLUMNS_MAX:,}: leave --with-input out")
        if self._table.form == PARQUET:
            self._table.only = kept
            self._see_types(kept)
        if self._table.form == CSV:
            self._keep = _cells_at([columns.index(each) for each in kept])
            self._names = kept

    def _see_types(self, kept: list[str]) -> None:
        """Find which columns of Parquet hold text as bytes. Raises ``SourceError`` if the prompt names other bytes."""
        import pyarrow

        schema, table = self._table.arrow, self._table
        self._floats = frozenset(name for name in kept if pyarrow.types.is_floating(schema.field(name).type))
        table.texts = frozenset(name for name in kept if holds_bytes(schema.field(name).type) and table.is_text(name))
        for name in self._prompt.columns:
            if holds_bytes(schema.field(name).type) and name not in table.texts:
                raise SourceError(
                    f"{table.name}: the prompt names {name!r}, which holds bytes that are not UTF-8 text: name a "
                    "column of text, or give images and documents as requests (docs/tables.md)"
                )

    def _refuse_mixed(self) -> None:
        if not self._whole_types:
            return
        for name, kinds in self._kinds.items():
            if name not in self._result_columns():
                continue
            (one, here), *others = kinds.items() or [("text", 0)]
            alike = _NUMBERS if one in _NUMBERS else {one}
            other, there = next(((kind, at) for kind, at in others if kind not in alike), ("", 0))
            if other:
                raise SourceError(
                    f"{self._table.name}: column {name!r} holds {_WORDS[one]} on line {here} and {_WORDS[other]} on "
                    f"line {there}, and a Parquet column has one type: make them alike, or write .jsonl or .csv"
                )

    def _result_columns(self) -> list[str]:
        return list(self._kinds) if self._with_input else [] if self._numbered else [self._id]

    def columns(self) -> tuple[list[tuple[str, str]], Any]:
        """Return the columns of the input that the results repeat, the id first: (name, kind); and an Arrow schema or
        None.
        """
        if self._table.form == JSONL:
            found = {name: _joined(self._kinds.get(name, {})) for name in self._result_columns()}
        else:
            kind = ARROW if self._table.form == PARQUET else "text"
            names = (self._table.columns or []) if self._with_input else [] if self._numbered else [self._id]
            found = {name: ARROW_TEXT if name in self._table.texts else kind for name in names}
            found |= {name: JSON for name in names if name in self._table.cells}
        own = {self._id: "integer" if self._numbered else found.pop(self._id)}
        return list((own | found).items()), self._table.arrow

    def entries(self) -> dict[str, list[Any]]:
        """Return the entries of dictionary columns of Parquet, as JSON values by column."""
        return self._table.entries.kept()

    def empty(self, position: int) -> str:
        """Return the error text for a table without rows."""
        if self._table.columns is not None:
            return "is empty: it has columns and no row"
        return super().empty(position)

    def unusable(self, survey: InputSurvey) -> str:
        """Return the reason why no row can be sent."""
        first = survey.first_problem
        bad = survey.first_bad
        if type(bad) is tuple and type(bad[1]) is bytes and bad[1].lstrip().startswith(b"["):
            return "is a JSON array; write one object a line, e.g. with jq -c '.[]'"
        if self._table.form == JSONL and self._kinds:
            self._require(list(self._kinds))
        return f"holds no row that can be asked; {self.noun} {first.line}: {first.message}"

    # -- rows --------------------------------------------------------------------------------------------------------

    def seek(self, position: int) -> None:
        """Continue at a position, as ``RowSource.seek``. If rows are identified by number, the rows before are counted
        again.
        """
        if not self._numbered or self._table.form == PARQUET:
            super().seek(position)
            return
        self.check()
        self._let_go()
        reading = self._reading = self._table.reading()
        while reading.position < position and reading.next() is not None:
            pass
        if position and reading.position != position:
            raise SourceError(f"{self._table.name} has changed since it was read: restore it, or start another job")

    def judge(self, piece: Any, number: int) -> Row | None:
        """Return the row in this piece. Raises ``InvalidRow``."""
        at, found = piece
        if type(found) is list:
            assert self._keep is not None
            # equal lengths; without strict a third faster
            row: dict[str, Any] = dict(zip(self._names, self._keep(found)))  # noqa: B905
        else:
            row = self._row(found)
        cells, flaws = row, self._flaws
        if self._numbered:
            key, row = str(at), {self._id: at, **row}
        elif flaws and self._id in flaws:
            raise InvalidRow(f"{self._id} {flaws[self._id]}")
        else:
            value = row.get(self._id)
            key = value.strip() if type(value) is str else ""
            key = key or self._key(value)
        if self._checked is None and type(found) is bytes:
            self._see(cells, number)
        body = _encode(row)
        if type(found) is not bytes and too_deep(body):
            raise InvalidRow(f"is {deep_words()}: flatten it")
        if len(key) > ID_CHARACTERS_MAX:
            text = f"{self._id} has {len(key):,} characters: at most {ID_CHARACTERS_MAX:,}"
            return Row(key, body, refusal=text)
        if flaws and (name := next((name for name in flaws if not name or name in row), None)) is not None:
            return Row(key, body, refusal=f"{name} {flaws[name]}".lstrip())
        columns = self._prompt.columns
        for name in columns:
            value = row.get(name)
            if value is not None and (type(value) is not str or (value and not value.isspace())):
                if value is NAN or (value == "NaN" and name in self._floats):
                    continue
                return Row(key, body)
        names = ", ".join(dict.fromkeys(columns))
        return Row(key, body, refusal=f"there is nothing to ask: {names} {'is' if ',' not in names else 'are'} empty")

    def id_of(self, piece: Any) -> str | None:
        """Return the id in a record that is no row, if it can be read."""
        at, found = piece
        if self._numbered:
            return str(at)
        columns = self._table.columns or []
        if type(found) is BadRecord and self._id in columns:
            place = columns.index(self._id)
            cell = found.cells[place].strip() if place < len(found.cells) else ""
            return cell if cell and "\ufffd" not in cell else None
        return id_in_line(found, self._id) if type(found) is bytes else None

    def _row(self, found: Any) -> dict[str, Any]:
        """Return the columns that are kept of a line of JSON, or of a row of Parquet."""
        if type(found) is bytes:
            try:
                found, self._flaws = read_row(found)
            except NoRow as error:
                if not self._numbered:
                    raise
                found, self._flaws = {}, {self._id: str(error)}
            if self._checked is None and not found.keys() <= self._kinds.keys():
                self._kinds |= {name: {} for name in found if name not in self._kinds}
        elif type(found) is BadRecord:
            raise InvalidRow(found.message)
        elif self._table.cells:
            self._flaws = {name: each.message for name, each in found.items() if type(each) is Flaw}
            found = {name: None if type(each) is Flaw else each for name, each in found.items()}
        if self._with_input:
            return dict(found)
        return {name: found.get(name) for name in self._wanted}

    def _see(self, row: dict[str, Any], number: int) -> None:
        """Record the kinds of the values of a row that has an id: a record that is no row decides on no column."""
        for name, value in row.items():
            if value is not None:
                kinds = self._kinds[name]
                kind = _KINDS[type(value)]
                if kind == "integer" and not -_FLOAT_WHOLE_MAX <= value <= _FLOAT_WHOLE_MAX:
                    kind = LONG if -(1 << 63) <= value < 1 << 63 else LARGE
                elif kind == "number" and LARGE not in kinds and not _is_float(value):
                    kind = LARGE
                if kind not in kinds:
                    kinds[kind] = number

    def _key(self, value: Any) -> str:
        """Return the key of a row whose id is not a text, or blank. Raises ``InvalidRow``."""
        if value is None or type(value) is str or value is NAN:
            raise InvalidRow(f"has no {self._id}: give each row one, or leave --id out to have them numbered")
        whole = _whole(value)  # floats too: those of a column in which a number is missing
        if whole is None:
            text = shown(value)[:40].strip('"')
            raise InvalidRow(f"{self._id} is {text}: an id is text or a whole number")
        return str(whole)


def _shown_names(names: Sequence[str]) -> str:
    """Return names of columns for an error, in quotes if one of them holds a comma, a line break or outer space."""
    names = [name if len(name) <= _NAME_SHOWN_MAX else f"{name[: _NAME_SHOWN_MAX - 1]}…" for name in names]
    plain = all("," not in name and name == name.strip() and name.isprintable() for name in names)
    return ", ".join(names if plain else map(repr, names))


def _cells_at(places: list[int]) -> Callable[[list[str]], Sequence[str]]:
    """Return a function that selects the cells of a record at these places."""
    return itemgetter(*places) if len(places) > 1 else lambda cells: [cells[place] for place in places]


def _whole(value: Any) -> int | None:
    """Return a number of a row as a whole number; None if it is none, or another value."""
    if type(value) is int:
        return value
    if type(value) is float:
        return int(value) if value.is_integer() else None
    if type(value) is not msgspec.Raw or bytes(value).startswith(b'"'):
        return None
    number = Decimal(bytes(value).decode())
    return int(number) if number.adjusted() < ID_CHARACTERS_MAX and number == number.to_integral_value() else None


def _is_float(number: msgspec.Raw) -> bool:
    """Return whether a float holds a number of JSON Lines, or the text of one that is not finite."""
    text = bytes(number).decode()
    return text.startswith('"') or float_holds(text)


def _joined(kinds: dict[str, int]) -> str:
    """Return a common kind for a column's values."""
    found = set(kinds)
    if found and found <= _NUMBERS:
        if LARGE in found or {LONG, "number"} <= found:
            return "text"
        return "number" if "number" in found else "integer"
    return found.pop() if len(found) == 1 else "json" if found else "text"
