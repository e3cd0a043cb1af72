"""What the design promises of money and of a crash, as far as K alone can keep it, a test each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import cortex
from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.changes import Goal, Resolve
from cortex.state.state import State, Status
from policies.failures.failure import FailureKind
from tests.support.fault_injection import World
from tests.support.sample_programs import Voter
from tests.support.state_machine_harness import PRICE, Flat, Stage, asked, of, puppet, reply, terms

# -- 5. money, which is a part of K ------------------------------------------------------------------------------------


def test_asking_reserves_answering_settles_and_silence_stays_charged_in_full() -> None:
    stage = Stage(Flat(texts=("a", "b")), price=PRICE)
    reserved = stage.k.ledger.reserved_nusd
    stage.answer(goal=1)
    stage.turn(stage.broke(stage.call(2), "timed_out"), events.PermitsGranted(0))
    ledger = stage.k.ledger
    assert (ledger.known_nusd, ledger.assumed_nusd, ledger.reserved_nusd) == (60_000, reserved // 2, 0)


# -- 6. durability, as far as it is K's --------------------------------------------------------------------------------


def test_what_a_decision_saw_can_be_shown() -> None:
    """K as it was when any call was asked, from the turns before that one."""
    stage = Stage(Flat(texts=("a", "b", "c")), permits=1)
    stage.answer()
    stage.answer()
    for index, turn in enumerate(stage.turns):
        parts: list[commands.Command] = []
        codec.replay(None, stage.turns[: index + 1], stage.program, parts.append)
        if any(isinstance(event, events.PermitsGranted) for batch in turn.batches for event in batch):
            k = codec.replay(None, stage.turns[:index], stage.program)
            assert (k.permits, [goal.status for goal in k.goals.values()]) == (0, [Status.OPEN] * 3)
    assert len(of(parts, commands.Call)) == 3


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_re_asks_what_was_in_flight_and_nothing_that_was_absorbed(seed: int) -> None:
    """And what some branch still holds is not asked again either."""
    world = World(Flat(texts=tuple(map(str, range(40)))), seed, permits=8, together=3)
    while world.k.tally.succeeded < 12:
        world.turn()
    flying = {(call.goal, call.attempt) for call in world.stage.calls.values()}
    held = tuple(sorted(flying)[: len(flying) // 2])
    absorbed = {goal.id for goal in world.k.goals.values() if goal.status == Status.RESOLVED}
    k = codec.decode_state(codec.encode_state(world.k))
    out = step(k, world.stage.program, events.Turn(k.at_s, ((events.Rejoined(2, held), events.PermitsGranted(80)),)))
    again = [(call.goal, call.attempt - 1) for call in of(out, commands.Call) if call.attempt > 1]
    assert set(again) == flying - set(held)
    assert not absorbed & {call.goal for call in of(out, commands.Call)}


def test_attempts_that_were_paid_in_vain_are_counted_apart() -> None:
    """The second payment for a question, and a hedge that lost."""
    stage = Stage(Flat(texts=("a",)), price=PRICE)
    stage.turn(stage.broke(stage.call(), "lost"))
    stage.answer()
    assert (stage.k.ledger.paid_calls, stage.k.ledger.paid_again) == (1, 1)
    hedge = Stage(Voter(kind="any", votes=2), price=PRICE)
    late = hedge.call(3)
    hedge.answer(goal=2)
    assert hedge.k.outcome == "complete"
    assert hedge.k.ledger.assumed_nusd > 0, "it stays charged in full"
    assert (late.goal, hedge.goal(3).status) == (3, Status.ABANDONED)


def test_a_stale_instruction_is_refused_and_a_reply_never_is() -> None:
    stage = Stage(Flat(texts=("a",)))
    first = stage.call()
    stage.turn(events.Rejoined(5), events.PermitsGranted(1))
    before = codec.encode_state(stage.k)
    stage.turn(events.Rejoined(4), at_s=stage.k.at_s)
    assert codec.encode_state(stage.k) == before
    stage.turn(stage.answered(first, "from another life"))
    assert stage.goal(1).answer == "from another life"


def test_a_changed_program_starts_anew_from_what_was_paid_for() -> None:
    first = Stage(Flat(texts=("a", "b")), price=PRICE)
    known = {call.hash: reply(asked(call)) for call in first.calls.values()}
    first.answer_all(asked)
    opened = events.Opened(terms(price=PRICE, fingerprint="g"), 2, first.k.next_goal, first.k.ledger)
    again = Stage(Flat(texts=("b", "a")), opened=opened)
    for call in list(again.calls.values()):
        again.turn(events.ReplyRecalled(call.goal, call.sample, call.hash, known[call.hash]))
    assert sorted(again.emitted) == sorted(first.emitted)
    assert again.k.ledger.paid_calls == first.k.ledger.paid_calls
    assert again.k.outcome == "complete"


def test_what_a_program_raises_is_its_goals_failure_and_replay_takes_the_same_turn() -> None:
    def absorb(k: State, goal: Goal, said: cortex.Reply) -> Iterable[Any]:
        yield Resolve(goal, 1 / int(said.text))

    stage = Stage(puppet(begin=lambda k: [Goal("x", "a"), Goal("x", "b")], absorb=absorb))
    stage.turn(stage.answered(stage.call(1), "0"), stage.answered(stage.call(2), "2"))
    assert stage.statuses() == ["failed", "resolved"]
    assert stage.goal(1).failure is not None and stage.goal(1).failure.kind == FailureKind.FAULTY
    again = codec.replay(None, stage.turns, stage.program)
    assert codec.encode_state(again) == codec.encode_state(stage.k)


def test_a_job_in_which_nothing_happens_asks_for_nothing() -> None:
    """Idle costs nothing: turns of time alone say nothing and leave K as large as it was."""
    stage = Stage(Voter(votes=1), permits=1)
    size = len(codec.encode_state(stage.k))
    out = [command for at_s in range(110, 130) for command in stage.turn(events.Ticked(), at_s=float(at_s))]
    assert (out, len(codec.encode_state(stage.k))) == ([], size)
