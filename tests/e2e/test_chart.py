"""The Helm chart, rendered by Helm itself: what it installs is what kustomize prints for the same choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import tools
from tests.manifests import policies
from tests.manifests.rendering import Object, named, objects

helm = pytest.importorskip(
    "helm_python", reason=f"{tools.MISSING}Helm. `make e2e` installs it, or: pip install helm-python-sdk"
)
sources = pytest.importorskip("k8s.chart.sources")
COMPONENTS = sources.component_names()
LEFT_OUT = [("Namespace", "cortex")]
"""Helm makes the namespace itself. This, and the annotation that keeps the claim, is all in which the chart differs."""
KEPT = ("PersistentVolumeClaim", "cortex-state", {"helm.sh/resource-policy": "keep"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, as ``make chart`` writes it."""
    from k8s.chart.files import texts

    made = tmp_path_factory.mktemp("chart") / "cortex"
    for name, text in texts().items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text, encoding="utf-8")
    return made


@pytest.fixture
def chart(folder: Path) -> Any:
    with helm.Chart.load(str(folder)) as loaded:
        yield loaded


def templated(chart: Any, namespace: str = "cortex", **values: Any) -> list[Object]:
    """The objects that ``helm template`` prints."""
    printed = chart.render(values, name="cortex", namespace=namespace)
    found = [one for name, text in printed.items() if not name.endswith("NOTES.txt") for one in objects(text)]
    assert named(found, KEPT[0], KEPT[1])["metadata"].pop("annotations") == KEPT[2]
    return found


def sorted_(found: list[Object]) -> list[str]:
    kept = [one for one in found if (one["kind"], one["metadata"]["name"]) not in LEFT_OUT]
    return sorted(json.dumps(one, sort_keys=True) for one in kept)


def test_the_defaults_are_the_production_overlay(chart):
    overlay = sources.rendered()
    assert [each for each in LEFT_OUT if each not in {(one["kind"], one["metadata"]["name"]) for one in overlay}] == []
    assert sorted_(templated(chart)) == sorted_(overlay)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_that_of_kustomize(component, chart):
    assert sorted_(templated(chart, components=[component])) == sorted_(sources.rendered(component))


@pytest.mark.parametrize("cloud", ["gke", "eks", "aks", "openshift"])
def test_all_that_goes_together_is_that_of_kustomize(cloud, chart):
    chosen = [name for name in COMPONENTS if not name.startswith("clouds/") or name.startswith(f"clouds/{cloud}")]
    chosen += ["clouds/endpoints", "clouds/spot"]
    assert sorted_(templated(chart, components=chosen)) == sorted_(sources.rendered(*chosen))


@pytest.mark.parametrize("name", sources.OPTIONAL)
def test_what_is_left_out_leaves_nothing_behind(name, chart):
    found, whole = templated(chart, **{name: {"enabled": False}}), templated(chart)
    gone = {one["metadata"]["name"] for one in whole} - {one["metadata"]["name"] for one in found}
    assert gone and policies.findings(found) == []
    told = "cortex-collector" if name == "collector" else "no such text"
    assert told not in json.dumps(found)


def test_values_are_what_the_overlay_says(chart):
    found = templated(
        chart, namespace="labels", image={"repository": "r.example.com/c", "tag": "1.2.3"}, upgradeStrategy="None",
        storage={"class": "gp3", "size": "9Gi"}, branches={"min": 3, "max": 7}, workers={"min": 0, "max": 2},
    )  # fmt: skip
    assert {one["metadata"].get("namespace") for one in found} == {"labels"}
    claim = named(found, "PersistentVolumeClaim", "cortex-state")["spec"]
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("gp3", "9Gi")
    cluster = named(found, "RayCluster", "cortex")["spec"]
    bounds = [[group[key] for key in ("minReplicas", "replicas", "maxReplicas")] for group in cluster["workerGroupSpecs"]]
    assert bounds == [[3, 3, 7], [0, 0, 2]] and cluster["upgradeStrategy"] == {"type": "None"}
    told = chart_addresses(templated(chart, collector={"traces": "http://t:4318", "metrics": "http://m/otlp", "logs": "http://l/otlp"}))
    assert told == {"TRACES_ENDPOINT": "http://t:4318", "METRICS_ENDPOINT": "http://m/otlp", "LOGS_ENDPOINT": "http://l/otlp"}
    images = {each["image"] for _, pod in policies.pod_templates(named(found, "RayCluster", "cortex")) for each in pod["spec"]["containers"]}
    assert images == {"r.example.com/c:1.2.3"}


def chart_addresses(found: list[Object]) -> dict[str, str]:
    """The collector's variables that are addresses."""
    (one,) = named(found, "Deployment", "cortex-collector")["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in one["env"] if each["name"].endswith("_ENDPOINT")}


def test_values_of_components_are_theirs(chart):
    wanted = {
        "postgresql": ("postgresql", {"address": "postgresql://c@db.example:5432/c"}, "postgresql://c@db.example:5432/c"),
        "clouds/endpoints": ("endpoints", {"cidr": "10.9.8.0/24"}, "10.9.8.0/24"),
        "clouds/aks": ("aks", {"clientId": "11111111-2222-3333-4444-555555555555"}, "11111111-2222-3333-4444-555555555555"),
        "clouds/eks/irsa": ("eks", {"roleArn": "arn:aws:iam::1:role/x"}, "arn:aws:iam::1:role/x"),
    }
    for component, (value, given, said) in wanted.items():
        text = json.dumps(templated(chart, components=[component], **{value: given}))
        assert said in text, component


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"components": ["clouds/gek"]}, "at '/components/0': value must be one of"),
        ({"storage": {"klass": "fast"}}, "additional properties 'klass' not allowed"),
        ({"branches": {"max": "many"}}, "at '/branches/max': got string, want integer"),
        ({"components": ["clouds/gke", "clouds/eks"]}, "names two clouds"),
    ],
)
def test_a_value_that_is_none_is_refused(values, said, chart):
    with pytest.raises(helm.HelmError) as refused:
        chart.validate_schema(values)
        templated(chart, **values)
    assert said in str(refused.value)


def test_helm_finds_nothing_wrong_with_the_chart(folder):
    found = helm.lint(str(folder), strict=True, namespace="cortex")
    assert [each for each in found.get("messages", ()) if "icon" not in str(each)] == [], found
