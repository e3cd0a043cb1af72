"""A cable is pulled, and put back. The provider is reached by another one, so that both sides of a split can go on paying:
only one of them writes, and what the other was told comes late or is lost within the promise."""

from __future__ import annotations

import subprocess
import time
from collections import Counter

import pytest

from tests.e2e import tools
from tests.e2e.hosts.multi_host_ray import TOLD_S, Ground, Member, done, ended

ROWS = 1_200
PERMITS = 24
LONG, FEW = 2_000, 12
"""Rows and permits of a job that takes half a minute at least: the split is over before it is."""
SHORT_S = 1.0
"""Ray takes nobody for dead for that."""


def _dead(hosts: Ground, host: Member, by: Member) -> bool:
    """Whether the cortex knows that a host is gone. Where it lived there itself, it has come back elsewhere then."""
    found = hosts.top(by)["clusters"]
    return bool(found) and not found[0]["nodes"].get(host.node, {"alive": False})["alive"]


def _ray_ended(ray: subprocess.Popen[str] | None) -> bool:
    return ray is None or ray.poll() is not None


@pytest.mark.release
def test_a_hosts_cable_is_pulled_and_put_back(hosts: Ground) -> None:
    before = hosts.twice()
    driver, rows = hosts.begun("cable", ROWS, PERMITS)
    hosts.b.pull()
    time.sleep(SHORT_S)
    hosts.b.plug()
    time.sleep(SHORT_S)
    hosts.b.pull()
    tools.until(lambda: _dead(hosts, hosts.b, hosts.a), TOLD_S, "the word that host b is gone")
    hosts.b.plug()
    ended(driver)
    assert Counter(done(hosts.a, "cable")) == Counter(rows)
    assert hosts.twice() - before <= PERMITS, "what was with its branch may be paid again"
    tools.until(lambda: _ray_ended(hosts.b.ray), TOLD_S, "the end of the node that was taken for dead")
    hosts.b.start_ray_again()
    hosts.b.up()


@pytest.mark.release
def test_a_split_between_a_job_and_the_head_ends_with_one_writer(hosts: Ground) -> None:
    before = hosts.twice()
    driver, rows = hosts.begun("split", LONG, FEW)
    hosts.a.pull()
    tools.until(
        lambda: hosts.seen("split").get("outcome") == "waiting", TOLD_S, "the word that the job waits for its host"
    )
    there = len(done(hosts.a, "split"))
    hosts.a.plug()
    text = ended(driver, code=3)
    assert "has died: cortex resume split" in text
    tools.until(lambda: _ray_ended(hosts.a.ray), TOLD_S, "the end of the node that was taken for dead")
    hosts.a.start_ray_again()
    hosts.a.up()
    ended(hosts.cortex(hosts.a, "resume", "split"))
    ended(hosts.cortex(hosts.a, "replay", "split"))
    assert Counter(done(hosts.a, "split")) == Counter(rows) and there < len(rows)
    assert hosts.twice() - before <= 2 * FEW, "what was in flight on either side"
