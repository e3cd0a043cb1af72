"""Shards: rows dealt in rounds, counts that are the whole's, and money that is lent before it is used."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.jobs.bill_excess import excess_facts
from cortex.goals import shards
from cortex.journal import codec
from cortex.loop.invariants import check
from cortex.programs.batch import Batch
from cortex.programs.shards import Shards, sharded, unsharded
from cortex.programs.table import Table
from cortex.state import commands, events
from cortex.state.program import build
from cortex.state.shard_record import ShardReport
from cortex.values.counters import JobCounters
from cortex.values.ledger import Ledger
from cortex.values.limits import Limits
from policies.estimates.bill_excess import BillExcess
from tests.support.state_machine_harness import PRICE, Flat, Stage, failure, of

CAP = 1_000
_serials = itertools.count(1)


def parent(count: int = 2, **limits: float) -> Stage:
    """A job of so many shards that has just begun."""
    return Stage(Shards(shards=count, batch=Batch()), Limits(**limits), price=PRICE)  # type: ignore[arg-type]


def said(known: int = 0, reserved: int = 0, epoch: int = 1, **more: object) -> ShardReport:
    """A report of a shard that has spent this."""
    tally = more.pop("tally", None)
    ledger = Ledger(known_nusd=known, reserved_nusd=reserved, attempts=known, paid_calls=known)
    return ShardReport(epoch, next(_serials), ledger, tally, **more)  # type: ignore[arg-type]


def told(stage: Stage, goal: int, report: ShardReport) -> int | None:
    """A shard reports; what it may commit of money."""
    stage.turn(events.ShardReported(goal, report))
    return stage.k.shards[goal].lent[0]


def home(stage: Stage, goal: int, report: ShardReport, kind: str = "", partial: bool = False) -> list[commands.Command]:
    """A shard ends."""
    launch = [command for command in of(stage.said, commands.LaunchChildJob) if command.goal == goal][-1]
    bad = failure(kind, "it ended so") if kind else None
    over = msgspec.structs.replace(report, over=True)
    return stage.turn(events.ChildJobEnded(goal, launch.attempt, None, failure=bad, partial=partial, report=over))


# rows of a window, shards -> by shard
DEALT = [
    ("abcdef", 2, ["ace", "bdf"]),
    ("abcdef", 3, ["ad", "be", "cf"]),
    ("ab", 3, ["a", "b", ""]),
    ("", 2, ["", ""]),
]


@pytest.mark.parametrize(("rows", "count", "parts"), DEALT)
def test_of_every_round_each_shard_gets_one_row(rows, count, parts):
    assert ["".join(part) for part in shards.dealt(rows, count)] == parts


@given(sizes=st.lists(st.integers(1, 9), max_size=12), tail=st.integers(0, 9), count=st.integers(1, 5))
def test_a_row_goes_to_the_same_shard_whatever_windows_it_comes_in(sizes, tail, count):
    rows = list(range(sum(sizes) * count + tail))
    parts: list[list[int]] = [[] for _ in range(count)]
    at = 0
    for size in [*sizes, -(-tail // count)]:  # windows of whole rounds; the last one may lack some
        for part, more in zip(parts, shards.dealt(rows[at : at + size * count], count), strict=True):
            part.extend(more)
        at += size * count
    assert parts == [rows[number::count] for number in range(count)]


@pytest.mark.parametrize(("rows", "count", "lacking"), [(0, 3, 0), (1, 3, 2), (3, 3, 0), (5, 4, 3)])
def test_a_window_lacks_what_makes_its_last_round_whole(rows, count, lacking):
    assert shards.lacking(rows, count) == lacking


def test_a_shard_has_the_bounds_of_the_job_but_caps_and_what_ends_it():
    limits = Limits(max_cost_nusd=5, max_job_tokens=5, max_failed=3, deadline_at_s=9.0, concurrency=7)
    own = shards.limits_of(limits)
    assert (own.max_cost_nusd, own.max_job_tokens, own.max_failed, own.alike_first) == (None, None, None, 0)
    assert (own.deadline_at_s, own.concurrency, own.window_rows) == (9.0, 7, limits.window_rows)


@pytest.mark.parametrize("program", [Batch(ordered=True), Table(prompt="{{a}}")])
def test_the_program_of_the_rows_comes_back_as_it_was(program):
    whole = sharded(program, 3)
    assert unsharded(build(Shards, msgspec.json.encode(whole))) == (program, 3)
    assert sharded(program, 1) is program
    with pytest.raises(ValueError, match="not for Flat"):
        sharded(Flat(texts=()), 2)


def test_each_shard_is_launched_at_once_and_the_job_is_complete_when_all_are():
    stage = parent(3)
    launched = of(stage.said, commands.LaunchChildJob)
    assert [(each.goal, each.shards, each.max_cost_nusd) for each in launched] == [
        (1, 3, None),
        (2, 3, None),
        (3, 3, None),
    ]
    home(stage, 1, said(5))
    home(stage, 2, said(5))
    assert not stage.k.outcome
    home(stage, 3, said(5))
    assert (stage.k.outcome, stage.k.ledger.known_nusd, stage.k.ledger.paid_calls) == ("complete", 15, 15)


def test_counts_are_those_of_the_whole_however_often_they_are_told():
    stage = parent()
    first = JobCounters(succeeded=3, failed=1, failures={"lost": 2}, failed_for_good={"refused": 1}, failed_said="no")
    twice = said(7, tally=first, results=4)
    told(stage, 1, twice)
    told(stage, 1, twice)
    told(stage, 1, said(7, tally=first, results=4))
    told(stage, 2, said(1, tally=JobCounters(succeeded=2, failures={"lost": 1, "timed_out": 1}), results=2))
    told(stage, 1, said(9, tally=msgspec.structs.replace(first, succeeded=5, failed=0, failed_for_good={}), results=5))
    tally = stage.k.tally
    assert (tally.succeeded, tally.failed, tally.failures) == (7, 0, {"lost": 3, "timed_out": 1})
    assert (tally.failed_for_good, tally.failed_said) == ({}, "no")
    assert (stage.k.ledger.known_nusd, shards.results(stage.k)) == (10, 7)


def test_bills_above_what_was_reserved_are_counted_over_all_shards():
    stage, over = parent(2, max_cost_nusd=CAP), BillExcess(replies=2, over_nusd=2 * 10**9, times_milli=3_000)
    told(stage, 1, said(5, tally=JobCounters(), excess=(over, over)))
    told(stage, 2, said(5, tally=JobCounters(), excess=(BillExcess(replies=1, times_milli=9_500),)))
    told(stage, 2, said(6))  # of its ledger alone, after a restart
    facts = excess_facts(stage.k)
    assert (facts["replies_over_reserved"], facts["cost_over_reserved_usd"], facts["reserved_times"]) == (5, 4.0, 9.5)


def test_what_an_earlier_channel_says_comes_late():
    stage = parent(max_cost_nusd=CAP)
    lent = told(stage, 1, said(100, epoch=2))
    told(stage, 1, said(0, epoch=1, holds=(1, 0)))
    assert (stage.k.ledger.known_nusd, stage.k.shards[1].money.held_nusd) == (100, lent)


# (known, assumed, reserved, attempts, paid) of a shard that has ended, and by its next channel -> of the whole, after
# its calls in flight were given up: (known and assumed, attempts, paid)
LOST = [
    ((90, 10, 0, 10, 9), (0, 0, 0, 0, 0), (100, 10, 9)),  # the whole journal
    ((90, 10, 0, 10, 9), (40, 0, 0, 4, 4), (100, 10, 9)),  # its last turns
    ((100, 0, 0, 10, 10), (60, 0, 60, 10, 6), (120, 10, 6)),  # four replies: these calls count as assumed, and come again
    ((159, 0, 0, 17, 17), (60, 0, 60, 7, 6), (159, 17, 16)),  # one reply, and ten calls
    ((90, 10, 0, 10, 9), (95, 0, 0, 10, 10), (95, 10, 10)),  # nothing: an assumed call was settled, for less
    ((90, 10, 0, 10, 9), (130, 10, 0, 14, 13), (140, 14, 13)),
]


@pytest.mark.parametrize(("before", "now", "whole"), LOST)
def test_what_a_shard_paid_in_turns_that_its_journal_has_lost_stays_paid(before, now, whole):
    def report(epoch: int, seen: tuple[int, ...], **more: object) -> ShardReport:
        names = ("known_nusd", "assumed_nusd", "reserved_nusd", "attempts", "paid_calls")
        return msgspec.structs.replace(said(epoch=epoch, **more), ledger=Ledger(**dict(zip(names, seen, strict=True))))

    stage = parent(max_cost_nusd=CAP)
    home(stage, 1, report(1, before))
    stage.turn(events.Rejoined(2), events.ShardsReopened((1,)))
    told(stage, 1, report(2, now))
    known, assumed, reserved, attempts, paid = now
    lent = told(stage, 1, report(2, (known, assumed + reserved, 0, attempts, paid), lacks=(CAP, 0)))
    ledger = stage.k.ledger
    assert (ledger.known_nusd + ledger.assumed_nusd, ledger.attempts, ledger.paid_calls) == whole
    gone = ledger.known_nusd + ledger.assumed_nusd - known - assumed - reserved
    assert lent is not None and lent <= CAP - gone, "what was lost is no part of the cap that can be lent"
    check(stage.k)


def test_what_a_shard_told_before_it_was_on_disk_is_counted_when_it_comes_again():
    """The turn after which it reported could not be written: its replies are delivered again."""
    stage = parent()
    told(stage, 1, said(9))
    told(stage, 1, said(6, reserved=30, epoch=2))
    told(stage, 1, said(9, epoch=2))
    assert (stage.k.ledger.known_nusd, stage.k.ledger.paid_calls) == (9, 9)


def test_what_comes_twice_or_after_a_later_word_is_taken_for_nothing():
    stage = parent(max_cost_nusd=CAP)
    early = said(10)
    lent = told(stage, 1, said(20))
    told(stage, 1, early)
    assert (stage.k.ledger.known_nusd, stage.k.shards[1].money.held_nusd) == (20, lent)


def test_too_many_failed_rows_are_counted_over_all_shards():
    stage = parent(max_failed=2.0)
    for goal in (1, 2):
        told(stage, goal, said(tally=JobCounters(succeeded=1, failed=1, failed_for_good={"refused": 1})))
    assert stage.k.halted.startswith("max_failed: 2 of 4")
    assert {command.goal for command in of(stage.said, commands.SuspendChildJob)} == {1, 2}


def test_a_shard_that_stopped_rests_with_the_job_and_goes_on_with_it():
    stage = parent()
    home(stage, 1, said(5), "blocked", partial=True)
    assert [command.goal for command in of(stage.said, commands.SuspendChildJob)] == [2]
    home(stage, 2, said(4), "cancelled", partial=True)
    assert (stage.k.outcome, stage.k.why) == ("partial", "blocked: it ended so")
    stage.turn(events.Resumed("someone"))
    assert [each.goal for each in of(stage.said, commands.LaunchChildJob)] == [1, 2, 1, 2]
    home(stage, 1, said(6))
    home(stage, 2, said(6))
    assert (stage.k.outcome, stage.k.ledger.known_nusd) == ("complete", 12)


def test_a_cancelled_job_waits_for_its_shards_whose_rows_are_its_own():
    stage = parent()
    out = stage.turn(events.Stopped("someone", "cancel"))
    assert [command.goal for command in of(out, commands.AbandonAttempt)] == [1, 2]
    home(stage, 1, said(5), "cancelled")
    assert not stage.k.outcome
    home(stage, 2, said(5), "cancelled")
    assert (stage.k.outcome, stage.k.ledger.known_nusd) == ("cancelled", 10)


def test_a_channel_that_comes_back_ends_the_shards_of_a_cancelled_job():
    stage = parent()
    stage.turn(events.Stopped("someone", "cancel"))
    out = stage.turn(events.Rejoined(2))
    assert (
        [each.goal for each in of(out, commands.LaunchChildJob)]
        == [each.goal for each in of(out, commands.AbandonAttempt)]
        == [1, 2]
    )


def test_a_shard_that_failed_for_good_fails_the_job_and_says_why():
    stage = parent()
    home(stage, 1, said(5), "faulty")
    home(stage, 2, said(5))
    assert (stage.k.outcome, stage.k.why) == ("failed", "faulty: it ended so")


def test_a_shard_whose_journal_has_lost_its_end_begins_again():
    stage = parent()
    home(stage, 1, said(6))
    out = stage.turn(events.Rejoined(2), events.ShardsReopened((1,)))
    assert [each.goal for each in of(out, commands.LaunchChildJob)] == [2, 1]
    check(stage.k)
    home(stage, 1, said(4, epoch=2))
    home(stage, 2, said(5))
    assert (stage.k.outcome, stage.k.ledger.known_nusd, stage.k.live) == ("complete", 11, 0), "6 paid before, 2 of it lost"


def test_a_complete_job_goes_on_with_such_a_shard():
    stage = parent()
    home(stage, 1, said(6))
    home(stage, 2, said(6))
    out = stage.turn(events.Rejoined(2), events.ShardsReopened((2,)))
    assert (stage.k.outcome, [each.goal for each in of(out, commands.LaunchChildJob)]) == ("", [2])
    home(stage, 2, said(7, epoch=2))
    assert (stage.k.outcome, stage.k.ledger.known_nusd) == ("complete", 13)


def test_a_cancelled_job_does_not():
    stage = parent()
    home(stage, 1, said(6))
    stage.turn(events.Stopped("someone", "cancel"))
    home(stage, 2, said(5), "cancelled")
    stage.turn(events.Rejoined(2), events.ShardsReopened((1,)))
    assert (stage.k.outcome, stage.k.live) == ("cancelled", 0)


def test_the_sink_of_the_whole_knows_how_much_of_each_shard_it_holds():
    stage = parent()
    stage.turn(events.ResultsWritten(5, 80, (3, 2)))
    assert [shard.written for shard in stage.k.shards.values()] == [3, 2]
    assert codec.decode_state(codec.encode_state(stage.k)).shards == stage.k.shards


def test_shards_of_a_job_whose_channel_keeps_dying_rest_and_keep_what_they_were_lent():
    stage = parent(max_cost_nusd=CAP)
    lent = told(stage, 1, said(10))
    out = stage.turn(events.Stopped("the cortex", "condemn", "it died"))
    assert [command.goal for command in of(out, commands.SuspendChildJob)] == [1, 2]
    assert (stage.k.ledger.known_nusd, stage.k.ledger.assumed_nusd, stage.k.ledger.reserved_nusd) == (10, 0, 0)
    stage.turn(events.Resumed("someone"))
    assert stage.k.ledger.committed_nusd == lent
    assert len(of(stage.said, commands.LaunchChildJob)) == 4


def test_no_cap_no_slice():
    stage = parent()
    assert told(stage, 1, said(5, 7)) is None
    assert shards.answer(stage.k, 1) == ((), "")
    assert stage.k.ledger.reserved_nusd == 7


def test_a_shard_begins_with_a_part_of_the_cap_and_what_it_was_lent_is_set_aside():
    stage = parent(max_cost_nusd=CAP)
    lent = told(stage, 1, said())
    assert lent is not None
    assert 0 < lent < CAP
    assert stage.k.ledger.reserved_nusd == lent
    told(stage, 1, said(10, 5, holds=(lent, 0)))
    assert stage.k.ledger.committed_nusd == lent


def test_who_lacks_what_another_holds_gets_it_when_that_is_back():
    stage = parent(max_cost_nusd=CAP)
    held = told(stage, 2, said(lacks=(900, 0)))
    assert held == 900
    assert told(stage, 1, said(lacks=(500, 0))) == 0
    assert shards.stirred(stage.k, 1, (0, 0)) == [2]
    assert told(stage, 2, said(10, holds=(900, 0))) == 10  # it hears that, and gives back
    assert shards.stirred(stage.k, 2, (900, 0)) == []
    told(stage, 2, said(10, holds=(10, 0)))
    assert shards.stirred(stage.k, 2, (900, 0)) == [1]
    assert told(stage, 1, said(lacks=(500, 0))) == 500


def test_where_nothing_can_come_back_the_shard_hears_that():
    stage = parent(1, max_cost_nusd=CAP)
    told(stage, 1, said(600, lacks=(500, 0)))
    assert shards.answer(stage.k, 1)[1] == shards.SPENT


class Toy:
    """A shard that uses what it was lent, dies, and comes back with its journal alone."""

    def __init__(self, goal: int) -> None:
        self.goal, self.epoch = goal, 1
        self.known = self.reserved = 0
        self.upto: int | None = None
        self.asked: ShardReport | None = None

    def report(self, lacks: int) -> ShardReport:
        holds = None if self.upto is None else (max(self.upto, self.known + self.reserved), 0)
        return ShardReport(
            self.epoch, next(_serials), Ledger(known_nusd=self.known, reserved_nusd=self.reserved, attempts=9**9), holds=holds,
            lacks=(lacks, 0),
        )  # fmt: skip


@given(seed=st.integers(0, 10**9), count=st.integers(1, 4), cap=st.integers(1, 3_000))
@settings(max_examples=60)
def test_the_sum_of_what_shards_may_commit_never_passes_the_cap(seed, count, cap):
    """Whatever is lost, comes late, or dies between hearing and using."""
    chance = random.Random(seed)
    stage = parent(count, max_cost_nusd=cap)
    toys = [Toy(number + 1) for number in range(count)]
    for _ in range(80):
        toy = chance.choice(toys)
        what = chance.random()
        if what < 0.1:  # it dies: of its slice nothing is left, and what was sent stays charged
            toy.epoch, toy.upto, toy.asked = toy.epoch + 1, None, None
        elif what < 0.3:
            back = chance.randint(0, toy.reserved)
            toy.reserved -= back
            toy.known += chance.randint(0, back)
        elif what < 0.6 and toy.upto is not None:
            toy.reserved += chance.randint(0, max(0, toy.upto - toy.known - toy.reserved))
        else:
            lent = told(stage, toy.goal, toy.report(chance.choice((0, 0, 50, 700))))
            assert lent is not None
            if chance.random() < 0.8:  # else the answer is lost
                toy.upto = lent
        assert sum(max(each.upto or 0, each.known + each.reserved) for each in toys) <= cap
        assert stage.k.ledger.committed_nusd <= cap
