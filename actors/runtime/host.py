"""Disk, notes and cores of the host, for all runtimes except the simulation."""

from __future__ import annotations

import os

from actors.journal.journal import Journal, StateFolder
from actors.journal.reply_index import ReplyCache


def own_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalDisk:
    """Store of a runtime that has a disk."""

    def __init__(self, folder: str) -> None:
        self._folder = StateFolder(folder)
        self.remote = self._folder.remote

    def prepare(self) -> object:
        """Make the folder, private to its user. Raises ``StoreError`` if it cannot be used."""
        return self._folder.prepare()

    def journal(self, job: str, *, create: bool = False) -> Journal:
        """Return a job's journal; ``create``: make it if there is none. Raises ``StoreError``."""
        return self._folder.journal(job, create=create)

    def memory(self, job: str) -> ReplyCache:
        """Return the index of replies for one job's channel. Raises ``StoreError``."""
        return ReplyCache(self._folder, job, self._folder.index())


class LocalNotes:
    """Notes of a runtime in one process; they are lost when the process ends."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def put(self, name: str, value: bytes) -> None:
        """Store a value under a name."""
        self._kept[name] = value

    def found(self, prefix: str) -> dict[str, bytes]:
        """Return the values whose names begin with the prefix, by name."""
        return {name: value for name, value in self._kept.items() if name.startswith(prefix)}
