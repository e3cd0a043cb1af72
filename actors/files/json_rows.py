"""Rows of JSON Lines: their values as they are written, and rows with flaws of some columns.

Numbers keep their text (``cortex.values.template.as_written``). ``NaN``, ``Infinity`` and ``-Infinity``, which are not
JSON but which Python's ``json`` and JavaScript libraries write, are numbers whose form is that text, as in
``actors.files.arrow_values``. A flaw concerns one column: a row is refused only if its flawed column is needed.

A name that an object gives twice is a flaw. JSON leaves open which value counts (RFC 8259, 4), and readers differ:
msgspec, Python's ``json`` and pandas take the last one, polars the first one, DuckDB and Arrow refuse the file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from actors.files.batch_request import LINE_BYTES_MAX, InvalidRow, not_json, not_utf8
from actors.files.row_values import DIGITS_MAX, HALF_A_CHARACTER, NoJsonForm, encode, json_value
from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.template import as_written, holds_minus_zero, whole_as_written

NAN: Final = msgspec.Raw(b'"NaN"')
"""Value of ``NaN`` in a row."""
_CONSTANTS: Final = {
    "NaN": NAN, "Infinity": msgspec.Raw(b'"Infinity"'), "-Infinity": msgspec.Raw(b'"-Infinity"'),
}  # fmt: skip
_FLAWED: Final = b"{!"
"""Beginning of a line that ``flawed_line`` wrote, which is no JSON."""
_SOUND: Final[Mapping[str, str]] = {}
_names: Final = re.compile(rb'"[ \t\r\n]*:').findall
"""Find the ends of all names in JSON, nested ones too; and what reads alike in its texts."""
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_EXACT_DIGITS: Final = 15
"""Decimal digits that any float gives back (IEEE 754-2019, 5.12.2)."""
_ROOM: Final = Context(prec=1_500, rounding=ROUND_HALF_EVEN)
"""More digits than the longest exact decimal form of a float has: 1,074 after its point."""

_decode: Final = msgspec.json.Decoder(float_hook=as_written).decode


class NoRow(InvalidRow):
    """Row from Python that is none, such as None among the rows. Its number is known, as it is one line."""


class _Flawed(msgspec.Struct):
    """Row that came from Python, with flaws. ``why``: the reason why it is no row; empty: it is one. ``given``: its
    ``repr``, cut."""

    row: dict[str, Any] = {}
    flaws: dict[str, str] = {}
    why: str = ""
    given: str = ""


_decode_flawed: Final = msgspec.json.Decoder(_Flawed, float_hook=as_written).decode


def flawed_line(row: Mapping[str, Any], flaws: Mapping[str, str], why: str = "", given: str = "") -> bytes:
    """Return a line for a row with flaws: its sound columns, and the reason for each other; or why it is no row. A flaw
    of the row itself has an empty name."""
    return _FLAWED + encode(_Flawed(dict(row), dict(flaws), why, given))


def given_of(line: bytes) -> bytes | None:
    """Return the ``repr`` of the row in a line that ``flawed_line`` wrote; None for another line."""
    if not line.startswith(_FLAWED):
        return None
    try:
        return _decode_flawed(line[len(_FLAWED) :]).given.encode()
    except (ValueError, RecursionError):
        return None


def read_row(line: bytes) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the columns of a line, and the reason for each column that cannot be used. Raises ``InvalidRow``."""
    if len(line) > LINE_BYTES_MAX:
        raise InvalidRow(f"longer than {LINE_BYTES_MAX >> 20} MB, which no provider takes")
    if too_deep(line):
        raise InvalidRow(f"is {deep_words()}: flatten it")
    flaws: Mapping[str, str] = _SOUND
    try:
        found = _decode(line)
    except (ValueError, RecursionError) as error:
        if type(error) is RecursionError:
            raise InvalidRow("is nested too deeply to be a request") from None
        if line.startswith(_FLAWED):
            return _flawed(line)
        found, flaws = _second_look(line)
    else:
        if holds_minus_zero(line):
            found, flaws = _second_look(line)
    if type(found) is not dict:
        raise InvalidRow('is no object: a row is {"column": value, …}')
    names = len(_names(line))
    if names != len(found) and names != _name_count(found):
        flaws = {**_repeated(line), **flaws}
    return found, flaws


def _flawed(line: bytes) -> tuple[dict[str, Any], Mapping[str, str]]:
    try:
        if holds_minus_zero(line):
            raise ValueError
        found = _decode_flawed(line[len(_FLAWED) :])
    except (ValueError, RecursionError):
        try:  # an infinity or -0 among the values
            found = msgspec.convert(_second_look(line[len(_FLAWED) :])[0], _Flawed)
        except (InvalidRow, msgspec.ValidationError):  # a line of a file that begins alike
            row, flaws = _second_look(line)
            return row, flaws
    if found.why:
        raise NoRow(found.why)
    return found.row, found.flaws


def cell_text(value: Any, form: Callable[[Any], Any] = json_value) -> str:
    """Return the text of a cell of a column of several types: its JSON form, or the reason why it has none. ``form``:
    function that gives the JSON form."""
    try:
        return encode(form(value)).decode()
    except NoJsonForm as error:
        return f"{_FLAWED.decode()}{error}"


def read_cell(text: str | None) -> Any:
    """Return the value in the text of a cell; a ``Flaw`` if it has none."""
    if text is None:
        return None
    line = text.encode()
    if line.startswith(_FLAWED):
        return Flaw(text[len(_FLAWED) :])
    try:
        return _second_look(line)[0] if holds_minus_zero(line) else _decode(line)
    except ValueError:  # an infinity
        return _second_look(line)[0]


class Flaw:
    """Cell that cannot be used, with the reason."""

    def __init__(self, text: str) -> None:
        self.message = text


class _TooLong:
    """A whole number with too many digits."""


def _second_look(line: bytes) -> tuple[Any, Mapping[str, str]]:
    """Return the value of a line that msgspec refuses, and the flaws of its columns. Raises ``InvalidRow``."""
    try:
        text = line.decode()
    except UnicodeDecodeError as wrong:
        raise InvalidRow(not_utf8(line, wrong.start)) from None
    try:
        found = json.loads(text, parse_float=as_written, parse_int=_whole, parse_constant=_CONSTANTS.__getitem__)
    except RecursionError:
        raise InvalidRow("is nested too deeply to be a request") from None
    except ValueError as wrong:
        raise InvalidRow(not_json(text, wrong)) from None
    if type(found) is not dict:
        return found, _SOUND
    flaws: dict[str, str] = {}
    row = {}
    for name, value in found.items():
        if _SURROGATES.search(name):
            raise InvalidRow(f"the name of a column {HALF_A_CHARACTER}")
        row[name], flaw = _sound(value)
        if flaw:
            flaws[name] = flaw
    return row, flaws


def _name_count(row: dict[str, Any]) -> int:
    """Return the number of names in a row, nested ones too."""
    count = 0
    left: list[Any] = [row]
    while left:
        values = left.pop()
        if type(values) is dict:
            count += len(values)
            values = values.values()
        left += [each for each in values if type(each) is dict or type(each) is list]
    return count


class _Repeating(dict[str, Any]):
    """Object that gives a name twice."""

    repeated: frozenset[str] = frozenset()


def _repeated(line: bytes) -> dict[str, str]:
    """Return the columns of a row that are given twice, or that hold an object with such a name, and the flaw."""
    some: list[_Repeating] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        odd = _Repeating(found)
        odd.repeated = frozenset(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        some.append(odd)
        return odd

    found = json.loads(line.decode(), object_pairs_hook=made, parse_int=len, parse_float=len, parse_constant=len)
    if not some:
        return {}
    top = found.repeated if type(found) is _Repeating else frozenset()
    flaws = dict.fromkeys(top, "is given twice in the line: give it once")
    inner = [name for name, value in found.items() if name not in top and _repeats(value)]
    return flaws | dict.fromkeys(inner, "holds an object that gives a name twice: give it once")


def _repeats(value: Any) -> bool:
    """Return whether a value is or holds an object that gives a name twice."""
    if type(value) is _Repeating:
        return True
    parts = value if type(value) is list else value.values() if type(value) is dict else ()
    return any(map(_repeats, parts))


def _whole(text: str) -> Any:
    return whole_as_written(text) if len(text) <= DIGITS_MAX else _TooLong()


def _sound(value: Any) -> tuple[Any, str]:
    """Return a value that can be written, with U+FFFD for half characters and null for numbers that are too long, and
    the flaw that it had."""
    kind = type(value)
    if kind is str:
        text = _SURROGATES.sub("\ufffd", value)
        return text, HALF_A_CHARACTER if text != value else ""
    if kind is _TooLong:
        return None, f"holds a whole number of more than {DIGITS_MAX:,} digits"
    if kind is list:
        parts = [_sound(each) for each in value]
        return [each for each, _ in parts], next((flaw for _, flaw in parts if flaw), "")
    if kind is dict:
        named = [(*_sound(name), *_sound(each)) for name, each in value.items()]
        flaws = (flaw for _, of_name, _, of_value in named for flaw in (of_name, of_value) if flaw)
        return {str(name): each for name, _, each, _ in named}, next(flaws, "")
    return value, ""


# ------------------------------------------------------------------------------------------------------------- numbers


def as_number(text: str) -> float | Decimal:
    """Return a number as a float, or as a decimal if no float holds its digits: a ``float_hook``."""
    return float(text) if float_holds(text) else Decimal(text)


_decode_numbers: Final = msgspec.json.Decoder(dict[str, Any], float_hook=as_number).decode


def numbers_of(line: bytes) -> dict[str, Any]:
    """Return the columns of a row of results, with its numbers as ``as_number`` has them."""
    if holds_minus_zero(line):
        whole: Callable[[str], Any] = lambda text: as_number(text) if text == "-0" else int(text)  # noqa: E731
        return dict(json.loads(line, parse_float=as_number, parse_int=whole))
    return _decode_numbers(line)


def float_holds(text: str) -> bool:
    """Return whether a float gives this number back: by its shortest digits, or by as many as the text has."""
    value = float(text)
    if abs(value) == float("inf"):
        return False
    if repr(value) == text or (len(text) <= _EXACT_DIGITS and value):
        return True
    try:
        number = Decimal(text)
        if number == Decimal(repr(value)):
            return True
        digits = Decimal(value).quantize(Decimal((0, (1,), int(number.as_tuple().exponent))), context=_ROOM)
    except InvalidOperation:  # more digits than any float has
        return False
    return number == digits


__all__ = [
    "NAN",
    "Flaw",
    "NoRow",
    "as_number",
    "cell_text",
    "flawed_line",
    "float_holds",
    "given_of",
    "numbers_of",
    "read_cell",
    "read_row",
]
