"""Incidents in simulated samples, one or more for each alert rule, and the world of each (``test_alerts``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.scraped_world import GIB, SCRAPE_S, Job, World

CAUSE_S = 75 * 60
"""An hour before the incident, for alerts that compare with it."""
REST_S = 90 * 60
MINUTE = 60
HOUR = 60 * MINUTE
Act = Callable[[World, float], None]


@dataclass(frozen=True)
class Incident:
    """What happens to a world. ``during`` is called in each step of the incident with the seconds since its cause, and
    ``mend`` once; times in seconds."""

    during: Act
    lasts_s: int
    within_s: int
    mend: Callable[[World], None]
    clears_s: int
    made: Callable[[bool], World] = lambda ray: World(ray)
    roads: tuple[bool, ...] = (False, True)
    subject: str = 'cortex_job_id="j1"'
    stands: bool = True
    """Whether the alert still fires just before the mend; else it has come to its longest time."""
    also: tuple[str, ...] = ()
    """Alerts that fire beside, and that Alertmanager mutes."""


def _set(what: str, value: Any, of_job: bool = False) -> Act:
    return lambda world, s: setattr(world.job if of_job else world, what, value)


def _back(what: str, value: Any, of_job: bool = False) -> Callable[[World], None]:
    return lambda world: setattr(world.job if of_job else world, what, value)


def _ends(outcome: str, cause: str) -> Act:
    def act(world: World, s: float) -> None:
        if world.job.runs:
            world.job.ended(outcome, cause, world.now_s)

    return act


def _resume(world: World) -> None:
    world.job.goes_on()


def _with(**more: Any) -> Callable[[bool], World]:
    return lambda ray: World(ray, jobs=[Job(**more)])


def _disk(per_s: float) -> Act:
    return lambda world, s: setattr(world, "free_bytes", max(0.0, world.free_bytes - per_s * SCRAPE_S))


def _small(ray: bool) -> World:
    return World(ray, free_bytes=30.0 * GIB)


def _room(world: World) -> None:
    world.free_bytes = 200.0 * GIB


def _outage(world: World, s: float) -> None:
    world.job.lag_s, world.job.share, world.up = s, 0.0, world.ray


def _database_is_back(world: World) -> None:
    world.job.lag_s, world.job.share, world.up, world.job.seen = 0.01, 1.0, True, True


def _head_dies(world: World, s: float) -> None:
    world.head = world.job.runs = False


def _gcs_dies(world: World, s: float) -> None:
    """The head's server dies; the cortex on another node still tells for 90 s that channels are gone, then ends with its Ray."""
    world.job.runs, world.orphaned, world.head = False, 2, s < 90


def _gcs_is_back(world: World) -> None:
    world.orphaned = 0
    _head_is_back(world)


def _unlabelled(ray: bool) -> World:
    """A cluster that is scraped without the label of its name, and a teller of ends without one."""
    return World(ray, cluster="", beside=True)


def _beside(ray: bool) -> World:
    """A cluster whose state folder is also told of by ``cortex metrics``."""
    return World(ray, beside=True)


def _cut_off(world: World, s: float) -> None:
    """The head dies with its channels, and their locks on the jobs are free a moment later."""
    world.head = False
    if s >= SCRAPE_S:
        _killed(world, s)


def _head_is_back(world: World) -> None:
    world.head, world.job.worker = True, "w2"
    world.job.goes_on()


def _slow_database(world: World, s: float) -> None:
    """So slow that neither the job's page is scraped in time nor that of ``cortex metrics`` has ends."""
    world.up, world.job.seen = False, s < MINUTE


def _fills(world: World, s: float) -> None:
    """The disk is full after five minutes; the process of the job ends with it, and takes its series along."""
    world.free_bytes = max(0.0, 30.0 * GIB * (1 - s / 300))
    if s >= 300:
        _ends("interrupted", "disk")(world, s)


def _as_before(world: World) -> None:
    """What filled the disk is removed, and the job goes on."""
    world.free_bytes = 30.0 * GIB
    _resume(world)


def _killed(world: World, s: float) -> None:
    _ends("interrupted", "interrupted")(world, s)


def _refused(world: World, s: float) -> None:
    """The provider refuses the account; the route is probed once a minute."""
    world.job.blocked, world.job.share, world.refused, world.breaker = True, 0.0, True, 1 if s % 60 == 0 else 2


def _accepted(world: World) -> None:
    world.job.blocked, world.job.share, world.refused, world.breaker = False, 1.0, False, 0


def _vanishes(world: World, s: float) -> None:
    """The job ends in a way that nothing tells of, until its journal can be read again."""
    if world.job.runs:
        world.job.end_told = False
        world.job.ended("complete", "none", world.now_s)


def _is_told(world: World) -> None:
    world.job.end_told = True


def _goes_on_elsewhere(world: World) -> None:
    """In another cluster of the namespace."""
    world.job.goes_on()
    world.job.cluster = "c2"


def _cancelled(world: World) -> None:
    world.job.end_at_rest = "cancelled", "cancel", world.now_s


def _ends_failing(share: float, rows: int = 50) -> Act:
    """The job is over within a scrape, complete, with rows that failed."""

    def act(world: World, s: float) -> None:
        if world.job.runs:
            world.job.rows, world.job.succeeded, world.job.failed = rows, rows * (1 - share), rows * share
            world.job.ended("complete", "none", world.now_s)

    return act


def _next_night(world: World) -> None:
    """The next job of this name has begun, and fails in no row."""
    world.job.rows, world.job.succeeded, world.job.failed = 100_000, 0.0, 0.0
    world.job.goes_on()


def _goes_on_apart(world: World) -> None:
    """In a process of its own; the cluster tells of the end there for a day."""
    world.job.leaves()
    world.job.goes_on()


def _apart_to_the_end(ray: bool) -> World:
    """A job that has half an hour of work left at the incident. Nothing tells of ends outside its cluster."""
    return World(ray, jobs=[Job(rows=60_000)])


def _retried_apart(world: World) -> None:
    """In a process of its own, in which every row succeeds within a scrape."""
    world.job.leaves()
    world.job.succeeded, world.job.failed = float(world.job.rows), 0.0
    world.job.ended("complete", "none", world.now_s)


def _one_row_in_twelve_minutes(world: World, s: float) -> None:
    world.job.share = float(s % (12 * MINUTE) == 0) / (world.job.per_s * SCRAPE_S)


def _later_and_quicker(world: World) -> None:
    world.job.deadline_s, world.job.share = 1e9, 1.0


def _refused_but_goes_on(world: World, s: float) -> None:
    """The job has another route, on which it goes on."""
    world.refused, world.breaker = True, 1 if s % 60 == 0 else 2


def _throttled(world: World, s: float) -> None:
    world.job.throttled = 0.4


INCIDENTS: dict[str, list[Incident]] = {
    "CortexNoProgress": [
        Incident(_set("share", 0.0, True), 20 * MINUTE, 16 * MINUTE, _back("share", 1.0, True), MINUTE),
        Incident(  # a deadline that the job meets if it goes on: the rate of a stand is no forecast
            _set("share", 0.0, True), 35 * MINUTE, 16 * MINUTE, _back("share", 1.0, True), MINUTE,
            made=_with(deadline_s=3.6 * 3600),
        ),
        *(Incident(  # by its clock the last call ended five hours ago, or ends in five hours
            _set("share", 0.0, True), 20 * MINUTE, 16 * MINUTE, _back("share", 1.0, True), MINUTE,
            made=_with(ahead_s=hours * 3600.0),
        ) for hours in (-5, 5)),
        Incident(  # a budget is spent, and the calls in flight hang
            lambda world, s: (setattr(world.job, "over_budget", True), setattr(world.job, "share", 0.0)), 20 * MINUTE, 16 * MINUTE,
            lambda world: (setattr(world.job, "over_budget", False), setattr(world.job, "share", 1.0)), MINUTE,
        ),
    ],
    "CortexBreakerOpen": [
        Incident(
            lambda world, s: setattr(world, "breaker", 1 if s % 240 == 0 and s else 2),  # a probe now and then
            12 * MINUTE, 6 * MINUTE, _back("breaker", 0), MINUTE,
            subject='cortex_subject="sonnet",cortex_subject_kind="route"',
        )
    ],
    "CortexBudgetBurn": [
        Incident(
            _set("usd_per_row", 0.02, True), 25 * MINUTE, 20 * MINUTE, _back("cap_usd", 5_000.0, True), MINUTE,
            made=_with(cap_usd=500.0),
        )
    ],
    "CortexBudgetNearlySpent": [
        Incident(
            lambda world, s: setattr(world.job, "cap_usd", world.job.cost * 1.01), 10 * MINUTE, 6 * MINUTE,
            _back("cap_usd", 500.0, True), MINUTE, made=_with(cap_usd=500.0, rows_told=False),
        )
    ],
    "CortexDeadlineAtRisk": [
        Incident(
            _set("share", 0.3, True), 40 * MINUTE, 25 * MINUTE, _back("deadline_s", 30 * 3600.0, True), MINUTE,
            made=_with(deadline_s=3.5 * 3600),
        ),
        Incident(  # no call has ended for 10 minutes, again and again, and never for the 15 that another alert asks for
            _one_row_in_twelve_minutes, 60 * MINUTE, 30 * MINUTE, _later_and_quicker, MINUTE, made=_with(deadline_s=3.5 * 3600),
        ),
    ],
    "CortexThrottledShare": [Incident(_throttled, 25 * MINUTE, 20 * MINUTE, _back("throttled", 0.0, True), 6 * MINUTE)],
    "CortexRowsFailing": [Incident(_set("failing", 0.3, True), 20 * MINUTE, 12 * MINUTE, _back("failing", 0.0, True), 20 * MINUTE)],
    "CortexAccountBlocked": [
        Incident(_ends("partial", "blocked"), 10 * MINUTE, MINUTE, _resume, MINUTE),
        Incident(
            lambda world, s: (setattr(world.job, "blocked", True), setattr(world.job, "share", 0.0)), 30 * MINUTE, MINUTE,
            lambda world: (setattr(world.job, "blocked", False), setattr(world.job, "share", 1.0)), MINUTE,
        ),
        Incident(_refused, 35 * MINUTE, MINUTE, _accepted, MINUTE, made=_with(deadline_s=3.6 * 3600)),
        Incident(
            _refused_but_goes_on, 12 * MINUTE, 6 * MINUTE, _accepted, MINUTE,
            subject='cortex_subject="sonnet",cortex_subject_kind="route"',
        ),
        Incident(_ends("partial", "blocked"), 10 * MINUTE, MINUTE, _goes_on_apart, MINUTE, made=_beside, roads=(True,)),
    ],
    "CortexJournalLag": [Incident(_set("lag_s", 8.0, True), 10 * MINUTE, 6 * MINUTE, _back("lag_s", 0.1, True), MINUTE)],
    "CortexDiskFilling": [
        Incident(_disk(GIB / 150), 40 * MINUTE, 40 * MINUTE, _room, MINUTE, made=_small, subject="")
    ],
    "CortexDiskFull": [
        Incident(_disk(GIB / 10), 6 * MINUTE, 5 * MINUTE, _room, MINUTE, made=_small, subject=""),
        Incident(_set("free_bytes", 0.0), 3 * MINUTE, MINUTE, _room, MINUTE, subject=""),
        Incident(  # within a scrape, and its job is over at once
            lambda world, s: (_disk(GIB * 8)(world, s), _ends("interrupted", "interrupted")(world, s)), 90, MINUTE,
            lambda world: (_room(world), _resume(world)), MINUTE, roads=(False,), subject="",
        ),
        *(Incident(  # no forecast beside it, for a target that is gone, or of room that is back
            _fills, minutes * MINUTE, 5 * MINUTE, _as_before, MINUTE, made=_small, roads=(False,), subject='cortex_folder="/s"',
            also=("CortexInterrupted",),
        ) for minutes in (20, 60)),
    ],
    "CortexChannelOrphaned": [Incident(_set("orphaned", 1), 8 * MINUTE, 6 * MINUTE, _back("orphaned", 0), MINUTE, subject="")],
    "CortexRestarting": [
        Incident(
            lambda world, s: setattr(world, "restarts", world.restarts + 1), 6 * MINUTE, 5 * MINUTE, lambda world: None,
            14 * MINUTE, subject='cortex_role="branch"',
        )
    ],
    "CortexNodeDrained": [Incident(_set("drained", 1), 15 * MINUTE, 11 * MINUTE, _back("drained", 0), MINUTE, subject="")],
    "CortexNodeLost": [
        Incident(
            lambda world, s: setattr(world, "lost_s", world.lost_s or world.now_s), 15 * MINUTE, MINUTE, _back("lost_s", 0.0), MINUTE,
            subject='cortex_node="pod-2"',
        )
    ],
    "CortexHeadLost": [
        Incident(_head_dies, 3 * HOUR, 3 * MINUTE, _head_is_back, MINUTE, roads=(True,)),
        Incident(_head_dies, 12 * MINUTE, 3 * MINUTE, _head_is_back, MINUTE, made=_beside, roads=(True,)),  # one alert for it
        Incident(_head_dies, 12 * MINUTE, 3 * MINUTE, _head_is_back, MINUTE, made=_unlabelled, roads=(True,)),
        *(Incident(_gcs_dies, 12 * MINUTE, 5 * MINUTE, _gcs_is_back, MINUTE, made=made, roads=(True,)) for made in (_beside, _unlabelled)),
    ],
    "CortexEndedEarly": [
        Incident(_ends("partial", "cap"), 10 * MINUTE, MINUTE, _resume, MINUTE),
        Incident(_ends("partial", "deadline"), 3 * HOUR, MINUTE, _cancelled, MINUTE, made=_beside),  # thrown away
        Incident(_ends("failed", "failed"), 10 * MINUTE, MINUTE, _resume, MINUTE),
        Incident(_ends("partial", "condemned"), 10 * MINUTE, MINUTE, _resume, MINUTE),
        Incident(_ends("partial", "cap"), 10 * MINUTE, MINUTE, _goes_on_apart, MINUTE, made=_beside, roads=(True,)),
        Incident(_ends("partial", "cap"), 10 * MINUTE, MINUTE, _goes_on_apart, MINUTE, made=_apart_to_the_end, roads=(True,)),
    ],
    "CortexEndedWithFailures": [
        Incident(_ends_failing(0.3), 10 * MINUTE, MINUTE, _next_night, MINUTE),
        Incident(_ends_failing(0.7, rows=20), 3 * HOUR, MINUTE, _next_night, MINUTE, roads=(False,)),
        Incident(_ends_failing(0.3, rows=1000), 10 * MINUTE, MINUTE, _retried_apart, MINUTE, made=_beside, roads=(True,)),
    ],
    "CortexInterrupted": [
        Incident(_killed, 3 * HOUR, 3 * MINUTE, _resume, MINUTE, roads=(False,)),
        Incident(_cut_off, 12 * MINUTE, 4 * MINUTE, _head_is_back, MINUTE, made=_beside, roads=(True,)),
    ],
    "CortexNothingReported": [
        Incident(_set("seen", False, True), 12 * MINUTE, 6 * MINUTE, _back("seen", True, True), MINUTE),
        Incident(
            _set("seen", False, True), 10 * HOUR, 6 * MINUTE, _back("seen", True, True), MINUTE, roads=(False,),
            made=_with(rows=1_000_000),
        ),
        Incident(_vanishes, 25 * HOUR, 6 * MINUTE, lambda world: None, MINUTE, roads=(True,), stands=False),  # a day at most
        Incident(_vanishes, 2 * HOUR, 6 * MINUTE, _is_told, MINUTE),
        Incident(_vanishes, 2 * HOUR, 6 * MINUTE, _goes_on_elsewhere, MINUTE, roads=(True,)),
    ],
    "CortexDatabaseAway": [
        Incident(_outage, 8 * MINUTE, 3 * MINUTE, _database_is_back, MINUTE, subject=""),
        Incident(
            _outage, 30 * MINUTE, 3 * MINUTE, _database_is_back, MINUTE, subject="", roads=(True,),
            made=_with(deadline_s=3.6 * 3600),
        ),
        Incident(_slow_database, 15 * MINUTE, 3 * MINUTE, _database_is_back, MINUTE, roads=(False,), subject=""),
        Incident(_set("up", False), 5 * MINUTE, 2 * MINUTE, _back("up", True), MINUTE, roads=(False,), subject=""),
    ],
    "CortexSlow": [Incident(_set("share", 0.03, True), 30 * MINUTE, 22 * MINUTE, _back("share", 1.0, True), 3 * MINUTE)],
}  # fmt: skip
"""Alert: incidents in which it must fire, and no other."""
