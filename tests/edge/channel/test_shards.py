"""A job with shards, whole, in one process: every row once, whoever dies; one cap; the file a projection of all."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.common.errors import UserError
from actors.driver.sharding import RoundWindows, ShardRouter
from actors.history.catalog import last_state
from actors.jobs.opening import resuming_batch
from actors.journal.journal import StateFolder
from actors.maintenance.offline_edits import cancel, copy_results, shards_in
from actors.ports.runtime import ChannelNotStarted, PeerGone
from actors.runtime.inline import InlineRuntime
from cortex.programs.batch import Batch
from cortex.programs.shards import Shards
from cortex.state import events
from cortex.values.limits import Limits
from tests.edge.support.in_process_job import PRICE, FunctionModel, ListSink, ListSource, Run, reply, rows

ROWS = 60


def program(count: int = 3, ordered: bool = False) -> Shards:
    return Shards(shards=count, batch=Batch(ordered=ordered))


def whole(folder: Path, model: FunctionModel, sink: ListSink, count: int = ROWS, **more: object) -> Run:
    """A run of the job over all rows."""
    more.setdefault("program", program())
    return Run(folder, model, source=ListSource(rows(count)), sink=sink, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "ordered"), [(1, False), (2, True), (60, True), (61, False)])
async def test_every_row_is_asked_and_written_once(tmp_path, count, ordered):
    run = await whole(tmp_path, FunctionModel(), sink := ListSink(), count, program=program(3, ordered)).to_end()
    names = [f"r{number}" for number in range(count)]
    assert (sink.keys() if ordered else sorted(sink.keys())) == (names if ordered else sorted(names))
    facts = run.facts
    assert (facts["outcome"], facts["rows"], facts["rows_succeeded"]) == ("complete", count, count)
    assert (facts["paid_calls"], facts["results"], facts["results_written"]) == (count, count, count)


async def test_each_shard_has_a_journal_with_its_rows_alone(tmp_path):
    await whole(tmp_path, FunctionModel(), ListSink()).to_end()
    folder = StateFolder(tmp_path)
    assert shards_in(folder, "j") == ["j~1", "j~2", "j~3"]
    assert [last_state(folder, name).tally.succeeded for name in shards_in(folder, "j")] == [20, 20, 20]
    assert last_state(folder, "j").tally.succeeded == ROWS


@pytest.mark.parametrize(("ordered", "after"), [(True, 1), (False, 7), (True, 30), (False, 59)])
async def test_a_run_that_dies_is_resumed_and_every_row_is_there_once(tmp_path, ordered, after):
    model, sink = FunctionModel(pause_s=0.002), ListSink()
    limits, of = Limits(concurrency=8, window_rows=8), program(3, ordered)
    await whole(tmp_path, model, sink, limits=limits, program=of).crash_after(lambda: len(model.complete) >= after)
    run = await whole(tmp_path, model, sink, limits=limits, program=of).to_end()
    names = [f"r{number}" for number in range(ROWS)]
    assert (sink.keys() if ordered else sorted(sink.keys())) == (names if ordered else sorted(names))
    assert (run.facts["rows_succeeded"], run.facts["results_written"]) == (ROWS, ROWS)
    assert len(model.asked) <= ROWS + 8


@pytest.mark.parametrize(("left", "ordered"), [(5, False), (23, True)])
async def test_a_sink_that_lost_rows_is_made_whole_again(tmp_path, left, ordered):
    await whole(tmp_path, FunctionModel(), sink := ListSink(), program=program(3, ordered)).to_end()
    sink.lose(ROWS - left)
    assert copy_results(StateFolder(tmp_path), "j", sink, ROWS, 0, own=True) == ROWS
    assert sorted(set(sink.keys())) == sorted(f"r{number}" for number in range(ROWS))
    assert len(sink.keys()) == ROWS


async def test_the_cap_holds_over_all_shards_and_more_money_goes_on(tmp_path):
    model, sink = FunctionModel(), ListSink()
    cap = Limits(max_cost_nusd=3_000_000, concurrency=8)
    run = await whole(tmp_path, model, sink, limits=cap, price=PRICE).to_end()
    assert (run.facts["outcome"], run.facts["why"]) == ("partial", "over_budget: the next call could pass the cap")
    assert 0 < run.facts["known_nusd"] + run.facts["assumed_nusd"] <= 3_000_000
    assert 0 < run.facts["rows_succeeded"] == len(sink.values) < ROWS
    more = await whole(tmp_path, model, sink, limits=Limits(max_cost_nusd=10**12), price=PRICE).to_end()
    assert (more.facts["outcome"], sorted(sink.keys())) == ("complete", sorted(f"r{number}" for number in range(ROWS)))
    assert len(model.asked) == ROWS


class Holding(FunctionModel):
    """Model that answers a few calls, and the others once each shard of ``run`` has heard that it is to stop: of a
    machine that is slow to tell them, a job would be over before.
    """

    run: Run
    heard = False

    async def _pause(self) -> None:
        number = len(self.asked)
        while number > 8 and not self.heard:
            await asyncio.sleep(0.001)
            with contextlib.suppress(PeerGone, ChannelNotStarted):  # one has not begun yet
                shards = [self.run.runtime.find(f"channel:j~{shard}") for shard in (1, 2, 3)]
                self.heard = self.heard or all(shard._k.stopping for shard in shards)


async def test_too_many_failed_rows_end_the_whole(tmp_path):
    from policies.failures.failure import Failure, FailureKind

    model = Holding(lambda body: Failure(FailureKind.REJECTED, f"bad {len(body)} {body!r}", status=400))
    limits = Limits(max_failed=4.0, concurrency=3)
    model.run = run = whole(tmp_path, model, ListSink(), limits=limits)
    await run.to_end()
    assert run.facts["outcome"] == "partial"
    assert run.facts["why"].startswith("max_failed: ")
    assert 4 <= run.facts["rows_failed"] < ROWS


async def test_cancelled_at_rest_each_row_that_was_read_has_its_line(tmp_path):
    model, sink = FunctionModel(pause_s=0.002), ListSink()
    await whole(tmp_path, model, sink, limits=Limits(concurrency=4, window_rows=8)).crash_after(
        lambda: len(model.complete) > 9
    )
    k = cancel(StateFolder(tmp_path), "j", "someone")
    assert k.outcome == "cancelled"
    lines = ListSink()
    assert copy_results(StateFolder(tmp_path), "j", lines) == k.tally.succeeded + k.tally.failed
    assert len(set(lines.keys())) == len(lines.keys()) >= 9


async def test_drained_it_rests_and_goes_on(tmp_path):
    model, sink = Holding(), ListSink()
    model.run = run = whole(tmp_path, model, sink, limits=Limits(concurrency=4, window_rows=8))
    task = asyncio.create_task(run.to_end())
    while len(model.complete) < 5:  # noqa: ASYNC110 - the very next moment is wanted
        await asyncio.sleep(0.001)
    await run.driver.stop("drain", "someone")
    await task
    assert (run.facts["outcome"], run.facts["why"]) == ("partial", "drain: by someone")
    assert len(sink.values) == run.facts["rows_succeeded"]
    again = await whole(tmp_path, model, sink).to_end()
    assert (again.facts["outcome"], len(set(sink.keys())), len(model.asked)) == ("complete", ROWS, ROWS)


async def test_who_asks_for_all_results_of_a_job_that_is_over_gets_them(tmp_path):
    await whole(tmp_path, FunctionModel(), ListSink()).to_end()
    again = await whole(tmp_path, FunctionModel(lambda body: reply("never")), late := ListSink()).to_end()
    assert (again.facts["outcome"], len(set(late.keys()))) == ("complete", ROWS)


class Lost:
    """State folder of a job whose power is cut as soon as ``at`` rows are answered, later than the disk has kept."""

    def __init__(self, folder: Path, model: FunctionModel, at: int) -> None:
        self._folder, self._model, self._at = folder, model, at
        self._kept: dict[str, bytes] = {}

    async def look(self) -> None:
        """Keep the journals as they are when so many rows are answered."""
        while len(self._model.complete) < self._at:  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0.001)
        for path in (self._folder / "jobs").glob("*.sqlite"):
            copy = sqlite3.connect(":memory:")
            with closing(sqlite3.connect(path)) as db, closing(copy):
                db.backup(copy)
                self._kept[path.name] = copy.serialize()

    def lose(self, *names: str) -> None:
        """Put back the kept journals of these jobs; a journal that was not there is gone."""
        for name in names:
            for path in (self._folder / "jobs").glob(f"{name}.sqlite*"):
                path.unlink()
            if (blob := self._kept.get(f"{name}.sqlite")) is not None:
                (self._folder / "jobs" / f"{name}.sqlite").write_bytes(blob)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("lost", [("j~1",), ("j~2", "j~3"), ("j~1", "j~2", "j~3")])
@pytest.mark.parametrize("at", [1, 25, None])
async def test_a_shard_whose_journal_has_lost_its_end_is_dealt_the_rows_again(tmp_path, monkeypatch, at, lost, ordered):
    """The job's own journal, and perhaps its file, know more than those of its shards. ``at`` None: they are gone."""
    model, sink = FunctionModel(pause_s=0.002), ListSink()
    limits, of = Limits(concurrency=8, window_rows=8), program(3, ordered)
    disk = Lost(tmp_path, model, at or 0)
    look = asyncio.create_task(disk.look()) if at else None
    with monkeypatch.context() as patch:
        patch.setattr(ShardRouter, "_told", nothing)  # as if killed before
        await whole(tmp_path, model, sink, limits=limits, program=of).to_end()
    if look is not None:
        await look
    disk.lose(*lost)
    folder = StateFolder(tmp_path)
    assert last_state(folder, "j").outcome == "", "nobody takes it for complete"
    run = await whole(tmp_path, model, sink, limits=limits, program=of).to_end()
    names = [f"r{number}" for number in range(ROWS)]
    assert (sink.keys() if ordered else sorted(sink.keys())) == (names if ordered else sorted(names))
    assert (run.facts["outcome"], run.facts["rows_succeeded"], run.facts["results_written"]) == ("complete", ROWS, ROWS)
    assert last_state(folder, "j").outcome == "complete"


async def nothing(*_: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize("how", ["gone", "empty", "garbage"])
async def test_a_job_whose_file_is_whole_stays_complete_whatever_becomes_of_its_shards(tmp_path, how):
    model, sink = FunctionModel(), ListSink()
    await whole(tmp_path, model, sink).to_end()
    Lost(tmp_path, model, 0).lose("j~2")
    if how != "gone":
        (tmp_path / "jobs" / "j~2.sqlite").write_bytes(b"" if how == "empty" else b"x" * 8192)
    assert last_state(StateFolder(tmp_path), "j").outcome == "complete"
    again = await whole(tmp_path, model, sink).to_end()
    assert (again.facts["outcome"], len(sink.values), len(model.asked)) == ("complete", ROWS, ROWS)


@pytest.mark.parametrize("copied", [False, True])
async def test_rows_that_the_file_and_a_shard_have_lost_are_named_and_asked_by_the_next_run(tmp_path, copied):
    model, sink, folder = FunctionModel(), ListSink(), StateFolder(tmp_path)
    await whole(tmp_path, model, sink).to_end()
    Lost(tmp_path, model, 0).lose("j~2")
    sink.lose(5)
    with pytest.raises(UserError, match="j~2 have lost their end, as by a power cut"):
        if copied:
            copy_results(folder, "j", sink, ROWS, 0, own=True)
        else:
            await whole(tmp_path, model, sink).to_end()
    assert (last_state(folder, "j").outcome, len(model.asked)) == ("", ROWS), "nothing was paid without a word"
    again = await whole(tmp_path, model, sink).to_end()
    assert (again.facts["outcome"], again.facts["results_written"]) == ("complete", ROWS)
    assert sorted(sink.keys()) == sorted(f"r{number}" for number in range(ROWS))


async def test_a_shard_journal_that_cannot_be_used_is_named_with_the_cause(tmp_path):
    model, sink = FunctionModel(), ListSink()
    await whole(tmp_path, model, sink).to_end()
    Lost(tmp_path, model, 0).lose("j~2")
    (tmp_path / "jobs" / "j~2.sqlite").write_bytes(b"x" * 8192)
    sink.lose(5)
    with pytest.raises(UserError, match=r"j~2: .*j~2.sqlite is no journal, or is damaged"):
        await whole(tmp_path, model, sink).to_end()
    assert len(sink.values) == ROWS - 5, "it stays as it is"


async def test_a_shard_that_has_lost_its_end_is_not_begun_to_read_its_results(tmp_path):
    """It would go on, and pay for rows of a job that is complete."""
    model, sink = FunctionModel(pause_s=0.005), ListSink()
    look = asyncio.create_task((disk := Lost(tmp_path, model, 1)).look())
    await whole(tmp_path, model, sink, limits=Limits(concurrency=6)).to_end()  # no shard ends with its first calls
    await look
    disk.lose("j~1", "j~2", "j~3")
    for path in [*tmp_path.glob("*memory*"), *tmp_path.glob("*repl*")]:
        path.unlink()  # no answer is taken from there
    kept = [turns_in(tmp_path, f"j~{number}") for number in (1, 2, 3)]
    for left in (ROWS, ROWS - 5):
        sink.lose(ROWS - left)
        with contextlib.ExitStack() as stack:
            if left < ROWS:
                stack.enter_context(pytest.raises(UserError, match="j~1, j~2, j~3 have lost their end"))
            await whole(tmp_path, model, sink).to_end()
    assert [turns_in(tmp_path, f"j~{number}") for number in (1, 2, 3)] == kept
    assert len(model.asked) == ROWS


def turns_in(folder: Path, job: str) -> int:
    with closing(StateFolder(folder).journal(job)) as journal:
        return journal.seq


class Counting(ListSink):
    """Sink that counts what is written."""

    written = 0

    def write(self, values: list[object]) -> None:
        self.written += len(values)
        super().write(values)


@pytest.mark.parametrize("noting", [False, True])
async def test_journals_from_before_shards_noted_what_is_written_are_not_taken_for_lost(tmp_path, monkeypatch, noting):
    """The sink goes on where it was: a stream would have all of its rows twice."""
    monkeypatch.setattr("actors.driver.driver.FLUSH_ROWS", 1)
    model, sink = FunctionModel(pause_s=0.005), Counting()
    limits = Limits(concurrency=4, window_rows=8)
    with monkeypatch.context() as patch:
        if not noting:
            patch.setattr("actors.channel.channel.resuming_batch", earlier_batch)
            patch.setattr(ShardRouter, "_note", lambda *_: None)
            patch.setattr(ShardRouter, "_is_noted", lambda *_: True)
        await whole(tmp_path, model, sink, limits=limits).crash_after(
            lambda: len(model.complete) >= 30 and last_state(StateFolder(tmp_path), "j").written_rows > 10
        )
    k = last_state(StateFolder(tmp_path), "j")
    assert k.terms.notes_written == noting
    not_noted = sink.written - k.written_rows
    assert not_noted < sink.written, "what goes on differs from what begins anew"
    await whole(tmp_path, model, sink, limits=limits).to_end()
    assert sorted(sink.keys()) == sorted(f"r{number}" for number in range(ROWS))
    assert sink.written <= ROWS + not_noted


def earlier_batch(*args: Any) -> tuple[list[events.Event], bool]:
    """Return the first events of a channel of a release whose shards do not note what is in the sink."""
    batch, anew = resuming_batch(*args)
    replace = msgspec.structs.replace
    opened = [each for each in batch if isinstance(each, events.Opened)]
    rest = [each for each in batch if each not in opened]
    return [*(replace(each, terms=replace(each.terms, notes_written=False)) for each in opened), *rest], anew


async def test_a_shard_that_has_ended_begins_without_its_parent(tmp_path):
    """Its results can be read. One that has not ended waits for its parent, and its journal stays as it is."""
    model = FunctionModel(pause_s=0.002)
    await whole(tmp_path, model, ListSink()).to_end()
    runtime = InlineRuntime()
    try:
        peer = await runtime.start_actor("channel", "channel:j~2", "j~2", str(tmp_path))
        await peer.ask("start", b"")
        assert len(msgspec.msgpack.decode(await peer.ask("results", 0, 1.0))) == ROWS // 3
    finally:
        await runtime.close()


async def test_one_that_has_not_ended_waits_for_its_parent_and_takes_no_epoch(tmp_path):
    model = FunctionModel(pause_s=0.002)
    limits = Limits(concurrency=4, window_rows=8)
    await whole(tmp_path, model, ListSink(), limits=limits).crash_after(lambda: len(model.complete) > 9)
    with closing(StateFolder(tmp_path).journal("j~2")) as source:
        before = source.newest_epoch()
    runtime = InlineRuntime()
    try:
        peer = await runtime.start_actor("channel", "channel:j~2", "j~2", str(tmp_path))
        with pytest.raises(PeerGone):
            await peer.ask("start", b"")
    finally:
        await runtime.close()
    with closing(StateFolder(tmp_path).journal("j~2")) as source:
        assert source.newest_epoch() == before


async def test_the_shards_journals_are_looked_at_off_the_event_loop(tmp_path, monkeypatch):
    """There may be 256, on a slow disk, and other jobs have channels in this process."""
    seen: list[bool] = []

    def looked(*args: object) -> tuple[int, ...]:
        seen.append(threading.current_thread() is threading.main_thread())
        return ()

    monkeypatch.setattr("actors.channel.shard_protocol.gone_back", looked)
    model = FunctionModel(pause_s=0.002)
    limits = Limits(concurrency=4, window_rows=8)
    await whole(tmp_path, model, ListSink(), limits=limits).crash_after(lambda: len(model.complete) > 9)
    await whole(tmp_path, model, ListSink(), limits=limits).to_end()
    assert seen == [False]


class Uneven(FunctionModel):
    """Model that takes another time for each row."""

    @property
    def _pause_s(self) -> float:
        return self._chance.uniform(0.0, 0.03)

    @_pause_s.setter
    def _pause_s(self, pause_s: float) -> None:
        self._chance = random.Random(1)


async def test_results_that_come_in_other_places_after_a_loss_are_written_anew(tmp_path, monkeypatch):
    """The file holds results that the shards' journals have lost: what is counted as written may be other rows."""
    monkeypatch.setattr("actors.driver.driver.FLUSH_ROWS", 1)
    model, sink = Uneven(), ListSink()
    limits = Limits(concurrency=24, window_rows=40)
    look = asyncio.create_task((disk := Lost(tmp_path, model, 4)).look())
    await whole(tmp_path, model, sink, limits=limits).crash_after(
        lambda: len(model.complete) >= 45 and look.done() and len(sink.values) > 20
    )
    assert len(sink.values) > 20
    disk.lose("j~1", "j~2", "j~3")
    run = await whole(tmp_path, model, sink, limits=limits).to_end()
    assert sorted(sink.keys()) == sorted(f"r{number}" for number in range(ROWS))
    assert (run.facts["rows_succeeded"], run.facts["results_written"]) == (ROWS, ROWS)


async def test_a_complete_job_is_refused_while_a_shard_has_not_ended(tmp_path):
    """Where nothing else saw it: no job ends well without rows that were read."""
    model, sink = FunctionModel(), ListSink()
    await whole(tmp_path, model, sink).to_end()
    Lost(tmp_path, model, 0).lose("j~2")
    sink.lose(ROWS)
    with pytest.raises(UserError, match=r"rows are missing: the journals of j~2 .* cortex resume j"):
        await whole(tmp_path, model, sink).to_end()


async def test_results_that_a_shard_of_a_job_without_text_has_lost_are_refused(tmp_path, monkeypatch):
    """Before any is asked again."""
    monkeypatch.setattr("actors.driver.driver.FLUSH_ROWS", 1)
    # the last rows are never answered: the job cannot be over before the sink has so many
    model = FunctionModel(lambda body: reply("ok") if len(model.complete) < 50 else None, pause_s=0.005)
    sink = ListSink()
    disk = Lost(tmp_path, model, 1)
    look = asyncio.create_task(disk.look())
    run = whole(tmp_path, model, sink, keeps_text=False, limits=Limits(concurrency=3, window_rows=8))
    await run.crash_after(lambda: len(model.complete) >= 40 and look.done() and len(sink.values) > 20)
    asked, has = len(model.asked), len(sink.values)
    assert has > 20
    disk.lose("j~1")
    with pytest.raises(UserError, match="the journals of j~1 have lost results that are in the results file"):
        await whole(tmp_path, model, sink, keeps_text=False).to_end()
    assert (len(model.asked), len(sink.values)) == (asked, has)


def test_windows_hold_whole_rounds_however_the_source_gives_them():
    class Miser:
        """Gives at most two rows at a time, as a source of long rows would."""

        def __init__(self) -> None:
            self.rows, self.at = rows(11), 0

        def read(self, rows_max: int) -> object:
            some = self.rows[self.at : self.at + min(2, rows_max)]
            self.at += len(some)
            return msgspec.defstruct("W", ["rows", "position", "ended"])(tuple(some), self.at, self.at >= 11)

    rounds = RoundWindows(Miser(), 3)
    sizes = []
    while not rounds.ended:
        sizes.append(len(rounds.read(1)))
    assert sizes == [3, 3, 3, 2]


async def test_an_interrupted_journal_of_a_shard_is_read_by_whoever_looks(tmp_path):
    model = FunctionModel(pause_s=0.002)
    await whole(tmp_path, model, ListSink(), limits=Limits(concurrency=4, window_rows=8)).crash_after(
        lambda: len(model.complete) > 20
    )
    folder, found = StateFolder(tmp_path), ListSink()
    with closing(folder.journal("j")) as source:
        assert source.seq > 1
    assert copy_results(folder, "j", found) >= 10
