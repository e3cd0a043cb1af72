"""What KubeRay's operator refuses although the schemas allow it, and Kueue with it.

Source of the rules: ray-project/kuberay, ray-operator/controllers/ray/utils/validation.go, and Kueue's page on RayJobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.manifests.rendering import Object

QUEUE = "kueue.x-k8s.io/queue-name"
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def findings(found: list[Object]) -> list[str]:
    """What the operator would say of these objects."""
    lines = []
    for one in found:
        if one["kind"] in ("RayCluster", "RayJob", "RayCronJob"):
            rules = RULES[one["kind"]](one)
            lines += [f"{one['kind']} {one['metadata']['name']}: {line}" for line in rules]
    return lines


def _named(one: Object, most: int) -> Iterator[str]:
    name = one["metadata"]["name"]
    if len(name) > most or not _DNS_1035.fullmatch(name):
        yield f"a name is a DNS label of at most {most} characters that begins with a letter"


def _standing(one: Object) -> Iterator[str]:
    yield from (*_named(one, 53), *_cluster(one["spec"]))


def _cron(one: Object) -> Iterator[str]:
    """`ValidateRayCronJobSpec`; the schedule has five fields, or is one of cron's words."""
    yield from _named(one, 36)
    spec = one["spec"]
    if "TZ" in spec["schedule"]:
        yield "a time zone is said by timeZone"
    if not re.fullmatch(r"@(yearly|annually|monthly|weekly|daily|midnight|hourly)|([-\d*/,A-Za-z]+ ){4}[-\d*/,A-Za-z]+", spec["schedule"]):
        yield f"{spec['schedule']!r} is no schedule"
    yield from _job({"kind": "RayJob", "metadata": {"name": "job"}, "spec": spec["jobTemplate"]})


def _job(one: Object) -> Iterator[str]:
    yield from _named(one, 47)
    spec = one["spec"]
    selected, own = bool(spec.get("clusterSelector")), spec.get("rayClusterSpec")
    queued = QUEUE in one["metadata"].get("labels", {})
    if not selected and own is None:
        yield "it has neither a cluster nor a selector of one"
    if selected and not spec["clusterSelector"].get("ray.io/cluster"):
        yield "its selector names no cluster"
    if selected and spec.get("backoffLimit"):
        yield "backoffLimit never goes with clusterSelector"
    if own is not None and own.get("upgradeStrategy"):
        yield "upgradeStrategy never goes into a cluster that a RayJob makes"
    if own is not None and own.get("authOptions", {}).get("enableK8sTokenAuth"):
        yield "tokens of Kubernetes never go into a cluster that a RayJob makes"
    if spec.get("suspend") and selected:
        yield "suspend never goes with clusterSelector"
    if queued and selected:
        yield "Kueue never goes with clusterSelector"
    if (spec.get("suspend") or queued) and not spec.get("shutdownAfterJobFinishes"):
        yield "suspend, and so Kueue, needs shutdownAfterJobFinishes"
    if queued and (own or {}).get("enableInTreeAutoscaling"):
        yield "Kueue never goes with autoscaling"
    if spec.get("ttlSecondsAfterFinished", 0) and not spec.get("shutdownAfterJobFinishes"):
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes"
    if spec.get("submissionMode") == "InteractiveMode" and spec.get("backoffLimit"):
        yield "InteractiveMode never goes with backoffLimit"
    if spec.get("submissionMode") == "SidecarMode":
        yield from _sidecar(spec, selected)
    yield from _deletion(spec, selected)
    if own is not None:
        yield from _cluster(own)


def _sidecar(spec: Object, selected: bool) -> Iterator[str]:
    if selected:
        yield "SidecarMode never goes with clusterSelector"
    for key in ("submitterPodTemplate", "submitterConfig"):
        if key in spec:
            yield f"SidecarMode never goes with {key}"
    if (
        not selected
        and spec.get("rayClusterSpec", {})
        .get("headGroupSpec", {})
        .get("template", {})
        .get("spec", {})
        .get("restartPolicy", "Never")
        != "Never"
    ):
        yield "SidecarMode needs a head that is never restarted"


def _deletion(spec: Object, selected: bool) -> Iterator[str]:
    strategy = spec.get("deletionStrategy")
    if strategy is None:
        return
    rules = strategy.get("deletionRules", [])
    old = [strategy[key].get("policy") for key in ("onSuccess", "onFailure") if key in strategy]
    if rules and spec.get("shutdownAfterJobFinishes"):
        yield "deletion rules never go with shutdownAfterJobFinishes"
    if rules and old:
        yield "deletion rules never go with onSuccess and onFailure"
    if not rules and len(old) != 2:
        yield "a deletion strategy has rules, or both onSuccess and onFailure"
    named = [rule.get("policy") for rule in rules] + old
    if "DeleteWorkers" in named and (spec.get("rayClusterSpec") or {}).get("enableInTreeAutoscaling"):
        yield "DeleteWorkers never goes with autoscaling"
    if selected and {"DeleteWorkers", "DeleteCluster"} & set(named):
        yield "a cluster that was selected is not deleted"
    if "DeleteNone" in old and spec.get("shutdownAfterJobFinishes"):
        yield "DeleteNone never goes with shutdownAfterJobFinishes"


def _cluster(spec: Object) -> Iterator[str]:
    head, groups = spec["headGroupSpec"], spec.get("workerGroupSpecs", [])
    scales = bool(spec.get("enableInTreeAutoscaling"))
    for group in (head, *groups):
        name = group.get("groupName", "head")
        if not group["template"]["spec"].get("containers"):
            yield f"{name} has no container"
        params = group.get("rayStartParams", {})
        if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(params):
            yield f"{name} says its resources twice"
        if "labels" in params:
            yield f"{name} has its labels in rayStartParams"
        if scales and group.get("suspend"):
            yield f"{name} is suspended, and scaled"
        if (
            scales
            and spec.get("autoscalerOptions", {}).get("version") == "v2"
            and group["template"]["spec"].get("restartPolicy", "Never") != "Never"
        ):
            yield f"{name} is restarted beside the autoscaler"
        if (
            not group.get("minReplicas", 0)
            <= group.get("replicas", group.get("minReplicas", 0))
            <= group.get("maxReplicas", 2**31)
        ):
            yield f"{name} has replicas out of its bounds"
    if spec.get("authOptions", {}).get("mode") == "token":
        release = [int(part) for part in re.findall(r"\d+", spec.get("rayVersion", ""))[:3]]
        if release < [2, 52, 0]:
            yield "a token needs rayVersion 2.52.0 or later"
    if not scales and any(
        each["name"] == "RAY_enable_autoscaler_v2" for each in head["template"]["spec"]["containers"][0].get("env", ())
    ):
        yield "the autoscaler's version is said, and there is none"


RULES: dict[str, Callable[[Object], Iterator[str]]] = {"RayCluster": _standing, "RayJob": _job, "RayCronJob": _cron}
