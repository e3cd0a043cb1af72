"""Values of rows that come from Python, as JSON has them: those of the standard library, numpy, pandas, polars and
Arrow.

- None, ``NaN``, ``NaT``, ``NA`` and masked values are missing: null. Infinities are the literals ``Infinity`` and
  ``-Infinity`` of Python's ``json``, which a source reads.
- Numbers keep their digits; float16 and float32 have the fewest digits that give the value back.
- Times are text as ISO 8601 has them, with as many digits as they have. Durations are those of ISO 8601, in days and
  seconds. Decimals, UUIDs, paths, periods and intervals are their text. Bytes are base64.
- An Enum member is its value. Sets are sorted, so that equal rows have equal bytes in any process.
- Mappings, dataclasses, named tuples and records of pydantic, attrs and msgspec are objects; sequences and arrays are
  lists. A scalar of Arrow has the form of ``actors.files.arrow_values``.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from actors.files.arrow_values import iso_duration, to_json_values
from cortex.values.template import values_as_written

PLAIN: Final = frozenset({str, int, bool, type(None)})
"""Types whose values JSON holds as they are."""
HALF_A_CHARACTER: Final = "holds half of a character (a lone surrogate such as \\ud83d): text was cut inside one"
DIGITS_MAX: Final = 4_300
"""Digits of a whole number at most: the default of Python's ``sys.set_int_max_str_digits``."""
_LISTS: Final = (list, tuple, deque)
_MISSING: Final = frozenset({"NoneType", "NaTType", "NAType", "MaskedConstant"})
_SECONDS: Final = {"W": 604_800, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_SMALLER: Final = {"ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18}
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")

encode = msgspec.json.Encoder().encode


class NoJsonForm(ValueError):
    """A value that has no JSON form. The message is a predicate: ``is of type object: …``."""


def json_value(value: Any) -> Any:
    """Return a value as msgspec encodes it, however it is nested. Raises ``NoJsonForm``."""
    try:
        return _value(value)
    except RecursionError:
        raise NoJsonForm("is nested too deeply, or holds itself") from None
    except NoJsonForm:
        raise
    except Exception as error:  # a class of somebody else may raise anything when its value is read
        raise NoJsonForm(f"cannot be read: {type(error).__name__}: {shown(error)}") from None


def _value(value: Any) -> Any:
    found = _EXACT.get(type(value))
    if found is not None:
        return found(value)
    if value is None or type(value).__name__ in _MISSING:
        return None
    if isinstance(value, enum.Enum):
        return _value(value.value)
    package = type(value).__module__.partition(".")[0]
    if package == "pyarrow":
        return _of_arrow(value)
    if _is_series(value):
        return [_value(each) for each in value]
    dtype = getattr(value, "dtype", None)
    if dtype is not None and type(dtype).__module__.partition(".")[0] == "numpy":
        return _of_numpy(value)
    if package == "pandas" and (found := _of_pandas(value)) is not None:
        return found
    for kind, made in _SUBCLASSES:
        if isinstance(value, kind):
            return made(value)
    fields = as_mapping(value)
    if fields is not None:
        return _object(fields)
    if isinstance(value, (Sequence, *_LISTS)):
        return [_value(each) for each in value]
    if hasattr(value, "tolist"):  # an array or a tensor of another library
        plain = value.tolist()
        if type(plain) is not type(value):
            return _value(plain)
    raise NoJsonForm(f"is of type {type(value).__name__}, which has no JSON form: give text or numbers")


def as_mapping(value: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a mapping or a record, shallow; None for another value.

    Records are dataclasses, named tuples, those of pydantic, attrs and msgspec, rows of SQLAlchemy and sqlite3, series
    of pandas, pairs of ``iterrows``, and structured scalars of numpy.
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    if hasattr(value, "model_dump"):
        found = value.model_dump(mode="json")
        return found if isinstance(found, Mapping) else None
    for names in ("__struct_fields__", "__attrs_attrs__"):
        if hasattr(type(value), names):
            return _of_record(value)
    if dataclasses.is_dataclass(value):
        return _of_record(value)
    for name in ("_asdict", "_mapping"):
        found = getattr(value, name, None)
        found = found() if name == "_asdict" and callable(found) else found
        if isinstance(found, Mapping):
            return found
    if type(value) is tuple and len(value) == 2 and _is_pandas_series(value[1]):  # index and row of ``iterrows``
        return as_mapping(value[1])
    if _is_pandas_series(value):
        return dict(zip(value.index, value, strict=True))
    names_of = getattr(getattr(value, "dtype", None), "names", None)
    if names_of and hasattr(value, "item") and not getattr(value, "shape", ()):
        return {name: value[name] for name in names_of}
    if hasattr(value, "keys") and hasattr(value, "__getitem__") and not hasattr(value, "columns"):  # sqlite3, asyncpg
        return {name: value[name] for name in value.keys()}  # noqa: SIM118 - it is no mapping
    return None


def _of_record(value: Any) -> Mapping[str, Any]:
    """Return the fields of a dataclass or of a record of attrs or msgspec, under the names that msgspec encodes."""
    encoded = getattr(type(value), "__struct_encode_fields__", None)
    if encoded is not None:
        names = dict(zip(type(value).__struct_fields__, encoded, strict=True))
    elif dataclasses.is_dataclass(value):
        names = {field.name: field.name for field in dataclasses.fields(value)}
    else:
        names = {field.name: field.name for field in type(value).__attrs_attrs__}
    return {shown_name: getattr(value, name) for name, shown_name in names.items() if hasattr(value, name)}


def column_name(name: Any) -> str:
    """Return the name of a column or field as text. Raises ``NoJsonForm`` for a key that is neither text nor a number.
    """
    if type(name) is not str:
        if isinstance(name, enum.Enum):
            return column_name(name.value)
        if isinstance(name, str):
            name = str.__str__(name)
        elif isinstance(name, int) and not isinstance(name, bool):
            name = str(int(name))
        else:
            plain = _value(name)
            if type(plain) is not int and type(plain) is not str:
                raise NoJsonForm(f"has the key {shown(name)}: the names of columns and fields are text")
            name = str(plain)
    return _text(name)


def _object(fields: Mapping[Any, Any]) -> dict[str, Any]:
    found = {column_name(name): _value(each) for name, each in fields.items()}
    if len(found) != len(fields):  # 1 and "1"
        raise NoJsonForm("holds an object that gives a name twice: give it once")
    return found


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NoJsonForm(HALF_A_CHARACTER) from None
    return value


def _whole(value: int) -> int:
    if value.bit_length() > 64 and abs(value) >= 10**DIGITS_MAX:
        raise NoJsonForm(f"is a whole number of more than {DIGITS_MAX:,} digits")
    return value


def _float(value: float) -> Any:
    if value != value:
        return None
    return value if abs(value) != float("inf") else msgspec.Raw(b"Infinity" if value > 0 else b"-Infinity")


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Return the values of a set in an order that is the same in each process."""
    found = [_value(each) for each in values]
    try:
        return sorted(found)
    except TypeError:
        return sorted(found, key=encode)


def _path(value: Any) -> str:
    return _text(os.fsdecode(os.fspath(value)))


_builtins: Final[Callable[[Any], Any]] = msgspec.to_builtins


def _same(value: Any) -> Any:
    return value


_EXACT: Final[dict[type, Callable[[Any], Any]]] = {
    str: _text, int: _whole, bool: _same, float: _float, type(None): _same, dict: _object,
    list: lambda values: [_value(each) for each in values], tuple: lambda values: [_value(each) for each in values],
    set: _sorted, frozenset: _sorted, bytes: _builtins, bytearray: _builtins, memoryview: _builtins,
    datetime.datetime: _builtins, datetime.date: _builtins, datetime.time: _builtins, datetime.timedelta: _builtins,
    decimal.Decimal: str, uuid.UUID: str, msgspec.Raw: lambda value: values_as_written(bytes(value)),
}  # fmt: skip
"""Form of the values of these classes themselves, and not of classes derived from them."""

_SUBCLASSES: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (str, lambda value: _text(str.__str__(value))), (bool, bool), (int, lambda value: _whole(int(value))),
    (float, lambda value: _float(float(value))), ((bytes, bytearray), lambda value: _builtins(bytes(value))),
    (datetime.datetime, datetime.datetime.isoformat), (datetime.date, lambda value: value.isoformat()),
    (datetime.time, lambda value: value.isoformat()),
    (datetime.timedelta, lambda value: iso_duration(value // datetime.timedelta(microseconds=1), "us")),
    (decimal.Decimal, str), (uuid.UUID, str), (os.PathLike, _path), (Set, _sorted),
)  # fmt: skip
"""Form of the values of derived classes; the first class that fits."""


# ------------------------------------------------------------------------------------------- numpy, pandas and others


def _of_numpy(value: Any) -> Any:
    """Return a scalar or an array of numpy, or a column of another library with such a type."""
    if getattr(value, "shape", ()):
        return [_value(each) for each in value]
    if type(value).__name__ == "ndarray":  # an array without dimensions
        return _value(value[()])
    kind = value.dtype.kind
    if kind == "M":
        text = str(value)
        return None if text == "NaT" else text
    if kind == "m":
        return None if str(value) == "NaT" else _of_timedelta(value)
    if kind == "f":
        return _of_numpy_float(value)
    if kind == "V" and value.dtype.names:
        return _object({name: value[name] for name in value.dtype.names})
    if kind == "c":
        raise NoJsonForm("is a complex number, which has no JSON form: give its parts")
    return _value(value.item())


def _of_numpy_float(value: Any) -> Any:
    plain = float(value)
    if value.dtype.itemsize == 8 or plain != plain:
        return _float(plain)
    text = str(value)
    if text.lstrip("-") == "inf":
        return _float(plain)
    return float(text) if value.dtype.itemsize < 8 else msgspec.Raw(text.encode())


def _of_timedelta(value: Any) -> Any:
    """Return a duration of numpy; one without a unit is a number. Raises ``NoJsonForm`` for months and years."""
    text = value.dtype.str.partition("[")[2].rstrip("]")
    found = re.fullmatch(r"(\d*)(\w+)", text)
    count = int(value.view("int64"))
    if found is None:
        return count
    step, unit = int(found[1] or 1), found[2]
    if unit in _SECONDS:
        return iso_duration(count * step * _SECONDS[unit], "s")
    if unit not in _SMALLER:
        raise NoJsonForm("is a duration of months or years, whose length varies: give days")
    if unit not in ("ms", "us", "ns"):
        count, rest = divmod(count * step, _SMALLER[unit] // 10**9)
        if rest:
            raise NoJsonForm("is a duration with parts of a nanosecond: round it")
        step, unit = 1, "ns"
    return iso_duration(count * step, unit)


def _of_pandas(value: Any) -> Any:
    """Return a scalar of pandas; None for another value."""
    name = type(value).__name__
    if name == "Timestamp":
        return value.isoformat()
    if name == "Timedelta":
        return _of_timedelta(value.to_numpy())
    return str(value) if name in ("Period", "Interval") else None


def _is_pandas_series(value: Any) -> bool:
    return type(value).__name__ == "Series" and hasattr(value, "to_dict") and hasattr(value, "index")


def _is_series(value: Any) -> bool:
    """Return whether a value is a column or an array of pandas or polars."""
    return (
        type(value).__module__.partition(".")[0] in ("pandas", "polars")
        and hasattr(value, "__iter__") and hasattr(value, "__len__") and not hasattr(value, "columns")
    )  # fmt: skip


def _of_arrow(value: Any) -> Any:
    """Return a scalar or an array of Arrow in the JSON form of its type."""
    import pyarrow as pa

    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return to_json_values(value)
    if not isinstance(value, pa.Scalar):
        raise NoJsonForm(f"is of type {type(value).__name__}, which has no JSON form: give text or numbers")
    return to_json_values(pa.array([value], value.type))[0]


def shown(value: Any, length: int = 60) -> str:
    """Return a value for a message: on one line, cut at this many characters, and the same in each process."""
    try:
        text = repr(value) if not isinstance(value, Exception) else str(value)
    except Exception:
        text = f"a value of type {type(value).__name__}"
    text = " ".join(_ADDRESS.sub("", text).split()).encode(errors="backslashreplace").decode()
    return text if len(text) <= length else f"{text[: length - 3]}..."


__all__ = [
    "DIGITS_MAX",
    "HALF_A_CHARACTER",
    "PLAIN",
    "NoJsonForm",
    "as_mapping",
    "column_name",
    "encode",
    "json_value",
    "shown",
]
