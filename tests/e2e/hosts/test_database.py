"""A host is lost for good whose jobs have their journals in PostgreSQL: they go on elsewhere, and nobody brings it back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.hosts.database import Database, put_channel
from tests.e2e.hosts.ground import Ground, Member, done, ended

ROWS = 1_200
PERMITS = 20


@pytest.fixture(scope="module")
def database(hosts: Ground) -> Iterator[Database]:
    """Away from all hosts of the Ray, each of which knows its password."""
    found = Database(hosts.net)
    found.tell(hosts.head, hosts.a, hosts.b)
    yield found
    found.lose()


def _epoch(hosts: Ground, at: Member, job: str, state: str) -> int:
    """How often the job's channel has been started: once, where nothing was lost."""
    said = ended(hosts.cortex(at, "status", job, "--json", "--state", state))
    return int(json.loads(said.splitlines()[-1])["epoch"])


def test_a_job_goes_on_by_itself_when_the_host_of_its_channel_is_lost(hosts: Ground, database: Database) -> None:
    before = hosts.twice()
    job = put_channel(hosts, hosts.b, "away", database.state)
    driver, rows = hosts.begun(job, ROWS, PERMITS, hosts.a, "--state", database.state)
    hosts.b.lose()
    said = ended(driver)
    assert f"{ROWS:,} of {ROWS:,} rows succeeded" in said
    assert Counter(done(hosts.a, job)) == Counter(rows)
    assert _epoch(hosts, hosts.a, job, database.state) == 2, "its channel was on the host that is lost"
    assert hosts.twice() - before <= PERMITS, "what was in flight may be paid again"
    hosts.b.back()


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
