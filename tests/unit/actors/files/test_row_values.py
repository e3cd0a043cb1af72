"""Values of rows from Python: those of numpy and pandas are what JSON has for them."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import uuid
from typing import Any

import msgspec
import numpy
import pandas
import pytest

from actors.files.row_values import NoJsonForm, encode, json_value


class Text(str):
    """A text of a class of its own."""


class Number(int):
    """A number of a class of its own."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (numpy.int64(7), 7),
        (numpy.uint64(2**64 - 1), 2**64 - 1),
        (numpy.float64(1.5), 1.5),
        (numpy.float32(0.5), 0.5),
        (numpy.float64("nan"), None),
        (numpy.bool_(True), True),
        (numpy.str_("x"), "x"),
        (numpy.array([1, 2]), [1, 2]),
        (numpy.datetime64("2024-01-01"), "2024-01-01"),
        (numpy.datetime64("2024-01-01T00:00:00.000000001"), "2024-01-01T00:00:00.000000001"),
        (numpy.datetime64("NaT"), None),
        (numpy.timedelta64(90, "s"), "PT90S"),
        (pandas.Timestamp("2024-01-01"), "2024-01-01T00:00:00"),
        (pandas.Timestamp("2024-01-01", tz="UTC"), "2024-01-01T00:00:00+00:00"),
        (pandas.Timedelta("1D"), "P1D"),
        (pandas.NaT, None),
        (pandas.NA, None),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime.date(2024, 1, 1), "2024-01-01"),
        (Text("s"), "s"),
        (Number(3), 3),
    ],
    ids=repr,
)
def test_a_value_is_encoded(value: Any, expected: Any) -> None:
    assert msgspec.json.decode(encode(json_value({"a": value, "b": [value]}))) == {"a": expected, "b": [expected]}


@pytest.mark.parametrize("value", [object(), "half \ud83d", 1j], ids=["object", "surrogate", "complex"])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(NoJsonForm):
        json_value({"a": value})
