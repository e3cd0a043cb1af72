"""Inhibitions of ``k8s/prometheus/cortex-inhibitions.yaml`` in a real Alertmanager: of alerts that one cause sets off one is
told, and what has another cause is told too."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e import tools
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.repository_rules import ROOT

FILE = ROOT / "k8s" / "prometheus" / "cortex-inhibitions.yaml"


def _config(folder: Path) -> Path:
    """Write a configuration that tells nobody, with the inhibitions beside one of the user's own."""
    own = {"source_matchers": ['severity = "page"'], "target_matchers": ['severity = "info"'], "equal": ["team"]}
    rules = yaml.safe_load(FILE.read_text())["inhibit_rules"]
    config = {"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}], "inhibit_rules": [own, *rules]}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    return folder / "alertmanager.yml"


def test_alertmanager_takes_them(amtool: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [amtool, "check-config", str(_config(tmp_path))], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "9 inhibit rules" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def manager(alertmanager: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an Alertmanager that runs, without a cluster of its own kind."""
    folder, port = tmp_path_factory.mktemp("alertmanager"), free_port()
    command = [
        alertmanager, f"--config.file={_config(folder)}", f"--storage.path={folder / 'data'}", "--cluster.listen-address=",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        url = f"http://127.0.0.1:{port}/api/v2"
        try:
            tools.until(lambda: _answers(url), PATIENCE_S, "Alertmanager", beside=process, log=folder / "log")
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return bool(tools.fetch(f"{url}/status"))
    except OSError:
        return False


def _job(name: str, alert: str, place: str = "n") -> dict[str, str]:
    return {"alertname": alert, "namespace": place, "cortex_job_id": name}


def _breaker(kind: str, place: str = "n") -> dict[str, str]:
    return {"alertname": "CortexBreakerOpen", "namespace": place, "cortex_subject": "s", "cortex_subject_kind": kind}


def _at(alert: str, place: str = "n", instance: str = "i") -> dict[str, str]:
    return {"alertname": alert, "namespace": place, "instance": instance}


def _disk(alert: str, instance: str = "i", folder: str = "/s") -> dict[str, str]:
    return _at(alert, instance=instance) | {"cortex_folder": folder}


CAUSES: dict[str, tuple[dict[str, str], list[dict[str, str]], list[dict[str, str]]]] = {
    "provider down": (_job("a", "CortexNoProgress"), [], [_breaker("route")]),
    "database away": (
        _at("CortexDatabaseAway"),
        [_job("a", "CortexNothingReported"), _job("b", "CortexInterrupted"), _job("a", "CortexDeadlineAtRisk")],
        [_job("a", "CortexInterrupted", "other"), _job("a", "CortexEndedEarly")],
    ),
    "lag of one job": (
        _at("CortexDatabaseAway") | {"cortex_job_id": "a"}, [_job("a", "CortexNoProgress")],
        [_job("b", "CortexNoProgress"), _job("a", "CortexNoProgress", "other")],
    ),
    "disk full": (
        _disk("CortexDiskFull"), [_disk("CortexDiskFilling"), _job("a", "CortexInterrupted"), _at("CortexDatabaseAway")],
        [
            _disk("CortexDiskFilling", "i2"), _disk("CortexDiskFilling", folder="/t"), _job("a", "CortexInterrupted", "other"),
            _at("CortexDatabaseAway", instance="i2"),
        ],
    ),
    "head lost": (_job("a", "CortexHeadLost"), [_job("a", "CortexInterrupted")], [_job("b", "CortexInterrupted")]),
    "node lost": (
        {"alertname": "CortexNodeLost", "namespace": "n", "cortex_node": "pod-2"}, [_breaker("node")], [_breaker("route")],
    ),
    "throttled": (
        _job("a", "CortexThrottledShare"), [_job("a", "CortexSlow")],
        [_job("b", "CortexSlow"), _job("a", "CortexNoProgress"), _job("a", "CortexDeadlineAtRisk")],
    ),
    "folder away without Kubernetes": (
        {"alertname": "CortexDatabaseAway", "instance": "i1"}, [],
        [{"alertname": "CortexNoProgress", "cortex_job_id": "a1"}, {"alertname": "CortexInterrupted", "cortex_job_id": "a1"}],
    ),
    "lag of one job without Kubernetes": (
        {"alertname": "CortexDatabaseAway", "instance": "i2", "cortex_job_id": "a2"},
        [{"alertname": "CortexNoProgress", "cortex_job_id": "a2"}],
        [{"alertname": "CortexNoProgress", "cortex_job_id": "b2"}, {"alertname": "CortexEndedEarly", "cortex_job_id": "a2"}],
    ),
    "disk full without Kubernetes": (
        {"alertname": "CortexDiskFull", "instance": "i3", "cortex_folder": "/s"},
        [
            {"alertname": "CortexDiskFilling", "instance": "i3", "cortex_folder": "/s"},
            {"alertname": "CortexDatabaseAway", "instance": "i3"},
        ],
        [
            {"alertname": "CortexInterrupted", "cortex_job_id": "a3"}, {"alertname": "CortexNothingReported", "cortex_job_id": "a3"},
            {"alertname": "CortexDatabaseAway", "instance": "i4"},
        ],
    ),
    "node lost without Kubernetes": (
        {"alertname": "CortexNodeLost", "cortex_node": "pod-5"}, [],
        [{"alertname": "CortexBreakerOpen", "cortex_subject": "s5", "cortex_subject_kind": "node"}],
    ),
}  # fmt: skip
"""Cause: the alert that is told, those that it mutes, and those that it does not."""


@pytest.mark.parametrize("cause", CAUSES)
def test_one_cause_is_told_once(manager: str, cause: str) -> None:
    source, muted, told = CAUSES[cause]
    _post(manager, [{"labels": _apart(cause, labels)} for labels in (source, *muted, *told)])
    expected = {_key(_apart(cause, labels)): labels in muted for labels in (source, *muted, *told)}

    def seen() -> bool:
        found = {_key(each["labels"]): bool(each["status"]["inhibitedBy"]) for each in tools.fetch(f"{manager}/alerts")}
        return {key: found.get(key) for key in expected} == expected

    tools.until(seen, PATIENCE_S, f"those that are muted: {expected}")


def _apart(cause: str, labels: dict[str, str]) -> dict[str, str]:
    """Return the labels of an alert in namespaces of this cause alone."""
    return labels | {"namespace": f"{cause} {labels['namespace']}"} if "namespace" in labels else labels


def _key(labels: dict[str, str]) -> str:
    return json.dumps(labels, sort_keys=True)


def _post(url: str, alerts: list[dict[str, dict[str, str]]]) -> None:
    body = json.dumps(alerts).encode()
    request = urllib.request.Request(f"{url}/alerts", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200
