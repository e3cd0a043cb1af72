"""Attempts, settled exactly once: answers, late replies, remembered ones, and replies that are no good."""

from __future__ import annotations

import pytest

import cortex
from cortex.journal import codec
from cortex.state import commands, events
from cortex.state.changes import Ask, Reopen, Resolve
from cortex.state.state import Goal, Status
from cortex.values.limits import Limits
from cortex.values.prompt import Part, Prompt, Role, Rule
from cortex.values.reply import Malformed, Usage
from tests.support.state_machine_harness import PRICE, USAGE, Flat, Stage, asked, of, prompt, puppet, reply
from tests.support.synchronous_driver import Driver

BOUND = Limits(output_tokens_max=10)


def priced(*texts: str, permits: int = 8, **limits: object) -> Stage:
    return Stage(Flat(texts=texts), Limits(output_tokens_max=10, **limits), permits=permits, price=PRICE)  # type: ignore[arg-type]


# -- settling ----------------------------------------------------------------------------------------------------------


def test_an_answer_settles_the_reservation():
    stage = priced("a")
    assert stage.k.ledger.reserved_nusd > 0
    stage.answer()
    ledger = stage.k.ledger
    assert (ledger.reserved_nusd, ledger.known_nusd, ledger.known_tokens) == (0, 60_000, 12)
    assert (stage.k.successes, ledger.paid_again) == (1, 0)


def without_dropped(k):
    k = codec.decode_state(codec.encode_state(k))
    k.tally.dropped = k.at_s = 0
    return codec.encode_state(k)


@pytest.mark.parametrize("kind", ["answered", "broke", "recalled"])
def test_what_comes_twice_changes_nothing_but_the_count_of_it(kind):
    stage = priced("a", "b", permits=1)
    call = stage.call()
    event = {
        "answered": lambda: stage.answered(call),
        "broke": lambda: stage.broke(call, "transient"),
        "recalled": lambda: events.ReplyRecalled(call.goal, call.sample, call.hash, reply("r")),
    }[kind]()
    stage.calls.clear()
    stage.turn(event)
    before = without_dropped(stage.k)
    assert of(stage.turn(event, at_s=stage.k.at_s), commands.Call) == []
    assert without_dropped(stage.k) == before
    assert stage.k.tally.dropped == (1 if kind == "answered" else 0)


def test_the_same_event_twice_in_one_turn():
    stage = priced("a", "b")
    event = stage.answered(stage.call(1))
    stage.turn(event, event)
    assert (stage.k.ledger.paid_calls, stage.k.tally.dropped, stage.emitted) == (1, 1, ["ok"])


def test_an_unknown_attempt_is_dropped():
    stage = priced("a")
    call = stage.call()
    for goal, attempt in ((99, 1), (1, 7), (0, 0)):
        stage.turn(events.Answered(goal, "0", attempt, call.hash, reply()))
        stage.turn(events.AttemptFailed(goal, "0", attempt, stage.broke(call, "lost").failure))
    assert stage.k.tally.dropped == 3
    assert stage.statuses() == ["asked"]
    assert stage.k.ledger.known_nusd == 0


PAYING = [
    ("timed_out", 0, True), ("lost", 0, True), ("transient", 0, True), ("transient", 200, True),
    ("transient", 504, True), ("transient", 524, True), ("transient", 500, False), ("transient", 502, False),
    ("transient", 408, False), ("overloaded", 503, False), ("overloaded", 529, False), ("throttled", 429, False),
    ("rejected", 400, False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "status", "paid"), PAYING)
@pytest.mark.parametrize("sent", [True, False])
def test_what_may_have_been_paid_stays_charged_in_full(kind, status, paid, sent):
    """An attempt that the provider refused, or that never left, was not paid; of any other nobody knows."""
    stage = priced("a", "other")
    worst = next(iter(stage.k.flights.values())).charge
    reserved = stage.k.ledger.reserved_nusd
    stage.turn(stage.broke(stage.call(1), kind, status=status, sent=sent), events.PermitsGranted(0))
    ledger = stage.k.ledger
    assumed = worst.nusd if paid and sent else 0
    assert (ledger.assumed_nusd, ledger.reserved_nusd) == (assumed, reserved - worst.nusd)


def test_a_late_reply_is_taken_and_the_attempt_that_replaced_it_is_cancelled():
    stage = priced("a")
    first = stage.call()
    stage.turn(stage.broke(first, "lost"))
    second = stage.call()
    assert (second.attempt, second.hash) == (2, first.hash)
    out = stage.turn(stage.answered(first, "late"))
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(1, 2)]
    assert stage.goal(1).answer == "late"
    assert (stage.k.ledger.assumed_nusd, stage.k.ledger.known_nusd) == (stage.k.ledger.assumed_nusd, 60_000)


def test_a_late_reply_takes_the_place_of_the_assumption():
    stage = priced("a", "b")
    first = stage.call(1)
    stage.turn(stage.broke(first, "timed_out"))
    assumed = stage.k.ledger.assumed_nusd
    assert assumed > 60_000
    stage.turn(stage.answered(first, "late"))
    ledger = stage.k.ledger
    assert (ledger.assumed_nusd, ledger.known_nusd, ledger.paid_again) == (0, 60_000, 0)
    assert stage.goal(1).answer == "late", "it waited to be asked again, and takes the reply as gladly"


def test_a_goal_that_was_answered_late_is_woken_by_nothing():
    """The moment for which its next attempt was planned means nothing any more, and the job is not kept awake for it."""
    absorb = lambda k, goal, reply: [Reopen(goal, resample=True) if goal.sample == "0" else Resolve(goal)]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb))
    first = stage.call()
    stage.turn(stage.broke(first, "timed_out"), at_s=110.0)
    assert stage.k.due_at_s() is not None
    stage.turn(stage.answered(first), at_s=110.0)
    assert (stage.statuses(), stage.k.due_at_s(), stage.k.delayed) == (["asked"], None, [])


def test_a_reply_that_comes_after_its_goal_was_answered_is_paid_again():
    stage = priced("a", "b")
    first = stage.call(1)
    stage.turn(stage.broke(first, "lost"))
    stage.answer("second", goal=1)
    assert stage.k.ledger.paid_again == 1, "the first may have been paid, the second was"
    before = stage.k.ledger.assumed_nusd
    stage.turn(stage.answered(first, "first"))
    assert (stage.goal(1).answer, stage.k.tally.dropped) == ("second", 1)
    assert 0 == stage.k.ledger.assumed_nusd < before, "what it cost is known now, though its goal has ended"


def test_an_abandoned_attempt_that_was_paid_counts_as_paid_again():
    stage = priced("a", "b")
    first = stage.call(1)
    stage.turn(stage.broke(first, "lost"))
    second = stage.call(1)
    stage.turn(stage.answered(first, "late"))
    assert stage.k.ledger.paid_again == 0
    stage.turn(stage.answered(second, "too late"))
    assert (stage.k.ledger.paid_again, stage.k.ledger.paid_calls, stage.k.tally.dropped) == (1, 2, 1)
    assert stage.emitted == ["late"]


def test_a_late_reply_to_a_question_that_is_asked_no_more_is_paid_and_dropped():
    def select(k):
        for goal in k.open("x"):
            yield Ask(goal, prompt(f"try {goal.too_large}"))

    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=select), BOUND, price=PRICE)
    first = stage.call()
    stage.turn(stage.broke(first, "timed_out"), at_s=101.0)
    stage.turn(events.Ticked(), at_s=stage.goal(1).due_at_s)
    stage.turn(stage.broke(stage.call(), "too_large", sent=False))
    assert asked(stage.call()) == "try 1"
    stage.turn(stage.answered(first, "to the first question"))
    assert (stage.goal(1).status, stage.k.tally.dropped) == (Status.ASKED, 1)
    assert (stage.k.ledger.assumed_nusd, stage.k.ledger.known_nusd) == (0, 60_000)


def test_usage_teaches_the_estimate_only_by_prompts_of_the_programs_own():
    long = "word " * 400
    stage = priced(long)
    stage.turn(stage.answered(stage.call(), usage=Usage(1_000, 1)))
    assert sum(stage.k.estimate.counts) == 1
    body = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"' + b"x" * 2_000 + b'"}]}'
    whole = Stage(puppet(begin=lambda k: [Goal("x")], select=lambda k: [Ask(g, body=body) for g in k.open("x")]))
    whole.turn(whole.answered(whole.call(), usage=Usage(500, 1)))
    assert sum(whole.k.estimate.counts) == 0


# -- remembered replies ------------------------------------------------------------------------------------------------


def test_a_remembered_reply_costs_nothing():
    stage = priced("a", "a")
    call = stage.call()
    stage.turn(events.ReplyRecalled(call.goal, call.sample, call.hash, reply("known")))
    ledger = stage.k.ledger
    assert stage.emitted == ["known", "known"]
    assert (ledger.known_nusd, ledger.reserved_nusd, ledger.paid_calls) == (0, 0, 0)
    assert (ledger.reused_calls, ledger.attempts) == (1, 0)
    assert stage.k.successes == 0, "no sign of the provider's health"


def test_a_remembered_reply_to_another_question_touches_nothing():
    """A message that comes late again, after the goal asks something else."""

    def absorb(k, goal, reply):
        yield Reopen(goal, resample=True) if goal.sample == "0" else Resolve(goal, reply.text)

    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb))
    first = events.ReplyRecalled(1, "0", stage.call().hash, reply("first"))
    stage.turn(first)
    assert stage.call().sample == "1"
    before = without_dropped(stage.k)
    stage.turn(first)
    assert without_dropped(stage.k) == before
    stage.answer("second")
    assert stage.goal(1).answer == "second"


# -- malformed and too large -------------------------------------------------------------------------------------------


def strict(k, goal, reply):
    if not reply.text.startswith("ok"):
        raise Malformed(f"not ok: {reply.text}")
    yield Resolve(goal, reply.text)


def test_a_malformed_reply_is_discarded_and_the_next_sample_asked():
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=strict), Limits(resamples_max=2))
    hashes = [stage.call().hash]
    for text in ("no", "nor this"):
        stage.answer(text)
        hashes.append(stage.call().hash)
    assert [command.sample for command in of(stage.said, commands.Call)] == ["0", "1", "2"]
    assert len(set(hashes)) == 3
    stage.answer("ok then")
    assert stage.goal(1).answer == "ok then"
    assert stage.k.tally.failures == {"malformed": 2}
    assert stage.k.ledger.paid_calls == 3


def test_after_so_many_malformed_replies_the_goal_fails():
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=strict), Limits(resamples_max=1))
    stage.answer("no")
    stage.answer("never")
    bad = stage.goal(1).failure
    assert bad is not None and (bad.kind, bad.message) == ("malformed", "not ok: never")
    assert stage.k.tally.failures == {"malformed": 2}


def test_a_reply_that_plans_too_much_is_malformed():
    absorb = lambda k, goal, reply: [Goal("x", i, parent=goal.id) for i in range(9)]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb), Limits(plan_goals_max=8))
    stage.answer()
    assert (stage.call().sample, len(stage.k.goals)) == ("1", 1)


def test_too_large_goes_back_to_select_which_asks_for_less():
    select = lambda k: [Ask(g, prompt("x" * (100 >> g.too_large))) for g in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=select))
    stage.fail("too_large", sent=False)
    stage.fail("too_large", status=413)
    assert [len(asked(command)) for command in of(stage.said, commands.Call)] == [100, 50, 25]
    assert stage.k.estimate.tightenings == 1, "the provider said so, against our estimate"
    stage.answer()
    assert stage.k.outcome == "complete"


def test_what_is_too_large_three_times_fails():
    stage = priced("a", permits=1)
    for _ in range(3):
        stage.fail("too_large", "over M", sent=False)
    bad = stage.goal(1).failure
    assert bad is not None and (bad.kind, bad.message) == ("too_large", "over M")


def test_a_body_as_given_cannot_be_made_smaller():
    select = lambda k: [Ask(g, body=b"{}") for g in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=select))
    stage.fail("too_large", sent=False)
    assert stage.statuses() == ["failed"]


def test_a_prompt_that_does_not_fit_is_never_sent():
    """Select sees it three times; then its goal fails, and the others were asked all the same."""
    seen = []

    def select(k):
        for goal in k.open("x"):
            seen.append((goal.id, goal.too_large))
            yield Ask(goal, prompt("word " * 900 if goal.value == "big" else "small"))

    begin = lambda k: [Goal("x", "big"), Goal("x", "small")]  # noqa: E731
    stage = Stage(puppet(begin=begin, select=select), Limits(prompt_tokens_max=500))
    bad = stage.goal(1).failure
    assert bad is not None and bad.kind == "too_large" and "at most 500" in bad.message
    assert [asked(call) for call in stage.calls.values()] == ["small"]
    assert {too_large for goal, too_large in seen if goal == 1} == {0, 1, 2}


def test_a_thousand_prompts_that_do_not_fit_fail_each_for_itself():
    """It takes more rounds of select than the bound on rounds of changes alone; the job goes on to the good one."""
    begin = lambda k: [*(Goal("x", "big") for _ in range(300)), Goal("x", "small")]  # noqa: E731
    select = lambda k: [Ask(g, prompt("w " * 900 if g.value == "big" else "s")) for g in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=begin, select=select), Limits(prompt_tokens_max=500, selects_max=4), permits=2)
    assert [asked(call) for call in stage.calls.values()] == ["s"]
    assert stage.k.tally.failed_for_good == {"too_large": 300}


def test_a_prompt_is_fitted_by_what_may_be_dropped():
    parts = (Part(Role.GOAL, "keep"), Part(Role.DOCUMENT, "word " * 900, rule=Rule.DROP, title="big"))
    select = lambda k: [Ask(g, Prompt("fitted", parts)) for g in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=select), Limits(prompt_tokens_max=500))
    assert asked(stage.call()) == "keep"
    assert stage.goal(1).constructor == "fitted"


def test_no_room_for_a_prompt():
    stage = Stage(Flat(texts=("a",)), Limits(output_tokens_max=1_000), window=900)
    bad = stage.goal(1).failure
    assert bad is not None and bad.message == "a reply of 1000 tokens leaves no room for a prompt"


def test_replies_of_one_turn_that_end_each_others_goals():
    """The first reply resolves both goals of a shared question; the second finds nothing left to do, and no fault."""
    absorb = lambda k, goal, reply: [Resolve(other, reply.text) for other in list(k.goals.values())]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x", "same"), Goal("x", "same")], absorb=absorb))
    stage.answer()
    assert stage.statuses() == ["resolved", "resolved"]
    assert stage.k.tally.failures == {}


def test_the_usage_is_settled_before_the_program_sees_the_reply():
    seen = []

    def absorb(k, goal, reply):
        seen.append((k.ledger.paid_calls, len(k.flights)))
        yield Resolve(goal)

    Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb)).answer()
    assert seen == [(1, 0), (1, 0)]  # once for K, once for its shadow
    assert USAGE.input_tokens_billed == 10


@cortex.flow
async def maps(ctx, prompts: int, size: int):
    """All of them at once, and each one fails by itself."""
    answer = await ctx.map(lambda n: ctx.ask(f"{n} " + "x" * size, on_failure="keep"), range(prompts))
    return [str(getattr(each, "kind", each)) for each in answer]


@cortex.flow
async def insists(ctx):
    """Asks what does not fit, another one each time, for ever."""
    number = 0
    while True:
        number += 1
        await ctx.ask(f"{number} " + "x" * 9_000, on_failure="keep")


def test_calls_that_were_made_in_this_turn_and_do_not_fit_fail_one_by_one_and_not_the_job():
    driver = Driver(
        maps(prompts=300, size=9_000), lambda text: "ok", limits=Limits(prompt_tokens_max=500, concurrency=3)
    )
    driver.run()
    assert driver.k.outcome == "complete", driver.k.why
    assert driver.program.answer(driver.k) == ["too_large"] * 300


def test_a_program_that_asks_for_ever_what_does_not_fit_is_stopped():
    driver = Driver(insists(), lambda text: "ok", limits=Limits(prompt_tokens_max=500))
    driver.run()
    assert (driver.k.outcome, driver.k.why) == ("failed", "select made 64 rounds of changes in one turn")
