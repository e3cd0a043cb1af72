"""Values from Python, numpy, pandas, polars and Arrow as JSON: a table over every scalar type of each library."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import ipaddress
import os
import pathlib
import sqlite3
import subprocess
import sys
import types
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import attrs
import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.files.batch_request import InvalidRow
from actors.files.json_rows import read_row
from actors.files.python_rows import RowWriter
from actors.files.row_values import NoJsonForm, as_mapping, encode, json_value

DAY = dt.datetime(2024, 2, 29, 1, 2, 3, 4000)  # noqa: DTZ001 - values with and without a zone
UTC = dt.UTC
SOME_UUID = uuid.UUID(int=5)
NO_TEXT = b"\xff"


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    pass


class Whole(int):
    pass


class Later(dt.datetime):
    pass


class Pair(NamedTuple):
    a: int
    b: str


@dataclasses.dataclass
class Data:
    a: Any


@attrs.define
class Attrs:
    a: Any


class Struct(msgspec.Struct, rename="upper"):
    a: Any


class Model(pydantic.BaseModel):
    a: int
    when: dt.date = dt.date(2024, 2, 29)


PYTHON = [
    (None, None), (True, True), (7, 7), (2**70, 2**70), (-(2**64), -(2**64)), (0.1, 0.1), (-0.0, -0.0),
    (float("nan"), None), ("ä", "ä"), ("", ""), (NO_TEXT, "/w=="), (bytearray(b"a"), "YQ=="), (memoryview(b"a"), "YQ=="),
    (DAY, "2024-02-29T01:02:03.004000"), (DAY.replace(tzinfo=UTC), "2024-02-29T01:02:03.004000Z"), (DAY.date(), "2024-02-29"),
    (DAY.time(), "01:02:03.004000"), (dt.timedelta(days=1, seconds=2), "P1DT2S"), (Later(2024, 2, 29), "2024-02-29T00:00:00"),
    (Decimal("1.10"), "1.10"), (SOME_UUID, str(SOME_UUID)), (pathlib.PurePosixPath("/a/b"), "/a/b"), (Color.RED, "red"),
    (Color.PAIR, [1, 2]), (Level.HIGH, 3), (Text("x"), "x"), (Whole(3), 3), ((1, "a"), [1, "a"]), ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]), ({1: {"x": {2}}}, {"1": {"x": [2]}}), (collections.deque([1]), [1]),
    (collections.OrderedDict(a=1), {"a": 1}), (types.MappingProxyType({"a": 1}), {"a": 1}),
    (collections.ChainMap({"a": 1}), {"a": 1}), (Pair(1, "x"), {"a": 1, "b": "x"}), (Data({1}), {"a": [1]}),
    (Attrs(DAY.date()), {"a": "2024-02-29"}), (Struct(np.int8(1)), {"A": 1}), (Model(a=1), {"a": 1, "when": "2024-02-29"}),
    (Color, NoJsonForm), (object(), NoJsonForm), (lambda: 1, NoJsonForm), (1j, NoJsonForm), (Fraction(1, 3), NoJsonForm),
    (ipaddress.ip_address("::1"), NoJsonForm), ("half \ud83d", NoJsonForm), (["\ud83d"], NoJsonForm), (10**5000, NoJsonForm),
    ({(1, 2): 3}, NoJsonForm), ({None: 3}, NoJsonForm), ({1: 2, "1": 3}, NoJsonForm), ([{"a": {Level.HIGH: 1, "3": 1}}], NoJsonForm), (pathlib.PurePosixPath("\udcff"), NoJsonForm),
]  # fmt: skip
NUMPY = [
    *((np.dtype(kind).type(7), 7) for kind in "bBhHiIlLqQ"), (np.bool_(True), True), (np.float16(0.1), 0.1),
    (np.float32(0.1), 0.1), (np.float64(0.1), 0.1), (np.longdouble(1), 1.0), (np.float32("nan"), None), (np.str_("x"), "x"),
    (np.bytes_(b"a"), "YQ=="), (np.datetime64("2024-02-29"), "2024-02-29"), (np.datetime64("NaT"), None),
    (np.datetime64("2024-02-29T01:02:03.000000004"), "2024-02-29T01:02:03.000000004"),
    (np.datetime64("20000-01-01"), "20000-01-01"), (np.datetime64("2024"), "2024"), (np.timedelta64("NaT"), None),
    (np.timedelta64(90, "m"), "PT5400S"), (np.timedelta64(5, "ns"), "PT0.000000005S"), (np.timedelta64(2, "W"), "P14D"),
    (np.timedelta64(5), 5), (np.timedelta64(1, "Y"), NoJsonForm), (np.timedelta64(1, "as"), NoJsonForm),
    (np.complex64(1), NoJsonForm), (np.complex128(1), NoJsonForm), (np.array([1, 2]), [1, 2]), (np.array(3), 3), (np.array([]), []),
    (np.array([[0.1, np.nan]], dtype="f4"), [[0.1, None]]), (np.array([{1}, None], dtype=object), [[1], None]),
    (np.array([(1, "a")], dtype=[("n", "i4"), ("s", "U1")])[0], {"n": 1, "s": "a"}), (np.ma.masked, None),
    (np.ma.array([1, 2], mask=[False, True]), [1, None]), (np.array("2024-02-29", "M8[D]"), "2024-02-29"),
    (np.array(["half \ud83d"]), NoJsonForm), (np.datetime64("2024-02-29", "W"), "2024-02-29"),
]  # fmt: skip
PANDAS = [
    (pd.NaT, None), (pd.NA, None), (pd.Timestamp("2024-02-29 01:02:03.000000004"), "2024-02-29T01:02:03.000000004"),
    (pd.Timestamp("2024-02-29", tz="Europe/Berlin"), "2024-02-29T00:00:00+01:00"), (pd.Timedelta(5, "ns"), "PT0.000000005S"),
    (pd.Timedelta(-1, "D"), "-P1D"), (pd.Period("2024-02", "M"), "2024-02"), (pd.Interval(1, 2), "(1, 2]"),
    *((pd.array([7, None], dtype=kind)[0], 7) for kind in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")),
    *((pd.array([None], dtype=kind)[0], None) for kind in ("Int64", "boolean", "Float32", "string", "int64[pyarrow]")),
    (pd.array([0.5, None], dtype="Float64")[0], 0.5), (pd.array([True, None], dtype="boolean")[0], True),
    (pd.array(["a", None], dtype="string")[0], "a"), (pd.array([7], dtype="int64[pyarrow]")[0], 7),
    (pd.Categorical(["x"])[0], "x"), (pd.Series([1, None], dtype="Int64"), [1, None]), (pd.Index(["a"]), ["a"]),
    (pd.array([1, None], dtype="Int64"), [1, None]), (pd.Series(["x"], dtype="category"), ["x"]),
    (pd.arrays.SparseArray([0, 1])[1], 1), (pd.offsets.Day(), NoJsonForm), (pd.DataFrame({"a": [1]}), NoJsonForm),
]  # fmt: skip
POLARS = [
    (pl.Series([1, None]), [1, None]), (pl.Series([{"a": dt.date(2024, 2, 29)}]), [{"a": "2024-02-29"}]),
    (pl.Series(["x"], dtype=pl.Categorical)[0], "x"), (pl.Series([Decimal("1.10")])[0], "1.10"), (pl.lit(1), NoJsonForm),
    (pl.DataFrame({"a": [1]}), NoJsonForm),
]  # fmt: skip
ARROW = [
    *((pa.scalar(7, kind), 7) for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64())),
    (pa.scalar(0.1, pa.float32()), 0.1), (pa.scalar(0.5, pa.float16()), 0.5), (pa.scalar(True), True),
    (pa.scalar(None), None), (pa.scalar(None, pa.int8()), None), (pa.scalar("x"), "x"), (pa.scalar("x", pa.large_string()), "x"),
    (pa.scalar("x", pa.string_view()), "x"), (pa.scalar(b"a"), "YQ=="), (pa.scalar(b"a", pa.binary(1)), "YQ=="),
    (pa.scalar(Decimal("1.10")), "1.10"), (pa.scalar(1, pa.timestamp("ns")), "1970-01-01 00:00:00.000000001"),
    (pa.scalar(0, pa.timestamp("s", "UTC")), "1970-01-01 00:00:00Z"), (pa.scalar(1, pa.date32()), "1970-01-02"),
    (pa.scalar(1, pa.time64("us")), "00:00:00.000001"), (pa.scalar(5, pa.duration("s")), 5),
    (pa.scalar([1, None], pa.list_(pa.int8())), [1, None]), (pa.scalar({"a": 1}), {"a": 1}),
    (pa.scalar([("k", 1)], pa.map_(pa.string(), pa.int8())), [["k", 1]]), (pa.array(["x"]).dictionary_encode()[0], "x"),
    (pa.scalar(SOME_UUID.bytes, pa.uuid()), str(SOME_UUID)), (pa.array([1, None]), [1, None]),
    (pa.chunked_array([[1], [2]]), [1, 2]), (pa.table({"a": [1]}), NoJsonForm), (pa.int8(), NoJsonForm),
    (pa.scalar(2**60, pa.timestamp("s")), NoJsonForm),
]  # fmt: skip


@pytest.mark.parametrize(("value", "wanted"), [*PYTHON, *NUMPY, *PANDAS, *POLARS, *ARROW], ids=lambda each: type(each).__name__)
def test_a_value_is_its_json_form_or_is_refused(value: Any, wanted: Any) -> None:
    if wanted is NoJsonForm:
        with pytest.raises(NoJsonForm, match=r"^(is|holds|has|cannot be) [^\n]+$"):
            json_value(value)
        return
    assert encode(json_value(value)) == encode(wanted)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("inf"), "Infinity"), (-np.float32("inf"), "-Infinity"), ([np.float64("inf")], "[Infinity]"),
        (np.longdouble("0.1"), str(np.longdouble("0.1"))), (msgspec.Raw(b"1E400"), "1E400"),
    ],
)  # fmt: skip
def test_numbers_that_no_float_of_json_holds_are_read_by_the_source(value: Any, text: str) -> None:
    line = encode({"x": json_value(value)})
    assert line == f'{{"x":{text}}}'.encode()
    row, flaws = read_row(line)
    assert (encode(row["x"]).decode().replace('"', ""), flaws) == (text, {})


def test_every_class_of_scalars_of_numpy_is_in_the_table() -> None:
    tried = {type(value) for value, _ in NUMPY}
    assert set(np.sctypeDict.values()) - tried <= {np.object_, np.void, np.clongdouble, np.ulonglong, np.longlong, np.intc, np.uintc}


def test_a_value_that_holds_itself_or_fails_when_it_is_read_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    class Broken:
        @property
        def tolist(self) -> Any:
            raise RuntimeError("boom")

    for value, text in ((loop, "is nested too deeply"), (Broken(), "cannot be read: RuntimeError: boom")):
        with pytest.raises(NoJsonForm, match=text):
            json_value(value)


def test_sets_and_objects_have_the_same_form_in_each_process() -> None:
    code = (
        "from actors.files.python_rows import RowWriter; import sys\n"
        "rows = [{'a': {'x', 'y', 'z', 'w'}}, {'a': object()}, object()]\n"
        "RowWriter((), None).write(rows, sys.stdout.buffer)"
    )
    seeds = ("1", "2")
    lines = {
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in seeds
    }
    assert len(lines) == 1


def _of_sqlite() -> Any:
    with sqlite3.connect(":memory:") as base:
        base.row_factory = sqlite3.Row
        return base.execute("select 1 as a").fetchone()


@pytest.mark.parametrize(
    "row",
    [
        {"a": 1}, Data(1), Attrs(1), Model(a=1), types.MappingProxyType({"a": 1}), collections.UserDict(a=1), _of_sqlite(),
        next(pd.DataFrame({"a": [1]}).itertuples(index=False)), pd.DataFrame({"a": [1]}).iloc[0],
        np.array([(1,)], dtype=[("a", "i4")])[0], np.rec.array([(1,)], dtype=[("a", "i4")])[0],
    ],
    ids=lambda row: type(row).__name__,
)  # fmt: skip
def test_records_are_rows(row: Any) -> None:
    fields = as_mapping(row)
    assert fields is not None
    assert fields["a"] == 1
    assert read_row(RowWriter((), None).line(row).rstrip())[0]["a"] == 1


@pytest.mark.parametrize(
    "row",
    [None, 3, 1.5, b"a", [1], (1,), {1}, object(), Color, np.int8(1), np.array([1])],
    ids=lambda row: type(row).__name__,  # an address would differ from one process of the tests to the next
)
def test_others_are_none(row: Any) -> None:
    assert as_mapping(row) is None


_scalars = [value for value, _ in [*NUMPY, *PANDAS, *ARROW]]
_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.decimals() | st.uuids()
    | st.datetimes() | st.dates() | st.times() | st.timedeltas() | st.complex_numbers()
    | st.integers(0, len(_scalars) - 1).map(_scalars.__getitem__)
)  # fmt: skip
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner)
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(st.characters()) | st.integers() | st.none(), _values) | _values)
def test_any_object_is_one_line_that_is_a_row_or_has_a_reason(given_row: Any) -> None:
    line = RowWriter(("t",), None).line(given_row)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    try:
        row, flaws = read_row(line.rstrip(b"\n"))
    except InvalidRow as error:
        assert str(error)
        return
    encode(row)
    assert all(flaws.values())
    assert RowWriter(("t",), None).line(given_row) == line


@pytest.mark.parametrize("depth", [10, 100, 300, 450, 600, 1_000, 100_000])
@pytest.mark.parametrize("of", [list, dict])
def test_values_of_any_depth_are_read_or_refused(depth: int, of: type) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value] if of is list else {"a": value}
    try:
        row, flaws = read_row(RowWriter((), None).line({"id": 1, "x": value}).rstrip())
    except InvalidRow as error:
        assert "nested too deeply" in str(error)
    else:
        assert row["id"] == 1
        assert not flaws or "nested too deeply" in flaws["x"]
