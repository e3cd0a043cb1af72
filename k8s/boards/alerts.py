"""Recording rules and alert rules for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k8s.boards.queries import JOB, THROTTLED, by, in_all, increase, level, matching, quantile, rate

# Location of the runbook. Users who publish it at an address of their own replace this text in the rules files.
RUNBOOK = "docs/runbook.md"

OF = "{{ $labels.cortex_job_id }}"
SUBJECT = ("namespace", "cortex_subject_kind", "cortex_subject")
PLACE = ("namespace", "instance")
FAILED, BLOCKED = 'cortex_outcome="failed"', 'cortex_kind=~"blocked|unauthorised"'
DRAINED = 'cortex_state="drained"'
CLUSTER = ("namespace",)
NODES = matching("cortex_nodes")


@dataclass(frozen=True)
class Alert:
    """Alert rule: condition, time for which it must hold, severity, and texts."""

    name: str
    expr: str
    held: str
    severity: str
    summary: str
    description: str

    @property
    def anchor(self) -> str:
        """Anchor of the alert in the runbook."""
        return self.name.lower()


RECORDED = {
    "cortex_job:rows_done": f"{in_all('cortex_rows_total', over='cortex_outcome')} or 0 * {level('cortex_rows_expected')}",
    "cortex_job:rows_left": f"{level('cortex_rows_expected')} - cortex_job:rows_done",
    "cortex_job:rows:rate15m": rate("cortex_rows_total", labels=JOB, window="15m"),
    "cortex_job:cost_usd": f"{level('cortex_cost_USD_total')} + {level('cortex_cost_assumed_USD')}",
    "cortex_job:cost_usd:rate15m": rate("cortex_cost_USD_total", labels=JOB, window="15m"),
    "cortex_job:cost_usd_left": f"{level('cortex_cost_cap_USD')} - cortex_job:cost_usd",
    "cortex_job:calls_waiting": f"{level('cortex_queue')} + {level('cortex_calls_in_flight')}",
    "cortex_job:attempts:rate5m": rate("cortex_attempts_total", labels=(*JOB, "cortex_kind"), window="5m"),
    "cortex_job:throttled:share5m": (
        f"{by('sum', JOB, f'cortex_job:attempts:rate5m{{{THROTTLED}}}')} / {by('sum', JOB, 'cortex_job:attempts:rate5m')}"
    ),
    "cortex_job:call_seconds:p95_5m": quantile(
        0.95, "gen_ai_client_operation_duration_seconds", 'error_type=""', labels=JOB, window="5m"
    ),
}

ALERTS = (
    Alert(
        "CortexNoProgress",
        # 15 minutes in total with `held`
        f"time() - {level('cortex_job_progressed_seconds')} > 600 and cortex_job:calls_waiting > 0",
        "5m",
        "critical",
        f"Job {OF} has work and gets no reply",
        "No call has ended for {{ $value | humanizeDuration }}, and calls wait or are in flight.",
    ),
    Alert(
        "CortexBreakerOpen",
        f"{level('cortex_breaker_state', labels=SUBJECT)} > 0",
        "5m",
        "warning",
        "The breaker of {{ $labels.cortex_subject_kind }} {{ $labels.cortex_subject }} does not close",
        "Its calls mostly fail or hang, so it is only probed. Work that needs it waits, or takes its fallback.",
    ),
    Alert(
        "CortexBudgetBurn",
        "cortex_job:rows_left / cortex_job:rows:rate15m * cortex_job:cost_usd:rate15m > cortex_job:cost_usd_left "
        "and cortex_job:rows_left > 0",
        "10m",
        "warning",
        f"Job {OF} will not get done within its cap",
        "At the rate of the last 15 minutes the rest costs {{ $value | humanize }} USD, more than the cap has left. At the "
        "cap the job ends partial and can be resumed; the cap is never exceeded.",
    ),
    Alert(
        "CortexBudgetNearlySpent",
        f"(cortex_job:cost_usd + {level('cortex_cost_reserved_USD')}) / {level('cortex_cost_cap_USD')} > 0.95 "
        "and cortex_job:calls_waiting > 0",
        "5m",
        "warning",
        f"Job {OF} is about to reach its cap",
        "{{ $value | humanizePercentage }} of the cap is spent or reserved, and calls wait or are in flight. At the cap "
        "the job ends partial and can be resumed.",
    ),
    Alert(
        "CortexDeadlineAtRisk",
        f"cortex_job:rows_left / cortex_job:rows:rate15m > {level('cortex_job_deadline_seconds')} - time()",
        "10m",
        "warning",
        f"Job {OF} will not get done by its deadline",
        "At the rate of the last 15 minutes the rest takes {{ $value | humanizeDuration }}, more than is left. At the "
        "deadline the job ends partial and can be resumed.",
    ),
    Alert(
        "CortexThrottledShare",
        "cortex_job:throttled:share5m > 0.2",
        "15m",
        "warning",
        f"The provider throttles job {OF}",
        "{{ $value | humanizePercentage }} of its attempts were throttled in the last 5 minutes. Nothing is lost, but "
        "another user shares the limits, or an operator set them too high.",
    ),
    Alert(
        "CortexRowsFailing",
        f"{level('cortex_rows_total', FAILED)} / cortex_job:rows_done > 0.05 "
        "and cortex_job:rows_done >= 50",
        "5m",
        "warning",
        f"Rows of job {OF} fail",
        "{{ $value | humanizePercentage }} of the finished rows ended in an error.",
    ),
    Alert(
        "CortexAccountBlocked",
        f"{increase('cortex_attempts_total', BLOCKED, labels=JOB, window='10m')} > 0",
        "0m",
        "critical",
        f"The provider refuses the account of job {OF}",
        "Cause: credit, a spend limit, the model or the key. No row fails; the job waits, or has ended partial, until the "
        "cause is removed.",
    ),
    Alert(
        "CortexJournalLag",
        f"{level('cortex_journal_lag_seconds')} > 5",
        "5m",
        "warning",
        f"The disk under the journal of job {OF} is slow",
        "Events wait {{ $value | humanizeDuration }} to be on disk, and no event is acted on before it is on disk.",
    ),
    Alert(
        "CortexDiskFilling",
        by("min", PLACE, f"predict_linear({matching('cortex_disk_free_bytes')}[1h], 4 * 3600)") + " < 0",
        "15m",
        "warning",
        "The disk under the state folder on {{ $labels.instance }} will be full within four hours",
        "The forecast uses the rate of the last hour.",
    ),
    Alert(
        "CortexDiskFull",
        f"{level('cortex_disk_free_bytes', labels=PLACE)} < 1073741824",
        "1m",
        "critical",
        "The disk under the state folder on {{ $labels.instance }} is full",
        "{{ $value | humanize1024 }}B are left. Jobs whose journal cannot be written stop, resumable.",
    ),
    Alert(
        "CortexChannelOrphaned",
        f"{level('cortex_channels_orphaned', labels=PLACE)} > 0",
        "5m",
        "critical",
        "{{ $value }} job(s) on {{ $labels.instance }} have lost their channel",
        "A channel is dead, or has not reported for the time of its lease, and was not replaced. Its permits count as "
        "used until then.",
    ),
    Alert(
        "CortexRestarting",
        f"{increase('cortex_restarts_total', labels=('namespace', 'cortex_role'), window='15m')} > 5",
        "0m",
        "warning",
        "Members of role {{ $labels.cortex_role }} keep dying",
        "{{ $value | humanize }} restarts in 15 minutes. A member that keeps dying takes its node out; a channel that keeps dying "
        "fails its job.",
    ),
    Alert(
        "CortexNodeDrained",
        f"{level('cortex_nodes', DRAINED, labels=PLACE)} > 0",
        "10m",
        "warning",
        "{{ $value }} node(s) get no more work",
        "Branches on them kept dying, or an operator drained them. The cluster has less capacity.",
    ),
    Alert(
        "CortexHeadLost",  # a lost head exports nothing: the alert reads the last values before the loss
        f"{by('count', CLUSTER, 'last_over_time(cortex_job:rows_left[15m]) > 0')} "
        f"and on (namespace) {by('count', CLUSTER, f'last_over_time({NODES}[15m])')} "
        f"unless on (namespace) {by('count', CLUSTER, NODES)}",
        "2m",
        "critical",
        "The cortex is gone, and {{ $value }} job(s) were not done",
        "Its head was lost, evicted or replaced. Nothing is lost, and nothing goes on before the jobs are resumed.",
    ),
)


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({} if alert.held == "0m" else {"for": alert.held}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{RUNBOOK}#{alert.anchor}",
        },
    }


def groups() -> dict[str, Any]:
    """Return the rules in Prometheus' format. A group is evaluated in order, so alerts see the values recorded before.
    """
    recorded = [{"record": name, "expr": expr} for name, expr in RECORDED.items()]
    return {"groups": [{"name": "cortex", "interval": "30s", "rules": [*recorded, *map(_rule, ALERTS)]}]}


def resource() -> dict[str, Any]:
    """Return the rules as a resource of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "cortex", "labels": {"release": "prometheus"}},
        "spec": groups(),
    }
