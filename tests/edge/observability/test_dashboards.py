"""What people import into Grafana and Prometheus: it is what its source says, is complete, and points to places that exist."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest
import yaml

from tests.support.repository_rules import ROOT

pytest.importorskip("grafana_foundation_sdk")

from grafana_foundation_sdk.models.dashboard import Dashboard

from k8s.boards.alerts import ALERTS, INHIBITIONS, RUNBOOK
from k8s.boards.files import texts
from k8s.boards.queries import metrics_in

BOARDS = sorted((ROOT / "k8s" / "grafana").glob("*.json"))


def test_the_files_are_what_their_source_says():
    """After a change: python -m k8s.boards."""
    for name, text in texts().items():
        assert (ROOT / name).read_text() == text, f"{name} is not what `python -m k8s.boards` writes"
    written = {ROOT / name for name in texts()}
    assert {*BOARDS, *(ROOT / "k8s" / "prometheus").glob("cortex-*.yaml")} <= written


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_complete(path):
    board = json.loads(path.read_text())
    assert Dashboard.from_json(board).uid == path.stem
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names[:2] == ["datasource", "namespace"]
    assert names[2] in {"job", "pool"}
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))
    for panel in board["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= set(names), panel["title"]
            # Whoever chooses a namespace or a job sees nothing else.
            assert target["expr"].count("__name__") == target["expr"].count("$namespace"), target["expr"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_no_panel_lies_on_another(path):
    taken = {}
    for panel in json.loads(path.read_text())["panels"]:
        at = panel["gridPos"]
        for place in product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])):
            assert place not in taken, (panel["title"], taken[place])
            taken[place] = panel["title"]


def test_both_names_of_a_metric_are_asked_for():
    """A query for the bare name would find nothing on Ray's port."""
    for name, text in texts().items():
        bare = re.findall(r"\b(?:gen_ai|cortex)_[a-z_A-Z]+\{", text)
        assert not bare, (name, bare)


def test_every_alert_has_its_place_in_the_runbook_and_the_other_way_round():
    headings = re.findall(r"^## (Cortex\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    assert headings == list(dict.fromkeys(alert.name for alert in ALERTS))
    rules = yaml.safe_load((ROOT / "k8s/prometheus/cortex-rules.yaml").read_text())["groups"][0]["rules"]
    links = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert list(dict.fromkeys(links)) == [f"docs/runbook.md#{heading.lower()}" for heading in headings]


def test_inhibitions_name_alerts_and_say_so_on_the_page():
    names = {alert.name for alert in ALERTS}
    page = (ROOT / "docs/observing.md").read_text()
    for each in INHIBITIONS:
        source, muted = each.source, each.muted.split("|")
        assert {source, *muted} <= names and source not in muted
        (row,) = re.findall(rf"^\| {source.removeprefix('Cortex')} \| (.+) \|$", page, re.MULTILINE)
        assert all(name.removeprefix("Cortex") in row for name in muted), (source, row)
        assert each.equal[0] == "namespace"


def test_what_is_equal_in_the_namespace_alone_is_muted_in_a_namespace_alone():
    """Outside Kubernetes no alert has one, and Alertmanager takes that for equal."""
    for each in INHIBITIONS:
        for of_side in (each.of_source, each.of_muted):
            assert ('namespace =~ ".+"' in of_side) == (each.equal == ("namespace",)), each


def test_the_resource_of_the_operator_holds_the_same_rules():
    plain = yaml.safe_load((ROOT / "k8s/prometheus/cortex-rules.yaml").read_text())
    resource = yaml.safe_load((ROOT / "k8s/prometheus/cortex-prometheusrule.yaml").read_text())
    assert resource["spec"] == plain


def test_every_alert_says_how_bad_it_is_and_what_it_is_in_words():
    for alert in ALERTS:
        assert alert.severity in {"critical", "warning"}
        assert alert.description.endswith("."), alert.name
        assert not alert.summary.endswith("."), alert.name


def test_every_metric_that_is_asked_for_is_one_that_the_docs_tell():
    entries = set(re.findall(r"^\| `((?:cortex|gen_ai)_\w+)`", (ROOT / "docs/observing.md").read_text(), re.MULTILINE))
    asked = {name for text in texts().values() for name in metrics_in(text)}
    asked = {re.sub(r"(_seconds|_usage)_(bucket|count|sum)$", r"\1", name) for name in asked}
    assert asked <= entries, sorted(asked - entries)
    assert len(entries) > 30
