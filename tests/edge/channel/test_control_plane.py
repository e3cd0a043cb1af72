"""Signals become decisions: an ailing route, a blocked account and a tool that fails, whole jobs in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pybreaker
import pytest

from actors.channel.leases import lease
from actors.common.process_owner import this_owner
from actors.driver.driver import Driver
from actors.jobs.opening import Opening
from actors.messaging.report_sender import REPORT_S
from cortex.scheduler import protocol
from cortex.values.limits import JobTerms, Limits, Route
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy
from policies.limits.limit import PoolCaps
from tests.edge.support.in_process_job import FunctionModel, ListSink, ListSource, armed, reply, rows
from tests.edge.support.virtual_clock import VirtualRuntime, virtually

BAD = Failure(FailureKind.OVERLOADED, "overloaded", 529)
CREDIT = Failure(FailureKind.BLOCKED, "Your credit balance is too low", 400)
PATIENT = Limits(concurrency=8, window_rows=64, retry=RetryPolicy(attempts_max=1_000), blocked_wait_s=7_200)


class World:
    """Jobs that share a provider, on virtual time."""

    def __init__(self, folder: Path, model: FunctionModel) -> None:
        self.folder, self.model = folder, model
        self.runtime = VirtualRuntime()
        self.cortex = self.runtime.find("cortex")
        self.moves: list[tuple[float, str, str]] = []
        self.cortex._observer = self
        self.sinks: dict[str, ListSink] = {}

    def step(self, event: protocol.Event, out: list[protocol.Command]) -> None:
        """Note the moves of breakers, as an observer of the cortex."""
        moved = [order for order in out if isinstance(order, protocol.BreakerMoved)]
        self.moves += [(self.now_s(), order.old, order.new) for order in moved]

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def job(self, name: str, count: int, limits: Limits) -> asyncio.Task[Any]:
        terms = JobTerms(
            job=name, program="batch", params_json=b"{}", fingerprint="f", limits=limits, streams=True,
            route=Route(endpoint=self.model.endpoint, model="m"), fresh=True,
        )  # fmt: skip
        self.sinks[name] = ListSink()
        driver = Driver(
            self.runtime, str(self.folder), Opening(terms=terms, owner=this_owner("inline"), who="test"),
            armed(terms, self.model), source=ListSource(rows(count)), sink=self.sinks[name],
        )  # fmt: skip
        return asyncio.create_task(driver.run())


def live(folder: Path, model: FunctionModel, play: Callable[[World], Any]) -> None:
    async def whole() -> None:
        world = World(folder, model)
        try:
            await play(world)
        finally:
            await world.runtime.close()

    virtually(whole())


async def until(done: Callable[[], bool], timeout_s: float = 600.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not done():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)


def test_a_breaker_opens_lets_few_probe_and_closes_when_the_provider_is_well_again(tmp_path: Path) -> None:
    """While it is open only what was under way is answered; then the probes; then all."""
    ill = {"from": 20.0, "to": 80.0}
    model = FunctionModel(pause_s=0.5)

    async def play(world: World) -> None:
        def answer(body: bytes) -> Any:
            return BAD if ill["from"] <= world.now_s() < ill["to"] else reply("ok")

        model._answer = answer
        begun: list[float] = []
        asked = model.asked
        model.asked = _Noting(asked, lambda: begun.append(world.now_s()))  # type: ignore[assignment]
        task = world.job("j", 1_500, PATIENT)
        await until(lambda: bool(world.moves))
        opened_s, old, new = world.moves[0]
        assert (old, new) == ("closed", "open")
        assert ill["from"] < opened_s < ill["from"] + 30
        await asyncio.sleep(0.1)
        assert world.cortex._state.pools[next(iter(world.cortex._state.pools))].granted == 0
        facts = await task
        assert facts["rows_succeeded"] == 1_500
        states = [new for _, _, new in world.moves]
        assert states[1] == "half-open"
        assert states[-1] == "closed"
        closed_s = world.moves[-1][0]
        assert closed_s < ill["to"] + 15, "full rate within 15 s of the recovery"
        spans = _open_spans(world.moves)
        assert not [at_s for at_s in begun for since_s, to_s in spans if since_s + 0.1 < at_s < to_s]
        for since_s, to_s in _half_open_spans(world.moves):
            assert len([at_s for at_s in begun if since_s <= at_s < to_s]) <= 3

    live(tmp_path, model, play)


class _Noting(list):  # type: ignore[type-arg]
    def __init__(self, some: list[bytes], note: Callable[[], None]) -> None:
        super().__init__(some)
        self._note = note

    def append(self, item: bytes) -> None:
        self._note()
        super().append(item)


def _spans(moves: list[tuple[float, str, str]], state: str) -> list[tuple[float, float]]:
    ends = [at_s for at_s, _, _ in moves[1:]] + [float("inf")]
    return [(at_s, end_s) for (at_s, _, new), end_s in zip(moves, ends, strict=True) if new == state]


def _open_spans(moves: list[tuple[float, str, str]]) -> list[tuple[float, float]]:
    return _spans(moves, "open")


def _half_open_spans(moves: list[tuple[float, str, str]]) -> list[tuple[float, float]]:
    return _spans(moves, "half-open")


@pytest.mark.parametrize("stands", [True, False])
def test_a_channel_that_has_not_heard_sends_nothing_through_an_open_breaker(
    stands: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grants that say so are late by three seconds. The branch knows; without its breaker, calls go through."""
    model, late_s = FunctionModel(pause_s=0.5), 3.0
    moves: list[tuple[float, str, str]] = []
    take = lease.Lease._take

    def late(self: Any, *args: Any) -> None:
        if not moves or asyncio.get_running_loop().time() >= moves[0][0] + late_s:
            take(self, *args)

    monkeypatch.setattr(lease.Lease, "_take", late)
    if not stands:
        monkeypatch.setattr(pybreaker.CircuitBreaker, "call", lambda self, function, *args: None)

    async def play(world: World) -> None:
        model._answer = lambda body: BAD if 20.0 <= world.now_s() < 40.0 else reply("ok")
        begun: list[float] = []
        model.asked = _Noting(model.asked, lambda: begun.append(world.now_s()))  # type: ignore[assignment]
        world.moves = moves
        task = world.job("j", 1_500, PATIENT)
        await until(lambda: bool(moves))
        await asyncio.sleep(late_s)
        through = [at_s for at_s in begun if moves[0][0] + REPORT_S < at_s < moves[0][0] + late_s]
        assert bool(through) is not stands
        facts = await task
        assert facts["rows_succeeded"] == 1_500
        assert _k(world, "j").ledger.attempts == len(begun), "what came back is no attempt"

    live(tmp_path, model, play)


def test_a_blocked_account_stops_every_job_of_its_pool_and_one_probe_a_minute_finds_it_well(tmp_path: Path) -> None:
    model = FunctionModel(pause_s=0.5)

    async def play(world: World) -> None:
        until_s = float("inf")
        refused: list[float] = []

        def answer(body: bytes) -> Any:
            if 10.0 <= world.now_s() < until_s:
                refused.append(world.now_s())
                return CREDIT
            return reply("ok")

        model._answer = answer
        tasks = [world.job(name, 600, PATIENT) for name in ("a", "b")]
        await until(lambda: bool(refused))
        first_s = refused[0]
        await asyncio.sleep(30)
        assert len(refused) <= model.most_at_once <= 16
        assert max(refused) <= first_s + 1.0, "nothing but the calls in flight"
        before = len(refused)
        await asyncio.sleep(300)
        assert 3 <= len(refused) - before <= 6, "one probe a minute"
        until_s = world.now_s()
        facts = [await task for task in tasks]
        assert [fact["rows_succeeded"] for fact in facts] == [600, 600]
        assert [fact["rows_failed"] for fact in facts] == [0, 0]
        for sink in world.sinks.values():
            assert sorted(sink.keys()) == sorted(f"r{place}" for place in range(600))
        assert world.now_s() < until_s + 60 + 15 + 600

    live(tmp_path, model, play)


def test_with_no_job_nothing_ticks(tmp_path: Path) -> None:
    model = FunctionModel()

    async def play(world: World) -> None:
        await world.job("j", 20, Limits())
        await asyncio.sleep(120)
        jumps = asyncio.get_running_loop().jumps  # type: ignore[attr-defined]
        await asyncio.sleep(600)
        assert asyncio.get_running_loop().jumps - jumps == 1  # type: ignore[attr-defined]
        assert await world.runtime.names("branch:") == (), "and nobody is kept"

    live(tmp_path, model, play)


def test_who_waits_for_a_permit_has_it_within_10_ms_of_its_coming_free(tmp_path: Path) -> None:
    """It is woken by a message: no timer of a poll stands between the end of one job's call and another's beginning."""
    model = FunctionModel(pause_s=1.0)
    begun: list[float] = []

    async def play(world: World) -> None:
        model.asked = _Noting(model.asked, lambda: begun.append(world.now_s()))  # type: ignore[assignment]
        pool = f"{model.endpoint}||m"
        await world.cortex.cap("ann", pool, msgspec.msgpack.encode(PoolCaps(concurrency=4)))
        first = world.job("a", 40, PATIENT)
        await until(lambda: len(begun) == 4)
        free_s = begun[0] + 1.0
        await asyncio.sleep(0.5)
        second = world.job("b", 40, PATIENT)
        await until(lambda: world.now_s() > free_s + 0.010)
        assert len(begun) == 8, "all four are in use again"
        in_use = {name: sum(share.in_flight for share in _k(world, name).shares) for name in ("a", "b")}
        assert in_use == {"a": 2, "b": 2}
        await asyncio.gather(first, second)
        assert model.most_at_once == 4

    live(tmp_path, model, play)


def _k(world: World, job: str) -> Any:
    return world.runtime.find(f"channel:{job}")._k
