"""A job over message batches, from its rows to its results, against a simulated provider; and whatever dies on the way."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.branch import batch_executor
from actors.branch.route_breakers import RouteBreaker
from actors.channel.batches.submissions import bounds
from actors.common.errors import UserError
from actors.ports.runtime import ChannelNotStarted, PeerGone
from actors.providers.messages.batches import ProviderBatches
from actors.routing.model_factory import ConnectionSpec
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.frontends.in_memory_batches import SimulatedBatches
from actors.simulator.settings import SimulatorSettings
from cortex.programs.batch import Batch
from cortex.values.batch_record import SubmissionStatus
from cortex.values.limits import Limits
from policies.estimates.batching import KEPT_S, BatchingPolicy
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy
from tests.edge.support.batch_job import LIMITS, Crash, Job, in_process, limits, over_http, whole
from tests.edge.support.in_process_job import ListSink
from tests.edge.support.virtual_clock import VirtualRuntime, virtually
from tests.support.patience import PATIENCE_S
from tests.support.state_machine_harness import Flat

# -- the straight road -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("road", ["in process", "http"])
async def test_every_row_comes_back_once(tmp_path: Path, road: str) -> None:
    if road == "in process":
        job = await Job(tmp_path, in_process()).to_end()
    else:
        async with over_http() as (server, connection):
            job = await Job(tmp_path, connection).to_end()
            assert server.provider.tally.batches == 1
    whole(job)
    assert job.facts["attempts"] == 40
    assert {line["type"] for line in job.sink.results().values()} == {"succeeded"}


async def test_money_is_counted_at_half_the_price_to_the_cent(tmp_path: Path) -> None:
    """3 USD a million tokens in and 15 out for a plain call; here half of both, and never above it on the way."""
    job = await Job(tmp_path, in_process()).to_end()
    used = [line["message"]["usage"] for line in job.sink.results().values()]
    full = sum(each["input_tokens"] * 3e-6 + each["output_tokens"] * 15e-6 for each in used)
    assert job.facts["cost_usd"] == pytest.approx(full / 2, abs=1e-9)


async def test_submissions_are_cut_by_count_and_by_bytes(tmp_path: Path) -> None:
    async with over_http() as (server, connection):
        job = await Job(tmp_path / "a", connection, limits=limits(requests_max=15)).to_end()
        whole(job)
        assert server.provider.tally.batches == 3
        size = len(msgspec.json.encode({"x": 1})) + 1_000
        job = await Job(tmp_path / "b", connection, limits=limits(bytes_max=size)).to_end()
        whole(job)
        assert server.provider.tally.batches > 3 + 3


@pytest.mark.parametrize(("times", "within_s"), [(3, 60.0), (40, 1.0)])
async def test_a_submission_that_meets_an_open_breaker_waits_and_uses_up_no_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, within_s: float
) -> None:
    """Forty times last longer than a submission may take: its calls are taken back and asked anew."""
    left = times

    def wait_s(self: Any) -> float:
        nonlocal left
        left -= 1
        return 0.05 if left >= 0 else 0.0

    monkeypatch.setattr(RouteBreaker, "wait_s", wait_s)
    bound = msgspec.structs.replace(limits(submit_timeout_s=within_s), retry=RetryPolicy(attempts_max=1))
    async with over_http() as (server, connection):
        job = await Job(tmp_path, connection, limits=bound).to_end()
        whole(job)
        assert server.provider.tally.batches == 1
        assert job.facts["attempts"] == 40


async def test_nothing_is_waited_for_where_nothing_can_come(tmp_path: Path) -> None:
    """The source is read to its end; and a program whose next question hangs on the last answer never waits at all."""
    patient = limits(gather_s=3_600.0, gather_max_s=3_600.0)  # longer than a run may take
    whole(await Job(tmp_path / "a", in_process(), limits=patient).to_end())
    job = await Job(tmp_path / "b", in_process(), limits=patient, program=Flat(texts=("Say a", "Say b"))).to_end()
    assert job.facts["outcome"] == "complete"


async def test_only_what_expired_or_failed_is_sent_again(tmp_path: Path) -> None:
    settings = SimulatorSettings(error=0.0, batch_ms=10, batch_expired=0.2, faults={"overloaded": 0.2})
    async with over_http(settings) as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        tally = server.provider.tally
        whole(job)
        assert tally.batches > 1
        assert tally.worked == 40  # no row that had been answered was asked again
    failures = job.facts["failures"]
    assert failures.keys() == {"expired", "overloaded"}
    assert sum(failures.values()) == job.facts["attempts"] - 40


async def test_what_expires_each_time_fails_in_these_words(tmp_path: Path) -> None:
    retry = RetryPolicy(attempts_max=3, base_s=0.001)
    settings = SimulatorSettings(error=0.0, batch_ms=5, batch_expired=1.0)
    job = await Job(tmp_path, in_process(settings), 2, limits=msgspec.structs.replace(LIMITS, retry=retry)).to_end()
    assert job.facts["failures"] == {"expired": 6} and job.facts["paid_calls"] == job.facts["assumed_nusd"] == 0
    assert job.facts["rows_failed_by_kind"] == {"expired": 2}
    assert job.facts["failed_said"].endswith("before its message batch expired, 3 times")
    assert list(job.sink.results().values()) == [{"type": "expired"}] * 2


async def test_a_row_that_is_the_rows_own_fault_fails_alone(tmp_path: Path) -> None:
    from tests.edge.support import batch_job

    bad = msgspec.structs.replace(batch_job.rows(1)[0], body=b'{"model":"sim","max_tokens":20}')
    job = Job(tmp_path, in_process(), 5)
    job.driver._source.rows = [*batch_job.rows(5)[1:], bad]  # type: ignore[union-attr]
    await job.to_end()
    results = job.sink.results()
    assert results["r0"]["error"]["error"]["type"] == "invalid_request_error"
    assert [results[f"r{i}"]["type"] for i in range(1, 5)] == ["succeeded"] * 4


async def test_a_prompt_above_the_bound_is_never_sent(tmp_path: Path) -> None:
    small = msgspec.structs.replace(LIMITS, prompt_tokens_max=20)
    async with over_http() as (server, connection):
        job = Job(tmp_path, connection, 3, limits=small)
        long = msgspec.json.encode(
            {"model": "sim", "max_tokens": 20, "messages": [{"role": "user", "content": "word " * 500}]}
        )
        job.driver._source.rows[1] = msgspec.structs.replace(job.driver._source.rows[1], body=long)  # type: ignore[union-attr]
        await job.to_end()
        assert server.provider.tally.requests == 2
        assert server.provider.tally.largest_prompt_tokens < 20
    assert job.facts["failures"] == {"too_large": 1}
    assert job.facts["rows_succeeded"] == 2


async def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    settings = SimulatorSettings(error=0.0, batch_ms=3_600_000, batch_queue=15, throttled_retry_after_s=1)
    async with over_http(settings) as (server, connection):
        job = Job(tmp_path, connection, limits=limits(requests_max=10))
        running = asyncio.create_task(job.to_end())
        throttled = False
        while not throttled and not running.done():  # the first batch is in the queue until a second was refused
            await asyncio.sleep(0.005)
            with contextlib.suppress(PeerGone, ChannelNotStarted):  # not begun yet
                throttled = "throttled" in job.k.tally.failures
        server.provider.change({"batch_ms": 20})
        for batch in list(server._face.batches._batches._all.values()):
            batch.ends_s = batch.created_s + 0.001
        job = await running
        assert server.provider.tally.batches == 4
    whole(job)
    assert job.facts["failures"]["throttled"] >= 1
    assert job.facts["attempts"] == 40  # what did not leave was not an attempt


async def test_results_come_in_bounded_messages_and_bodies_are_let_go(tmp_path: Path, monkeypatch: Any) -> None:
    sizes: list[tuple[int, int]] = []
    held: set[int] = set()
    packed = batch_executor._packed

    def spy(blobs: list[bytes]) -> bytes:
        sizes.append((len(blobs), sum(map(len, blobs))))
        held.add(len(job.runtime.find("channel:j")._submissions._bodies))
        return packed(blobs)

    monkeypatch.setattr(batch_executor, "_packed", spy)
    job = Job(tmp_path, in_process(), 1_500, limits=msgspec.structs.replace(LIMITS, concurrency=1_500))
    await job.to_end()
    assert job.facts["rows_succeeded"] == 1_500
    assert sum(rows for rows, _ in sizes) == 1_500
    assert max(rows for rows, _ in sizes) <= 256
    assert max(size for _, size in sizes) <= 90_000
    assert held == {0}, "before the first result comes"


def test_a_job_over_message_batches_has_many_rows_open_unless_its_user_says_otherwise() -> None:
    wide = bounds(Limits(), simulated=False, own=False)
    assert (wide.concurrency, wide.window_rows, wide.batching) == (20_000, 20_000, Limits().batching)
    own = bounds(Limits(concurrency=7), simulated=True, own=True)
    assert (own.concurrency, own.window_rows) == (7, 2_048)
    assert own.batching.poll_s < 1


# -- stopping and asking ---------------------------------------------------------------------------------------------


async def stopped(job: Job, how: str) -> dict[str, Any]:
    """Stop a job as soon as something of it is with the provider."""
    task = asyncio.create_task(job.to_end())
    while not task.done():
        with contextlib.suppress(PeerGone, ChannelNotStarted):  # not begun yet
            if any(made.stand == SubmissionStatus.OUT for made in job.k.submissions.values()):
                await job.driver.stop(how, "ann")
                break
        await asyncio.sleep(0.005)
    return (await task).facts


async def test_a_drain_leaves_the_batches_and_a_resumed_run_reads_them(tmp_path: Path) -> None:
    sink = ListSink()
    async with over_http(SimulatorSettings(error=0.0, batch_ms=60_000)) as (server, connection):
        facts = await stopped(Job(tmp_path, connection, sink=sink), "drain")
        assert (facts["outcome"], facts["why"], facts["rows_succeeded"]) == ("partial", "drain: by ann", 0)
        assert facts["batches"] == [
            {"number": 1, "batch": facts["batches"][0]["batch"], "requests": 40, "state": "out"}
        ]
        (batch,) = server._face.batches._batches._all.values()
        batch.created_s, batch.ends_s = batch.created_s - 120.0, batch.ends_s - 120.0
        job = await Job(tmp_path, connection, sink=sink).to_end()
        assert server.provider.tally.batches == 1
    whole(job)
    assert job.facts["batches"] == []


async def test_what_is_with_the_provider_is_not_lost_to_a_change(tmp_path: Path) -> None:
    """Neither to a changed program nor to another road; asked anew it is left, and stays on the bill."""
    async with over_http(SimulatorSettings(error=0.0, batch_ms=60_000)) as (server, connection):
        await stopped(Job(tmp_path, connection), "drain")
        for change, text in (
            ({"program": Batch(ordered=True)}, "have changed: restore them"),
            ({"via": "messages"}, "keep --via unchanged"),
        ):
            with pytest.raises(UserError) as error:
                await Job(tmp_path, connection, **change).to_end()  # type: ignore[arg-type]
            assert "40 requests of j are in message batches with the provider" in str(error.value)
            assert text in str(error.value)
        server.provider.change({"batch_ms": 20})
        job = await Job(tmp_path, connection, fresh=True).to_end()
        assert server.provider.tally.batches == 2
    assert job.facts["rows_succeeded"] == 40
    assert job.facts["cost_assumed_usd"] > 0


async def test_a_cancelled_job_cancels_its_batches(tmp_path: Path) -> None:
    async with over_http(SimulatorSettings(error=0.0, batch_ms=60_000)) as (server, connection):
        facts = await stopped(Job(tmp_path, connection), "cancel")
        assert facts["outcome"] == "cancelled"
        batch = next(iter(server._face.batches._batches._all.values()))
        assert batch.cancelled_s is not None


async def test_credit_that_runs_out_pauses_the_job_and_fails_no_row(tmp_path: Path) -> None:
    sink = ListSink()
    async with over_http(SimulatorSettings(error=0.0, batch_ms=20, credit_calls=25)) as (server, connection):
        job = await Job(tmp_path, connection, sink=sink, limits=limits(requests_max=10)).to_end()
        assert job.facts["outcome"] == "partial"
        assert job.facts["why"].startswith("blocked: Your credit balance is too low")
        server.provider.change({"credit_calls": None})
        job = await Job(tmp_path, connection, sink=sink, limits=limits(requests_max=10)).to_end()
        assert server.provider.tally.worked == 40
    whole(job)


async def test_where_it_cannot_be_decided_the_job_stops_and_asks(tmp_path: Path, monkeypatch: Any) -> None:
    quick = limits(submit_timeout_s=1.0)
    sink = ListSink()

    async def forbidden(*_: Any) -> Failure:
        return Failure(FailureKind.REJECTED, "this key may not list", 403)

    async with over_http() as (server, connection):
        crash = Crash(monkeypatch, after=True)
        await Job(tmp_path, connection, limits=quick, sink=sink).until(lambda k: crash.reached)
        crash.lift()
        monkeypatch.setattr(ProviderBatches, "listed", forbidden)
        job = await Job(tmp_path, connection, limits=quick, sink=sink).to_end()
        assert job.facts["outcome"] == "partial"
        assert "this key may not list" in job.facts["why"]
        assert "cortex resume j --submitted 1=BATCH_ID, or --not-submitted 1" in job.facts["why"]
        assert server.provider.tally.batches == 1
        name = next(iter(server._face.batches._batches._all))
        job = await Job(tmp_path, connection, limits=quick, sink=sink, decided=((1, name),)).to_end()
        assert server.provider.tally.batches == 1
    whole(job)


@pytest.mark.parametrize(("kept_s", "told"), [
    (KEPT_S, "the key may be of another workspace, or the batch may be found later (not_found)"),
    (0.0, "it keeps results for a time alone (not_found)"),
])  # fmt: skip
async def test_a_batch_that_is_not_found_is_called_gone_only_once_no_provider_keeps_it(
    tmp_path: Path, monkeypatch: Any, kept_s: float, told: str
) -> None:
    async def looked(self: Any, name: str) -> Failure:
        return Failure(FailureKind.REJECTED, "not_found", 404)

    monkeypatch.setattr("policies.estimates.batching.KEPT_S", kept_s)
    monkeypatch.setattr(ProviderBatches, "look", looked)
    async with over_http() as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        name = next(iter(server._face.batches._batches._all))
    assert job.facts["outcome"] == "partial"
    assert f"the provider does not find batch {name}: {told}" in job.facts["why"]


@pytest.mark.parametrize("lie", ["no end", "no line that can be read", "no status"])
async def test_a_batch_that_cannot_be_read_is_told_with_its_time_and_its_tries(
    tmp_path: Path, monkeypatch: Any, lie: str
) -> None:
    """The job looks again for as long as it takes, and ends well once the provider tells the truth."""
    results, look = ProviderBatches.results, ProviderBatches.look
    lies = [lie]

    async def told(self: Any, name: str) -> Any:
        if lies == ["no line that can be read"]:
            yield "", Failure(FailureKind.TRANSIENT, "a line of results is longer than 64 bytes", 200)
            return
        while lies == ["no end"]:
            yield "of_another_batch", Failure(FailureKind.OVERLOADED, "no", 529)
        async for each in results(self, name):
            yield each

    async def looked(self: Any, name: str) -> Any:
        if lies == ["no status"]:
            return Failure(FailureKind.TRANSIENT, "what is said of a message batch cannot be read", 200)
        return await look(self, name)

    monkeypatch.setattr(ProviderBatches, "results", told)
    monkeypatch.setattr(ProviderBatches, "look", looked)
    async with over_http() as (_, connection):
        job = Job(tmp_path, connection)
        running = asyncio.create_task(job.to_end())
        async with asyncio.timeout(PATIENCE_S):
            waits = ""
            while not (tries := re.search(r" \((\d+) tries\)", waits)) or int(tries[1]) < 3:  # it goes on trying
                await asyncio.sleep(0.01)
                with contextlib.suppress(Exception):  # it has not begun yet
                    waits = msgspec.json.decode(await job.runtime.peer("channel:j").ask("status"))["waits"]
            assert re.search(r"1 message batch of 40 requests at the provider since \d\d:\d\d:\d\d", waits), waits
            assert re.search(r"batch \w+ cannot be read since \d\d:\d\d:\d\d \(\d+ tries\): \w+", waits), waits
            lies.clear()
            job = await running
    whole(job)
    assert job.facts["waits"] == ""


async def test_a_model_that_takes_no_batches_is_told_and_nothing_is_sent(tmp_path: Path) -> None:
    from actors.routing.model_factory import lend
    from tests.edge.support.in_process_job import FunctionModel

    model = FunctionModel()
    job = await Job(tmp_path, ConnectionSpec(endpoint=model.endpoint, given=lend(model))).to_end()
    assert job.facts["outcome"] == "partial"
    assert job.facts["why"].startswith("blocked: test takes no message batches: leave out --via")
    assert model.asked == []


def test_submissions_that_wait_for_others_have_all_of_their_time(tmp_path: Path, monkeypatch: Any) -> None:
    """As at Azure, which works on a file for minutes: eight submissions, of which two are handed over at once."""
    submit, given_s, at_once = SimulatedBatches.submit, [], [0]

    async def slow(self: Any, rows: Any, timeout_s: float) -> str | Failure:
        given_s.append(timeout_s)
        at_once.append(at_once[-1] + 1)
        await asyncio.sleep(230.0)
        at_once.append(at_once[-1] - 1)
        return await submit(self, rows, timeout_s)

    monkeypatch.setattr(SimulatedBatches, "submit", slow)

    async def play() -> None:
        model = SimulatedModel(SimulatorSettings(error=0.0, batch_ms=600_000), clock=lambda: runtime.now_s())
        runtime = VirtualRuntime(lambda blob: model)  # type: ignore[arg-type, return-value]
        patient = msgspec.structs.replace(LIMITS, batching=BatchingPolicy(requests_max=5))
        job = Job(tmp_path, in_process(), limits=patient, runtime=lambda: runtime)
        async with asyncio.timeout(7_200):
            job.facts = await job.driver.run()
        whole(job)
        assert (len(given_s), max(at_once), job.facts["attempts"]) == (8, 2, 40)
        assert min(given_s) > 295.0
        await runtime.close()

    virtually(play())


def test_a_batch_that_takes_its_time_is_still_looked_after(tmp_path: Path) -> None:
    """Nothing of it draws on a pool, and yet the cortex keeps a branch for as long as the job runs; then no more."""

    async def play() -> None:
        model = SimulatedModel(SimulatorSettings(error=0.0, batch_ms=600_000), clock=lambda: runtime.now_s())
        runtime = VirtualRuntime(lambda blob: model)  # type: ignore[arg-type, return-value]
        patient = msgspec.structs.replace(LIMITS, batching=BatchingPolicy())
        job = Job(tmp_path, in_process(), limits=patient, runtime=lambda: runtime)
        async with asyncio.timeout(1_800):
            job.facts = await job.driver.run()
        whole(job)
        await asyncio.sleep(60)
        assert await runtime.names("branch:") == ()
        await runtime.close()

    virtually(play())
