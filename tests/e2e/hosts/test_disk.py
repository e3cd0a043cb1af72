"""A host is lost with the disk that holds a job's journal: the job waits for it, says so, and goes on when it is back."""

from __future__ import annotations

import json
import shutil
from collections import Counter

from tests.cluster.processes import names_in, write_rows
from tests.e2e import tools
from tests.e2e.hosts.ground import Ground, Member, ended

ROWS = 900
PERMITS = 20


def _begun(hosts: Ground, job: str) -> list[str]:
    """A job under way whose driver, journal and files are on host ``a``."""
    rows = write_rows(hosts.a.disk / f"{job}.jsonl", ROWS, job)
    words = (f"{job}.jsonl", "-o", f"{job}-out.jsonl", "--job", job, "--concurrency", str(PERMITS))
    driver = hosts.cortex(hosts.a, "batch", *words)
    tools.until(lambda: len(_done(hosts.a, job)) > ROWS // 8, 60, f"results of {job}", driver)
    return rows


def _done(host: Member, job: str) -> list[str]:
    path = host.disk / f"{job}-out.jsonl"
    return names_in(path) if path.exists() else []


def _seen(hosts: Ground, job: str) -> dict[str, object]:
    """A job, as ``top`` on another host shows it."""
    told = json.loads(ended(hosts.cortex(hosts.b, "top", "--once", "--json")).splitlines()[-1])
    return next((each for each in told["jobs"] if each["job"] == job), {})


def test_a_job_waits_for_its_disk_and_goes_on_when_that_is_back(hosts: Ground) -> None:
    before = hosts.stats()["second_complete_answers_by_user"]
    rows = _begun(hosts, "disk")
    hosts.a.lose()
    waiting = tools.until(lambda: (found := _seen(hosts, "disk")).get("outcome") == "waiting" and found, 40, "the word that it waits")
    assert f"for host {hosts.a.address}, which is gone with the job's journal on its disk" in str(waiting["why"])
    hosts.a.back()
    there = ("running", "complete")  # without a driver it goes as far as branches on other hosts hold its key
    tools.until(lambda: _seen(hosts, "disk").get("outcome") in there, 60, "the job, back by itself")
    ended(hosts.cortex(hosts.a, "resume", "disk"))
    assert Counter(_done(hosts.a, "disk")) == Counter(rows)
    assert hosts.stats()["second_complete_answers_by_user"] - before <= PERMITS, "what was in flight may be paid again"


def test_a_disk_that_is_brought_to_another_host_takes_its_job_along(hosts: Ground) -> None:
    before = hosts.stats()["second_complete_answers_by_user"]
    rows = _begun(hosts, "moved")
    hosts.a.lose()
    shutil.copytree(hosts.a.disk / "state", hosts.b.disk / "state", dirs_exist_ok=True)
    for name in ("moved.jsonl", "moved-out.jsonl"):
        shutil.copy(hosts.a.disk / name, hosts.b.disk)
    ended(hosts.cortex(hosts.b, "resume", "moved"))
    assert Counter(_done(hosts.b, "moved")) == Counter(rows)
    assert hosts.stats()["second_complete_answers_by_user"] - before <= PERMITS
    hosts.a.back()
