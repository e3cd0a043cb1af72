"""What a running job publishes of itself into its state folder, about once a second: for ``top`` and ``status``.

One small note a job, for its owner's eyes alone, put in place whole, removed at the end. It holds the job's summary and
what its cortex knows of pools, breakers, branches, workers and nodes; never a prompt, a reply or a key. A note that a
killed process left behind is recognised by who wrote it, and by the lock on the job. Nothing is written while nothing
changes.
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
from actors.ports.runtime import Peer, PeerGone, PeerUnavailable

PUBLISH_S = 1.0
"""Between two looks at what there is to publish, at the least."""
PUBLISHED_PER_S = 50
"""So many notes are written a second by all jobs of one cortex: where there are more of them, each is looked at more
rarely."""
PATIENCE_S = 2.0
"""How long the cortex may take to tell what it knows: the job does not wait for those who look on."""
AWAY_S = 10.0
"""Before one that did not answer is asked again."""
_UNTIL = "_for_s"
_NESTED = (dict, list, tuple)


class LiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One job as its process last published it."""

    owner: Owner
    at_s: float
    """When it was last written, seconds since 1970: what it says has not changed since, as long as its owner lives."""
    facts: dict[str, Any]
    """As ``actors.jobs.summary`` has them, with ``rate_per_s`` and ``left_s``."""
    cortex: dict[str, Any] = msgspec.field(default_factory=dict)
    """``Cortex.status`` about this job; what it says to last so many seconds, until when: ``held_until_s`` for
    ``held_for_s``."""


_KIND = "live"


def read(folder: StateFolder, job: str) -> LiveStatus | None:
    """What the process that runs the job published last; None where none does, or it is of another release."""
    try:
        found = msgspec.json.decode(folder.note(_KIND, job) or b"", type=LiveStatus)
    except (StoreError, ValueError):
        return None
    return found if alive(found.owner) and folder.is_held(job) else None


def published(folder: StateFolder) -> dict[str, LiveStatus]:
    """All that is published in the folder, by job."""
    return {name: found for name in folder.notes(_KIND) if (found := read(folder, name)) is not None}


def dated(told: Any, now_s: float) -> Any:
    """The same with moments in place of spans that run out, whole seconds: so it says the same until it changes."""
    if isinstance(told, list | tuple):
        return [dated(each, now_s) if isinstance(each, _NESTED) else each for each in told]
    if not isinstance(told, dict):
        return told
    made: dict[str, Any] = {}
    for name, value in told.items():
        if name == "for_s" or name.endswith(_UNTIL):
            made[name.removesuffix("for_s") + "until_s"] = float(int(now_s + value)) if value else 0.0
        else:
            made[name] = dated(value, now_s) if isinstance(value, _NESTED) else value
    return made


class StatusPublisher:
    """Publishes one job. It breaks nothing: a full disk or a silent cortex costs those who look on, not the job."""

    def __init__(self, folder: StateFolder, job: str, owner: Owner, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._job = job
        self._owner = owner
        self._clock = clock
        self._next_s = 0.0
        self._last = b""

    async def look(self, facts: dict[str, Any], cortex: Peer) -> None:
        """Publish what there is now, if it is time and anything has changed."""
        now_s = self._clock()
        if self._next_s - AWAY_S <= now_s < self._next_s:
            return
        self._next_s = now_s + PUBLISH_S
        status: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                status = dated(await cortex.ask("status", self._job), now_s)
            self._next_s = now_s + max(PUBLISH_S, status.get("serves", 0) / PUBLISHED_PER_S)
        except (PeerUnavailable, PeerGone, TimeoutError):
            self._next_s = now_s + AWAY_S
        self.put(facts, status, now_s)

    def put(self, facts: dict[str, Any], status: dict[str, Any], now_s: float) -> None:
        """Have this stand there, unless it stands there already."""
        told = msgspec.json.encode((facts, status))
        if told == self._last:
            return
        live = msgspec.json.encode(LiveStatus(owner=self._owner, at_s=round(now_s, 3), facts=facts, cortex=status))
        with contextlib.suppress(StoreError):
            if not self._last:
                self._begin()
            self._folder.put_note(_KIND, self._job, live)
            self._last = told

    def _begin(self) -> None:
        """Remove what killed runs left there."""
        for name in self._folder.notes(_KIND):
            with contextlib.suppress(StoreError):
                if name != self._job and not self._folder.is_held(name):
                    self._folder.drop_note(_KIND, name)

    def close(self) -> None:
        """The run is over: nothing is live here any more."""
        with contextlib.suppress(StoreError):
            self._folder.drop_note(_KIND, self._job)
