"""Timeouts of attempts at a server that queues follow the durations that were measured on its route."""

from __future__ import annotations

import pytest

from cortex.state import events
from cortex.values.limits import Limits
from policies.failures.timeout import TimeoutPolicy
from tests.support.state_machine_harness import Flat, Stage

POLICY = TimeoutPolicy(per_input_token_s=1e-9, per_output_token_s=1e-9)
"""Timeout of 70 s for each request."""


def flat(*texts: str, permits: int = 1, **limits: object) -> Stage:
    return Stage(Flat(texts=texts), Limits(timeout=POLICY, **limits), permits=permits)  # type: ignore[arg-type]


def answer(stage: Stage, elapsed_s: float) -> None:
    stage.turn(stage.answered(stage.call(), elapsed_s=elapsed_s))


def due(stage: Stage) -> None:
    at_s = stage.k.due_at_s()
    assert at_s is not None
    stage.turn(events.Ticked(), at_s=at_s)


def test_the_next_attempt_has_three_times_what_the_latest_answer_needed() -> None:
    stage = flat("a", "b", "c", "d")
    for elapsed_s, timeout_s in ((5.0, 70.0), (60.0, 180.0), (150.0, 450.0)):
        answer(stage, elapsed_s)
        assert stage.call().timeout_s == pytest.approx(timeout_s, rel=1e-3)
    assert stage.k.longest_timeout_s == stage.call().timeout_s, "the lease of the job outlasts its calls"


def test_a_call_that_timed_out_has_twice_the_time_and_four_times_at_most() -> None:
    stage = flat("a", "b", permits=2)
    seen = []
    for _ in range(4):
        call = stage.call(1)
        seen.append(call.timeout_s)
        stage.fail("timed_out", goal=1)
        due(stage)
    assert seen == pytest.approx([70.0, 140.0, 280.0, 280.0])
    assert stage.call(2).timeout_s == pytest.approx(70.0), "other calls are not meant"


def test_a_call_that_was_refused_has_the_usual_time() -> None:
    stage = flat("a")
    stage.fail("throttled", status=429)
    due(stage)
    assert stage.call().timeout_s == pytest.approx(70.0)


def test_a_probe_of_a_breaker_has_the_usual_time() -> None:
    stage = flat("a")
    stage.fail("timed_out")
    stage.turn(events.PermitsGranted(1, starts=1), at_s=stage.k.at_s + 10.0)
    assert stage.call().attempt == 2
    assert stage.call().timeout_s == pytest.approx(70.0)


def test_a_second_attempt_beside_the_first_has_the_time_of_the_route() -> None:
    stage = flat("a", "b", permits=2, hedge_after_s=10.0)
    stage.turn(stage.answered(stage.call(1), elapsed_s=70.0))
    for _ in range(20):
        stage.turn(stage.answered(stage.call(2), elapsed_s=0.0)) if not stage.calls else stage.turn(events.Ticked())
        if (hedge := stage.calls.get((2, 2))) is not None:
            assert hedge.timeout_s == pytest.approx(210.0)
            return
    raise AssertionError("no second attempt")
