"""Anything may happen, in any order, sense or nonsense: step never raises, and every invariant of K holds.

The stage checks K and its shadow after every turn.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex import commands, events
from cortex.limits import Limits
from cortex.program import Program
from cortex.programs.batch import Batch
from policies.failure import FailureKind
from policies.retry import RetryPolicy
from tests.stage import PRICE, Flat, Stage, failure, fed, reply
from tests.toys import Chaos, Planner, Voter, Watcher

LIMITS = Limits(
    retry=RetryPolicy(base_s=0.5, cap_s=3.0, attempts_max=3, patience_s=50.0), output_tokens_max=64, resamples_max=2,
    max_cost_nusd=40_000_000, faulty_in_row_max=6, rejected_alike_max=3, prompt_tokens_max=1_500, concurrency=4,
    window_rows=8, plan_goals_max=3, depth_max=4,
)  # fmt: skip
PROGRAMS: dict[str, Program] = {
    "flat": Flat(texts=("a", "b", "a", "c")),
    "planned": Planner(roots=("b", "h"), deep=9),
    "votes": Voter(questions=("p", "q"), kind="quorum"),
    "watching": Watcher(asks=6, trust_s=1.0),
    "batch": Batch(ordered=True),
    **{f"chaos {seed}": Chaos(seed=seed) for seed in range(6)},
}

KINDS = st.sampled_from(list(FailureKind))
STATUSES = st.sampled_from([0, 200, 400, 429, 500, 529])
WAITS = st.sampled_from([None, 0.0, 1.5, 99.0])
FAILURES = st.builds(
    lambda kind, status, wait_s, sent: failure(kind, "so", status=status, retry_after_s=wait_s, sent=sent),
    KINDS, STATUSES, WAITS, st.booleans(),
)  # fmt: skip
TEXTS = st.sampled_from(["ok", "", "split:2", "split:9", "?", "w1"])
SMALL = st.integers(0, 6)
PICK = st.integers(0, 50)
DEEDS = st.one_of(
    st.tuples(st.just("answered"), PICK, TEXTS),
    st.tuples(st.just("answered"), PICK, TEXTS),
    st.tuples(st.just("broke"), PICK, FAILURES),
    st.tuples(st.just("recalled"), PICK, TEXTS),
    st.tuples(st.just("observed"), PICK, st.none() | FAILURES),
    st.tuples(st.just("returned"), PICK, st.none() | FAILURES),
    st.tuples(st.just("nonsense"), SMALL, SMALL),
    st.tuples(st.just("granted"), SMALL, st.none()),
    st.tuples(st.just("stopped"), st.sampled_from(["drain", "drain", "cancel"]), st.none()),
    st.tuples(st.just("resumed"), st.none(), st.none()),
    st.tuples(st.just("rejoined"), st.integers(0, 9), PICK),
    st.tuples(st.just("limits"), st.sampled_from([1, 5_000_000, 90_000_000, None]), st.none()),
    st.tuples(st.just("fed"), SMALL, st.booleans()),
    st.tuples(st.just("ticked"), SMALL, st.none()),
    st.tuples(st.just("written"), SMALL, SMALL),
)
TURNS = st.lists(st.tuples(st.lists(DEEDS, min_size=1, max_size=4), st.sampled_from([0.0, 0.0, 0.4, 2.0, 60.0])), max_size=40)


class Fuzz:
    """Makes events of deeds: of every command that was ever said, the pick-th; whether it is over long since or not."""

    def __init__(self, program: Program) -> None:
        self.stage = Stage(program, LIMITS, permits=3, price=PRICE, streams=isinstance(program, Batch))
        self.epoch = 1

    def of(self, kind: type, pick: int) -> Any:
        said = [command for command in self.stage.said if isinstance(command, kind)]
        return said[-1 - pick % len(said)] if said else None

    def event(self, what: str, a: Any, b: Any) -> events.Event:
        made = getattr(self, what)(a, b)
        return made if made is not None else events.Ticked()

    def answered(self, pick: int, text: str) -> events.Event | None:
        call = self.of(commands.Call, pick)
        return call and events.Answered(call.goal, call.sample, call.attempt, call.hash, reply(text))

    def broke(self, pick: int, bad: Any) -> events.Event | None:
        call = self.of(commands.Call, pick)
        return call and events.Broke(call.goal, call.sample, call.attempt, bad)

    def recalled(self, pick: int, text: str) -> events.Event | None:
        call = self.of(commands.Call, pick)
        return call and events.Recalled(call.goal, call.sample, call.hash, reply(text))

    def observed(self, pick: int, bad: Any) -> events.Event | None:
        run = self.of(commands.RunTool, pick) or self.of(commands.Launch, pick)
        return run and events.Observed(run.goal, run.attempt, "value", self.stage.k.at_s, bad)

    def returned(self, pick: int, bad: Any) -> events.Event | None:
        run = self.of(commands.Launch, pick) or self.of(commands.RunTool, pick)
        return run and events.Returned(run.goal, run.attempt, "answer", pick, pick, 1, 1, bad)

    def nonsense(self, a: int, b: int) -> events.Event:
        return [
            events.Answered(a, "0", b, b"no such question", reply()),
            events.Broke(a, "0", b, failure("lost")),
            events.Recalled(a, "0", b"no such question", reply()),
            events.Observed(a, b, None, 0.0),
            events.Returned(a, b, None),
            events.Observed(a, b, None, 0.0, failure("lost")),
            events.Answered(10**9, "0", b, b"", reply()),
        ][(a + b) % 7]

    def granted(self, permits: int, _: None) -> events.Event:
        return events.Granted(permits)

    def stopped(self, how: str, _: None) -> events.Event:
        return events.Stopped("ann", how)

    def resumed(self, _: None, __: None) -> events.Event:
        return events.Resumed("ann")

    def rejoined(self, ahead: int, pick: int) -> events.Event:
        """Mostly the next incarnation; sometimes one that is over, or the same again."""
        self.epoch += ahead > 1
        held = [(call.goal, call.attempt) for call in self.stage.said if isinstance(call, commands.Call)][-pick % 7 :]
        return events.Rejoined(self.epoch, tuple(held))

    def limits(self, cap: int | None, _: None) -> events.Event:
        import msgspec

        return events.LimitsSet("ann", msgspec.structs.replace(LIMITS, max_cost_nusd=cap))

    def fed(self, count: int, ended: bool) -> events.Event:
        start = self.stage.k.position
        return fed(*(f"{'!' if i % 3 == 2 else ''}{start + i}" for i in range(count)), start=start, ended=ended)

    def ticked(self, _: int, __: None) -> events.Event:
        return events.Ticked()

    def written(self, rows: int, size: int) -> events.Event:
        return events.Written(rows, size)


@pytest.mark.parametrize("name", PROGRAMS)
@given(TURNS)
@settings(max_examples=60)
def test_step_never_raises_and_k_is_whole(name, turns):
    fuzz = Fuzz(PROGRAMS[name])
    for deeds, wait_s in turns:
        happened = [fuzz.event(*deed) for deed in deeds]
        fuzz.stage.turn(*happened, at_s=fuzz.stage.k.at_s + wait_s)
    told = [end.outcome for end in fuzz.stage.ended]
    assert all(outcome == "partial" for outcome in told[:-1]), "only a partial job ends more than once"
