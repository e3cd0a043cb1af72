"""Jobs that hold leases of a cortex, as the scheduler's ``step`` sees them: channels and branches as tables, no actors.

A fake channel behaves like a real one: it accepts a grant only if it is newer, uses what its lease allows, counts its
lease from the time of its request, and reports what it holds. ``may_use`` is the most that it may come to use.
"""

from __future__ import annotations

import msgspec

from cortex.scheduler.protocol import (
    AllRejoined,
    ChannelJoined,
    Command,
    Event,
    JobLeft,
    MemberReported,
    SchedulerStarted,
    TimePassed,
)
from cortex.scheduler.reports import Claim, Claims, Grant, ProgressReport, RouteSignals
from cortex.scheduler.state import NEVER, SchedulerSettings, SchedulerState
from cortex.scheduler.step import step
from policies.limits.limit import LimitPolicy

ROUTE = "https://one|key|opus"
OTHER = "https://two|key|opus"
TIMEOUT_S = 20.0


def settings(limit: int = 12, **knobs: object) -> SchedulerSettings:
    """Return settings of a cortex whose pools keep their initial limit."""
    return SchedulerSettings(limit=LimitPolicy(start=limit, ceiling=limit), **knobs)  # type: ignore[arg-type]


class Channel:
    """Job with its grants and calls in flight on each route."""

    def __init__(self, job: str, routes: tuple[str, ...] = (ROUTE,), wanted: int = 100) -> None:
        self.job, self.routes, self.wanted = job, routes, wanted
        self.epoch, self.cortex, self.progress = 1, "", 0
        self.weight, self.headroom, self.blocked = 1.0, 0.0, ""
        self.queues = False
        self.peers = 0
        self.concurrency, self.rates = 1000, (0.0, 0.0, 0.0)
        self.until_s = -NEVER
        self.grants: dict[str, Grant] = {}
        self.starts = dict.fromkeys(routes, -1)
        self.memos = dict.fromkeys(routes, b"")
        self.flights: dict[str, list[tuple[float, int]]] = {route: [] for route in routes}
        """(begin, generation) of each call."""

    def claims(self, at_s: float) -> Claims:
        entries = tuple(
            Claim(
                route,
                route,
                self.held(route, at_s),
                self.grants[route].serial if route in self.grants else 0,
                self.memos[route],
                self.blocked,
                self.queues,
            )
            for route in self.routes
        )
        return Claims(
            self.job,
            self.epoch,
            self.cortex,
            self.wanted,
            self.concurrency,
            entries,
            self.weight,
            self.headroom,
            TIMEOUT_S,
            self.progress,
            rates=self.rates,
            peers=self.peers,
        )

    def permits(self, route: str, at_s: float) -> int:
        grant = self.grants.get(route)
        return grant.permits if grant is not None and at_s < self.until_s else 0

    def held(self, route: str, at_s: float) -> int:
        return max(self.permits(route, at_s), len(self.flights[route]))

    def free(self, route: str, at_s: float) -> int:
        n = self.permits(route, at_s) - len(self.flights[route])
        return max(0, n if self.starts[route] < 0 else min(n, self.starts[route]))

    def take(self, grant: Grant, asked_s: float | None = None, lease_s: float = 15.0) -> None:
        """Accept a grant. ``asked_s``: time of the request that it answers; None: a push."""
        old = self.grants.get(grant.route)
        if asked_s is None:
            if grant.cortex != self.cortex or old is None or grant.serial <= old.serial:
                return
        elif old is not None and grant.cortex == self.cortex and grant.serial < old.serial:
            return
        if old is None or (grant.cortex, grant.serial) != (old.cortex, old.serial):
            self.starts[grant.route] = grant.starts
        elif asked_s is not None and asked_s >= self.until_s:
            self.starts[grant.route] = min(self.starts[grant.route], 0)
        self.grants[grant.route], self.memos[grant.route] = grant, grant.memo

    def begin(self, route: str, at_s: float, n: int = 1000) -> int:
        n = min(n, self.free(route, at_s))
        if n > 0:
            self.flights[route] += [(at_s, self.grants[route].generation)] * n
        if self.starts[route] > 0:
            self.starts[route] -= n
        return n


class Town:
    """Cortex and its jobs. Messages to jobs wait in ``post`` until they are delivered, lost or duplicated."""

    def __init__(self, own: SchedulerSettings | None = None) -> None:
        self.settings = own or settings()
        self.at_s = 0.0
        self.post: list[Grant] = []
        self.commands: list[Command] = []
        self.jobs: dict[str, Channel] = {}
        self.epochs: dict[str, int] = {}
        """Epochs of jobs that left: a job that returns is another run."""
        self.number = 0
        self.incarnation = 0
        self.awaited: set[str] = set()
        self.start(again=False)

    def start(self, again: bool) -> None:
        self.incarnation += 1
        self.state = SchedulerState(self.settings)
        self.post.clear()
        self.awaited = {name for name, job in self.jobs.items() if job.cortex or any(job.flights.values())}
        self.tell(SchedulerStarted(self.at_s, f"cortex {self.incarnation}", again))
        if again and not self.awaited:
            self.tell(AllRejoined(self.at_s))

    def tell(self, event: Event) -> list[Command]:
        """Process an event; return the commands. Grants that answer no request are put into the post."""
        commands = step(self.state, event)
        self.commands += commands
        self.post += [grant for grant in commands if isinstance(grant, Grant) and not grant.for_s]
        return commands

    def job(self, name: str, routes: tuple[str, ...] = (ROUTE,), wanted: int = 100) -> Channel:
        if name not in self.jobs:
            self.jobs[name] = Channel(name, routes, wanted)
            self.jobs[name].epoch += self.epochs.get(name, 0)
        return self.jobs[name]

    def join(self, name: str, wanted: int | None = None, answered: bool = True) -> list[Grant]:
        job = self.job(name)
        job.wanted = job.wanted if wanted is None else wanted
        entries = self.tell(ChannelJoined(self.at_s, job.claims(self.at_s)))
        answers = [command for command in entries if isinstance(command, Grant) and command.for_s]
        assert [grant.route for grant in answers] == list(job.routes), "one for each claim"
        if answered:
            for grant in answers:
                job.take(grant, self.at_s)
            job.cortex, job.until_s = self.state.cortex, self.at_s + self.settings.lease_s
        else:
            self.post += [msgspec.structs.replace(grant, for_s=0.0) for grant in answers]  # the answer may come late
        if self.awaited:
            self.awaited.discard(name)
            if not self.awaited:
                self.tell(AllRejoined(self.at_s))
        return answers

    def leave(self, name: str) -> None:
        self.epochs[name] = self.jobs.pop(name).epoch
        self.tell(JobLeft(self.at_s, name, self.epochs[name]))
        if name in self.awaited:
            self.awaited.discard(name)
            if not self.awaited:
                self.tell(AllRejoined(self.at_s))

    def deliver(self, place: int = 0) -> None:
        if self.post:
            grant = self.post.pop(place % len(self.post))
            if grant.job in self.jobs:
                self.jobs[grant.job].take(grant)

    def deliver_all(self) -> None:
        while self.post:
            self.deliver()

    def settle(self, rounds: int = 4) -> None:
        """Let all jobs renew and receive all messages, until nothing changes."""
        for _ in range(rounds):
            for name in list(self.jobs):
                self.join(name)
            self.deliver_all()

    def after(self, seconds: float) -> list[Command]:
        """Let time pass; the cortex is woken when it asked to be."""
        until_s, entries = self.at_s + seconds, []
        while self.state.due_s <= until_s:
            self.at_s = max(self.at_s, self.state.due_s)
            entries += self.tell(TimePassed(self.at_s))
        self.at_s = until_s
        return entries

    def report(self, route: str = ROUTE, generation: int = 0, flights: int = 0, **counts: object) -> list[Command]:
        """Report outcomes of attempts, as a branch does."""
        self.number += 1
        signals = RouteSignals(route, route, generation, in_flight=flights, **counts)  # type: ignore[arg-type]
        phase = "calling" if flights else "idle"
        report = ProgressReport(
            "branch:0", "b1", "node", self.number, phase, flights, done=self.number, routes=(signals,)
        )
        return self.tell(MemberReported(self.at_s, report))

    def trip(self, route: str = ROUTE, n: int = 30) -> None:
        """Let attempts fail until the route's breaker opens."""
        self.report(route, self.state.routes[route].breaker.generation, begun=n, failed={"overloaded": n})
        assert self.breaker(route).state == "open"

    def breaker(self, route: str = ROUTE):
        return self.state.routes[route].breaker

    def permits(self, route: str = ROUTE) -> dict[str, int]:
        return {name: job.permits(route, self.at_s) for name, job in self.jobs.items()}

    def may_use(self, job: Channel, route: str) -> int:
        """Return the most that this job may come to use, with grants that are on their way."""
        most = job.held(route, self.at_s)
        serial = job.grants[route].serial if route in job.grants else 0
        if self.at_s < job.until_s:
            coming = [g for g in self.post if (g.job, g.route, g.cortex) == (job.job, route, job.cortex)]
            most = max([most, *(grant.permits for grant in coming if grant.serial > serial)])
        return most


def pushes(commands: list[Command]) -> dict[str, int]:
    return {grant.job: grant.permits for grant in commands if isinstance(grant, Grant) and not grant.for_s}


def town(limit: int = 10, **knobs) -> Town:
    made = Town(settings(limit, **knobs))
    made.after(1.0)
    return made


def told(t: Town, job: str, route: str = ROUTE) -> tuple[int, int]:
    grant = t.jobs[job].grants[route]
    return grant.permits, grant.starts


def out(commands) -> dict[str, tuple[int, int]]:
    """Return the granted probes: (permits, starts) by job."""
    return {g.job: (g.permits, g.starts) for g in commands if isinstance(g, Grant) and g.starts > 0}
