"""What becomes of a goal whose attempt failed: the one place where a retry is decided."""

from __future__ import annotations

import pytest

from cortex.calls.attempts import drawn
from cortex.state import commands, events
from cortex.state.changes import Fail, Goal, Reopen, Resolve
from cortex.state.state import Status
from cortex.values.limits import Limits
from policies.failures.failure import FailureKind
from policies.failures.retry import RetryPolicy, backoff_s
from tests.support.state_machine_harness import Flat, Stage, of, puppet

PROMPT = RetryPolicy(base_s=1.0, cap_s=8.0, attempts_max=3, timed_out_attempts_max=2, patience_s=100.0)


def flat(*texts: str, permits: int = 8, retry: RetryPolicy = PROMPT, **limits: object) -> Stage:
    return Stage(Flat(texts=texts or ("a",)), Limits(retry=retry, **limits), permits=permits)  # type: ignore[arg-type]


def due(stage: Stage) -> None:
    """Time comes to whatever is due next."""
    at_s = stage.k.due_at_s()
    assert at_s is not None
    stage.turn(events.Ticked(), at_s=at_s)


# kind, status -> what the goal is then, whether it waits, whether a retry of the budget is spent, what pauses the job
FATES = [
    ("throttled", 429, "open", True, 0, ""),
    ("overloaded", 529, "open", True, 1, ""),
    ("transient", 500, "open", True, 1, ""),
    ("unreadable", 200, "open", True, 1, ""),
    ("expired", 529, "open", True, 1, ""),
    ("timed_out", 0, "open", True, 1, ""),
    ("malformed", 200, "asked", False, 0, ""),
    ("refused", 200, "failed", False, 0, ""),
    ("cut", 200, "failed", False, 0, ""),
    ("paused", 200, "failed", False, 0, ""),
    ("empty", 200, "failed", False, 0, ""),
    ("tool_use", 200, "failed", False, 0, ""),
    ("too_large", 413, "asked", False, 0, ""),
    ("blocked", 402, "open", False, 0, "blocked"),
    ("unauthorised", 401, "open", False, 0, "unauthorised"),
    ("rejected", 400, "failed", False, 0, ""),
    ("lost", 0, "asked", False, 0, ""),
    ("faulty", 0, "failed", False, 0, ""),
    ("over_budget", 0, "open", False, 0, "over_budget"),
    ("cancelled", 0, "asked", False, 0, ""),
]


def test_every_kind_has_its_case():
    assert [kind for kind, *_ in FATES] == [kind.value for kind in FailureKind]


@pytest.mark.parametrize(("kind", "status", "then", "waits", "retries", "paused"), FATES)
def test_what_each_kind_means_for_its_goal(kind, status, then, waits, retries, paused):
    stage = flat("a", "other", permits=2)
    stage.turn(stage.broke(stage.call(1), kind, status=status), at_s=stage.k.at_s)
    goal = stage.goal(1)
    assert (goal.status.name.lower(), goal.due_at_s > stage.k.at_s, stage.k.retries) == (then, waits, retries)
    assert (stage.k.paused.kind if stage.k.paused else "") == paused
    assert stage.k.tally.failures == {kind: 1}
    assert stage.k.outcome == "", "another call is under way"


def test_a_retry_waits_its_backoff_and_is_the_next_attempt_at_the_same_question():
    stage = flat()
    first = stage.call()
    stage.fail("transient", status=500)
    now_s = stage.k.at_s
    wait_s = backoff_s(PROMPT, 1, FailureKind.TRANSIENT, None, drawn("j/1/0", 1))
    assert stage.k.due_at_s() == now_s + wait_s
    stage.turn(events.Ticked(), at_s=now_s + wait_s * 0.99)
    assert not stage.calls
    due(stage)
    second = stage.call()
    assert (second.attempt, second.hash, second.body) == (2, first.hash, first.body)
    assert stage.k.tally.calls == 1, "one call, two attempts"


AWAY = {
    # seconds between two attempts, the last failure, whether another goal is answered meanwhile -> outcome, goal
    "nothing is reached for so long": (20.0, {"sent": False}, False, "partial", "open"),
    "for a short time": (2.0, {"sent": False}, False, "complete", "failed"),
    "another goal is answered": (20.0, {"sent": False}, True, "complete", "failed"),
    "it was sent": (20.0, {"status": 500}, False, "complete", "failed"),
}


@pytest.mark.parametrize("name", AWAY)
def test_a_goal_does_not_fail_because_its_server_is_away(name):
    """After the last attempt the job pauses, resumable, and asks the goal as often again when it goes on."""
    step_s, last, answered, outcome, then = AWAY[name]
    stage = flat("a", "b", permits=2)
    if not answered:
        stage.answer(goal=2)
    for attempt in range(3):
        if answered and attempt == 2:
            stage.answer(goal=2)
        stage.turn(stage.broke(stage.call(1), "transient", **last))
        if attempt < 2:
            stage.turn(events.Ticked(), at_s=stage.k.at_s + step_s)
    goal = stage.goal(1)
    assert (stage.k.outcome, goal.status.name.lower()) == (outcome, then)
    if outcome == "partial":
        assert goal.broken == 0
        stage.turn(events.Resumed("ops"))
        stage.turn(events.PermitsGranted(1))
        stage.answer(goal=1)
        assert (stage.k.outcome, stage.k.tally.failures) == ("complete", {"transient": 3})


def test_after_so_many_attempts_the_goal_fails_with_the_last_failure():
    stage = flat()
    for word in ("one", "two", "three"):
        stage.fail("transient", word, status=500)
        if stage.k.outcome:
            break
        due(stage)
    assert stage.goal(1).tries == 3
    assert stage.goal(1).failure.message == "three"
    assert (stage.k.outcome, stage.k.tally.failed) == ("complete", 1)


def test_timed_out_attempts_have_a_count_of_their_own():
    stage = flat()
    stage.fail("timed_out")
    due(stage)
    stage.fail("timed_out")
    assert stage.goal(1).failure.kind == "timed_out"


@pytest.mark.parametrize(("status", "tries"), [(502, 3), (504, 2), (524, 2)])
def test_attempts_that_somebody_on_the_way_waited_for_count_as_timed_out_ones(status, tries):
    stage = flat()
    for _ in range(tries - 1):
        stage.fail("transient", status=status)
        due(stage)
    assert stage.goal(1).failure is None
    stage.fail("transient", status=status)
    assert (stage.goal(1).failure.status, stage.goal(1).tries) == (status, tries)


def test_a_reply_starts_the_count_anew():
    def absorb(k, goal, reply):
        yield Resolve(goal) if goal.sample == "1" else Reopen(goal, resample=True)

    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb), Limits(retry=PROMPT))
    for _ in range(2):
        stage.fail("transient", status=500)
        due(stage)
    stage.answer()
    assert stage.goal(1).broken == 0
    for _ in range(2):
        stage.fail("transient", status=500)
        due(stage)
    stage.answer()
    assert stage.k.outcome == "complete"


def test_retries_beyond_the_budget_take_the_long_wait_and_fail_nobody():
    retry = RetryPolicy(base_s=1.0, cap_s=50.0, budget_floor=2, budget_share=0.5)
    stage = flat("a", "b", "c", retry=retry)
    for goal in (1, 2, 3):
        stage.turn(stage.broke(stage.call(goal), "overloaded", status=529), at_s=110.0)
    waits = [stage.goal(i).due_at_s - 110.0 for i in (1, 2, 3)]
    assert max(waits[:2]) < 1.0 and waits[2] >= 50.0


def test_successes_pay_for_retries():
    retry = RetryPolicy(base_s=1.0, cap_s=50.0, budget_floor=0, budget_share=0.5)
    stage = flat("a", "b", "c", retry=retry)
    stage.answer(goal=1)
    stage.answer(goal=2)
    stage.fail("overloaded", goal=3, status=529)
    assert stage.goal(3).due_at_s - stage.k.at_s < 1.0


def test_lost_calls_are_asked_at_once_and_cost_no_budget():
    stage = flat(retry=RetryPolicy(budget_floor=0, attempts_max=3))
    stage.fail("lost")
    stage.fail("cancelled")
    assert (stage.call().attempt, stage.k.retries) == (3, 0)
    stage.fail("lost", "its branch died")
    assert stage.goal(1).failure.kind == "lost", "what kills each actor that touches it is not tried for ever"


# -- the rate limit ----------------------------------------------------------------------------------------------------


def test_what_good_hours_saved_up_for_a_bad_one_is_bounded():
    """Each of the ten good calls paid for a retry; three may be saved."""
    retry = RetryPolicy(base_s=1.0, cap_s=50.0, budget_floor=0, budget_share=1.0, budget_unspent_max=3)
    stage = flat(*map(str, range(20)), retry=retry, permits=10)
    for _ in range(10):
        stage.answer()
    now_s = stage.k.at_s
    waits = []
    for call in list(stage.calls.values())[:6]:
        stage.turn(stage.broke(call, "transient"), at_s=now_s)
        waits.append(stage.goal(call.goal).due_at_s - now_s >= 50.0)
    assert waits == [False] * 3 + [True] * 3


def test_retry_after_holds_the_whole_job():
    stage = flat("a", "b", "c", permits=1)
    stage.turn(stage.broke(stage.call(), "throttled", status=429, retry_after_s=30.0), at_s=110.0)
    assert stage.k.hold_until_s == 140.0 and stage.k.shares[0].told_to_wait
    assert stage.k.due_at_s() == 140.0
    stage.turn(events.Ticked(), at_s=139.9)
    assert not stage.calls and stage.k.outcome == ""
    stage.turn(events.Ticked(), at_s=140.0)
    assert stage.call().goal == 2, "the first one waits its own jitter on top"
    assert stage.goal(1).due_at_s >= 140.0


def test_a_retry_after_of_a_refusal_that_no_load_causes_holds_its_own_call_alone():
    """The scheduler says so in its grant, and takes it back with the next."""
    stage = flat("a", "b", "c", "d", permits=1)
    stage.turn(events.PermitsGranted(1, strays=True), at_s=110.0)
    out = stage.turn(stage.broke(stage.call(), "throttled", status=429, retry_after_s=30.0), at_s=110.0)
    assert [call.goal for call in of(out, commands.Call)] == [2]
    assert stage.k.hold_until_s == 0.0 and stage.goal(1).due_at_s >= 140.0
    stage.turn(events.PermitsGranted(1), at_s=111.0)
    stage.turn(stage.broke(stage.call(2), "throttled", status=429, retry_after_s=30.0), at_s=111.0)
    assert stage.k.hold_until_s == 141.0 and not stage.calls


def test_a_hold_is_never_shortened():
    stage = flat("a", "b")
    stage.turn(stage.broke(stage.call(1), "throttled", status=429, retry_after_s=30.0), at_s=110.0)
    stage.turn(stage.broke(stage.call(2), "throttled", status=429, retry_after_s=5.0), at_s=111.0)
    assert stage.k.hold_until_s == 140.0


def test_without_retry_after_only_its_own_goal_waits():
    stage = flat("a", "b", "c", permits=1)
    out = stage.turn(stage.broke(stage.call(), "throttled", status=429), at_s=110.0)
    assert [call.goal for call in of(out, commands.Call)] == [2]
    assert stage.k.hold_until_s == 0.0


def test_being_throttled_is_not_the_calls_fault():
    stage = flat(retry=RetryPolicy(attempts_max=2, base_s=1.0, throttled_attempts_max=10))
    for _ in range(9):
        stage.fail("throttled", status=429)
        due(stage)
    stage.fail("transient", status=500)
    due(stage)
    assert stage.goal(1).status == Status.ASKED
    assert (stage.goal(1).broken, stage.goal(1).throttles) == (10, 9)


# -- the account -------------------------------------------------------------------------------------------------------


def refusals(stage: Stage, count: int, message: str = "bad field") -> None:
    for _ in range(count):
        call = next(iter(stage.calls.values()))
        stage.turn(stage.broke(call, "rejected", message, status=400))


def test_the_same_refusal_of_many_goals_in_a_row_is_about_the_account():
    stage = flat(*map(str, range(50)), rejected_alike_max=20, permits=1)
    refusals(stage, 19)
    assert stage.k.paused is None
    refusals(stage, 1)
    assert stage.k.paused.kind == "blocked"
    assert "the last 20 goals were all refused with: bad field" in stage.k.paused.message
    assert stage.k.outcome == "partial"
    assert stage.statuses() == ["failed"] * 19 + ["open"] * 31
    stage.turn(events.Resumed("someone"))
    refusals(stage, 19)
    assert stage.k.paused is None, "the count began anew"


@pytest.mark.parametrize("between", ["answer", "other words"])
def test_a_success_or_another_refusal_between_starts_the_count_anew(between):
    stage = flat(*map(str, range(60)), permits=1, rejected_alike_max=20)
    refusals(stage, 19)
    if between == "answer":
        stage.answer()
    else:
        refusals(stage, 1, "another field")
    refusals(stage, 19)
    assert stage.k.paused is None
    refusals(stage, 1)
    assert stage.k.paused is not None


# -- the author's code -------------------------------------------------------------------------------------------------


def broken(k, goal, reply):
    raise KeyError("no such thing")


def test_a_program_that_raises_fails_that_goal_and_goes_on():
    def absorb(k, goal, reply):
        if goal.value == "bad":
            raise KeyError("no such thing")
        yield Resolve(goal)

    stage = Stage(puppet(begin=lambda k: [Goal("x", "bad"), Goal("x", "good")], absorb=absorb))
    stage.answer_all()
    bad = stage.goal(1).failure
    assert (bad.kind, bad.message) == ("faulty", "the program's absorb raised KeyError: 'no such thing'")
    assert stage.statuses() == ["failed", "resolved"]
    assert (stage.k.outcome, stage.k.tally.failures) == ("complete", {"faulty": 1})
    assert stage.k.ledger.paid_calls == 2


def test_absorb_must_say_what_becomes_of_the_goal():
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=lambda k, goal, reply: []))
    stage.answer()
    assert "it left the goal as it was: goal 1 (x) is asked" in stage.goal(1).failure.message


def test_many_in_a_row_stop_the_job():
    begin = lambda k: [Goal("x", str(i)) for i in range(9)]  # noqa: E731
    stage = Stage(puppet(begin=begin, absorb=broken), Limits(faulty_in_row_max=3), permits=4)
    stage.answer(goal=1)
    stage.answer(goal=2)
    out = stage.answer(goal=3)
    assert stage.k.outcome == "failed"
    assert stage.k.why == "3 goals in a row: the program's absorb raised KeyError: 'no such thing'"
    assert {call.goal for call in of(out, commands.AbandonAttempt)} == {4, 5, 6}, "and nothing is left under way"
    assert of(out, commands.FinishJob) == [commands.FinishJob("failed", stage.k.why)]


def test_a_good_one_between_starts_the_count_anew():
    def absorb(k, goal, reply):
        if reply.text == "bad":
            raise KeyError("no")
        yield Resolve(goal)

    begin = lambda k: [Goal("x", str(i)) for i in range(6)]  # noqa: E731
    stage = Stage(puppet(begin=begin, absorb=absorb), Limits(faulty_in_row_max=2), permits=1)
    for text in ("bad", "ok", "bad", "ok", "bad"):
        stage.answer(text)
    assert stage.k.outcome == ""
    stage.answer("bad")
    assert stage.k.outcome == "failed"


def test_one_goal_is_one_fault_though_both_methods_raise():
    def failed(k, goal, failure):
        raise ValueError("nor this")

    begin = lambda k: [Goal("x", "1"), Goal("x", "2")]  # noqa: E731
    stage = Stage(puppet(begin=begin, absorb=broken, failed=failed), Limits(faulty_in_row_max=2), permits=1)
    stage.answer()
    assert (stage.k.outcome, stage.k.faulty_in_row) == ("", 1)
    assert stage.goal(1).failure.message == "the program's failed raised ValueError: nor this"


WHERE = {
    "begin": lambda k: 1 / 0,
    "select": lambda k: 1 / 0,
    "satisfied": lambda k: 1 / 0,
}


@pytest.mark.parametrize("where", WHERE)
def test_code_that_raises_where_no_goal_is_concerned_stops_the_job(where):
    methods = {"begin": lambda k: [Goal("x", "v")]} | {where: WHERE[where]}
    stage = Stage(puppet(**methods))
    assert stage.k.outcome == "failed"
    assert stage.k.why == f"the program's {where} raised ZeroDivisionError: division by zero"
    assert len(stage.ended) == 1


def test_a_select_that_yields_what_may_not_be_yielded_stops_the_job():
    for bad in ([42], None, [Resolve(Goal("x", id=9))]):
        stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], select=lambda k, bad=bad: bad))
        assert stage.k.outcome == "failed", bad


def test_a_select_that_only_ever_changes_is_stopped():
    stage = Stage(puppet(select=lambda k: [Goal("x", "more")], satisfied=lambda k: False), Limits(selects_max=5))
    assert (stage.k.outcome, stage.k.why) == ("failed", "select made 5 rounds of changes in one turn")


# -- the program's word on a failure -----------------------------------------------------------------------------------


def test_a_program_may_answer_a_failure_in_its_own_way():
    stage = Stage(
        puppet(begin=lambda k: [Goal("x", "v")], failed=lambda k, goal, failure: [Resolve(goal, failure.kind)])
    )
    stage.fail("rejected", status=400)
    assert (stage.goal(1).answer, stage.goal(1).failure) == ("rejected", None)


def test_a_program_may_ask_again_after_a_failure():
    def failed(k, goal, failure):
        yield Reopen(goal, resample=True) if goal.sample == "0" else Fail(goal, "twice")

    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], failed=failed))
    stage.fail("rejected", status=400)
    assert stage.call().sample == "1"
    stage.answer("good")
    assert (stage.goal(1).answer, stage.goal(1).failure) == ("good", None)


def test_a_failure_that_the_program_passes_over_fails_the_goal():
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], failed=lambda k, goal, failure: []))
    stage.fail("refused", "I would rather not")
    assert stage.goal(1).failure.message == "I would rather not"
    assert stage.k.tally.failed_for_good == {"refused": 1}


def test_a_later_failure_is_told_as_itself():
    """An old failure that was answered by another try does not colour what the program says next."""

    def absorb(k, goal, reply):
        yield Fail(goal, "the reply says no")

    def failed(k, goal, failure):
        yield Reopen(goal, resample=True)

    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb, failed=failed))
    stage.fail("rejected", "bad field", status=400)
    stage.answer()
    assert (stage.goal(1).failure.kind, stage.goal(1).failure.message) == ("malformed", "the reply says no")


def test_a_fault_is_final_whatever_the_program_says():
    stage = Stage(
        puppet(begin=lambda k: [Goal("x", "v")], absorb=broken, failed=lambda k, goal, failure: [Reopen(goal)])
    )
    stage.answer()
    assert (stage.goal(1).status, stage.goal(1).failure.kind) == (Status.FAILED, "faulty")
