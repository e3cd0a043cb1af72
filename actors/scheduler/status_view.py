"""Status of pools, breakers, jobs, branches, workers and nodes for observers: numbers, names and reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from cortex.scheduler import health
from cortex.scheduler.health import HealthBuffer
from cortex.scheduler.state import SchedulerState
from policies.limits.learned import learned

FRESH_S = 0.5
"""Seconds for which the part that is common to all jobs is reused between requests."""


class SchedulerStatus:
    """Status of one incarnation of the cortex. Times are those of its runtime's monotonic clock, in seconds."""

    def __init__(self, incarnation: str, state: SchedulerState) -> None:
        self._incarnation = incarnation
        self._state = state
        self.hosts: dict[str, str] = {}
        """Names of pods or hosts, by node."""
        self._common: tuple[float, dict[str, Any]] = (float("-inf"), {})

    def whole(self, at_s: float) -> dict[str, Any]:
        """Return the complete status, as of now."""
        return self._of_jobs(self._state.jobs) | self._of_all(at_s)

    def about(self, job: str, at_s: float) -> dict[str, Any]:
        """Return the status for one job: of the jobs only this one; the rest is at most ``FRESH_S`` old.

        The cost does not depend on the number of jobs, since each of them asks repeatedly while it runs.
        """
        made_s, common = self._common
        if not made_s <= at_s < made_s + FRESH_S:
            common = self._of_all(at_s)
            self._common = at_s, common
        return self._of_jobs((job,) if job in self._state.jobs else ()) | common

    def _of_jobs(self, names: Iterable[str]) -> dict[str, Any]:
        jobs = {name: self._state.jobs[name] for name in names}
        return {
            "cortex": self._incarnation, "serves": len(self._state.jobs),
            "jobs": {name: sum(hold.counted for hold in job.holds.values()) for name, job in jobs.items()},
            "channels": {
                name: {
                    "epoch": job.epoch, "deaths": len(job.deaths), "expired": job.expired, "condemned": job.condemned,
                }
                for name, job in jobs.items()
            },
        }  # fmt: skip

    def _of_all(self, at_s: float) -> dict[str, Any]:
        state = self._state
        pools = {
            name: {
                "concurrency": pool.allowed.concurrency, "routes": list(pool.routes), "granted": pool.granted,
                "in_flight": pool.in_flight,
                "wanted": pool.wanted, "caps": msgspec.structs.asdict(pool.caps), "requests_per_s": pool.rates[0],
                "held_for_s": max(0.0, pool.allowed.held_until_s - at_s), "headroom": pool.headroom,
                "tenants": pool.lent.tenants if pool.lent is not None else 1,
                "learned": [msgspec.structs.asdict(each) for each in learned(pool.limit, at_s)],
            }
            for name, pool in state.pools.items()
        }  # fmt: skip
        breakers = {
            **{f"route:{name}": route.breaker for name, route in state.routes.items()},
            **{f"tool:{name}": tool.breaker for name, tool in state.tools.items()},
            **{f"node:{name}": node.breaker for name, node in state.nodes.items()},
        }
        return {
            "pools": pools,
            "routes": {name: _readings(route.seen, at_s) for name, route in state.routes.items()},
            "breakers": {
                subject: {"state": str(own.state), "for_s": max(0.0, own.until_s - at_s), "why": own.why}
                for subject, own in breakers.items()
            },
            "staff": {
                name: {
                    "state": one.state, "node": one.node, "phase": one.phase, "in_flight": one.in_flight,
                    "drained_by": one.drained, "failure_share": health.failure_share(one.seen, at_s),
                    "deaths": len(one.deaths),
                }
                for name, one in state.members.items()
            },
            "nodes": {
                name: {"alive": node.alive, "drained_by": node.drained, "host": self.hosts.get(name, "")}
                for name, node in state.nodes.items()
            },
            "lost": {name: {"host": lost.host, "at_s": lost.now_s} for name, lost in state.lost.items()},
        }  # fmt: skip


def _readings(seen: HealthBuffer, at_s: float) -> dict[str, Any]:
    """Return the cortex's figures for a route over the last minute; ``series``: second by second."""
    rates = health.rates(seen, at_s, health.AGE_MAX_S)
    return {
        "begun_per_s": rates.begun, "answered_per_s": rates.answered, "failed_per_s": rates.failed,
        "input_tokens_per_s": rates.input_tokens, "output_tokens_per_s": rates.output_tokens,
        "failure_share": health.failure_share(seen, at_s), "latency_s": health.latency_s(seen, at_s),
        "per_token_p50_s": health.per_token_s(seen, at_s, 0.5), "per_token_p95_s": health.per_token_s(seen, at_s, 0.95),
        "series": msgspec.to_builtins(health.series(seen, at_s)),
    }  # fmt: skip
