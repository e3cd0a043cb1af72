"""RayJob manifests for KubeRay: pure functions from a job's settings to objects.

Two forms. By default the job runs on an existing RayCluster (``clusterSelector``). With the spec of a cluster, the job
gets a cluster of its own, which ends with it. The name of the RayJob is the job's name and the submission id in Ray, so
that a second submission attaches to the running job.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

NAME_MAX = 47
"""Most characters of a RayJob's name in KubeRay, whose derived service names have 63 characters at most."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_MAX = 63
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUEUE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
NAMESPACE = "cortex"
CLUSTER = "cortex"
"""Name of the RayCluster of ``k8s/base``."""
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?P<digest>@sha256:[0-9a-f]{64})?"
)
"""Name of an image (grammar of distribution/reference)."""
_PATH = re.compile(r"/[A-Za-z0-9._/-]*")
_RETRIES = 2
"""Retries of a job with a cluster of its own. Each creates a new cluster, and resumes from the journal."""
QUEUE = "kueue.x-k8s.io/queue-name"
_RESOURCES = {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "1Gi"}
_SEALED = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
_USER = 10001
_LABELS = {"app.kubernetes.io/part-of": "cortex"}


class RayJobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a RayJob."""

    name: str
    entrypoint: tuple[str, ...]
    image: str
    """Image of the submitting pod, and of Ray in a cluster of the job's own."""
    namespace: str = NAMESPACE
    cluster: str = CLUSTER
    """Existing RayCluster that runs the job, unless ``own`` is given."""
    own: Mapping[str, Any] | None = None
    """Spec of a RayCluster that is created for the job and ends with it."""
    files: Mapping[str, str] = msgspec.field(default_factory=dict)
    """File name -> text, for ``folder`` in a cluster of the job's own."""
    folder: str = ""
    queue: str = ""
    """Kueue queue that the job waits in; only with a cluster of the job's own."""


def job_name(text: str, stem: str) -> str:
    """Return the given job name, or one made of the file's stem. Raises ``ValueError`` with one line."""
    name = text or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise ValueError(
            f"--job {name!r}: a RayJob's name begins with a letter, has only small letters, digits and dashes, and "
            f"{NAME_MAX} of them at most"
        )
    return name


def refuse_place(cluster: str, cluster_of: str, namespace: str, queue: str, files: str) -> None:
    """Raise ``ValueError``, with one line, for names and paths that Kubernetes or the shells in between refuse."""
    if cluster and cluster_of:
        raise ValueError(
            f"--to {cluster} names an existing cluster, and --cluster-of creates a new one: give one of the two"
        )
    letters = "use only small letters, digits and dashes, with a letter or digit at both ends"
    names = ("--namespace", namespace, _LABEL), ("--to", cluster, _NAME), ("--queue", queue, _QUEUE)
    for option, text, form in names:
        if (text or option == "--namespace") and (len(text) > LABEL_MAX or not form.fullmatch(text)):
            raise ValueError(f"{option} {text!r} is no name in Kubernetes: {letters}, {LABEL_MAX} of them at most")
    if not files.startswith("/"):
        raise ValueError(f"--files {files!r}: give the absolute path of the folder on the head, like /var/lib/…")
    if not _PATH.fullmatch(files) or ".." in files.split("/"):
        letters = "only letters, digits, dots, dashes and underscores"
        raise ValueError(f"--files {files!r}: the path passes through shells: use {letters}")


def refuse_image(said_by: str, image: str) -> None:
    """Raise ``ValueError``, with one line, for an image without a fixed tag or digest."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ValueError(f"{said_by} {image!r} is no image name: give one like registry.example.com/cortex:0.1.0")
    if not found["tag"] and not found["digest"]:
        text = "without a tag means :latest, which changes: give a tag or a digest"
        raise ValueError(f"{said_by} {image}: {text}")
    if found["tag"] == "latest" and not found["digest"]:
        raise ValueError(f"{said_by} {image}: the tag latest changes: give a fixed tag or a digest")


def objects(wanted: RayJobSpec) -> list[dict[str, Any]]:
    """Return the RayJob, after the ConfigMap that it needs. Raises ``ValueError``, with one line."""
    made = [_rayjob(wanted)]
    if wanted.own is not None and wanted.files:
        metadata = {"name": f"{wanted.name}-files", "namespace": wanted.namespace, "labels": dict(_LABELS)}
        made.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(wanted.files)})
    return made


def _rayjob(wanted: RayJobSpec) -> dict[str, Any]:
    if wanted.queue and wanted.own is None:
        raise ValueError("--queue: Kueue suspends whole clusters: create one for the job, with --cluster-of FILE")
    labels = dict(_LABELS)
    spec: dict[str, Any] = {
        "entrypoint": shlex.join(wanted.entrypoint),
        "jobId": wanted.name,
        "submissionMode": "K8sJobMode",
        "submitterConfig": {"backoffLimit": 3},
        "submitterPodTemplate": _submitter(wanted, labels),
    }
    if wanted.own is None:
        spec |= {"clusterSelector": {"ray.io/cluster": wanted.cluster}, "backoffLimit": 0}
    else:
        spec |= {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 300, "backoffLimit": _RETRIES}
        spec["rayClusterSpec"] = _own(wanted)
    if wanted.queue:
        spec["suspend"] = True
        labels = labels | {QUEUE: wanted.queue}
    metadata = {"name": wanted.name, "namespace": wanted.namespace, "labels": labels}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}


def _submitter(wanted: RayJobSpec, labels: dict[str, str]) -> dict[str, Any]:
    """Return the template of the submitting pod; KubeRay adds the command and the token."""
    return {
        "metadata": {"labels": labels | {"app.kubernetes.io/component": "submitter"}},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": "cortex-submitter",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "ray-job-submitter",
                    "image": wanted.image,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": "HOME", "value": "/tmp"}],
                    "securityContext": _SEALED,
                    "resources": {"requests": dict(_RESOURCES), "limits": dict(_RESOURCES)},
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    }  # fmt: skip


def image_of(spec: Mapping[str, Any]) -> str:
    """Return the image of the head's first container, Ray's, in a RayCluster spec; empty if none is given."""
    return str(spec["headGroupSpec"]["template"]["spec"]["containers"][0].get("image", ""))


def _put_image(spec: Mapping[str, Any], image: str) -> None:
    """Replace the image of Ray in all pods of the spec; containers with other images keep them."""
    ours = image_of(spec)
    for group in (spec["headGroupSpec"], *spec.get("workerGroupSpecs", ())):
        pod = group["template"]["spec"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            if container.get("image", "") == ours:
                container["image"] = image


def _own(wanted: RayJobSpec) -> dict[str, Any]:
    """Return the spec of the cluster of the job's own, with the job's files on the head.

    Without ``upgradeStrategy``: KubeRay refuses it in a cluster that a RayJob makes (ray-operator,
    controllers/ray/utils/validation.go, ValidateRayClusterUpgradeOptions).
    """
    spec = copy.deepcopy(dict(wanted.own or {}))
    spec.pop("upgradeStrategy", None)
    _put_image(spec, wanted.image)
    if wanted.queue:  # Kueue counts a cluster at its largest size for its whole life
        spec.pop("autoscalerOptions", None)
        spec["enableInTreeAutoscaling"] = False
        for group in spec.get("workerGroupSpecs", ()):
            group["replicas"] = group["minReplicas"] = group["maxReplicas"]
    if wanted.files:
        pod = spec["headGroupSpec"]["template"]["spec"]
        volume = {"name": "job-files", "configMap": {"name": f"{wanted.name}-files"}}
        pod["volumes"] = [*pod.get("volumes", ()), volume]
        mount = {"name": "job-files", "mountPath": wanted.folder, "readOnly": True}
        pod["containers"][0]["volumeMounts"] = [*pod["containers"][0].get("volumeMounts", ()), mount]
    return spec
