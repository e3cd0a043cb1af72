"""Which calls become one record, and which are told span by span: a call that took one attempt, and no other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortex.journal import codec
from cortex.state import commands, events
from cortex.state.goals import Goal, Status, flight_key
from cortex.state.state import ExternalRun
from cortex.tracing.call_records import ExchangeRecord, SingleCall, Whole, count, spread
from cortex.tracing.spans import Span, SpanIds, SpanKind
from cortex.tracing.tracer import Tracer
from cortex.values.limits import Limits
from policies.decisions.trace_sampling import share
from tests.support.state_machine_harness import reply, terms


class Fold:
    """One goal, and whatever is told to happen to it, folded without a run."""

    def __init__(self) -> None:
        opening = terms(Limits(), job="j")
        other = msgspec.structs.replace(opening.route, model="other")
        opening = msgspec.structs.replace(opening, fallbacks=(other,))
        self.k = codec.open_job(opening)
        self.tracer = Tracer(share(1.0), SpanIds.of("j", 1.0))
        self.at_s = 1.0
        self.records: list[Whole] = []
        self.goal = Goal("leaf", id=1)
        self.k.goals[1] = self.goal
        self.turn(events.Opened(opening, 1), made=[self.goal])

    def turn(self, event: events.Event, made: Any = (), ended: Any = (), out: Any = ()) -> None:
        self.at_s += 1.0
        decided = commands.StepCommands()
        decided.made, decided.ended = list(made), list(ended)
        decided.extend(out)
        self.records += self.tracer.turn(events.Turn(self.at_s, ((event,),)), decided, self.k)

    def ask(self, attempt: int, question: bytes = b"q", sample: str = "0", route: int = 0) -> None:
        self.goal.status, self.goal.question, self.goal.tries = Status.ASKED, question, attempt
        call = commands.Call(1, sample, attempt, question, b"{}", 8, 100, 60.0, route)
        self.turn(events.Ticked(), out=[call])

    def answer(
        self, attempt: int, question: bytes = b"q", sample: str = "0", last: bool = False, elapsed_s: float = 0.5,
        waited_s: float = 0.01,
    ) -> None:  # fmt: skip
        event = events.Answered(1, sample, attempt, question, reply("ok"), elapsed_s, waited_s, f"branch:{attempt}")
        if last:
            self.goal.status, self.goal.question = Status.RESOLVED, b""
        self.turn(event, ended=[self.goal] if last else ())

    def spans(self, what: SpanKind) -> list[Span]:
        return [span for span in spread(self.records) if span.what is what]


@pytest.mark.parametrize("kept_after", [(), ("made",), ("asked",), ("made", "asked")])
def test_a_goal_that_its_first_attempt_ended_is_one_record_and_its_call_one_where_it_was_kept_meanwhile(kept_after):
    fold = Fold()
    if "made" in kept_after:
        fold.tracer.whole()
    fold.ask(1)
    if "asked" in kept_after:
        fold.tracer.whole()
    fold.answer(1, last=True)
    assert [type(each) for each in fold.records] == ([ExchangeRecord, Span] if kept_after else [SingleCall])
    (top,) = fold.spans(SpanKind.GOAL)
    assert count(fold.records) == len(list(spread(fold.records))) == 5
    whats = [span.what for span in spread(fold.records)]
    assert sorted(whats) == [SpanKind.GOAL, SpanKind.SELECT, SpanKind.CALL, SpanKind.ATTEMPT, SpanKind.ABSORB]
    (call,), (attempt,) = fold.spans(SpanKind.CALL), fold.spans(SpanKind.ATTEMPT)
    assert attempt.above == call.key and call.above == top.key
    assert call.facts["attempts"] == 1 and attempt.facts["by"] == "branch:1"


@pytest.mark.parametrize("resamples", [0, 1])
@pytest.mark.parametrize(("elapsed_s", "waited_s"), [(0.5, 0.01), (0.5, 100.0), (0.0, 0.2), (100.0, 0.2)])
def test_its_times_and_how_it_was_absorbed_are_the_same_however_it_was_kept(elapsed_s, waited_s, resamples):
    entries = []
    for in_full in (False, True):
        fold = Fold()
        fold.ask(1)
        if in_full:
            fold.tracer.whole()
        fold.goal.resamples = resamples
        fold.answer(1, last=True, elapsed_s=elapsed_s, waited_s=waited_s)
        entries.append(list(spread(fold.records)))
    short, full = entries
    assert short == full and all(span.begin_s <= span.end_s for span in short)


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_attempts_at_once_each_is_told_as_what_it_was(first):
    fold = Fold()
    fold.ask(1)
    fold.ask(2, route=1)
    fold.answer(first, last=True)
    assert not any(isinstance(each, ExchangeRecord) for each in fold.records)
    (call,) = fold.spans(SpanKind.CALL)
    assert call.facts["attempts"] == 2
    facts = {span.facts["attempt"]: span for span in fold.spans(SpanKind.ATTEMPT)}
    assert {number: span.facts["route"] for number, span in facts.items()} == {1: 0, 2: 1}
    assert {number: "abandoned" in span.facts for number, span in facts.items()} == {first: False, 3 - first: True}
    assert {span.above for span in facts.values()} == {call.key} and len({span.key for span in facts.values()}) == 2


def test_a_late_reply_to_what_is_asked_no_more_stands_below_the_call_that_asked_it():
    fold = Fold()
    fold.ask(1)
    fold.ask(2, question=b"r", sample="1")
    fold.answer(1)
    assert fold.tracer.whole().nodes[1].call is not None, "the second is asked still"
    fold.answer(2, question=b"r", sample="1", last=True)
    first, second = fold.spans(SpanKind.CALL)
    facts = {span.facts["attempt"]: span.above for span in fold.spans(SpanKind.ATTEMPT)}
    assert facts == {1: first.key, 2: second.key}
    assert [type(each) for each in fold.records].count(ExchangeRecord) == 1
    assert len(fold.spans(SpanKind.SELECT)) == 2 and len(fold.spans(SpanKind.ABSORB)) == 1


@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_goals_made_together_below_one_goal_stand_where_each_alone_would(kept):
    """What serves a goal that is not told of is looked up once: also where its trace is full after some of them."""

    class Alone(Tracer):
        def _all_made(self, made):
            for goal in made:
                super()._all_made([goal])

    k = codec.open_job(terms(Limits(), job="j"))
    folds = [cls(share(kept), SpanIds.of("j", 1.0)) for cls in (Tracer, Alone)]
    number, below = 10, {goal_id: Goal("top", id=goal_id) for goal_id in (1, 2, 3)}
    k.goals |= below
    for turn in range(1, 80):
        decided = commands.StepCommands()
        decided.made = list(below.values()) if turn == 1 else []
        for parent in (*[1] * (turn % 4 + 1), *[2] * (turn % 3 + 2), *[3] * 5) if turn > 1 else ():
            number += 1
            status = Status.ABANDONED if number % 11 == 0 else Status.OPEN
            goal = k.goals[number] = Goal("vote", parent=parent, id=number, depth=1, status=status)
            decided.made.append(goal)
            if number % 3 == 0 and status is Status.OPEN:
                decided.ended.append(goal)
        entries = [fold.turn(events.Turn(1.0 + turn, ((events.Ticked(),),)), decided, k) for fold in folds]
        assert entries[0] == entries[1]
        first, second = (fold.whole() for fold in folds)
        for each in ("nodes", "traces", "inside", "where", "parts", "kept_spans"):
            assert getattr(first, each) == getattr(second, each), each
    assert any(first.inside.values())
    assert first.where, "a trace was full"


@pytest.mark.parametrize("child", [False, True])
def test_what_comes_back_of_the_other_kind_than_went_out_ends_no_span(child):
    """K looks past it, and so the run goes on."""
    fold = Fold()
    run = (
        commands.LaunchChildJob(1, 1, "m:P", b"{}", None, None)
        if child
        else commands.StartToolRun(1, 1, "t", {}, "key", 9.0)
    )
    fold.k.errands[flight_key(1, 1)] = ExternalRun(1, 1, "t", command=run)
    back: tuple[events.Event, events.Event] = events.Observed(1, 1, "v", 0.0), events.ChildJobEnded(1, 1, "v")
    fold.turn(events.Ticked(), out=[run])
    fold.turn(back[not child])
    fold.turn(back[child])
    came_s = fold.at_s
    fold.goal.status = Status.RESOLVED
    fold.turn(events.Ticked(), ended=[fold.goal])
    (span,) = fold.spans(SpanKind.CHILD if child else SpanKind.TOOL)
    assert span.end_s == came_s
