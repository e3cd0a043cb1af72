"""Cause of a job that does not run, where its journal could not take it: a full disk, a lost head."""

from __future__ import annotations

from actors.cli.jobs.lost_heads import LostHeads
from actors.cli.jobs.rendering import JobStatus
from actors.jobs.ending_cause import INTERRUPTED, is_full
from actors.journal.journal import StateFolder


def see_cause(folder: StateFolder, job: str, standing: JobStatus) -> None:
    """Add to the facts of a job what the world says of its cause: for ``status``, ``report`` and ``inspect`` alike."""
    if standing.forgotten:
        return
    LostHeads(folder).see(job, standing)
    _see_room(folder, standing)


def _see_room(folder: StateFolder, standing: JobStatus) -> None:
    """Tell a full disk of the state folder as the reason of a job that was interrupted: its journal could not take the
    reason."""
    if standing.outcome == INTERRUPTED and not standing.facts["why"] and is_full(folder.free_bytes()):
        standing.facts["why"] = f"the disk of {folder.path} is full: make room on it, then resume"
