"""Corners of the search for a limit: a few cells of each family of `tests.support.refusal_corners`, which has them all."""

from __future__ import annotations

import pytest

from tests.support.refusal_corners import Bucket, used_and_throttled


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
