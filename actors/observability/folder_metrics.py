"""Metrics of a state folder, for ``cortex metrics``: the ends of its jobs, its disk, and whether it can be read.

A job's process takes its series along when it ends. Whoever scrapes the folder still sees how the job ended, and that a
job was interrupted, which its dead process cannot tell. Jobs that run tell of themselves, with ``--metrics-listen``, by
OTLP or on Ray's port: here they have no series, so nothing is counted twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable

from actors.common.errors import UserError
from actors.history.catalog import forgotten, read_job
from actors.history.job_facts import living
from actors.jobs.ending_cause import INTERRUPTED
from actors.journal.journal import StateFolder, StoreError
from actors.observability.metrics.job_ends import KEPT_MAX, KEPT_S, JobEnd, end_of, is_told
from actors.observability.metrics.samples import MetricSamples, NumberSample
from actors.observability.metrics.scrape_server import ANSWER_S

_log = logging.getLogger("cortex.observing.metrics")


class FolderMetrics:
    """Reader of the ends of a folder's jobs. A journal is read again only when it was written to. ``now_s``: Unix
    time."""

    def __init__(self, folder: StateFolder, kept_s: float = KEPT_S, now_s: Callable[[], float] = time.time) -> None:
        self._folder, self._kept_s, self._now_s = folder, kept_s, now_s
        self._began_s = now_s()
        self._read: dict[str, tuple[Hashable, JobEnd | None]] = {}

    def samples(self) -> MetricSamples:
        """Return the samples of now. A folder that cannot be read has ``cortex.state.up`` 0 and no ends."""
        found = MetricSamples(self._began_s)
        try:
            for end in self._ends():
                found.points += end.points()
            free, up = self._folder.free_bytes(), 1
        except (StoreError, OSError) as error:
            _log.debug("no metrics from %s: %s", self._folder.address, type(error).__name__)
            found.points.clear()
            free, up = None, 0
        found.points.append(NumberSample("cortex.state.up", (), up))
        found.points.append(NumberSample("cortex.ends.kept", (), self._kept_s))
        if free is not None:
            found.points.append(NumberSample("cortex.disk.free", (), free))
        return found

    async def ask(self) -> list[MetricSamples]:
        """Return the samples for a scrape. Without an answer of the folder in time: that it is not up."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return [await asyncio.to_thread(self.samples)]
        except TimeoutError:
            points = [NumberSample("cortex.state.up", (), 0), NumberSample("cortex.ends.kept", (), self._kept_s)]
            return [MetricSamples(self._began_s, points)]

    def _ends(self) -> list[JobEnd]:
        since_s, found = self._now_s() - self._kept_s, list[JobEnd]()
        before, self._read = self._read, {}
        for job in filter(is_told, self._folder.jobs()):
            if self._folder.changed_s(job) >= since_s:
                end = self._end(job, before.get(job))
                if end is not None and end.at_s >= since_s:
                    found.append(end)
        return sorted(found, key=lambda end: -end.at_s)[:KEPT_MAX]

    def _end(self, job: str, before: tuple[Hashable, JobEnd | None] | None) -> JobEnd | None:
        """Return the end of a job; None if the job runs or cannot be read."""
        if self._folder.is_held(job):
            return None
        mark = self._folder.mark(job)
        if before is None or before[0] != mark:
            before = mark, self._read_end(job)
        self._read[job] = before
        return before[1]

    def _read_end(self, job: str) -> JobEnd | None:
        try:
            if forgotten(self._folder, job):
                return None
            k = read_job(self._folder, job).k
            outcome = k.outcome or living(self._folder, job)
        except (UserError, ValueError) as error:
            self._folder.has(job)  # raises if it is the whole folder that cannot be read
            _log.debug("the end of %s cannot be read: %s", job, error)
            return None
        return end_of(k, INTERRUPTED) if k.outcome or outcome == INTERRUPTED else None
