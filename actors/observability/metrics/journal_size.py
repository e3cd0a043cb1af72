"""Size of a job's journal and free space of its disk, which a scrape reads without waiting for a database."""

from __future__ import annotations

import threading

from actors.journal.journal import StateFolder, StoreError

WAIT_S = 0.05
"""Longest wait of a scrape for a state folder on another machine, in seconds: a scrape runs on the job's event loop. A
database that is frozen, or whose tables are locked, answers nothing, and refuses nothing."""


def place_of(folder: StateFolder) -> str:
    """Return the path of a state folder on this machine, as a value of a label: in UTF-8, which a path need not be."""
    return str(folder.path.absolute()).encode(errors="replace").decode()


class JournalSize:
    """Size of the journal of one job, and free bytes of its disk, as its state folder last told them."""

    def __init__(self, folder: StateFolder, job: str) -> None:
        self._folder, self._job = folder, job
        self._told: tuple[int, int | None] | None = None
        self._asking: threading.Thread | None = None

    def read(self) -> tuple[int, int | None] | None:
        """Return the size and the free bytes, in bytes; None if the journal is gone, or was not answered yet. Free
        bytes are None where the folder does not tell them."""
        if not self._folder.remote:
            self._ask()
            return self._told
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, name="cortex-journal-size", daemon=True)
            self._asking.start()
            self._asking.join(WAIT_S)
        return self._told

    def _ask(self) -> None:
        try:
            self._told = self._folder.size_bytes(self._job), self._folder.free_bytes()
        except StoreError:
            self._told = None
