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


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a RayJob is made of."""

    name: str
    entrypoint: tuple[str, ...]
    image: str
    """Of the submitter, and of Ray in a cluster of its own."""
    namespace: str = "cortex"
    cluster: str = "cortex"
    """The standing cluster that it goes to, where it has none of its own."""
    own: Mapping[str, Any] | None = None
    """The spec of a RayCluster that is made for it, and ends with it."""
    files: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The texts that a cluster of its own finds in ``folder``, by their names."""
    folder: str = ""
    queue: str = ""
    """Kueue's queue that it waits in; for a cluster of its own alone."""


def job_name(said: str, stem: str) -> str:
    """The job's name, or where none was given one from its file's. Raises ``ValueError``, one line."""
    name = said or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise ValueError(
            f"--job {name!r}: a RayJob's name begins with a letter, has small letters, digits and dashes alone, and "
            f"{NAME_MAX} of them at most"
        )
    return name


def objects(wanted: Wanted) -> list[dict[str, Any]]:
    """The RayJob, behind what it needs besides. Raises ``ValueError``, one line, for what KubeRay refuses."""
    made = [_rayjob(wanted)]
    if wanted.own is not None and wanted.files:
        metadata = {"name": f"{wanted.name}-files", "namespace": wanted.namespace, "labels": dict(_LABELS)}
        made.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(wanted.files)})
    return made


def _rayjob(wanted: Wanted) -> dict[str, Any]:
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


def _submitter(wanted: Wanted, labels: dict[str, str]) -> dict[str, Any]:
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


def _own(wanted: Wanted) -> dict[str, Any]:
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
