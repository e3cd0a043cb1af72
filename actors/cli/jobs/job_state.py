"""State of a job, from its journal alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from actors.cli.jobs.rendering import OVER, JobStatus
from actors.history.catalog import forgotten, program_of, read_job
from actors.history.job_facts import facts_of
from actors.journal.journal import StateFolder
from cortex.state.state import State


def standing_of(folder: StateFolder, job: str, k: State | None = None) -> JobStatus:
    """Return the status of a job. Raises ``NoSuchJob``."""
    if k is None and (figures := forgotten(folder, job)):
        facts: dict[str, Any] = msgspec.json.decode(figures)
        facts |= {"rows_expected": facts["rows_counted"], "rows_unreadable": facts["lines_unreadable"]}
        return JobStatus(facts=facts, state=folder.address)
    found = read_job(folder, job, k)
    k = found.k
    facts = facts_of(folder, job, k)
    status = JobStatus(facts=facts, state=folder.address, answer=found.answer, unread_reason=found.unread_reason)
    program = program_of(k.terms, strict=False) if k.terms.streams and k.terms.keeps_text else None
    status.asks_again = program is not None and program.asks_again
    return status


def spool_of(folder: StateFolder, job: str) -> Path:
    """Return the path of the copy of an input that can be read only once, kept until the job is over."""
    return folder.beside(job, ".input")


def forget_spool(folder: StateFolder, status: JobStatus) -> None:
    """Delete the copy of the input of a job that is over."""
    if status.outcome in OVER:
        spool_of(folder, str(status.facts["job"])).unlink(missing_ok=True)


def number(places: dict[str, str], name: str) -> int:
    """Return a count among a job's places; 0 if there is none."""
    text = places.get(name, "")
    return int(text) if text.isdecimal() else 0
