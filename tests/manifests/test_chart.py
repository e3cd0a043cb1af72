"""The chart's parts that need no Helm: the merge of variants, and values that say what the overlay says.

``tests/e2e/test_chart.py`` renders the chart by Helm and compares it with kustomize.
"""

from __future__ import annotations

import pytest
import yaml

from k8s.chart.files import TEXTS, VALUES
from k8s.chart.merge import merged
from k8s.chart.sources import K8S, OPTIONAL, component_names
from tests.manifests.rendering import named, rendered

BASE = "a\nb\nc\n"


@pytest.mark.parametrize(
    ("variants", "template"),
    [
        ({}, BASE),
        ({"x": BASE}, BASE),
        ({"x": "a\nb\nb2\nc\n"}, "a\nb\n{{- if x }}\nb2\n{{- end }}\nc\n"),
        ({"x": "a\nB\nc\n"}, "a\n{{- if x }}\nB\n{{- else }}\nb\n{{- end }}\nc\n"),
        ({"x": "a\nc\n"}, "a\n{{- if not (x) }}\nb\n{{- end }}\nc\n"),
        ({"not x": "a\nc\n"}, "a\n{{- if x }}\nb\n{{- end }}\nc\n"),
        ({"x": "a\nb\nc\nd\n", "y": "a\nb\nc\ne\n"}, "a\nb\nc\n{{- if x }}\nd\n{{- end }}\n{{- if y }}\ne\n{{- end }}\n"),
        ({"x": "A\nb\nc\n", "y": "a\nb\n"}, "{{- if x }}\nA\n{{- else }}\na\n{{- end }}\nb\n{{- if not (y) }}\nc\n{{- end }}\n"),
    ],
)
def test_lines_that_differ_stand_between_conditions(variants, template):
    assert merged(BASE, variants) == template


def test_two_variants_of_one_line_are_refused():
    with pytest.raises(ValueError, match="x2 and another variant change line 2: b"):
        merged(BASE, {"x1": "a\nB\nc\n", "x2": "a\nBB\nc\n"})


def test_the_default_values_are_those_of_the_overlay():
    values = yaml.safe_load(VALUES.read_text())
    found = rendered("overlays/production")
    cluster = named(found, "RayCluster", "cortex")["spec"]
    bounds = [{"min": group["minReplicas"], "max": group["maxReplicas"]} for group in cluster["workerGroupSpecs"]]
    assert [values["branches"], values["workers"]] == bounds
    assert values["upgradeStrategy"] == cluster["upgradeStrategy"]["type"]
    claim = named(found, "PersistentVolumeClaim", "cortex-state")["spec"]
    assert values["storage"] == {"class": claim["storageClassName"], "size": claim["resources"]["requests"]["storage"]}
    assert all(values[folder]["enabled"] is True for folder in OPTIONAL) and values["components"] == []
    assert {text: values[group][name] for text, (group, name) in TEXTS.items()} == {text: text for text in TEXTS}


def test_texts_that_are_values_stand_in_the_manifests():
    """A text that changed there would be a value without effect."""
    manifests = "\n".join(path.read_text() for path in K8S.rglob("*.yaml") if path.parent.name != "chart")
    assert [text for text in TEXTS if text not in manifests] == []
    folders = {str(path.parent.relative_to(K8S)) for path in K8S.rglob("kustomization.yaml") if "kind: Component" in path.read_text()}
    assert set(component_names()) == folders
