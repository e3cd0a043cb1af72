"""Flows under faults, deaths and any order: the stage replays every turn from a snapshot, and compares to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.journal import codec
from cortex.state.events import Answered
from cortex.state.program import build, params_of
from tests.support.fault_injection import World, meaning
from tests.support.sample_flows import ALL
from tests.support.state_machine_harness import PRICE

SEEDS = st.integers(0, 10**9)


def run(name: str, seed: int, **of_world) -> World:
    world = World(ALL[name], seed, price=PRICE, **of_world)
    world.run()
    return world


def answer(world: World):
    return world.stage.program.answer(world.k)


@pytest.mark.parametrize("name", ALL)
@given(SEEDS, st.integers(1, 5), st.integers(1, 9))
@settings(max_examples=15)
def test_a_flow_that_is_killed_at_any_turn_and_replayed_from_a_snapshot_is_the_same(name, seed, together, permits):
    """The comparison is the stage's own, after every turn."""
    world = run(name, seed, together=together, permits=permits, faults=0.15, late=True, unrest=0.1)
    assert world.k.outcome in ("complete", "partial"), world.k.why
    assert not world.k.differs


@pytest.mark.parametrize("name", ALL)
@given(SEEDS, st.integers(1, 5))
@settings(max_examples=10)
def test_a_journal_replayed_from_its_first_turn_gives_the_same_k(name, seed, together):
    world = run(name, seed, together=together, faults=0.1, unrest=0.1)
    anew = build(type(ALL[name]), params_of(ALL[name]))
    k = codec.replay(None, world.stage.turns, anew)
    assert codec.encode_state(k) == codec.encode_state(world.k)


@given(SEEDS, st.integers(1, 7), st.integers(1, 12))
@settings(max_examples=25)
def test_where_every_join_is_all_any_order_of_arrival_gives_the_same_answer_and_the_same_questions(
    seed, together, permits
):
    straight, other = run("tree", 0), run("tree", seed, together=together, permits=permits)
    assert answer(other) == answer(straight)
    assert meaning(other.k, other.stage.emitted) == meaning(straight.k, straight.stage.emitted)


@pytest.mark.parametrize("name", ["chain", "tree"])
@given(SEEDS)
@settings(max_examples=15)
def test_deaths_pay_for_no_answer_twice(name, seed):
    quiet, killed = run(name, 0), run(name, seed, unrest=0.3)
    assert answer(killed) == answer(quiet)
    paid = [event.hash for turn in killed.stage.turns for event in turn.batches[0] if isinstance(event, Answered)]
    assert len(paid) - len(set(paid)) <= killed.k.ledger.paid_again
    assert len(set(paid)) == len(quiet.memory)


@given(SEEDS)
@settings(max_examples=15)
def test_under_a_checkpoint_k_holds_one_round(seed):
    world = World(ALL["rounds"], seed, price=PRICE, faults=0.1, unrest=0.1)
    most = []
    world.watch = lambda world: most.append(len(world.k.goals))
    world.run()
    assert max(most) <= 1 + 2 + 2 + 2 + 2  # the run, its plan, a round, and what the round let go
