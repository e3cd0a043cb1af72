"""Retry: who may, how often, how long to wait; over tables and over any settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.failures.failure import RULES, Failure, FailureKind
from policies.failures.retry import RetryDecision, RetryPolicy, backoff_s, beyond_patience, budget, lapsed, may_retry

K = FailureKind
POLICY = RetryPolicy()


def failed(kind: FailureKind, retry_after_s: float | None = None) -> Failure:
    return Failure(kind, "told by a test", retry_after_s=retry_after_s)


# kind: (again, hold) of a first attempt with budget to spare
FIRST_ATTEMPT = {
    K.THROTTLED: (True, False),
    K.OVERLOADED: (True, False),
    K.EXPIRED: (True, False),
    K.TRANSIENT: (True, False),
    K.UNREADABLE: (True, False),
    K.TIMED_OUT: (True, False),
    K.LOST: (True, False),
    K.BLOCKED: (False, True),
    K.UNAUTHORISED: (False, True),
    K.MALFORMED: (False, False),  # a new sample, not a new attempt
    K.TOO_LARGE: (False, False),  # a new prompt, not a new attempt
    K.REFUSED: (False, False),
    K.CUT: (False, False),
    K.PAUSED: (False, False),
    K.EMPTY: (False, False),
    K.TOOL_USE: (False, False),
    K.REJECTED: (False, False),
    K.FAULTY: (False, False),
    K.OVER_BUDGET: (False, False),
    K.CANCELLED: (False, False),
}


@pytest.mark.parametrize("kind", FailureKind)
def test_a_first_attempt_of_each_kind(kind: FailureKind) -> None:
    decision = may_retry(POLICY, failed(kind), 1, 0, 0)
    assert (decision.again, decision.hold) == FIRST_ATTEMPT[kind]
    assert not decision.deferred
    assert kind.value in decision.reason


@pytest.mark.parametrize(
    ("kind", "attempt", "throttles", "again"),
    [
        (K.TRANSIENT, 7, 0, True),
        (K.TRANSIENT, 8, 0, False),
        (K.TRANSIENT, 9, 0, False),
        (K.OVERLOADED, 8, 0, False),
        (K.LOST, 7, 0, True),
        (K.LOST, 8, 0, False),
        (K.TIMED_OUT, 4, 0, True),
        (K.TIMED_OUT, 5, 0, False),
        (K.THROTTLED, 59, 0, True),
        (K.THROTTLED, 60, 0, False),
        (K.THROTTLED, 90, 59, True),
        (K.THROTTLED, 90, 60, False),
        (K.TRANSIENT, 20, 13, True),  # seven of its own
        (K.TRANSIENT, 20, 12, False),
        (K.TIMED_OUT, 20, 16, True),
        (K.TIMED_OUT, 20, 15, False),
    ],
)
def test_attempts_are_bounded(kind: FailureKind, attempt: int, throttles: int, again: bool) -> None:
    decision = may_retry(POLICY, failed(kind), attempt, 0, 0, throttles)
    assert decision.again is again
    assert not decision.hold


@pytest.mark.parametrize("kind", [K.UNREADABLE, K.OVERLOADED, K.THROTTLED, K.TRANSIENT])
@pytest.mark.parametrize(
    ("answer_came", "paid", "again"), [(True, 1, True), (True, 2, False), (True, 3, False), (False, 2, True)]
)
def test_an_answer_that_came_is_asked_for_once_more(
    kind: FailureKind, answer_came: bool, paid: int, again: bool
) -> None:
    failure = Failure(kind, "x", 200, answer_came=answer_came)
    assert may_retry(POLICY, failure, 3, 0, 0, paid=paid).again is again


def test_fewer_attempts_bound_timed_out_ones_too() -> None:
    policy = RetryPolicy(attempts_max=2)
    assert may_retry(policy, failed(K.TIMED_OUT), 1, 0, 0).again
    assert not may_retry(policy, failed(K.TIMED_OUT), 2, 0, 0).again


@pytest.mark.parametrize("kind", [K.THROTTLED, K.OVERLOADED, K.TRANSIENT])
@pytest.mark.parametrize(("asked_s", "hold"), [(900.0, False), (900.5, True), (float("inf"), True)])
def test_a_wait_beyond_patience_pauses(kind: FailureKind, asked_s: float, hold: bool) -> None:
    decision = may_retry(POLICY, failed(kind, asked_s), 1, 0, 0)
    assert (decision.again, decision.hold) == (not hold, hold)
    assert beyond_patience(POLICY, failed(kind, asked_s)) is hold


@pytest.mark.parametrize(
    ("retries_spent", "successes", "deferred"),
    [
        (19, 0, False),
        (20, 0, True),
        (20, 4, True),  # four successes pay for four fifths of a retry
        (20, 5, False),
        (219, 1_000, False),
        (220, 1_000, True),
    ],
)
def test_over_the_budget_a_retry_is_deferred(retries_spent: int, successes: int, deferred: bool) -> None:
    decision = may_retry(POLICY, failed(K.TRANSIENT), 1, retries_spent, successes)
    assert decision.again
    assert decision.deferred is deferred


@pytest.mark.parametrize("kind", [K.LOST, K.THROTTLED])
def test_lost_and_throttled_calls_need_no_budget(kind: FailureKind) -> None:
    assert may_retry(POLICY, failed(kind), 1, 10_000, 0) == RetryDecision(
        True, f"{kind} at attempt 1 of 8" if kind is K.LOST else "throttled 1 times of 60"
    )


@pytest.mark.parametrize(
    ("attempt", "kind", "retry_after_s", "draw", "deferred", "expected_s"),
    [
        (1, K.TRANSIENT, None, 0.0, False, 0.0),
        (1, K.TRANSIENT, None, 0.5, False, 0.25),
        (2, K.TRANSIENT, None, 0.5, False, 0.5),
        (4, K.OVERLOADED, None, 0.5, False, 2.0),
        (8, K.TRANSIENT, None, 0.5, False, 30.0),
        (10_000, K.TRANSIENT, None, 0.5, False, 30.0),
        (1, K.THROTTLED, None, 0.5, False, 1.0),
        (1, K.THROTTLED, 7.0, 0.0, False, 7.0),
        (1, K.THROTTLED, 7.0, 0.5, False, 7.25),
        (3, K.OVERLOADED, 120.0, 0.5, False, 121.0),  # longer than our own cap, and still waited in full
        (1, K.THROTTLED, 0.0, 0.5, False, 0.25),
        (1, K.THROTTLED, -3.0, 0.5, False, 0.25),  # a date that has passed
        (1, K.TRANSIENT, None, 0.0, True, 60.0),
        (1, K.TRANSIENT, None, 0.5, True, 60.25),
        (1, K.TRANSIENT, 90.0, 0.5, True, 90.25),
    ],
)
def test_the_wait(
    attempt: int,
    kind: FailureKind,
    retry_after_s: float | None,
    draw: float,
    deferred: bool,
    expected_s: float,
) -> None:
    assert backoff_s(POLICY, attempt, kind, retry_after_s, draw, deferred) == expected_s


@given(
    attempt=st.integers(1, 1_000),
    kind=st.sampled_from(FailureKind),
    retry_after_s=st.none() | st.floats(-10, 10_000),
    draw=st.floats(0, 1, exclude_max=True),
    deferred=st.booleans(),
)
def test_any_wait_is_at_least_what_was_asked_and_boundedly_more(
    attempt: int, kind: FailureKind, retry_after_s: float | None, draw: float, deferred: bool
) -> None:
    wait_s = backoff_s(POLICY, attempt, kind, retry_after_s, draw, deferred)
    floor_s = max(retry_after_s or 0.0, POLICY.cap_s if deferred else 0.0, 0.0)
    assert floor_s <= wait_s <= floor_s + POLICY.cap_s


@given(
    kind=st.sampled_from(FailureKind),
    attempt=st.integers(1, 200),
    throttles=st.integers(0, 200),
    spent=st.integers(0, 1_000),
    successes=st.integers(0, 1_000),
    retry_after_s=st.none() | st.floats(0, 2_000),
)
def test_any_decision_makes_sense(
    kind: FailureKind, attempt: int, throttles: int, spent: int, successes: int, retry_after_s: float | None
) -> None:
    throttles = min(throttles, attempt)
    decision = may_retry(POLICY, failed(kind, retry_after_s), attempt, spent, successes, throttles)
    assert not (decision.again and decision.hold)
    assert decision.again or not decision.deferred
    if RULES[kind].again in ("no", "select", "resample"):
        assert not decision.again
        assert not decision.hold


@pytest.mark.parametrize("draw", [-0.1, 1.0, float("nan")])
def test_chance_outside_its_interval_is_refused(draw: float) -> None:
    with pytest.raises(ValueError, match="draw"):
        backoff_s(POLICY, 1, K.TRANSIENT, None, draw)


def test_attempt_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        backoff_s(POLICY, 0, K.TRANSIENT, None, 0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"attempts_max": 0},
        {"timed_out_attempts_max": 0},
        {"throttled_attempts_max": -1},
        {"base_s": -1.0},
        {"cap_s": float("nan")},
        {"patience_s": float("inf")},
        {"budget_share": -0.1},
        {"budget_floor": -1},
        {"budget_unspent_max": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        RetryPolicy(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spent", "successes", "counts"),
    [(0, 0, 0), (3, 0, 3), (0, 5_000, 20), (15, 5_000, 20), (500, 5_000, 500), (7, 10**6, 199_020)],
)
def test_what_is_saved_up_lapses(spent: int, successes: int, counts: int) -> None:
    assert lapsed(POLICY, spent, successes) == counts
    assert budget(POLICY, successes) - lapsed(POLICY, spent, successes) <= POLICY.budget_unspent_max


def test_a_bad_hour_after_many_good_ones_has_a_thousand_retries_and_no_more() -> None:
    spent, retried = 0, 0
    for _ in range(5_000):
        spent = lapsed(POLICY, spent, 10**6)
        if may_retry(POLICY, failed(K.TRANSIENT), 1, spent, 10**6).deferred:
            break
        spent, retried = spent + 1, retried + 1
    assert retried == POLICY.budget_unspent_max == 1_000
