"""Facts of a job for listings: its state and whether a process runs it."""

from __future__ import annotations

import time
from typing import Any

from actors.history.catalog import last_owner
from actors.jobs.summary import summary
from actors.journal.journal import StateFolder
from cortex.goals.result_list import as_at_rest
from cortex.scheduler.state import LEASE_S
from cortex.state.state import State


def facts_of(folder: StateFolder, job: str, k: State) -> dict[str, Any]:
    """Return a job's figures and its current state."""
    outcome = k.outcome or living(folder, job)
    facts = summary(as_at_rest(k) if outcome == "interrupted" else k)
    facts["outcome"] = outcome
    if k.stopping == "drain" and (outcome == "interrupted" or k.why.startswith("drain: by ")):
        # before its end K has no reason, and where a user has drained what its node had drained, K has the earlier one
        facts["why"] = f"drain: by {k.stopped_by}"
    if outcome == "interrupted":
        facts["waits"] = ""  # no process runs the job
    return facts


def living(folder: StateFolder, job: str) -> str:
    """Return the state of a job that has not ended: ``running`` (a process holds it), ``detached`` (its channel runs in
    a cluster without a driver, or nothing is known of it) or ``interrupted`` (its run was killed, or its channel has
    been gone for the time of a lease)."""
    if folder.is_held(job):
        return "running"
    owner = last_owner(folder, job)
    if owner is None or owner.ends_with_its_driver:
        return "interrupted"
    return "detached" if is_attended(folder, job) is not False else "interrupted"


def is_attended(folder: StateFolder, job: str) -> bool | None:
    """Return whether the channel of a job lives that outlives its driver; None if that is not known.

    Its place is kept for the time of a lease after its last turn: Ray starts a channel that has died again.
    """
    found = folder.is_attended(job)
    if found is False and abs(time.time() - folder.changed_s(job)) < LEASE_S:
        return True
    return found
