"""Watch over calls: what it takes for a retry."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cortex.calls import attempts
from cortex.state import events
from cortex.values.limits import Limits
from policies.failures.failure import FailureKind
from policies.failures.retry import RetryDecision, RetryPolicy
from tests.simulation.invariants_calls import CallsWatch, moved
from tests.support.state_machine_harness import PRICE, Flat, Stage, other, terms

OPENED = events.PermitsGranted(0, starts=0, generation=1)
FALLBACK = events.PermitsGranted(6, route=1)
FALLBACK_OPENED = events.PermitsGranted(0, route=1, starts=0, generation=1)
CLOSED = events.PermitsGranted(6, generation=3)


def retries_told(*order: tuple[events.Event, ...] | None) -> list[str]:
    """Return what the watch says of six calls of a job with one free retry; None: all calls fail."""
    limits = Limits(output_tokens_max=10, retry=RetryPolicy(budget_floor=1, cap_s=60.0))
    stage = Stage(Flat(texts=tuple("abcdef")), limits, permits=0, price=PRICE, fallbacks=(other(),))
    said: list[str] = []
    watch = CallsWatch(SimpleNamespace(say=said.append), PRICE, PRICE)  # type: ignore[arg-type]
    for happened in ((events.PermitsGranted(6),), *order, ()):
        if happened is None:
            happened = tuple(stage.broke(call, FailureKind.OVERLOADED) for call in list(stage.calls.values()))
        out = stage.turn(*happened, at_s=stage.k.at_s + 5.0)
        watch.turned(SimpleNamespace(name="j", k=stage.k), stage.turns[-1], out)  # type: ignore[arg-type]
    assert stage.k.moved == watch._books["j"].moved
    return said


@pytest.mark.parametrize(
    "order",
    [((OPENED, FALLBACK, FALLBACK_OPENED), None, (CLOSED,)), (None, (OPENED, FALLBACK, FALLBACK_OPENED), (CLOSED,))],
    ids=["under way", "waiting"],
)
def test_calls_may_come_back_that_failed_before_or_after_their_breaker_opened(
    order: tuple[tuple[events.Event, ...] | None, ...],
) -> None:
    """The fallback was to take them, and its breaker opened before it did."""
    assert retries_told(*order) == []


@pytest.mark.parametrize("order", [(None,), (None, (OPENED,), (CLOSED,)), ((OPENED,), None, (CLOSED,))])
def test_retries_without_budget_are_told(
    monkeypatch: pytest.MonkeyPatch, order: tuple[tuple[events.Event, ...] | None, ...]
) -> None:
    monkeypatch.setattr(attempts, "may_retry", lambda *args: RetryDecision(True, "again"))
    assert any("retries at once, the budget is 1" in line for line in retries_told(*order))


FREE, SHUT, PROBED = (6, -1), (0, 0), (1, 1)


@pytest.mark.parametrize(
    ("own", "fallback", "before", "after"),
    [
        (FREE, FREE, False, False), (FREE, FREE, True, False), (FREE, SHUT, True, False), (SHUT, FREE, False, True),
        (SHUT, PROBED, False, True), (SHUT, SHUT, False, False), (SHUT, SHUT, True, True), (PROBED, SHUT, True, True),
        (PROBED, FREE, False, True),
    ],
)  # fmt: skip
def test_work_moves_to_a_fallback_and_back_by_the_grants(
    own: tuple[int, int], fallback: tuple[int, int], before: bool, after: bool
) -> None:
    assert moved({0: own, 1: fallback}, terms(fallbacks=(other(),)), before) is after
