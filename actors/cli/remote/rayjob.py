"""A job file as a RayJob for KubeRay: pure functions from what it says to an object.

Two shapes. By default the job goes to a standing RayCluster (``clusterSelector``). With the spec of a cluster it gets
one of its own, that ends with it. The RayJob's name is the job's, and the submission's id in Ray: whoever submits it
again finds it there and attaches to it.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

NAME_MAX = 47
"""KubeRay's bound: the names of the services that it makes have 63 characters at most."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_MAX = 63
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUEUE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
NAMESPACE = "cortex"
CLUSTER = "cortex"
"""The standing cluster of ``k8s/base``."""
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?P<digest>@sha256:[0-9a-f]{64})?"
)
"""The name of an image, as registries have it (the grammar of distribution/reference)."""
_PATH = re.compile(r"/[A-Za-z0-9._/-]*")
_RETRIES = 2
"""Of a cluster of its own: each is a new cluster, and goes on from the journal."""
QUEUE = "kueue.x-k8s.io/queue-name"
_RESOURCES = {"cpu": "500m", "memory": "512Mi"}
_SEALED = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
_USER = 10001
_LABELS = {"app.kubernetes.io/part-of": "cortex"}


class RayJobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a RayJob is made of."""

    name: str
    entrypoint: tuple[str, ...]
    image: str
    """Of the submitter, and of Ray in a cluster of its own."""
    namespace: str = NAMESPACE
    cluster: str = CLUSTER
    """The standing cluster that it goes to, where it has none of its own."""
    own: Mapping[str, Any] | None = None
    """The spec of a RayCluster that is made for it, and ends with it."""
    files: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The texts that a cluster of its own finds in ``folder``, by their names."""
    folder: str = ""
    queue: str = ""
    """Kueue's queue that it waits in; for a cluster of its own alone."""


def job_name(text: str, stem: str) -> str:
    """The job's name, or where none was given one from its file's. Raises ``ValueError``, one line."""
    name = text or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise ValueError(
            f"--job {name!r}: a RayJob's name begins with a letter, has small letters, digits and dashes alone, and "
            f"{NAME_MAX} of them at most"
        )
    return name


def refuse_place(cluster: str, cluster_of: str, namespace: str, queue: str, files: str) -> None:
    """What Kubernetes, or the shells on the way, would refuse of where it goes. Raises ``ValueError``, one line."""
    if cluster and cluster_of:
        raise ValueError(
            f"--to {cluster} is a standing cluster, and --cluster-of makes the job one of its own: give one of the two"
        )
    letters = "small letters, digits and dashes alone, with a letter or digit at both ends"
    names = ("--namespace", namespace, _LABEL), ("--to", cluster, _NAME), ("--queue", queue, _QUEUE)
    for option, text, form in names:
        if (text or option == "--namespace") and (len(text) > LABEL_MAX or not form.fullmatch(text)):
            raise ValueError(f"{option} {text!r}: no such name in Kubernetes: {letters}, {LABEL_MAX} of them at most")
    if not files.startswith("/"):
        raise ValueError(f"--files {files!r}: give the whole path that the folder has on the head, like /var/lib/…")
    if not _PATH.fullmatch(files) or ".." in files.split("/"):
        letters = "letters, digits, dots, dashes and underscores alone"
        raise ValueError(f"--files {files!r}: {letters} pass the shells on its way")


def refuse_image(said_by: str, image: str) -> None:
    """An image is named so that tomorrow it is the same one. Raises ``ValueError``, one line."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ValueError(f"{said_by} {image!r}: no name of an image, like registry.example.com/cortex:0.1.0")
    if not found["tag"] and not found["digest"]:
        text = "without a tag it is :latest, another image tomorrow: give a tag or a digest"
        raise ValueError(f"{said_by} {image}: {text}")
    if found["tag"] == "latest" and not found["digest"]:
        raise ValueError(f"{said_by} {image}: latest is another image tomorrow: give a tag or a digest")


def objects(wanted: RayJobSpec) -> list[dict[str, Any]]:
    """The RayJob, behind what it needs besides. Raises ``ValueError``, one line, for what KubeRay refuses."""
    made = [_rayjob(wanted)]
    if wanted.own is not None and wanted.files:
        metadata = {"name": f"{wanted.name}-files", "namespace": wanted.namespace, "labels": dict(_LABELS)}
        made.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(wanted.files)})
    return made


def _rayjob(wanted: RayJobSpec) -> dict[str, Any]:
    if wanted.queue and wanted.own is None:
        raise ValueError("--queue: Kueue suspends whole clusters: give the job one of its own, --cluster-of FILE")
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
    """The pod that hands the job over and shows what it says; KubeRay puts the command and the token in."""
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
    """The image of Ray on the head of a RayCluster, whose container is the pod's first; empty where none is said."""
    return str(spec["headGroupSpec"]["template"]["spec"]["containers"][0].get("image", ""))


def _put_image(spec: Mapping[str, Any], image: str) -> None:
    """This image in place of Ray's, wherever that stands; what has another beside it keeps it."""
    ours = image_of(spec)
    for group in (spec["headGroupSpec"], *spec.get("workerGroupSpecs", ())):
        pod = group["template"]["spec"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            if container.get("image", "") == ours:
                container["image"] = image


def _own(wanted: RayJobSpec) -> dict[str, Any]:
    """The cluster that a job gets for itself, with its files on the head."""
    spec = copy.deepcopy(dict(wanted.own or {}))
    _put_image(spec, wanted.image)
    if wanted.queue:  # Kueue counts a cluster as large as it may become, from its first moment to its last
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
