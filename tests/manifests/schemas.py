"""Manifests against schemas: Kubernetes' own, KubeRay's own, and excerpts kept here for kinds that no package ships.

All are strict: a field that the schema does not know is a finding, as a misspelt one would be passed over in silence.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.manifests.rendering import Object, load
from tests.support.repository_rules import ROOT

KUBERNETES = "1.37.0"
CRDS = ROOT.parent / "shared" / "data" / "kuberay-crds"
KEPT = Path(__file__).parent / "kept"
RAY_KINDS = {"RayCluster": "ray.io_rayclusters.yaml", "RayJob": "ray.io_rayjobs.yaml"}
SINCE_1_7 = json.loads((KEPT / "kuberay_since_1.7.json").read_text(encoding="utf-8"))["absent"]


def findings(one: Object) -> list[str]:
    """What is wrong with an object by its schema. Skips the test where KubeRay's schemas are not here."""
    return _found(json.dumps(one, sort_keys=True))


def newer_than_1_6(one: Object) -> list[str]:
    """The fields of a RayCluster or RayJob that KubeRay 1.6 does not know, as paths; empty for other kinds."""
    spec = one["spec"] if one["kind"] == "RayCluster" else one.get("spec", {}).get("rayClusterSpec") or {}
    return [".".join(path) for path in SINCE_1_7 if is_ray(one) and _has(spec, path)]


def _has(value: Any, path: list[str]) -> bool:
    if not path:
        return True
    each = value if isinstance(value, list) else [value]
    return any(path[0] in one and _has(one[path[0]], path[1:]) for one in each)


@functools.cache
def _found(text: str) -> list[str]:
    one = json.loads(text)
    if is_ray(one):
        return _said(_cron() if one["kind"] == "RayCronJob" else _ray(one["kind"]), one) or _pods(one)
    kept = KEPT / f"{one['apiVersion'].replace('/', '_')}_{one['kind']}.json"
    if kept.exists():
        return _said(_kept(kept), one)
    return _built_in(one)


def is_ray(one: Object) -> bool:
    """Whether it is one of KubeRay's kinds."""
    return str(one["apiVersion"]).startswith("ray.io/")


def _built_in(one: Object) -> list[str]:
    try:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{where(one)}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError:
        return [f"{where(one)}: no schema is known for {one['apiVersion']}"]
    return []


def where(one: Object) -> str:
    """An object, for people."""
    return f"{one['kind']} {one['metadata'].get('name', '?')}"


def _said(schema: jsonschema.Draft202012Validator, one: Object) -> list[str]:
    return [f"{where(one)}: {error.json_path}: {_ends(error.message)}" for error in schema.iter_errors(one)]


def _ends(text: str) -> str:
    """Beginning and end of a message: the value comes first, and what is wrong with it last."""
    return text if len(text) <= 300 else f"{text[:200]} … {text[-100:]}"


@functools.cache
def _kept(path: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))


@functools.cache
def _ray(kind: str) -> jsonschema.Draft202012Validator:
    path = CRDS / RAY_KINDS[kind]
    if not path.exists():
        pytest.skip(f"KubeRay's schema of {kind} is not here: ../shared/data/kuberay-crds/{path.name}")
    (version,) = [each for each in load(path)["spec"]["versions"] if each["name"] == "v1"]
    return jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))


@functools.cache
def _cron() -> jsonschema.Draft202012Validator:
    """RayCronJob, whose ``jobTemplate`` is a RayJob's spec (kuberay, ray-operator/apis/ray/v1/raycronjob_types.go)."""
    job: Any = _ray("RayJob").schema
    made = json.loads((KEPT / "ray.io_v1_RayCronJob.json").read_text(encoding="utf-8"))
    made["properties"]["spec"]["properties"]["jobTemplate"] = job["properties"]["spec"]
    return jsonschema.Draft202012Validator(made)


def strict(schema: Any) -> Any:
    """A structural schema of a CustomResourceDefinition as JSON Schema that refuses fields it does not name.

    Rules in CEL (``x-kubernetes-validations``) are not evaluated.
    """
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes") and key != "format"}
    for key in ("items", "additionalProperties", "not"):
        if key in made:
            made[key] = strict(made[key])
    for key in ("anyOf", "allOf", "oneOf"):
        if key in made:
            made[key] = [strict(each) for each in made[key]]
    if "properties" in made:
        made["properties"] = {name: strict(each) for name, each in made["properties"].items()}
        if "additionalProperties" not in made and not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    return made


def _pods(one: Object) -> list[str]:
    """The pods in a Ray object, against Kubernetes' own schema, which knows more of them."""
    found = []
    for name, template in pod_templates(one):
        wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template}
        found += _built_in(wrapped)
    return found


def pod_templates(one: Object) -> list[tuple[str, Object]]:
    """The pod templates of an object, each with a name that says where it stands."""
    spec, own = one.get("spec", {}), one["metadata"].get("name", "?")
    if one["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
        return [(own, spec["template"])]
    if one["kind"] == "CronJob":
        return [(f"{own}-submitter", spec["jobTemplate"]["spec"]["template"])]
    if one["kind"] == "RayCronJob":
        return pod_templates({"kind": "RayJob", "metadata": one["metadata"], "spec": spec["jobTemplate"]})
    found = []
    if one["kind"] == "RayJob" and "submitterPodTemplate" in spec:
        found.append((f"{own}-submitter", spec["submitterPodTemplate"]))
    cluster = spec if one["kind"] == "RayCluster" else spec.get("rayClusterSpec", {}) if one["kind"] == "RayJob" else {}
    if cluster:
        found.append((f"{own}-head", cluster["headGroupSpec"]["template"]))
        found += [(f"{own}-{group['groupName']}", group["template"]) for group in cluster.get("workerGroupSpecs", [])]
    return found
