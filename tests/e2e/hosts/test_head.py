"""The head is lost. With what it knew on its disk a job goes on when it is back; without, it is resumed in a new Ray."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.cluster.node_watchdog import SILENT_S
from tests.e2e import tools
from tests.e2e.hosts.host_namespaces import WORLD
from tests.e2e.hosts.multi_host_ray import ROCKSDB, TOLD_S, Ground, done, ended

ROWS = 1_500
PERMITS = 20
RESUMABLE = 3


def test_a_job_goes_on_when_the_head_is_back(hosts: Ground) -> None:
    """Its driver waits for 45 s; a machine so slow that the head takes longer has it end, resumable, saying why."""
    before = hosts.twice()
    driver, rows = hosts.begun("head", ROWS, PERMITS)
    hosts.head.lose()
    lost_s = time.monotonic()
    hosts.head.back()
    away_s = time.monotonic() - lost_s
    driver.wait(TOLD_S)
    if away_s > SILENT_S - 10 and driver.returncode == RESUMABLE:
        assert "does not answer" in ended(driver, code=RESUMABLE)
        driver = hosts.cortex(hosts.a, "resume", "head")
    ended(driver)
    assert Counter(done(hosts.a, "head")) == Counter(rows)
    assert hosts.twice() - before <= PERMITS, "what was with a branch of the head may be paid again"


@pytest.mark.release
def test_without_it_a_new_head_has_the_job_resumed(hosts: Ground) -> None:
    before = hosts.twice()
    driver, rows = hosts.begun("anew", ROWS, PERMITS)
    hosts.provider.pull(WORLD)  # the job must not be through before the head is there
    hosts.head.lose()
    hosts.head.come()
    try:
        hosts.head.forget()
        hosts.head.up()
        text, _ = driver.communicate(timeout=120)
        assert driver.returncode == RESUMABLE and "has begun anew: cortex resume anew" in text, text
        assert "StackTrace" not in text, "Ray would end the process"
        for member in (hosts.a, hosts.b):
            tools.until(lambda ray=member.ray: ray.poll() is not None, TOLD_S, f"the end of the node of {member.name}")
        with ThreadPoolExecutor() as both:
            list(both.map(lambda member: (member.start_ray_again(), member.up()), (hosts.a, hosts.b)))
        hosts.provider.plug(WORLD)
        ended(hosts.cortex(hosts.a, "resume", "anew"))
    finally:
        hosts.provider.plug(WORLD)
        hosts.head.environ_of_ray = ROCKSDB
    assert Counter(done(hosts.a, "anew")) == Counter(rows)
    assert hosts.twice() - before <= 2 * PERMITS
