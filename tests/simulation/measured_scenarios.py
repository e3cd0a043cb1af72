"""Scenarios without other faults, and their measurements."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import msgspec

from policies.failures.breaker import BreakerState
from policies.failures.route_choice import route_name
from tests.simulation.loop import NOBODY
from tests.simulation.runner import Simulation, quiet, resumes
from tests.simulation.scenario import JobPlan, Plan, ProviderPlan

ROUTE = route_name("sim", "", "m")


class Paced(msgspec.Struct):
    """Measurements of a provider with a rate limit, and four branches."""

    share: float
    """Share of the limit that was reached, after convergence."""
    throttled: float
    """Share of requests that were throttled, after convergence."""
    converged_s: float
    """Seconds from the first request until ten seconds in a row reached the share."""


def paced(provider: ProviderPlan, from_s: int, to_s: int, seed: int = 1) -> Paced:
    """Measure four branches against a token bucket between two moments."""
    rows = int(provider.requests_per_s * (to_s + 20) * 1.2) + 200
    made = _plan(seed, 4, [JobPlan("j0", rows=rows, concurrency=400, window_rows=1_000)], provider)
    with quiet():
        simulation = Simulation(made)
        _run(simulation, to_s)
        counts = simulation.world.provider.count
        answered, begun = counts("answered", from_s, to_s), counts("begun", from_s, to_s)
        limit = provider.requests_per_s
        return Paced(
            answered / (to_s - from_s) / limit, counts("throttled", from_s, to_s) / max(1, begun),
            _converged_s(simulation, limit, to_s),
        )  # fmt: skip


def _converged_s(simulation: Simulation, limit: float, to_s: int) -> float:
    """Return the time from which ten seconds reach 95 % of the limit."""
    counts = simulation.world.provider.count
    for second in range(to_s - 10):
        if counts("answered", second, second + 10) >= 9.5 * limit:
            return float(second)
    return math.inf


class Outage(msgspec.Struct):
    """Measurements of a provider that fails a share of all requests for a while."""

    opened_after: int
    """Answers, good or bad, to requests begun in the outage, until the breaker opened."""
    opened_s: float
    begun_while_out: int
    """Requests begun from then until the provider recovered."""
    recovered_s: float
    """Seconds from the provider's recovery until the rate was as high as before."""


def outage(share: float, every: int = 0, seed: int = 1) -> Outage:
    """Measure an outage from second 20 to second 60: ``share`` of the requests fail; ``every``: exactly one in
    ``every`` succeeds.
    """
    provider = ProviderPlan(latency_s=0.5, jitter=0.0)
    rows = 60_000
    made = _plan(seed, 2, [JobPlan("j0", rows=rows, concurrency=40, window_rows=200)], provider, 1e6)
    with quiet():
        simulation = Simulation(made)
        loop, world = simulation.world.loop, simulation.world
        opened: list[tuple[float, int]] = []
        pool = world.provider.pool("sim")
        before: list[int] = []

        def begin() -> None:
            world.provider.trouble[""] = (share, "overloaded")
            before.append(pool.answered + pool.failed + pool.answering)  # requests begun before are not counted
            if every:
                turn = iter(range(1 << 60))
                world.provider.random = lambda: 0.999 if next(turn) % every == 0 else 0.0

        def look() -> None:
            life = world.lives.get("cortex")
            route = life.seat._actor._state.routes.get(ROUTE) if life is not None else None
            if not opened and route is not None and route.breaker.state != BreakerState.CLOSED and loop.time() >= 20:
                opened.append((loop.time(), pool.answered + pool.failed))
                return
            loop.call_later(0.01, look, context=NOBODY)

        def end() -> None:
            world.provider.trouble.clear()
            world.provider.random = made.chance("provider").random

        loop.call_at(20.0, begin, context=NOBODY)
        loop.call_at(20.0, look, context=NOBODY)
        loop.call_at(60.0, end, context=NOBODY)
        _run(simulation, 100)
        counts = world.provider.count
        full = counts("answered", 10, 20) / 10
        at_s, results = opened[0] if opened else (math.inf, 1 << 30)
        upto = int(min(at_s, 60.0)) + 1
        back = next((s for s in range(60, 98) if counts("answered", s, s + 2) / 2 >= 0.9 * full), 10_000)
        return Outage(
            results - before[0], at_s - 20, counts("begun", upto, 60), float(back - 60)
        )


class Credit(msgspec.Struct):
    """Measurements of an account that runs out of credit, and is topped up later."""

    refused: int
    in_flight: int
    """Calls under way when the credit ran out."""
    rows: int
    """Rows with a result."""
    answered: int
    """Complete answers that were billed."""
    outcome: str


def credit(rows: int, at_share: float = 0.6, seed: int = 1) -> Credit:
    """Measure credit for a share of all rows, topped up ten minutes later."""
    provider = ProviderPlan(latency_s=0.5, jitter=0.0)
    made = _plan(seed, 2, [JobPlan("j0", rows=rows, concurrency=200, window_rows=2_000)], provider)
    made.ends_s = 40_000.0
    with quiet():
        simulation = Simulation(made)
        world = simulation.world
        world.provider.credit = int(rows * at_share)
        seen: dict[str, Any] = {"resumed": False, "flight": 0}

        def resume(facts: dict[str, Any]) -> bool:
            if not resumes(facts):
                return False
            if world.provider.credit <= 0:  # the user tops it up, then resumes
                seen["refused"] = world.provider.pool("sim").refused
                world.provider.credit = math.inf
            return True

        simulation.resumes = resume
        world.watch.alone()
        simulation.run()
        record = world.watch.jobs["j0"]
        pool = world.provider.pool("sim")
        return Credit(
            pool.refused, world.provider.in_flight_when_dry, len(record.keys), pool.answered,
            simulation.sinks["j0"].outcome,
        )  # fmt: skip


class Idle(msgspec.Struct):
    """Measurements of ten minutes without work."""

    calls: int
    turns: int
    messages: int
    callbacks: int
    tasks_more: int
    lives: tuple[str, ...]


def idle(seed: int = 1, minutes: float = 10.0) -> Idle:
    """Run a job to its end, then measure idle time."""
    made = _plan(seed, 3, [JobPlan("j0", rows=200, concurrency=30)], ProviderPlan())
    with quiet():
        simulation = Simulation(made)
        world, loop = simulation.world, simulation.world.loop
        simulation.run()
        world.run(lambda: False, loop.time() + 180.0)  # branches are kept for a while, in case of more work
        before = (world.watch.calls, world.watch.events, world.transport.sent, loop.ran)
        tasks = len(asyncio.all_tasks(loop))
        world.run(lambda: False, loop.time() + 60.0 * minutes)
        after = (world.watch.calls, world.watch.events, world.transport.sent, loop.ran)
        grown = [now - then for now, then in zip(after, before, strict=True)]
        return Idle(*grown, len(asyncio.all_tasks(loop)) - tasks, tuple(sorted(world.lives)))


def _plan(seed: int, branches: int, jobs: list[JobPlan], provider: ProviderPlan, quiet_s: float = 0.0) -> Plan:
    return Plan(seed, branches=branches, nodes=2, jobs=jobs, provider=provider, trouble=0.0, quiet_s=quiet_s)


def _run(simulation: Simulation, to_s: float, done: Callable[[], bool] = lambda: False) -> None:
    world = simulation.world
    world.loop.call_soon(simulation.set_up, context=NOBODY)
    world.run(done, to_s)
