"""Jobs in clusters whose head does not answer."""

from __future__ import annotations

from actors.cli.jobs.rendering import JobStatus
from actors.cluster.node_watchdog import SILENT_S
from actors.history.catalog import last_owner
from actors.history.job_facts import is_attended
from actors.journal.journal import StateFolder
from actors.journal.state_folder import advised
from actors.ports.runtime import ClusterError


class LostHeads:
    """Clusters of detached jobs whose head does not answer. Each address is asked once."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._errors: dict[str, str] = {}
        self._resting: dict[str, list[str]] = {}

    def see(self, job: str, standing: JobStatus) -> None:
        """Mark a detached job as interrupted if its cluster no longer runs; of a job whose command still lives, tell
        what that waits for."""
        owner = last_owner(self._folder, job) if standing.outcome in ("detached", "running", "interrupted") else None
        if owner is None or owner.ends_with_its_driver:
            return
        if owner.cluster not in self._errors:
            self._errors[owner.cluster] = _head_error(owner.cluster)
        if not (error := self._errors[owner.cluster]):
            if standing.outcome == "interrupted" and is_attended(self._folder, job) is False:
                standing.facts["why"] = f"its channel is gone from the Ray at {owner.cluster}: the job can be resumed"
            return
        standing.facts["head_lost"] = True
        if standing.outcome == "running":
            standing.facts["waits"] = f"{error}: its command waits {SILENT_S:g} s for the head, then ends, resumable"
        else:
            self._resting.setdefault(owner.cluster, []).append(job)
            why = f"{error}: the job can be resumed elsewhere"
            standing.facts |= {"outcome": "interrupted", "why": why, "waits": ""}

    def lines(self) -> list[str]:
        """Return a line for each lost head: how many jobs rest because of it, and how they go on."""
        return [
            f"{self._errors[cluster]}: {len(names):,} {'job rests' if len(names) == 1 else 'jobs rest'}, nothing is "
            f"lost: {advised(self._folder, 'resume', names[0])}" + (", and so on" if len(names) > 1 else "")
            for cluster, names in self._resting.items()
        ]


def _head_error(cluster: str) -> str:
    """Return why the head of a cluster cannot be reached; empty if it answers."""
    from actors.cluster.bootstrap import checked_address

    try:
        checked_address(cluster)
    except ClusterError as error:
        return str(error)
    return ""
