"""While slow start goes up, each round of answers is news: reports come sooner."""

from __future__ import annotations

import pytest

from cortex.scheduler.reports import ProgressReport, RouteSignals
from cortex.scheduler.state import SchedulerSettings
from cortex.scheduler.step import SOON_S, report_after_s
from policies.limits import limit
from policies.limits.limit import PoolLimit, RateLimits, ReportedBucket, UsageSample, new, observe
from policies.limits.limit_policy import PoolLoad, ProbeMode
from policies.limits.probing import Probing
from tests.support.fake_job_channels import OTHER, ROUTE, Town
from tests.unit.policies.limits.test_limit import POLICY, sample


@pytest.mark.parametrize(
    ("reports", "soon"),
    [
        ([sample(1)], True),  # the first answers of all
        ([sample(0)], False),
        ([sample(20), sample(40)], True),  # doubled
        ([sample(20), sample(40, binding=False)], False),
        ([sample(20), sample(40, in_flight=3, begun=0)], False),  # enough is allowed
        ([sample(20), sample(40, unwell=60)], False),
        ([sample(20), sample(40, throttled=1)], False),
        ([sample(20), sample(40, rate=RateLimits(requests=ReportedBucket(600, 500)))], False),  # it is told: no search
    ],
)
def test_whoever_reports_hears_whether_the_next_round_of_answers_may_double_it(
    reports: list[UsageSample], soon: bool
) -> None:
    limit = new(POLICY)
    assert [observe(POLICY, limit, 100 + at_s, each) for at_s, each in enumerate(reports)][-1] is soon


def test_a_limit_that_grows_back_asks_for_no_hurry() -> None:
    limit = PoolLimit(
        Probing(20.0, ProbeMode.CONCURRENCY, ceiling=40.0, cut=0.5, return_s=8.0), PoolLoad(latency_s=1.0)
    )
    before = limit.probing.concurrency
    assert not any(observe(POLICY, limit, 100 + at_s, sample(20)) for at_s in range(3))
    assert limit.probing.concurrency > before


def test_reports_are_wanted_sooner_while_slow_start_goes_up() -> None:
    scene = Town(SchedulerSettings(limit=limit.LimitPolicy(start=20)))
    scene.join("a", 1_000)
    of, of_another = (
        ProgressReport("branch:0", "b1", "node", 9, "calling", 0, routes=(RouteSignals(name, name, 0),))
        for name in (ROUTE, OTHER)
    )
    often = scene.settings.report_s

    def wanted(report: ProgressReport = of) -> float:
        return report_after_s(scene.state, report)

    assert wanted() == often
    for permits in (20, 40, 80):
        scene.report(begun=permits, answered=permits, latency_s=permits, flights=permits)
        assert wanted() == SOON_S
        assert wanted(of_another) == often
        scene.after(SOON_S)
    scene.report(flights=20)
    assert wanted() == SOON_S, "not used yet: the grants may be on their way"
    scene.after(often)
    scene.report(flights=20)
    assert wanted() == often


def test_nobody_is_asked_to_report_less_often_for_it() -> None:
    quick = SOON_S / 4
    scene = Town(SchedulerSettings(limit=limit.LimitPolicy(start=20), report_s=quick))
    scene.join("a", 1_000)
    scene.report(begun=20, answered=20, latency_s=20, flights=20)
    report = ProgressReport("branch:0", "b1", "node", 9, "calling", 0, routes=(RouteSignals(ROUTE, ROUTE, 0),))
    assert report_after_s(scene.state, report) == quick
