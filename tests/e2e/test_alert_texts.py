"""Texts of alert rules, filled in by Prometheus' own test runner."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.scraped_world import SCRAPE_S, World
from tests.e2e.tools import checked
from tests.support.repository_rules import ROOT

RULES = ROOT / "k8s" / "prometheus" / "cortex-rules.yaml"


def test_the_rules_are_well_formed(promtool):
    checked([promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES)])


def test_what_an_alert_says_is_filled_in(promtool, tmp_path):
    """The text of one with all that templates do."""
    summary = "Job j1 has work and gets no reply"
    text = (
        "No call has ended for 15 minutes or more, and calls wait or are in flight. By the clock of the job's machine the last one "
        "ended 16m 0s ago."
    )
    world = World()
    while world.now_s < 1200:
        world.step()
        world.job.share = float(world.now_s < 180)
    _told(promtool, tmp_path, world, 180 + 16 * 60, "CortexNoProgress", {"cortex_job_id": "j1"}, summary, text)


INTERRUPTED = {
    "disk": "The disk of its state folder is full, or was: make room first. Nothing is lost; `cortex resume j1` continues it when "
    "the cause is over.",
    "interrupted": "Its process was killed, its machine is gone, or its journal could not be written: `cortex status j1` says under "
    "`why` what is known. Nothing is lost; `cortex resume j1` continues it when the cause is over.",
}


@pytest.mark.parametrize("cause", INTERRUPTED)
def test_an_interrupted_job_is_told_with_what_is_known_of_its_cause(promtool, tmp_path, cause):
    world = World()
    while world.now_s < 300:
        world.step()
        if world.job.runs:
            world.job.ended("interrupted", cause, world.now_s)
    how = {"cortex_outcome": "interrupted", "cortex_cause": cause, "cortex_job_id": "j1"}
    summary = "No process runs job j1, and it has not ended"
    _told(promtool, tmp_path, world, 240, "CortexInterrupted", how, summary, INTERRUPTED[cause])


def test_a_full_disk_is_told_with_its_folder_and_with_what_to_do(promtool, tmp_path):
    world = World(free_bytes=0.0, jobs=[])
    world.step()
    text = (
        "0B are left. Jobs whose journal cannot be written stop: make room, then `cortex resume JOB`. `cortex jobs --state /s` "
        "lists its jobs, and `cortex status JOB` says under `why` which stopped for the disk."
    )
    summary = "The disk under the state folder /s on exporter is full, or will be within ten minutes"
    where = {"instance": "exporter", "cortex_folder": "/s"}
    _told(promtool, tmp_path, world, 0, "CortexDiskFull", where, summary, text)


def _told(
    promtool: str, folder: Path, world: World, at_s: int, alert: str, labels: dict[str, str], summary: str, description: str
) -> None:
    expected = {
        "exp_labels": labels | {"namespace": "n", "severity": "critical"},
        "exp_annotations": {
            "summary": summary, "description": description, "runbook_url": f"docs/runbook.md#{alert.lower()}",
        },
    }  # fmt: skip
    asked = {"eval_time": f"{at_s}s", "alertname": alert, "exp_alerts": [expected]}
    tests = [{"interval": f"{SCRAPE_S}s", "input_series": world.scrapes.written(), "alert_rule_test": [asked]}]
    (folder / "tests.yaml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    checked([promtool, "test", "rules", str(folder / "tests.yaml")])
