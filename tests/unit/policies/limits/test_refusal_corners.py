"""Corners of the search for a limit: a few cells of each family of `tests.support.refusal_corners`, which has them all."""

from __future__ import annotations

import pytest

from tests.support import refusal_corners as corners
from tests.support.refusal_corners import (
    Again,
    Bucket,
    Kind,
    Share,
    SlowBucket,
    Storm,
    back_again,
    figure,
    slow,
    used_and_throttled,
)


@pytest.mark.parametrize(
    ("bucket", "least"),
    [
        (Bucket("requests", 20, 10, 0.02), 0.95),
        (Bucket("requests", 300, 1, 0.02), 0.95),
        (Bucket("requests", 60, 1, 0.02), 0.85),  # of one call: each call that comes late loses what would have filled it
        (Bucket("requests", 60, 1, 5.0), 0.85),
        (Bucket("requests", 300, 1, 0.02, nodes=4), 0.85),  # of five calls, for four jobs that pace for themselves
        (Bucket("input", 20, 10, 0.02), 0.9),
        (Bucket("input", 300, 1, 5.0), 0.95),
        (Bucket("both", 20, 10, 0.02), 0.9),
        (Bucket("both", 20, 10, 0.5), 0.9),
        (Bucket("both", 300, 1, 0.02), 0.9),
        (Bucket("both", 300, 1, 5.0), 0.9),
        (Bucket("both", 60, 10, 5.0), 0.95),
        (Bucket("both", 20, 10, 0.5, resets=False), 0.9),
    ],
    ids=str,
)
def test_a_small_token_bucket_that_headers_tell_of_is_used_and_seldom_refuses(bucket: Bucket, least: float) -> None:
    used, throttled = used_and_throttled(bucket)
    assert used >= least and throttled < 0.02, f"used {used:.3f}, throttled {throttled:.4f}"


@pytest.mark.parametrize(
    "storm",
    [
        Storm("places .6s", 0.5, 60, 70),
        Storm("places .6s", 0.5, 10, 70, retry_after=True),
        Storm("places .1s", 1.0, 60, 70),
        Storm("places 60 of 2s", 0.5, 60, 70, retry_after=True),
    ],
    ids=str,
)
def test_a_limit_of_concurrency_that_had_been_found_holds_again_after_a_storm(storm: Storm) -> None:
    reached, line = figure(storm)
    assert reached >= 0.9, line


@pytest.mark.parametrize(
    "share",
    [
        Share("places 60 of 2s", 0.35, retry_after=True),
        Share("places .6s", 0.35),
        Share("unlimited 8s", 0.1),
        Share("unlimited .6s", 0.05, retry_after=True),
    ],
    ids=str,
)
def test_a_share_of_refusals_that_no_load_causes_is_told_from_a_limit(share: Share) -> None:
    reached, line = figure(share)
    assert reached >= 0.9, line


def test_checks_of_a_share_cost_little_where_calls_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, .87: those in flight ended first in each of them, and the next one came with as many refusals."""
    monkeypatch.setitem(corners.KINDS, "", corners.bucket(12, 41, 8))
    reached, line = figure(Share("", 0.34, headers=True), (11, 12, 13))
    assert reached >= 0.95, line


@pytest.mark.parametrize(
    "storm",
    [
        Storm("bucket of a minute", 0.5, 300, 1, retry_after=True),
        Storm("places .6s", 0.5, 60, 1, retry_after=True),
        Storm("unlimited .6s", 1.0, 300, 70, retry_after=True),
    ],
    ids=str,
)
def test_a_guess_that_a_storm_left_does_not_hold(storm: Storm) -> None:
    """Also where nothing was known before it, or a climb was begun while all was refused."""
    reached, line = figure(storm)
    assert reached >= 0.9, line


@pytest.mark.parametrize(
    "storm",
    [
        Storm("places .6s", 1.0, 60, 1),
        Storm("places 8s", 1.0, 60, 1),
        Storm("places 60 of 2s", 1.0, 60, 1, retry_after=True),
        Storm("unlimited 8s, 200", 1.0, 60, 1, retry_after=True),
        Storm("bucket 8s", 1.0, 300, 1, retry_after=True),
    ],
    ids=str,
)
def test_after_a_storm_from_the_first_second_the_search_begins_anew(storm: Storm) -> None:
    reached, line = figure(storm)
    assert reached >= 0.9, line


@pytest.mark.parametrize(
    ("kind", "corner", "seed"),
    [  # before: .61, .70, .42
        (corners.unlimited(78, 0.13), Again(Storm("", 1.0, 18, 13, retry_after=True), 49, 0.5, 39), 1),
        (corners.bucket(10, 4.3, 6.7), Again(Storm("", 0.7, 18, 22, True, True), 48, 0.7, 29), 4),
        (corners.bucket(39, 42, 8.7), Again(Storm("", 0.5, 33, 11, True, True), 52, 1.0, 48), 101),
    ],
    ids=["unlimited .13s", "bucket of 10/s", "bucket of 39/s"],
)
def test_what_was_guessed_in_a_first_storm_does_not_hold_after_a_second(
    kind: Kind, corner: Again, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corners.KINDS, "", kind)
    assert back_again(corner, seed) >= 0.9


@pytest.mark.parametrize(
    ("bucket", "most"),
    [  # before a climb was judged by the chance of its refusals: 40, 5, 24 and 76 %
        (SlowBucket(15), 0.1),
        (SlowBucket(20), 0.1),
        (SlowBucket(6, nodes=4), 0.1),
        (SlowBucket(20, nodes=4), 0.1),
    ],
    ids=str,
)
def test_a_bucket_of_few_calls_a_minute_that_nothing_tells_of_is_found(bucket: SlowBucket, most: float) -> None:
    used, refused = slow(bucket)
    assert used >= 0.85 and refused <= most, f"used {used:.3f}, refused {refused:.4f}"
