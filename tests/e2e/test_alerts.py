"""Every alert rule, in Prometheus' own test runner: it fires when it should, under both names of a metric, and not else."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from k8s.boards.alerts import ALERTS
from tests.support.repository_rules import ROOT

RULES = ROOT / "k8s" / "prometheus" / "cortex-rules.yaml"

JOB = 'cortex_job_id="j1",namespace="n",instance="i"'
BREAKER = 'cortex_subject="sonnet",cortex_subject_kind="route",instance="i"'
PLACE = 'namespace="n",instance="i"'

# A sample a minute for two hours; looked at after one hour. `100+5x120` rises by 5 each minute, `7x120` stands still.
ROWS = {"cortex_rows_expected": "10000x120", 'cortex_rows_total{cortex_outcome="succeeded"}': "0+10x120"}
UNDONE = {"cortex_rows_expected": "10000x55 stale", 'cortex_rows_total{cortex_outcome="succeeded"}': "0+10x55 stale"}
WORK = {"cortex_queue": "9x120", "cortex_calls_in_flight": "3x120"}
SPENDING = {"cortex_cost_USD_total": "0+0.1x120", "cortex_cost_assumed_USD": "0x120", "cortex_cost_reserved_USD": "0.5x120"}
GIB = 1 << 30

# Alert: series under which it fires, and some under which it must not.
CASES: dict[str, tuple[dict[str, str], list[dict[str, str]]]] = {
    "CortexNoProgress": (
        {"cortex_job_progressed_seconds": "2640x120", **WORK},  # none for 16 minutes
        [
            {"cortex_job_progressed_seconds": "0+60x120", **WORK},  # a reply every minute
            {"cortex_job_progressed_seconds": "2760x120", **WORK},  # none for 14 minutes
            {"cortex_job_progressed_seconds": "600x120", "cortex_queue": "0x120", "cortex_calls_in_flight": "0x120"},
        ],
    ),
    "CortexBreakerOpen": (
        {"cortex_breaker_state": "2 2 1 2 2 1x120"},  # a probe now and then does not hide it
        [{"cortex_breaker_state": "0x120"}, {"cortex_breaker_state": "0x55 2 2 1 0x60"}],
    ),
    "CortexBudgetBurn": (  # 600 of 10,000 rows cost 6 USD: the rest would cost 94
        {**ROWS, **SPENDING, "cortex_cost_cap_USD": "60x120"},
        [{**ROWS, **SPENDING, "cortex_cost_cap_USD": "110x120"}, {**ROWS, **SPENDING}],
    ),
    "CortexBudgetNearlySpent": (  # 6 and 0.5 of 6.2
        {**SPENDING, **WORK, "cortex_cost_cap_USD": "6.2x120"},
        [{**SPENDING, **WORK, "cortex_cost_cap_USD": "9x120"}, {**SPENDING, **WORK}],
    ),
    "CortexDeadlineAtRisk": (  # 9,400 rows at 10 a minute: 940 minutes
        {**ROWS, "cortex_job_deadline_seconds": f"{3600 + 900 * 60}x120"},
        [{**ROWS, "cortex_job_deadline_seconds": f"{3600 + 1000 * 60}x120"}, ROWS],
    ),
    "CortexThrottledShare": (
        {'cortex_attempts_total{cortex_kind="answered"}': "0+7x120", 'cortex_attempts_total{cortex_kind="throttled"}': "0+3x120"},
        [{'cortex_attempts_total{cortex_kind="answered"}': "0+9x120", 'cortex_attempts_total{cortex_kind="throttled"}': "0+1x120"}],
    ),
    "CortexRowsFailing": (
        {**ROWS, 'cortex_rows_total{cortex_outcome="failed"}': "0+1x120"},
        [
            ROWS,
            {**ROWS, 'cortex_rows_total{cortex_outcome="failed"}': "9x120"},
            {"cortex_rows_expected": "40x120", 'cortex_rows_total{cortex_outcome="failed"}': "40x120"},  # too few to tell
        ],
    ),
    "CortexAccountBlocked": (
        {'cortex_attempts_total{cortex_kind="blocked"}': "0+1x120"},
        [{'cortex_attempts_total{cortex_kind="transient"}': "0+1x120"}, {'cortex_attempts_total{cortex_kind="blocked"}': "5x120"}],
    ),
    "CortexJournalLag": ({"cortex_journal_lag_seconds": "6x120"}, [{"cortex_journal_lag_seconds": "0.2x58 6 0.2x60"}]),
    "CortexDiskFilling": (
        {"cortex_disk_free_bytes": f"{30 * GIB}-{GIB // 4}x120"},
        [{"cortex_disk_free_bytes": f"{300 * GIB}-{GIB // 4}x120"}, {"cortex_disk_free_bytes": f"{2 * GIB}x120"}],
    ),
    "CortexDiskFull": ({"cortex_disk_free_bytes": f"{GIB // 2}x120"}, [{"cortex_disk_free_bytes": f"{2 * GIB}x120"}]),
    "CortexChannelOrphaned": ({"cortex_channels_orphaned": "1x120"}, [{"cortex_channels_orphaned": "0x120"}]),
    "CortexRestarting": (
        {'cortex_restarts_total{cortex_role="branch"}': "0+1x120"},
        [{'cortex_restarts_total{cortex_role="branch"}': "2x50 3x70"}],
    ),
    "CortexNodeDrained": (
        {'cortex_nodes{cortex_state="drained"}': "1x120"},
        [{'cortex_nodes{cortex_state="drained"}': "0x120", 'cortex_nodes{cortex_state="up"}': "3x120"}],
    ),
    "CortexHeadLost": (
        {**UNDONE, 'cortex_nodes{cortex_state="up"}': "3x55 stale"},
        [
            {**UNDONE, 'cortex_nodes{cortex_state="up"}': "3x120"},  # a job that ended partial
            {**UNDONE, "cortex_rows_expected": "550x55 stale", 'cortex_nodes{cortex_state="up"}': "3x55 stale"},  # all was done
            {**UNDONE, 'cortex_nodes{cortex_state="up"}': "3x30 stale"},  # long ago
            UNDONE,  # a process of its own, without a cluster
        ],
    ),
}


def test_every_alert_has_its_cases():
    assert list(CASES) == [alert.name for alert in ALERTS]


def _series(given: dict[str, str], prefix: str) -> list[dict[str, str]]:
    """With the labels that a metric of its kind carries; from Ray also the worker's."""
    written = []
    for name, values in given.items():
        bare, _, more = name.rstrip("}").partition("{")
        labels = BREAKER if bare == "cortex_breaker_state" else PLACE if "nodes" in bare or "orphaned" in bare else JOB
        labels = PLACE if "restarts" in bare else labels
        inside = ",".join(part for part in (labels, more, 'WorkerId="w1"' if prefix else "") if part)
        name = f"{prefix}{bare.lower()}" if prefix else bare
        written.append({"series": f"{name}{{{inside}}}", "values": values})
    return written


def _fires(name: str, labels: str, given: dict[str, str]) -> list[dict[str, Any]]:
    held = dict(pair.split("=") for pair in labels.replace('"', "").split(",") if pair)
    severity = next(alert.severity for alert in ALERTS if alert.name == name)
    return [{"exp_labels": {**held, "severity": severity}}]


LABELS = {
    "CortexBreakerOpen": 'cortex_subject="sonnet",cortex_subject_kind="route"',
    **dict.fromkeys(["CortexDiskFilling", "CortexDiskFull", "CortexChannelOrphaned", "CortexNodeDrained"], PLACE),
    "CortexRestarting": 'cortex_role="branch",namespace="n"',
    "CortexHeadLost": 'namespace="n"',
}


@pytest.mark.parametrize("prefix", ["", "ray_"])
def test_alerts_fire_when_they_should_and_not_else(promtool, tmp_path, prefix):
    tests = []
    for name, (firing, quiet) in CASES.items():
        labels = LABELS.get(name, 'cortex_job_id="j1",namespace="n"')
        for given, fires in [(firing, True), *((one, False) for one in quiet)]:
            expected = _fires(name, labels, given) if fires else []
            asked = {"eval_time": "1h", "alertname": name, "exp_alerts": expected}
            tests.append({"interval": "1m", "input_series": _series(given, prefix), "alert_rule_test": [asked]})
    # Annotations are not compared here: the rules are read without them.
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("annotations", None)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    _checked([promtool, "test", "rules", str(tmp_path / "tests.yaml")])


def test_the_rules_are_well_formed(promtool):
    _checked([promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES)])


def test_what_an_alert_says_is_filled_in(promtool, tmp_path):
    """The text of one with all that templates do."""
    annotations = {
        "summary": "Job j1 has work and gets no reply",
        "description": "No call has ended for 16m 0s, and calls wait or are in flight.",
        "runbook_url": "docs/runbook.md#cortexnoprogress",
    }
    expected = {
        "exp_labels": {"cortex_job_id": "j1", "namespace": "n", "severity": "critical"},
        "exp_annotations": annotations,
    }
    asked = {"eval_time": "1h", "alertname": "CortexNoProgress", "exp_alerts": [expected]}
    series = _series(CASES["CortexNoProgress"][0], "")
    tests = [{"interval": "1m", "input_series": series, "alert_rule_test": [asked]}]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    _checked([promtool, "test", "rules", str(tmp_path / "tests.yaml")])


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
