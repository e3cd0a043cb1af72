"""Every manifest, as the real kustomize renders it, is what Kubernetes, KubeRay, Kueue and Prometheus take."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cortex
from tests.manifests import rendering, schemas
from tests.manifests.rendering import K8S, kustomized, named, objects, rendered

FOLDERS = sorted(str(path.parent.relative_to(K8S)) for path in K8S.rglob("kustomization.yaml") if "kind: Kustomization" in path.read_text())
COMPONENTS = sorted(path.parent for path in K8S.rglob("kustomization.yaml") if "kind: Component" in path.read_text())


def with_components(folder: Path, tmp_path: Path, *components: Path) -> list[rendering.Object]:
    """An overlay with components in it, as README.md has a user write it."""
    copied = tmp_path / "k8s"
    shutil.copytree(K8S, copied, ignore=shutil.ignore_patterns("image", "boards"))
    overlay = copied / folder.relative_to(K8S)
    text = (overlay / "kustomization.yaml").read_text().replace("components: []\n", "")
    listed = "".join(f"  - ../../{one.relative_to(K8S)}\n" for one in components)
    (overlay / "kustomization.yaml").write_text(f"{text}components:\n{listed}")
    return objects(kustomized(overlay))


def complaints(found: list[rendering.Object], ray: bool) -> list[str]:
    """What is said of KubeRay's kinds, whose schemas may not be here, or of all others."""
    return [line for one in found if schemas.is_ray(one) is ray for line in (*twice(one), *schemas.findings(one))]


def twice(one: rendering.Object) -> list[str]:
    """Variables, volumes and mounts that stand twice in a pod: no schema minds, and the last one would count. So looks
    what a patch that goes by places has put into another's place."""
    found = []
    for where, pod in schemas.pod_templates(one):
        spec = pod["spec"]
        named_ = {f"{where}'s volumes": [each["name"] for each in spec.get("volumes", ())]}
        for each in (*spec["containers"], *spec.get("initContainers", ())):
            named_[f"{where}'s {each['name']}: env"] = [variable["name"] for variable in each.get("env", ())]
            named_[f"{where}'s {each['name']}: mounts"] = [mount["mountPath"] for mount in each.get("volumeMounts", ())]
        found += [f"{place}: {name} stands twice" for place, names in named_.items() for name in set(names) if names.count(name) > 1]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_renders_and_is_valid(folder):
    found = rendered(folder)
    assert found
    assert complaints(found, ray=False) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_rays_in_a_folder_is_valid(folder):
    assert complaints(rendered(folder), ray=True) == []


NEWER = {"rocksdb": {"gcsFaultToleranceOptions.backend", "gcsFaultToleranceOptions.storage"}, "tls": {"tlsOptions"}}
"""Fields that take a newer KubeRay than 1.6. All else is what the schemas of 1.6.0 to 1.7.0 take: they differ in few fields."""


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda path: path.name)
@pytest.mark.parametrize("overlay", ["local", "production"])
def test_a_component_fits_an_overlay(component, overlay, tmp_path):
    found = with_components(K8S / "overlays" / overlay, tmp_path, component)
    assert found != rendered(f"overlays/{overlay}")
    newer = {field for one in found for field in schemas.newer_than_1_6(one)}
    told = (component / "kustomization.yaml").read_text()
    assert newer == NEWER.get(component.name, set()), "what KubeRay 1.6 does not know"
    assert ("KubeRay 1.7 or later" in told and "--feature-gates=" in told) is bool(newer)
    assert complaints(found, ray=False) + complaints(found, ray=True) == []


def test_components_fit_together(tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, *COMPONENTS)
    cluster = named(found, "RayCluster", "cortex")["spec"]
    assert cluster["gcsFaultToleranceOptions"]["backend"] == "rocksdb"
    assert complaints(found, ray=False) + complaints(found, ray=True) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_are_what_kuberay_1_6_takes(folder):
    assert [field for one in rendered(folder) for field in schemas.newer_than_1_6(one)] == []


def test_every_manifest_is_in_a_folder_that_is_rendered():
    """A file that no kustomization names would be installed by nobody, and checked by nothing."""
    for path in K8S.rglob("*.yaml"):
        if path.name == "kustomization.yaml" or path.parent in (K8S, K8S / "chart"):
            continue
        assert path.name in (path.parent / "kustomization.yaml").read_text(), path


def test_the_overlays_say_what_is_the_users_own(tmp_path):
    """With the components too, whose containers have the same image."""
    cluster = named(with_components(K8S / "overlays" / "production", tmp_path, *COMPONENTS), "RayCluster", "cortex")
    pods = [pod["spec"] for _, pod in schemas.pod_templates(cluster)]
    images = {each["image"] for spec in pods for each in (*spec["containers"], *spec.get("initContainers", ()))}
    assert images == {f"registry.example.com/cortex:{cortex.__version__}"}
