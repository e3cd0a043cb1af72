"""Every alert rule in Prometheus' own test runner, at four moments of an incident, and through ordinary work.

It is quiet before, fires within its time, is the only one that fires, still fires when the cause is mended, hours later
too, and is quiet again soon after that; under the names of both roads, for a process of its own and on a standing cluster of Ray. And none fires at a job's ordinary end,
restart, pause, with shards, at an upgrade, or in a day of fifty jobs. The samples are simulated (``scraped_world``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.boards.alerts import ALERTS
from tests.e2e.scraped_world import GIB, SCRAPE_S, Job, World
from tests.e2e.tools import checked
from tests.support.repository_rules import ROOT

RULES = ROOT / "k8s" / "prometheus" / "cortex-rules.yaml"
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


def test_every_alert_has_its_incident():
    assert list(INCIDENTS) == list(dict.fromkeys(alert.name for alert in ALERTS))


def _lived(incident: Incident, ray: bool) -> World:
    world = incident.made(ray)
    while world.now_s < CAUSE_S:
        world.step()
    for s in range(0, incident.lasts_s, SCRAPE_S):
        incident.during(world, float(s))
        world.step()
    incident.mend(world)
    while world.now_s < CAUSE_S + incident.lasts_s + REST_S:
        world.step()
    return world


FIRING = 'group by (alertname{more}) (ALERTS{{alertstate="firing"}})'


def _moments(name: str, incident: Incident, ray: bool) -> dict[str, Any]:
    world = _lived(incident, ray)
    labels = tuple(part.partition("=")[0] for part in incident.subject.split(",") if part)
    own = "".join(f", {label}" for label in labels)
    held = "".join(f", {part}" for part in incident.subject.split(",") if part)
    only = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
    of_it = f'group by (alertname{own}) (ALERTS{{alertname="{name}", alertstate="firing"{held}}})'
    fires = [{"labels": f'{{alertname="{name}"{held}}}', "value": 1}]
    end_s, mended_s = int(world.now_s), CAUSE_S + incident.lasts_s
    ever = FIRING.format(more="").replace('ALERTS{alertstate="firing"}', f'count_over_time(ALERTS{{alertstate="firing"}}[{end_s}s])')
    return {
        "name": f"{name}, {'Ray' if ray else 'a process'}, {INCIDENTS[name].index(incident)}",
        "interval": f"{SCRAPE_S}s",
        "input_series": world.scrapes.written(),
        "promql_expr_test": [
            {"expr": only, "eval_time": f"{CAUSE_S - 1}s", "exp_samples": []},
            {"expr": of_it, "eval_time": f"{CAUSE_S + incident.within_s}s", "exp_samples": fires},
            {
                "expr": of_it, "eval_time": f"{mended_s - SCRAPE_S}s",
                "exp_samples": fires if incident.stands else [],
            },
            {"expr": only, "eval_time": f"{mended_s + incident.clears_s + SCRAPE_S}s", "exp_samples": []},
            {"expr": only, "eval_time": f"{end_s}s", "exp_samples": []},
            {
                "expr": ever, "eval_time": f"{end_s}s",
                "exp_samples": [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in sorted((name, *incident.also))],
            },
        ],
    }  # fmt: skip


@pytest.mark.parametrize("name", INCIDENTS)
def test_each_alert_fires_in_its_incident_alone_and_within_its_time_and_stands(promtool, tmp_path, name):
    _tested(promtool, tmp_path, [_moments(name, one, ray) for one in INCIDENTS[name] for ray in one.roads])


# -- ordinary work ---------------------------------------------------------------------------------------------------


def _runs(world: World, minutes: float) -> World:
    for _ in range(int(minutes * MINUTE / SCRAPE_S)):
        world.step()
    return world


def _ordinary_end(ray: bool, exporter: bool = True) -> World:
    """Ends complete, with a tail of one slow call."""
    world = World(ray, jobs=[Job(rows=24_000)], exporter=exporter)
    _runs(world, 39.5)
    world.job.queue, world.job.flights, world.job.share = 0, 1, 0.001
    _runs(world, 12)
    world.job.share = 1.0
    return _runs(world, 100)


def _ended_without_last_scrape(ray: bool) -> World:
    """Ends between two scrapes, with rows left at the last one; the process goes at once."""
    world = _runs(World(ray, exporter=ray), 30)
    world.job.ended("complete", "none", world.now_s + 5)
    return _runs(world, 60)


def _cluster_per_job(ray: bool) -> World:
    """As of Kueue: the cluster goes five minutes after its job."""
    world = _runs(World(True), 30)
    world.job.ended("complete", "none", world.now_s + 5)
    _runs(world, 5)
    world.head = False
    return _runs(world, 60)


def _job_after_job(ray: bool) -> World:
    """With a pause between two jobs, and of one name: the end of the first is none of the second."""
    world = _runs(World(ray, jobs=[Job(rows=6_000)]), 15)
    _runs(world, 10)
    world.jobs.append(Job("j2", rows=6_000, began_s=world.now_s))
    _runs(world, 30)
    world.jobs.append(Job("j1", rows=30_000, began_s=world.now_s))
    world.jobs[0].end = None
    return _runs(world, 90)


def _restart(ray: bool) -> World:
    """A channel dies and is started again in another process."""
    world = _runs(World(ray), 30)
    world.job.seen, world.restarts = False, 1
    _runs(world, 0.5)
    world.job.seen, world.job.worker = True, "w2"
    return _runs(world, 40)


def _pause(ray: bool) -> World:
    """Drained by a person, and resumed after a while."""
    world = _runs(World(ray), 30)
    world.job.ended("partial", "drain", world.now_s)
    _runs(world, 40)
    world.job.goes_on()
    world.job.worker = "w2"
    return _runs(world, 40)


def _shards(ray: bool) -> World:
    """Eight shards, to the end."""
    return _runs(World(ray, jobs=[Job(rows=24_000, shards=8)]), 80)


def _upgrade(ray: bool) -> World:
    """The process is killed, and the new release continues the job within two scrapes; on Ray the head is replaced."""
    world = _runs(World(ray), 75)
    if ray:
        world.head = False
    else:
        world.job.ended("interrupted", "interrupted", world.now_s)
    _runs(world, 1)
    world.head, world.job.worker, world.job.instance = True, "w2", "i" if ray else "i2"
    world.job.goes_on()
    return _runs(world, 75)


def _budget_spent(ray: bool) -> World:
    """Waits for the budget of its label, which a person has set, until it is whole again."""
    world = _runs(World(ray), 30)
    world.job.over_budget, world.job.share, world.job.flights = True, 0.0, 0
    _runs(world, 180)
    world.job.over_budget, world.job.share, world.job.flights = False, 1.0, 20
    return _runs(world, 40)


def _clock_set(hours: float) -> Callable[[bool], World]:
    """The clock of the job's machine is set by so much, and set right again after an hour."""

    def made(ray: bool) -> World:
        world = _runs(World(ray), 75)
        world.job.ahead_s = hours * HOUR
        _runs(world, 60)
        world.job.ahead_s = 0.0
        return _runs(world, 60)

    return made


def _rotated_key(ray: bool) -> World:
    """The breaker of the key that was replaced has no series; that of the new one has."""
    world = _runs(World(ray), 30)
    world.breaker = 2
    _runs(world, 1)
    world.breaker = None
    _runs(world, 15)
    world.breaker = 0
    return _runs(world, 15)


def _first_minutes(ray: bool) -> World:
    """A deadline with a little to spare: the forecast of the first minutes is that of the samples that there are."""
    rows = 24_000  # 40 minutes of work
    return _runs(World(ray, jobs=[Job(rows=rows, began_s=600.0, deadline_s=600 + 50 * MINUTE, cap_usd=rows * 0.0012)]), 90)


def _first_teller(ray: bool) -> World:
    """Jobs have ended for hours when the first teller of ends is scraped: it tells of none of them."""
    world = _runs(World(ray, exporter=False), 30)
    world.job.ended("complete", "none", world.now_s)
    world.job.end_told = False
    _runs(world, 45)
    world.exporter = True
    return _runs(world, 60)


def _some_fail(ray: bool) -> World:
    """Two rows of a hundred fail, and nine of a trial of twenty."""
    world = _runs(World(ray, jobs=[Job(rows=6_000, failing=0.02), Job("trial", rows=20, failing=0.45)]), 60)
    return world


def _short(ray: bool) -> World:
    """Over before it was scraped once."""
    world = World(ray, jobs=[Job(began_s=1e9)])
    _runs(world, 20)
    world.job.ended("complete", "none", world.now_s - 4)
    return _runs(world, 80)


ORDINARY: dict[str, Callable[[bool], World]] = {
    "end": _ordinary_end,
    "end without an exporter": lambda ray: _ordinary_end(ray, exporter=ray),
    "end between two scrapes": _ended_without_last_scrape,
    "cluster of one job": _cluster_per_job,
    "job after job": _job_after_job,
    "restart": _restart,
    "pause": _pause,
    "shards": _shards,
    "upgrade": _upgrade,
    "rotated key": _rotated_key,
    "clock set back": _clock_set(-5),
    "clock set ahead": _clock_set(5),
    "budget spent": _budget_spent,
    "first minutes": _first_minutes,
    "some rows fail": _some_fail,
    "first scrape of ends": _first_teller,
    "short": _short,
}


def _quiet(name: str, world: World, interval_s: int = SCRAPE_S) -> dict[str, Any]:
    end_s = int(world.now_s)
    ever = f'group by (alertname, cortex_job_id) (count_over_time(ALERTS{{alertstate="firing"}}[{end_s}s]))'
    there = f'count(count_over_time({{__name__=~"(ray_)?cortex_rows_expected"}}[{end_s}s])) > bool 0'
    checks = [{"expr": ever, "eval_time": f"{end_s}s", "exp_samples": []}]
    if name != "short":
        checks.append({"expr": there, "eval_time": f"{end_s}s", "exp_samples": [{"labels": "{}", "value": 1}]})
    return {"name": name, "interval": f"{interval_s}s", "input_series": world.scrapes.written(), "promql_expr_test": checks}


@pytest.mark.parametrize("name", ORDINARY)
def test_no_alert_fires_through_ordinary_work(promtool, tmp_path, name):
    _tested(promtool, tmp_path, [_quiet(name, ORDINARY[name](ray)) for ray in (False, True)])


@pytest.mark.long
def test_no_alert_fires_in_a_day_of_fifty_jobs(promtool, tmp_path):
    """Jobs of all sizes, one after another and side by side, with some failures, some throttling and two pauses.
    SIMULATED: samples of a day, in accelerated time."""
    jobs = [
        Job(
            f"job-{n}", rows=200 * (1 + n * n % 97), per_s=3 + n % 11, began_s=60.0 + n * 1_600, instance=f"i{n % 5}",
            failing=(0.0, 0.01, 0.03)[n % 3], throttled=(0.0, 0.05)[n % 2], shards=4 if n % 7 == 0 else 0,
            deadline_s=60.0 + n * 1_600 + 4 * 3600 if n % 4 == 0 else 0.0,
        )
        for n in range(50)
    ]  # fmt: skip
    world = World(jobs=jobs)
    while world.now_s < 24 * 3600:
        world.step()
        paused = [job for job in jobs[10:50:20] if job.runs and world.now_s > job.began_s + 900 and not job.lag_s > 0.02]
        for job in paused:
            job.ended("partial", "drain", world.now_s)
            job.lag_s = 0.05
        for job in jobs:
            if job.end is not None and job.end[1] == "drain" and world.now_s > job.end[2] + 1_200:
                job.goes_on()
    assert sum(job.end is not None and job.end[0] == "complete" for job in jobs) == 50
    _tested(promtool, tmp_path, [_quiet("day", world)])


def _tested(promtool: str, folder: Path, tests: list[dict[str, Any]]) -> None:
    rules = yaml.load(RULES.read_text(), yaml.CSafeLoader)
    for rule in rules["groups"][0]["rules"]:
        rule.pop("annotations", None)
    (folder / "rules.yaml").write_text(yaml.dump(rules, Dumper=yaml.CSafeDumper))
    asked = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{SCRAPE_S}s", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.dump(asked, Dumper=yaml.CSafeDumper, width=10**9))
    checked([promtool, "test", "rules", str(folder / "tests.yaml")])
