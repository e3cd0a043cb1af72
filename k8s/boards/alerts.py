"""Recording rules and alert rules for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k8s.boards.queries import (
    JOB,
    THROTTLED,
    by,
    in_all,
    increase,
    last,
    level,
    lowest,
    matching,
    present,
    quantile,
    slope,
)

# Location of the runbook. Users who publish it at an address of their own replace this text in the rules files.
RUNBOOK = "docs/runbook.md"

OF = "{{ $labels.cortex_job_id }}"
SUBJECT = ("namespace", "cortex_subject_kind", "cortex_subject")
PLACE = ("namespace", "instance")
DISK_PLACE = (*PLACE, "cortex_folder")
FAILED, BLOCKED = 'cortex_outcome="failed"', 'cortex_cause="blocked"'
COMPLETE = 'cortex_outcome="complete"'
DRAINED = 'cortex_state="drained"'
CLUSTER = ("namespace", "ray_io_cluster")
OF_CLUSTER = (*CLUSTER, "cortex_job_id")
GIB = 1 << 30

TOLD_S = 3 * 86_400
"""Most seconds for which an alert about the end of a job fires, if nothing is done. It fires while the end is told, a day by
default (``actors.observability.metrics.job_ends.KEPT_S``); this bounds what ``cortex metrics --keep`` can make of it."""
STANDS = "1d"
"""Longest time for which an alert about a lost job fires: from one evening over the next morning."""
LATER_S = 300
"""Seconds after an end from which progress is that of a later run, whoever tells it: longer than a lease of a channel that is
cut off, and than the difference of two clocks that are kept."""
NOTICED = "30m"
"""Time within which a loss has to be noticed. Who begins to scrape `cortex metrics` hears nothing of jobs of before, whose
ends may be told by nobody any more; nor who starts Prometheus again after hours."""
ENDED = "cortex_job_ended_timestamp_seconds"
PROGRESSED = "cortex_job:progressed_seconds"
JOB_OF_IT = "`cortex jobs` lists the jobs that run, and `cortex status JOB` says under `waits` what each waits for."


def _ended(*matchers: str) -> str:
    """Return the query of jobs that have ended so at last, seconds ago, and do not go on. Of a job that was cancelled at rest,
    or that went on elsewhere, a standing cortex still tells the end before, also when that run is over and nothing tells of its
    end. A run progresses with its first turn, and not after its last one; but a killed one may have shown progress that is in
    no journal, and its shards go on a while, so that of a run that is over only progress by ``LATER_S`` later counts."""
    ends = level(ENDED, *matchers, labels=(*JOB, "cortex_outcome", "cortex_cause"))
    job, goes_on = ", ".join(JOB), f"({by('max', JOB, PROGRESSED)} > {level(ENDED)})"
    went_on = f"({by('max', JOB, _seen(STANDS))} > {level(ENDED)} + {LATER_S})"
    latest = f"{ends} >= on ({job}) group_left () {level(ENDED)}"
    return f"(time() - ({latest} unless on ({job}) {goes_on} unless on ({job}) {went_on})) < {TOLD_S}"


def _at_end(*matchers: str) -> str:
    """Return the query of rows by outcome, of jobs that have ended: as who tells the latest end of a job tells them. A standing
    cortex still tells the rows of a run before, if the job went on elsewhere; of one teller the labels are the same."""
    latest = f"{matching(ENDED)} == on ({', '.join(JOB)}) group_left () {level(ENDED)}"
    rows = f"{matching('cortex_job_ended_rows', *matchers)} and ignoring (cortex_outcome, cortex_cause) ({latest})"
    return by("max", (*JOB, "cortex_outcome"), rows)


def _seen(window: str) -> str:
    """Return the query of the last progress of jobs that were scraped within the window: one series a job, which is recorded,
    since a window of a day over the series of all shards and workers reads millions of samples."""
    return by("max", OF_CLUSTER, f"last_over_time({PROGRESSED}[{window}])")


def _lost(when: str) -> str:
    """Return the query of jobs whose series have vanished, and whose end nobody tells: noticed while ``when`` holds, and from
    then on until the job reports or has ended, for ``STANDS`` at most.

    The series of an alert itself are the memory (``ALERTS``, which Prometheus stores with all samples, so that the memory
    outlasts a restart; https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/). ``keep_firing_for`` of
    the same page is none: it also keeps an alert whose cause was mended. A window over the vanished series alone clears the
    alert by itself, or fires of all jobs of a day when the first teller of ends is scraped.

    The end of an earlier run, before the last progress, is none of this run. A job may go on in another cluster.
    """
    cluster, job = ", ".join(OF_CLUSTER), ", ".join(JOB)
    fired = by("count", OF_CLUSTER, f'last_over_time(ALERTS{{alertname=~"{LOST}", alertstate="firing"}}[{STANDS}])')
    known = f"{last(ENDED, window=STANDS)} >= on ({job}) {by('max', JOB, _seen(STANDS))}"
    running = level("cortex_rows_expected")
    return (
        f"(({_seen(NOTICED)} {when}) or ({_seen(STANDS)} and on ({cluster}) {fired})) "
        f"unless on ({job}) ({known}) unless on ({job}) {running}"
    )


LOST = "CortexHeadLost|CortexNothingReported"
BLOCKED_NOW = f"{level('cortex_job_blocked')} > 0"
OVER_BUDGET = f"({level('cortex_job_over_budget')} > 0 unless {present('cortex_calls_in_flight')} > 0)"
"""Jobs that wait for a budget, which a person has set, and for nothing else: no call is in flight that could hang."""
ON_CLUSTER = f"on ({', '.join(CLUSTER)})"
UNREAD = f"{lowest('cortex_state_up', labels=CLUSTER)} == 0"
TELLS = f"({by('count', CLUSTER, matching('cortex_ends_kept_seconds'))} unless {ON_CLUSTER} {UNREAD})"
"""Clusters and places in which something tells how jobs ended. A teller whose state folder does not answer knows no ends, and
a job of that folder may be too slow to be scraped: CortexDatabaseAway tells of both."""
OF_STANDING = '{__name__="ray_cortex_ends_kept_seconds"}'
"""Cortices of clusters that outlive their jobs. A process of its own, or a private Ray, ends with its job."""
GONE = f"({by('count', CLUSTER, f'last_over_time({OF_STANDING}[{STANDS}])')} unless {ON_CLUSTER} {by('count', CLUSTER, OF_STANDING)})"
"""Clusters that outlive their jobs, whose cortex is gone: a lost head exports nothing, so this reads the last values
before the loss. Of a job in such a cluster one alert tells, not also that it reports nothing."""
ROWS_AT_END = by("sum", JOB, _at_end())
FAILED_AT_END = f"{by('sum', JOB, _at_end(FAILED))} / {ROWS_AT_END}"
"""Share of rows that failed, of jobs that have ended."""
FORECAST = "15m"
"""Window of the rates that forecasts read."""
DISK = matching("cortex_disk_free_bytes")
FREE = lowest("cortex_disk_free_bytes", labels=DISK_PLACE)
FULL = f"{FREE} < {GIB} or ({FREE} < {10 * GIB} and {by('min', DISK_PLACE, f'predict_linear({DISK}[5m], 600)')} < 0)"
"""Disks with too little room: the absolute rest, and a fill that leaves no time to wait for it."""
FILLING = (
    f"{by('min', DISK_PLACE, f'predict_linear({DISK}[1h], 4 * 3600)')} < 0 "
    f"and {by('min', DISK_PLACE, f'deriv({DISK}[{FORECAST}])')} < 0 and {FREE} unless ({FULL})"
)
"""Disks that are told now, whose room decreases still. The forecast of an hour alone also goes on for a target that is gone,
and for a disk that was full and has room again."""
OF_FOLDER = "{{ $labels.cortex_folder }} on {{ $labels.instance }}"
JOBS_OF_FOLDER = "`cortex jobs --state {{ $labels.cortex_folder }}` lists its jobs"
LAG = level("cortex_journal_lag_seconds")
STALLED = "cortex_job:stalled_seconds"
STOOD = "10m"
"""Time without progress after which a job counts as stalled."""
INTERVAL_S = 30
STALLED_S = 300
"""Seconds for which a job is stalled before that is told: without progress for 15 minutes in total."""
STANDS_STILL = f"count_over_time({STALLED}[{STALLED_S + 1}s]) > {STALLED_S // INTERVAL_S}"
"""Jobs whose stand is told: stalled at each evaluation of so many seconds, as ``for`` counts. The window has a second more, so
that both ends are in it also where a window is open to the left (Prometheus 3.0 and later;
https://prometheus.io/docs/prometheus/latest/migration/#promql)."""
_PROGRESS = matching("cortex_job_progressed_seconds")
UNMOVED = (
    f"{level('cortex_job_progressed_seconds')} == {by('max', JOB, f'last_over_time({_PROGRESS}[5m] offset {STOOD})')} "
    f"unless {by('max', JOB, f'changes({_PROGRESS}[{STOOD}])')} > 0"
)
"""Jobs that made no progress for ``STOOD``: of each of their clocks the time of the last progress is what it was then. Its
age says nothing where the clock of a job's machine is not that of Prometheus."""


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
    PROGRESSED: (  # of jobs with rows of their own, not of the children of one
        f"{level('cortex_job_progressed_seconds', labels=OF_CLUSTER)} and on ({', '.join(OF_CLUSTER)}) "
        f"{level('cortex_rows_expected', labels=OF_CLUSTER)}"
    ),
    "cortex_job:rows_done": f"{in_all('cortex_rows_total', over='cortex_outcome')} or 0 * {level('cortex_rows_expected')}",
    "cortex_job:rows_left": f"{level('cortex_rows_expected')} - cortex_job:rows_done",
    "cortex_job:rows:rate15m": slope("cortex_rows_total", over=("cortex_outcome",)),
    "cortex_job:cost_usd": f"{level('cortex_cost_usd_total')} + {level('cortex_cost_assumed_usd')}",
    "cortex_job:cost_usd:rate15m": slope("cortex_cost_usd_total"),
    "cortex_job:cost_usd_left": f"{level('cortex_cost_cap_usd')} - cortex_job:cost_usd",
    "cortex_job:calls_waiting": f"{present('cortex_queue')} + {present('cortex_calls_in_flight')}",
    STALLED: (
        f"time() - ({UNMOVED}) and (cortex_job:calls_waiting > 0 or {BLOCKED_NOW}) unless {OVER_BUDGET}"
    ),
    "cortex_job:calls:rate10m": by("sum", JOB, f"rate({matching('cortex_calls_total')}[10m])"),
    "cortex_job:attempts:rate5m": by("sum", (*JOB, "cortex_kind"), f"rate({matching('cortex_attempts_total')}[5m])"),
    "cortex_job:throttled:share5m": (
        f"{by('sum', JOB, f'cortex_job:attempts:rate5m{{{THROTTLED}}}')} / {by('sum', JOB, 'cortex_job:attempts:rate5m')}"
    ),
    "cortex_job:call_seconds:p95_5m": quantile(
        0.95, "gen_ai_client_operation_duration_seconds", 'error_type=""', labels=JOB, window="5m"
    ),
}

@dataclass(frozen=True)
class Inhibition:
    """Alert that mutes others while it fires, with further matchers of it and of the muted ones, and the labels in which both
    are equal."""

    source: str
    muted: str
    equal: tuple[str, ...]
    of_source: tuple[str, ...] = ()
    of_muted: tuple[str, ...] = ()


IN_NAMESPACE = ('namespace =~ ".+"',)
"""Alertmanager takes a label that both alerts lack for equal: outside Kubernetes every two alerts are of one namespace
(https://prometheus.io/docs/alerting/latest/configuration/#inhibition-related-settings)."""
INHIBITIONS = (
    Inhibition(
        "CortexDatabaseAway", "CortexNoProgress|CortexNothingReported|CortexInterrupted|CortexJournalLag|CortexDeadlineAtRisk",
        JOB, ('cortex_job_id =~ ".+"',),
    ),
    Inhibition(
        "CortexDatabaseAway", "CortexNoProgress|CortexNothingReported|CortexInterrupted|CortexJournalLag|CortexDeadlineAtRisk",
        ("namespace",), ('cortex_job_id = ""', *IN_NAMESPACE), IN_NAMESPACE,
    ),
    Inhibition("CortexDiskFull", "CortexDiskFilling", DISK_PLACE),
    Inhibition("CortexDiskFull", "CortexDatabaseAway", PLACE),
    Inhibition(
        "CortexDiskFull", "CortexInterrupted|CortexNothingReported|CortexJournalLag", ("namespace",), IN_NAMESPACE, IN_NAMESPACE
    ),
    Inhibition("CortexHeadLost", "CortexInterrupted|CortexNoProgress", JOB),
    Inhibition(
        "CortexNodeLost", "CortexBreakerOpen", ("namespace",), IN_NAMESPACE, (*IN_NAMESPACE, 'cortex_subject_kind = "node"')
    ),
    Inhibition("CortexThrottledShare", "CortexSlow", JOB),
)  # fmt: skip
"""Alerts that mute others, for Alertmanager. An alert about a job mutes others of that job alone: of breakers, which may be
another provider's, it says nothing. An alert about a place mutes those of that place, and those of jobs, which name none, in
a namespace that is there. A job that misses its deadline is told, whatever else slows it. A rule excludes only what its own figures can: with ``unless`` over ``ALERTS`` the second alert would be told as
resolved, though its cause stands, and would be told first where its own time is shorter."""

ALERTS = (
    Alert(
        "CortexNoProgress",
        f"{STALLED} unless {BLOCKED_NOW} unless {LAG} > 30",
        f"{STALLED_S // 60}m",
        "critical",
        f"Job {OF} has work and gets no reply",
        "No call has ended for 15 minutes or more, and calls wait or are in flight. By the clock of the job's machine the last "
        "one ended {{ $value | humanizeDuration }} ago.",
    ),
    Alert(
        "CortexBreakerOpen",
        f"{level('cortex_breaker_state', labels=SUBJECT)} > 0 unless {level('cortex_breaker_blocked', labels=SUBJECT)} > 0",
        "5m",
        "warning",
        "The breaker of {{ $labels.cortex_subject_kind }} {{ $labels.cortex_subject }} does not close",
        f"Its calls mostly fail or hang, so it is only probed. Work that needs it waits, or takes its fallback. {JOB_OF_IT}",
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
        f"(cortex_job:cost_usd + {level('cortex_cost_reserved_usd')}) / {level('cortex_cost_cap_usd')} > 0.95 "
        "and cortex_job:calls_waiting > 0",
        "5m",
        "warning",
        f"Job {OF} is about to reach its cap",
        "{{ $value | humanizePercentage }} of the cap is spent or reserved, and calls wait or are in flight. At the cap "
        "the job ends partial and can be resumed.",
    ),
    Alert(
        "CortexDeadlineAtRisk",
        # the rate of a time in which the job stood still is no forecast, and that it stands is told by another alert; this one
        # holds for the whole window of the rate, and so begins neither before that alert nor by what a stand leaves in it
        f"cortex_job:rows_left / cortex_job:rows:rate15m > {level('cortex_job_deadline_seconds')} - time() "
        f"unless {STANDS_STILL}",
        FORECAST,
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
        f"{slope('cortex_rows_total', FAILED)} / cortex_job:rows:rate15m > 0.05 and cortex_job:rows_done >= 50",
        "5m",
        "warning",
        f"Rows of job {OF} fail",
        "{{ $value | humanizePercentage }} of the rows of the last 15 minutes ended in an error. "
        f"`cortex inspect {OF} --failed` shows them.",
    ),
    Alert(
        "CortexAccountBlocked",
        f"{BLOCKED_NOW} or {by('max', JOB, _ended(BLOCKED))}",
        "0m",
        "critical",
        f"The provider refuses the account of job {OF}",
        "Cause: credit, a spend limit, the model or the key. No row fails; the job waits, or has ended partial, until the "
        f"cause is removed and `cortex resume {OF}` continues it.",
    ),
    Alert(  # of a route: a job that has another one goes on, and tells of no block
        "CortexAccountBlocked",
        f"{level('cortex_breaker_blocked', labels=SUBJECT)} > 0",
        "5m",
        "warning",
        "The provider refuses the account of {{ $labels.cortex_subject_kind }} {{ $labels.cortex_subject }}",
        "Cause: credit, a spend limit, the model or the key. No row fails. Jobs that have another route for such work go on "
        f"elsewhere; of a job that waits, a critical alert of this name tells. {JOB_OF_IT}",
    ),
    Alert(
        "CortexJournalLag",
        f"{LAG} > 5 unless {LAG} > 30",
        "5m",
        "warning",
        f"The disk under the journal of job {OF} is slow",
        "Events wait {{ $value | humanizeDuration }} to be on disk, and no event is acted on before it is on disk.",
    ),
    Alert(
        "CortexDiskFilling",
        FILLING,
        "15m",
        "warning",
        f"The disk under the state folder {OF_FOLDER} will be full within four hours",
        f"The forecast uses the rate of the last hour. Make room before: on a full disk jobs stop. {JOBS_OF_FOLDER}.",
    ),
    Alert(
        "CortexDiskFull",
        FULL,
        "0m",
        "critical",
        f"The disk under the state folder {OF_FOLDER} is full, or will be within ten minutes",
        "{{ $value | humanize1024 }}B are left. Jobs whose journal cannot be written stop: make room, then `cortex resume JOB`. "
        f"{JOBS_OF_FOLDER}, and `cortex status JOB` says under `why` which stopped for the disk.",
    ),
    Alert(
        "CortexChannelOrphaned",
        f"{level('cortex_channels_orphaned', labels=PLACE)} > 0",
        "5m",
        "critical",
        "{{ $value }} job(s) on {{ $labels.instance }} have lost their channel",
        "A channel is dead, or has not reported for the time of its lease, and was not replaced. Its permits count as "
        f"used until then. {JOB_OF_IT}",
    ),
    Alert(
        "CortexRestarting",
        f"{increase('cortex_restarts_total', labels=('namespace', 'cortex_role'), window='15m')} > 5",
        "0m",
        "warning",
        "Members of role {{ $labels.cortex_role }} keep dying",
        "{{ $value | humanize }} restarts in 15 minutes. A member that keeps dying takes its node out; a channel that keeps dying "
        f"fails its job. {JOB_OF_IT}",
    ),
    Alert(
        "CortexNodeDrained",
        f"{level('cortex_nodes', DRAINED, labels=PLACE)} > 0",
        "10m",
        "warning",
        "{{ $value }} node(s) get no more work",
        "Branches on them kept dying, or an operator drained them. The cluster has less capacity; `cortex top` names them.",
    ),
    Alert(
        "CortexNodeLost",
        f"{level('cortex_node_lost_timestamp_seconds', labels=('namespace', 'cortex_node'))} > 0",
        "0m",
        "warning",
        "Node {{ $labels.cortex_node }} was lost",
        "It was lost at {{ $value | humanizeTimestamp }}, and was neither drained nor ended on purpose. Jobs go on elsewhere; "
        "its calls in flight are asked again.",
    ),
    Alert(
        "CortexHeadLost",
        f"({_lost('')}) and {ON_CLUSTER} {GONE}",
        "2m",
        "critical",
        f"The cortex of job {OF} is gone, and the job was not done",
        f"Its head was lost, evicted or replaced. Nothing is lost, and nothing goes on before `cortex resume {OF}`, or `cortex tend`.",
    ),
    Alert(
        "CortexEndedEarly",
        _ended('cortex_outcome=~"partial|failed"', 'cortex_cause!~"blocked|drain|answer|retry"'),
        "0m",
        "warning",
        f"Job {OF} has ended {{{{ $labels.cortex_outcome }}}} before its last row: {{{{ $labels.cortex_cause }}}}",
        f"`cortex status {OF}` says why and what to do. Nothing is lost, and finished rows are not paid again.",
    ),
    Alert(
        "CortexEndedWithFailures",
        f"({FAILED_AT_END} > 0.05 and {ROWS_AT_END} >= 50 or {FAILED_AT_END} > 0.5) "
        f"and on ({', '.join(JOB)}) {_ended(COMPLETE)}",
        "0m",
        "warning",
        f"Job {OF} has ended complete, with many failed rows",
        "{{ $value | humanizePercentage }} of its rows ended in an error. "
        f"`cortex inspect {OF} --failed` shows them, and `cortex retry {OF}` asks them again.",
    ),
    Alert(
        "CortexInterrupted",
        _ended('cortex_outcome="interrupted"'),
        "2m",
        "critical",
        f"No process runs job {OF}, and it has not ended",
        '{{ if eq $labels.cortex_cause "disk" }}The disk of its state folder is full, or was: make room first. {{ else }}'
        f"Its process was killed, its machine is gone, or its journal could not be written: `cortex status {OF}` says under `why` "
        f"what is known. {{{{ end }}}}Nothing is lost; `cortex resume {OF}` continues it when the cause is over.",
    ),
    Alert(
        "CortexNothingReported",
        f"{_lost(f'and {ON_CLUSTER} {TELLS}')} unless {ON_CLUSTER} {GONE}",
        "5m",
        "critical",
        f"Job {OF} has reported nothing for 5 minutes, and its end is not known",
        f"Its channel or process is gone, is stopped by a signal, or cannot be scraped. `cortex status {OF}` says whether it runs.",
    ),
    Alert(
        "CortexDatabaseAway",
        f"{level('cortex_journal_lag_seconds', labels=(*PLACE, 'cortex_job_id'))} > 30 or "
        f"{lowest('cortex_state_up', labels=PLACE)} == 0",
        "1m",
        "critical",
        "The state folder cannot be written or read, as seen on {{ $labels.instance }}",
        "The database or the disk does not answer, or the folder is not there: `cortex_state_fault` says which. Jobs wait "
        f"up to 15 minutes, then rest, resumable; nothing is lost. {JOB_OF_IT}",
    ),
    Alert(
        "CortexSlow",
        f"cortex_job:calls:rate10m < 0.1 * (cortex_job:calls:rate10m offset 1h) and cortex_job:calls:rate10m > 0 "
        f"and {present('cortex_queue')} > 0 unless {BLOCKED_NOW}",
        "10m",
        "warning",
        f"Job {OF} is slower than a tenth of an hour ago",
        f"{{{{ $value | humanize }}}} calls a second, and calls wait for a permit. `cortex status {OF}` says what it waits for.",
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
    return {"groups": [{"name": "cortex", "interval": f"{INTERVAL_S}s", "rules": [*recorded, *map(_rule, ALERTS)]}]}


def inhibitions() -> dict[str, Any]:
    """Return the inhibitions in Alertmanager's format
    (https://prometheus.io/docs/alerting/latest/configuration/#inhibition-related-settings)."""
    rules = []
    for each in INHIBITIONS:
        sources = [f'alertname = "{each.source}"', *each.of_source]
        targets = [f'alertname =~ "{each.muted}"', *each.of_muted]
        rules.append({"source_matchers": sources, "target_matchers": targets, "equal": list(each.equal)})
    return {"inhibit_rules": rules}


def resource() -> dict[str, Any]:
    """Return the rules as a resource of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "cortex", "labels": {"release": "prometheus"}},
        "spec": groups(),
    }
