"""Made-up snapshots for tests of ``top``: its view and its terminal."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.jobs.summary import summary
from actors.top.sources import ClusterSnapshot, JobSnapshot, TopSnapshot
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from policies.limits.limit import NO_CAPS, PoolCaps

NOW_S = 1_800_000_000.0
OWN = Route(endpoint="https://api.anthropic.com", credential="k1", model="claude-haiku-4-5")
ROUTE = "https://api.anthropic.com|k1|claude-haiku-4-5"
POOL = "https://api.anthropic.com|k1|haiku"
NODE = "ab" * 28


def job(
    name: str = "j", outcome: str = "running", source: str = "live", age_s: float = 0.4, **facts: Any
) -> JobSnapshot:
    """Return a job with these facts; the others are those of a job that has just begun."""
    terms = JobTerms(
        job=name, program="batch", params_json=b"{}", fingerprint="f", route=OWN, streams=True,
        limits=Limits(max_cost_nusd=5 * 10**9), places={"rows": "1000"},
    )  # fmt: skip
    reported = summary(State(terms, at_s=NOW_S - 60, began_at_s=NOW_S - 120)) | {"outcome": outcome} | facts
    return JobSnapshot(
        job=name, facts=reported, source=source, as_of_s=NOW_S - age_s, owner="process 7 on here, inline"
    )


def reading(**more: Any) -> dict[str, Any]:
    """Return a cortex's measurements of a route."""
    return {
        "begun_per_s": 5.0, "answered_per_s": 4.0, "failed_per_s": 1.0, "input_tokens_per_s": 100.0,
        "output_tokens_per_s": 10.0, "failure_share": 0.2, "latency_s": 1.5, "per_token_p50_s": 0.0213,
        "per_token_p95_s": 0.5,
        "series": {
            "begun": [0, 4, 6], "answered": [0, 2, 4], "failed": [0, 1, 1], "per_token_p50_s": [0.0, 0.02, 0.03],
            "per_token_p95_s": [0.0, 0.4, 0.5],
        },
    } | more  # fmt: skip


def cluster(
    where: str = "process 7 on here, inline", cortex: str = "cortex.1", age_s: float = 0.4, breaker: Any = None,
    caps: PoolCaps = NO_CAPS, drained_by: str = "", **status: Any,
) -> ClusterSnapshot:  # fmt: skip
    """Return a cortex with one route, two branches and one node."""
    closed = {"state": "closed", "until_s": 0.0, "why": ""}
    facts = {
        "cortex": cortex, "jobs": {"j": 30}, "pools": {
            POOL: {"concurrency": 50, "routes": [ROUTE], "granted": 30, "in_flight": 12, "wanted": 100,
                   "caps": msgspec.structs.asdict(caps), "requests_per_s": 0.0, "held_until_s": 0.0, "headroom": 0.0},
        },
        "channels": {"j": {"epoch": 2, "deaths": 1, "expired": False, "condemned": False}},
        "routes": {ROUTE: reading()},
        "breakers": {f"route:{ROUTE}": breaker or closed, f"node:{NODE}": closed},
        "staff": {
            "branch:0": {"state": "up", "node": NODE, "phase": "calling", "in_flight": 12, "drained_by": "",
                         "failure_share": 0.1, "deaths": 0},
            "branch:1": {"state": "draining" if drained_by else "up", "node": NODE, "phase": "idle", "in_flight": 0,
                         "drained_by": "", "failure_share": 0.0, "deaths": 2},
        },
        "nodes": {NODE: {"alive": True, "drained_by": drained_by}},
    } | status  # fmt: skip
    return ClusterSnapshot(where=where, as_of_s=NOW_S - age_s, status=facts)


def seen(*jobs: JobSnapshot, clusters: tuple[ClusterSnapshot, ...] = (), trouble: str = "") -> TopSnapshot:
    """Return a whole snapshot."""
    return TopSnapshot(at_s=NOW_S, state="/state", jobs=jobs, clusters=clusters, trouble=trouble)
