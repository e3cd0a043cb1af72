"""Facts of a job for listings: its state and whether a process runs it."""

from __future__ import annotations

from typing import Any

from actors.history.catalog import last_owner
from actors.jobs.summary import summary
from actors.journal.journal import StateFolder
from cortex.goals.result_list import as_at_rest
from cortex.state.state import State


def facts_of(folder: StateFolder, job: str, k: State) -> dict[str, Any]:
    """Return a job's figures and its current state."""
    outcome = k.outcome or living(folder, job)
    facts = summary(as_at_rest(k) if outcome == "interrupted" else k)
    facts["outcome"] = outcome
    if outcome == "interrupted":
        facts["waits"] = ""  # no process runs the job
    return facts


def living(folder: StateFolder, job: str) -> str:
    """Return the state of a job that has not ended: ``running`` (a process holds it), ``detached`` (its channel may
    run in a cluster without a driver) or ``interrupted`` (its run was killed)."""
    if folder.is_held(job):
        return "running"
    owner = last_owner(folder, job)
    alone = owner is not None and owner.cluster not in ("inline", "local", "child")
    return "detached" if alone else "interrupted"
