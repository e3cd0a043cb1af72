"""Jobs that rest because their cluster was lost, and whether they may go on without a person.

A job goes on by itself only where nothing but its cluster is missing: its channel is known to be gone, all its rows are
in its journal, its program is unchanged, and nobody has stopped it. What a user has cancelled or drained is never begun
again, and neither is a job that keeps ending its cluster (``TRIES_MAX``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from actors.common.errors import UserError
from actors.driver import control_note
from actors.history.catalog import last_owner, last_state
from actors.history.job_facts import is_attended
from actors.journal.journal import StateFolder
from actors.programs import loader
from cortex.state.events import NODE_ENDED
from cortex.state.state import State

TRIES_MAX: Final = 3
"""Times that a job is begun again without a person, within ``TRIES_S``: its own prompts may be what fills the memory of
the head."""
TRIES_S: Final = 3600.0
"""Seconds for which such a time counts."""
AGAIN_S: Final = 120.0
"""Seconds between two such times: what the job lacked may come, such as a node."""
_KIND, _HALTED = "tended", "halted"


class RestingJob(msgspec.Struct, frozen=True):
    """Job that rests because its cluster was lost, or its channel there. ``needs``: what keeps it from going on without
    a person; empty if nothing does."""

    job: str
    cluster: str
    needs: str = ""


class _Read(msgspec.Struct, frozen=True):
    """Facts of one journal."""

    mark: Hashable
    cluster: str = ""
    cut_off: bool = False
    needs: str = ""
    deadline_at_s: float | None = None


class RestingJobs:
    """Reader of the jobs of a folder that rest. A journal is read again only when it was written to."""

    def __init__(self, folder: StateFolder, now_s: Callable[[], float] = time.time) -> None:
        self._folder, self._now_s = folder, now_s
        self._read: dict[str, _Read] = {}

    def look(self) -> list[RestingJob]:
        """Return the jobs that rest because their cluster was lost, the one that was written first first."""
        names = [job for job in reversed(self._folder.jobs()) if "~" not in job]  # a child goes on with its parent
        self._read = {job: read for job, read in self._read.items() if job in names}
        return [RestingJob(job, self._read[job].cluster, self._needs(job)) for job in names if self._rests(job)]

    def _rests(self, job: str) -> bool:
        folder = self._folder
        if folder.is_held(job) or is_attended(folder, job) is not False:
            return False  # it runs, or nobody knows
        before = self._read.get(job)
        if before is None or before.mark != folder.mark(job):
            found = _facts(folder, job)
            before = self._read[job] = msgspec.structs.replace(found, mark=folder.mark(job))
        return before.cut_off

    def _needs(self, job: str) -> str:
        now_s, read = self._now_s(), self._read[job]
        if control_note.waits(self._folder, job):
            return "a request to it was not obeyed yet"
        if read.deadline_at_s is not None and read.deadline_at_s <= now_s:
            return "its deadline has passed"
        if not read.needs and len(_tries(self._folder, job, now_s)) >= TRIES_MAX:
            return f"it was begun again {TRIES_MAX} times within an hour"
        return read.needs

    def tried_s(self, job: str) -> float:
        """Return the time at which the job was last begun again, Unix time; 0 if it was not lately."""
        return max(_tries(self._folder, job, self._now_s()), default=0.0)


def _facts(folder: StateFolder, job: str) -> _Read:
    try:
        owner = last_owner(folder, job)
        if owner is None or owner.ends_with_its_driver:
            return _Read(None)
        k = last_state(folder, job)
    except (UserError, ValueError):  # forgotten, damaged, never begun; or its program is gone, and nothing can be said
        return _Read(None)
    return _Read(None, owner.cluster, was_cut_off(k), _needs(k), k.terms.limits.deadline_at_s)


def _needs(k: State) -> str:
    if k.terms.streams and not k.source_ended:
        return "its input is not read to the end"
    if not loader.is_unchanged(k.terms.program, k.terms.params_json, k.terms.fingerprint):
        return "its program has changed"
    return ""


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
