"""Simulated scrapes of jobs: what Prometheus would have stored, sample by sample, as the series of a promtool test.

A world has jobs, the disk and the cluster beneath them, and what tells of ended jobs: ``cortex metrics`` beside
processes, the cortex itself on Ray. Time goes on in steps of one scrape. What a job does in a step follows from its
pace and from what an incident has broken; nothing here is random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

SCRAPE_S = 30
GIB = 1 << 30
FINAL = {"complete", "failed", "cancelled"}
KINDS = ("answered", "throttled", "transient", "blocked")
KEPT_S = 86_400


class Scrapes:
    """Series by their name and labels, with one value a step; a series that vanishes becomes stale."""

    def __init__(self) -> None:
        self._series: dict[str, list[str]] = {}
        self._now: dict[str, float] = {}
        self._steps = 0

    def put(self, name: str, value: float, **labels: str) -> None:
        """Add a sample of this step. Ray's names are in small letters."""
        name = name.lower() if name.startswith("ray_") else name
        inside = ",".join(f'{label}="{text}"' for label, text in sorted(labels.items()) if text)
        self._now[f"{name}{{{inside}}}"] = value

    def step(self) -> None:
        """End the step."""
        for key in self._now.keys() - self._series.keys():
            self._series[key] = ["_"] * self._steps
        for key, values in self._series.items():
            gone = "_" if values and values[-1] in ("_", "stale") else "stale"
            values.append(f"{self._now[key]:.10g}" if key in self._now else gone if values else "_")
        self._now, self._steps = {}, self._steps + 1

    def written(self) -> list[dict[str, str]]:
        """Return the series as promtool reads them."""
        return [{"series": name, "values": " ".join(values)} for name, values in self._series.items()]


@dataclass
class Job:
    """One job. ``runs``: whether a channel has it; ``seen``: whether its series are scraped."""

    name: str = "j1"
    rows: int = 100_000
    per_s: float = 10.0
    began_s: float = 0.0
    worker: str = "w1"
    instance: str = "i"
    cluster: str = ""
    """Cluster that it runs in, if that is not the world's."""
    runs: bool = True
    seen: bool = True
    share: float = 1.0
    """Part of its usual pace that it makes now."""
    failing: float = 0.0
    throttled: float = 0.0
    usd_per_row: float = 0.001
    cap_usd: float = 0.0
    deadline_s: float = 0.0
    rows_told: bool = True
    queue: int = 50
    flights: int = 20
    lag_s: float = 0.01
    blocked: bool = False
    over_budget: bool = False
    shards: int = 0
    succeeded: float = 0.0
    failed: float = 0.0
    cost: float = 0.0
    progressed_s: float = 0.0
    ahead_s: float = 0.0
    """Seconds by which the clock of its machine is ahead of that of Prometheus."""
    kinds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    end: tuple[str, str, float] | None = None
    """Outcome, cause and time."""
    end_at_rest: tuple[str, str, float] | None = None
    """End that was written when its cluster had it no more: only who reads the journal tells of it."""
    end_told: bool = True
    """Whether what tells of ends can tell of its own."""
    left_behind: tuple[tuple[str, str, float], dict[str, float]] | None = None
    """End of a run before, with its rows, of which the standing cluster still tells that the job has left."""
    apart: bool = False
    """Whether it runs in a process of its own beside the world's cluster."""

    @property
    def left(self) -> float:
        """Rows without a result."""
        left = self.rows - self.succeeded - self.failed
        return left if left > 1e-6 else 0.0

    @property
    def rows_at_end(self) -> dict[str, float]:
        """Rows by outcome, as an end tells them."""
        return {"succeeded": self.succeeded, "failed": self.failed, "refused": 0.0, "left": self.left}

    def work(self, now_s: float) -> None:
        """Work for a step, and end complete after the last row."""
        if not self.runs or now_s < self.began_s:
            return
        made = min(self.left, self.per_s * self.share * SCRAPE_S)
        if made:
            self.progressed_s = now_s + self.ahead_s
        self.failed += made * self.failing
        self.succeeded += made * (1 - self.failing)
        self.cost += made * self.usd_per_row
        self.kinds["answered"] += made
        self.kinds["throttled"] += made * self.throttled / max(1e-9, 1 - self.throttled)
        if not self.left:
            self.ended("complete", "none", now_s)

    def ended(self, outcome: str, cause: str, now_s: float) -> None:
        """End; its process, or its channel, goes."""
        self.runs, self.end = False, (outcome, cause, now_s)

    def goes_on(self) -> None:
        """Be resumed by another process."""
        self.runs, self.seen, self.end = True, True, None

    def leaves(self) -> None:
        """Leave the cluster, which does not hear of what comes after its end there."""
        if self.end is not None:
            self.left_behind, self.apart, self.instance = (self.end, self.rows_at_end), True, "p"

    def put(self, scrapes: Scrapes, now_s: float, prefix: str, labels: dict[str, str]) -> None:
        """Add the samples of a step."""
        if not (self.runs and self.seen) or now_s < self.began_s:
            return
        own = {**labels, "cortex_job_id": self.name, "instance": self.instance}
        if prefix:
            own["WorkerId"] = self.worker
        if self.cluster:
            own["ray_io_cluster"] = self.cluster
        waiting = bool(self.left) and not self.blocked
        numbers = {
            "cortex_rows_expected": self.rows if self.rows_told else 0, "cortex_queue": self.queue * waiting,
            "cortex_calls_in_flight": self.flights * waiting, "cortex_job_progressed_seconds": self.progressed_s,
            "cortex_cost_usd_total": self.cost, "cortex_cost_assumed_usd": 0, "cortex_cost_reserved_usd": 0.01,
            "cortex_journal_lag_seconds": self.lag_s, "cortex_job_blocked": int(self.blocked),
            "cortex_job_over_budget": int(self.over_budget),
        }  # fmt: skip
        if self.cap_usd:
            numbers["cortex_cost_cap_usd"] = self.cap_usd
        if self.deadline_s:
            numbers["cortex_job_deadline_seconds"] = self.deadline_s
        for name, value in numbers.items():
            scrapes.put(prefix + name, value, **own)
        rows = {"succeeded": self.succeeded, "failed": self.failed, "refused": 0.0}
        for outcome, count in rows.items() if self.rows_told else ():
            scrapes.put(f"{prefix}cortex_rows_total", int(count), cortex_outcome=outcome, **own)
        scrapes.put(f"{prefix}cortex_calls_total", int(self.kinds["answered"]), cortex_outcome="answered", **own)
        for kind, count in self.kinds.items():
            scrapes.put(f"{prefix}cortex_attempts_total", int(count), cortex_kind=kind, **own)
        for shard in range(self.shards):
            part = {**own, "cortex_shard": str(shard)} | ({"WorkerId": f"{self.worker}-{shard}"} if prefix else {})
            scrapes.put(f"{prefix}cortex_queue", self.queue // self.shards, **part)
            scrapes.put(f"{prefix}cortex_calls_in_flight", self.flights // self.shards, **part)
            scrapes.put(f"{prefix}cortex_job_progressed_seconds", self.progressed_s, **part)
            scrapes.put(f"{prefix}cortex_journal_lag_seconds", self.lag_s, **part)


@dataclass
class World:
    """Jobs and what is beneath them. ``ray``: on a standing cluster of Ray, else processes of their own."""

    ray: bool = False
    cluster: str = "c1"
    """Label of the cluster of Ray; empty where the scrape configuration gives none."""
    jobs: list[Job] = field(default_factory=lambda: [Job()])
    exporter: bool = True
    """Whether ``cortex metrics`` runs (processes), or the cortex tells of ends (Ray)."""
    head: bool = True
    beside: bool = False
    """Whether ``cortex metrics`` runs beside the cluster too, and tells of ends while the head is lost."""
    free_bytes: float = 200.0 * GIB
    up: bool = True
    breaker: float | None = 0
    refused: bool = False
    """Whether the breaker is open because the account is refused."""
    drained: int = 0
    lost_s: float = 0.0
    """Time at which a node was lost, if one was."""
    orphaned: int = 0
    restarts: int = 0
    lost_told: bool = True
    """Whether it is known that a job without a process was interrupted."""
    now_s: float = -float(SCRAPE_S)
    """Time of the last step; the first one is at 0, as promtool counts."""
    scrapes: Scrapes = field(default_factory=Scrapes)

    @property
    def job(self) -> Job:
        """First job."""
        return self.jobs[0]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every target."""
        return {"namespace": "n"} | ({"ray_io_cluster": self.cluster} if self.ray else {})

    def step(self) -> None:
        """Work for a step, then be scraped."""
        self.now_s += SCRAPE_S
        prefix = "ray_" if self.ray else ""
        for job in self.jobs:
            if self.head:
                job.work(self.now_s)
                job.put(self.scrapes, self.now_s, *(("", {"namespace": "n"}) if job.apart else (prefix, self.labels)))
        self._cluster(prefix)
        if self.exporter and (self.head or not self.ray):
            self._ends(prefix, self.ray)
        if self.beside:
            self._ends("", False)
        self.scrapes.step()

    def _cluster(self, prefix: str) -> None:
        own = {**self.labels, "instance": "i"}
        running = any(job.runs and job.seen for job in self.jobs)
        if not self.head or not (self.ray or running):
            return
        put = self.scrapes.put
        put(f"{prefix}cortex_disk_free_bytes", self.free_bytes, cortex_folder="/s", **own)
        put(f"{prefix}cortex_nodes", 3 - self.drained, cortex_state="up", **own)
        if self.drained:
            put(f"{prefix}cortex_nodes", self.drained, cortex_state="drained", **own)
        if self.lost_s:
            put(f"{prefix}cortex_node_lost_timestamp_seconds", self.lost_s, cortex_node="pod-2", **own)
        put(f"{prefix}cortex_channels_orphaned", self.orphaned, **own)
        put(f"{prefix}cortex_restarts_total", self.restarts, cortex_role="branch", **own)
        if self.breaker is not None and running:
            route = {"cortex_subject": "sonnet", "cortex_subject_kind": "route"}
            put(f"{prefix}cortex_breaker_state", self.breaker, **route, **own)
            put(f"{prefix}cortex_breaker_blocked", int(self.refused), **route, **own)

    def _ends(self, prefix: str, by_cortex: bool) -> None:
        own, put = {**self.labels, "instance": "i" if by_cortex else "exporter"}, self.scrapes.put
        put(f"{prefix}cortex_ends_kept_seconds", KEPT_S, **own)
        if not by_cortex:
            put("cortex_state_up", int(self.up), **own)
            if not self.up:
                return
            put("cortex_disk_free_bytes", self.free_bytes, cortex_folder="/s", **own)
        for job in self.jobs:
            end, rows = (None if job.runs else job.end), job.rows_at_end
            if by_cortex and job.left_behind:
                end, rows = job.left_behind
            if end is not None and job.end_told and self.now_s - end[2] < KEPT_S:
                outcome, cause, at_s = end if by_cortex else job.end_at_rest or end
                for each, count in rows.items() if job.rows_told else ():
                    put(f"{prefix}cortex_job_ended_rows", int(count), cortex_outcome=each, cortex_job_id=job.name, **own)
                how = {"cortex_outcome": outcome, "cortex_cause": cause, "cortex_job_id": job.name}
                put(f"{prefix}cortex_job_ended_timestamp_seconds", at_s, **own, **how)


Act = Callable[[World], None]
