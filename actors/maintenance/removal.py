"""Removal of jobs from the disk: whole jobs, or only their prompts and replies.

Afterwards no file of the state folder holds the data. Copies in freed blocks, snapshots of the file system and backups
are not removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.common.errors import UserError
from actors.files.bad_records import SUFFIX
from actors.files.paths import kept_rows
from actors.history import costs
from actors.history.catalog import in_use_message, last_terms
from actors.journal.journal import JobHeld, StateFolder, StoreError
from actors.limits.budgets import FolderBudgets
from actors.observability.traces.exporters import traces_of

BESIDE = (".input", ".input.part", SUFFIX)
"""Suffixes of a job's files on this machine, wherever its journal is."""


def family(folder: StateFolder, job: str) -> list[str]:
    """Return a job and its child jobs."""
    return [job, *sorted(name for name in folder.jobs() if name.startswith(f"{job}~"))]


def files_of(folder: StateFolder, job: str) -> list[Path]:
    """Return the files of this machine that belong to a job alone, besides its journal."""
    found = [*traces_of(folder.path, job), *_rows_of(folder, job), *(folder.beside(job, suffix) for suffix in BESIDE)]
    return [each for each in found if each.exists()]


def _rows_of(folder: StateFolder, job: str) -> list[Path]:
    """Return rows of a table that was never completed; without the job they are of no use."""
    try:
        terms = last_terms(folder, job)
    except (UserError, ValueError):
        return []
    output = terms.places.get("output", "") if terms is not None else ""
    return kept_rows(folder.path, output, job) if output not in ("", "-") else []


def size_bytes(folder: StateFolder, job: str) -> int:
    """Return the bytes of a job and its child jobs."""
    total = 0
    for name in family(folder, job):
        total += folder.size_bytes(name)
        for path in files_of(folder, name):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
    return total


def remove(folder: StateFolder, job: str) -> None:
    """Remove a job that no process runs, its child jobs, and their entries in the reply index. Its costs stay in the
    folder (``actors.history.costs``). Raises ``StoreError``."""
    names = family(folder, job)
    with _alone(folder, names):
        FolderBudgets(folder).part(names)
        costs.note_removal(folder, job)
        for name in reversed(names):
            _remove(folder, name)
        folder.unremember(names)


def _remove(folder: StateFolder, job: str) -> None:
    beside = files_of(folder, job)  # listed while the journal still names them
    for path in beside:
        path.unlink(missing_ok=True)
    folder.remove(job)


def forget(folder: StateFolder, job: str, figures: dict[str, Any]) -> None:
    """Remove prompts and replies of a job that no process runs; ``figures`` stay. Raises ``StoreError``."""
    children = family(folder, job)[1:]
    with _alone(folder, [job, *children]):
        beside = files_of(folder, job)
        source = folder.journal(job, forgotten_too=True)
        try:
            source.forget(msgspec.json.encode(figures))
        finally:
            source.close()
        for name in reversed(children):
            _remove(folder, name)
        for path in beside:
            path.unlink(missing_ok=True)
        for kind in ("live", "control"):
            folder.drop_note(kind, job)
        folder.unremember([job, *children])


@contextlib.contextmanager
def _alone(folder: StateFolder, names: Sequence[str]) -> Iterator[None]:
    """Hold the locks of these jobs within the block. Raises ``StoreError`` if one is in use."""
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                stack.enter_context(folder.hold(name))
            except JobHeld:
                raise StoreError(in_use_message(folder, name)) from None
        yield
