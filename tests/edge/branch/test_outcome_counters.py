"""Counters of a route tell the scheduler how long the attempts took that timed out."""

from __future__ import annotations

from actors.branch.outcome_counters import OutcomeCounter
from policies.failures.failure import Failure, FailureKind


def test_the_shortest_attempt_that_timed_out_is_reported_once() -> None:
    counter = OutcomeCounter()
    for elapsed_s, kind in ((140.0, "timed_out"), (70.0, "timed_out"), (280.0, "timed_out"), (3.0, "overloaded")):
        counter.begin(None)
        counter.end(Failure(FailureKind(kind), "no"), elapsed_s, 70.0)
    signals = counter.take_signals("r", "p", 0, 0)
    assert (signals.failed, signals.timed_out_s) == ({"timed_out": 3, "overloaded": 1}, 70.0)
    assert counter.take_signals("r", "p", 0, 0).timed_out_s == 0.0
