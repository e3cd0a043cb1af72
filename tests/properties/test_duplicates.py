"""For every program: what comes twice changes nothing, and the same journal gives the same K, byte for byte.

The second half is proved by the stage that every run here stands on: after each turn a shadow K, which has lived through
bytes alone and is a fresh snapshot at every turn, must be the same to the byte and have said the same commands. So a
snapshot taken at any turn serves, and a run whose bytes differed at any of its turns would fail there.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.journal import codec
from cortex.loop.step import step
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.limits import Limits
from policies.failures.retry import RetryPolicy
from tests.support.fault_injection import World
from tests.support.sample_programs import Chaos, Elector, Planner, Voter, Watcher
from tests.support.state_machine_harness import PRICE, Flat, fed

LIMITS = Limits(retry=RetryPolicy(base_s=0.5, cap_s=2.0, budget_floor=3), output_tokens_max=64, faulty_in_row_max=9)
PROGRAMS: dict[str, Program] = {
    "flat": Flat(texts=("a", "b", "a", "c", "d", "e")),
    "planned": Planner(roots=("b", "e"), deep=3),
    "voted on": Elector(),
    "any of three": Voter(questions=("p", "q"), kind="any"),
    "most of five": Voter(questions=("p", "q"), votes=5),
    "two of three": Voter(questions=("p",), kind="quorum"),
    "watching": Watcher(asks=9, trust_s=0.7),
    "chaos 1": Chaos(seed=1),
    "chaos 2": Chaos(seed=2),
    "batch": Batch(ordered=True),
}
SEEDS = st.integers(0, 10**9)
BROUGHT = (
    events.Answered,
    events.AttemptFailed,
    events.ReplyRecalled,
    events.Observed,
    events.ChildJobEnded,
    events.RowsRead,
    events.Rejoined,
)


def run(name: str, seed: int) -> World:
    """A run full of faults, late replies and bad order."""
    program = PROGRAMS[name]
    streams = name == "batch"
    world = World(program, seed, limits=LIMITS, faults=0.3, late=True, together=3, price=PRICE, streams=streams)
    if streams:
        world._heard(world.stage.turn(fed("a", "b", "!c", "d", "e", ended=True)))
    for _ in range(400):
        if world.k.outcome:
            break
        world.turn()
    return world


def with_doubles(turns: list[events.Turn], chance: random.Random) -> list[events.Turn]:
    """The same turns; whatever actors brought may come again, in the same turn or in any later one."""
    doubled, seen = [], []
    for turn in turns:
        batches = list(turn.batches)
        seen += [event for batch in batches for event in batch if isinstance(event, BROUGHT)]
        for event in chance.sample(seen, min(len(seen), chance.randint(0, 4))):
            batches.insert(chance.randint(1, len(batches)), (event,))  # never before it came first
        doubled.append(events.Turn(turn.at_s, tuple(batches)))
    return doubled


def taken(program: Program, turns: list[events.Turn]) -> tuple[State, list]:
    """K and the commands, from nothing."""
    k, parts = codec.open_job(turns[0].batches[0][0].terms), []
    for turn in turns:
        parts += step(k, program, turn)
    return k, parts


@pytest.mark.parametrize("name", PROGRAMS)
@given(SEEDS)
@settings(max_examples=15)
def test_what_comes_twice_changes_nothing_but_the_count_of_it(name, seed):
    turns = run(name, seed).stage.turns
    once, said_once = taken(PROGRAMS[name], turns)
    twice, said_twice = taken(PROGRAMS[name], with_doubles(turns, random.Random(seed)))
    assert said_twice == said_once
    assert twice.tally.dropped >= once.tally.dropped
    twice.tally.dropped = once.tally.dropped
    assert codec.encode_state(twice) == codec.encode_state(once)


@pytest.mark.parametrize("name", PROGRAMS)
@given(SEEDS, SEEDS)
@settings(max_examples=8)
def test_a_journal_cut_by_a_snapshot_anywhere_gives_the_same_k(name, seed, where):
    stage = run(name, seed).stage
    cut = 1 + where % len(stage.turns)
    snapshot = codec.encode_state(codec.replay(None, stage.turns[:cut], stage.program))
    k = codec.replay(codec.decode_state(snapshot), stage.turns[cut:], stage.program)
    assert codec.encode_state(k) == codec.encode_state(stage.k)


def test_the_runs_are_worth_it():
    """They meet with faults, late replies, shared attempts, joins cut short and goals that fail."""
    runs = [run(name, seed) for name in PROGRAMS for seed in range(4)]
    tallies = [world.k.tally for world in runs]
    assert sum(tally.dropped for tally in tallies) > 3
    assert {kind for tally in tallies for kind in tally.failures} >= {
        "lost",
        "timed_out",
        "throttled",
        "faulty",
        "malformed",
    }
    assert any(world.k.ledger.paid_again for world in runs)
    assert any(goal.partial for world in runs for goal in world.k.goals.values())
    happened = {
        type(event) for world in runs for turn in world.stage.turns for batch in turn.batches for event in batch
    }
    assert set(BROUGHT) - {events.Rejoined} <= happened
    assert sum(len(world.stage.turns) for world in runs) > 500
