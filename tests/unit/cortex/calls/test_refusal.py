"""A message in which the model declined: paid for, and no answer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cortex.state import events
from cortex.state.changes import Change, Fail, Resolve
from cortex.state.state import Goal, State
from cortex.values.reply import Reply
from policies.failures.failure import FailureKind
from tests.support.state_machine_harness import Flat, Stage, puppet, reply


def test_a_reply_in_which_the_model_declined_is_no_answer_and_is_not_asked_again() -> None:
    stage = Stage(Flat(texts=("a",)))
    call = stage.call()
    declined = reply("I won't", stop_reason="refusal")
    stage.turn(events.Answered(call.goal, call.sample, call.attempt, call.hash, declined))
    failed = stage.goal(1).failure
    assert failed is not None
    assert failed.kind == FailureKind.REFUSED
    assert stage.k.ledger.paid_calls == 1
    assert stage.k.tally.calls == 1


def test_a_program_that_reads_refusals_gets_them() -> None:
    seen = []

    def absorb(k: State, goal: Goal, said: Reply) -> Iterable[Change]:
        seen.append(said.stop_reason)
        return [Resolve(goal, said.text)]

    stage = Stage(puppet(begin=lambda k: [Goal("g", "x")], absorb=absorb, reads_refusals=True))
    call = stage.call()
    declined = reply("I won't", stop_reason="refusal")
    stage.turn(events.Answered(call.goal, call.sample, call.attempt, call.hash, declined))
    assert seen[0] == "refusal"
    assert stage.goal(1).answer == "I won't"


@pytest.mark.parametrize(("text", "stop_reason", "ending"), [
    ("all of it", "end_turn", "whole"), ("half", "max_tokens", "cut"), ("", "end_turn", "empty"),
    ("half", "pause_turn", "paused"), ("all of it", "", "unknown"),
])  # fmt: skip
def test_a_program_is_told_how_a_reply_ended(text: str, stop_reason: str, ending: str) -> None:
    def absorb(k: State, goal: Goal, said: Reply) -> Iterable[Change]:
        return [Resolve(goal, str(said.ending))]

    stage = Stage(puppet(begin=lambda k: [Goal("g", "x")], absorb=absorb))
    call = stage.call()
    made = reply(text, stop_reason=stop_reason)
    stage.turn(events.Answered(call.goal, call.sample, call.attempt, call.hash, made))
    assert stage.goal(1).answer == ending


def test_a_program_may_say_of_which_kind_a_failure_is() -> None:
    def absorb(k: State, goal: Goal, said: Reply) -> Iterable[Change]:
        yield Fail(goal, "does not fit", FailureKind.TOO_LARGE)

    stage = Stage(puppet(begin=lambda k: [Goal("g", "x")], absorb=absorb))
    stage.answer()
    failed = stage.goal(1).failure
    assert failed is not None
    assert failed.kind == FailureKind.TOO_LARGE
