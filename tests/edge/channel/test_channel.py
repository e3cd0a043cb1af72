"""The promise, in one process: an absorbed reply is never lost and never absorbed twice, whatever dies when."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.channel.channel import Channel
from actors.common.process_owner import this_owner
from actors.driver.control_note import ControlRequest
from actors.history.catalog import last_state
from actors.journal.journal import JobEnded, Journal, StateFolder, StoreError
from actors.messaging.servers_changed import ServersChanged
from actors.ports.runtime import PeerUnavailable
from actors.routing.model_factory import encode
from cortex.journal import codec
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.values.limits import Limits
from cortex.values.reply import Usage
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy
from tests.edge.support.in_process_job import (
    PRICE,
    FunctionModel,
    ListSink,
    ListSource,
    MeetingModel,
    Run,
    armed,
    body,
    reply,
    rows,
)
from tests.support.patience import PATIENCE_S

QUICK = Limits(retry=RetryPolicy(base_s=0.001, throttled_base_s=0.001, cap_s=0.01))


async def test_every_row_has_one_line_and_was_asked_once(tmp_path: Path) -> None:
    model = FunctionModel()
    run = await Run(tmp_path, model, source=ListSource(rows(300))).to_end()
    assert Counter(run.sink.keys()) == Counter(f"r{i}" for i in range(300))
    assert len(model.asked) == 300
    assert run.facts["outcome"] == "complete"
    assert run.facts["rows_succeeded"] == 300


@pytest.mark.parametrize("seed", range(12))
async def test_a_killed_run_resumes_and_repays_at_most_what_was_in_flight(tmp_path: Path, seed: int) -> None:
    """Killed five times at random moments; some results were not yet on disk at the sink either."""
    chance = random.Random(seed)
    limits = Limits(concurrency=16, window_rows=64, snapshot_events=50)
    model = FunctionModel(pause_s=0.001)
    sink = ListSink()
    for _ in range(5):
        enough = len(model.complete) + chance.randrange(1, 90)
        run = Run(tmp_path, model, source=ListSource(rows(400)), sink=sink, limits=limits)
        await run.crash_after(lambda enough=enough: len(model.complete) >= enough)  # type: ignore[misc]
        sink.lose(chance.randrange(0, 1 + min(5, len(sink.values))))
    run = await Run(tmp_path, model, source=ListSource(rows(400)), sink=sink, limits=limits).to_end()
    assert Counter(run.sink.keys()) == Counter(f"r{i}" for i in range(400))
    again = sum(count - 1 for count in Counter(model.complete).values())
    assert again <= 5 * 16
    assert run.facts["rows_succeeded"] == 400


async def test_input_order_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    """The first row is answered last."""
    waited = []

    def slow_first(asked: bytes) -> object:
        if b"row 0" in asked and len(waited) < 3:
            waited.append(1)
            return Failure(FailureKind.TRANSIENT, "again", 500)
        return reply("ok")

    run = await Run(
        tmp_path,
        FunctionModel(slow_first),
        program=Batch(ordered=True),
        source=ListSource(rows(50)),
        limits=QUICK,  # type: ignore[arg-type]
    ).to_end()
    assert run.sink.keys() == [f"r{i}" for i in range(50)]
    assert len(waited) == 3


async def test_the_same_job_again_pays_nothing_and_shows_all(tmp_path: Path) -> None:
    model = FunctionModel()
    await Run(tmp_path, model, source=ListSource(rows(20))).to_end()
    again = await Run(tmp_path, model, source=ListSource(rows(20)), sink=ListSink()).to_end()
    assert len(model.asked) == 20
    assert again.facts["outcome"] == "complete"


async def test_another_job_with_the_same_questions_pays_nothing(tmp_path: Path) -> None:
    model = FunctionModel()
    await Run(tmp_path, model, source=ListSource(rows(20)), job="a").to_end()
    other = await Run(tmp_path, model, source=ListSource(rows(25)), job="b").to_end()
    assert len(model.asked) == 25
    assert (other.facts["reused_calls"], other.facts["paid_calls"]) == (20, 5)
    assert Counter(other.sink.keys()) == Counter(f"r{i}" for i in range(25))


async def test_a_rehearsal_is_never_taken_for_the_provider(tmp_path: Path) -> None:
    await Run(tmp_path, FunctionModel(endpoint="sim:1"), source=ListSource(rows(5)), job="a").to_end()
    real = FunctionModel(endpoint="https://provider")
    await Run(tmp_path, real, source=ListSource(rows(5)), job="b").to_end()
    assert len(real.asked) == 5


async def test_fresh_asks_anew(tmp_path: Path) -> None:
    model = FunctionModel()
    await Run(tmp_path, model, source=ListSource(rows(5))).to_end()
    run = await Run(tmp_path, model, source=ListSource(rows(5)), fresh=True).to_end()
    assert len(model.asked) == 10
    assert run.facts["reused_calls"] == 0


async def test_a_changed_program_begins_anew_from_the_remembered_replies(tmp_path: Path) -> None:
    """Its spending stays on the bill of the job; its replies are not paid for again."""
    model = FunctionModel(lambda _: reply("ok", Usage(1_000, 0)))
    limits = Limits(max_cost_nusd=10**9)
    first = await Run(tmp_path, model, source=ListSource(rows(10)), limits=limits, price=PRICE).to_end()
    changed = await Run(
        tmp_path, model, program=Batch(ordered=True), source=ListSource(rows(10)), limits=limits, price=PRICE
    ).to_end()
    assert len(model.asked) == 10
    assert changed.facts["reused_calls"] == 10
    assert changed.facts["cost_usd"] == first.facts["cost_usd"] == pytest.approx(0.03)
    assert changed.sink.keys() == [f"r{i}" for i in range(10)]


async def test_the_index_of_replies_can_be_lost(tmp_path: Path) -> None:
    model = FunctionModel()
    await Run(tmp_path, model, source=ListSource(rows(10))).to_end()
    for path in tmp_path.glob("replies.sqlite*"):
        path.unlink()
    await Run(tmp_path, model, program=Batch(ordered=True), source=ListSource(rows(10))).to_end()
    assert len(model.asked) == 10


async def test_a_cap_is_never_passed_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    """Each call costs 0.003 USD and may cost a little more."""
    model = FunctionModel(lambda _: reply("ok", Usage(1_000, 0)))
    source = [msgspec.structs.replace(row, body=body("x" * 1_000 + row.key)) for row in rows(40)]
    low = Limits(max_cost_nusd=60_000_000, concurrency=4)
    first = await Run(tmp_path, model, source=ListSource(source), limits=low, price=PRICE).to_end()
    assert first.facts["outcome"] == "partial"
    assert "cap" in first.facts["why"]
    assert 0.05 < first.facts["cost_usd"] + first.facts["cost_assumed_usd"] <= 0.06
    high = Limits(max_cost_nusd=10**9, concurrency=4)
    second = await Run(tmp_path, model, source=ListSource(source), sink=first.sink, limits=high, price=PRICE).to_end()
    assert second.facts["outcome"] == "complete"
    assert Counter(second.sink.keys()) == Counter(f"r{i}" for i in range(40))
    assert len(model.asked) == 40


async def test_a_fault_of_our_own_in_a_turn_is_told_and_waited_for_by_nobody(tmp_path: Path) -> None:
    run = Run(tmp_path, FunctionModel(), source=ListSource(rows(20)), limits=Limits(concurrency=8, window_rows=64))
    settle, turns = Channel._settle, iter(range(1_000))

    def faulty(self: Channel, *args: Any) -> None:
        settle(self, *args)
        if next(turns) == 3:
            raise KeyError("of our own")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "_settle", faulty)
        with pytest.raises(StoreError, match="a turn could not be taken: KeyError: 'of our own'"):
            await asyncio.wait_for(run.to_end(), PATIENCE_S)
    done = await Run(tmp_path, FunctionModel(), source=ListSource(rows(20)), sink=run.sink).to_end()
    assert Counter(done.sink.keys()) == Counter(f"r{i}" for i in range(20))


@pytest.mark.parametrize(
    ("how", "heard"), [("makes way for another run", PeerUnavailable), ("can write no more", StoreError)]
)
async def test_nobody_waits_for_a_channel_that_takes_no_turn_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, heard: type[Exception]
) -> None:
    """What was told to it, and is not on disk, is told again: to whoever takes its place."""
    monkeypatch.setattr("actors.messaging.inbox.TURN_EVENTS_MAX", 1)
    model = FunctionModel(lambda body: None)
    run = Run(tmp_path, model, source=ListSource(rows(4)))
    driving = asyncio.create_task(run.driver.run())
    async with asyncio.timeout(PATIENCE_S):
        while not model.asked:  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0.001)
        channel: Channel = run.runtime.find("channel:j")
        if heard is StoreError:
            monkeypatch.setattr(Channel, "_turn", lambda *_: (_ for _ in ()).throw(StoreError("the disk is full")))
        waiting = [asyncio.create_task(channel.written(0, 0)) for _ in range(3)]
        await asyncio.sleep(0)
        if heard is PeerUnavailable:
            await channel.close()
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in found] == [heard] * 3, how
    assert channel.over and not channel.busy, "or its process would live for ever, with nothing to do"
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    await run.runtime.close()


async def test_no_order_waits_for_a_channel_that_is_closed_meanwhile(tmp_path: Path) -> None:
    """Orders are taken one after the other: each of these comes to its turn only once the channel is closed."""
    model = FunctionModel(lambda body: None)
    run = Run(tmp_path, model, source=ListSource(rows(4)))
    driving = asyncio.create_task(run.driver.run())
    async with asyncio.timeout(PATIENCE_S):
        while not model.asked:  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0.001)
        channel: Channel = run.runtime.find("channel:j")
        servers = msgspec.msgpack.encode(ServersChanged((), (), ""))

        def orders() -> list[Coroutine[Any, Any, None]]:
            return [
                channel.stop("drain", "test"), channel.set_limits("test", b'{"concurrency": 3}'),
                channel.set_servers("test", servers), channel.give_answers("test", b'{"name": 1}'),
            ]  # fmt: skip

        waiting = [asyncio.create_task(each) for each in orders()]
        await asyncio.sleep(0)
        await channel.close()
        found = await asyncio.gather(*waiting, *orders(), return_exceptions=True)
    assert [type(each) for each in found] == [PeerUnavailable] * 8
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    await run.runtime.close()


async def test_only_an_ended_job_tells_a_restarted_scheduler_that_it_will_hold_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches have calls of a channel that starts again, or whose disk is full: others may not have its permits."""
    model = FunctionModel(lambda body: None)
    run = Run(tmp_path, model, source=ListSource(rows(4)))
    assert await Channel("j", str(tmp_path), run.runtime).rejoin(), "it has not started"
    driving = asyncio.create_task(run.driver.run())
    async with asyncio.timeout(PATIENCE_S):
        while not model.asked:  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0.001)
        channel: Channel = run.runtime.find("channel:j")
        assert await channel.rejoin()
        monkeypatch.setattr(Channel, "_turn", lambda *_: (_ for _ in ()).throw(StoreError("the disk is full")))
        with pytest.raises(StoreError, match="full"):
            await channel.written(0, 0)
        assert channel.over and await channel.rejoin(), "its calls are under way"
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    await run.runtime.close()
    monkeypatch.undo()
    done = Run(tmp_path, FunctionModel(), source=ListSource(rows(4)))
    ended: list[bool] = []
    close = Channel.close

    async def asked(self: Channel) -> None:
        ended.append(await self.rejoin())
        await close(self)

    monkeypatch.setattr(Channel, "close", asked)
    await done.to_end()
    assert ended[0] is False


async def test_a_full_disk_stops_the_sending_and_loses_nothing(tmp_path: Path) -> None:
    model = FunctionModel(pause_s=0.001)
    run = Run(tmp_path, model, source=ListSource(rows(2_000)), limits=Limits(concurrency=8, window_rows=64))
    original = Journal.append
    sizes = []

    def small_disk(self: Journal, blobs: list[bytes]) -> int:
        sizes.append(sum(map(len, blobs)))
        if sum(sizes) > 60_000:
            self._storage._db.execute("PRAGMA max_page_count = 1")
        return original(self, blobs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", small_disk)
        with pytest.raises(StoreError, match="full"):
            await run.to_end()
        asked = len(model.asked)
    assert asked < 2_000
    done = await Run(tmp_path, model, source=ListSource(rows(2_000)), sink=run.sink).to_end()
    assert Counter(done.sink.keys()) == Counter(f"r{i}" for i in range(2_000))
    assert len(model.complete) <= 2_000 + 8


async def test_a_second_run_fences_the_first(tmp_path: Path) -> None:
    StateFolder(tmp_path).prepare()
    one = StateFolder(tmp_path).journal("j", create=True)
    one.take_epoch(b"{}")
    one.append([b"a"])
    two = StateFolder(tmp_path).journal("j")
    two.take_epoch(b"{}")
    with pytest.raises(StoreError, match="taken the job over"):
        one.append([b"b"])
    two.append([b"c"])
    assert two.seq == 2


async def test_a_blocked_account_fails_no_row(tmp_path: Path) -> None:
    paid: list[bytes] = []

    def until_credit_ends(asked: bytes) -> object:
        if len(paid) >= 30:
            return Failure(FailureKind.BLOCKED, "Your credit balance is too low", 400)
        paid.append(asked)
        return reply("ok")

    model = FunctionModel(until_credit_ends)  # type: ignore[arg-type]
    limits = Limits(concurrency=10)
    first = await Run(tmp_path, model, source=ListSource(rows(100)), limits=limits).to_end()
    assert first.facts["outcome"] == "partial"
    assert "credit balance" in first.facts["why"]
    assert len(first.sink.values) == 30
    assert len(model.asked) <= 30 + 10
    topped_up = FunctionModel()
    second = await Run(tmp_path, topped_up, source=ListSource(rows(100)), sink=first.sink, limits=limits).to_end()
    assert second.facts["outcome"] == "complete"
    assert Counter(second.sink.keys()) == Counter(f"r{i}" for i in range(100))
    assert len(topped_up.asked) == 70


async def test_failures_are_tried_again_and_only_then_told(tmp_path: Path) -> None:
    def bad_third(asked: bytes) -> object:
        return Failure(FailureKind.TRANSIENT, "boom", 500) if b"row 3" in asked else reply("ok")

    model = FunctionModel(bad_third)  # type: ignore[arg-type]
    run = await Run(tmp_path, model, source=ListSource(rows(5)), limits=QUICK).to_end()
    assert run.facts["rows_failed"] == 1
    assert run.sink.results()["r3"] == {
        "type": "errored", "error": {"type": "error", "error": {"type": "api_error", "message": "boom"}},
    }  # fmt: skip
    assert sum(b"row 3" in asked for asked in model.asked) == QUICK.retry.attempts_max
    assert run.facts["failures"] == {"transient": QUICK.retry.attempts_max}


async def test_no_more_calls_are_under_way_than_permits(tmp_path: Path) -> None:
    model = MeetingModel(7, pause_s=0.002)
    await Run(tmp_path, model, source=ListSource(rows(200)), limits=Limits(concurrency=7), branches=3).to_end()
    assert model.most_at_once == 7, "all of them are used, and no more"


async def test_a_prompt_over_the_bound_is_never_sent(tmp_path: Path) -> None:
    model = FunctionModel()
    source = [*rows(3), msgspec.structs.replace(rows(1)[0], key="long", body=body("x" * 9_000))]
    run = await Run(tmp_path, model, source=ListSource(source), limits=Limits(prompt_tokens_max=500)).to_end()
    assert len(model.asked) == 3
    error = run.sink.results()["long"]["error"]["error"]
    assert error["type"] == "invalid_request_error"
    assert "at most 500 fit" in error["message"]


async def test_drain_finishes_what_is_in_flight_and_can_be_resumed(tmp_path: Path) -> None:
    model = FunctionModel(pause_s=0.005)
    limits = Limits(concurrency=5)
    run = Run(tmp_path, model, source=ListSource(rows(500)), limits=limits)

    stopping: list[asyncio.Task[object]] = []

    def stop_soon(asked: bytes) -> object:
        if len(model.asked) >= 40 and not stopping:  # several are asked between two answers
            stopping.append(asyncio.get_running_loop().create_task(run.driver.stop("drain", "test")))
        return reply("ok")

    model._answer = stop_soon  # type: ignore[assignment]
    await run.to_end()
    assert run.facts["outcome"] == "partial"
    assert len(run.sink.values) == len(model.complete) < 500
    model._answer = lambda _: reply("ok")
    done = await Run(tmp_path, model, source=ListSource(rows(500)), sink=run.sink, limits=limits).to_end()
    assert Counter(done.sink.keys()) == Counter(f"r{i}" for i in range(500))
    assert len(model.complete) == 500


async def test_a_job_that_the_cortex_condemns_has_the_story_in_its_journal_and_is_resumed(tmp_path: Path) -> None:
    story = "its channel died 5 times in 120 s without progress"
    model = FunctionModel(lambda asked: None if b"row 7" in asked else reply("ok"))
    run = Run(tmp_path, model, source=ListSource(rows(10)))

    async def condemn() -> None:
        while len(model.complete) < 9:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        run.runtime.peer("channel:j").tell("condemn", story)

    await asyncio.gather(run.to_end(), condemn())
    assert (run.facts["outcome"], run.facts["why"], run.facts["broken"]) == ("partial", f"condemned: {story}", "")
    assert last_state(StateFolder(tmp_path), "j").why == f"condemned: {story}"
    done = await Run(tmp_path, FunctionModel(), source=ListSource(rows(10)), sink=run.sink).to_end()
    assert Counter(done.sink.keys()) == Counter(f"r{i}" for i in range(10))


async def test_a_key_that_was_renewed_is_tried_with_one_call_at_once(tmp_path: Path) -> None:
    """Not only is it known from then on: somebody says that the job may go on, and that stands in its journal."""
    refused = Failure(FailureKind.UNAUTHORISED, "invalid x-api-key", 401)
    good: list[bool] = []
    model = FunctionModel(lambda asked: reply("ok") if good else refused)
    limits = Limits(blocked_wait_s=3_600, concurrency=4)
    run = Run(tmp_path, model, source=ListSource(rows(10)), limits=limits)
    running = asyncio.create_task(run.to_end())
    async with asyncio.timeout(PATIENCE_S):
        while not model.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        k = run.runtime.find("channel:j")._k
        while k.paused is None or k.flights:  # noqa: ASYNC110 - a call under way would be answered by the new key
            await asyncio.sleep(0.001)
        before = len(model.asked)
        assert not any(share.trying for share in k.shares)
        good.append(True)
        other = msgspec.structs.replace(k.terms, route=msgspec.structs.replace(k.terms.route, credential="another"))
        await run.runtime.peer("branch:0").ask("set_credential", "j", encode(armed(other, model)))
        await run.runtime.peer("channel:j").ask("unblock", "the key was read again", ("another",))
        await running
    assert (run.facts["outcome"], len(model.asked)) == ("complete", before + 10)
    turns = [turn for _, turn in StateFolder(tmp_path).journal("j").turns()]
    parts = [event for turn in turns for batch in turn.batches for event in batch if isinstance(event, events.Resumed)]
    assert parts == [events.Resumed("the key was read again")]
    assert last_state(StateFolder(tmp_path), "j").terms.route.credential == "another"


async def test_cancel_ends_for_good_and_every_open_row_says_so(tmp_path: Path) -> None:
    model = FunctionModel(lambda asked: None if b"row 7" in asked else reply("ok"))
    run = Run(tmp_path, model, source=ListSource(rows(10)))

    async def cancel() -> None:
        while len(model.complete) < 9:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await run.driver.stop("cancel", "test")

    await asyncio.gather(run.to_end(), cancel())
    assert run.facts["outcome"] == "cancelled"
    assert run.sink.results()["r7"] == {"type": "canceled"}
    assert len(run.sink.values) == 10


async def test_what_was_read_back_from_the_journal_equals_what_was_seen_live(tmp_path: Path) -> None:
    """A sink that begins later, and one that begins in the middle, get the same results in the same order."""
    limits = Limits(snapshot_events=37, concurrency=8, window_rows=32)
    live = await Run(tmp_path, FunctionModel(), source=ListSource(rows(200)), limits=limits).to_end()
    journal = StateFolder(tmp_path).journal("j")
    assert len(list(journal.snapshots(0, journal.seq))) == 2, "the others went when these were written"
    journal.close()
    for kept in (0, 1, 99, 200):
        sink = ListSink()
        sink.values = list(live.sink.values[:kept])
        sink.open = lambda *_, sink=sink: len(sink.values)  # type: ignore[method-assign, misc]
        await Run(tmp_path, FunctionModel(), source=ListSource(rows(200)), sink=sink, limits=limits).to_end()
        assert sink.values == live.sink.values


async def test_the_journal_holds_the_reply_once_and_no_other_text(tmp_path: Path) -> None:
    model = FunctionModel(lambda _: reply("a very particular answer"))
    await Run(tmp_path, model, source=ListSource(rows(1)), job="a").to_end()
    await Run(tmp_path, model, program=Batch(ordered=True), source=ListSource(rows(1)), job="a").to_end()
    journal = StateFolder(tmp_path).journal("a")
    kinds = [type(event) for _, turn in journal.turns() for batch in turn.batches for event in batch]
    assert kinds.count(events.Answered) == 1
    assert kinds.count(events.ReplyRecalled) == 1
    raw = b"".join(row[0] for row in journal._storage._db.execute("SELECT blob FROM turns"))
    assert raw.count(b"a very particular answer") == 1


async def test_replies_that_come_as_an_ended_job_is_closed_are_in_its_output_or_not_absorbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies to attempts that were given up as lost, one after each look of the driver."""
    model = FunctionModel(lambda body: None)
    run = Run(tmp_path, model, source=ListSource(rows(6)))
    driving = asyncio.create_task(run.driver.run())
    async with asyncio.timeout(PATIENCE_S):
        while len(model.asked) < 6:  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0.001)
        channel: Channel = run.runtime.find("channel:j")
        flights, status = list(channel._k.flights.values()), Channel.status
        process = channel._dispatch.processes()["branch:0"]
        lost = Failure(FailureKind.LOST, "its branch died")
        gone = [events.AttemptFailed(each.goal, each.sample, each.attempt, lost) for each in flights]
        late = [events.Answered(each.goal, each.sample, each.attempt, each.hash, reply("late")) for each in flights]

        async def looked(self: Channel, number: int = 0) -> bytes:
            facts = await status(self, number)
            if self._outcome and len(late) > 3:
                await self.deliver("branch:0", process, codec.encode_batch([late.pop()]))
            return facts

        monkeypatch.setattr(Channel, "status", looked)
        await run.driver.stop("drain", "test")
        await channel.deliver("branch:0", process, codec.encode_batch(gone))
        facts = await driving
        for each in late:
            with pytest.raises(PeerUnavailable):
                await channel.deliver("branch:0", process, codec.encode_batch([each]))
    assert (facts["outcome"], facts["results"]) == ("partial", len(run.sink.values))
    k = last_state(StateFolder(tmp_path), "j")
    assert k.emitted == k.written_rows == len(run.sink.values) == 3
    await run.runtime.close()
    monkeypatch.undo()
    answering = FunctionModel()
    done = await Run(tmp_path, answering, source=ListSource(rows(6)), sink=run.sink).to_end()
    assert Counter(done.sink.keys()) == Counter(f"r{i}" for i in range(6))
    assert len(answering.asked) == 3


async def test_a_sealed_channel_takes_in_what_is_written_and_nothing_else(tmp_path: Path) -> None:
    run = Run(tmp_path, FunctionModel(lambda body: None), source=ListSource(rows(2)))
    driving = asyncio.create_task(run.driver.run())
    async with asyncio.timeout(PATIENCE_S):
        while not run.driver.begun:  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0.001)
        channel: Channel = run.runtime.find("channel:j")
        assert not await channel.seal(), "it runs"
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        await channel.stop("cancel", "test")
        await channel._over.wait()
        results = channel._k.emitted
        assert not await channel.seal(results + 1), "its driver knows of other results"
        assert await channel.seal(results) and await channel.seal()
        seq = channel._journal.seq
        await channel.written(results, 7)
        assert channel._journal.seq == seq + 1
        late = codec.encode_batch([events.Ticked()])
        for message in (channel.deliver("branch:0", "x", late), channel.feed(msgspec.msgpack.encode(rows(2)), 2, 4, True)):
            with pytest.raises(PeerUnavailable, match="has ended its job"):
                await message
        servers = msgspec.msgpack.encode(ServersChanged((), (), ""))
        for order in (
            channel.stop("drain", "test"), channel.set_limits("test", b'{"concurrency": 3}'),
            channel.give_answers("test", b'{"name": 1}'), channel.set_servers("test", servers),
        ):  # fmt: skip
            with pytest.raises(JobEnded, match=r"^job j has ended: look at `cortex status j .*`$"):
                await order
        for how in ("set", "answer", "cancel"):  # the driver does not wait for another channel
            wanted = ControlRequest(how=how, who="test", owner=this_owner("inline"), answers={"name": 1})
            await run.driver._obey(wanted)
        channel._put_events([events.Ticked()])
        await channel.written(results, 8)
        assert channel._journal.seq == seq + 2
    await run.runtime.close()
    assert last_state(StateFolder(tmp_path), "j").written_bytes == 8
