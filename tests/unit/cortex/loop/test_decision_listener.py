"""Whoever listens to a step hears each decision with the numbers that it saw, and changes nothing (tests/support/state_machine_harness.py has its
shadow listened to in every test of the core)."""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.calls.attempts import drawn
from cortex.journal import codec
from cortex.state import events
from cortex.state.changes import Ask, Resolve, Vote, Wait
from cortex.state.state import Goal
from cortex.values.limits import Limits
from cortex.values.prompt import Part, Prompt, Role, Rule
from cortex.values.reply import Malformed
from policies.failures.failure import FailureKind
from policies.failures.retry import RetryPolicy, backoff_s
from tests.support.state_machine_harness import PRICE, Flat, Stage, prompt, puppet


def _heard(stage: Stage, what: str, goal: int = 1) -> list[dict[str, Any]]:
    return [seen for each, text, seen in stage.heard if text == what and each == goal]


def test_a_retry_tells_its_rule_its_budget_and_the_wait_that_was_drawn():
    stage = Stage(Flat())
    stage.fail("overloaded", status=529)
    (retry,), (wait,) = _heard(stage, "retry"), _heard(stage, "backoff")
    assert (retry["decision"].reason, retry["broken"], retry["retries"]) == ("overloaded at attempt 1 of 8", 1, 0)
    draw = drawn("j/1/0", 1)
    assert wait["draw"] == draw
    assert wait["wait_s"] == backoff_s(RetryPolicy(), 1, FailureKind.OVERLOADED, None, draw)
    assert stage.goal(1).due_at_s == stage.k.at_s + wait["wait_s"]


def test_a_retry_tells_what_the_budget_was_when_it_was_decided():
    stage = Stage(Flat(texts=("a", "b")))
    stage.answer(goal=2)
    for _ in range(3):
        stage.fail("transient", goal=1)
        stage.turn(events.Ticked(), at_s=stage.goal(1).due_at_s)
    seen = _heard(stage, "retry")
    assert [(each["broken"], each["retries"], each["successes"]) for each in seen] == [(1, 0, 1), (2, 1, 1), (3, 2, 1)]


def test_what_is_over_the_cap_tells_what_was_committed_and_what_it_would_take():
    limits = Limits(max_cost_nusd=2_500_000, output_tokens_max=100)
    stage = Stage(Flat(texts=("a", "b")), limits, price=PRICE)
    (seen,) = _heard(stage, "over_budget", 2)
    assert stage.k.flights and seen["ledger"].committed_nusd + seen["charge"].nusd > seen["limits"].max_cost_nusd


def test_a_prompt_tells_what_it_was_made_of_and_what_was_left_out():
    parts = (Part(Role.GOAL, "What?", 9), Part(Role.DOCUMENT, "long " * 200, 1, Rule.DROP, "the long one"))
    program = puppet(
        begin=lambda k: [Goal("g")], select=lambda k: [Ask(goal, Prompt("two", parts)) for goal in k.open()]
    )
    stage = Stage(program, Limits(prompt_tokens_max=300))
    (before,), (after,) = _heard(stage, "rendering"), _heard(stage, "rendered")
    assert (before["prompt"].parts, before["tokens_max"]) == (parts, 300)
    assert (after["prompt"].parts, after["prompt"].left_out) == (parts[:1], ("the long one",))


def test_a_refused_reply_tells_why_and_which_sample_is_next():
    def absorb(k: Any, goal: Goal, reply: Any) -> Any:
        if reply.text == "no":
            raise Malformed("not of the form")
        return [Resolve(goal, reply.text)]

    stage = Stage(puppet(begin=lambda k: [Goal("g", "x")], absorb=absorb))
    stage.answer("no")
    (seen,) = _heard(stage, "resample")
    assert (seen["sample"], seen["why"], seen["resamples"], seen["resamples_max"]) == (1, "not of the form", 1, 4)


def test_a_tally_and_a_join_tell_their_counts():
    stage = Stage(
        puppet(begin=lambda k: [Goal("g", "x")], select=lambda k: [Vote(g, prompt("x"), k=2) for g in k.open("g")])
    )
    stage.answer("yes"), stage.answer("no")
    stage.answer_all("yes")
    counts = [[each.votes for each in seen["candidates"]] for seen in _heard(stage, "tally")]
    assert sorted(counts[-1]) == [1, 3] and len(_heard(stage, "round")) == len(counts)

    def select(k: Any) -> Any:
        for goal in k.open("top"):
            yield Resolve(goal) if goal.children else Wait(goal)
            if not goal.children:
                yield Goal("leaf", "x", parent=goal.id)
        yield from (Ask(goal, prompt("x")) for goal in k.open("leaf"))

    stage = Stage(puppet(begin=lambda k: [Goal("top")], select=select))
    stage.answer()
    (seen,) = _heard(stage, "join")
    assert (str(seen["verdict"]), seen["resolved"], seen["total"]) == ("met", 1, 1)


def test_who_listens_is_no_part_of_k():
    stage = Stage(Flat())
    assert stage.heard and "on_decision" in vars(stage.shadow) and "on_decision" not in vars(stage.k)
    assert codec.encode_state(stage.k) == codec.encode_state(stage.shadow)
    assert "tell" not in msgspec.structs.asdict(stage.k)
