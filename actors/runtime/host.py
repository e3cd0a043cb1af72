"""Disk, notes and cores of the host, for the runtimes that are no simulation."""

from __future__ import annotations

import os

from actors.journal.journal import Journal, StateFolder
from actors.journal.reply_index import ReplyCache


def own_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalDisk:
    """The store of a runtime that has a disk."""

    def __init__(self, folder: str) -> None:
        self._folder = StateFolder(folder)
        self.remote = self._folder.remote

    def prepare(self) -> object:
        """Make the folder, private to its user. Raises ``StoreError`` where it cannot serve."""
        return self._folder.prepare()

    def journal(self, job: str, *, create: bool = False) -> Journal:
        """A job's journal; ``create``: made if there is none. Raises ``StoreError``."""
        return self._folder.journal(job, create=create)

    def memory(self, job: str) -> ReplyCache:
        """The index of replies, as one job's channel sees it. Raises ``StoreError``."""
        return ReplyCache(self._folder, job, self._folder.index())


class LocalNotes:
    """Notes of a runtime that is one process: they live as long as it does."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def put(self, name: str, value: bytes) -> None:
        """Have this stand under the name."""
        self._kept[name] = value

    def found(self, prefix: str) -> dict[str, bytes]:
        """What stands under names that begin so."""
        return {name: value for name, value in self._kept.items() if name.startswith(prefix)}
