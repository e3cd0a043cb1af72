"""Requests that may wait at a provider whose queue was full: batches shrink until they fit, and grow again."""

from __future__ import annotations

import pytest

from policies.estimates.batching import enqueued_after_end, enqueued_after_full


@pytest.mark.parametrize(
    ("out", "refused", "most"), [(0, 40, 20), (0, 1, 1), (30, 10, 30), (10, 30, 20), (0, 3, 1), (5, 1, 5)]
)
def test_after_a_full_queue(out: int, refused: int, most: int) -> None:
    assert enqueued_after_full(out, refused) == most


@pytest.mark.parametrize("room", [1, 7, 100, 9_999])
def test_any_room_is_found_and_used(room: int) -> None:
    most, refusals = 10_000, 0
    while most > room:
        most, refusals = enqueued_after_full(0, most), refusals + 1
    assert refusals <= 14 and most >= max(1, room // 2)
    grown = most
    for _ in range(60):
        grown = enqueued_after_end(grown)
    assert grown > 10_000, "a refusal is not believed for ever"
