"""Size of a value that is handed out: every mention counts, and the count ends early."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.sandbox.value_size import CONTAINER_BYTES, REFERENCE_BYTES, size_up_to

ENDLESS = 10**9
TEXT = "x" * 1_000


def twice(value: Any, times: int) -> Any:
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "each", "size"),
    [
        (None, 8, 8),
        ("abc", 8, 11),
        ("\u20ac\ud800", 1, 7),
        (b"abc", 1, 4),
        ([], 1, 1),
        ([TEXT, TEXT, [TEXT]], 1, 3_005),
        ({"ab": TEXT, 1: (TEXT,)}, 1, 2_008),
        ({"ab"}, 1, 4),
        (twice("a", 3), 1, 15 + 8),
        (10**30, 1, 1),
    ],
)
def test_every_mention_of_a_value_counts(value, each, size):
    assert size_up_to(value, ENDLESS, each, 0) == size


def test_a_container_counts_as_much_as_its_copy():
    assert size_up_to([{}, ("a",)], ENDLESS) == 4 * REFERENCE_BYTES + 3 * CONTAINER_BYTES + 1


@pytest.mark.parametrize(
    "value", [[TEXT] * 10**7, [[TEXT] * 10**6] * 10**6, {1: [[TEXT] * 10**6]}, twice([0], 200), twice({1: (1,)}, 200)]
)
def test_the_count_ends_where_it_is_above_its_bound(value):
    assert 5_000 < size_up_to(value, 5_000) <= 5_000 + REFERENCE_BYTES + max(CONTAINER_BYTES, len(TEXT))


def test_a_value_of_any_depth_or_within_itself_is_counted():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert size_up_to(deep, ENDLESS, 1, 0) == 100_001
    within: list[Any] = []
    within.append(within)
    assert size_up_to(within, 100) > 100


values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
)


@given(values)
@settings(max_examples=40)
def test_its_json_has_as_many_bytes_or_more_and_its_messagepack_few_more(value):
    assert size_up_to(value, ENDLESS, 1, 0) <= len(msgspec.json.encode(value))
    assert len(msgspec.msgpack.encode(value)) <= size_up_to(value, ENDLESS, container=0) * 9 / 8
