"""Watch over leases: what it counts as under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.invariants_leases import LeasesWatch
from tests.simulation.lease_books import Out

CALLS = {("j", 1, 1): 50.0, ("j", 2, 1): 50.0, ("j", 3, 1): 10.0, ("k", 1, 1): 50.0}
"""Calls of two jobs, by the latest time at which they end."""


def under_way(*calls: tuple[str, int, int]) -> Any:
    """A world whose one branch makes these calls."""
    made = [SimpleNamespace(job=job, call=SimpleNamespace(goal=goal, attempt=attempt)) for job, goal, attempt in calls]
    branch = SimpleNamespace(seat=SimpleNamespace(_actor=SimpleNamespace(_under=made)))
    return SimpleNamespace(loop=None, lives={"branch:0": branch})


@pytest.mark.parametrize(
    ("ended", "calls", "count"),
    [((), (), 3), (("j",), (), 1), (("j",), (("j", 2, 1),), 2), (("j", "k"), (), 0), (("j", "k"), (("k", 1, 1),), 1)],
)
def test_of_a_job_whose_channel_has_ended_those_calls_count_that_a_branch_has_under_way(
    ended: tuple[str, ...], calls: tuple[tuple[str, int, int], ...], count: int
) -> None:
    watch = LeasesWatch(None, under_way(*calls))  # type: ignore[arg-type]
    watch._routes = {"m": Out("pool"), "other": Out("another")}
    watch._routes["m"].calls, watch._routes["other"].calls = dict(CALLS), dict(CALLS)
    watch._orphaned = set(ended)
    assert watch._pruned("pool", 20.0) == count
