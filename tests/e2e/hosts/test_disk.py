"""A host is lost with the disk that holds a job's journal: the job waits for it, says so, and goes on when it is back."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from tests.e2e import tools
from tests.e2e.hosts.multi_host_ray import TOLD_S, Ground, done, ended

ROWS = 900
PERMITS = 20


def _waiting(seen: dict[str, object]) -> str:
    """Why a job waits; nothing while it does not."""
    return str(seen["why"]) if seen.get("outcome") == "waiting" else ""


@pytest.mark.release
def test_a_job_waits_for_its_disk_and_goes_on_when_that_is_back(hosts: Ground) -> None:
    before = hosts.twice()
    _, rows = hosts.begun("disk", ROWS, PERMITS)
    hosts.a.lose()
    reported = tools.until(lambda: _waiting(hosts.seen("disk")), TOLD_S, "the word that it waits")
    assert f"for host {hosts.a.address}, which is gone with the job's journal on its disk" in reported
    hosts.a.back()
    there = ("running", "complete")  # without a driver it goes as far as branches on other hosts hold its key
    tools.until(lambda: hosts.seen("disk").get("outcome") in there, TOLD_S, "the job, back by itself")
    ended(hosts.cortex(hosts.a, "resume", "disk"))
    assert Counter(done(hosts.a, "disk")) == Counter(rows)
    assert hosts.twice() - before <= PERMITS, "what was in flight may be paid again"


@pytest.mark.release
def test_a_disk_that_is_brought_to_another_host_takes_its_job_along(hosts: Ground) -> None:
    before = hosts.twice()
    _, rows = hosts.begun("moved", ROWS, PERMITS)
    hosts.a.lose()
    shutil.copytree(hosts.a.disk / "state", hosts.b.disk / "state", dirs_exist_ok=True)
    for name in ("moved.jsonl", "moved-out.jsonl"):
        shutil.copy(hosts.a.disk / name, hosts.b.disk)
    ended(hosts.cortex(hosts.b, "resume", "moved"))
    assert Counter(done(hosts.b, "moved")) == Counter(rows)
    assert hosts.twice() - before <= PERMITS
    hosts.a.back()
