"""A host is lost for good whose jobs have their journals in PostgreSQL: they go on elsewhere, and nobody brings it back.
Or it is cut off, and goes on by itself: two channels of one job live, and both reach its journal and the provider."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest

from tests.e2e import tools
from tests.e2e.hosts.database import Database, journal, put_channel
from tests.e2e.hosts.multi_host_ray import TOLD_S, Ground, Member, done, ended

ROWS = 1_200
PERMITS = 20
LONG, FEW = 1_200, 8
"""Rows and permits of a job that is longer than it takes to find a host dead."""


def _epoch(hosts: Ground, at: Member, job: str, state: str) -> int:
    """How often the job's channel has been started: once, where nothing was lost."""
    text = ended(hosts.cortex(at, "status", job, "--json", "--state", state))
    return int(json.loads(text.splitlines()[-1])["epoch"])


def _channels(host: Member) -> set[str]:
    """The processes of channels that live on a host; what one does just now stands behind its title."""
    lines = ended(host.start("ps", "-eo", "pid,args", environ=os.environ)).splitlines()
    return {line.split()[0] for line in lines if line.split()[1].startswith("ray::Channel")}


@pytest.mark.release  # `make e2e` kills such a node on one host
def test_a_job_goes_on_by_itself_when_the_host_of_its_channel_is_lost(hosts: Ground, database: Database) -> None:
    before = hosts.twice()
    job = put_channel(hosts, hosts.b, "away", database.state)
    driver, rows = hosts.begun(job, ROWS, PERMITS, hosts.a, "--state", database.state)
    hosts.b.lose()
    text = ended(driver)
    assert f"{ROWS:,} of {ROWS:,} rows succeeded" in text
    assert Counter(done(hosts.a, job)) == Counter(rows)
    assert _epoch(hosts, hosts.a, job, database.state) == 2, "its channel was on the host that is lost"
    assert hosts.twice() - before <= PERMITS, "what was in flight may be paid again"
    hosts.b.back()


@pytest.mark.release
def test_a_job_outlives_its_driver_and_all_that_stood_beside_it(hosts: Ground, database: Database) -> None:
    before = hosts.twice()
    job = put_channel(hosts, hosts.a, "orphan", database.state)
    _, rows = hosts.begun(job, ROWS, PERMITS, hosts.a, "--state", database.state)
    hosts.a.lose()
    ended(hosts.cortex(hosts.b, "attach", job, "--wait", "--state", database.state))
    assert Counter(done(hosts.b, job)) == Counter(rows), "all of them, from the database: those on the lost disk, too"
    assert _epoch(hosts, hosts.b, job, database.state) == 2
    assert hosts.twice() - before <= PERMITS
    hosts.a.back()


@pytest.mark.release
def test_a_split_that_leaves_a_channel_and_a_branch_on_both_sides_ends_with_one_writer(
    hosts: Ground, database: Database
) -> None:
    before, head = hosts.twice(), hosts.head
    hosts.spread("sides")
    filler, few = hosts.begun("filler", 150, 4, head)  # while there is a job, it is known where branches live
    (found,) = hosts.top(head)["clusters"]
    nodes = [one["node"] for name, one in found["staff"].items() if name.startswith("branch:")]
    cut, other = (hosts.b, hosts.a) if hosts.b.node in nodes else (hosts.a, hosts.b)
    assert cut.node in nodes, "two branches are spread over three hosts"
    job = put_channel(hosts, cut, "two", database.state)
    driver, rows = hosts.begun(job, LONG, FEW, other, "--state", database.state)
    channels = _channels(cut)
    cut.pull()
    epoch, seq = journal(database, other, job)
    tools.until(lambda: journal(database, other, job) > (1, seq), TOLD_S, "a turn of either side", driver)
    assert (epoch, journal(database, other, job)[0]) == (1, 1), "the side that is cut off goes on by itself"
    tools.until(lambda: journal(database, other, job)[0] == 2, TOLD_S, "another channel for the job", driver)
    assert channels and channels <= _channels(cut), "the first one lives, too"
    there = len(done(other, job))
    tools.until(lambda: len(done(other, job)) > there + FEW, TOLD_S, "results of the other side", driver)
    cut.plug()
    assert f"{LONG:,} of {LONG:,} rows succeeded" in ended(driver)
    assert Counter(done(other, job)) == Counter(rows)
    ended(hosts.cortex(other, "replay", job, "--state", database.state))
    assert journal(database, other, job)[0] == 2, "the first one has not come back to it"
    assert hosts.twice() - before <= 2 * FEW, "what was in flight on either side"
    ended(filler)
    assert Counter(done(head, "filler")) == Counter(few)
    tools.until(
        lambda: cut.ray is None or cut.ray.poll() is not None, TOLD_S, "the end of the node that was taken for dead"
    )
    cut.start_ray_again()
    cut.up()
