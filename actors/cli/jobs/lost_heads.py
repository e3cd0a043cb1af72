"""Jobs in clusters whose head does not answer."""

from __future__ import annotations

import threading

from actors.cli.jobs.rendering import JobStatus, is_drained_by_a_user
from actors.cluster.node_watchdog import SILENT_S
from actors.history.catalog import last_owner
from actors.history.job_facts import is_attended
from actors.journal.journal import StateFolder
from actors.journal.state_folder import advised
from actors.ports.runtime import ClusterError

HEAD_S = 2.0
"""Seconds that a head may take to answer a command that only looks, its name's lookup included: it answers within
milliseconds, and most of the command's page comes from the journal."""


class LostHeads:
    """Clusters of detached jobs whose head does not answer. Each address is asked once."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._errors: dict[str, str] = {}
        self._resting: dict[str, list[str]] = {}

    def see(self, job: str, standing: JobStatus) -> None:
        """Mark a detached job as interrupted if its cluster no longer runs, and say of one that is interrupted whether
        its head or its channel is gone; of a job whose command still lives, tell what that waits for."""
        owner = last_owner(self._folder, job) if standing.outcome in ("detached", "running", "interrupted") else None
        if owner is None or owner.ends_with_its_driver:
            return
        if standing.outcome == "interrupted" and is_drained_by_a_user(standing):
            return  # `cortex tend` leaves it, whatever became of its cluster
        if owner.cluster not in self._errors:
            self._errors[owner.cluster] = _head_error(owner.cluster)
        error = self._errors[owner.cluster]
        gone = not error and standing.outcome == "interrupted" and is_attended(self._folder, job) is False
        if not (error or gone):
            return
        standing.facts["head_lost"] = bool(error)
        if standing.outcome == "running":
            standing.facts["waits"] = f"{error}: its command waits {SILENT_S:g} s for the head, then ends, resumable"
            return
        why = f"{error}: the job can be resumed elsewhere"
        if gone:
            error = f"no channel is left in the Ray at {owner.cluster}"
            why = f"{error}: the job can be resumed"
        self._resting.setdefault(error, []).append(job)
        standing.facts |= {"outcome": "interrupted", "why": why, "waits": ""}

    def lines(self) -> list[str]:
        """Return a line for each lost head: how many jobs rest because of it, and how they go on."""
        return [
            f"{error}: {len(names):,} {'job rests' if len(names) == 1 else 'jobs rest'}, nothing is lost: "
            f"{advised(self._folder, 'resume', names[0])}" + (", and so on" if len(names) > 1 else "")
            + f", or {advised(self._folder, 'tend')} for all that need no person"
            for error, names in self._resting.items()
        ]


def _head_error(cluster: str) -> str:
    """Return why the head of a cluster cannot be reached; empty if it answers. Waits for ``HEAD_S`` at most: a
    lookup of a name cannot be given a bound, so a thread that does not hold up the end of the process asks."""
    from actors.cluster.bootstrap import checked_address

    errors: list[str] = []

    def ask() -> None:
        try:
            checked_address(cluster)
            errors.append("")
        except (ClusterError, ValueError) as error:
            errors.append(str(error))

    asking = threading.Thread(target=ask, name="cortex-head", daemon=True)
    asking.start()
    asking.join(HEAD_S)
    return errors[0] if errors else f"no Ray answers at {cluster}: no answer within {HEAD_S:g} s"
