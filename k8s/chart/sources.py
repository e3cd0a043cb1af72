"""Manifests that the chart is made from: the production overlay, and what each component makes of it, by kustomize."""

from __future__ import annotations

import copy
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).resolve().parents[1]
OVERLAY = "overlays/production"
OPTIONAL = ("grafana", "prometheus", "collector")
"""Folders of the overlay that an installation may leave out; each has a value of its own."""
VARIABLES = {"collector": "OTEL_EXPORTER_OTLP_ENDPOINT", "prometheus": "OTEL_METRICS_EXPORTER"}
"""Variable of Ray's pods that goes with a folder: without Prometheus, metrics are told over the collector."""
Object = dict[str, Any]
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def component_names() -> list[str]:
    """Return the folders of all components, as an overlay names them."""
    found = [path.parent for path in K8S.rglob("kustomization.yaml") if "kind: Component" in path.read_text()]
    return sorted(str(each.relative_to(K8S)) for each in found)


def rendered(*components: str) -> list[Object]:
    """Return the objects of the production overlay with these components in it.

    Raises ``subprocess.CalledProcessError`` where kustomize refuses, ``FileNotFoundError`` without kubectl.
    """
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "k8s"
        shutil.copytree(K8S, copied, ignore=shutil.ignore_patterns("image", "boards", "chart", "__pycache__"))
        path = copied / OVERLAY / "kustomization.yaml"
        listed = "".join(f"  - ../../{name}\n" for name in components)
        path.write_text(path.read_text().replace("components: []\n", f"components:\n{listed}" if components else ""))
        return _kustomize(path.parent)


def without(folder: str, found: list[Object]) -> list[Object]:
    """Return the overlay's objects without those of an optional folder, and without the variables that lead to it."""
    gone = {(each["kind"], each["metadata"]["name"]) for each in _kustomize(K8S / folder)}
    kept = [copy.deepcopy(each) for each in found if (each["kind"], each["metadata"]["name"]) not in gone]
    for each in kept:
        if each["kind"] == "RayCluster" and folder in VARIABLES:
            _drop_variable(each["spec"], VARIABLES[folder])
    return kept


def _drop_variable(spec: Object, name: str) -> None:
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        for container in group["template"]["spec"]["containers"]:
            container["env"] = [each for each in container["env"] if each["name"] != name]


def _kustomize(folder: Path) -> list[Object]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return [each for each in yaml.load_all(done.stdout, Loader=_Loader) if each]
