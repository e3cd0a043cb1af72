"""The life of an attempt: asked, shared, settled once, whoever brings its end and however often."""

from __future__ import annotations

import msgspec
import pytest

from cortex.calls.attempts import drawn
from cortex.calls.request import AS_GIVEN, question_hash
from cortex.state import commands, events
from cortex.state.changes import Ask, Fail, Resolve
from cortex.state.state import TRIES_MAX, Goal, Status
from cortex.values.limits import Limits
from tests.support.state_machine_harness import PRICE, Flat, Stage, asked, of, prompt, puppet

BOUND = Limits(output_tokens_max=10)


def priced(*texts: str, permits: int = 8, **limits: object) -> Stage:
    return Stage(Flat(texts=texts), Limits(output_tokens_max=10, **limits), permits=permits, price=PRICE)  # type: ignore[arg-type]


# -- asking ------------------------------------------------------------------------------------------------------------


def test_a_call_says_all_that_a_branch_needs():
    stage = priced("a", permits=1)
    (call,) = stage.calls.values()
    assert (call.goal, call.sample, call.attempt) == (1, "0", 1)
    assert (call.output_tokens_max, call.prompt_tokens_max) == (10, 199_990)
    assert msgspec.json.decode(call.body) == {
        "model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "a"}],
    }  # fmt: skip
    assert call.hash == question_hash("sim", call.body, "0")
    assert call.timeout_s > 0
    assert stage.goal(1).constructor == "plain"


def test_as_many_calls_as_permits_and_one_more_for_each_that_comes_back():
    stage = priced("a", "b", "c", "d", permits=2)
    assert [call.goal for call in stage.calls.values()] == [1, 2]
    out = stage.answer(goal=1)
    assert [call.goal for call in of(out, commands.Call)] == [3]
    stage.turn(events.PermitsGranted(4))
    assert [call.goal for call in stage.calls.values()] == [2, 3, 4]


def test_fewer_permits_stop_nothing_and_let_nothing_out():
    stage = priced("a", "b", "c", permits=2)
    stage.turn(events.PermitsGranted(1))
    assert of(stage.answer(goal=1), commands.Call) == []
    assert [call.goal for call in of(stage.answer(goal=2), commands.Call)] == [3]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("sim", b"body", "0"), ("https://x", b"body", "0")),
        (("sim", b"body", "0"), ("sim", b"Body", "0")),
        (("sim", b"body", "0"), ("sim", b"body", "1")),
        (("sim", b"0\0b", "a"), ("sim", b"b", "a\x000")),
        (("sim", b"b", "1a"), ("sim1", b"b", "a")),
        (("sim", b"1", "0"), ("sim", b"0", "1")),
    ],
)
def test_the_hash_tells_endpoint_body_and_sample_apart(one, two):
    assert question_hash(*one) != question_hash(*two)
    assert question_hash(*one) == question_hash(*one)
    assert len(question_hash(*one)) == 16


def test_a_draw_belongs_to_its_attempt_and_replays():
    draws = [drawn("j/1/0", attempt) for attempt in range(1, 200)]
    assert draws == [drawn("j/1/0", attempt) for attempt in range(1, 200)]
    assert len(set(draws)) == len(draws)
    assert all(0 <= draw < 1 for draw in draws)
    assert 0.4 < sum(draws) / len(draws) < 0.6


def test_a_body_goes_as_it_stands():
    body = b'{"model":"other","max_tokens":5,"messages":[]}'
    select = lambda k: [Ask(goal, body=body, output_tokens_max=5, sample="row-1") for goal in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=select))
    (call,) = stage.calls.values()
    assert (call.body, call.sample, stage.goal(1).constructor) == (body, "row-1", AS_GIVEN)


BAD_ASKS = {
    "neither prompt nor body": (lambda goal: Ask(goal), "needs a prompt or a body"),
    "a negative length": (
        lambda goal: Ask(goal, prompt("p"), output_tokens_max=-1),
        "output_tokens_max must be above zero",
    ),
    "parameters that are no JSON": (lambda goal: Ask(goal, prompt("p"), params={"a": object()}), "TypeError"),
}


@pytest.mark.parametrize("name", BAD_ASKS)
def test_an_ask_that_cannot_be_made_fails_its_goal_alone(name):
    make, text = BAD_ASKS[name]
    select = lambda k: [make(g) if g.value == "bad" else Ask(g, prompt("p")) for g in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x", "bad"), Goal("x", "good")], select=select))
    assert stage.statuses() == ["failed", "asked"]
    bad = stage.goal(1).failure
    assert bad is not None and bad.kind == "faulty" and text in bad.message


def test_a_goal_that_was_never_added_stops_the_job_with_a_word():
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=lambda k: [Ask(Goal("ghost"), prompt("p"))]))
    assert (stage.k.outcome, stage.k.why) == ("failed", "select asks for a goal of kind 'ghost' that was never added")


def test_a_goal_may_be_added_and_asked_in_one_breath():
    def select(k):
        if not k.goals:
            yield (goal := Goal("x", "v"))
            yield Ask(goal, prompt("now"))

    stage = Stage(puppet(select=select, satisfied=lambda k: False))
    assert [asked(call) for call in stage.calls.values()] == ["now"]


def test_goals_that_are_not_open_are_passed_over():
    select = lambda k: [Ask(goal, prompt("p")) for goal in (*k.goals.values(), *k.goals.values())]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x"), Goal("x")], select=select))
    assert len(stage.k.flights) == 1 and stage.k.tally.calls == 2  # the second shares the first
    stage.turn(events.Ticked())
    assert len(stage.k.flights) == 1


def test_attempts_at_one_goal_have_an_end():
    stage = priced("a", permits=0)
    stage.goal(1).tries = stage.shadow.goals[1].tries = TRIES_MAX
    stage.turn(events.PermitsGranted(1))
    assert "more than" in stage.goal(1).failure.message


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_equal_calls_share_one_attempt_and_its_reply():
    stage = priced("same", "other", "same", "same")
    assert [call.goal for call in stage.calls.values()] == [1, 2]
    assert stage.statuses() == ["asked"] * 4
    stage.answer("one answer", goal=1)
    assert [stage.goal(i).answer for i in (1, 2, 3, 4)] == ["one answer", None, "one answer", "one answer"]
    assert (stage.k.ledger.paid_calls, stage.k.tally.calls) == (1, 4)


def test_sharing_takes_no_permits_so_others_are_asked():
    """Ten thousand equal questions are one call, and the other question goes out beside it."""
    stage = Stage(Flat(texts=("same",) * 2_000 + ("other",)), permits=2)
    assert [asked(call) for call in stage.calls.values()] == ["same", "other"]


def test_different_samples_are_different_questions():
    select = lambda k: [Ask(g, prompt("p"), sample=str(g.value)) for g in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x", 0), Goal("x", 1)], select=select))
    assert [call.sample for call in stage.calls.values()] == ["0", "1"]


def test_a_program_that_asks_once_shares_nothing():
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v"), Goal("x", "v")], asks_once=True))
    assert len(stage.calls) == 2
    assert stage.k.asking == {}


FATES = {
    "rejected": ("failed", False),
    "transient": ("open", True),
    "too_large": ("asked", False),
    "blocked": ("open", False),
    "lost": ("asked", False),
}


@pytest.mark.parametrize("kind", FATES)
def test_those_who_share_an_attempt_share_its_fate(kind):
    stage = priced("same", "same")
    status, delayed = FATES[kind]
    stage.fail(kind, goal=1)
    assert stage.statuses() == [status, status]
    assert (stage.goal(1).due_at_s > 0) is delayed
    assert stage.goal(1).due_at_s == stage.goal(2).due_at_s
    assert len(stage.k.flights) == (1 if kind in ("lost", "too_large") else 0), (
        "and what is asked again is shared again"
    )
    assert stage.k.retries == (1 if kind == "transient" else 0)


def test_one_that_still_waits_keeps_the_attempt_of_one_that_does_not():
    def absorb(k, goal, reply):
        yield Resolve(goal, reply.text)
        if goal.value == "stops":
            yield Fail(k.goals[1], "not wanted any more")

    stage = Stage(puppet(begin=lambda k: [Goal("x", "same"), Goal("x", "same"), Goal("x", "stops")], absorb=absorb))
    assert of(stage.answer(goal=3), commands.AbandonAttempt) == []
    stage.answer("late", goal=1)
    assert (stage.goal(1).status, stage.goal(2).answer) == (Status.FAILED, "late")


def test_the_last_one_that_leaves_abandons_the_attempt():
    def absorb(k, goal, reply):
        yield Resolve(goal, reply.text)
        for other in (1, 2):
            yield Fail(k.goals[other], "not wanted any more")

    stage = Stage(puppet(begin=lambda k: [Goal("x", "same"), Goal("x", "same"), Goal("x", "stops")], absorb=absorb))
    assert of(stage.answer(goal=3), commands.AbandonAttempt) == [commands.AbandonAttempt(1, 1)]


def test_an_abandoned_attempt_is_not_shared():
    """It was told to stop: who asks the same now asks anew."""

    def absorb(k, goal, reply):
        yield Resolve(goal, reply.text)
        yield Fail(k.goals[1], "not wanted any more")
        yield Goal("x", "same")

    stage = Stage(puppet(begin=lambda k: [Goal("x", "same"), Goal("x", "stops")], absorb=absorb))
    out = stage.answer(goal=2)
    assert (len(of(out, commands.AbandonAttempt)), [call.goal for call in of(out, commands.Call)]) == (1, [3])


def test_a_reply_to_the_abandoned_attempt_serves_whoever_asks_the_same_now():
    def absorb(k, goal, reply):
        yield Resolve(goal, reply.text)
        if goal.value == "stops":
            yield Fail(k.goals[1], "not wanted any more")
            yield Goal("x", "same")

    stage = Stage(puppet(begin=lambda k: [Goal("x", "same"), Goal("x", "stops")], absorb=absorb))
    stage.answer(goal=2)
    out = stage.answer("paid already", goal=1)
    assert stage.goal(3).answer == "paid already"
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(3, 1)]
