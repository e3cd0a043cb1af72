"""Arrow columns of random types with random values, for tests that nothing is lost."""

from __future__ import annotations

import math
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

ZONES = (None, "UTC", "Europe/Berlin", "America/New_York", "+05:30")
NULLS = 0.2
YEARS = (-62_135_596_800, 253_402_300_799)
"""Seconds since 1970 of the years 1 to 9999."""


def plain_types(rng: random.Random) -> list[Any]:
    """The types that hold no others, each once."""
    zone = rng.choice(ZONES)
    return [
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.bool_(),
        pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view(), pa.binary(),
        pa.large_binary(), pa.binary(3), pa.binary_view(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"),
        pa.time64("us"), pa.time64("ns"), pa.timestamp("s", zone), pa.timestamp("ms", zone), pa.timestamp("us", zone),
        pa.timestamp("ns", zone), pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns"),
        pa.decimal128(20, 4), pa.decimal256(60, 10), pa.decimal128(12, 0), pa.null(), pa.uuid(), pa.json_(),
    ]  # fmt: skip


def any_type(rng: random.Random, depth: int = 2) -> Any:
    """A random type."""
    plain = rng.choice(plain_types(rng))
    if not depth or rng.random() < 0.4:
        return plain
    inner = any_type(rng, depth - 1)
    while pa.types.is_null(inner):
        inner = any_type(rng, depth - 1)
    return rng.choice(
        [
            lambda: pa.list_(inner), lambda: pa.large_list(inner), lambda: pa.list_(inner, 2), lambda: pa.list_view(inner),
            lambda: pa.large_list_view(inner), lambda: pa.map_(pa.string(), inner), lambda: pa.map_(pa.int64(), inner),
            lambda: pa.struct([("a", inner), ("b", pa.int64())]),
            lambda: pa.struct([pa.field("a", inner), pa.field("é x", pa.string(), nullable=False)]),
            lambda: pa.dictionary(pa.int32(), rng.choice([pa.string(), pa.large_string(), pa.binary()])),
        ]
    )()  # fmt: skip


def any_value(kind: Any, rng: random.Random, null: float = NULLS) -> Any:
    """A value of a type, as what ``any_column`` takes: a count for times, else a value of Python."""
    types = pa.types
    if types.is_null(kind) or rng.random() < null:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return rng.choice(['{"a":1}', "[]", '"é"']) if kind.extension_name == "arrow.json" else rng.randbytes(16)
    if types.is_dictionary(kind):
        found = rng.choice(["x", "y", "é", ""])
        return found.encode() if types.is_binary(kind.value_type) else found
    if types.is_map(kind):
        keys = ["k", "é", ""] if types.is_string(kind.key_type) else [1, -5, 2**40]
        return [(key, any_value(kind.item_type, rng)) for key in keys[: rng.randrange(4)]]
    if types.is_struct(kind):
        return {field.name: any_value(field.type, rng, NULLS if field.nullable else 0) for field in kind}
    if hasattr(kind, "value_type"):
        count = kind.list_size if types.is_fixed_size_list(kind) else rng.randrange(4)
        return [any_value(kind.value_type, rng) for _ in range(count)]
    return _plain(kind, rng)


def _plain(kind: Any, rng: random.Random) -> Any:
    types = pa.types
    if types.is_boolean(kind):
        return rng.random() < 0.5
    if types.is_integer(kind):
        low = 0 if types.is_unsigned_integer(kind) else -(1 << kind.bit_width - 1)
        return rng.choice([low, low + (1 << kind.bit_width) - 1, rng.randrange(100)])
    if types.is_floating(kind):
        form, width = {16: ("e", 2), 32: ("f", 4), 64: ("d", 8)}[kind.bit_width]
        some = struct.unpack(form, rng.randbytes(width))[0]
        return rng.choice([math.nan, math.inf, -math.inf, -0.0, 0.1, 1e4, 12345.678, some])
    if types.is_decimal(kind):
        return Decimal(rng.randrange(-(10 ** (kind.precision - 1)), 10 ** (kind.precision - 1))).scaleb(-kind.scale)
    if types.is_date32(kind):
        return rng.randrange(YEARS[0] // 86_400, YEARS[1] // 86_400)
    if types.is_date64(kind):
        return rng.randrange(YEARS[0] // 86_400, YEARS[1] // 86_400) * 86_400_000
    if types.is_time(kind):
        return rng.randrange(86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit])
    if types.is_timestamp(kind) or types.is_duration(kind):
        if kind.unit == "ns":
            return rng.choice([0, rng.randrange(-(2**62), 2**62)])
        unit = {"s": 1, "ms": 10**3, "us": 10**6}[kind.unit]
        return rng.choice([0, rng.randrange((YEARS[0] + 86_400) * unit, (YEARS[1] - 86_400) * unit)])
    if types.is_fixed_size_binary(kind):
        return rng.randbytes(kind.byte_width)
    text = rng.choice(["", "a\rb", 'say "x", {{y}}', "NaN", "é日本", "\x00", "x" * 40])
    return text if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) else rng.choice(
        [text.encode(), b"\xff\x00", b"\xed\xa0"]
    )  # fmt: skip


def storage(kind: Any) -> Any:
    """The type whose values ``any_value`` makes: times are counts."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if types.is_temporal(kind):
        return pa.int32() if types.is_time32(kind) or types.is_date32(kind) else pa.int64()
    return kind


def any_column(kind: Any, values: list[Any]) -> Any:
    """Values as a column, built without the code under test."""
    types = pa.types
    mask = pa.array([each is None for each in values], pa.bool_())
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if types.is_temporal(kind):
        return pa.array(values, storage(kind)).cast(kind)
    if types.is_struct(kind):
        parts = [
            any_column(f.type, [None if v is None and f.nullable else "" if v is None else v[f.name] for v in values])
            for f in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if types.is_map(kind):
        rows = [each or [] for each in values]
        flat = [pair for row in rows for pair in row]
        return pa.MapArray.from_arrays(
            pa.array(_offsets(rows), pa.int32()), pa.array([k for k, _ in flat], kind.key_type),
            any_column(kind.item_type, [v for _, v in flat]), type=kind, mask=mask,
        )  # fmt: skip
    if types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if not hasattr(kind, "value_type"):
        return pa.array(values, kind)
    if types.is_fixed_size_list(kind):
        flat = [one for each in values for one in ([None] * kind.list_size if each is None else each)]
        return pa.FixedSizeListArray.from_arrays(any_column(kind.value_type, flat), type=kind, mask=mask)
    rows = [each or [] for each in values]
    flat, offsets = [one for row in rows for one in row], _offsets(rows)
    inner, large = any_column(kind.value_type, flat), "large" in str(kind)
    width = pa.int64() if types.is_large_list(kind) or types.is_large_list_view(kind) else pa.int32()
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        made = pa.LargeListViewArray if large and width == pa.int64() else pa.ListViewArray
        sizes = pa.array([len(row) for row in rows], width)
        return made.from_arrays(pa.array(offsets[:-1], width), sizes, inner, type=kind, mask=mask)
    made = pa.LargeListArray if width == pa.int64() else pa.ListArray
    return made.from_arrays(pa.array(offsets, width), inner, type=kind, mask=mask)


def _offsets(rows: list[Any]) -> list[int]:
    found = [0]
    for row in rows:
        found.append(found[-1] + len(row))
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two columns hold the same values: NaN is equal to NaN, and -0.0 is not 0.0."""
    return one.type == other.type and len(one) == len(other) and key(one.to_pylist()) == key(other.to_pylist())


def key(value: Any) -> Any:
    """A value in a form in which NaN is equal to NaN."""
    if isinstance(value, float):
        return ("nan",) if value != value else (math.copysign(1, value), value)
    if isinstance(value, (list, tuple)):
        return [key(each) for each in value]
    if isinstance(value, dict):
        return {name: key(each) for name, each in value.items()}
    return repr(value)
