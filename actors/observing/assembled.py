"""Who looks on in a process, put together from its settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Protocol

from actors.observing.settings import HEADERS, Settings
from actors.observing.traces import Traces
from actors.watching import Nobody, Telemetry, Watch, Watches

_log = logging.getLogger("cortex.observing")


class Part(Protocol):
    """One kind of telemetry in one process: traces, say. What is costly to make is made by its first watch."""

    def watch(self, job: str, folder: str) -> Watch | None:
        """Somebody to look on at this job; None where this part has no wish to."""

    def close(self) -> None:
        """The process ends: let out what waits, in a bounded time."""


class Observers:
    """All the parts of a process."""

    def __init__(self, settings: Settings, parts: list[Part]) -> None:
        self.settings = settings
        self._parts = parts

    def watch(self, job: str, folder: str) -> Watches:
        """One of each part."""
        found = (part.watch(job, folder) for part in self._parts)
        return Watches([watch for watch in found if watch is not None])

    def close(self) -> None:
        """Let out what waits."""
        for part in self._parts:
            try:
                part.close()
            except Exception:  # nothing of the job may hang on it
                _log.exception("%s did not end well", type(part).__name__)


def assembled(settings: Settings) -> Telemetry:
    """The telemetry of this process; nobody, where it is switched off."""
    for line in settings.complaints:
        _log.warning("%s", line)
    parts: list[Part] = []
    if settings.traces.exporters:
        parts.append(Traces(settings))
    return Observers(settings, parts) if parts else Nobody()


def of_process(role: str) -> Telemetry:
    """The telemetry of an actor's process, from its environment. No headers stay there: they may hold a key."""
    settings = Settings.from_environ(os.environ) if role in WATCHED else None
    for name in HEADERS:
        os.environ.pop(name, None)
    return assembled(settings) if settings is not None else Nobody()


def of_environ(environ: Mapping[str, str]) -> Telemetry:
    """The telemetry of a run in this process."""
    return assembled(Settings.from_environ(environ))


WATCHED = frozenset({"channel"})
"""Roles whose processes tell of themselves."""
