"""The nightly CronJob's script, run by a real shell beside a Ray that only says what it is told."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.manifests.rendering import named, rendered
from tests.manifests.test_commands import _accepted
from tests.support.patience import PATIENCE_S

RAY = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
  "job status"*) test -e {state}/known || exit 1; cat {state}/known ;;
  "job submit"*) echo "Job '{job}' {ends}" > {state}/known ;;
esac
"""
DUE_MIN = 29_400_002  # 2025-11-24 20:02 UTC
NAME = "labels-2025-11-24"


def ran(folder: Path, ends: str, due: str = f"labels-{DUE_MIN}") -> tuple[int, list[str]]:
    """Exit code of the container's command, and what it asked of Ray."""
    (container,) = named(rendered("schedules"), "CronJob", "labels")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    tool, log = folder / "bin" / "ray", folder / "log"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(RAY.format(log=log, state=folder, job=NAME, ends=ends))
    tool.chmod(0o755)
    environment = {"PATH": f"{tool.parent}:{os.environ['PATH']}", "DUE": due}
    done = subprocess.run(
        container["command"], env=environment, cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False
    )
    asked = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return done.returncode, asked


def test_a_night_is_one_job_named_after_the_day_on_which_it_was_due(tmp_path):
    code, asked = ran(tmp_path, "succeeded")
    submitted = [line for line in asked if line.startswith("job submit")]
    files = "/var/lib/cortex/files/labels"
    assert code == 0 and submitted == [
        f"job submit --no-wait --submission-id {NAME} -- cortex batch {files}/tickets-2025-11-24.csv -f {files}/labels.toml "
        f"-o {files}/labels-2025-11-24.csv --job {NAME} --accept-partial --wait --json"
    ]
    assert f"job logs --follow {NAME}" in asked


def test_a_pod_that_begins_again_follows_and_submits_nothing(tmp_path):
    ran(tmp_path, "succeeded")
    code, asked = ran(tmp_path, "succeeded")
    assert code == 0 and not [line for line in asked if line.startswith("job submit")]


@pytest.mark.parametrize("ends", ["failed", "was stopped"])
def test_a_job_that_fails_fails_its_pod(ends, tmp_path):
    assert ran(tmp_path, ends)[0] != 0


def test_a_pod_without_its_due_time_submits_nothing(tmp_path):
    code, asked = ran(tmp_path, "succeeded", due="")
    assert code != 0 and asked == []


def test_what_is_scheduled_are_commands_that_exist(tmp_path, monkeypatch):
    nightly = named(rendered("schedules/raycronjob"), "RayCronJob", "labels")["spec"]["jobTemplate"]["entrypoint"]
    (weekly,) = named(rendered("schedules"), "CronJob", "cortex-gc")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    _, submitted = ran(tmp_path, "succeeded")
    monkeypatch.chdir("k8s/jobs")
    by_cron, by_kuberay = submitted[1].partition(" -- ")[2], re.sub(r"\$\(date [^)]*\)", "2025-11-24", nightly)
    assert by_cron == by_kuberay
    words = shlex.split(by_cron)
    words[words.index("-f") + 1] = "labels.toml"
    assert _accepted(words).params["job"] == NAME
    assert _accepted(weekly["command"][4:]).params["older_than"] == "30d"
