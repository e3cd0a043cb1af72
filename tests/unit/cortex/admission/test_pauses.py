"""What blocks the account pauses the job and fails no goal; it is found out by one call whether it is gone."""

from __future__ import annotations

import pytest

from cortex.state import commands, events
from cortex.state.changes import Ask, Goal, Wait
from cortex.values.limits import Limits, Route
from policies.failures.retry import RetryPolicy
from tests.support.state_machine_harness import Flat, Stage, asked, of, other, prompt, puppet

LOW = "Your credit balance is too low"
DECEMBER = 1_796_083_200.0  # 2026-12-01 00:00 UTC


def blocked(
    *texts: str, permits: int = 3, kind: str = "blocked", message: str = LOW, wait_s: float = 0.0, **more: object
) -> Stage:
    """A job of which every call under way was refused by the account."""
    limits = Limits(blocked_wait_s=wait_s)
    stage = Stage(Flat(texts=texts or tuple("abcde")), limits, permits=permits, **more)  # type: ignore[arg-type]
    while stage.calls:
        stage.fail(kind, message, status=400)
    return stage


@pytest.mark.parametrize("kind", ["blocked", "unauthorised"])
def test_the_job_pauses_and_no_goal_fails(kind):
    stage = Stage(Flat(texts=("a", "b", "c")), permits=2)
    stage.fail(kind, LOW, goal=1, status=400)
    assert len(stage.calls) == 1, "nothing more is asked"
    stage.answer()
    assert (stage.k.outcome, stage.k.why) == ("partial", f"{kind}: {LOW}")
    assert stage.statuses() == ["open", "resolved", "open"]
    assert stage.goal(1).broken == 0, "it counts for no goal"


def test_resumed_one_call_goes_ahead_and_the_rest_follows_its_answer():
    stage = blocked()
    out = stage.turn(events.Resumed("someone"))
    assert len(of(out, commands.Call)) == 1
    assert of(stage.turn(events.PermitsGranted(5)), commands.Call) == [], "whatever is granted meanwhile"
    assert len(of(stage.answer(), commands.Call)) == 4
    stage.answer_all()
    assert stage.k.outcome == "complete"


def test_resumed_and_still_blocked_it_pauses_again_at_the_cost_of_one_call():
    stage = blocked()
    before = stage.k.ledger.attempts
    stage.turn(events.Resumed("someone"))
    stage.fail("blocked", "still too low", status=400)
    assert (stage.k.outcome, stage.k.why) == ("partial", "blocked: still too low")
    assert stage.k.ledger.attempts == before + 1


@pytest.mark.parametrize("kind", ["transient", "lost", "throttled", "timed_out"])
def test_a_try_that_failed_for_another_reason_is_repeated_alone(kind):
    stage = blocked()
    stage.turn(events.Resumed("someone"))
    out = stage.fail(kind)
    assert len(of(out, commands.Call)) == 1 and stage.k.paused is None
    assert len(of(stage.answer(), commands.Call)) > 1


def test_word_from_before_says_nothing_about_the_try():
    """Neither an answer nor a refusal of a call that was under way when the account was found blocked."""
    stage = Stage(Flat(texts=tuple("abcdef")), Limits(blocked_wait_s=100.0), permits=3)
    stage.fail("blocked", LOW, goal=1, status=400)
    assert of(stage.answer(goal=2), commands.Call) == [], "it was asked before"
    assert stage.k.paused is not None
    stage.turn(events.Resumed("ann"))
    assert of(stage.fail("blocked", LOW, goal=3, status=400), commands.Call) != [], "the place is free for the try"
    assert stage.k.paused is None and len(stage.calls) == 1
    assert len(of(stage.answer(), commands.Call)) == 3


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_a_job_that_waits_asks_nothing_but_the_probes_it_is_granted():
    stage = blocked(wait_s=7_200.0)
    assert (stage.k.outcome, stage.k.demand()) == ("", 1)
    assert of(stage.turn(events.PermitsGranted(50)), commands.Call) == []
    (probe,) = of(stage.turn(events.PermitsGranted(1, starts=1, generation=3)), commands.Call)
    assert probe.generation == 3
    assert of(stage.fail("blocked", LOW, status=400), commands.Call) == []
    assert stage.k.outcome == ""
    stage.turn(events.PermitsGranted(1, starts=1))
    stage.answer()
    assert stage.k.paused is None
    assert len(of(stage.turn(events.PermitsGranted(9)), commands.Call)) == 4
    stage.answer_all()
    assert stage.k.outcome == "complete"


@pytest.mark.parametrize("resumed", [False, True])
def test_a_probe_too_is_asked_no_sooner_than_the_provider_said(resumed):
    """Of an account that is blocked; when that will be over is only supposed, what a 429 says is meant."""
    stage = blocked(wait_s=7_200.0)
    if resumed:
        stage.turn(events.Resumed("ann"))
    else:
        stage.turn(events.PermitsGranted(1, starts=1))
    stage.fail("throttled", status=429, retry_after_s=30.0)
    until_s = stage.k.at_s + 30.0
    assert of(stage.turn(events.PermitsGranted(1, starts=1)), commands.Call) == []
    assert of(stage.turn(events.Ticked(), at_s=until_s - 1.0), commands.Call) == []
    assert stage.k.due_at_s() == until_s
    assert len(of(stage.turn(events.Ticked(), at_s=until_s), commands.Call)) == 1


def test_leave_for_probes_of_an_unwell_route_finds_out_by_one_call_at_a_time_whether_it_is_blocked():
    """The cortex does not know yet that the account is blocked: it gives leave for three."""
    stage = blocked()
    stage.turn(events.Resumed("someone"), events.PermitsGranted(3, starts=3))
    assert len(stage.calls) == 1
    stage.fail("overloaded")
    assert len(stage.calls) == 1, "that said nothing of the account"
    assert len(of(stage.answer(), commands.Call)) == 1, "what is left of the leave"


def test_leave_for_probes_is_over_when_one_of_them_is_blocked():
    stage = Stage(Flat(texts=tuple("abcde")), Limits(blocked_wait_s=60.0), permits=0)
    stage.turn(events.PermitsGranted(3, starts=3))
    stage.fail("blocked", LOW, status=400)
    stage.answer_all()
    stage.turn(events.Resumed("someone"), events.PermitsGranted(3, starts=3))
    assert of(stage.fail("blocked", LOW, status=400), commands.Call) == []
    assert of(stage.turn(events.Ticked()), commands.Call) == [], "one a minute, when the cortex says so"


def test_after_its_wait_it_ends_partial():
    stage = blocked(wait_s=60.0)
    due_at_s = stage.k.due_at_s()
    assert due_at_s == stage.k.paused_at_s + 60.0
    stage.turn(events.Ticked(), at_s=due_at_s - 1.0)
    assert stage.k.outcome == ""
    stage.turn(events.Ticked(), at_s=due_at_s)
    assert (stage.k.outcome, stage.k.why) == ("partial", f"blocked: {LOW}")


def test_no_probe_without_a_wait():
    stage = Stage(Flat(texts=("a", "b", "c")), permits=2)
    stage.fail("blocked", LOW, goal=1, status=400)
    assert of(stage.turn(events.PermitsGranted(2, starts=1)), commands.Call) == []


def test_someone_may_wake_it():
    """The account was topped up, or the key was read again."""
    stage = blocked(wait_s=60.0)
    assert len(of(stage.turn(events.Resumed("the key was read again")), commands.Call)) == 1


def test_the_stated_reset_goes_on_by_itself_with_one_call_first():
    message = "You will regain access on 2026-12-01 at 00:00 UTC."
    stage = Stage(Flat(texts=tuple("abcde")), Limits(blocked_wait_s=86_400.0), permits=2)
    stage.turn(stage.broke(stage.call(1), "blocked", message, status=400), at_s=DECEMBER - 3_600.0)
    stage.turn(stage.broke(stage.call(2), "blocked", message, status=400), at_s=DECEMBER - 3_590.0)
    assert stage.k.due_at_s() == DECEMBER
    assert of(stage.turn(events.Ticked(), at_s=DECEMBER - 1.0), commands.Call) == []
    assert len(of(stage.turn(events.Ticked(), at_s=DECEMBER), commands.Call)) == 1
    assert len(of(stage.answer(), commands.Call)) == 2
    assert stage.k.paused is None


def test_a_job_that_does_not_wait_says_the_stated_time():
    message = "You will regain access on 2026-12-01 at 00:00 UTC."
    stage = blocked(message=message)
    assert (stage.k.why, stage.k.paused_until_s) == (f"blocked: {message}", DECEMBER)
    assert blocked().k.paused_until_s == 0.0, "none was stated"


# -- a wait beyond patience --------------------------------------------------------------------------------------------


def asked_to_wait(wait_s: float) -> Stage:
    stage = Stage(Flat(texts=("a", "b")), Limits(blocked_wait_s=wait_s, retry=RetryPolicy(patience_s=900.0)))
    stage.turn(stage.broke(stage.call(1), "throttled", "tomorrow", status=429, retry_after_s=86_400.0), at_s=DECEMBER)
    assert stage.k.outcome == "", "the other call may still be answered"
    stage.answer()
    return stage


def test_a_retry_after_beyond_patience_pauses_with_the_time():
    stage = asked_to_wait(0.0)
    assert (stage.k.outcome, stage.k.why) == ("partial", "throttled: tomorrow")
    assert stage.k.paused_until_s == DECEMBER + 86_400.0
    assert stage.statuses() == ["open", "resolved"]


def test_until_then_not_even_a_probe_is_sent():
    stage = asked_to_wait(100_000.0)
    assert of(stage.turn(events.PermitsGranted(1, starts=1)), commands.Call) == []
    stage.turn(events.PermitsGranted(3))
    assert stage.k.due_at_s() == DECEMBER + 86_400.0
    assert len(of(stage.turn(events.Ticked(), at_s=DECEMBER + 86_400.0), commands.Call)) == 1


# -- several routes ----------------------------------------------------------------------------------------------------


def test_where_a_fallback_is_open_the_job_goes_on_there():
    stage = Stage(Flat(texts=tuple("abcdef")), permits=0, fallbacks=(other("n", endpoint="far"),))
    stage.turn(events.PermitsGranted(2))
    stage.fail("blocked", LOW, goal=1, status=400)
    stage.fail("blocked", LOW, goal=2, status=400)
    assert (stage.k.paused, stage.k.outcome) == (None, "")
    out = stage.turn(events.PermitsGranted(2, route=1))
    assert [call.route for call in of(out, commands.Call)] == [1, 1]
    (probe,) = of(stage.turn(events.PermitsGranted(1, starts=1)), commands.Call)
    assert probe.route == 0
    stage.turn(stage.answered(probe))
    assert stage.k.shares[0].blocked is None


def test_paused_when_every_route_is_blocked():
    stage = Stage(Flat(texts=tuple("abcdef")), permits=0, fallbacks=(other("n", endpoint="far"),))
    stage.turn(events.PermitsGranted(1), events.PermitsGranted(1, route=1))
    for call in list(stage.calls.values()):
        stage.turn(stage.broke(call, "blocked", f"route {call.route}", status=400))
    assert (stage.k.outcome, stage.k.why) == ("partial", "blocked: route 1")


def test_another_key_is_tried_with_one_call():
    stage = blocked(kind="unauthorised")
    route = Route(endpoint="sim", model="m", credential="another")
    out = stage.turn(events.LimitsSet("ann", Limits(), route), events.Resumed("ann"))
    assert len(of(out, commands.Call)) == 1


# -- the money ---------------------------------------------------------------------------------------------------------


def test_the_money_at_its_end_is_no_wait_for_an_account():
    stage = Stage(Flat(texts=("a", "b")), Limits(blocked_wait_s=60.0), permits=1)
    stage.fail("over_budget", "the cap is reached", sent=False)
    assert (stage.k.outcome, stage.k.why) == ("partial", "over_budget: the cap is reached")


def test_a_program_that_changes_k_before_it_asks_gets_its_probe_all_the_same():
    """It splits its goal when the probe is granted, and asks the part when it sees it: one turn."""

    def select(k):
        for goal in k.open("top"):
            if goal.tries:
                yield from (Goal("part", parent=goal.id), Wait(goal))
            else:
                yield Ask(goal, prompt("whole"))
        yield from (Ask(goal, prompt("part")) for goal in k.open("part"))

    stage = Stage(puppet(begin=lambda k: [Goal("top")], select=select), Limits(blocked_wait_s=600.0))
    stage.fail("blocked", LOW, status=400)
    (probe,) = of(stage.turn(events.PermitsGranted(1, starts=1)), commands.Call)
    assert asked(probe) == "part"
