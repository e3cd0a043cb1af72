"""Where every join is ``all``, the order in which results arrive leaves no trace in what K means.

To the byte K is the same only where replies make neither goals nor items: their ids tell the order in which they were
made, and that is the journal's. ``tests.support.fault_injection.meaning`` says what is compared.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.journal import codec
from cortex.programs.batch import Batch
from cortex.values.limits import Limits
from tests.support.fault_injection import World, meaning
from tests.support.sample_programs import Elector, Planner, Watcher
from tests.support.state_machine_harness import PRICE, Flat, fed

WORDS = tuple(f"t{index}" for index in range(9))
PROGRAMS = {
    "flat": Flat(texts=WORDS),
    "equal questions": Flat(texts=("a", "b", "a", "a", "c", "b")),
    "planned and nested": Planner(roots=("b", "h"), deep=3),
    "voted on": Elector(chains=("p", "q", "r")),
    "voted on twice": Elector(chains=("p", "q", "p"), ahead=3),
    "planned twice": Planner(roots=("a", "a", "e"), deep=2),
}
SEEDS = st.integers(0, 10**9)


def run(name: str, seed: int, together: int = 1, permits: int = 4, still: bool = False) -> World:
    world = World(PROGRAMS[name], seed, together=together, permits=permits, price=PRICE, still=still)
    world.run()
    return world


@pytest.mark.parametrize("name", PROGRAMS)
@given(SEEDS, st.integers(1, 7), st.integers(1, 12))
@settings(max_examples=25)
def test_any_order_and_any_batching_mean_the_same(name, seed, together, permits):
    straight, other = run(name, 0), run(name, seed, together, permits)
    assert meaning(other.k, other.stage.emitted) == meaning(straight.k, straight.stage.emitted)


@given(SEEDS, st.integers(1, 7), st.integers(1, 12))
@settings(max_examples=25)
def test_where_replies_make_nothing_new_k_is_the_same_to_the_byte(seed, together, permits):
    straight, other = run("flat", 0, permits=permits, still=True), run("flat", seed, together, permits, still=True)
    assert codec.encode_state(other.k) == codec.encode_state(straight.k)


def test_ids_do_tell_the_order_where_replies_make_goals():
    """The other side of it: were this not so, the comparison by bytes would do everywhere."""
    blobs = {codec.encode_state(run("planned and nested", seed, still=True).k) for seed in range(8)}
    assert len(blobs) > 1


def test_the_programs_are_worth_it():
    """They plan, nest, merge, refuse and share: else the property would say little."""
    k = run("planned and nested", 3).k
    assert max(goal.depth for goal in k.goals.values()) == 3
    assert len(k.goals) > 12
    assert k.tally.failures["malformed"] > 0
    assert len(k.items) > 5
    assert run("equal questions", 3).k.ledger.paid_calls == 3
    voted = run("voted on", 3).k.tally
    assert voted.failures["malformed"] > 0 and voted.calls - voted.failures["malformed"] > 2 * 9, "more than one round"


@given(SEEDS, st.integers(1, 5))
@settings(max_examples=20)
def test_results_in_the_order_of_the_input_are_the_same_lines_in_any_order(seed, together):
    def lines(seed: int, together: int) -> list[bytes]:
        limits = Limits(concurrency=2, window_rows=5)
        world = World(Batch(ordered=True), seed, limits=limits, together=together, permits=3, streams=True)
        for start in (0, 5):
            keys = [f"{'!' if index == 7 else ''}row-{index}" for index in range(start, start + 5)]
            world._heard(world.stage.turn(fed(*keys, start=start * 10, ended=start == 5)))
        world.run()
        return world.stage.emitted

    assert lines(seed, together) == lines(0, 1)


@given(SEEDS, st.integers(1, 5))
@settings(max_examples=20)
def test_tools_and_child_jobs_may_come_back_in_any_order_too(seed, together):
    """With a page that does not change and is trusted throughout."""
    def end(seed: int, together: int) -> dict:
        world = World(Watcher(asks=8, trust_s=1e9), seed, together=together)
        world.run()
        return meaning(world.k, world.stage.emitted)

    assert end(seed, together) == end(0, 1)
