"""Status of a running job, published in its state folder about once a second: for ``top`` and ``status``.

One small note a job, readable by its owner only, replaced atomically, removed at the end. It holds the job's summary
and the cortex's data of pools, breakers, branches, workers and nodes; never a prompt, a reply or a key. A note left by
a killed process is recognized by its owner and by the lock on the job. Unchanged data is not written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from actors.common.process_owner import Owner, alive
from actors.journal.journal import StateFolder, StoreError
from actors.journal.retrying import unblocked
from actors.ports.runtime import Peer, PeerGone, PeerUnavailable

PUBLISH_S = 1.0
"""Seconds between two publications at least."""
PUBLISHED_PER_S = 50
"""Notes a second of all jobs of one cortex: with more jobs, each publishes less often."""
PATIENCE_S = 2.0
"""Seconds that the cortex may take to answer: the job does not wait for observers."""
AWAY_S = 10.0
"""Seconds before a cortex that did not answer is asked again."""
_UNTIL = "_for_s"
_NESTED = (dict, list, tuple)


class LiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one job as last published by its process."""

    owner: Owner
    at_s: float
    """Time of the last write, in seconds since 1970. The status has not changed since, as long as its owner is
    alive."""
    facts: dict[str, Any]
    """Summary (``actors.jobs.summary``), with ``rate_per_s`` and ``left_s``."""
    cortex: dict[str, Any] = msgspec.field(default_factory=dict)
    """Result of ``Cortex.status`` about this job. Remaining seconds are replaced by times: ``held_for_s`` by
    ``held_until_s``."""
    cortex_at_s: float = 0.0
    """Time at which the cortex last answered, if it does not answer now; ``cortex`` is of that time. 0: it answers."""

    @property
    def asked_at_s(self) -> float:
        """Time of what ``cortex`` says."""
        return self.cortex_at_s or self.at_s


_KIND = "live"


def read(folder: StateFolder, job: str) -> LiveStatus | None:
    """Return the last status that the job's process published; None if no process runs it, or a process of another
    release.
    """
    try:
        found = msgspec.json.decode(folder.note(_KIND, job) or b"", type=LiveStatus)
    except (StoreError, ValueError):
        return None
    return found if alive(found.owner) and folder.is_held(job) else None


def published(folder: StateFolder) -> dict[str, LiveStatus]:
    """Return all published statuses of the folder, by job."""
    return {name: found for name in folder.notes(_KIND) if (found := read(folder, name)) is not None}


def dated(facts: Any, now_s: float) -> Any:
    """Return the data with remaining seconds replaced by times in whole seconds, so that it only changes with its
    content.
    """
    if isinstance(facts, list | tuple):
        return [dated(each, now_s) if isinstance(each, _NESTED) else each for each in facts]
    if not isinstance(facts, dict):
        return facts
    made: dict[str, Any] = {}
    for name, value in facts.items():
        if name == "for_s" or name.endswith(_UNTIL):
            made[name.removesuffix("for_s") + "until_s"] = float(int(now_s + value)) if value else 0.0
        else:
            made[name] = dated(value, now_s) if isinstance(value, _NESTED) else value
    return made


class StatusPublisher:
    """Publisher of one job's status. Its failures (a full disk, a silent cortex) do not affect the job."""

    def __init__(self, folder: StateFolder, job: str, owner: Owner, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._job = job
        self._owner = owner
        self._clock = clock
        self._next_s = 0.0
        self._last = b""
        self._answer: dict[str, Any] = {}
        self._answered_s = 0.0

    async def look(self, facts: dict[str, Any], cortex: Peer) -> None:
        """Publish the current status if it is due and has changed."""
        now_s = self._clock()
        if self._next_s - AWAY_S <= now_s < self._next_s:
            return
        self._next_s = now_s + PUBLISH_S
        silent_s = 0.0
        try:
            async with asyncio.timeout(PATIENCE_S):
                status = self._answer = dated(await cortex.ask("status", self._job), now_s)
            self._answered_s = now_s
            self._next_s = now_s + max(PUBLISH_S, status.get("serves", 0) / PUBLISHED_PER_S)
        except (PeerUnavailable, PeerGone, TimeoutError):
            status, silent_s = self._answer, self._answered_s
            self._next_s = now_s + AWAY_S
        await unblocked(self._folder, self.put, facts, status, now_s, silent_s)

    def put(self, facts: dict[str, Any], status: dict[str, Any], now_s: float, silent_s: float = 0.0) -> None:
        """Write the note unless it is unchanged. ``silent_s``: time of the last answer of a cortex that is silent."""
        data = msgspec.json.encode((facts, status, silent_s))
        if data == self._last:
            return
        live = msgspec.json.encode(
            LiveStatus(
                owner=self._owner, at_s=round(now_s, 3), facts=facts, cortex=status, cortex_at_s=round(silent_s, 3)
            )
        )
        with contextlib.suppress(StoreError):
            if not self._last:
                self._begin()
            self._folder.put_note(_KIND, self._job, live)
            self._last = data

    def _begin(self) -> None:
        """Remove notes that killed runs left."""
        for name in self._folder.notes(_KIND):
            with contextlib.suppress(StoreError):
                if name != self._job and not self._folder.is_held(name):
                    self._folder.drop_note(_KIND, name)

    def close(self) -> None:
        """Remove the note: the run has ended."""
        with contextlib.suppress(StoreError):
            self._folder.drop_note(_KIND, self._job)
