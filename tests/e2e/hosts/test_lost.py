"""A host that goes for good costs a job time and no row; one that is told beforehand costs nothing at all."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.e2e.hosts.multi_host_ray import TOLD_S, Ground, done, ended

ROWS = 1_200
PERMITS = 24


@pytest.mark.release
def test_a_host_that_is_told_of_its_end_is_emptied_and_nothing_is_asked_twice(hosts: Ground) -> None:
    """What a spot instance's notice calls: ``cortex drain --node here``."""
    before = hosts.twice()
    driver, rows = hosts.begun("spot", ROWS, PERMITS)
    text = ended(hosts.cortex(hosts.b, "drain", "--node", "here", "--within", "60s"))
    assert "is empty, and gets no more work" in text
    hosts.b.lose()
    text = ended(driver)
    assert f"{ROWS:,} of {ROWS:,} rows succeeded" in text
    assert Counter(done(hosts.a, "spot")) == Counter(rows)
    assert hosts.twice() == before, "what was in flight there was finished first"
    hosts.b.back()


@pytest.mark.release  # `make e2e` kills such a node on one host
def test_a_host_that_is_lost_for_good_costs_no_row(hosts: Ground) -> None:
    before = hosts.twice()
    driver, rows = hosts.begun("gone", ROWS, PERMITS)
    hosts.b.lose()
    ended(driver)
    assert Counter(done(hosts.a, "gone")) == Counter(rows)
    assert hosts.twice() - before <= PERMITS
    until_s = time.monotonic() + TOLD_S
    while hosts.b.node in _living(hosts):  # the job may be through before Ray has given the host up
        assert time.monotonic() < until_s
        time.sleep(0.5)
    assert hosts.a.node in _living(hosts)
    hosts.b.back()


def _living(hosts: Ground) -> set[str]:
    (cluster,) = hosts.top(hosts.a)["clusters"]
    return {name for name, node in cluster["nodes"].items() if node["alive"]}
