"""Whatever is lost, late, doubled or dies: no permit is used twice, no probe too many, and in the end all is shared.

What all jobs may come to use is never above the limit, or above what was out when the limit was cut; after a cut it
only falls, and one lease time later it is within the limit, but for calls that are still under way.
"""

from __future__ import annotations

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cortex.scheduler.pools import PoolMemo
from cortex.scheduler.protocol import Command, Event, PoolCapped, SchedulerStarted
from cortex.scheduler.reports import Grant
from cortex.scheduler.state import SchedulerState
from cortex.scheduler.step import step
from policies.limits.limit import PoolCaps
from tests.support.fake_job_channels import OTHER, ROUTE, TIMEOUT_S, Channel, Town
from tests.support.fake_job_channels import settings as knobs

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failing row of deeds is short enough to be read as it is; making it shorter takes minutes."""
JOBS = ("a", "b", "c", "d")
LIMIT = 12
DEEDS = st.tuples(
    st.sampled_from(
        [
            *("join", "join", "join", "join unheard", "begin", "begin", "end", "end"),
            *("post", "post", "lose", "double", "tick", "tick", "lease"),
            *("leave", "cut", "uncut", "channel dies", "cortex dies", "want none", "want some", "fails", "well"),
        ]
    ),
    st.integers(0, 3),
    st.integers(1, 12),
)


class Street(Town):
    """A town in which anything may happen."""

    def __init__(self) -> None:
        super().__init__(knobs(LIMIT))
        self.cap = LIMIT
        self.job("d", (ROUTE, OTHER))

    def do(self, what: str, place: int, n: int) -> None:
        name = JOBS[place]
        job = self.job(name)
        if what in ("join", "join unheard"):
            self.join(name, answered=what == "join")
        elif what == "begin":
            for route in job.routes:
                job.begin(route, self.at_s, n)
        elif what == "end":
            self.end(job, n, {"answered": 1})
        elif what == "fails":
            self.end(job, n, {"failed": {"overloaded": 1}})
            self.report(ROUTE, self.generation(ROUTE), failed={"overloaded": n * 3})
        elif what == "well":
            self.report(ROUTE, self.generation(ROUTE), answered=n)
        elif what == "post":
            self.deliver(n)
        elif what == "lose" and self.post:
            self.post.pop(n % len(self.post))
        elif what == "double" and self.post:
            self.post.append(self.post[n % len(self.post)])
        elif what == "tick":
            self.pass_by(n / 4)
        elif what == "lease":
            self.pass_by(n * 2.0)
        elif what in ("want none", "want some"):
            job.wanted = 0 if what == "want none" else n * 3
            self.join(name)
        else:
            self.rare(what, job, n)

    def rare(self, what: str, job: Channel, n: int) -> None:
        if what == "leave" and not any(job.flights.values()) and not self.awaited:
            self.post = [grant for grant in self.post if grant.job != job.job]
            self.leave(job.job)
        elif what in ("cut", "uncut"):
            self.cap = n if what == "cut" else LIMIT
            self.tell(PoolCapped(self.at_s, "ann", ROUTE, PoolCaps(concurrency=self.cap)))
        elif what == "channel dies":
            job.epoch += 1
            job.cortex, job.until_s = "", -1.0
            job.grants, job.starts = {}, dict.fromkeys(job.routes, -1)
        elif what == "cortex dies" and (keeper := self.keeper()) is not None:
            self.start(again=True)
            self.join(keeper.job)

    def end(self, job: Channel, n: int, counts: dict) -> None:
        """Calls end, and the branch tells of it."""
        for route in job.routes:
            done, job.flights[route] = job.flights[route][:n], job.flights[route][n:]
            for _, generation in done:
                self.report(route, generation, **counts)

    def pass_by(self, seconds: float) -> None:
        self.after(seconds)
        for job in self.jobs.values():
            for route, flights in job.flights.items():  # each call keeps its deadline
                late = [flight for flight in flights if flight[0] + TIMEOUT_S <= self.at_s]
                job.flights[route] = [flight for flight in flights if flight not in late]
                for _, generation in late:
                    self.report(route, generation, failed={"timed_out": 1})
        for route in (ROUTE, OTHER):
            self.report(route)

    def report(self, route: str = ROUTE, generation: int = 0, flights: int = 0, **counts: object) -> list[Command]:
        flights = sum(len(job.flights.get(route, ())) for job in self.jobs.values())
        return super().report(route, generation, flights, **counts)

    def generation(self, route: str) -> int:
        return self.state.routes[route].breaker.generation if route in self.state.routes else 0

    def keeper(self) -> Channel | None:
        """One that was told what was set by hand, and how the breaker is; what none was told is lost with the cortex."""
        if self.awaited or ROUTE not in self.state.routes:
            return None
        for job in self.live():
            if self.at_s < job.until_s and job.memos[ROUTE]:
                kept = msgspec.msgpack.decode(job.memos[ROUTE], type=PoolMemo)
                generation = kept.breaker.generation if kept.breaker else 0
                if (kept.caps, generation) == (self.state.pools[ROUTE].caps, self.generation(ROUTE)):
                    return job
        return None

    def live(self) -> list[Channel]:
        return [job for job in self.jobs.values() if job.cortex == self.state.cortex]

    def counts(self) -> dict[str, tuple[int, int]]:
        """By route: what all jobs may come to use, and what the cortex takes to be in use."""
        found = {}
        for route in (ROUTE, OTHER):
            pool = self.state.pools.get(route)
            used = sum(self.may_use(job, route) for job in self.jobs.values() if route in job.routes)
            found[route] = (used, pool.in_use if pool else 0)
        return found

    def probing(self, route: str) -> int:
        """Calls under way that were begun as probes, or may yet be: of the present stay half open."""
        generation, n = self.generation(route), 0
        for job in self.jobs.values():
            if route not in job.routes:
                continue
            n += sum(begun[1] == generation for begun in job.flights[route])
            grant = job.grants.get(route)
            if grant is not None and grant.generation == generation and self.at_s < job.until_s:
                n += max(0, job.starts[route])
        return n


@given(st.lists(DEEDS, max_size=60))
@settings(max_examples=100, deadline=None, phases=PHASES)
def test_no_permit_is_used_twice_whatever_happens(deeds):
    street = Street()
    before = street.counts()
    for what, place, n in deeds:
        cap, incarnation, listening = street.cap, street.incarnation, bool(street.awaited)
        street.do(what, place, n)
        limits = {ROUTE: max(cap, street.cap), OTHER: LIMIT}
        now = street.counts()
        for route, (used, counted) in now.items():
            if not street.awaited:
                assert used <= counted, (what, place, n, route)
            if incarnation == street.incarnation and not listening:
                assert counted <= max(limits[route], before[route][1]), (what, place, n, route)
            else:
                assert used <= max(limits[route], before[route][0]), (what, place, n, route)
        before = now
        if street.generation(ROUTE):
            the_breaker_holds(street)
    in_the_end(street)


def the_breaker_holds(street: Street) -> None:
    state = street.breaker().state
    if state == "half-open":
        assert street.probing(ROUTE) <= street.settings.breaker.probes
    if state == "open":
        grants = [job.grants[ROUTE] for job in street.jobs.values() if ROUTE in job.grants]
        own = [g for g in grants if (g.cortex, g.generation) == (street.state.cortex, street.generation(ROUTE))]
        assert not any(grant.permits for grant in own)


def in_the_end(street: Street) -> None:
    """Faults stop: within a few lease times every job has its fair share of what is well."""
    for job in street.jobs.values():
        job.wanted = 100
    for _ in range(80):
        for name, job in list(street.jobs.items()):
            for route in job.routes:
                job.begin(route, street.at_s)
            street.end(job, 100, {"answered": 1})
            street.join(name)
        street.deliver_all()
        street.pass_by(2.0)
    street.settle()
    if street.jobs:
        assert street.breaker().state == "closed"
        shares = street.permits().values()
        assert sum(shares) == min(street.cap, 100 * len(shares))
        assert max(shares) - min(shares) <= 1, shares


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "end", "join", "post", "tick"]), st.integers(0, 3), st.integers(1, 12)),
        max_size=40,
    ),
    st.integers(1, 8),
)
@settings(max_examples=100, deadline=None, phases=PHASES)
def test_after_a_cut_leases_only_fall_and_are_within_it_one_lease_time_later(deeds, cap):
    street = Street()
    for name in JOBS:
        street.join(name)
    street.settle()
    street.rare("cut", street.job("a"), cap)
    cut_s, before = street.at_s, sum(street.permits().values())
    for what, place, n in deeds:
        street.do(what, place, n)
        now = sum(street.permits().values())
        assert now <= max(before, cap), what
        before = now
    if street.at_s < cut_s + street.settings.lease_s:
        street.pass_by(cut_s + street.settings.lease_s - street.at_s)
    assert sum(street.permits().values()) <= cap


def plainly(commands: list[Command]) -> list[Command]:
    return [msgspec.structs.replace(c, memo=b"") if isinstance(c, Grant) else c for c in commands]


@given(st.lists(DEEDS, max_size=60))
@settings(max_examples=40, deadline=None, phases=PHASES)
def test_the_same_events_give_the_same_commands_and_the_state_can_be_written_down(deeds):
    street = Street()
    shadow = SchedulerState(street.settings)
    plain = street.tell

    def told(event: Event) -> list[Command]:
        commands = plain(event)
        nonlocal shadow
        if isinstance(event, SchedulerStarted):
            shadow = SchedulerState(street.settings)
        assert plainly(step(shadow, event)) == plainly(commands)
        blob = msgspec.msgpack.encode(street.state)
        shadow = msgspec.msgpack.decode(blob, type=SchedulerState)
        assert shadow == street.state
        return commands

    street.tell = told  # type: ignore[method-assign]
    street.start(again=False)
    for what, place, n in deeds:
        street.do(what, place, n)
