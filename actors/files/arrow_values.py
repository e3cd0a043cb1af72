"""Values of Arrow columns as JSON, and back without loss: rows are kept as JSON, and their columns are written again.

The JSON form is also what a prompt shows. It depends on the column's type alone, so the type is enough to read it back.

- Floats: numbers with the fewest digits that give the value back (0.1 for a float32). NaN and infinities, which JSON
  cannot hold, are the texts ``NaN``, ``Infinity`` and ``-Infinity``, as in ProtoJSON
  (https://protobuf.dev/programming-guides/json/).
- Times, dates, decimals: text. Durations: a count of their unit; within other values a duration of ISO 8601.
- Bytes: base64; or text, where all bytes of a column are UTF-8 (``bytes_are_text``).
- Structs: objects. Lists: arrays. Maps: arrays of [key, value]. Extension types: as the type that they are stored as,
  a UUID as its text.
"""

from __future__ import annotations

import base64
import re
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final
from uuid import UUID

import msgspec

from cortex.programs.parts.embedding import NUMBER_BYTES

_OUT_OF_RANGE: Final = "<value out of range"
"""Beginning of the text that Arrow gives for a time that it cannot format."""
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_SHORT: Final = {16: ("e", 5), 32: ("f", 9)}
"""Width of a float in bits: its format in ``struct``, and the digits that tell any two values apart (IEEE 754-2019,
5.12.2)."""
ENTRIES_BYTES_MAX: Final = 65_536
"""Bytes of the entries of a dictionary column, as JSON, that are kept with a job."""
_MICROSECONDS = re.compile(r"(\.\d{3})000(?!\d)")
_DURATION = re.compile(r"(-?)P(?:(\d+)D)?(?:T(?:(\d+)(?:\.(\d+))?S)?)?")


_encode = msgspec.json.Encoder(decimal_format="number").encode


# ------------------------------------------------------------------------------------------------------ kinds of types


def is_bytes(kind: Any) -> bool:
    """Return whether values of this Arrow type are bytes."""
    import pyarrow as pa

    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(each(kind) for each in kinds)


def is_list(kind: Any) -> bool:
    """Return whether values of this Arrow type are lists. A map is none."""
    import pyarrow as pa

    types = pa.types
    kinds = (
        types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view,
    )  # fmt: skip
    return any(each(kind) for each in kinds)


def comes_back(kind: Any) -> bool:
    """Return whether values of this Arrow type are read back from their JSON form; other types become text."""
    import pyarrow as pa

    types = pa.types
    return not (types.is_interval(kind) or types.is_union(kind) or types.is_run_end_encoded(kind)) and all(
        map(comes_back, _inner(kind))
    )


def holds_bytes(kind: Any) -> bool:
    """Return whether values of this Arrow type are bytes or hold bytes. A UUID is text."""
    return not _is_uuid(kind) and (is_bytes(kind) or any(map(holds_bytes, _inner(kind))))


def _inner(kind: Any) -> list[Any]:
    """Return the types that an Arrow type is made of."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if is_list(kind):
        return [kind.value_type]
    return [field.type for field in kind] if pa.types.is_struct(kind) else []


def _is_uuid(kind: Any) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.uuid"


def _is_plain(kind: Any) -> bool:
    """Return whether pyarrow's Python values of this type are its JSON values, in both directions."""
    import pyarrow as pa

    types = pa.types
    plain = (
        types.is_boolean, types.is_integer, types.is_null, types.is_string, types.is_large_string, types.is_string_view,
    )  # fmt: skip
    if any(each(kind) for each in plain):
        return True
    if types.is_struct(kind):
        return _twice(kind) is None and all(_is_plain(field.type) for field in kind)
    return is_list(kind) and _is_plain(kind.value_type)


def _twice(kind: Any) -> str | None:
    """Return a name that two fields of a struct have; None if all names differ."""
    names = [field.name for field in kind]
    return next((name for name in names if names.count(name) > 1), None)


def bytes_are_text(column: Any) -> bool:
    """Return whether all bytes within a column are UTF-8: text of a writer that did not mark it as such.

    Impala, Hive and older Spark write strings so (``spark.sql.parquet.binaryAsString``,
    https://spark.apache.org/docs/latest/sql-data-sources-parquet.html).
    """
    import pyarrow as pa

    for leaf in _leaves_of_bytes(column):
        try:
            if pa.types.is_binary(leaf.type) or pa.types.is_large_binary(leaf.type):
                leaf.cast(pa.large_string())
            else:
                for each in leaf.to_pylist():
                    (each or b"").decode()
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return False
    return True


def _leaves_of_bytes(column: Any) -> Iterator[Any]:
    import pyarrow as pa

    kind = column.type
    if not holds_bytes(kind):
        return
    if is_bytes(kind):
        yield column
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _leaves_of_bytes(column.storage)
    elif pa.types.is_dictionary(kind):
        yield from _leaves_of_bytes(column.dictionary)
    else:
        inner = (
            [column.field(place) for place in range(kind.num_fields)] if pa.types.is_struct(kind)
            else [column.keys, column.items] if pa.types.is_map(kind) else [column.flatten()]
        )  # fmt: skip
        for each in inner:
            yield from _leaves_of_bytes(each)


# ------------------------------------------------------------------------------------------------------------ to JSON


class JsonForm(msgspec.Struct, frozen=True):
    """Choices of the JSON form. ``text``: bytes are UTF-8. ``exact``: a value that could not be read back raises
    ``ValueError``. ``nested``: the values lie within others.
    """

    text: bool = False
    exact: bool = False
    nested: bool = False


def to_json_values(column: Any, form: JsonForm = JsonForm()) -> list[Any]:  # noqa: B008 - it is frozen
    """Return an Arrow column as JSON values. Raises ``ValueError`` for a value that has no JSON form."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return list(chain.from_iterable(to_json_values(chunk, form) for chunk in column.chunks))
    kind = column.type
    if _is_plain(kind):
        found: list[Any] = column.to_pylist()
        return found
    if _is_uuid(kind):
        return [None if each is None else str(each) for each in column.to_pylist()]
    if isinstance(kind, pa.BaseExtensionType):
        return to_json_values(column.storage, form)
    if pa.types.is_dictionary(kind):
        return to_json_values(column.dictionary_decode(), form)
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_duration(kind):
        counts = column.cast(pa.int64()).to_pylist()
        return [each if each is None else iso_duration(each, kind.unit) for each in counts] if form.nested else counts
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return _times(column, form)
    if pa.types.is_decimal(kind):
        texts: list[Any] = column.cast(pa.string()).to_pylist()
        return texts
    if is_bytes(kind):
        shown: Callable[[bytes], str] = bytes.decode if form.text else lambda each: base64.b64encode(each).decode()
        return [None if each is None else shown(each) for each in column.to_pylist()]
    return _nested(column, msgspec.structs.replace(form, nested=True))


def _nested(column: Any, form: JsonForm) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_struct(kind):
        if twice := _twice(kind):
            raise ValueError(f"its struct has two fields named {twice!r}")
        names = [field.name for field in kind]
        parts = [to_json_values(each, form) for each in column.flatten()]
        valid = column.is_valid().to_pylist()
        rows = zip(*parts, strict=True) if parts else ((),) * len(column)
        return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]
    if pa.types.is_map(kind):
        offsets, valid = column.offsets.to_pylist(), column.is_valid().to_pylist()
        first, count = offsets[0], offsets[-1] - offsets[0]
        keys, items = (to_json_values(each.slice(first, count), form) for each in (column.keys, column.items))
        pairs = [[key, item] for key, item in zip(keys, items, strict=True)]
        spans = zip(pairwise(offsets), valid, strict=True)
        return [pairs[start - first : end - first] if there else None for (start, end), there in spans]
    if not is_list(kind):
        found: list[Any] = column.to_pylist()
        return found
    lengths, values, at = pc.list_value_length(column).to_pylist(), to_json_values(column.flatten(), form), 0
    lists: list[Any] = []
    for length in lengths:
        if length is None:
            lists.append(None)
            continue
        lists.append(values[at : at + length])
        at += length
    return lists


def _floats(column: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    bits = column.type.bit_width
    if bits == 64:
        values: list[Any] = column.to_pylist()
    elif bits == 32:
        texts = column.cast(pa.string()).to_pylist()
        values = [None if each is None else float(each) for each in texts]
        if not pa.array(values, pa.float64()).cast(pa.float32()).view(pa.int32()).equals(column.view(pa.int32())):
            values = [each if each is None else _shortest(each, bits) for each in column.to_pylist()]
    else:
        values = [each if each is None else _shortest(float(each), bits) for each in column.to_pylist()]
    if pc.all(pc.is_finite(column)).as_py() is False:
        return [each if each is None else _number(each) for each in values]
    return values


def _number(value: float) -> float | str:
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"


def _shortest(value: float, bits: int) -> float:
    """Return the float with the fewest decimal digits that is the same number in this width."""
    form, digits = _SHORT[bits]
    for count in range(1, digits + 1):
        short = float(f"{value:.{count}g}")
        try:
            if struct.unpack(form, struct.pack(form, short))[0] == value:
                return short
        except OverflowError:  # rounded up beyond the largest value
            continue
    return value


def _times(column: Any, form: JsonForm) -> list[Any]:
    """Return times and dates as text: within other values as ISO 8601 has them, else as Arrow has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    texts = column.cast(pa.string())
    if pc.any(pc.starts_with(texts, _OUT_OF_RANGE)).as_py():
        raise ValueError("a time is out of range")
    zone = getattr(kind, "tz", None)
    if (zone is not None or form.exact) and not _again(texts, kind, column):
        if zone is not None:  # offsets with seconds, of local mean time: the text has only their minutes
            texts = column.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.string())
        if form.exact and not _again(texts, kind, column):
            raise ValueError("a time is outside the years 1 to 9999")
    found: list[Any] = texts.to_pylist()
    return [each if each is None else _iso_time(each) for each in found] if form.nested else found


def _again(texts: Any, kind: Any, column: Any) -> bool:
    import pyarrow as pa

    try:
        return bool(_times_of(texts.to_pylist(), kind).equals(column))
    except (pa.ArrowException, ValueError):
        return False


def _iso_time(text: str) -> str:
    """Return Arrow's text of a time in the form of Python's ``isoformat``: no fraction if it is 0, else six digits or
    nine.
    """
    text = text.replace(" ", "T", 1)
    if text[-5:-4] in ("+", "-") and ":" in text:
        text = f"{text[:-2]}:{text[-2:]}"
    head, dot, tail = text.partition(".")
    if not dot:
        return text
    digits = re.match(r"\d*", tail)
    assert digits is not None
    fraction = digits[0].rstrip("0")
    fraction = fraction.ljust(6 if len(fraction) <= 6 else 9, "0") if fraction else ""
    return f"{head}{'.' if fraction else ''}{fraction}{tail[digits.end() :]}"


def iso_duration(count: int, unit: str) -> str:
    """Return a duration of ISO 8601 in days and seconds, as msgspec writes a ``timedelta``."""
    seconds, part = divmod(abs(count), _UNITS[unit])
    days, seconds = divmod(seconds, 86_400)
    text = f"{days}D" if days else ""
    if seconds or part:
        fraction = str(part).rjust(_DIGITS[unit], "0").rstrip("0") if part else ""
        text += f"T{seconds}{'.' if fraction else ''}{fraction}S"
    return f"{'-' if count < 0 else ''}P{text or '0D'}"


class DictionaryEntries:
    """Entries of dictionary columns in their order, with those that no row has: the categories of pandas, whose order
    has a meaning.

    Not kept for a column whose entries take more than ``ENTRIES_BYTES_MAX``: it is text that was compressed.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[bytes, None] | None] = {}
        self._latest: dict[str, Any] = {}

    def add(self, name: str, column: Any, form: JsonForm) -> None:
        """Take the entries of the next part of a column."""
        found = self._found.setdefault(name, {})
        dictionary = column.dictionary
        if found is None or ((latest := self._latest.get(name)) is not None and latest.equals(dictionary)):
            return
        self._latest[name] = dictionary
        try:
            if len(dictionary) <= ENTRIES_BYTES_MAX:
                found |= dict.fromkeys(msgspec.json.encode(each) for each in to_json_values(dictionary, form))
        except (ArithmeticError, TypeError, ValueError):  # an entry without a form, which no row has
            self._found[name] = None
        if len(dictionary) > ENTRIES_BYTES_MAX or sum(map(len, found)) > ENTRIES_BYTES_MAX:
            self._found[name] = None

    def kept(self) -> dict[str, list[Any]]:
        """Return the entries of each column as JSON values."""
        found = {name: [msgspec.json.decode(each) for each in entries or ()] for name, entries in self._found.items()}
        return {name: [each for each in entries if each is not None] for name, entries in found.items() if entries}


# ----------------------------------------------------------------------------------------------------------- from JSON


def arrow_column(values: list[Any], kind: Any, text: bool = False, entries: Sequence[Any] = ()) -> Any:
    """Return JSON values as a column of this Arrow type: the inverse of ``to_json_values``. ``text``: bytes are UTF-8.
    ``entries``: those of a dictionary column that come first.
    """
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _made(values, kind, _text)
    if pa.types.is_floating(kind):
        return _made(values, kind, lambda each: None if each is None else float(each))
    if _is_plain(kind):
        return pa.array(values, kind)
    if _is_uuid(kind):
        stored = pa.array([None if each is None else UUID(each).bytes for each in values], kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, stored)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, arrow_column(values, kind.storage_type, text))
    if pa.types.is_dictionary(kind):
        return _dictionary(values, kind, text, entries)
    if pa.types.is_duration(kind):
        counts = [_count(each, kind.unit) if type(each) is str else each for each in values]
        return pa.array(counts, pa.int64()).cast(kind)
    if pa.types.is_temporal(kind):
        return _times_of(values, kind)
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if is_bytes(kind):
        read: Callable[[str], bytes] = str.encode if text else base64.b64decode
        return pa.array([None if each is None else read(each) for each in values], kind)
    return _nested_of(values, kind, text)


def _dictionary(values: list[Any], kind: Any, text: bool, first: Sequence[Any]) -> Any:
    """Return a dictionary column; each value that occurs is once in its dictionary, after those that come first."""
    import pyarrow as pa

    keys = [None if each is None else msgspec.json.encode(each) for each in values]
    occurring = (key for key in keys if key is not None)
    places = {key: place for place, key in enumerate(dict.fromkeys(chain(map(msgspec.json.encode, first), occurring)))}
    entries = arrow_column([msgspec.json.decode(key) for key in places], kind.value_type, text)
    indices = pa.array([None if key is None else places[key] for key in keys], kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, entries, ordered=kind.ordered)


def _nested_of(values: list[Any], kind: Any, text: bool) -> Any:
    import pyarrow as pa

    types = pa.types
    mask = pa.array([each is None for each in values], pa.bool_())
    if types.is_struct(kind):
        parts = []
        for field in kind:
            none = None if field.nullable else _some(field.type, text)
            inner = [none if each is None else each.get(field.name) for each in values]
            parts.append(arrow_column(inner, field.type, text))
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if types.is_fixed_size_list(kind):
        item = kind.value_field
        empty = [None if item.nullable else _some(item.type, text)] * kind.list_size
        flat = list(chain.from_iterable(empty if each is None else each for each in values))
        return pa.FixedSizeListArray.from_arrays(arrow_column(flat, kind.value_type, text), type=kind, mask=mask)
    flat = list(chain.from_iterable(each for each in values if each is not None))
    offsets = [0]
    for each in values:
        offsets.append(offsets[-1] + (0 if each is None else len(each)))
    if types.is_map(kind):
        keys = arrow_column([each[0] for each in flat], kind.key_type, text)
        items = arrow_column([each[1] for each in flat], kind.item_type, text)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=kind, mask=mask)
    child = arrow_column(flat, kind.value_type, text)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        width = pa.int64() if types.is_large_list_view(kind) else pa.int32()
        sizes = [end - start for start, end in pairwise(offsets)]
        made = pa.LargeListViewArray if types.is_large_list_view(kind) else pa.ListViewArray
        return made.from_arrays(pa.array(offsets[:-1], width), pa.array(sizes, width), child, type=kind, mask=mask)
    if types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), child, type=kind, mask=mask)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), child, type=kind, mask=mask)


def _some(kind: Any, text: bool) -> Any:
    """Return the JSON form of some value of a type: what lies behind a null whose parts may not be null."""
    import pyarrow as pa

    types = pa.types
    if _is_uuid(kind):
        return str(UUID(int=0))
    if isinstance(kind, pa.BaseExtensionType):
        return _some(kind.storage_type, text)
    if types.is_dictionary(kind):
        return _some(kind.value_type, text)
    if types.is_struct(kind):
        return {field.name: _some(field.type, text) for field in kind}
    if types.is_fixed_size_list(kind):
        return [_some(kind.value_type, text)] * kind.list_size
    if is_list(kind) or types.is_map(kind):
        return []
    if types.is_fixed_size_binary(kind):
        none = bytes(kind.byte_width)
        return none.decode() if text else base64.b64encode(none).decode()
    if types.is_time(kind):
        return "00:00:00"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "1970-01-01 00:00:00Z" if getattr(kind, "tz", None) else "1970-01-01"
    if types.is_decimal(kind):
        return "0"
    return False if types.is_boolean(kind) else 0 if types.is_primitive(kind) else None if types.is_null(kind) else ""


def _times_of(values: list[Any], kind: Any) -> Any:
    """Return texts of times as a column. Arrow reads dates and timestamps from text, but no times of a day."""
    import pyarrow as pa

    if not pa.types.is_time(kind):
        if getattr(kind, "unit", "") == "ms":  # Arrow takes no more digits than the unit has
            values = [each if each is None else _MICROSECONDS.sub(r"\1", each) for each in values]
        return pa.array(values, pa.string()).cast(kind)
    width = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    return pa.array([None if each is None else _time_count(each, kind.unit) for each in values], width).cast(kind)


def _time_count(text: str, unit: str) -> int:
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = clock.split(":")
    whole = int(hours) * 3_600 + int(minutes) * 60 + int(seconds)
    digits = _DIGITS[unit]
    return whole * _UNITS[unit] + (int(fraction.ljust(digits, "0")[:digits]) if digits and fraction else 0)


def _count(text: str, unit: str) -> int:
    """Return a duration of ISO 8601, in days and seconds, as a count of a unit."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.40} is no duration")
    sign, days, seconds, fraction = found.groups()
    digits = _DIGITS[unit]
    part = int((fraction or "0").ljust(digits, "0")[:digits]) if digits else 0
    count = (int(days or 0) * 86_400 + int(seconds or 0)) * _UNITS[unit] + part
    return -count if sign else count


def _made(values: list[Any], kind: Any, fitted: Callable[[Any], Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.array([fitted(each) for each in values], kind)


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    return _encode(value).decode()


__all__ = [
    "DictionaryEntries",
    "JsonForm",
    "arrow_column",
    "bytes_are_text",
    "comes_back",
    "holds_bytes",
    "is_bytes",
    "is_list",
    "iso_duration",
    "to_json_values",
]


# ------------------------------------------------------------------------------------------------------------- vectors


def vector_size(texts: Iterable[Any]) -> int:
    """Return the numbers of the first vector of a column (``cortex.programs.parts.embedding``); 0 if it has none."""
    found = next((text for text in texts if isinstance(text, str)), "")
    return len(base64.b64decode(found)) // NUMBER_BYTES


def vector_type(size: int) -> Any:
    """Return the Arrow type of vectors with this many numbers, fixed-size lists of float32; 0: of a column without
    vectors."""
    import pyarrow as pa

    return pa.list_(pa.float32(), size) if size else pa.list_(pa.float32())


def numbers_in(text: str) -> array[float]:
    """Return the numbers of a vector as an array of float32, which numpy takes without a copy."""
    numbers = array("f", base64.b64decode(text))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def vector_column(texts: Sequence[str | array[float] | None], kind: Any) -> Any:
    """Return vectors, as texts of results or as arrays of float32, as an Arrow column of a type that ``vector_type``
    gave. Raises ``ValueError`` for a vector of another length than the first."""
    import pyarrow as pa

    if not pa.types.is_fixed_size_list(kind):
        return pa.nulls(len(texts), kind)
    size = kind.list_size
    nothing = bytes(size * NUMBER_BYTES)
    packed = [
        nothing if text is None else base64.b64decode(text) if isinstance(text, str) else text.tobytes()
        for text in texts
    ]  # fmt: skip
    for vector in packed:
        if len(vector) != len(nothing):
            raise ValueError(f"a vector has {len(vector) // NUMBER_BYTES} numbers, and the first has {size}")
    numbers = pa.Array.from_buffers(pa.float32(), len(packed) * size, [None, pa.py_buffer(b"".join(packed))])
    if None not in texts:
        return pa.FixedSizeListArray.from_arrays(numbers, type=kind)
    missing = pa.array([text is None for text in texts])
    return pa.FixedSizeListArray.from_arrays(numbers, type=kind, mask=missing)
