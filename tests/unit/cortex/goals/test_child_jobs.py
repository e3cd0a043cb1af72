"""A child job is a goal whose answer is another program's answer: its slice of the caps, its bill, its second life."""

from __future__ import annotations

import pytest

from cortex.state import commands, events
from cortex.state.changes import Ask, Goal, Reopen, Resolve, Spawn, Wait
from cortex.state.program import build, params_of
from cortex.state.state import Status
from cortex.values.limits import Limits
from policies.decisions.join import Join
from tests.support.state_machine_harness import PRICE, Flat, Stage, failure, of, prompt, puppet


def parent(goals: int = 1, own: int | None = None, **limits: int) -> Stage:
    """Every goal is another program's; ``own`` is the cap that the program gives each."""
    select = lambda k: [Spawn(goal, Flat(texts=("t",)), own) for goal in k.open("x")]  # noqa: E731
    program = puppet(begin=lambda k: [Goal("x") for _ in range(goals)], select=select)
    return Stage(program, Limits(**limits), price=PRICE)


def back(stage: Stage, answer: object = "done", kind: str = "", goal: int = 1, **bill: int) -> list:
    """The child job of a goal ends."""
    launch = [command for command in of(stage.said, commands.LaunchChildJob) if command.goal == goal][-1]
    bad = failure(kind, "it ended so") if kind else None
    return stage.turn(events.ChildJobEnded(goal, launch.attempt, answer, failure=bad, **bill))


def test_a_child_job_is_launched_with_its_program_and_its_fields():
    stage = parent()
    (launch,) = of(stage.said, commands.LaunchChildJob)
    assert launch.program == "tests.support.state_machine_harness:Flat"
    assert build(Flat, launch.params_json) == Flat(texts=("t",))
    assert (launch.goal, launch.attempt, launch.max_cost_nusd, launch.max_job_tokens) == (1, 1, None, None)


def test_its_answer_is_the_goals():
    stage = parent()
    back(stage, ["a", "b"])
    assert (stage.goal(1).answer, stage.k.outcome) == (["a", "b"], "complete")


def test_its_bill_is_the_parents():
    stage = parent(max_job_tokens=1_000)
    back(stage, known_nusd=70, assumed_nusd=5, input_tokens=8, output_tokens=2, assumed_tokens=3)
    ledger = stage.k.ledger
    assert (ledger.known_nusd, ledger.assumed_nusd, ledger.reserved_nusd) == (70, 5, 0)
    assert (ledger.known_tokens, ledger.assumed_tokens, ledger.reserved_tokens) == (10, 3, 0)


def test_a_failed_child_fails_the_goal_and_is_paid_all_the_same():
    stage = parent()
    back(stage, None, "faulty", known_nusd=70)
    assert stage.goal(1).failure.message == "it ended so"
    assert stage.k.ledger.known_nusd == 70


SLICES = [
    # cap, own cap, goals -> slices
    (1_000, None, 1, [500]),
    (1_000, None, 2, [333, 333]),
    (1_000, None, 4, [200, 200, 200, 200]),
    (1_000, 100, 2, [100, 100]),
    (1_000, 900, 1, [500]),
    (None, 900, 2, [900, 900]),
]


@pytest.mark.parametrize(("cap", "own", "goals", "slices"), SLICES)
def test_each_child_gets_an_equal_share_of_what_is_left_and_one_is_kept(cap, own, goals, slices):
    """One share stays with the parent, for the calls that it makes of what comes back."""
    stage = parent(goals, own, max_cost_nusd=cap)
    assert [launch.max_cost_nusd for launch in of(stage.said, commands.LaunchChildJob)] == slices
    assert stage.k.ledger.reserved_nusd == (sum(slices) if cap else 0)


def test_tokens_are_sliced_like_money():
    stage = parent(goals=2, max_job_tokens=900)
    assert [launch.max_job_tokens for launch in of(stage.said, commands.LaunchChildJob)] == [300, 300]


def test_where_nothing_is_left_the_job_pauses_and_can_be_resumed():
    stage = parent(goals=3, max_cost_nusd=2)
    assert len(of(stage.said, commands.LaunchChildJob)) == 0
    assert (stage.k.outcome, stage.k.paused.kind) == ("partial", "over_budget")
    assert stage.statuses() == ["open"] * 3
    stage.turn(events.LimitsSet("someone", Limits(max_cost_nusd=1_000)), events.Resumed("someone"))
    assert len(of(stage.said, commands.LaunchChildJob)) == 3


def test_a_child_that_ran_out_of_money_gets_a_larger_slice_if_there_is_one():
    """Its cap counts all that it spent before; its bill counts it once."""
    stage = parent(goals=2, max_cost_nusd=1_000)
    back(stage, goal=2, known_nusd=10)
    out = back(stage, None, "over_budget", goal=1, known_nusd=300)
    (again,) = of(out, commands.LaunchChildJob)
    left = 1_000 - 10 - 300
    assert (again.attempt, again.max_cost_nusd) == (2, 300 + left // 2)
    back(stage, "done", goal=1, known_nusd=420)
    assert (stage.k.ledger.known_nusd, stage.k.outcome) == (430, "complete")


def test_one_that_cannot_get_more_pauses_the_job():
    stage = parent(max_cost_nusd=1_000)
    back(stage, None, "over_budget", known_nusd=500)
    assert (stage.k.outcome, stage.k.paused.kind) == ("partial", "over_budget")
    stage.turn(events.LimitsSet("someone", Limits(max_cost_nusd=3_000)), events.Resumed("someone"))
    launch = of(stage.said, commands.LaunchChildJob)[-1]
    assert launch.max_cost_nusd == 500 + (3_000 - 500) // 2
    back(stage, "done", known_nusd=900)
    assert stage.k.ledger.known_nusd == 900


@pytest.mark.parametrize("cap", [None, 1_000])
def test_one_that_reached_the_cap_its_program_gave_it_has_failed(cap):
    stage = parent(own=200, max_cost_nusd=cap)
    back(stage, None, "over_budget", known_nusd=190)
    assert (stage.goal(1).failure.kind, stage.k.paused, stage.k.ledger.known_nusd) == ("over_budget", None, 190)


@pytest.mark.parametrize("kind", ["blocked", "unauthorised"])
def test_what_blocks_the_child_blocks_the_parent(kind):
    stage = parent()
    back(stage, None, kind)
    assert (stage.k.outcome, stage.k.paused.kind, stage.statuses()) == ("partial", kind, ["open"])
    stage.turn(events.Resumed("someone"))
    assert len(of(stage.said, commands.LaunchChildJob)) == 2


@pytest.mark.parametrize("which", ["twice", "an earlier attempt"])
def test_a_bill_that_comes_twice_or_late_is_dropped(which):
    stage = parent(goals=2)
    launch = of(stage.said, commands.LaunchChildJob)[0]
    stage.turn(events.ChildJobEnded(1, launch.attempt + (which != "twice"), "a", known_nusd=7))
    stage.turn(events.ChildJobEnded(1, launch.attempt + (which != "twice"), "b", known_nusd=7))
    assert stage.k.ledger.known_nusd == (7 if which == "twice" else 0)
    assert stage.goal(1).answer == ("a" if which == "twice" else None)


def test_a_new_incarnation_joins_its_children_by_name_and_keeps_their_slices():
    stage = parent(max_cost_nusd=1_000)
    out = stage.turn(events.Rejoined(2), events.PermitsGranted(4))
    assert of(out, commands.LaunchChildJob) == of(stage.said, commands.LaunchChildJob)[:1], (
        "the very same, so that either end serves"
    )
    assert stage.k.ledger.reserved_nusd == 500
    back(stage, known_nusd=200)
    assert stage.k.ledger.committed_nusd == 200


def hedged() -> Stage:
    """A top goal that wants any of two child jobs."""

    def select(k):
        for goal in k.open("top"):
            if not goal.children:
                yield from (Goal("x", parent=goal.id), Goal("x", parent=goal.id), Wait(goal, Join("any")))
            else:
                yield Ask(goal, prompt("merge"))
        yield from (Spawn(goal, Flat()) for goal in k.open("x"))

    return Stage(puppet(begin=lambda k: [Goal("top")], select=select), Limits(max_cost_nusd=300_000_000), price=PRICE)


def test_a_child_that_nobody_waits_for_is_told_to_stop_and_its_bill_is_awaited():
    stage = hedged()
    out = back(stage, goal=2, known_nusd=50)
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(3, 1)]
    assert stage.goal(3).status == Status.ABANDONED
    assert stage.k.ledger.reserved_nusd > 100_000_000, "its slice is still set aside"
    back(stage, None, "cancelled", goal=3, known_nusd=30)
    assert stage.k.ledger.known_nusd == 80
    assert stage.goal(3).status == Status.ABANDONED


def test_a_bill_that_never_came_stays_charged_in_full():
    for end in ("a new incarnation", "the job's end"):
        stage = hedged()
        back(stage, goal=2, known_nusd=50)
        slice_ = of(stage.said, commands.LaunchChildJob)[1].max_cost_nusd
        if end == "a new incarnation":
            stage.turn(events.Rejoined(2, ((1, 1),)))
        else:
            stage.answer()
            assert stage.k.outcome == "complete"
        assert stage.k.ledger.assumed_nusd == slice_, end


def test_a_job_that_is_satisfied_early_stops_its_children():
    program = puppet(
        begin=lambda k: [Goal("x"), Goal("ask", "q")],
        select=lambda k: [
            *(Spawn(goal, Flat()) for goal in k.open("x")), *(Ask(goal, prompt("q")) for goal in k.open("ask")),
        ],
        satisfied=lambda k: k.successes > 0,
    )  # fmt: skip
    stage = Stage(program)
    out = stage.answer()
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(1, 1)]
    assert stage.k.outcome == "complete"


def test_a_child_spawned_by_a_reply_answers_the_goal():
    def absorb(k, goal, reply):
        yield Spawn(goal, Flat(texts=(reply.text,)))

    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb, absorbed=lambda k, g, v: [Resolve(g, v)]))
    stage.answer("planned")
    (launch,) = of(stage.said, commands.LaunchChildJob)
    assert build(Flat, launch.params_json) == Flat(texts=("planned",))
    back(stage, 7)
    assert stage.goal(1).answer == 7


def test_a_child_that_a_late_reply_asks_for_is_launched_when_the_job_goes_on():
    def absorb(k, goal, reply):
        yield Spawn(goal, Flat(texts=(reply.text,)))

    program = puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb, absorbed=lambda k, g, v: [Resolve(g, v)])
    stage = Stage(program, Limits(max_cost_nusd=10**9), price=PRICE)
    stage.turn(events.Stopped("ann", "drain"))
    assert of(stage.answer("planned"), commands.LaunchChildJob) == []
    assert (stage.k.outcome, stage.statuses()) == ("partial", ["waiting"])
    reserved = stage.k.ledger.reserved_nusd
    assert len(of(stage.turn(events.Resumed("ann")), commands.LaunchChildJob)) == 1
    assert stage.k.ledger.reserved_nusd == reserved > 0, "its slice was set aside all the time"
    back(stage, 7)
    assert (stage.goal(1).answer, stage.k.ledger.reserved_nusd) == (7, 0)


def two_lives(stage_absorb) -> Stage:
    """Goal 1 is a child job's; goal 2 asks, and its reply does something to goal 1."""
    program = puppet(
        begin=lambda k: [Goal("x"), Goal("ask", "q")],
        select=lambda k: [
            *(Spawn(goal, Flat()) for goal in k.open("x")), *(Ask(goal, prompt("q")) for goal in k.open("ask")),
        ],
        absorb=stage_absorb,
    )  # fmt: skip
    return Stage(program, Limits(max_cost_nusd=300_000_000), price=PRICE)


def test_a_goal_that_is_reopened_lets_its_child_go_and_may_spawn_it_again():
    """It is the same child by name: what it had cost by then is not billed twice."""
    stage = two_lives(lambda k, goal, reply: [Resolve(goal), Reopen(k.goals[1])])
    out = stage.answer()
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(1, 1)]
    assert [launch.attempt for launch in of(out, commands.LaunchChildJob)] == [2]
    stage.turn(events.ChildJobEnded(1, 1, None, 40, failure=failure("cancelled")))
    known = stage.k.ledger.known_nusd
    stage.turn(events.ChildJobEnded(1, 2, "done", 100))
    assert stage.k.ledger.known_nusd == known + 60
    assert (stage.goal(1).answer, stage.k.outcome) == ("done", "complete")


def test_cancelled_with_its_child_under_way_a_goal_leaves_the_bill_charged():
    """Where the program answers the cancellation by spawning anew, nothing of that is begun, nor charged."""
    program = puppet(
        begin=lambda k: [Goal("x")], select=lambda k: [Spawn(goal, Flat()) for goal in k.open("x")],
        failed=lambda k, goal, bad: [Spawn(goal, Flat())],
    )  # fmt: skip
    stage = Stage(program, Limits(max_cost_nusd=900), price=PRICE)
    stage.turn(events.Stopped("ann", "cancel"))
    assert (stage.k.outcome, stage.statuses(), stage.k.errands) == ("cancelled", ["abandoned"], {})
    assert (stage.k.ledger.assumed_nusd, len(of(stage.said, commands.LaunchChildJob))) == (450, 1)
    assert params_of(Flat(texts=("a",))) == b'{"texts":["a"]}'


# -- a child job that stops without having failed ---------------------------------------------------------------------

STOPS = [
    # how the parent stops, and why its child does then
    ([events.Stopped("ann", "drain")], "cancelled"),
    ([events.LimitsSet("ann", Limits(deadline_at_s=1.0))], "timed_out"),
    ([events.LimitsSet("ann", Limits(deadline_at_s=1.0))], "cancelled"),
]


@pytest.mark.parametrize(("stop", "kind"), STOPS)
def test_a_job_that_stops_lets_its_children_rest_and_goes_on_with_them(stop, kind):
    stage = parent(goals=2)
    out = stage.turn(*stop)
    assert of(out, commands.SuspendChildJob) == [commands.SuspendChildJob(1, 1), commands.SuspendChildJob(2, 1)]
    assert of(stage.turn(events.Ticked()), commands.SuspendChildJob) == [], "told once"
    assert stage.k.outcome == ""
    back(stage, None, kind, goal=1, known_nusd=70, partial=True)
    back(stage, "done", goal=2)
    assert (stage.k.outcome, stage.statuses(), stage.k.paused) == ("partial", ["open", "resolved"], None)
    stage.turn(events.LimitsSet("ann", Limits()), events.Resumed("ann"))
    back(stage, "done", goal=1, known_nusd=100)
    assert (stage.k.outcome, stage.k.ledger.known_nusd) == ("complete", 100)


def test_a_child_that_somebody_stopped_pauses_its_parent_and_fails_nothing():
    for kind in ("cancelled", "faulty", "throttled", "blocked"):
        stage = parent()
        back(stage, None, kind, partial=True)
        assert (stage.k.outcome, stage.statuses(), stage.k.tally.failed) == ("partial", ["open"], 0), kind
        stage.turn(events.Resumed("ann"))
        back(stage, "done")
        assert stage.k.outcome == "complete"


def test_a_child_that_reached_a_deadline_which_its_parent_has_no_more_goes_on_at_once():
    stage = parent()
    out = back(stage, None, "timed_out", partial=True)
    assert [launch.attempt for launch in of(out, commands.LaunchChildJob)] == [2]
    assert stage.k.paused is None


def test_children_told_to_rest_go_on_where_the_job_was_resumed_meanwhile_or_told_again_by_a_new_incarnation():
    stage = parent()
    stage.turn(events.Stopped("ann", "drain"))
    out = stage.turn(events.Rejoined(2))
    assert [type(each) for each in out] == [commands.LaunchChildJob, commands.SuspendChildJob]
    stage.turn(events.Resumed("ann"), events.PermitsGranted(4))
    out = back(stage, None, "cancelled", partial=True)
    assert [launch.attempt for launch in of(out, commands.LaunchChildJob)] == [2]
    assert (stage.k.paused, stage.k.outcome) == (None, "")
