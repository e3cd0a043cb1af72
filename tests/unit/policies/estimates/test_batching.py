"""How calls are cut into message batches, and how often one is looked at."""

from __future__ import annotations

import pytest

from policies.estimates.batching import (
    BYTES_MAX,
    KEPT_S,
    REQUESTS_MAX,
    BatchingPolicy,
    absent,
    fits,
    gather_until_s,
    pause_s,
    results_expired,
)  # fmt: skip

SMALL = BatchingPolicy(requests_max=3, bytes_max=100)


@pytest.mark.parametrize(
    ("requests", "size_bytes", "expected"),
    [
        (1, 1, True),
        (3, 100, True),
        (4, 100, False),  # too many
        (3, 101, False),  # too large
        (1, 500, True),  # alone it goes: who is to take it, if not the provider, must say so
        (2, 500, False),
    ],
)
def test_a_submission_is_cut_by_count_and_by_bytes(requests: int, size_bytes: int, expected: bool) -> None:
    assert fits(SMALL, requests, size_bytes) is expected


@pytest.mark.parametrize(
    ("first_s", "last_s", "more", "expected_s"),
    [
        (10.0, 10.0, True, 12.0),
        (10.0, 15.0, True, 17.0),
        (10.0, 19.0, True, 20.0),  # however many keep coming, the first has waited long enough
        (10.0, 15.0, False, 15.0),  # nothing else can come
    ],
)
def test_it_waits_for_more_only_where_more_may_come(
    first_s: float, last_s: float, more: bool, expected_s: float
) -> None:
    policy = BatchingPolicy(gather_s=2.0, gather_max_s=10.0)
    assert gather_until_s(policy, first_s, last_s, more) == expected_s


def test_pauses_grow_up_to_a_bound_and_never_beyond() -> None:
    policy = BatchingPolicy(poll_s=4.0, poll_growth=2.0, poll_max_s=30.0)
    assert [pause_s(policy, looks) for looks in (0, 1, 2, 3, 10, 10**9)] == [4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize(("listed_at_s", "expected"), [(99.9, False), (100.0, True), (200.0, True)])
def test_a_batch_is_absent_only_when_nothing_can_be_on_its_way(listed_at_s: float, expected: bool) -> None:
    assert absent(100.0, listed_at_s) is expected


@pytest.mark.parametrize(
    ("status", "age_s", "expected"),
    [
        (404, 0.0, False), (404, 29 * 86_400.0, False), (404, KEPT_S, True), (410, KEPT_S, True), (410, KEPT_S - 1, False),
        (0, KEPT_S, False), (400, KEPT_S, False), (403, KEPT_S, False), (500, KEPT_S, False),
    ],
)  # fmt: skip
def test_results_have_expired_when_they_are_not_found_and_older_than_any_provider_keeps_them(
    status: int, age_s: float, expected: bool
) -> None:
    assert results_expired(status, 1_000.0, 1_000.0 + age_s) is expected


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ({"requests_max": 0}, "requests_max of a message batch must be 1 to 100,000, not 0"),
        ({"requests_max": REQUESTS_MAX + 1}, "requests_max of a message batch must be 1 to 100,000, not 100001"),
        ({"bytes_max": BYTES_MAX + 1}, "bytes_max of a message batch must be 1 to 256,000,000, not 256000001"),
        ({"gather_s": -1}, "gather_s must be 0 or more, not -1"),
        ({"gather_max_s": float("nan")}, "gather_max_s must be 0 or more, not nan"),
        ({"settle_s": float("inf")}, "settle_s must be 0 or more, not inf"),
        ({"poll_s": 0}, "poll_s must be above 0, not 0"),
        ({"poll_max_s": -5}, "poll_max_s must be above 0, not -5"),
        ({"submit_timeout_s": 0}, "submit_timeout_s must be above 0, not 0"),
        ({"poll_growth": 0.5}, "poll_growth must be 1 or more, not 0.5"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bound: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError) as error:
        BatchingPolicy(**bound)  # type: ignore[arg-type]
    assert str(error.value) == said
