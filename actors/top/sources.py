"""Sources of ``top``: journals of a state folder, live status files of running jobs, the scheduler of a cluster.

Reading is bounded: a journal is read again only after a change, and only after twenty times as long as the last read
took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from actors.common.errors import UserError
from actors.common.process_owner import stopped
from actors.driver import live_status
from actors.history.catalog import last_owner, read_job
from actors.history.job_facts import facts_of, living
from actors.journal.journal import StateFolder

READ_SHARE = 0.05
"""Share of one core's time for reading journals that keep changing."""
_OF_JOBS = ("jobs", "channels")
"""Parts of a scheduler's status that each job publishes for itself. Other parts are equal; the newest counts."""
READ_BUDGET_S = 1.0
"""Seconds of one look for journals that were never read; the rest is read in later looks."""


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Last known state of a job."""

    job: str
    facts: dict[str, Any]
    """Figures of ``actors.jobs.summary``; empty if not read yet."""
    source: str
    """``live``: status file of its process; ``journal``; ``cluster``: answer of its channel."""
    as_of_s: float
    """Time of the state, in seconds since 1970."""
    owner: str = ""
    """Process that runs the job, or ran it last."""


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Last known state of a scheduler."""

    where: str
    as_of_s: float
    status: dict[str, Any]
    """Status of the scheduler, with dates as in ``actors.driver.live_status``."""


class TopSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """State of everything at one moment."""

    at_s: float
    state: str
    jobs: tuple[JobSnapshot, ...]
    clusters: tuple[ClusterSnapshot, ...]
    trouble: str = ""
    """Reason why a part of the state is missing or old."""


class _JournalCache:
    """Cached data of one journal."""

    __slots__ = ("again_s", "facts", "mark", "owner", "turn_s")

    def __init__(self) -> None:
        self.mark: Hashable = None
        self.facts: dict[str, Any] = {}
        self.turn_s = self.again_s = 0.0
        self.owner = ""


class FolderSource:
    """Repeated look at a state folder."""

    def __init__(self, folder: StateFolder, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._kept: dict[str, _JournalCache] = {}

    def look(self, budget_s: float = READ_BUDGET_S) -> TopSnapshot:
        """Return the present state. ``budget_s``: seconds for journals that were never read."""
        now_s, until_s = self._clock(), time.monotonic() + budget_s
        published = live_status.published(self.folder)
        jobs = [
            _published(name, published[name]) if name in published else self._journal(name, now_s, until_s)
            for name in self.folder.jobs() if "~" not in name
        ]  # fmt: skip
        for name in self._kept.keys() - {each.job for each in jobs}:
            del self._kept[name]
        clusters: dict[str, ClusterSnapshot] = {}
        for found in sorted(published.values(), key=lambda found: found.asked_at_s):
            if found.cortex:
                name = str(found.cortex.get("cortex", ""))
                before = clusters[name].status if name in clusters else {}
                of_jobs = {part: before.get(part, {}) | found.cortex.get(part, {}) for part in _OF_JOBS}
                clusters[name] = ClusterSnapshot(
                    where=_where(found), as_of_s=found.asked_at_s, status=found.cortex | of_jobs
                )
        return TopSnapshot(at_s=now_s, state=self.folder.address, jobs=tuple(jobs), clusters=tuple(clusters.values()))

    def _journal(self, job: str, now_s: float, until_s: float) -> JobSnapshot:
        known = self._kept.setdefault(job, _JournalCache())
        mark = self.folder.mark(job)
        if mark != known.mark and now_s >= known.again_s and (known.mark is not None or time.monotonic() < until_s):
            began_s = time.monotonic()
            known.mark = mark
            try:
                k = read_job(self.folder, job).k
                known.facts, known.turn_s = facts_of(self.folder, job, k), k.at_s
                owner = last_owner(self.folder, job)
                known.owner = f"process {owner.pid} on {owner.host}, {owner.cluster}" if owner is not None else ""
            except (UserError, ValueError) as error:  # damaged, or its program is missing: the other jobs are shown
                known.facts = {"job": job, "outcome": "unreadable", "why": str(error)}
                known.turn_s = self.folder.changed_s(job)
            known.again_s = now_s + (time.monotonic() - began_s) / READ_SHARE
        facts = known.facts
        if facts.get("outcome") in ("running", "interrupted", "detached"):
            facts = facts | {"outcome": living(self.folder, job)}
        as_of_s = known.turn_s if facts else self.folder.changed_s(job)
        return JobSnapshot(job=job, facts=facts, source="journal", as_of_s=as_of_s, owner=known.owner)


def _published(job: str, found: live_status.LiveStatus) -> JobSnapshot:
    halted = stopped(found.owner)
    facts = found.facts | ({"waits": f"its process is {halted}"} if halted else {})
    return JobSnapshot(job=job, facts=facts, source="live", as_of_s=found.at_s, owner=_where(found))


def _where(found: live_status.LiveStatus) -> str:
    return f"process {found.owner.pid} on {found.owner.host}, {found.owner.cluster}"


def brief(seen: TopSnapshot) -> dict[str, Any]:
    """Return the state as plain facts, for ``cortex top --json``."""
    return {
        "at_s": seen.at_s, "state": seen.state, "trouble": seen.trouble,
        "jobs": [
            {"job": each.job, "source": each.source, "as_of_s": each.as_of_s, "owner": each.owner, **each.facts}
            for each in seen.jobs
        ],
        "clusters": [{"where": each.where, "as_of_s": each.as_of_s, **each.status} for each in seen.clusters],
    }  # fmt: skip
