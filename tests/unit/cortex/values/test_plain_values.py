"""Values as plain data: what K keeps is what a snapshot brings back."""

from __future__ import annotations

import datetime
import enum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex.flows.answer_types import value_to_plain
from cortex.values.plain_values import DEPTH_MAX, as_bytes, size_bytes, to_plain


class Colour(enum.StrEnum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    tags: set[str]


class Holding(msgspec.Struct):
    value: object


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
KEYS = st.text() | st.integers(-(2**63), 2**64 - 1)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner) | st.sets(st.integers(0, 9)),
    max_leaves=12,
)


def kept(value: object) -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


@given(VALUES)
def test_what_is_plain_survives_the_bytes(value):
    once = to_plain(value)
    assert kept(once) == once
    assert msgspec.msgpack.encode(kept(once)) == msgspec.msgpack.encode(once)
    assert to_plain(once) == once


def test_it_is_a_copy():
    inner = [1]
    made = to_plain({"a": inner})
    inner.append(2)
    assert made == {"a": [1]}


def test_sets_are_sorted_structs_are_dicts_names_are_text():
    value = (Point(1, {"b", "a"}), Colour.RED, {Colour.RED: {3, 1}}, datetime.date(2026, 1, 2), bytearray(b"x"))
    assert to_plain(value) == [{"x": 1, "tags": ["a", "b"]}, "red", {"red": [1, 3]}, "2026-01-02", b"x"]
    assert type(to_plain(Colour.RED)) is str


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), TypeError),
        ({(1, 2): 3}, TypeError),
        ({True: 1}, TypeError),
        ([lambda: 1], TypeError),
        (2**64, ValueError),
        ([1, 2**64], OverflowError),
        ({"a": -(2**63) - 1}, OverflowError),
        (-(2**63) - 1, ValueError),
        ({"a": ["\ud800"]}, ValueError),
        ({"\udfff": 1}, ValueError),
    ],
)
def test_what_k_cannot_keep_is_refused(value, kind):
    with pytest.raises(kind):
        to_plain(value)


def test_what_nests_too_deep_is_refused():
    value: object = 1
    for _ in range(DEPTH_MAX):
        value = [value]
    assert to_plain(value) == value
    for more in (1, 300, 900, 3_000, 20_000):  # the verdict does not depend on the stack, nor on who encodes
        for _ in range(more):
            value = [value]
        for refuses, deep in ((to_plain, value), (to_plain, Holding(value)), (value_to_plain, value)):
            with pytest.raises(ValueError, match="nested deeper"):
                refuses(deep)


@pytest.mark.parametrize(("value", "size"), [("a\u00e9", 3), (b"ab", 2), ({"a": [1]}, 9), (None, 4)])
def test_the_size_of_a_value(value, size):
    assert size_bytes(value) == size


@pytest.mark.parametrize("value", [
    [1, 2, 3], [], ["a", "é", b"b", None, True, 0.5, -1, 1 << 63], (1, 2), [[1], {"b": 1, "a": [2]}], "said", 7, None,
    {"b": 1, "a": 2}, {2, 1}, [{"b": 1, "a": 2}], [1 << 64], ["\ud800"], [{"b"}], [object()],
])  # fmt: skip
def test_the_bytes_of_a_value_are_those_of_its_plain_form(value):
    def told(made):
        try:
            return made()
        except Exception as error:
            return type(error), str(error)

    usual = msgspec.msgpack.Encoder(order="deterministic").encode
    assert told(lambda: as_bytes(value)) == told(lambda: usual(to_plain(value)))
