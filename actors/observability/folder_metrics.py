"""Metrics of a state folder, for ``cortex metrics``: the ends of its jobs, its disk, and whether it can be read.

A job's process takes its series along when it ends. Whoever scrapes the folder still sees how the job ended, and that a
job was interrupted, which its dead process cannot tell. Jobs that run tell of themselves, with ``--metrics-listen``, by
OTLP or on Ray's port: here they have no series, so nothing is counted twice.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future

import msgspec

from actors.common.errors import UserError
from actors.files.local.os_errors import told
from actors.history.catalog import forgotten, read_job
from actors.history.job_facts import is_attended, living
from actors.jobs.ending_cause import DISK, INTERRUPTED, is_full
from actors.journal.errors import FAULTS
from actors.journal.journal import DatabaseUnreachable, FolderFault, NoSuchJob, StateFolder, StoreError
from actors.observability.metrics.instruments import FAULT, FOLDER
from actors.observability.metrics.job_ends import KEPT_S, JobEnd, end_of, is_told, worth_telling
from actors.observability.metrics.journal_size import place_of
from actors.observability.metrics.samples import MetricSamples, NumberSample
from actors.observability.metrics.scrape_server import ANSWER_S

UNREAD_AGAIN_S = 300.0
"""Seconds until a journal that could not be read is tried again, unless it is written to before."""

LATE_S = 3600.0
LATE_MAX = 50
"""Journals written to before ``LATE_S`` that one reading reads for the first time. Each takes 20 ms: a folder with a
thousand jobs a day would not be read within the time of a scrape when this process starts."""

_log = logging.getLogger("cortex.observing.metrics")


class FolderMetrics:
    """Reader of the ends of a folder's jobs. A journal is read again only when it was written to. ``now_s``: Unix
    time. One thread at most reads the folder, however long it takes: a hung mount holds each thread for good."""

    def __init__(
        self, folder: StateFolder, kept_s: float = KEPT_S, now_s: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda line: None, create: bool = False,
    ) -> None:  # fmt: skip
        """``tell``: takes a line when something is wrong with the folder, and when it can be read again. ``create``:
        make the folder if there is none, unless it was there before: then it was lost."""
        self._folder, self._kept_s, self._now_s, self._tell = folder, kept_s, now_s, tell
        self._began_s = now_s()
        self._read: dict[str, _Read] = {}
        self._create = create
        self._reader: Future[MetricSamples] | None = None
        self.problem = ""
        """Fault of the folder at the last reading, in one line; empty if there is none."""

    def samples(self) -> MetricSamples:
        """Return the samples of now. A folder that cannot be read has ``cortex.state.up`` 0 and no ends."""
        found, fault, free = MetricSamples(self._began_s), "", None
        try:
            self._see_readable()
            for end in self._ends():
                found.points += end.points()
            unread = sum(each.failed for each in self._read.values())
            found.points.append(NumberSample("cortex.ends.unread", (), unread))
            free = self._folder.free_bytes()
            self._note("")
        except FolderFault as error:
            fault = self._note(str(error), error.fault)
        except StoreError as error:
            fault = self._note(str(error), "away" if isinstance(error, DatabaseUnreachable) else "unreadable")
        except OSError as error:
            fault = self._note(f"cannot read the state folder {self._folder.address}: {told(error)}", "away")
        if fault:
            found.points.clear()
        found.points += self._state(fault)
        if free is not None:
            found.points.append(NumberSample("cortex.disk.free", ((FOLDER, place_of(self._folder)),), free))
        return found

    def _see_readable(self) -> None:
        try:
            self._folder.see_readable()
        except FolderFault as error:
            if not self._create or error.fault not in ("missing", "empty"):
                raise
            self._folder.prepare()
        self._create = False

    async def ask(self) -> list[MetricSamples]:
        """Return the samples for a scrape. Without an answer of the folder in time: that it is not up."""
        reader = self._reader
        if reader is None or reader.done():
            reader = self._reader = self._apart()
        try:
            async with asyncio.timeout(ANSWER_S):
                return [await asyncio.wrap_future(reader)]
        except TimeoutError:
            text = f"the state folder {self._folder.address} does not answer: look at its mount, or at its database"
            return [MetricSamples(self._began_s, self._state(self._note(text, "away")))]

    async def health(self) -> str:
        """Return what is wrong with the folder, in one line; empty if nothing is."""
        await self.ask()
        return self.problem

    def _apart(self) -> Future[MetricSamples]:
        """Read in a thread that does not hold up the end of the process, as those of an executor do."""
        future: Future[MetricSamples] = Future()
        future.set_running_or_notify_cancel()  # a scrape that gives up does not end the reading

        def read() -> None:
            try:
                future.set_result(self.samples())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=read, name="cortex-state-folder", daemon=True).start()
        return future

    def _state(self, fault: str) -> list[NumberSample]:
        """Return the samples of the folder itself. ``fault``: word of ``FAULTS``; empty if nothing is wrong."""
        found = [NumberSample("cortex.state.up", (), int(not fault))]
        found += [NumberSample("cortex.state.fault", ((FAULT, each),), int(each == fault)) for each in FAULTS]
        return [*found, NumberSample("cortex.ends.kept", (), self._kept_s)]

    def _note(self, problem: str, fault: str = "") -> str:
        """Note what is wrong, tell it once, and return the fault."""
        before, self.problem = self.problem, problem
        if problem and problem != before:
            self._tell(f"no ends of jobs are told: {problem}")
        elif before and not problem:
            self._tell(f"the state folder {self._folder.address} can be read again")
        return fault

    def _ends(self) -> list[JobEnd]:
        now_s, found, late = self._now_s(), list[JobEnd](), 0
        before, self._read = self._read, {}
        changed = ((self._folder.changed_s(job), job) for job in filter(is_told, self._folder.jobs()))
        for at_s, job in sorted((each for each in changed if each[0] >= now_s - self._kept_s), reverse=True):
            is_late = job not in before and at_s < now_s - LATE_S
            if (is_late and late == LATE_MAX) or self._folder.is_held(job) or is_attended(self._folder, job):
                continue
            late += is_late  # one that is held is not read: however many are, older ends have their turn
            end = self._end(job, before.get(job))
            if end is not None and end.at_s >= now_s - self._kept_s:
                found.append(end)
        return worth_telling(found)

    def _end(self, job: str, before: _Read | None) -> JobEnd | None:
        """Return the end of a job that no process holds; None if it has none, or cannot be read."""
        mark = self._folder.mark(job)
        if before is None or before.mark != mark or (before.failed and before.at_s + UNREAD_AGAIN_S <= self._now_s()):
            again = before is not None and before.failed
            before = self._read_end(job, mark, logging.DEBUG if again else logging.WARNING)
        self._read[job] = before
        return before.end

    def _read_end(self, job: str, mark: Hashable, level: int) -> _Read:
        now_s = self._now_s()
        try:
            if forgotten(self._folder, job):
                return _Read(mark, now_s)
            k = read_job(self._folder, job).k
            outcome = k.outcome or living(self._folder, job)
        except NoSuchJob:  # it never began, or was removed meanwhile
            return _Read(mark, now_s)
        except (UserError, ValueError) as error:
            self._folder.see_readable()  # raises if it is the whole folder that cannot be read
            _log.log(level, "the end of job %s is not told: %s", job, error)
            return _Read(mark, now_s, failed=True)
        end = end_of(k, INTERRUPTED) if k.outcome or outcome == INTERRUPTED else None
        if end is not None and end.outcome == INTERRUPTED and is_full(self._folder.free_bytes()):
            end = msgspec.structs.replace(end, cause=DISK)  # until the journal is written to again, also with room
        return _Read(mark, now_s, end)


class _Read(msgspec.Struct, frozen=True):
    """Reading of one journal."""

    mark: Hashable
    at_s: float
    """Unix time."""
    end: JobEnd | None = None
    failed: bool = False
