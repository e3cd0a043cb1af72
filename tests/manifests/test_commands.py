"""What the manifests tell pods to run is what the command line takes, and the examples are what it prints."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer

from tests.manifests.rendering import K8S, Object, kustomized, named, rendered
from tests.manifests.schemas import pod_templates
from tests.manifests.test_valid import with_components
from tests.support.repository_rules import ROOT


def _hooks(one: Object) -> list[list[str]]:
    """Commands of ours in a pod's hooks."""
    found = []
    for _, pod in pod_templates(one):
        for each in pod["spec"]["containers"]:
            for hook in each.get("lifecycle", {}).values():
                found.append(hook["exec"]["command"])
    return found


def _accepted(words: list[str]) -> Any:
    """Has the parser of the command line take them; nothing is run."""
    from actors.cli.app import app

    command: Any = typer.main.get_command(app)
    assert words[0] == "cortex"
    return command.commands[words[1]].make_context(words[1], [*words[2:]])


def test_hooks_are_commands_that_exist():
    hooks = [
        hook for folder in ("overlays/production", "overlays/local") for one in rendered(folder) for hook in _hooks(one)
    ]
    assert len(hooks) == 6, "the head's and those of two groups, in both"
    for words in hooks:
        assert _accepted(words).params["within"] == "300s"


def test_jobs_of_a_lost_head_are_begun_again_by_a_command_that_the_heads_own_drain_ends(tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, K8S / "tend")
    (head,) = [pod["spec"] for name, pod in pod_templates(named(found, "RayCluster", "cortex")) if name.endswith("-head")]
    hooks = head["containers"][0]["lifecycle"]
    shell, flag, line = hooks["postStart"]["exec"]["command"]
    words = line.split()
    assert (shell, flag, words[-1]) == ("sh", "-c", "&"), "a hook that does not end keeps its container from being ready"
    assert _accepted([word for word in words[:-1] if word[0] not in "<>2"]).params["every"] == "30s"
    assert _accepted(hooks["preStop"]["exec"]["command"]).params["restart"]


@pytest.mark.parametrize("components", [[], ["postgresql"]], ids=["disk", "postgresql"])
def test_ends_of_jobs_are_told_from_the_state_of_the_head_on_a_port_that_is_scraped(components, tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, *(K8S / each for each in components))
    (head,) = [pod["spec"] for name, pod in pod_templates(named(found, "RayCluster", "cortex")) if name.endswith("-head")]
    ray, ends = head["containers"]
    address = _accepted(ends["command"]).params["metrics_listen"]
    assert address == f":{ends['ports'][0]['containerPort']}", "every address: Prometheus is in another pod"
    scraped = {each["port"] for each in named(found, "PodMonitor", "cortex")["spec"]["podMetricsEndpoints"]}
    assert scraped == {port["name"] for each in head["containers"] for port in each["ports"]} & {"metrics", "ends"}
    wanted = ("CORTEX_STATE", "PGPASSFILE", "PGSSLROOTCERT")
    told = [{each["name"]: each["value"] for each in one["env"] if each["name"] in wanted} for one in (ray, ends)]
    assert told[0] == told[1] and len(told[0]) == (3 if components else 1)
    mounts = {each["mountPath"]: each for each in ends["volumeMounts"]}
    assert "readOnly" not in mounts["/var/lib/cortex"], "SQLite reads no WAL journal from a read-only mount"
    assert "/tmp" in mounts and ("/etc/cortex/postgresql" in mounts) is bool(components)
    assert not any("provider" in path for path in mounts), "it makes no call"


@pytest.mark.parametrize("name", ["jobs", "kueue"])
def test_entry_points_are_commands_that_exist(name, monkeypatch):
    monkeypatch.chdir(K8S / name)
    (job,) = [one for one in rendered(name) if one["kind"] == "RayJob"]
    words = shlex.split(job["spec"]["entrypoint"])
    words[words.index("-f") + 1] = "labels.toml"
    answer = _accepted(words).params
    assert (answer["job"], answer["accept_partial"], answer["wait"]) == ("labels", True, True)


@pytest.mark.parametrize(
    ("example", "words", "cluster"),
    [
        ("jobs/labels.yaml", ["k8s/jobs/labels.toml"], ""),
        ("kueue/queued.yaml", ["k8s/kueue/labels.toml", "--cluster-of", "-", "--queue", "cortex"], "kueue/cluster"),
    ],
)
def test_the_examples_are_what_is_printed(example, words, cluster):
    given = kustomized(K8S / cluster) if cluster else ""
    command = [sys.executable, "-m", "actors.cli", "k8s", "render", *words]
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (K8S / example).read_text() == done.stdout, f"cortex {' '.join(command[3:])} > k8s/{example}"
