"""Turns of a batch that a replay folds at once come to the K that `step` makes of them, byte for byte."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.journal import codec
from cortex.loop.step import step
from cortex.programs import batch_replay
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.state.budget_slice import BudgetSlices
from cortex.state.state import State
from cortex.values.limits import Limits
from policies.failures.retry import RetryPolicy
from policies.failures.timeout import TimeoutPolicy
from tests.support.fault_injection import World
from tests.support.state_machine_harness import PRICE, Stage, failure, fed, taken

LIMITS = (
    Limits(concurrency=8), Limits(concurrency=40, output_tokens_max=77), Limits(concurrency=8, alike_first=2),
    Limits(concurrency=8, max_failed=0.05), Limits(concurrency=8, max_cost_nusd=900_000),
    Limits(concurrency=8, hedge_after_s=2.0), Limits(concurrency=8, requests_per_min=90.0), Limits(concurrency=8, goals_max=30),
    Limits(concurrency=8, goal_timeout_s=9.0), Limits(concurrency=8, deadline_at_s=40.0),
    Limits(concurrency=8, input_tokens_per_min=9_000.0), Limits(concurrency=8, output_tokens_per_min=900.0),
    Limits(concurrency=8, max_job_tokens=9_000), Limits(concurrency=8, prompt_tokens_max=150), Limits(concurrency=8, warm_prefix=True),
    Limits(concurrency=8, window_rows=9, rejected_alike_max=2, blocked_wait_s=50.0, retry=RetryPolicy(attempts_max=2), timeout=TimeoutPolicy(floor_s=5.0)),
)  # fmt: skip
NO_CASE = {
    "asked of the cortex, not of the job": {"headroom", "priority"},
    "of messages, journals and batches": {"message_calls_max", "message_bytes_max", "snapshot_events", "batching"},
    "of prompts and programs, where a batch has whole requests": {
        "parts_max", "resamples_max", "depth_max", "plan_goals_max", "selects_max", "faulty_in_row_max",
    },
}  # fmt: skip
"""Bounds that no turn of a batch depends on."""
SAID: tuple[Any, ...] = (
    "hello", "grüß dich", "a \\ and a \" in it", "x" * 3_000, [{"type": "text", "text": "hello"}],
    [{"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}],
    [{"type": "image", "source": {"type": "base64", "data": "AAAA"}}],
)  # fmt: skip


def crowd(world: World, count: int, ended: bool = False, odd: int = 0) -> events.RowsRead:
    """The next window of rows, of all kinds; 1 in ``odd``: some were refused, 2: some were opened again."""
    k, chance = world.k, world.chance
    rows = []
    for number in range(k.position // 10, k.position // 10 + count):
        answer = chance.choice(SAID) if chance.random() < 0.3 else "hello"
        body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": answer}]}
        no = "no messages" if odd == 1 and number % 13 == 4 else ""
        place = 1 if odd == 2 and number % 13 == 4 else -1
        rows.append(events.Row(f"row-{number}", msgspec.json.encode(body), chance.choice((0, 8, 8, 8, 60)), no, place))
    return events.RowsRead(tuple(rows), k.position, k.position + 10 * count, ended)


def lived(
    seed: int, limits: Limits, faults: float, unrest: float = 0.0, windows: int = 3, twice: float = 0.0, slow: int = 0
) -> World:
    """A batch as chance will have it, its windows between answers."""
    world = World(
        Batch(), seed, limits=limits, permits=6 + seed % 7, faults=faults, late=faults > 0, together=1 + seed % 5,
        price=PRICE if seed % 2 else None, streams=True, unrest=unrest, slow=slow,
    )  # fmt: skip
    for window in range(windows):
        more: list[events.Event] = [crowd(world, 12, window == windows - 1, odd=seed % 3 if windows < 8 else 0)]
        if seed % 4 == 0:
            more = [events.PermitsGranted(world.permits), *more, events.ResultsWritten(0, 0), *more]
        world._heard(world.stage.turn(*more, at_s=world.k.at_s + (90_000.0 if seed % 5 == 0 else 1.0)))
        for _ in range(6):
            if (world.under_way or world.overdue) and not world.k.outcome:
                world.turn()
            if world.chance.random() < twice:  # the messages of a turn come once more, or all of them together
                world._heard(world.stage.turn(*world.chance.choice(world.stage.turns[1:]).batches[0]))
    while not world.k.outcome and not world.k.source_ended:
        world._heard(world.stage.turn(crowd(world, 1, True)))
    world.run()
    return world


def stepped(turns: Iterable[events.Turn]) -> list[bytes]:
    """K after each turn, as `step` makes it."""
    return [codec.encode_state(k) for _, k in taken(Batch(), turns)]


def test_each_bound_has_a_case_or_a_reason_for_none() -> None:
    """A new field of `Limits` that a turn depends on is one more thing that a fast replay may pass over.

    Add a case to `LIMITS`, and to that of `test_fast_paths.py`.
    """
    fields = Limits.__struct_fields__
    with_case = {name for each in LIMITS for name in fields if getattr(each, name) != getattr(Limits(), name)}
    assert with_case | set().union(*NO_CASE.values()) == set(fields)
    assert not with_case & set().union(*NO_CASE.values())


CHANCES = st.tuples(*(st.sampled_from((0.0, 0.0, share)) for share in (0.1, 0.1, 0.1)))


@given(st.integers(0, 10**9), st.sampled_from(LIMITS), CHANCES)
@settings(max_examples=160)
def test_turns_folded_at_once_come_to_what_step_makes_of_them(seed, limits, chances):
    faults, unrest, twice = chances
    turns = lived(seed, limits, faults, unrest, twice=twice, slow=23 if seed % 3 == 0 else 0).stage.turns
    wanted = stepped(turns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_replay, "GOALS_AN_EVENT", 10**9)  # it is tried after each turn
        for cut in range(1, len(turns) + 1, 1 + len(turns) // 20):
            assert codec.encode_state(codec.replay(None, turns[:cut], Batch())) == wanted[cut - 1], cut
            k = codec.replay(codec.decode_state(wanted[cut - 1]), turns[cut:], Batch())
            assert codec.encode_state(k) == wanted[-1], cut


def folded(turns: list[events.Turn], monkeypatch: pytest.MonkeyPatch, **how: Any) -> int:
    """How many of these a replay folds at once."""
    seen = []
    monkeypatch.setattr(codec, "step", lambda k, program, turn: seen.append(turn) or step(k, program, turn))
    codec.replay(None, turns, Batch(), **how)
    return len(turns) - len(seen)


@pytest.mark.parametrize("seed", [1, 2, 7])
def test_nearly_all_turns_of_a_batch_are_plain(seed, monkeypatch):
    """Else nothing would be gained, and nothing compared."""
    turns = lived(seed, LIMITS[0], 0.0, windows=8).stage.turns
    assert folded(turns, monkeypatch) >= 0.75 * len(turns)


def test_failures_are_stepped_and_most_else_is_still_folded(monkeypatch):
    turns = lived(13, Limits(concurrency=8), 0.03, windows=30).stage.turns
    monkeypatch.setattr(batch_replay, "GOALS_AN_EVENT", 10**9)
    assert len(turns) / 2 < folded(turns, monkeypatch) < len(turns) - 20


def test_whoever_listens_hears_every_turn(monkeypatch):
    turns, entries = lived(1, LIMITS[0], 0.0).stage.turns, []
    assert folded(turns, monkeypatch, seen=lambda turn, out, k: entries.append(turn)) == 0
    assert entries == turns
    assert folded(turns, monkeypatch, sink=lambda command: None) == 0


def test_what_another_program_would_be_asked_is_not_passed_over(monkeypatch):
    class Mine(Batch, frozen=True):
        """It may say something else."""

    assert batch_replay.turn_fold(State(lived(1, LIMITS[0], 0.0).k.terms), Mine()) is None
    assert batch_replay.turn_fold(State(lived(1, LIMITS[0], 0.0).k.terms), Batch(ordered=True)) is None


@pytest.fixture
def stage(monkeypatch) -> Stage:
    """Thirty rows, of which eight are asked; a replay tries to fold after each turn."""
    monkeypatch.setattr(batch_replay, "GOALS_AN_EVENT", 10**9)
    made = Stage(Batch(), Limits(concurrency=8, max_failed=0.2), permits=8, streams=True)
    made.turn(fed(*map(str, range(30))))
    return made


def same(stage: Stage, *happened: events.Event) -> State:
    """One turn more, which a replay folds or not, and which comes to the same."""
    stage.turn(*happened)
    k = codec.replay(None, stage.turns, Batch())
    assert codec.encode_state(k) == stepped(stage.turns)[-1]
    return k


def test_an_answer_twice_is_counted_as_one_too_many(stage):
    first = stage.answered(stage.call())
    assert same(stage, first, first).tally.dropped == 1


def test_an_answer_to_another_attempt_is_none(stage):
    first = stage.answered(stage.call())
    assert same(stage, msgspec.structs.replace(first, attempt=2)).tally.dropped == 1
    assert same(stage, msgspec.structs.replace(first, goal=29)).tally.dropped == 2


def test_answers_are_news_after_refusals_with_the_same_words(stage):
    stage.fail("rejected", "bad")
    assert stage.k.alike == 1
    assert same(stage, stage.answered(stage.call())).alike == 0


def test_a_job_of_which_too_much_fails_is_halted_by_an_answer_too(stage):
    for _ in range(5):
        stage.fail("rejected", "bad")
    for _ in range(20):
        if not stage.k.halted:
            k = same(stage, *(stage.answered(stage.call()) for _ in range(2) if stage.calls))
    assert "max_failed" in k.halted


def test_a_day_later_what_was_spent_that_day_is_none(stage):
    stage.turn(stage.answered(stage.call()), at_s=stage.k.at_s + 90_000)
    assert same(stage, stage.answered(stage.call())).ledger.day == stage.k.ledger.day


@pytest.mark.parametrize("leave", [{"starts": 2}, {"requests_per_s": 2.0}, {"output_tokens_per_s": 50.0}, {"route": 1}])
def test_another_form_of_leave_is_stepped(stage, leave):
    same(stage, events.PermitsGranted(20, **leave))
    same(stage, stage.answered(stage.call()))


STANDS = {
    "outcome": "partial", "finished": True, "stopping": "drain", "halted": "too many failed", "looking": True,
    "paused": failure("blocked"), "unhedged": {1: 1.0}, "deadlines": [(200.0, 1)], "elections": {1: None},
    "errands": {1: None}, "submissions": {1: None}, "shards": {1: None}, "asking": {b"q": 1}, "held": {1: b""},
    "again": {1: None}, "parked": {0: {1: None}}, "called": {1: None}, "reading": {1: 0.0}, "purse": BudgetSlices(),
    "delayed": [(101.0, 1)],
}  # fmt: skip


@pytest.mark.parametrize("name", STANDS)
def test_nothing_is_folded_where_something_else_is_under_way(stage, name):
    assert batch_replay.turn_fold(copy.deepcopy(stage.k), Batch()) is not None
    setattr(stage.k, name, STANDS[name])
    assert batch_replay.turn_fold(stage.k, Batch()) is None


def test_nothing_is_folded_where_the_job_or_its_route_is_bounded_so(stage):
    def changed(**how: Any) -> State:
        k = copy.deepcopy(stage.k)
        k.terms = msgspec.structs.replace(k.terms, limits=msgspec.structs.replace(k.terms.limits, **how))
        return k

    bounds: dict[str, Any] = {
        "deadline_at_s": 9e9,
        "max_cost_nusd": 1,
        "goal_timeout_s": 9.0,
        "hedge_after_s": 1.0,
        "warm_prefix": True,
    }
    for name, bound in bounds.items():
        assert batch_replay.turn_fold(changed(**{name: bound}), Batch()) is None, name
    for name, value in {
        "failing": failure("transient"),
        "blocked": failure("blocked"),
        "starts": 3,
        "in_flight": 9,
    }.items():
        k = copy.deepcopy(stage.k)
        setattr(k.shares[0], name, value)
        assert batch_replay.turn_fold(k, Batch()) is None, name
    stage.k.shares *= 2
    assert batch_replay.turn_fold(stage.k, Batch()) is None
