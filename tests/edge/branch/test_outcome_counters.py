"""Counters of a route tell the scheduler how long the attempts took that timed out."""

from __future__ import annotations

from actors.branch.outcome_counters import OutcomeCounter
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind


def test_the_shortest_attempt_that_timed_out_is_reported_once() -> None:
    counter = OutcomeCounter()
    for elapsed_s, kind in ((140.0, "timed_out"), (70.0, "timed_out"), (280.0, "timed_out"), (3.0, "overloaded")):
        counter.begin(None)
        counter.end(Failure(FailureKind(kind), "no"), elapsed_s, 70.0)
    signals = counter.take_signals("r", "p", 0, 0)
    assert (signals.failed, signals.timed_out_s) == ({"timed_out": 3, "overloaded": 1}, 70.0)
    assert counter.take_signals("r", "p", 0, 0).timed_out_s == 0.0


def test_answers_are_reported_with_the_tokens_that_a_server_had_to_read() -> None:
    counter = OutcomeCounter()
    for number in range(20):
        usage = Usage(input_tokens=100 + number, output_tokens=number, cache_read_tokens=1_000, cache_creation_tokens=7)
        counter.begin(None)
        counter.end(Reply(b"{}", "end_turn", "m", usage), 2.0, 70.0)
    signals = counter.take_signals("r", "p", 0, 0)
    assert signals.samples == tuple((2.0, number) for number in range(16))
    assert signals.prompts == tuple(107 + number for number in range(16))
    assert counter.take_signals("r", "p", 0, 0).prompts == ()
