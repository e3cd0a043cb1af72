"""Generated files, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from k8s.boards.alerts import RUNBOOK, groups, inhibitions, resource
from k8s.boards.cluster import cluster
from k8s.boards.jobs import jobs

ROOT = Path(__file__).resolve().parents[2]


def texts() -> dict[str, str]:
    """Return the text of each generated file, by its path in the repository."""
    return {
        "k8s/grafana/cortex-jobs.json": _json(jobs()),
        "k8s/grafana/cortex-cluster.json": _json(cluster()),
        "k8s/prometheus/cortex-rules.yaml": _yaml(groups(), "For `rule_files` of Prometheus."),
        "k8s/prometheus/cortex-prometheusrule.yaml": _yaml(
            resource(), "For the Prometheus operator: kubectl apply -f. `release` is what its Prometheus selects rules by."
        ),
        "k8s/prometheus/cortex-inhibitions.yaml": (
            "# For `inhibit_rules` of Alertmanager, beside those that are there. Written by `python -m k8s.boards`.\n"
            + yaml.safe_dump(inhibitions(), sort_keys=False, width=118)
        ),
    }


def _json(board: Any) -> str:
    return json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _yaml(rules: Any, what_for: str) -> str:
    head = (
        f"# {what_for} Written by `python -m k8s.boards`.\n"
        f"# Where your runbook is, if links to it are to work: sed 's|{RUNBOOK}#|https://your.host/runbook.md#|'\n"
    )
    return head + yaml.safe_dump(rules, sort_keys=False, width=118, allow_unicode=True)
