"""Votes on one goal's question: rounds, red flags, and what becomes of the goal."""

from __future__ import annotations

from typing import Any

import pytest

from cortex.state import commands, events
from cortex.state.changes import Ask, Fail, Goal, Reopen, Resolve, Vote
from cortex.state.program import Program
from cortex.state.state import Status
from cortex.values.election import VOTE
from cortex.values.limits import Limits
from cortex.values.reply import Malformed
from policies.failures.failure import FailureKind
from tests.support.state_machine_harness import Stage, of, prompt, puppet, reply


def voting(k: int = 3, texts: tuple[str, ...] = ("q",), **methods: Any) -> Program:
    def select(state):
        for goal in state.open():
            yield Vote(goal, prompt(str(goal.value)), k=k)

    def ballot(state, goal, answer):
        if answer.text.startswith("?"):
            raise Malformed("a question is no answer")
        return answer.text.upper()

    given = {"begin": lambda state: [Goal("question", text) for text in texts], "select": select, "ballot": ballot}
    return puppet(**given | methods)


def vote(stage: Stage, *texts: str) -> list[commands.Command]:
    """One turn: the calls under way, oldest first, are answered so."""
    calls = list(stage.calls.values())[: len(texts)]
    return stage.turn(*[stage.answered(call, text) for call, text in zip(calls, texts, strict=True)])


def samples(stage: Stage) -> list[str]:
    return [call.sample for call in stage.calls.values()]


# the texts said in each round -> the samples asked in all rounds, the answer (as the winner first said it)
ROUNDS = [
    (1, ["a"], 1, "a"),
    (3, ["aaa"], 3, "a"),
    (3, ["aab", "aa"], 5, "a"),
    (3, ["aab", "ab", "aa"], 7, "a"),
    (3, ["abb", "ab", "bb"], 7, "b"),
    (3, ["abc", "aab", "aa"], 8, "a"),
    (2, ["ab", "ab", "aa"], 6, "a"),
    (3, ["aAa"], 3, "a"),
    (3, ["Aab", "aa"], 5, "A"),
]


@pytest.mark.parametrize(("k", "rounds", "asked", "answer"), ROUNDS)
def test_rounds_ask_for_exactly_the_votes_still_needed(k, rounds, asked, answer):
    stage = Stage(voting(k))
    for output in rounds:
        assert len(stage.calls) == len(output)
        vote(stage, *output)
    assert (stage.k.outcome, stage.emitted) == ("complete", [answer])
    assert stage.k.tally.calls == stage.k.ledger.paid_calls == asked
    assert not stage.k.elections and list(stage.k.goals) == [1], "votes leave memory"


def test_a_reply_without_text_or_an_end_is_no_vote():
    """A model that only thinks would else elect the empty answer."""
    stage = Stage(voting(2, ballot=Program().ballot))
    fragments = [reply("", stop_reason="end_turn"), reply("a", stop_reason="max_tokens")]
    for made in fragments:
        call = next(iter(stage.calls.values()))
        stage.calls.pop((call.goal, call.attempt))
        stage.turn(events.Answered(call.goal, call.sample, call.attempt, call.hash, made))
    assert stage.k.tally.failures == {"malformed": 2}
    vote(stage, *["b"] * len(stage.calls))
    assert (stage.k.outcome, stage.emitted) == ("complete", ["b"])


def test_the_votes_of_a_round_go_out_together_and_are_samples_of_one_question():
    stage = Stage(voting())
    calls = of(stage.said, commands.Call)
    assert [call.sample for call in calls] == ["0", "1", "2"]
    assert len({call.body for call in calls}) == 1 and len({call.hash for call in calls}) == 3
    assert stage.goal(1).status == Status.ASKED


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("together", [True, False])
def test_votes_are_tallied_by_round_in_sample_order(order, together):
    """Whoever is first to say it, in the order of samples, is the one that absorb gets."""
    stage = Stage(voting())
    calls = list(stage.calls.values())
    entries = [stage.answered(calls[place], "aAa"[place]) for place in order]
    if together:
        stage.turn(*entries)
    else:
        for each in entries:
            stage.turn(each)
    assert stage.emitted == ["a"]


def test_nothing_is_asked_before_the_round_is_in():
    stage = Stage(voting())
    vote(stage, "a")
    vote(stage, "b")
    assert samples(stage) == ["2"]
    vote(stage, "c")
    assert samples(stage) == ["3", "4", "5"]


def test_a_red_flag_is_discarded_and_its_vote_takes_the_next_sample():
    stage = Stage(voting())
    vote(stage, "?", "a", "a")
    assert samples(stage) == ["3"]
    vote(stage, "?a")
    assert samples(stage) == ["4"]
    vote(stage, "a")
    assert stage.emitted == ["a"]
    assert stage.k.tally.failures == {"malformed": 2}
    assert stage.k.tally.calls == 5


def test_an_over_long_reply_is_a_red_flag_whatever_it_says():
    stage = Stage(voting(1))
    call = stage.call()
    stage.calls.clear()
    stage.turn(events.Answered(call.goal, call.sample, call.attempt, call.hash, reply("a", stop_reason="max_tokens")))
    assert samples(stage) == ["1"] and stage.k.tally.failures == {"malformed": 1}
    vote(stage, "b")
    assert stage.emitted == ["b"]


def test_red_flags_have_an_end():
    stage = Stage(
        voting(1, select=lambda state: [Vote(goal, prompt("q"), k=1, samples_max=4) for goal in state.open()])
    )
    for _ in range(4):
        vote(stage, "?")
    assert stage.goal(1).status == Status.FAILED
    assert stage.goal(1).failure.kind == FailureKind.MALFORMED and "a question" in stage.goal(1).failure.message
    assert not stage.calls


def test_an_election_without_a_winner_has_an_end():
    select = lambda state: [Vote(goal, prompt("q"), k=2, samples_max=5) for goal in state.open()]  # noqa: E731
    stage = Stage(voting(select=select))
    vote(stage, "a", "b")
    vote(stage, "a", "b")
    assert stage.goal(1).status == Status.FAILED
    assert stage.goal(1).failure.message == "no answer was ahead after 4 samples"


def test_a_vote_that_broke_is_tried_again_under_its_own_sample():
    stage = Stage(voting())
    first = next(iter(stage.calls.values()))
    stage.turn(stage.broke(first, "transient", status=500))
    assert samples(stage) == ["1", "2"]
    stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    assert samples(stage) == ["1", "2", "0"]
    again = stage.call()
    assert (again.goal, again.attempt, again.hash, again.body) == (first.goal, 2, first.hash, first.body)
    vote(stage, "a", "a", "a")
    assert stage.emitted == ["a"]


def test_a_vote_that_cannot_be_had_fails_its_goal_and_calls_off_the_others():
    stage = Stage(voting())
    out = stage.fail("rejected", "no such thing", status=400)
    assert stage.goal(1).failure.message == "no such thing"
    assert {command.goal for command in of(out, commands.AbandonAttempt)} == {
        call.goal for call in stage.calls.values()
    }
    assert not stage.k.elections and stage.k.live == 0


def test_the_program_may_ask_again_after_a_vote_has_failed_and_its_samples_are_new():
    stage = Stage(voting(failed=lambda state, goal, failure: [Reopen(goal, resample=True)]))
    stage.fail("refused")
    assert samples(stage)[-3:] == ["3", "4", "5"]


def test_a_prompt_that_is_too_large_comes_back_to_select():
    def select(state):
        for goal in state.open():
            yield Vote(goal, prompt("long" if not goal.too_large else "short"), k=2)

    stage = Stage(voting(select=select))
    stage.fail("too_large", status=413)
    bodies = {b"short" in call.body for call in stage.calls.values() if call.goal > 3}
    assert bodies == {True} and stage.goal(1).too_large == 1


@pytest.mark.parametrize("how", ["fail", "resolve", "reopen"])
def test_a_goal_that_is_settled_by_other_news_lets_its_votes_go(how):
    def absorb(state, goal, answer):
        yield Resolve(goal, answer.text)
        if goal.value == "other":
            target = state.goals[1]
            change = {"fail": Fail(target, "no use"), "resolve": Resolve(target, "known"), "reopen": Reopen(target)}
            yield change[how]

    def select(state):
        for goal in state.open():
            yield Vote(goal, prompt("q"), k=2) if goal.value == "q" else Ask(goal, prompt("other"))

    stage = Stage(voting(texts=("q", "other"), absorb=absorb, select=select))
    before = [call for call in stage.calls.values() if call.goal > 2]
    other = next(call for call in stage.calls.values() if call.goal == 2)
    out = stage.turn(stage.answered(other, "now"))
    assert {(one.goal, one.attempt) for one in of(out, commands.AbandonAttempt)} == {
        (c.goal, c.attempt) for c in before
    }
    stage.turn(*[stage.answered(call, "late") for call in before])
    assert stage.k.tally.dropped == (1 if how == "reopen" else 2), "its last sample is asked for again, and welcome"
    assert (stage.goal(1).status == Status.ASKED) == (how == "reopen")


def test_permits_that_are_too_few_for_a_round_are_used_as_they_come():
    stage = Stage(voting(), permits=2)
    assert samples(stage) == ["0", "1"] and stage.k.demand() == 3
    vote(stage, "a")
    assert samples(stage) == ["1", "2"]
    vote(stage, "a", "a")
    assert stage.emitted == ["a"]


def test_several_elections_go_on_at_once():
    stage = Stage(voting(2, texts=("p", "q", "r")))
    assert len(stage.calls) == 6
    stage.answer_all(lambda call: "a" if call.sample == "0" else "b" if call.sample == "1" else "a")
    assert stage.emitted == ["a", "a", "a"]


def test_a_channel_that_comes_back_asks_again_only_for_the_votes_that_are_not_in():
    stage = Stage(voting())
    vote(stage, "a")
    stage.calls.clear()
    stage.turn(events.Rejoined(2, ()), events.PermitsGranted(8))
    assert samples(stage) == ["1", "2"]
    vote(stage, "a", "a")
    assert stage.emitted == ["a"] and stage.k.tally.calls == 3


def test_votes_are_remembered_by_their_samples():
    stage = Stage(voting(2))
    entries = [events.ReplyRecalled(call.goal, call.sample, call.hash, reply("a")) for call in stage.calls.values()]
    stage.turn(*entries)
    assert stage.emitted == ["a"] and stage.k.ledger.reused_calls == 2 and stage.k.ledger.paid_calls == 0


def test_by_default_votes_agree_where_their_text_does():
    def select(state):
        for goal in state.open():
            yield Vote(goal, prompt("q"), k=2)

    stage = Stage(puppet(begin=lambda state: [Goal("q")], select=select))
    vote(stage, "yes", " yes\n")
    assert stage.emitted == ["yes"]


def test_a_ballot_that_raises_fails_the_goal_it_was_about():
    stage = Stage(voting(ballot=lambda state, goal, answer: 1 // 0))
    vote(stage, "a")
    failure = stage.goal(1).failure
    assert failure.kind == FailureKind.FAULTY and "ballot raised ZeroDivisionError" in failure.message


def test_a_winner_that_absorb_refuses_is_voted_on_anew():
    def absorb(state, goal, answer):
        if answer.text == "b":
            raise Malformed("not b")
        yield Resolve(goal, answer.text)

    stage = Stage(voting(2, absorb=absorb))
    vote(stage, "b", "b")
    assert samples(stage) == ["2", "3"]
    vote(stage, "a", "a")
    assert stage.emitted == ["a"]


def test_votes_are_no_goals_of_the_program():
    seen: list[str] = []

    def select(state):
        seen.extend(goal.kind for goal in state.open())
        for goal in state.open():
            yield Vote(goal, prompt("q"), k=2)

    stage = Stage(voting(select=select), permits=1)
    assert VOTE not in seen and stage.goal(1).children == []
    assert list(stage.k.open()) == [] and len(list(stage.k.open(VOTE))) == 1
    stage = Stage(puppet(begin=lambda state: [Goal(VOTE)]))
    assert stage.k.outcome == "failed" and "made by Vote alone" in stage.k.why


def test_money_is_reserved_for_each_vote():
    stage = Stage(voting(), Limits(max_job_tokens=250, output_tokens_max=20))
    assert 0 < len(stage.calls) < 3 and stage.k.ledger.committed_tokens <= 250
    vote(stage, *"a" * len(stage.calls))
    assert stage.k.ledger.committed_tokens <= 250


@pytest.mark.parametrize("bad", [{"k": 0}, {"samples_max": -1}])
def test_bounds_that_make_no_sense_fail_the_goal(bad):
    stage = Stage(voting(select=lambda state: [Vote(goal, prompt("q"), **bad) for goal in state.open()]))
    assert stage.goal(1).failure.kind == FailureKind.FAULTY


def test_cancelling_ends_an_election():
    stage = Stage(voting())
    stage.turn(events.Stopped("me", "cancel"))
    assert stage.k.outcome == "cancelled" and not stage.k.elections and stage.k.live == 0


def test_a_drained_election_goes_on_where_it_stopped():
    stage = Stage(voting())
    stage.turn(events.Stopped("me", "drain"))
    vote(stage, "a", "a", "b")
    assert stage.k.outcome == "partial" and not stage.calls
    stage.turn(events.Resumed("me"))
    assert samples(stage) == ["3", "4"]
    vote(stage, "a", "a")
    assert stage.emitted == ["a"]
