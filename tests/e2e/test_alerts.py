"""Every alert rule in Prometheus' own test runner, at four moments of an incident, and through ordinary work.

It is quiet before, fires within its time, is the only one that fires, still fires when the cause is mended, hours later
too, and is quiet again soon after that; under the names of both roads, for a process of its own and on a standing cluster of Ray. And none fires at a job's ordinary end,
restart, pause, with shards, at an upgrade, or in a day of fifty jobs. The samples are simulated (``scraped_world``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.boards.alerts import ALERTS
from tests.e2e.alert_incidents import CAUSE_S, HOUR, INCIDENTS, MINUTE, REST_S, Incident
from tests.e2e.scraped_world import SCRAPE_S, Job, World
from tests.e2e.tools import checked
from tests.support.repository_rules import ROOT

RULES = ROOT / "k8s" / "prometheus" / "cortex-rules.yaml"


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
