"""Rows that come from Python as JSON Lines: one bad row is one bad line, with the reason (``json_rows.flawed_line``).

Rows are mappings, records (``row_values.as_mapping``) or texts. A value without a JSON form is a flaw of its column;
the source of the rows decides whether the column is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Final

from actors.files.errors import SourceError
from actors.files.json_rows import flawed_line
from actors.files.row_values import PLAIN, NoJsonForm, as_mapping, column_name, encode, json_value, shown

TEXT: Final = "text"
"""Column name of rows that are plain texts."""
GIVEN_MAX: Final = 2_000
"""Characters of a bad row's ``repr`` that are kept for the list of bad records."""
NOT_TEXT: Final = "holds bytes that are not UTF-8 text"
_BYTES: Final = (bytes, bytearray, memoryview)
_NAMES: Final = frozenset({str})


class RowWriter:
    """Writer of rows. ``shown``: columns whose values are shown in a prompt or are the id, so that bytes are text.
    ``needed``: columns that are read; None: all."""

    def __init__(self, shown: Collection[str], needed: Collection[str] | None) -> None:
        self.shown = frozenset(shown)
        self._needed = None if needed is None else frozenset(needed)

    def write(self, rows: Iterable[Any], file: BinaryIO) -> None:
        """Write all rows. Raises ``SourceError`` if the iterable raises an exception."""
        for row in _each(rows):
            file.write(self.line(row))

    def needs(self, column: str) -> bool:
        """Return whether the column is read."""
        return self._needed is None or column in self._needed

    def line(self, row: Any) -> bytes:
        """Return the line of a row."""
        if type(row) is dict and _NAMES.issuperset(map(type, row)) and PLAIN.issuperset(map(type, row.values())):
            try:
                return encode(row) + b"\n"
            except (ValueError, OverflowError):  # half a character, or a number of too many digits
                pass
        try:
            fields = {TEXT: row} if isinstance(row, str) else as_mapping(row)
            if fields is None:
                raise NoJsonForm(f"is {shown(row)}: a row is a dict with a value for each column, or a text")
            found, flaws = self._values(fields)
        except NoJsonForm as error:
            line = flawed_line({}, {}, str(error), shown(row, GIVEN_MAX))
        except Exception as error:  # a class of somebody else may raise anything
            why = f"cannot be read: {type(error).__name__}: {shown(error)}"
            line = flawed_line({}, {}, why, shown(row, GIVEN_MAX))
        else:
            line = flawed_line(found, flaws, given=shown(row, GIVEN_MAX)) if flaws else encode(found)
        return line + b"\n"

    def _values(self, fields: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values of a row by column, and the flaws of columns; that of the row itself has an empty name."""
        found: dict[str, Any] = {}
        flaws: dict[str, str] = {}
        for key, value in fields.items():
            try:
                name = column_name(key)
            except NoJsonForm as error:
                flaws[""] = str(error)
                continue
            if name in found:
                flaws[""] = f"has the column {name!r} twice"
            try:
                found[name] = self.value(name, value)
            except NoJsonForm as error:
                found[name], flaws[name] = None, str(error)
        return found, flaws

    def value(self, name: str, value: Any) -> Any:
        """Return the JSON form of a value of this column. Raises ``NoJsonForm``."""
        if isinstance(value, _BYTES) and name in self.shown:
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                raise NoJsonForm(NOT_TEXT) from None
        return json_value(value)


def _each(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows. Raises ``SourceError`` with the number of the last row, if the iterable raises an exception."""
    count = 0
    try:
        for row in rows:
            yield row
            count += 1
    except (SourceError, GeneratorExit):
        raise
    except Exception as error:
        where = f"after row {count}" if count else "before the first row"
        text = f"the rows ended {where} with {type(error).__name__}: {shown(error)}"
        raise SourceError(f"{text}: nothing of this call was asked") from error


__all__ = ["NOT_TEXT", "TEXT", "RowWriter"]
