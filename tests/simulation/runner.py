"""Run of one seed, from its plan to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec

from actors.ports.runtime import PeerUnavailable
from actors.ports.telemetry import NullObserver
from actors.routing.model_factory import ConnectionSpec
from actors.runtime import ray_actor
from cortex.scheduler import step as scheduler
from cortex.scheduler.state import SchedulerSettings
from cortex.state.events import Row
from cortex.values.limits import BATCHES, MESSAGES, JobTerms, Limits, Route
from policies.estimates.batching import BatchingPolicy
from policies.estimates.price import Price, batch_price
from policies.failures.breaker import BreakerPolicy
from policies.failures.retry import RetryPolicy
from policies.failures.route_choice import pool_name, route_name
from policies.failures.timeout import TimeoutPolicy
from policies.limits.limit import LimitPolicy
from tests.simulation.cluster_world import SimRuntime, World
from tests.simulation.faults import Faults
from tests.simulation.invariants import FOR_GOOD, STANDING_S
from tests.simulation.invariants_batches import BatchesWatch, asking
from tests.simulation.invariants_bills import BillsWatch
from tests.simulation.invariants_calls import CallsWatch
from tests.simulation.invariants_goals import GoalsWatch
from tests.simulation.invariants_leases import LeasesWatch
from tests.simulation.invariants_losses import LossesWatch
from tests.simulation.invariants_members import StaffWatch
from tests.simulation.invariants_memory import MemoryWatch
from tests.simulation.invariants_time import TimeWatch
from tests.simulation.invariants_usage import UsageWatch
from tests.simulation.loop import LIFE, NOBODY, Life
from tests.simulation.mini_driver import SimDriver, Sink
from tests.simulation.provider import REFUSED
from tests.simulation.scenario import EPOCH_S, JobPlan, Plan, plan
from tests.simulation.sharded import ShardsDriver

PRICE = Price(input_usd_per_mtok=3, output_usd_per_mtok=15)  # type: ignore[arg-type]
FALLBACK = Route(endpoint="sim2", model="m", price=PRICE)
JUDGE = Route(endpoint="sim2", model="big", price=Price(input_usd_per_mtok=9, output_usd_per_mtok=45))  # type: ignore[arg-type]
RETRY = RetryPolicy(base_s=0.2, cap_s=2.0, attempts_max=4, timed_out_attempts_max=3, budget_floor=4)
TIMEOUT = TimeoutPolicy(connect_s=1.0, first_byte_s=3.0, between_bytes_s=3.0, floor_s=4.0)
BATCHING = BatchingPolicy(
    gather_s=0.2, gather_max_s=2.0, settle_s=120.0, submit_timeout_s=70.0, poll_s=0.5, poll_max_s=5.0
)
"""Policy for message batches. Clocks may differ by a minute or two, and lists may lag; ``settle_s`` exceeds both."""
BLOCKED_S = BreakerPolicy().blocked_open_s
PROGRAMS = {
    "planner": ("tests.support.sample_programs:Planner", {"roots": ["r", "s"], "deep": 3}),
    "voter": ("tests.support.sample_programs:Voter", {"questions": ["q0", "q1", "q2"], "votes": 5, "kind": "majority"}),
    "elector": ("tests.support.sample_programs:Elector", {"chains": ["p", "q"], "length": 6, "ahead": 2}),
    "nester": ("tests.support.sample_programs:Nester", {"roots": ["r", "s"]}),
    "caster": ("tests.support.sample_programs:Caster", {"drafts": [f"d{place}" for place in range(12)]}),
    "watcher": ("tests.support.sample_programs:Watcher", {"asks": 6, "trust_s": 3.0}),
}


SHARDS = "cortex.programs.shards:Shards"


class Verdict(msgspec.Struct):
    """Result of a seed."""

    seed: int
    broken: str = ""
    events: int = 0
    calls: int = 0
    virtual_s: float = 0.0
    deaths: int = 0
    callbacks: int = 0


class Driven:
    """Life of a driver, which answers no messages."""

    async def call(self, method: str, args: Any) -> Any:
        raise PeerUnavailable("a driver")


def terms(job: JobPlan, made: Plan) -> JobTerms:
    """Return the terms of a job of the plan."""
    rows = job.rows if job.program == "batch" else 8 if job.judge else 40
    cap = None
    if job.cap_share:
        cap = max(1, int(job.cap_share * rows * 1_600_000))
    limits = Limits(
        concurrency=job.concurrency, window_rows=job.window_rows, snapshot_events=job.snapshot_events,
        max_cost_nusd=cap, retry=RETRY, timeout=TIMEOUT, output_tokens_max=16,
        requests_per_min=job.requests_per_min, priority=job.priority, max_failed=job.max_failed,
        batching=msgspec.structs.replace(BATCHING, requests_max=made.batching.requests_max),
        hedge_after_s=job.hedge_after_s, goal_timeout_s=job.goal_timeout_s,
        deadline_at_s=None if job.deadline_s is None else EPOCH_S + job.begins_s + job.deadline_s,
    )  # fmt: skip
    where, params = PROGRAMS.get(job.program, ("batch", {"ordered": job.ordered}))
    if job.shards > 1:
        where, params = SHARDS, {"shards": job.shards, "batch": params}
    return JobTerms(
        job=job.name, program=where, params_json=msgspec.json.encode(params), fingerprint="f", limits=limits,
        route=Route(
            endpoint="sim", model="m", price=batch_price(PRICE) if job.batches else PRICE,
            via=BATCHES if job.batches else MESSAGES,
        ), streams=job.program == "batch" and job.shards == 1,
        fallbacks=(FALLBACK,) if job.fallback else (),
        role_routes=(FALLBACK if job.fallback else JUDGE,) if job.judge else (), roles={"judge": 1} if job.judge else {},
    )  # fmt: skip


def cortex_args(made: Plan) -> tuple[Any, ...]:
    """Return the settings of the scheduler, with the numbers of branches and workers."""
    settings = SchedulerSettings(
        branches_min=1, branches_max=made.branches, workers_max=made.workers,
        limit=LimitPolicy(start=made.limit_start), breaker=BreakerPolicy(volume_min=made.breaker_volume),
        calls_per_branch=max(1, sum(job.concurrency for job in made.jobs) // made.branches),
    )  # fmt: skip
    return 1, made.branches, made.workers, settings


def arming(of: JobTerms) -> ConnectionSpec:
    """Return the connections of a job's routes."""
    own, *others = (
        ConnectionSpec(
            endpoint=route.endpoint, route_name=route_name(route.endpoint, route.credential, route.model),
            pool_name=pool_name(route.endpoint, route.credential, route.model),
        ) for route in of.routes
    )  # fmt: skip
    return msgspec.structs.replace(own, fallbacks=tuple(others))


def rows_of(job: JobPlan) -> list[Row]:
    """Return the rows of a batch."""
    if job.program != "batch":
        return []
    encode = msgspec.json.encode
    name = job.asks_as or job.name
    chance = random.Random(f"{name}/{job.rows}/refused")
    ends = (REFUSED if chance.random() < job.refused else "" for _ in range(job.rows))
    lines = (f"{name} row {index}{end}" for index, end in enumerate(ends))
    bodies = (
        encode({"max_tokens": 8, "messages": [{"role": "user", "content": text}], "model": "m"}) for text in lines
    )
    return [Row(f"r{index}", body, 8) for index, body in enumerate(bodies)]


class Simulation:
    """World with its jobs, their drivers and their faults."""

    def __init__(self, made: Plan, tell: Callable[[str], None] | None = None) -> None:
        self.plan = made
        self.world = World(made, tell)
        asks_as = {job.name: job.asks_as for job in made.jobs if job.asks_as}
        self.world.watch.attend(CallsWatch(self.world.watch, PRICE, batch_price(PRICE), asks_as))
        if made.provider.billing or made.provider.shapes or made.provider.odd_usage:
            self.world.watch.attend(BillsWatch(self.world.watch, self.world))
        if made.provider.odd_usage:
            self.world.watch.attend(UsageWatch(self.world.watch, self.world))
        self.world.watch.attend(LeasesWatch(self.world.watch, self.world))
        self.world.watch.attend(GoalsWatch(self.world.watch))
        self.world.watch.attend(MemoryWatch(self.world.watch, self.world))
        self.world.watch.attend(TimeWatch(self.world.watch, self.world, EPOCH_S))
        self.world.watch.attend(BatchesWatch(self.world.watch, self.world))
        self.world.watch.attend(StaffWatch(self.world.watch, self.world))
        if self.world.disk.lies:
            self.world.watch.attend(LossesWatch(self.world.watch, self.world))
        self.world.power_lost = self._power_lost
        self.sinks = {job.name: Sink() for job in made.jobs}
        self.rows = {job.name: rows_of(job) for job in made.jobs}
        self.resumes: Callable[[dict[str, Any]], bool] = resumes

    def set_up(self) -> None:
        """Start the cortex, the drivers and the faults."""
        world = self.world
        world.spawn("cortex", "cortex", cortex_args(self.plan), world.nodes[0])
        for job in self.plan.jobs:
            world.loop.call_at(job.begins_s, self._drive, job, context=NOBODY)
        Faults(world)
        world.loop.call_later(STANDING_S, self._stand, context=NOBODY)

    def _stand(self) -> None:
        self.world.watch.standing()
        if not self.over():
            self.world.loop.call_later(STANDING_S, self._stand, context=NOBODY)

    def _drive(self, job: JobPlan) -> None:
        """Start a driver, or one that takes over from another."""
        world, sink = self.world, self.sinks[job.name]
        if sink.outcome or f"driver:{job.name}" in world.lives:
            return
        if not world.nodes[0].up:  # nobody starts anything on a machine without power
            world.loop.call_later(0.5, self._drive, job, context=NOBODY)
            return
        life = Life(f"driver:{job.name}", world.nodes[0])
        life.at_death = lambda: self._driver_died(life, job)
        life.seat = Driven()
        world.lives[life.name] = life
        of = terms(job, self.plan)
        driver = (SimDriver if job.shards == 1 else ShardsDriver)(
            SimRuntime(world, life), of, arming(of), self.rows[job.name], sink, self.resumes, self.plan.pool_cap,
            lambda: asking(world, job.name), job.retries, lambda: world.disk.journal(job.name, Life("user", None)),
        )  # fmt: skip
        driver.count, driver.ordered = job.shards, job.ordered
        driver.lies = world.disk.lies
        driver.cuts |= driver.lies
        task = world.loop.create_task(driver.run(), context=life.context)
        task.add_done_callback(self._driven, context=NOBODY)

    def _driven(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.watch.say(f"a driver raised {type(error).__name__}: {error}", error)

    def _driver_died(self, life: Life, job: JobPlan) -> None:
        self.world.kill(life, gone=True)
        self.world.loop.call_later(0.5, self._drive, job, context=NOBODY)

    def _power_lost(self, lost: dict[str, int], draw: Callable[[], float]) -> None:
        """Lose the end of each results file too, and let users resume ended jobs whose files have lost something."""
        for job in self.plan.jobs:
            sink, rows = self.sinks[job.name], int(draw() * 4)
            if rows:
                del sink.values[-rows:]
            if sink.outcome and (rows or any(lost[name] for name in lost if name.partition("~")[0] == job.name)):
                sink.outcome = ""
                self.world.loop.call_later(0.5, self._drive, job, context=NOBODY)

    def over(self) -> bool:
        """Return whether all jobs have ended."""
        return all(sink.outcome for sink in self.sinks.values())

    def _refusals_s(self) -> float:
        """Return the time for which the provider's refusals of rows may keep a route shut whose account was blocked.

        A refusal says nothing about the account, so that each takes a minute, until a row is answered.
        """
        if not any(trouble.kind == "blocked" for trouble in self.plan.troubles_at):
            return 0.0
        return BLOCKED_S * sum(REFUSED.encode() in row.body for rows in self.rows.values() for row in rows)

    def run(self) -> None:
        """Run to the verdict. Raises ``invariants.Broken``, or any other error."""
        world = self.world
        world.loop.call_soon(self.set_up, context=NOBODY)
        world.run(lambda: world.calm and self.over(), self.plan.ends_s + self._refusals_s())
        for job in self.plan.jobs:
            world.watch.finished(job.name, self.sinks[job.name], len(self.rows[job.name]), job.ordered)
        world.watch.look()


def resumes(facts: dict[str, Any]) -> bool:
    """Return whether to resume a partial job: not if it has no money or time left, or too many of its rows have failed.
    """
    return facts["outcome"] == "partial" and not facts["why"].startswith(FOR_GOOD)


def stepped(step: Any, state: Any, event: Any) -> Any:
    """Take a step of the cortex, and show it to the watch of its world."""
    out = step(state, event)
    life = LIFE.get(None)
    if life is not None and not life.dead:
        life.node.world.watch.stepped(state, event, out)
    return out


@cache
def _freeze() -> None:
    """Exempt imported objects from the examination after each world. Python counts frozen objects one by one: 15 ms."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context without garbage collection, and without messages of objects of dead lives.

    No telemetry leaves a world: it would be written by threads of the real time, which outlive the lives that they serve.
    """
    hook, was, step, telemetry = sys.unraisablehook, ray_actor.settle, scheduler.step, ray_actor.of_process
    gc.disable()
    _freeze()
    ray_actor.settle = lambda: None
    ray_actor.of_process = lambda role, node, standing=False: NullObserver()
    scheduler.step = lambda state, event: stepped(step, state, event)
    try:
        yield
    finally:
        ray_actor.settle, scheduler.step, ray_actor.of_process = was, step, telemetry
        sys.unraisablehook = lambda _: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
        sys.unraisablehook = hook
        gc.enable()


def live(seed: int, tell: Callable[[str], None] | None = None, made: Plan | None = None) -> Verdict:
    """Run one seed. Never raises: errors are in the verdict."""
    with quiet():
        verdict = Verdict(seed)
        simulation = Simulation(made or plan(seed), tell)
        try:
            simulation.run()
        except Exception as error:
            verdict.broken = str(error) if isinstance(error, AssertionError) and str(error) else _told(error)
            if error.__cause__ is not None:
                verdict.broken += "\n" + _told(error.__cause__)
        world = simulation.world
        verdict.events, verdict.calls = world.watch.events, world.watch.calls
        verdict.virtual_s, verdict.deaths, verdict.callbacks = world.loop.time(), world.deaths, world.loop.ran
        world.close()
        del simulation, world
    return verdict


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, chain=False)[-12:])
