"""Facts of a job for listings: its state and whether a process runs it."""

from __future__ import annotations

from typing import Any

from actors.history.catalog import last_owner
from actors.jobs.summary import summary
from actors.journal.journal import StateFolder
from cortex.state.state import State


def facts_of(folder: StateFolder, job: str, k: State) -> dict[str, Any]:
    """A job's figures, and what it does now."""
    facts = summary(k)
    facts["outcome"] = k.outcome or living(folder, job)
    if facts["outcome"] == "interrupted":
        facts["waits"] = ""  # nobody is there to wait
    return facts


def living(folder: StateFolder, job: str) -> str:
    """What a job does that has not ended: somebody runs it, it goes on in a cluster alone, or its run was killed."""
    if folder.is_held(job):
        return "running"
    owner = last_owner(folder, job)
    alone = owner is not None and owner.cluster not in ("inline", "local", "child")
    return "detached" if alone else "interrupted"
