"""What must hold for every manifest whatever its schema allows: one finding a line, empty when there is nothing to say.

``findings`` is the whole list. Each rule is shown to be able to fail by a mutation in ``test_policies.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.manifests.rendering import Object
from tests.manifests.schemas import pod_templates, where
from tests.manifests.traffic import selects

SECRET_NAME = re.compile(r"KEY|TOKEN|PASSWORD|SECRET|AUTHORIZATION|CREDENTIAL", re.IGNORECASE)
PATH_NAME = re.compile(r"(_FILE|_PATH|PASSFILE|_MODE)$")
SECRET_TEXT = re.compile(
    r"sk-[A-Za-z0-9-]{8,}|://[^/\s:@]+:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY|Bearer [A-Za-z0-9._-]{12,}"
)
CLUSTER_SCOPED = {"Namespace", "ResourceFlavor", "ClusterQueue", "PriorityClass"}
OUTSIDE = {"cortex-provider", "cortex-telemetry", "cortex-postgresql"}
"""Secrets that people make; README.md says how."""
OF_KUBERAY = {"cortex"}
"""Secret with Ray's token, that the operator makes for a cluster of this name."""
PRIVATE = {
    "0.0.0.0/0": {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"},
    "::/0": {"fc00::/7", "fe80::/10"},
}
"""What is not the Internet: addresses of other networks of one's own, and a cloud's metadata."""
DISK = ("ephemeral-storage",)
"""Asked for by whoever writes into an emptyDir: on a full node, pods that use more than they asked for are evicted first
(kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction)."""
MARGIN_S = 30
"""Between the end of a hook and the end of the grace: Ray itself must end."""


def findings(found: list[Object]) -> list[str]:
    """Everything that is wrong with the objects of one installation."""
    lines = []
    for one in found:
        for name, pod in pod_templates(one):
            lines += [f"{name}: {line}" for line in _pod(pod, name)]
            lines += [f"{name}: {line}" for line in _refers(pod["spec"], found, one)]
        lines += [f"{where(one)}: {line}" for line in (*_object(one), *_ray(one))]
    return lines


def of_installation(found: list[Object]) -> list[str]:
    """What must be there beside the pods."""
    return [*_network(found), *_disruption(found)]


# -- pods ------------------------------------------------------------------------------------------------------------


def _pod(pod: Object, name: str) -> Iterator[str]:
    spec = pod["spec"]
    own = spec.get("securityContext", {})
    if own.get("runAsNonRoot") is not True or not own.get("runAsUser"):
        yield "may run as root"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"uses {key}"
    if spec.get("automountServiceAccountToken") is not False and not name.endswith("-head"):
        yield "has a token of the API server"
    if not spec.get("serviceAccountName"):
        yield "uses the namespace's default account"
    for volume in spec.get("volumes", ()):
        if "hostPath" in volume:
            yield f"volume {volume['name']} is a folder of the node"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"volume {volume['name']} may fill the node's disk"
    volumes = spec.get("volumes", ())
    disks = {each["name"] for each in volumes if "emptyDir" in each and each["emptyDir"].get("medium") != "Memory"}
    containers = [*spec["containers"], *spec.get("initContainers", ())]
    for container in containers:
        yield from (f"container {container['name']} {line}" for line in _container(container))
        if disks & {each["name"] for each in container.get("volumeMounts", ())}:
            yield from (f"container {container['name']} {line}" for line in _bounded(container.get("resources", {}), DISK))
    if not name.endswith("-submitter"):
        for container in spec["containers"]:
            for probe in ("readinessProbe", "livenessProbe"):
                if probe not in container:
                    yield f"container {container['name']} has no {probe}"


def _container(container: Object) -> Iterator[str]:
    yield from _sealed(container.get("securityContext", {}))
    yield from _bounded(container.get("resources", {}))
    if "image" in container:
        yield from _image(container["image"])
    for each in container.get("env", ()):
        if SECRET_NAME.search(each["name"]) and not PATH_NAME.search(each["name"]) and "value" in each:
            yield f"has {each['name']} in clear"
    for port in container.get("ports", ()):
        if "hostPort" in port:
            yield "takes a port of the node"


def _sealed(own: Object) -> Iterator[str]:
    for key, wanted, text in (
        ("runAsNonRoot", True, "may run as root"),
        ("readOnlyRootFilesystem", True, "may write into its image"),
        ("allowPrivilegeEscalation", False, "may gain privileges"),
    ):
        if own.get(key) is not wanted:
            yield text
    if own.get("privileged"):
        yield "is privileged"
    if own.get("capabilities", {}).get("drop") != ["ALL"] or own.get("capabilities", {}).get("add"):
        yield "has capabilities"
    if own.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "has no seccomp profile"


def _bounded(own: Object, resources: tuple[str, ...] = ("cpu", "memory")) -> Iterator[str]:
    for kind in ("requests", "limits"):
        for resource in resources:
            if resource not in own.get(kind, {}):
                yield f"has no {kind} of {resource}"


def _image(image: str) -> Iterator[str]:
    name, _, tag = image.partition("@")[0].rpartition(":")
    if "@" not in image and (not name or "/" in tag or tag == "latest"):
        yield f"has no fixed image: {image}"


def _refers(spec: Object, found: list[Object], owner: Object) -> Iterator[str]:
    """What a pod names that is neither here nor made by people as README.md says."""
    here = {(each["kind"], each["metadata"]["name"]) for each in found}
    names = {name for _, name in here}
    if (
        "cortex-head" in names
        and (account := spec.get("serviceAccountName"))
        and ("ServiceAccount", account) not in here
    ):
        yield f"account {account} is not here"
    for volume in spec.get("volumes", ()):
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim and "cortex-head" in names and ("PersistentVolumeClaim", claim) not in here:
            yield f"claim {claim} is not here"
        config = volume.get("configMap", {}).get("name")
        if config and ("ConfigMap", config) not in here:
            yield f"configuration {config} is not here"
        secret = volume.get("secret", {}).get("secretName")
        if secret and secret not in OUTSIDE:
            yield f"nobody makes secret {secret}"
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        mounted = {each["name"] for each in container.get("volumeMounts", ())}
        yield from (
            f"volume {name} is not here"
            for name in sorted(mounted - {each["name"] for each in spec.get("volumes", ())})
        )
        for each in container.get("env", ()):
            secret = each.get("valueFrom", {}).get("secretKeyRef", {}).get("name")
            if secret and secret not in OUTSIDE | OF_KUBERAY:
                yield f"nobody makes secret {secret}"


# -- objects ---------------------------------------------------------------------------------------------------------


def _object(one: Object) -> Iterator[str]:
    if one["kind"] == "Secret":
        yield "a secret is made by people, not kept here"
    if one["kind"] not in CLUSTER_SCOPED and "namespace" not in one["metadata"]:
        yield "is in no namespace"
    for path, text in _texts(one, ""):
        if SECRET_TEXT.search(text):
            yield f"{path} holds a secret in clear"


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, f"{path}.{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _texts(each, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value


def _ray(one: Object) -> Iterator[str]:
    cluster = (
        one["spec"]
        if one["kind"] == "RayCluster"
        else one.get("spec", {}).get("rayClusterSpec")
        if one["kind"] == "RayJob"
        else None
    )
    if one["kind"] == "RayJob":
        yield from _job(one)
    if one["kind"] == "RayCronJob":
        yield from _cron(one["spec"]["jobTemplate"])
    if not cluster:
        return
    if cluster.get("authOptions", {}).get("mode") != "token":
        yield "anybody may speak to its Ray"
    if cluster["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
        yield "its head does work"
    for group in (cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", ())):
        if group["rayStartParams"].get("no-redirect-output") != "true":
            yield f"{group.get('groupName', 'head')}: kubectl logs has no line of its actors"
    if "autoscalerOptions" in cluster:
        own = cluster["autoscalerOptions"]
        yield from (
            f"its autoscaler {line}"
            for line in (
                *_sealed(own.get("securityContext", {})),
                *_bounded(own.get("resources", {})),
                *(_bounded(own.get("resources", {}), DISK) if own.get("volumeMounts") else ()),
            )
        )
    for name, pod in pod_templates(one):
        if name.endswith("-submitter"):
            continue
        yield from (f"{name} {line}" for line in _leaving(pod["spec"]))
        secrets = [volume["secret"]["secretName"] for volume in pod["spec"].get("volumes", ()) if "secret" in volume]
        if secrets and not name.endswith("-head"):
            yield f"{name} holds {', '.join(secrets)}: the head alone does"
        if not name.endswith("-head") and len(pod["spec"].get("topologySpreadConstraints", ())) < 2:
            yield f"{name} may lie on one node or in one zone alone"


def _leaving(spec: Object) -> Iterator[str]:
    """Whoever is told to end finishes first what is in flight, and is given the time for it.

    Ray is in the first container of a pod (docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html); others
    have nothing in flight.
    """
    for container in spec["containers"][:1]:
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        if hook[:2] != ["cortex", "drain"] or "--within" not in hook:
            yield f"container {container['name']} ends without a drain"
        elif spec.get("terminationGracePeriodSeconds", 30) < float(hook[-1].rstrip("s")) + MARGIN_S:
            yield "is killed before its drain is over"


def _job(one: Object) -> Iterator[str]:
    spec = one["spec"]
    if spec.get("jobId") != one["metadata"]["name"]:
        yield "is submitted under another name: a second submitter would not find it"
    if "--accept-partial" not in spec.get("entrypoint", "").split():
        yield "fails when it ends partial, and is begun again"
    if f"--job {one['metadata']['name']} " not in spec.get("entrypoint", "") + " ":
        yield "is another job in the journal"
    if "submitterPodTemplate" not in spec:
        yield "is submitted by a pod that nobody bounds"


def _cron(spec: Object) -> Iterator[str]:
    entry = spec.get("entrypoint", "")
    if spec.get("jobId"):
        yield "is submitted under one name each time: the second run would attach to the first"
    if not re.search(r"--job \S*\$\(date ", entry):
        yield "is the same job in the journal each time"
    if "--accept-partial" not in entry.split():
        yield "fails when it ends partial, and is begun again"
    if "submitterPodTemplate" not in spec:
        yield "is submitted by a pod that nobody bounds"
    if not spec.get("deletionStrategy", {}).get("deletionRules"):
        yield "leaves a RayJob behind each time"


# -- the installation ------------------------------------------------------------------------------------------------


def components(found: list[Object]) -> dict[str, dict[str, str]]:
    """The labels of each kind of pod, by its component, with those that KubeRay puts on pods of a standing cluster."""
    made = {}
    for one in found:
        for name, pod in pod_templates(one):
            labels = dict(pod["metadata"]["labels"])
            if one["kind"] == "RayCluster":
                group = name.removeprefix(f"{one['metadata']['name']}-")
                kind = (
                    {"ray.io/node-type": "head"}
                    if group == "head"
                    else {"ray.io/node-type": "worker", "ray.io/group": group}
                )
                labels |= {"ray.io/cluster": one["metadata"]["name"], **kind}
            made[labels["app.kubernetes.io/component"]] = labels
    return made


def _network(found: list[Object]) -> Iterator[str]:
    policies = [one["spec"] for one in found if one["kind"] == "NetworkPolicy"]
    if not any(
        one["podSelector"] == {}
        and set(one["policyTypes"]) == {"Ingress", "Egress"}
        and not one.get("egress")
        and not one.get("ingress")
        for one in policies
    ):
        yield "nothing is denied by default"
    for name, labels in components(found).items():
        own = [each for one in policies if selects(one["podSelector"], labels) for each in one.get("egress", ())]
        blocks = [peer["ipBlock"]["cidr"] for each in own for peer in each.get("to", ()) if "ipBlock" in peer]
        if name == "worker" and not all(_stays(each) or _asks_names(each) for each in own):
            yield "workers, which run what models wrote, reach beyond the cluster"
        if name == "branch" and "0.0.0.0/0" not in blocks:
            yield "branches do not reach the provider"
        if name in ("branch", "head") and any(
            each.get("ports") != [{"protocol": "TCP", "port": 443}]
            for each in own
            for peer in each.get("to", ())
            if peer.get("ipBlock", {}).get("cidr") == "0.0.0.0/0"
        ):
            yield f"{name} reaches the Internet on other ports than 443"
    for one in policies:
        for each in one.get("egress", ()):
            if not each.get("to"):
                yield "a way out leads anywhere"
            for peer in each.get("to", ()):
                block = peer.get("ipBlock", {})
                if not PRIVATE.get(block.get("cidr"), set()) <= set(block.get("except", ())):
                    yield "the way to the Internet is one into private networks too"
        for each in one.get("ingress", ()):
            if not each.get("from"):
                yield "anybody in the cluster may come in"


def _stays(rule: Object) -> bool:
    """Whether a rule leads to pods alone."""
    return bool(rule.get("to")) and not any("ipBlock" in peer for peer in rule["to"])


def _asks_names(rule: Object) -> bool:
    """Whether a rule leads to single addresses on the port of DNS alone: a name server outside of the cluster's pods."""
    blocks = [peer["ipBlock"]["cidr"] for peer in rule.get("to", ()) if "ipBlock" in peer]
    ports = [each.get("port") for each in rule.get("ports", ())]
    return bool(blocks) and set(ports) == {53} and all(cidr.endswith(("/32", "/128")) for cidr in blocks)


def _disruption(found: list[Object]) -> Iterator[str]:
    budgets = [one["spec"] for one in found if one["kind"] == "PodDisruptionBudget"]
    least = {"head": 1}
    for one in found:
        if one["kind"] == "RayCluster":
            least |= {group["groupName"]: group["minReplicas"] for group in one["spec"]["workerGroupSpecs"]}
    pods = {name: labels for name, labels in components(found).items() if "ray.io/cluster" in labels}
    for name, labels in pods.items():
        own = [each for each in budgets if selects(each["selector"], labels)]
        if not own and (name == "head" or (name == "branch" and least[name] > 1)):
            yield f"{name} has no disruption budget"
        for each in own:
            if not isinstance(each.get("minAvailable"), int):  # a RayCluster has no scale subresource to count by
                yield f"no {name} may ever be evicted"
            elif name != "head" and each["minAvailable"] >= least[name]:
                yield f"the last pods of {name} may not be evicted"
            if "ray.io/cluster" not in each["selector"].get("matchLabels", {}):
                yield f"the budget of {name} counts other clusters' pods too"
