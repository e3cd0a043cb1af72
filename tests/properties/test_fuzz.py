"""Anything may happen, in any order, sense or nonsense: step never raises, and every invariant of K holds.

The stage checks K and its shadow after every turn.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.programs.batch import Batch
from cortex.programs.shards import Shards
from cortex.state import commands, events
from cortex.state.budget_slice import BudgetSlice
from cortex.state.program import Program
from cortex.state.shard_record import ShardReport
from cortex.state.state import Status
from cortex.values.counters import JobCounters
from cortex.values.ledger import Ledger
from cortex.values.limits import Limits, Route
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy
from tests.support.sample_flows import ALL, asks_people
from tests.support.sample_programs import Chaos, Elector, Planner, Voter, Watcher
from tests.support.state_machine_harness import PRICE, Flat, Stage, failure, fed, other, reply

LIMITS = Limits(
    retry=RetryPolicy(base_s=0.5, cap_s=3.0, attempts_max=3, patience_s=50.0), output_tokens_max=64, resamples_max=2,
    max_cost_nusd=40_000_000, faulty_in_row_max=6, rejected_alike_max=3, prompt_tokens_max=1_500, concurrency=4,
    window_rows=8, plan_goals_max=3, depth_max=4, hedge_after_s=3.0, goal_timeout_s=200.0, blocked_wait_s=20.0,
    max_failed=5.0, alike_first=3, deadline_at_s=3_000.0, warm_prefix=True,
)  # fmt: skip
PROGRAMS: dict[str, Program] = {
    "flat": Flat(texts=("a", "b", "a", "c")),
    "planned": Planner(roots=("b", "h"), deep=9),
    "voted on": Elector(),
    "votes": Voter(questions=("p", "q"), kind="quorum"),
    "watching": Watcher(asks=6, trust_s=1.0),
    "batch": Batch(ordered=True),
    "batch in batches": Batch(),
    "batch in shards": Shards(shards=3, batch=Batch()),
    "racing": ALL["races"],
    "in rounds": ALL["rounds"],
    "asking people": asks_people(),
    **{f"chaos {seed}": Chaos(seed=seed) for seed in range(6)},
}

DEEDS = (
    *("answered",) * 7, *("broke",) * 4, "given_back", "recalled", *("observed",) * 3, *("returned",) * 2, "nonsense",
    "granted", "leased", "stopped", "resumed", "resumed", "rejoined", "limits", "fed", "ticked", "written",
    "submission", "told", "told", "made", "reported",
)  # fmt: skip
BATCHED = (*DEEDS, *("submission",) * 15)
TEXTS = ("ok", "", "split:2", "split:9", "?", "w1")
WAITS_S = (0.0, 0.0, 0.4, 2.0, 60.0)


class Fuzz:
    """Makes events of chance: sensible ones, stale ones, doubled ones, and nonsense."""

    def __init__(self, name: str, seed: int) -> None:
        program = PROGRAMS[name]
        self.batched = batched = name == "batch in batches"
        self.deeds = BATCHED if batched else DEEDS
        self.chance = random.Random(seed)
        route = Route(endpoint="sim", model="m", price=PRICE, via="batches" if batched else "messages")
        fallbacks = (other("n", price=PRICE, window=1_200),)
        self.stage = Stage(
            program, LIMITS, permits=3, route=route, streams=isinstance(program, Batch), fallbacks=fallbacks
        )
        self.epoch = 1

    def turn(self) -> None:
        """One to four things happen."""
        happened = [self.event() for _ in range(self.chance.randint(1, 4))]
        if self.batched and self.chance.random() < 0.1:
            happened = self.again()
        self.stage.turn(*happened, at_s=self.stage.k.at_s + self.chance.choice(WAITS_S))

    def event(self) -> events.Event:
        made = getattr(self, self.chance.choice(self.deeds))()
        return made if made is not None else events.Ticked()

    def of(self, kind: type) -> Any:
        """One of the commands that were ever said: mostly a late one, which may be under way; or any."""
        parts = [command for command in self.stage.said if isinstance(command, kind)]
        back = self.chance.randint(0, 50 if self.chance.random() < 0.3 else 3)
        return parts[-1 - back % len(parts)] if parts else None

    def bad(self) -> Failure:
        return failure(
            self.chance.choice(list(FailureKind)), "so", status=self.chance.choice([0, 200, 400, 429, 500, 504, 529]),
            retry_after_s=self.chance.choice([None, 0.0, 1.5, 99.0]), sent=self.chance.random() < 0.5,
        )  # fmt: skip

    def answered(self) -> events.Event | None:
        call = self.of(commands.Call)
        text = self.chance.choice(TEXTS)
        return call and events.Answered(call.goal, call.sample, call.attempt, call.hash, reply(text))

    def broke(self) -> events.Event | None:
        call = self.of(commands.Call)
        return call and events.AttemptFailed(call.goal, call.sample, call.attempt, self.bad())

    def given_back(self) -> events.Event | None:
        call = self.of(commands.Call)
        again_s = self.chance.choice([0.0, 0.3, 8.0])
        return call and events.GivenBack(call.goal, call.sample, call.attempt, self.chance.randint(0, 4), again_s)

    def recalled(self) -> events.Event | None:
        call = self.of(commands.Call)
        return call and events.ReplyRecalled(call.goal, call.sample, call.hash, reply(self.chance.choice(TEXTS)))

    def observed(self) -> events.Event | None:
        run = self.of(commands.StartToolRun if self.chance.random() < 0.9 else commands.LaunchChildJob)
        bad = self.bad() if self.chance.random() < 0.3 else None
        return run and events.Observed(run.goal, run.attempt, "value", self.stage.k.at_s, bad)

    def returned(self) -> events.Event | None:
        run = self.of(commands.LaunchChildJob if self.chance.random() < 0.9 else commands.StartToolRun)
        bad = self.bad() if self.chance.random() < 0.3 else None
        spent = self.chance.randint(0, 50)
        return run and events.ChildJobEnded(run.goal, run.attempt, "answer", spent, spent, 1, 1, bad)

    def reported(self) -> events.Event | None:
        """A shard, or what is none, has come to something: new, late or twice, or to less than before."""
        k, chance = self.stage.k, self.chance
        goal = chance.choice([*k.shards, chance.randint(0, 6)])
        known, results = chance.randint(0, 90), chance.randint(0, 9)
        ledger = Ledger(known_nusd=known, reserved_nusd=chance.randint(0, 9), attempts=known, paid_calls=known)
        tally = chance.choice([None, JobCounters(answered=results, succeeded=results, failed=chance.randint(0, 2))])
        holds = chance.choice([None, (chance.randint(0, 100), 100), (10**9, 10**6)])
        lacks = chance.choice([(0, 0), (0, 0), (chance.randint(0, 50), 9)])
        report = ShardReport(chance.randint(1, 3), chance.randint(1, 60), ledger, tally, results, holds, lacks)
        return events.ShardReported(goal, report)

    def nonsense(self) -> events.Event:
        a, b = self.chance.randint(0, 6), self.chance.randint(0, 6)
        return self.chance.choice(
            [
                events.Answered(a, "0", b, b"no such question", reply()),
                events.AttemptFailed(a, "0", b, failure("lost")),
                events.ReplyRecalled(a, "0", b"no such question", reply()),
                events.Observed(a, b, None, 0.0),
                events.ShardsReopened((a, b)),
                events.ToolRunBegun(a, b, "w"),
                events.ChildJobEnded(a, b, None),
                events.Observed(a, b, None, 0.0, failure("lost")),
                events.Answered(10**9, "0", b, b"", reply()),
            ]
        )

    def granted(self) -> events.Event:
        return events.PermitsGranted(
            self.chance.choice([0, 1, 3, 3, 6]), self.chance.choice([0, 0, 0, 1, 1, 2]),
            self.chance.choice([-1, -1, -1, 0, 1, 3]), self.chance.randint(0, 3),
            self.chance.choice([0.0, 0.0, 0.3, 40.0, -1.0]), 0.0, self.chance.choice([0.0, 0.0, 20.0]),
        )  # fmt: skip

    def leased(self) -> events.Event:
        """Slices of every kind: wide, used up, of another window, none; and that nothing more is to be had."""
        k, chance = self.stage.k, self.chance
        day = k.ledger.day + chance.choice([0, 0, 0, 0, -1, 1])
        slices = [BudgetSlice("a", "day", day, k.ledger.day_nusd + chance.choice([0, 10**7, 10**10]))]
        slices += [BudgetSlice("b", "month", k.ledger.month, k.ledger.month_nusd + 10**10)] * (chance.random() < 0.3)
        none = chance.random() < 0.5
        return events.BudgetLeased(
            () if none else tuple(slices), "" if none or chance.random() < 0.8 else "it is used up"
        )

    def stopped(self) -> events.Event:
        return events.Stopped("ann", "cancel" if self.chance.random() < 0.1 else "drain")

    def resumed(self) -> events.Event:
        return events.Resumed("ann")

    def rejoined(self) -> events.Event:
        """Mostly the next incarnation; sometimes one that is over, or the same again."""
        self.epoch += self.chance.random() < 0.8
        held = [
            (one.goal, one.attempt)
            for one in self.stage.said
            if isinstance(one, (commands.Call, commands.StartToolRun))
        ]
        return events.Rejoined(self.epoch, tuple(held[-self.chance.randint(1, 6) :]))

    def limits(self) -> events.Event:
        cap = self.chance.choice([1, 5_000_000, 90_000_000, 900_000_000, None])
        more: dict[str, Any] = {"max_cost_nusd": cap}
        if self.chance.random() < 0.6:
            more |= {"deadline_at_s": None, "max_failed": None, "alike_first": 0, "concurrency": 6}
        if self.chance.random() < 0.3:
            more |= {"requests_per_min": 30.0, "goal_timeout_s": 2.0}
        return events.LimitsSet("ann", msgspec.structs.replace(LIMITS, **more))

    def fed(self) -> events.Event:
        start, count = self.stage.k.position, self.chance.randint(0, 6)
        keys = [f"{'!' if i % 3 == 2 else ''}{start + i}" for i in range(count)]
        return fed(*keys, start=start, ended=self.chance.random() < 0.3)

    def ticked(self) -> events.Event:
        return events.Ticked()

    def submission(self) -> events.Event:
        """Calls that are in flight or were, sooner or later; and whatever may be said of a submission, true or not."""
        k = self.stage.k
        number = self.chance.choice([*k.submissions, k.next_submission])
        if not k.submissions or self.chance.random() < 0.3:
            parts = [call.goal << 20 | call.attempt for call in self.stage.said if isinstance(call, commands.Call)]
            keys = self.chance.sample(parts, min(len(parts), self.chance.randint(0, 3)))
            return events.SubmissionIntended(
                self.chance.choice([number, k.next_submission]), 0, (*k.flights, *keys), "b"
            )
        who = self.chance.choice(["", "", "ann"])
        return self.chance.choice([
            events.SubmissionAccepted(number, f"b{number}", who), events.SubmissionAccepted(number, f"b{number}", who),
            events.SubmissionRejected(number, self.bad(), who), events.SubmissionUncertain(number, self.bad()),
            events.SubmissionUnreadable(number, self.bad()), events.ResultsCollected(number),
        ])  # fmt: skip

    def told(self) -> events.Event:
        name = self.chance.choice(["approved", "approved", "hint", "nobody asked"])
        return events.AnswerGiven("ann", name, self.chance.choice([True, False, "words", 7, None]))

    def made(self) -> events.Event | None:
        made = self.of(commands.RecordGoal)
        return made and events.GoalMade(made.goal, made.kind, made.value)

    def again(self) -> list[events.Event]:
        """Some rows that failed are asked for again, whether the job rests or not; a message may come late, or early."""
        facts = {
            one.value: one for one in self.stage.said if isinstance(one, commands.EmitResult) and one.failed and one.row
        }
        found = {line: facts[value] for line, value in enumerate(self.stage.emitted) if value in facts}
        lines = sorted(self.chance.sample(list(found), min(len(found), self.chance.randint(0, 3))))
        edition = self.stage.k.edition + self.chance.choice([1, 1, 1, 2])
        kinds = Counter(found[line].kind for line in lines)
        keys = tuple(found[line].row for line in lines)
        again = events.RowsReopened("ann", edition, keys, tuple(lines), dict(kinds), self.stage.k.position)
        return [again, events.Resumed("ann")]

    def written(self) -> events.Event:
        return events.ResultsWritten(self.chance.randint(0, 9), self.chance.randint(0, 900))


@pytest.mark.parametrize("name", PROGRAMS)
@given(st.integers(0, 10**9))
@settings(max_examples=25)
def test_step_never_raises_and_k_is_whole(name, seed):
    fuzz = Fuzz(name, seed)
    for _ in range(60):
        fuzz.turn()
    lines = [end.outcome for end in fuzz.stage.ended]
    again = {"partial"} | ({"complete"} if fuzz.stage.k.edition else set())
    assert set(lines[:-1]) <= again, "only a partial job ends more than once, or one whose failed rows are asked again"


def test_the_fuzz_is_worth_it():
    """It meets every event, every command, every outcome, every kind of failure, and every status of a goal."""
    met: set[object] = set()
    runs = [
        (name, seed)
        for name in PROGRAMS
        for seed in range({"batch in batches": 250, "watching": 60, "in rounds": 60}.get(name, 5))
    ]
    for name, seed in runs:
        fuzz = Fuzz(name, seed)
        for _ in range(60):
            fuzz.turn()
            met |= {goal.status for goal in fuzz.stage.k.goals.values()}
        met |= {type(event) for turn in fuzz.stage.turns for batch in turn.batches for event in batch}
        met |= {type(command) for command in fuzz.stage.said} | {end.outcome for end in fuzz.stage.ended}
        met |= {str(kind) for kind in fuzz.stage.k.tally.failures}
    assert met >= set(events.Event.__args__) | set(commands.Command.__args__) | set(Status)
    assert met >= {"complete", "partial", "failed", "cancelled"} | {kind.value for kind in FailureKind}
