"""Limit: what one pool may do, by tables."""

import msgspec
import pytest

from policies.limit import Caps, Limit, LimitPolicy, Sample, allowance, new, observe

POLICY = LimitPolicy()


def test_a_pool_begins_with_its_start_and_grows_by_a_permit_an_answer() -> None:
    limit = new(POLICY)
    assert allowance(POLICY, limit, 0.0).concurrency == 20
    observe(POLICY, limit, 0.25, Sample(begun=20, answered=20, binding=True))
    assert allowance(POLICY, limit, 0.25).concurrency == 40
    observe(POLICY, limit, 0.5, Sample(begun=20, answered=20, binding=False))
    assert allowance(POLICY, limit, 0.5).concurrency == 40


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": -3},
        {"requests_per_min": 0.0},
        {"input_tokens_per_min": float("nan")},
        {"output_tokens_per_min": float("inf")},
        {"headroom": 1.0},
        {"headroom": -0.1},
    ],
)
def test_caps_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Caps(**wrong)  # type: ignore[arg-type]


def test_a_limit_travels() -> None:
    limit = new(POLICY)
    observe(POLICY, limit, 1.0, Sample(throttled=1))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(limit), type=Limit) == limit
