"""What the header `x-should-retry` makes of a failure."""

from __future__ import annotations

import pytest

from policies.failures.failure import RULES, Failure, FailureKind
from policies.failures.told_retry import obeyed, refuses_request

K = FailureKind
CHANGED = {
    (K.REJECTED, "true", None): K.TRANSIENT,
    (K.REJECTED, "true", 7.0): K.TRANSIENT,
    (K.TRANSIENT, "false", None): K.REJECTED,
    (K.TRANSIENT, "false", 7.0): K.REJECTED,
    (K.THROTTLED, "false", None): K.BLOCKED,
}


@pytest.mark.parametrize("wait_s", [None, 7.0])
@pytest.mark.parametrize("told", ["true", "false", "", "True", "yes", "1"])
@pytest.mark.parametrize("kind", FailureKind)
def test_each_kind_as_the_table_says(kind: FailureKind, told: str, wait_s: float | None) -> None:
    assert obeyed(kind, told, wait_s) is CHANGED.get((kind, told, wait_s), kind)


@pytest.mark.parametrize("wait_s", [None, 7.0])
@pytest.mark.parametrize("kind", FailureKind)
def test_what_must_not_be_repeated_is_not_and_what_may_be_is(kind: FailureKind, wait_s: float | None) -> None:
    """As the official SDKs do, but that a provider that is full, or a limit with an end, is waited for."""
    waited_for = (K.OVERLOADED, *((K.THROTTLED,) if wait_s is not None else ()))
    if kind in (K.THROTTLED, K.OVERLOADED, K.TRANSIENT, K.REJECTED):
        again = RULES[obeyed(kind, "false", wait_s)].again
        assert (again in ("after", "backoff")) == (kind in waited_for)
        assert RULES[obeyed(kind, "true", wait_s)].again in ("after", "backoff")


@pytest.mark.parametrize("told", ["true", "false", ""])
def test_a_refused_request_is_known_as_one_whatever_is_said_of_repeating_it(told: str) -> None:
    for status in (400, 422):
        assert refuses_request(Failure(obeyed(K.REJECTED, told, None), "no", status))
    for kind in FailureKind:
        assert not refuses_request(Failure(kind, "no", 500)) or kind is K.REJECTED
