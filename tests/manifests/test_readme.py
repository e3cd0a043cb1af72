"""The runbook for people with kubectl alone: what it names exists, and it has what such a reader looks for."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from tests.manifests import policies
from tests.manifests.rendering import K8S, load, rendered
from tests.support.repository_rules import ROOT

PAGE = (K8S / "README.md").read_text()
BLOCKS = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
NEEDS = """Install "Managed Kubernetes" Run Watch Drain "Upgrade with jobs running" "Back up and restore" "Recover a lost head" "Rotate a key"
"Remove everything" "Find out why a job is slow" "When an alert fires" """


@pytest.mark.parametrize("section", shlex.split(NEEDS))
def test_it_has_a_section(section):
    assert f"\n## {section}\n" in PAGE


def test_every_alert_has_its_section():
    rules = [rule for group in load(K8S / "prometheus/cortex-rules.yaml")["groups"] for rule in group["rules"]]
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    linked = set(re.findall(r"\[(Cortex\w+)\]\(\.\./docs/runbook\.md#(\w+)\)", PAGE))
    assert {name for name, _ in linked} == alerts
    assert all(name.lower() == anchor for name, anchor in linked)
    sections = set(re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE))
    assert alerts <= sections


def test_links_and_files_are_there():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (K8S / target).exists(), target
    for anchor in re.findall(r"\]\(#([\w-]+)\)", PAGE):
        assert anchor in {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)}
    for path in re.findall(r"`((?:base|overlays|jobs|postgresql|rocksdb|clouds|external-secrets|priority|tend|tls|schedules|chart|kueue|grafana|prometheus|collector|image)/[\w./-]*)`", PAGE):
        assert (K8S / path).exists(), path
    for path in re.findall(r"\bk8s/[\w/.-]+", BLOCKS):
        assert (ROOT / path).exists(), path


def test_every_secret_that_a_pod_wants_is_made_there():
    assert {name for name in policies.OUTSIDE if f"create secret generic {name} " in BLOCKS} == policies.OUTSIDE


def test_names_are_those_of_the_manifests():
    names = {(one["kind"].lower(), one["metadata"]["name"]) for one in rendered("overlays/production")}
    assert {("raycluster", "cortex"), ("persistentvolumeclaim", "cortex-state"), ("namespace", "cortex")} <= names
    assert "raycluster/cortex" in BLOCKS and "persistentVolumeClaimName: cortex-state" in BLOCKS


def _commands() -> list[str]:
    """Commands of ours on the page, in its blocks and in its text, each as it would be given."""
    spans = re.findall(r"`([^`\n]*cortex [a-z][^`]*)`", re.sub(r"```sh\n.*?```", "", PAGE, flags=re.DOTALL))
    found = re.findall(r"(?:^|-- |\| |on_head )(cortex [a-z][^|>\n#&]*)", "\n".join([BLOCKS, *spans]), re.MULTILINE)
    return list(dict.fromkeys(one.strip() for one in found))


def test_who_has_kubectl_alone_can_give_every_command():
    """All of ours run on the head, but for the one whose output goes to kubectl, which has a form for the head too."""
    at_home = re.findall(r"^(?:.*\| )?(cortex .*)$", BLOCKS, re.MULTILINE)
    at_home += re.findall(r"`(cortex [a-z][^`]*)`", re.sub(r"```sh\n.*?```", "", PAGE, flags=re.DOTALL))
    assert at_home and all(one.startswith("cortex k8s render ") for one in at_home), at_home
    assert "on_head cortex k8s render " in BLOCKS


@pytest.mark.parametrize("text", _commands())
def test_a_command_is_one_that_exists(text, tmp_path, monkeypatch):
    from actors.cli.app import app

    monkeypatch.chdir(tmp_path)
    command: Any = typer.main.get_command(app)
    words = shlex.split(text)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    command.make_context("x", words)
