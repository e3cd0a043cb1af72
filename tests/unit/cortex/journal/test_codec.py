"""The journal: turns and K as bytes, and K as a fold over turns."""

from __future__ import annotations

import msgspec
import pytest

from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.budget_slice import BudgetSlice
from cortex.state.changes import Goal
from cortex.state.shard_record import ShardReport
from cortex.values.counters import JobCounters
from cortex.values.ledger import Ledger
from cortex.values.limits import Limits, Route
from cortex.values.reply import Usage
from tests.support.state_machine_harness import PRICE, Flat, Stage, failure, puppet, reply, terms

EVENTS = [
    events.Opened(terms(Limits(max_cost_nusd=5), price=PRICE), 3, 7, None),
    events.Rejoined(4, ((1, 2), (3, 4))),
    events.RowsRead((events.Row("a", b"{}", 8), events.Row("b", refusal="no")), 0, 20, True),
    events.PermitsGranted(9),
    events.Answered(1, "0", 2, b"h" * 16, reply("text", Usage(1, 2, 3, 4)), 0.25),
    events.ReplyRecalled(1, "0", b"h" * 16, None, 4, 2),
    events.ReplyRecalled(1, "0", b"h" * 16, reply("r")),
    events.AttemptFailed(1, "row-1", 2, failure("throttled", status=429, retry_after_s=2.5), 0.5),
    events.GivenBack(1, "0", 2, 3, 4.5, "branch-1"),
    events.ToolRunBegun(1, 2, "worker:0"),
    events.Observed(1, 2, {"a": [1, b"2", None]}, 12.5, failure("lost")),
    events.ChildJobEnded(1, 2, ["x"], 1, 2, 3, 4, failure("faulty"), 5),
    events.ResultsWritten(3, 300),
    events.LimitsSet("ann", Limits(concurrency=3), Route(endpoint="e", model="m", price=PRICE)),
    events.Stopped("ann", "drain"),
    events.Resumed("ann"),
    events.Ticked(),
    events.SubmissionIntended(3, 1, (5, 6, 1 << 40), "msgbatch_2"),
    events.SubmissionAccepted(3, "msgbatch_3", "ann"),
    events.SubmissionRejected(3, failure("throttled", status=429, retry_after_s=2.5), "ann"),
    events.SubmissionUncertain(3, failure("transient")),
    events.SubmissionUnreadable(3, failure("rejected", status=404)),
    events.ResultsCollected(3),
    events.GoalMade(7, "ask", ["flow.py:3", "what?", "00ff"]),
    events.AnswerGiven("ann", "approved", True),
    events.RowsReopened(
        "ann", 1, ("a", "b"), (0, 7), {"lost": 2}, 90, True, (3, 30), Route(endpoint="e", model="m"), "m", 9
    ),
    events.BudgetLeased((BudgetSlice("team=search a day", "day", 20_000, 5),), "it is used up", 86_400.0),
    events.ShardReported(
        2, ShardReport(3, 7, Ledger(known_nusd=5), JobCounters(answered=1), 4, (9, 8), (1, 0), (2, 2), True)
    ),
    events.ShardsReopened((1, 3)),
]


def test_every_event_has_its_case():
    assert {type(event) for event in EVENTS} == set(events.Event.__args__)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_its_bytes(event):
    assert codec.decode_batch(codec.encode_batch([event])) == (event,)


def test_a_turn_is_made_of_its_messages_own_bytes():
    batches = [codec.encode_batch(EVENTS[:4]), codec.encode_batch(EVENTS[4:])]
    blob = codec.encode_turn(12.5, batches)
    turn = codec.decode_turn(blob)
    assert (turn.at_s, turn.batches) == (12.5, (tuple(EVENTS[:4]), tuple(EVENTS[4:])))
    assert all(batch in blob for batch in batches)


@pytest.mark.parametrize(
    "bad", [b"", b"\xc1", codec.encode_batch(EVENTS)[:-1], msgspec.msgpack.encode([["unheard_of", 1]])]
)
def test_bytes_that_are_no_events_are_refused(bad):
    with pytest.raises(msgspec.DecodeError):
        codec.decode_batch(bad)


def test_a_state_that_is_none_is_refused():
    with pytest.raises(msgspec.DecodeError):
        codec.decode_state(b"\x80")


def a_run() -> Stage:
    """A job with everything in it: shared calls, retries, a hold, a late reply, a stop and a resumption."""
    stage = Stage(Flat(texts=("a", "b", "b", "c", "d")), Limits(output_tokens_max=10), permits=3, price=PRICE)
    first = stage.call(1)
    stage.turn(stage.broke(first, "lost"))
    stage.fail("throttled", goal=2, status=429, retry_after_s=5.0)
    stage.turn(stage.answered(first, "late"), stage.answered(first, "late"))
    stage.turn(events.Stopped("ann", "drain"))
    stage.answer_all()
    stage.turn(events.Rejoined(2), events.Resumed("ann"), events.PermitsGranted(8))
    stage.turn(events.Ticked(), at_s=200.0)
    stage.answer_all()
    assert stage.k.outcome == "complete"
    return stage


def test_replay_gives_the_same_k_to_the_byte_and_the_same_commands():
    stage = a_run()
    parts: list[commands.Command] = []
    k = codec.replay(None, stage.turns, stage.program, parts.append)
    assert codec.encode_state(k) == codec.encode_state(stage.k)
    assert parts == stage.said


def test_replay_may_begin_at_any_snapshot():
    stage = a_run()
    whole = codec.encode_state(stage.k)
    for cut in range(1, len(stage.turns) + 1):
        blob = codec.encode_state(codec.replay(None, stage.turns[:cut], stage.program))
        k = codec.replay(
            codec.decode_state(blob), stage.turns[cut:], lambda terms: Flat(texts=("a", "b", "b", "c", "d"))
        )
        assert codec.encode_state(k) == whole, cut


def test_turns_are_not_changed_by_being_replayed():
    stage = a_run()
    before = [msgspec.msgpack.encode(turn) for turn in stage.turns]
    codec.replay(None, stage.turns, stage.program)
    assert [msgspec.msgpack.encode(turn) for turn in stage.turns] == before


def test_a_job_that_begins_anew_is_replayed_from_there():
    """With the program that its new terms name."""
    old, new = terms(), terms(job="j")
    programs = {1: Flat(texts=("old",)), 2: puppet(begin=lambda k: [Goal("new", "v")])}
    made = iter(programs.values())
    turns = [
        events.Turn(1.0, ((events.Opened(old, 1), events.PermitsGranted(1)),)),
        events.Turn(2.0, ((events.Opened(new, 2, 2),), (events.PermitsGranted(1),))),
    ]
    k = codec.replay(None, turns, lambda terms: next(made))
    assert [(goal.id, goal.kind) for goal in k.goals.values()] == [(2, "new")]
    assert (k.epoch, k.began_at_s) == (2, 2.0)


def test_the_end_of_a_rerun_is_numbered_from_zero_again():
    turns = [events.Turn(1.0, ((events.Opened(terms(), 1),),))] * 2
    emitted: list[commands.Command] = []
    codec.replay(None, turns, puppet(), emitted.append)
    assert emitted == [commands.FinishJob("complete", "")] * 2


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([], "the journal is empty"),
        ([events.Turn(1.0, ((events.PermitsGranted(1),),))], "does not begin with the opening"),
    ],
)
def test_what_is_no_journal(turns, said):
    with pytest.raises(ValueError, match=said):
        codec.replay(None, turns, puppet())


def test_the_opening_is_found_wherever_it_stands_in_its_turn():
    opened = events.Opened(terms(), 1)
    assert codec.opening(events.Turn(0.0, ((events.Ticked(),), (events.PermitsGranted(1), opened)))) == opened.terms
    assert codec.opening(events.Turn(0.0, ((events.Ticked(),),))) is None


def test_a_whole_number_of_seconds_is_the_same_time():
    """A clock that gives whole numbers makes no other K than its journal does."""
    program, made = Flat(texts=("a",)), terms()
    k = codec.open_job(made)
    turn = events.Turn(5, ((events.Opened(made, 1), events.PermitsGranted(1)),))
    step(k, program, turn)
    again = codec.replay(
        None, [codec.decode_turn(codec.encode_turn(5, [codec.encode_batch(turn.batches[0])]))], program
    )
    assert codec.encode_state(again) == codec.encode_state(k)


def test_a_turn_carries_what_the_job_came_to_whatever_its_program_is_by_now():
    k = a_run().k
    turn = codec.decode_turn(codec.encode_turn(1.0, [], codec.encode_account(k)))
    known = codec.decode_account(turn.account)
    assert (known.ledger, known.next_goal, known.outcome, known.in_batches) == (k.ledger, k.next_goal, k.outcome, 0)
    assert codec.decode_turn(codec.encode_turn(1.0, [])).account == b""
    other = Stage(Flat(texts=("a",)), Limits(output_tokens_max=10), price=PRICE).k
    codec.put_right(other, turn.account)
    assert (other.ledger, other.next_goal, other.outcome) == (k.ledger, k.next_goal, k.outcome)
