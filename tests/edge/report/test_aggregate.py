"""What a report reads of a journal: its figures are those of the job, to the last token, and bounded."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.history.annotated_turns import JournalReader, readings
from actors.history.call_log import calls_of
from actors.jobs.summary import summary
from actors.report.aggregate import fold
from actors.report.figures import BINS_MAX, SEGMENTS_MAX, ReportFigures
from actors.report.goal_details import stories
from actors.report.goal_tree import CHILDREN_MAX, tree
from actors.report.sentences import cautions
from actors.report.sketches import BinnedSeries, LargestValues, QuantileSketch, TimeAxis
from cortex.state import events
from cortex.state.changes import Ask, Resolve, Wait
from cortex.state.program import Program
from cortex.state.state import Goal
from cortex.values.limits import Limits, Route
from cortex.values.prompt import Part, Prompt, Role
from cortex.values.reply import UNKNOWN_USAGE, Usage
from policies.decisions.join import Join
from policies.estimates.price import Price
from tests.support.journal_builder import BEGUN_S, Book, row
from tests.support.journal_surgery import with_turn

CHEAP = Price(input_usd_per_mtok=1, output_usd_per_mtok=2)  # type: ignore[arg-type]


def folded(folder: Any, job: str = "job", **more: Any) -> tuple[ReportFigures, list[JournalReader]]:
    """The figures of a job, and what they were read of."""
    found = readings(folder, job)
    return fold(found, **more), found


def agrees(figures: ReportFigures, told: dict[str, Any]) -> None:
    """Every figure that a report sums up by itself is the one that the job has."""
    assert (figures.calls, figures.attempts) == (told["calls"], told["attempts"])
    assert {kind: each.count for kind, each in figures.failures.items()} == told["failures"]
    assert {kind: sum(series.values) for kind, series in figures.failed.items()} == told["failures"]
    for by in (figures.routes, figures.kinds, figures.jobs):
        sums = by.values()
        assert sum(each.known_nusd for each in sums) == told["known_nusd"]
        assert sum(each.assumed_nusd for each in sums) == told["assumed_nusd"]
        assert sum(each.input_tokens for each in sums) == told["input_tokens"]
        assert sum(each.output_tokens for each in sums) == told["output_tokens"]
        assert sum(each.reused for each in sums) == told["reused_calls"]
        assert sum(each.answered for each in sums) == told["paid_calls"]
        assert sum(each.attempts for each in sums) == told["attempts"]
    assert round(sum(figures.spent.values)) == told["known_nusd"]


def story_of_all_kinds(folder: Path, **more: Any) -> Book:
    """A journal in which most of what can become of an attempt does."""
    fallback = Route(endpoint="https://other.test", model="spare", price=CHEAP)
    book = Book(folder, fallbacks=(fallback,), limits=Limits(concurrency=20), **more)
    book.turn(events.PermitsGranted(20), events.RowsRead(tuple(row(f"r{i}") for i in range(8)), 0, 800, True))
    book.turn(book.answered(1, usage=Usage(10, 2, 30, 40)), book.broke(2), book.broke(3, kind="timed_out", status=0))
    book.turn(events.PermitsGranted(0, again_s=5.0, why="9 of 10 failed"), events.PermitsGranted(20, 1), after_s=0.1)
    book.turn(book.broke(4, kind="rejected", said="<b>bad</b> row", status=400), after_s=0.9)
    book.turn(events.Ticked(), after_s=30.0)
    book.turn(book.answered(2, 2, usage=Usage(100, 7), model="spare"), book.answered(5, by="branch:1"))
    book.turn(events.PermitsGranted(2, starts=2, why="probing"))
    book.turn(events.PermitsGranted(20), events.Rejoined(2, ((7, 1),)))
    book.turn(events.PermitsGranted(20), book.answered(6, 1), after_s=2.0)  # given up for lost, and answered after all
    book.turn(
        book.answered(7), book.answered(7), events.ReplyRecalled(8, "r7", book.asked[8, 2].hash, book.answered(7).reply)
    )
    return book


def test_figures_are_those_of_the_job(tmp_path: Path) -> None:
    book = story_of_all_kinds(tmp_path)
    facts = summary(book.k)
    assert facts["failures"] == {"lost": 3, "overloaded": 1, "rejected": 1, "timed_out": 1}
    assert facts["assumed_nusd"] > 0 and facts["reused_calls"] == 1
    figures, (reading,) = folded(book.folder)
    agrees(figures, facts)
    assert reading.same and reading.k is not None and summary(reading.k) == facts
    assert {name: each.answered for name, each in figures.routes.items()} == {
        "m at provider.test": 4, "spare at other.test": 1
    }  # fmt: skip
    assert figures.routes["spare at other.test"].known_nusd == 100 * 1_000 + 7 * 2_000
    assert [(each.state, round(each.from_s - BEGUN_S, 3), each.to_s - BEGUN_S, each.why) for each in figures.periods] == [
        ("open", 2.1, 35.0, "9 of 10 failed"), ("half open", 35.0, 36.0, "probing")
    ]  # fmt: skip
    assert [(each.name, each.failure) for each in figures.failed_goals] == [
        ("r3", "rejected")
    ] and figures.goals_failed == 1
    assert sum(book.k.tally.failed_for_good.values()) == 1
    assert figures.permits_most == 22 and set(figures.branches) == {"branch:0", "branch:1", "branch not known"}


def test_replies_of_unknown_usage_are_assumed_in_the_figures_too(tmp_path: Path) -> None:
    book = Book(tmp_path, limits=Limits(concurrency=20))
    book.turn(events.PermitsGranted(20), events.RowsRead(tuple(row(f"r{i}") for i in range(3)), 0, 300, True))
    book.turn(book.answered(1, usage=UNKNOWN_USAGE), book.answered(2))
    book.turn(events.Rejoined(2), after_s=2.0)
    book.turn(events.PermitsGranted(20), book.answered(3, 1, usage=UNKNOWN_USAGE), after_s=2.0)  # late
    facts = summary(book.k)
    assert (facts["paid_calls"], facts["uncounted"]) == (3, 2) and facts["assumed_nusd"] > facts["known_nusd"] > 0
    figures, _ = folded(book.folder)
    agrees(figures, facts)
    calls = {call.goal: call for call in calls_of(book.folder, "job")}
    assert [(calls[goal].input_tokens, calls[goal].cost_usd) for goal in (1, 3)] == [(None, None)] * 2
    assert calls[2].input_tokens == 10 and calls[2].cost_usd is not None and calls[2].cost_usd > 0


def test_the_provider_does_not_ask_to_wait_while_nobody_runs_the_job(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.turn(events.PermitsGranted(2), events.RowsRead((row("a"),), 0, 100, True))
    book.turn(events.PermitsGranted(2, starts=0, why="the provider asks to wait"), after_s=1.0)
    book.turn(book.broke(1), after_s=3.0)
    book.turn(events.Rejoined(2), after_s=500.0)  # it was killed, and somebody came back
    book.turn(events.PermitsGranted(2), after_s=1.0)
    figures, _ = folded(book.folder)
    assert [(period.state, period.to_s - period.from_s) for period in figures.periods] == [("held", 3.0)]
    assert "another run went on with the job, 500.0 s after its last turn" in [text for _, text in figures.happenings]


def test_what_was_under_way_at_the_end_stays_charged(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.turn(events.PermitsGranted(2), events.RowsRead((row("a"), row("b")), 0, 10, True))
    book.turn(events.Stopped("ann", "condemn", "it died"))
    facts = summary(book.k)
    assert facts["outcome"] == "partial" and facts["assumed_nusd"] > 0
    figures, _ = folded(book.folder)
    assert sum(each.assumed_nusd for each in figures.routes.values()) == facts["assumed_nusd"] == figures.left_nusd
    assert figures.happenings[-1][1] == "condemn by ann: it died"


@pytest.mark.parametrize("seed", range(6))
def test_figures_are_those_of_the_job_whatever_happens(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    book = Book(tmp_path, limits=Limits(concurrency=30))
    book.turn(events.PermitsGranted(30), events.RowsRead(tuple(row(f"r{i}") for i in range(60)), 0, 600, True))
    for _ in range(150):
        flights = [*book.k.flights.values()]
        some: list[Any] = []
        for flight in draw.sample(flights, min(len(flights), draw.randrange(8))):
            if draw.random() < 0.6:
                some.append(
                    book.answered(flight.goal, flight.attempt, draw.random(), usage=Usage(draw.randrange(9), 3))
                )
            else:
                kind, status = draw.choice(
                    [("overloaded", 529), ("transient", 0), ("throttled", 429), ("rejected", 400)]
                )
                some.append(book.broke(flight.goal, flight.attempt, kind, f"no {draw.randrange(5)}", status=status))
        if draw.random() < 0.1:
            some += some[:1]
        if draw.random() < 0.02:
            some = [events.Rejoined(book.k.epoch + 1, ()), events.PermitsGranted(30)]
        book.turn(*some, after_s=draw.random() * 5)
    assert not book.k.flights
    figures, _ = folded(book.folder)
    agrees(figures, summary(book.k))


def test_a_program_that_is_gone_leaves_what_the_events_tell(tmp_path: Path) -> None:
    book = story_of_all_kinds(tmp_path, fingerprint="another")
    book.close()
    _rewritten(book, "nowhere.at:all")
    figures, (reading,) = folded(book.folder)
    assert reading.changed and reading.k is None
    facts = summary(book.k)
    assert sum(each.answered for each in figures.routes.values()) == 6  # the one that came twice is not known to have
    assert {name: each.known_nusd for name, each in figures.routes.items()}["spare at other.test"] == 100_000 + 14_000
    counts = {kind: each.count for kind, each in figures.failures.items()}
    assert counts | {"lost": 3} == facts["failures"]  # what went down with its branch is no event
    assert reading.account is not None and reading.account.ledger == book.k.ledger
    assert figures.permits_most == 22


def _rewritten(book: Book, program: str) -> None:
    """The same journal, of a job whose program stood elsewhere."""
    from cortex.journal import codec

    source = book.folder.journal("job")
    _, turn = next(source.turns())
    (opened,) = turn.batches[0]
    assert isinstance(opened, events.Opened)
    terms = msgspec.structs.replace(opened.terms, program=program)
    blob = codec.encode_turn(turn.at_s, [codec.encode_batch([msgspec.structs.replace(opened, terms=terms)])])
    with_turn(source, 1, blob)
    source.close()


def test_a_program_that_reads_otherwise_but_asks_the_same_is_replayed(tmp_path: Path) -> None:
    book = story_of_all_kinds(tmp_path, fingerprint="of another release")
    figures, (reading,) = folded(book.folder)
    assert (reading.same, reading.changed) == (False, False)
    agrees(figures, summary(book.k))


class Otherwise(Program, frozen=True):
    """Asks something else than it did."""

    words: str = "one"

    def select(self, k: Any) -> Any:
        for goal in k.open("row"):
            yield Ask(goal, Prompt("plain", (Part(Role.GOAL, f"{_WORDS[0]} {goal.value}"),)))

    def absorb(self, k: Any, goal: Goal, reply: Any) -> Any:
        yield Resolve(goal, reply.text)


_WORDS = ["what is"]


def test_a_program_that_asks_otherwise_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(tmp_path, program=Otherwise(), fingerprint="another")
    book.turn(events.PermitsGranted(2), events.RowsRead((events.Row("0", b'"a"'),), 0, 10, True))
    book.turn(book.answered(1))
    assert not readings(book.folder, "job")[0].changed
    monkeypatch.setattr("tests.edge.report.test_aggregate._WORDS", ["tell me of"])
    assert readings(book.folder, "job")[0].changed


def test_a_job_that_began_anew_is_told_from_there(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.turn(events.PermitsGranted(9), events.RowsRead((row("a"), row("b")), 0, 10, True))
    book.turn(book.answered(1), book.broke(2))
    before = book.k.ledger.known_nusd
    book.anew()
    book.turn(events.PermitsGranted(9), events.RowsRead((row("a"), row("b")), 0, 10, True))
    goals = [*book.k.goals]
    book.turn(book.answered(goals[0], usage=Usage(1, 1)), book.answered(goals[1], usage=Usage(1, 1)))
    figures, (reading,) = folded(book.folder)
    facts = summary(book.k)
    assert facts["known_nusd"] == before + 36_000 and facts["attempts"] == 4
    assert (figures.attempts, sum(each.known_nusd for each in figures.jobs.values())) == (2, 36_000)
    assert any("the job began anew" in line for line in cautions(reading, figures, before))


def test_a_journal_is_not_touched(tmp_path: Path) -> None:
    book = story_of_all_kinds(tmp_path)
    before = (book._journal.seq, [blob for _, blob in book._journal.blobs(99)], book._journal.meta("epoch"))
    folded(book.folder)
    assert before == (book._journal.seq, [blob for _, blob in book._journal.blobs(99)], book._journal.meta("epoch"))
    book.turn(events.Ticked())  # its writer is fenced by nobody


def test_turns_that_come_while_it_reads_wait_for_the_next_report(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.turn(events.PermitsGranted(9), events.RowsRead(tuple(row(f"r{i}") for i in range(3)), 0, 10, True))
    book.turn(book.answered(1))
    (reading,) = readings(book.folder, "job")
    book.turn(book.answered(2))
    assert sum(fold([reading]).answered.values) == 1
    assert len(next(iter(stories(reading, {("job", 2)}, True).values())).lines) == 1


def test_stories_tell_each_attempt_and_wait(tmp_path: Path) -> None:
    book = story_of_all_kinds(tmp_path)
    (reading,) = readings(book.folder, "job")
    facts = stories(reading, {("job", 2), ("job", 4), ("job", 8), ("other", 2)}, True)
    assert set(facts) == {("job", 2), ("job", 4), ("job", 8)}
    assert [(kind, message.partition(":")[0]) for _, kind, message, _ in facts["job", 2].lines] == [
        ("asked", "attempt 1 asked"), ("failed", "attempt 1 failed at branch"),
        ("asked", "attempt 2 asked of spare at other.test"), ("answered", "attempt 2 answered at branch"),
    ]  # fmt: skip
    assert facts["job", 2].prompt == "what?" and facts["job", 2].lines[-1][3] == "ok"
    assert facts["job", 4].lines[-1][3] == "<b>bad</b> row"
    assert facts["job", 8].lines[-1][2].startswith("answered from memory")
    silent = stories(reading, {("job", 2)}, False)["job", 2]
    assert silent.prompt == "" and all(not text or kind == "failed" for _, kind, _, text in silent.lines)


class Nested(Program, frozen=True):
    """A goal with many below it."""

    def begin(self, k: Any) -> Any:
        yield Goal("top", "the whole")

    def select(self, k: Any) -> Any:
        for goal in k.open("part"):
            yield Ask(goal, Prompt("plain", (Part(Role.GOAL, f"part {goal.id}"),)))
        for goal in k.open("top"):
            if goal.joined:
                yield Resolve(goal, "done")
            elif not goal.children:
                for _ in range(60):
                    yield Goal("part", "a part", parent=goal.id)
                yield Wait(goal, Join("all"))

    def absorb(self, k: Any, goal: Goal, reply: Any) -> Any:
        yield Resolve(goal, reply.text)


def test_the_goal_tree_shows_the_largest_and_sums_the_rest(tmp_path: Path) -> None:
    book = Book(tmp_path, program=Nested(), limits=Limits(concurrency=100))
    book.turn(events.PermitsGranted(100), events.RowsRead((), 0, 0, True))
    for goal in range(2, 62):
        if (goal, 1) in book.asked:
            book.turn(book.answered(goal, usage=Usage(goal, 1)), after_s=0.1)
    figures, found = folded(book.folder)
    root, top, *parts = tree(found, figures)
    assert (root.kind, root.goals, root.children) == ("job", 61, [1])
    assert (top.kind, top.goals, top.attempts, top.known_nusd) == ("top", 61, 60, book.k.ledger.known_nusd)
    assert len(parts) <= 3 * CHILDREN_MAX and top.more == 60 - len(parts)
    assert top.more_nusd == top.known_nusd - sum(part.known_nusd for part in parts)
    assert max(part.known_nusd for part in parts) == (61 * 3 + 15) * 1_000
    assert len(tree(found, figures, nodes_max=5)) == 5


def test_memory_does_not_grow_with_the_job(tmp_path: Path) -> None:
    book = Book(tmp_path, limits=Limits(concurrency=2_000, window_rows=4_000))
    book.turn(events.PermitsGranted(2_000), events.RowsRead(tuple(row(f"r{i}") for i in range(2_000)), 0, 10, True))
    for start in range(1, 2_001, 100):
        book.turn(*(book.answered(goal, by=f"branch:{goal % 90}") for goal in range(start, start + 100)))
    figures, _ = folded(book.folder)
    assert figures.segments is None and SEGMENTS_MAX < 2_000
    assert len(figures.branches) == 41 and sum(each.answered for each in figures.branches.values()) == 2_000
    assert not figures.own and len(figures.slowest.largest()) == 25 and len(figures.answered.values) <= BINS_MAX


# -- sketches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_within_one_percent(seed: int) -> None:
    draw = random.Random(seed)
    values = sorted(draw.lognormvariate(0, 1.5) for _ in range(5_000))
    digest = QuantileSketch()
    for value in values:
        digest.add(value)
    for share in (0.01, 0.5, 0.95, 0.999, 1.0):
        exact = values[max(0, -(-int(share * 1_000_000) * len(values) // 1_000_000) - 1)]
        assert digest.quantile(share) == pytest.approx(exact, rel=0.011)
    assert digest.total / digest.count == pytest.approx(statistics.fmean(values))
    for whole in (False, True):
        bars = digest.bars(whole)
        assert sum(count for *_, count in bars) == len(values)
        assert all(before[1] == after[0] and before[0] < before[1] for before, after in pairwise(bars))


@pytest.mark.parametrize("value", [1, 2, 3, 6, 9, 10, 57, 99])
def test_small_whole_numbers_stand_in_their_own_bar(value: int) -> None:
    digest = QuantileSketch()
    for each in range(1, value + 1):
        for _ in range(each):
            digest.add(each)
    assert sum(count for low, high, count in digest.bars(True) if low <= value < high) >= value
    assert sum(count for *_, count in digest.bars(True)) == value * (value + 1) // 2
    if value <= 5:
        assert [(int(low), count) for low, _, count in digest.bars(True)] == [(n, n) for n in range(1, value + 1)]


def test_an_empty_digest_and_one_of_zeros() -> None:
    digest = QuantileSketch()
    assert (digest.quantile(0.5), digest.bars(False)) == (0.0, [])
    digest.add(0)
    digest.add(-1)
    assert digest.quantile(0.5) == 0.0 and digest.bars(True) == [(0.0, 1.0, 2)]


def test_a_level_is_spread_over_the_bins_that_it_held_in() -> None:
    series = BinnedSeries(TimeAxis(100.0, 110.0, 10))
    series.hold(101.5, 104.25, 2.0)
    series.hold(104.5, 104.75)
    series.hold(109.0, 111.0, 3.0)
    assert series.means() == [0, 1.0, 2.0, 2.0, 0.75, 0, 0, 0, 0, 6.0]
    series.add(99.0)
    assert series.values[0] == 1.0


def test_the_largest_of_equals_are_the_first() -> None:
    top = LargestValues(3)
    for name, weight in zip("abcdef", (1, 5, 2, 5, 5, 5), strict=True):
        top.offer(weight, name)
    assert top.largest() == ["b", "d", "e"]
    assert not top.takes(5) and top.takes(6)
