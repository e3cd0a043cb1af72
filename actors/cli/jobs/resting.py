"""Jobs that rest because their cluster was lost, and whether they may go on without a person.

A job goes on by itself only where nothing but its cluster is missing: its channel is known to be gone, all its rows are
in its journal, its program is unchanged, and nobody has stopped it. What a user has cancelled or drained is never begun
again, and neither is a job that keeps ending its cluster (``TRIES_MAX``).
"""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from actors.common.errors import UserError
from actors.driver import control_note
from actors.history.catalog import by_events, last_owner, last_state
from actors.history.job_facts import is_attended
from actors.journal.journal import DatabaseUnreachable, StateFolder, StoreError
from actors.programs import loader
from cortex.state.events import NODE_ENDED
from cortex.state.state import State
from cortex.values.limits import JobTerms

TRIES_MAX: Final = 3
"""Times that a job is begun again without a person, within ``TRIES_S``: its own prompts may be what fills the memory of
the head."""
TRIES_S: Final = 3600.0
"""Seconds for which such a time counts."""
AGAIN_S: Final = 120.0
"""Seconds between two such times: what the job lacked may come, such as a node."""
_KIND, _HALTED = "tended", "halted"
_GONE = "its program is gone"


class RestingJob(msgspec.Struct, frozen=True):
    """Job that rests because its cluster was lost, or its channel there. ``needs``: what keeps it from going on without
    a person; empty if nothing does."""

    job: str
    cluster: str
    needs: str = ""


class _Read(msgspec.Struct, frozen=True):
    """Facts of one journal at ``mark``. ``whole``: its program was unchanged when they were read, so they hold for as
    long as the mark does."""

    mark: Hashable
    cluster: str = ""
    cut_off: bool = False
    needs: str = ""
    terms: JobTerms | None = None
    whole: bool = True


class RestingJobs:
    """Reader of the jobs of a folder that rest. A journal is read again only when it was written to, or when the
    program that it needs is back.

    A lock that went with a connection is free until its holder is back (``StateFolder.back_s``). So a job of such a
    store rests only if nobody had it at two looks that are so far apart, nor at those between. ``ends``: whether a look
    is to end early.
    """

    def __init__(
        self, folder: StateFolder, now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic, ends: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._folder, self._now_s, self._monotonic_s, self._ends = folder, now_s, monotonic_s, ends
        self._read: dict[str, _Read] = {}
        self._free_s: dict[str, float] = {}
        """Time of the first look at which nobody had the job, by the monotonic clock."""
        self._programs: dict[tuple[str, bytes, str], str] = {}
        """Fault of each program, as of this look; empty if it has none."""
        self.unsure = False
        """Whether the last look has left out jobs that rest if the next says so too."""

    def look(self) -> list[RestingJob]:
        """Return the jobs that rest because their cluster was lost, the one that was written first first. Raises
        ``StoreError``: the store may have lost its locks, and every job wants two more looks."""
        if any(fault.startswith(_GONE) for fault in self._programs.values()):
            importlib.invalidate_caches()  # a folder that was missing, such as a mount, is not looked for again
        self._programs, self.unsure = {}, False
        try:
            names = [job for job in reversed(self._folder.jobs()) if "~" not in job]  # a child goes on with its parent
            self._read = {job: read for job, read in self._read.items() if job in names}
            self._free_s = {job: at_s for job, at_s in self._free_s.items() if job in names}
            resting = [job for job in names if not self._ends() and self._rests(job)]
            return [RestingJob(job, self._read[job].cluster, self._needs(job)) for job in resting]
        except StoreError:
            self._free_s = {}
            raise

    def _rests(self, job: str) -> bool:
        folder, looked_s = self._folder, self._monotonic_s()
        mark, before = folder.mark(job), self._read.get(job)
        if folder.is_held(job) or is_attended(folder, job) is not False:
            self._free_s.pop(job, None)
            return False  # it runs, or nobody knows
        if before is not None and before.mark != mark:
            self._free_s.pop(job, None)
        free_s = self._free_s.setdefault(job, self._monotonic_s())
        if before is None or before.mark != mark or not (before.whole or self._program(before.terms)):
            before = self._read[job] = self._facts(job, mark)
        sure = not folder.back_s or looked_s - free_s >= folder.back_s
        self.unsure = self.unsure or (before.cut_off and not sure)
        return before.cut_off and sure

    def _facts(self, job: str, mark: Hashable) -> _Read:
        folder = self._folder
        try:
            owner = last_owner(folder, job)
            if owner is None or owner.ends_with_its_driver:
                return _Read(mark)
            k, cut_off = _state(folder, job)
        except DatabaseUnreachable:
            raise  # nothing is known of the job
        except (UserError, ValueError):  # forgotten, damaged, never begun
            return _Read(mark)
        fault = self._program(k.terms)
        needs = "its input is not read to the end" if k.terms.streams and not k.source_ended else ""
        if cut_off is None:  # whoever keeps its text has its end written beside its journal: it has none
            cut_off = bool(fault) and k.terms.keeps_text
        return _Read(mark, owner.cluster, cut_off, needs, k.terms, not fault)

    def _program(self, terms: JobTerms | None) -> str:
        """Return the fault of a job's program; empty if it has none."""
        if terms is None:
            return ""
        place = (terms.program, terms.params_json, terms.fingerprint)
        if place not in self._programs:
            try:
                self._programs[place] = "" if loader.is_unchanged(*place) else "its program has changed"
            except ValueError as error:
                self._programs[place] = f"{_GONE}: {error}"
        return self._programs[place]

    def _needs(self, job: str) -> str:
        now_s, read = self._now_s(), self._read[job]
        deadline_at_s = read.terms.limits.deadline_at_s if read.terms is not None else None
        if control_note.waits(self._folder, job):
            return "a request to it was not obeyed yet"
        if deadline_at_s is not None and deadline_at_s <= now_s:
            return "its deadline has passed"
        needs = read.needs or self._program(read.terms)
        if not needs and len(_tries(self._folder, job, now_s)) >= TRIES_MAX:
            return f"it was begun again {TRIES_MAX} times within an hour"
        return needs

    def tried_s(self, job: str) -> float:
        """Return the time at which the job was last begun again, Unix time; 0 if it was not lately."""
        return max(_tries(self._folder, job, self._now_s()), default=0.0)


def _state(folder: StateFolder, job: str) -> tuple[State, bool | None]:
    """Return K of a job, and whether the job was cut off; None for that if its program is gone, so that K is known in
    part. Raises ``StoreError``, and ``ValueError``."""
    try:
        k = last_state(folder, job)
        return k, was_cut_off(k)
    except ValueError:
        source = folder.journal(job)
        try:
            return by_events(source), None
        finally:
            source.close()


def was_cut_off(k: State) -> bool:
    """Return whether the job was under way, and nobody asked it to end but the system that ended its node."""
    by_system = k.stopping == "drain" and k.stopped_by == NODE_ENDED
    if k.outcome == "partial":
        return by_system and k.why.startswith("drain")
    return not k.outcome and (not k.stopping or by_system)


def note_try(folder: StateFolder, job: str, now_s: float) -> None:
    """Note, durably, that a job is begun again now: it may end the machine. Raises ``StoreError``."""
    folder.put_note(_KIND, job, msgspec.json.encode([*_tries(folder, job, now_s), now_s]))


def _tries(folder: StateFolder, job: str, now_s: float) -> list[float]:
    """Return the times, Unix time, at which the job was begun again lately."""
    try:
        found = msgspec.json.decode(folder.note(_KIND, job) or b"[]", type=list[float])
    except msgspec.MsgspecError:
        return []
    return [at_s for at_s in found if abs(now_s - at_s) < TRIES_S]


def halt(folder: StateFolder, now_s: float) -> None:
    """End every ``cortex tend`` of this host that has begun: the host ends, and what is drained on it must not be begun
    on it again. Raises ``StoreError``."""
    folder.put_note(_HALTED, "", msgspec.json.encode((socket.gethostname(), now_s)))


def is_halted(folder: StateFolder, since_s: float) -> bool:
    """Return whether this host was said to end after ``since_s``, Unix time."""
    found = folder.note(_HALTED, "")
    if found is None:
        return False
    host, at_s = msgspec.json.decode(found, type=tuple[str, float])
    return host == socket.gethostname() and at_s >= since_s
