"""``table`` with votes: a row is asked until its choices are decided, and its answer is the one that wins."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from cortex.journal import codec
from cortex.programs.table import Table
from cortex.state import events
from cortex.state.program import params_of
from cortex.values.canonical import END_TURN
from cortex.values.reply import Usage, canonical_reply
from policies.failures.failure import Failure, FailureKind
from tests.unit.cortex.programs.test_table import Played, row

LABELS = ("bug", "praise", "other")
SCHEMA = json.dumps({
    "type": "object", "required": ["label", "why"],
    "properties": {"label": {"enum": list(LABELS)}, "why": {"type": "string"}},
})  # fmt: skip


def played(votes: int = 5, **fields: Any) -> Played:
    job = Played(Table(prompt="{{text}}", id="id", schema=SCHEMA, votes=votes, on_cut="fail", **fields))
    job.feed(row(id="a", text="x"))
    return job


def say(job: Played, label: str, why: str = "w", chances: dict[str, float] | None = None, stop: str = END_TURN) -> None:
    """Answer the call under way, with the probabilities of the labels if they are given."""
    call, text = job.calls[-1], json.dumps({"label": label, "why": why})
    before, _, after = text.partition(label)
    logs = [[each, math.log(chance)] for each, chance in (chances or {}).items()]
    tokens = [[before, 0.0, [[before, 0.0]]], [label, math.log(chances[label]), logs], [after, 0.0, []]] if chances else None
    reply = canonical_reply([{"type": "text", "text": text}], stop_reason=stop, model="m-1", usage=Usage(10, 3), logprobs=tokens)
    job.take(events.Answered(call.goal, call.sample, call.attempt, call.hash, reply, 0.25))


def test_rows_are_asked_until_the_votes_that_are_left_change_nothing() -> None:
    job = played()
    for label in ("bug", "praise", "bug"):
        assert job.rows == []
        say(job, label, why=f"{label} {len(job.calls)}")
    assert job.rows == []  # 2 to 1, and two are left
    say(job, "bug")
    assert job.rows == [{"id": "a", "label": "bug", "why": "bug 1", "answer": None, "error": None}]
    assert [call.sample for call in job.calls] == ["a", "a\x1fv1", "a\x1fv2", "a\x1fv3"]
    assert len({call.hash for call in job.calls}) == 4 and len({call.body for call in job.calls}) == 1
    assert job.k.tally.succeeded == 1 and job.k.live == 0


def test_all_votes_are_asked_where_they_disagree_and_of_equals_the_first_wins() -> None:
    job = played(votes=3)
    for label in ("praise", "bug", "other"):
        say(job, label)
    assert (job.rows[0]["label"], len(job.calls)) == ("praise", 3)


SURE, UNSURE = {"bug": 0.95, "praise": 0.04, "other": 0.01}, {"bug": 0.4, "praise": 0.59, "other": 0.01}


@pytest.mark.parametrize(("by", "label"), [("count", "praise"), ("probability", "bug")])
def test_by_probability_one_sure_vote_outweighs_two_that_are_not(by: str, label: str) -> None:
    job = played(votes=3, votes_by=by, top_logprobs=20)
    for said, chances in (("praise", UNSURE), ("bug", SURE), ("praise", UNSURE)):
        if not job.rows:
            say(job, said, chances=chances)
    share = round((0.4 + 0.95 + 0.4) / 3, 6)
    other = round((0.59 + 0.04 + 0.59) / 3, 6)
    found = job.rows[0]
    assert (found["label"], found["label_probability"]) == (label, pytest.approx(share if label == "bug" else other, abs=2e-6))


def test_a_vote_without_probabilities_counts_whole() -> None:
    job = played(votes=2, votes_by="probability", top_logprobs=20)
    say(job, "praise", chances=UNSURE)
    say(job, "bug")
    assert (job.rows[0]["label"], job.rows[0]["label_probability"]) == ("bug", pytest.approx(0.4, abs=1e-5))


def test_each_vote_is_told_once_why_it_did_not_fit_and_the_next_one_is_not() -> None:
    job = played(votes=3)
    say(job, "bug")
    say(job, "nonsense")
    assert b"An earlier answer to this was refused" in job.calls[-1].body
    say(job, "praise")
    assert b"refused" not in job.calls[-1].body and job.calls[-1].sample == "a\x1fv2\x1f1"
    say(job, "odd")
    say(job, "odd")  # this vote has no answer; the others decide
    assert (job.rows[0]["label"], job.rows[0]["error"], len(job.calls)) == ("bug", None, 5)


def test_votes_that_end_without_an_answer_leave_the_others_to_decide() -> None:
    job = played(votes=3)
    say(job, "bug", stop="refusal")
    say(job, "praise")
    say(job, "praise", stop="refusal")
    assert (job.rows[0]["label"], job.k.tally.succeeded) == ("praise", 1)
    job = played(votes=2)
    for _ in range(2):
        say(job, "bug", stop="refusal")
    assert job.rows[0]["error"].startswith("refused") and job.k.tally.failed == 1


def test_a_call_that_fails_for_good_loses_no_vote_that_was_paid() -> None:
    job = played(votes=3)
    say(job, "bug")
    call = job.calls[-1]
    job.take(events.AttemptFailed(call.goal, call.sample, call.attempt, Failure(FailureKind.REJECTED, "no", 400)))
    assert (job.rows[0]["label"], job.k.tally.succeeded, job.k.live) == ("bug", 1, 0)
    job = played(votes=3)
    call = job.calls[-1]
    job.take(events.AttemptFailed(call.goal, call.sample, call.attempt, Failure(FailureKind.REJECTED, "no", 400)))
    assert job.rows[0]["error"] == "rejected: no"


def test_totals_are_of_all_votes_and_a_replay_comes_to_the_same() -> None:
    job = played(votes=3, meta=True)
    for label in ("bug", "praise", "bug"):
        say(job, label)
    found = job.rows[0]
    assert (found["attempts"], found["input_tokens"], found["output_tokens"], found["kind"]) == (3, 30, 9, "succeeded")
    again = codec.replay(None, job.turns, job.program)
    assert codec.encode_state(again) == codec.encode_state(job.k)


def test_a_table_without_votes_has_the_parameters_of_before() -> None:
    params = msgspec.json.decode(params_of(Table(prompt="{{text}}")))
    assert "votes" not in params and "votes_by" not in params
