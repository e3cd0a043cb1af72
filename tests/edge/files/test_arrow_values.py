"""Arrow values as JSON and back: nothing of any type is lost, and what a prompt shows of each."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import math
import random
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.files.arrow_values import JsonForm, arrow_column, bytes_are_text, to_json_values
from tests.support.arrow_columns import any_column, any_type, any_value, plain_types, same


def again(column: Any, form: JsonForm = JsonForm()) -> Any:  # noqa: B008 - it is frozen
    """A column through its JSON form."""
    values = msgspec.json.decode(msgspec.json.encode(to_json_values(column, form)))
    return arrow_column(values, column.type, form.text)


@pytest.mark.parametrize("place", range(len(plain_types(random.Random(0)))))
def test_every_type_that_holds_no_other(place: int) -> None:
    rng = random.Random(place)
    kind = plain_types(rng)[place]
    column = any_column(kind, [any_value(kind, rng) for _ in range(200)])
    assert same(again(column), column)
    assert same(again(column.slice(7, 90)), column.slice(7, 90))
    assert same(again(column, JsonForm(exact=True)), column)


@pytest.mark.parametrize("seed", range(150))
def test_any_type_through_parquet_and_json(seed: int) -> None:
    rng = random.Random(seed)
    kind = any_type(rng, 3)
    column = any_column(kind, [any_value(kind, rng) for _ in range(30)])
    file = io.BytesIO()
    try:
        pq.write_table(pa.table({"x": column}), file)
        read = pq.read_table(file).column("x").combine_chunks()
    except (pa.ArrowException, OSError):  # no type that Parquet holds
        read = column
    read = read.chunk(0) if isinstance(read, pa.ChunkedArray) else read
    for form in (JsonForm(), JsonForm(exact=True)):
        assert same(again(read, form), read), kind
        assert same(again(read.slice(3, 11), form), read.slice(3, 11)), kind


def test_all_small_floats_are_short_and_come_back() -> None:
    halves = pa.array(range(1 << 16), pa.uint16()).view(pa.float16())
    assert same(again(halves), halves)
    singles = pa.array([0.1, 16777216.0, 3.4028235e38, 1e-45, 1 / 3, None], pa.float32())
    assert to_json_values(singles) == [0.1, 16777216.0, 3.4028235e38, 1e-45, 0.33333334, None]
    assert to_json_values(pa.array([0.1, 65504.0, None], pa.float64()).cast(pa.float16())) == [0.1, 65500.0, None]
    rng = random.Random(1)
    many = pa.array([rng.getrandbits(32) for _ in range(50_000)], pa.uint32()).view(pa.float32())
    assert same(again(many), many)


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([math.nan, math.inf, -math.inf]), ["NaN", "Infinity", "-Infinity"]),
        (pa.array([[math.nan, 1.0]]), [["NaN", 1.0]]),
        (pa.array([[dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]]), [["2020-01-01T00:00:00Z"]]),
        (pa.array([[dt.datetime(2020, 1, 1, 2, 3, 4, 500)]]), [["2020-01-01T02:03:04.000500"]]),  # noqa: DTZ001
        (pa.array([[0]], pa.list_(pa.timestamp("us", "Europe/Berlin"))), [["1970-01-01T01:00:00+01:00"]]),
        (pa.array([[dt.date(2020, 1, 2)]]), [["2020-01-02"]]),
        (pa.array([[dt.time(1, 2, 3)]], pa.list_(pa.time64("us"))), [["01:02:03"]]),
        (pa.array([[b"x"]]), [["eA=="]]),
        (pa.array([[Decimal("1.20")]]), [["1.20"]]),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), [[["a", 1]]]),
        (pa.array([[90_000_500_000]], pa.list_(pa.duration("us"))), [["P1DT3600.5S"]]),
        (pa.array([5], pa.duration("ms")), [5]),
        (pa.array([UUID(int=1).bytes], pa.uuid()), [str(UUID(int=1))]),
        # local mean time: Arrow writes the offset without its seconds
        (pa.array([-3_000_000_000], pa.timestamp("s", "Europe/Berlin")), ["1874-12-07 18:40:00Z"]),
    ],
)  # fmt: skip
def test_what_a_prompt_shows(column: Any, shown: list[Any]) -> None:
    assert to_json_values(column) == shown
    assert same(again(column), column)


def test_durations_in_others_are_those_of_msgspec() -> None:
    rng = random.Random(2)
    counts = [0, -1, 1, 500_000, *(rng.randrange(-(2**50), 2**50) for _ in range(500))]
    shown = to_json_values(pa.array([[each] for each in counts], pa.list_(pa.duration("us"))))
    assert shown == [[msgspec.to_builtins(dt.timedelta(microseconds=each))] for each in counts]


@pytest.mark.parametrize(
    ("kind", "count"), [(pa.timestamp("us"), 253402300800 * 10**6), (pa.date32(), 3_000_000), (pa.date32(), -800_000)]
)
def test_a_time_beyond_the_years_of_text_is_told_where_it_must_come_back(kind: Any, count: int) -> None:
    far = pa.array([count], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    assert to_json_values(far)[0][:5] in ("10000", "10183", "-0221")
    with pytest.raises(ValueError, match="years 1 to 9999"):
        to_json_values(far, JsonForm(exact=True))
    with pytest.raises(ValueError, match="out of range"):
        to_json_values(pa.array([2**61], pa.timestamp("us")))


def test_a_struct_with_two_fields_of_one_name_has_no_form() -> None:
    both = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ValueError, match="two fields named 'a'"):
        to_json_values(both)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([b"a", None, "é".encode()]), True), (pa.array([b"a", b"\xff"]), False), (pa.array([[b"a"], None]), True),
        (pa.array([{"bytes": b"\xff\xd8", "path": "x"}]), False), (pa.array([b"ab"], pa.binary(2)), True),
        (pa.array([b"\xff"], pa.binary_view()), False), (pa.array([b"\xff"]).dictionary_encode(), False),
        (pa.array([[("k", b"\xff")]], pa.map_(pa.string(), pa.binary())), False),
    ],
)  # fmt: skip
def test_which_bytes_are_text(column: Any, text: bool) -> None:
    assert bytes_are_text(column) == text
    assert same(again(column, JsonForm(text=text)), column)


@pytest.mark.parametrize("place", range(len(plain_types(random.Random(0)))))
def test_parts_that_may_not_be_null_are_none_behind_a_null(place: int) -> None:
    rng = random.Random(place)
    plain = plain_types(rng)[place]
    if pa.types.is_null(plain):
        return
    for inner in (plain, pa.list_(plain), pa.list_(pa.field("item", plain, nullable=False), 2)):
        kind = pa.struct([pa.field("a", inner, nullable=False)])
        column = any_column(inner, [any_value(inner, rng, 0) for _ in range(5)])
        if isinstance(inner, pa.FixedSizeListType):
            column = arrow_column([None, to_json_values(any_column(plain, [any_value(plain, rng, 0)] * 2))], inner)
            kind = pa.struct([pa.field("a", inner)])
        mask = pa.array([each == 1 for each in range(len(column))])
        given = pa.StructArray.from_arrays([column], fields=list(kind), mask=mask)
        back = again(given)
        assert same(back, given)
        with contextlib.suppress(pa.ArrowNotImplementedError):
            pq.write_table(pa.table({"x": back}), io.BytesIO())
