"""Every manifest keeps the policies and the operator's rules; and a manifest that breaks one is caught."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

import cortex
from policies.failures.timeout import TimeoutPolicy, attempt_timeout_s
from tests.manifests import kuberay, policies, schemas
from tests.manifests.rendering import K8S, Object, named, rendered
from tests.manifests.test_valid import COMPONENTS, with_components

INSTALLED = ["overlays/local", "overlays/production", "jobs", "kueue", "schedules", "schedules/raycronjob"]


@pytest.mark.parametrize("folder", INSTALLED)
def test_what_is_installed_keeps_the_policies_and_the_operators_rules(folder):
    found = rendered(folder)
    assert policies.findings(found) == []
    assert kuberay.findings(found) == []
    if folder.startswith("overlays"):
        assert policies.of_installation(found) == []


def test_components_keep_them_too(tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, *COMPONENTS)
    assert policies.findings(found) + policies.of_installation(found) + kuberay.findings(found) == []


def test_the_grace_is_that_of_a_call():
    """A call of 4,096 tokens that was asked in the last moment is answered before its branch is killed."""
    call_s = attempt_timeout_s(TimeoutPolicy(), 4_096, 0)
    for overlay in ("overlays/local", "overlays/production"):
        for _, pod in schemas.pod_templates(named(rendered(overlay), "RayCluster", "cortex")):
            container = pod["spec"]["containers"][0]
            within_s = float(container["lifecycle"]["preStop"]["exec"]["command"][-1].rstrip("s"))
            assert call_s <= within_s <= pod["spec"]["terminationGracePeriodSeconds"] - policies.MARGIN_S


def test_releases_are_those_that_the_image_has():
    lock = (K8S / "image" / "requirements.lock").read_text()
    cluster = named(rendered("overlays/production"), "RayCluster", "cortex")
    assert re.search(rf"^ray=={re.escape(cluster['spec']['rayVersion'])} ", lock, re.MULTILINE)
    images = {each["image"] for _, pod in schemas.pod_templates(cluster) for each in pod["spec"]["containers"]}
    assert images == {f"registry.example.com/cortex:{cortex.__version__}"}


# -- mutations -------------------------------------------------------------------------------------------------------

Change = Callable[[Any], None]


def put(path: str, value: Any) -> Change:
    """Set what stands at a path like ``spec.containers.0.image``; None takes it away."""

    def change(one: Any) -> None:
        *way, last = path.split(".")
        for step in way:
            one = one[int(step)] if isinstance(one, list) else one.setdefault(step, {})
        if value is None:
            del one[int(last) if isinstance(one, list) else last]
        elif isinstance(one, list) and int(last) == len(one):
            one.append(value)
        else:
            one[int(last) if isinstance(one, list) else last] = value

    return change


HEAD = "spec.headGroupSpec.template.spec."
BRANCH = "spec.workerGroupSpecs.0.template.spec."
WORKER = "spec.workerGroupSpecs.1.template.spec."
CLUSTER = ("overlays/production", "RayCluster", "cortex")
JOB = ("jobs", "RayJob", "labels")
QUEUED = ("kueue", "RayJob", "labels")
COLLECTOR = ("overlays/production", "Deployment", "cortex-collector")
NIGHTLY = ("schedules", "CronJob", "labels")
BY_KUBERAY = ("schedules/raycronjob", "RayCronJob", "labels")
POD = "spec.jobTemplate.spec.template.spec."

SCHEMA = [
    (CLUSTER, put(BRANCH + "containers.0.livenesProbe", {}), "livenesProbe"),
    (CLUSTER, put("spec.headGroupSpec.rayStartParam", {}), "rayStartParam"),
    (CLUSTER, put("spec.headGroupSpec", None), "headGroupSpec"),
    (CLUSTER, put("spec.authOptions.mode", "password"), "password"),
    (CLUSTER, put("spec.workerGroupSpecs.0.maxReplicas", "many"), "many"),
    (CLUSTER, put("spec.headGroupSpec.rayStartParams.num-cpus", 0), "0 is not of type 'string'"),
    (CLUSTER, put(HEAD + "containers.0.resources.limits.memory", "8 GB"), "8 GB"),
    (CLUSTER, put(HEAD + "terminationGracePeriodSeconds", "six minutes"), "six minutes"),
    (JOB, put("spec.jobID", "x"), "jobID"),
    (JOB, put("spec.submitterPodTemplate.spec.containers.0.name", None), "name"),
    (JOB, put("apiVersion", "v1"), "no schema is known"),
    (COLLECTOR, put("spec.template.spec.containers.0.imagePullPolicy", 1), "1"),
    (COLLECTOR, put("spec.template.spec.containers.0.readinessProb", {}), "readinessProb"),
    (("overlays/production", "PrometheusRule", "cortex"), put("spec.groups.0.rules.0.alert", "A"), "valid under each of"),
    (("overlays/production", "PrometheusRule", "cortex"), put("spec.groups.0.interval", "soon"), "soon"),
    (("overlays/production", "PodMonitor", "cortex"), put("spec.podMetricsEndpoints.0.intervall", "15s"), "intervall"),
    (("overlays/production", "NetworkPolicy", "deny"), put("spec.policyTypes", "Egress"), "Egress"),
    (("overlays/production", "PersistentVolumeClaim", "cortex-state"), put("spec.accessModes", "ReadWriteOnce"), "ReadWriteOnce"),
    (("kueue", "ClusterQueue", "cortex"), put("spec.queueingStrategy", "FIFO"), "FIFO"),
    (("kueue", "LocalQueue", "cortex"), put("spec.clusterQueue", None), "clusterQueue"),
    (NIGHTLY, put("spec.concurrencyPolice", "Forbid"), "concurrencyPolice"),
    (NIGHTLY, put(POD + "containers.0.volumeMount", []), "volumeMount"),
    (BY_KUBERAY, put("spec.concurrencyPolicy", "Forbid"), "concurrencyPolicy"),
    (BY_KUBERAY, put("spec.jobTemplate.entryPoint", "x"), "entryPoint"),
    (BY_KUBERAY, put("spec.schedule", None), "schedule"),
]

POLICY = [
    (CLUSTER, put(BRANCH + "securityContext.runAsNonRoot", False), "cortex-branch: may run as root"),
    (CLUSTER, put(BRANCH + "securityContext.runAsUser", None), "cortex-branch: may run as root"),
    (CLUSTER, put(BRANCH + "containers.0.securityContext.readOnlyRootFilesystem", None), "may write into its image"),
    (CLUSTER, put(BRANCH + "containers.0.securityContext.capabilities.add", ["NET_ADMIN"]), "has capabilities"),
    (CLUSTER, put(BRANCH + "containers.0.securityContext.seccompProfile", None), "has no seccomp profile"),
    (CLUSTER, put(BRANCH + "containers.0.securityContext.privileged", True), "is privileged"),
    (CLUSTER, put(BRANCH + "hostNetwork", True), "uses hostNetwork"),
    (CLUSTER, put(BRANCH + "volumes.2", {"name": "n", "hostPath": {"path": "/"}}), "volume n is a folder of the node"),
    (CLUSTER, put(BRANCH + "volumes.0.emptyDir", {}), "volume tmp may fill the node's disk"),
    (CLUSTER, put(BRANCH + "automountServiceAccountToken", None), "has a token of the API server"),
    (CLUSTER, put(BRANCH + "serviceAccountName", None), "uses the namespace's default account"),
    (CLUSTER, put(BRANCH + "serviceAccountName", "nobody"), "account nobody is not here"),
    (CLUSTER, put(BRANCH + "containers.0.resources.limits.memory", None), "has no limits of memory"),
    (CLUSTER, put(BRANCH + "containers.0.resources.requests", None), "has no requests of cpu"),
    (CLUSTER, put(BRANCH + "containers.0.resources.requests.ephemeral-storage", None), "has no requests of ephemeral-storage"),
    (CLUSTER, put("spec.autoscalerOptions.resources.limits.ephemeral-storage", None), "its autoscaler has no limits of ephemeral-storage"),
    (NIGHTLY, put(POD + "containers.0.resources.limits.ephemeral-storage", None), "has no limits of ephemeral-storage"),
    (NIGHTLY, put(POD + "automountServiceAccountToken", None), "labels-submitter: has a token of the API server"),
    (NIGHTLY, put(POD + "containers.0.env.4", {"name": "RAY_AUTH_TOKEN", "value": "x"}), "labels-submitter: container submit has RAY_AUTH_TOKEN in clear"),
    (BY_KUBERAY, put("spec.jobTemplate.jobId", "labels"), "the second run would attach to the first"),
    (BY_KUBERAY, put("spec.jobTemplate.entrypoint", "cortex batch -f x --job labels --accept-partial"), "is the same job in the journal each time"),
    (BY_KUBERAY, put("spec.jobTemplate.deletionStrategy", None), "leaves a RayJob behind each time"),
    (BY_KUBERAY, put("spec.jobTemplate.submitterPodTemplate", None), "is submitted by a pod that nobody bounds"),
    (CLUSTER, put(BRANCH + "containers.0.image", "cortex"), "has no fixed image: cortex"),
    (CLUSTER, put(BRANCH + "containers.0.image", "host:5000/cortex"), "has no fixed image"),
    (CLUSTER, put(BRANCH + "containers.0.image", "cortex:latest"), "has no fixed image: cortex:latest"),
    (CLUSTER, put(BRANCH + "containers.0.env.0", {"name": "ANTHROPIC_API_KEY", "value": "x"}), "has ANTHROPIC_API_KEY in clear"),
    (CLUSTER, put(BRANCH + "containers.0.env.0", {"name": "X", "value": "sk-ant-0123456789"}), "holds a secret in clear"),
    (CLUSTER, put(BRANCH + "containers.0.readinessProbe", None), "has no readinessProbe"),
    (CLUSTER, put(BRANCH + "containers.0.lifecycle", None), "ends without a drain"),
    (CLUSTER, put(BRANCH + "terminationGracePeriodSeconds", 300), "is killed before its drain is over"),
    (CLUSTER, put(BRANCH + "topologySpreadConstraints", None), "may lie on one node"),
    (CLUSTER, put(WORKER + "volumes.2", {"name": "k", "secret": {"secretName": "cortex-provider"}}), "the head alone does"),
    (CLUSTER, put(HEAD + "volumes.1.secret.secretName", "other"), "nobody makes secret other"),
    (CLUSTER, put(HEAD + "volumes.0.persistentVolumeClaim.claimName", "gone"), "claim gone is not here"),
    (CLUSTER, put(HEAD + "volumes.0.name", "status"), "volume state is not here"),
    (CLUSTER, put("spec.authOptions", None), "anybody may speak to its Ray"),
    (CLUSTER, put("spec.headGroupSpec.rayStartParams.num-cpus", "4"), "its head does work"),
    (CLUSTER, put("spec.headGroupSpec.rayStartParams.no-redirect-output", None), "head: kubectl logs has no line"),
    (CLUSTER, put("spec.workerGroupSpecs.1.rayStartParams.no-redirect-output", "false"), "worker: kubectl logs has no line"),
    (CLUSTER, put("spec.autoscalerOptions.securityContext", None), "its autoscaler may run as root"),
    (CLUSTER, put("metadata.namespace", None), "is in no namespace"),
    (JOB, put("spec.jobId", None), "is submitted under another name"),
    (JOB, put("spec.entrypoint", "cortex batch -f x --job labels "), "fails when it ends partial"),
    (JOB, put("spec.entrypoint", "cortex batch -f x --job other --accept-partial "), "is another job in the journal"),
    (JOB, put("spec.submitterPodTemplate", None), "is submitted by a pod that nobody bounds"),
    (JOB, put("spec.submitterPodTemplate.spec.containers.0.resources.limits", None), "has no limits of cpu"),
    (QUEUED, put("spec.rayClusterSpec.authOptions", None), "anybody may speak to its Ray"),
    (COLLECTOR, put("spec.template.spec.containers.0.securityContext.allowPrivilegeEscalation", True), "may gain privileges"),
    (COLLECTOR, put("spec.template.spec.volumes.0.configMap.name", "gone"), "configuration gone is not here"),
    (("overlays/production", "ConfigMap", "cortex-jobs-dashboard"), put("kind", "Secret"), "a secret is made by people"),
    (("overlays/production", "ConfigMap", "cortex-jobs-dashboard"), put("data.url", "postgresql://me:word@host/x"), "holds a secret in clear"),
]

INSTALLATION = [
    (("overlays/production", "NetworkPolicy", "deny"), put("spec.policyTypes", ["Ingress"]), "nothing is denied by default"),
    (("overlays/production", "NetworkPolicy", "deny"), put("spec.egress", [{}]), "nothing is denied by default"),
    (("overlays/production", "NetworkPolicy", "provider"), put("spec.podSelector.matchExpressions.0.values.2", "worker"), "workers, which run what models wrote"),
    (("overlays/production", "NetworkPolicy", "cluster"), put("spec.egress.0.to", None), "workers, which run what models wrote"),
    (("overlays/production", "NetworkPolicy", "provider"), put("spec.podSelector.matchExpressions.0.values", ["head"]), "branches do not reach the provider"),
    (("overlays/production", "NetworkPolicy", "provider"), put("spec.egress.0.ports.0.port", 80), "reaches the Internet on other ports"),
    (("overlays/production", "NetworkPolicy", "provider"), put("spec.egress.0.to.0.ipBlock.except", None), "one into private networks too"),
    (("overlays/production", "NetworkPolicy", "head-dashboard"), put("spec.ingress.0.from", None), "anybody in the cluster may come in"),
    (("overlays/production", "NetworkPolicy", "provider"), put("spec.egress.0.to.1.ipBlock.except", None), "one into private networks too"),
    (("overlays/production", "NetworkPolicy", "collector"), put("spec.egress.0.to", None), "a way out leads anywhere"),
    (("overlays/production", "PodDisruptionBudget", "cortex-branch"), put("spec.selector.matchLabels", {"a": "b"}), "branch has no disruption budget"),
    (("overlays/production", "PodDisruptionBudget", "cortex-head"), put("spec.selector.matchLabels", {"ray.io/cluster": "cortex", "ray.io/node-type": "worker"}), "head has no disruption budget"),
    (("overlays/production", "PodDisruptionBudget", "cortex-branch"), put("spec.minAvailable", "50%"), "no branch may ever be evicted"),
    (("overlays/production", "PodDisruptionBudget", "cortex-branch"), put("spec.minAvailable", None), "no branch may ever be evicted"),
    (("overlays/production", "PodDisruptionBudget", "cortex-branch"), put("spec.minAvailable", 2), "the last pods of branch may not be evicted"),
    (("overlays/local", "PodDisruptionBudget", "cortex-head"), put("spec.selector.matchLabels", {"ray.io/node-type": "head"}), "counts other clusters' pods too"),
]

OPERATOR = [
    (JOB, put("spec.suspend", True), "suspend never goes with clusterSelector"),
    (JOB, put("metadata.labels", {kuberay.QUEUE: "q"}), "Kueue never goes with clusterSelector"),
    (JOB, put("spec.submissionMode", "SidecarMode"), "SidecarMode never goes with clusterSelector"),
    (JOB, put("spec.clusterSelector", None), "it has neither a cluster nor a selector of one"),
    (JOB, put("spec.clusterSelector", {"name": "cortex"}), "its selector names no cluster"),
    (JOB, put("spec.ttlSecondsAfterFinished", 9), "ttlSecondsAfterFinished needs"),
    (JOB, put("metadata.name", "1" * 40), "begins with a letter"),
    (JOB, put("metadata.name", "a" * 48), "at most 47 characters"),
    (JOB, put("spec.deletionStrategy", {"deletionRules": [{"policy": "DeleteCluster", "condition": {"jobStatus": "FAILED"}}]}), "a cluster that was selected is not deleted"),
    (QUEUED, put("spec.submissionMode", "SidecarMode"), "SidecarMode never goes with submitterPodTemplate"),
    (QUEUED, put("spec.shutdownAfterJobFinishes", False), "needs shutdownAfterJobFinishes"),
    (QUEUED, put("spec.rayClusterSpec.enableInTreeAutoscaling", True), "Kueue never goes with autoscaling"),
    (QUEUED, put("spec.deletionStrategy", {"deletionRules": [{"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}]}), "deletion rules never go with shutdownAfterJobFinishes"),
    (QUEUED, put("spec.deletionStrategy", {"onSuccess": {"policy": "DeleteCluster"}}), "has rules, or both"),
    (JOB, put("spec.backoffLimit", 1), "backoffLimit never goes with clusterSelector"),
    (QUEUED, put("spec.rayClusterSpec.upgradeStrategy", {"type": "Recreate"}), "upgradeStrategy never goes into a cluster that a RayJob makes"),
    (QUEUED, put("spec.rayClusterSpec.authOptions.enableK8sTokenAuth", True), "tokens of Kubernetes never go"),
    (BY_KUBERAY, put("metadata.name", "a" * 37), "at most 36 characters"),
    (BY_KUBERAY, put("spec.schedule", "TZ=UTC 0 2 * * *"), "a time zone is said by timeZone"),
    (BY_KUBERAY, put("spec.schedule", "0 2 * *"), "is no schedule"),
    (BY_KUBERAY, put("spec.jobTemplate.suspend", True), "suspend never goes with clusterSelector"),
    (CLUSTER, put("spec.rayVersion", None), "a token needs rayVersion"),
    (CLUSTER, put("spec.headGroupSpec.resources", {"CPU": "1"}), "head says its resources twice"),
    (CLUSTER, put(BRANCH + "restartPolicy", "Always"), "branch is restarted beside the autoscaler"),
    (CLUSTER, put("spec.workerGroupSpecs.0.replicas", 900), "branch has replicas out of its bounds"),
    (CLUSTER, put("spec.workerGroupSpecs.0.suspend", True), "branch is suspended, and scaled"),
]


def changed(place: tuple[str, str, str], change: Change) -> tuple[list[Object], Object]:
    folder, kind, name = place
    found = copy.deepcopy(rendered(folder))
    one = named(found, kind, name)
    change(one)
    return found, one


@pytest.mark.parametrize(("place", "change", "said"), SCHEMA)
def test_a_mutation_is_caught_by_a_schema(place, change, said):
    _, one = changed(place, change)
    assert any(said in line for line in schemas.findings(one)), schemas.findings(one)


@pytest.mark.parametrize(("place", "change", "said"), POLICY)
def test_a_mutation_is_caught_by_a_policy(place, change, said):
    found, _ = changed(place, change)
    assert any(said in line for line in policies.findings(found)), policies.findings(found)


@pytest.mark.parametrize(("place", "change", "said"), INSTALLATION)
def test_a_mutation_is_caught_by_what_must_be_there(place, change, said):
    found, _ = changed(place, change)
    assert any(said in line for line in policies.of_installation(found)), policies.of_installation(found)


@pytest.mark.parametrize(("place", "change", "said"), OPERATOR)
def test_a_mutation_is_caught_by_the_operators_rules(place, change, said):
    found, _ = changed(place, change)
    assert any(said in line for line in kuberay.findings(found)), kuberay.findings(found)


def test_a_queue_covers_all_that_its_jobs_ask_for():
    """Kueue never admits a job that asks for a resource which its queue does not name."""
    found = rendered("kueue")
    groups = named(found, "ClusterQueue", "cortex")["spec"]["resourceGroups"]
    covered = {name for group in groups for name in group["coveredResources"]}
    (job,) = [one for one in found if one["kind"] == "RayJob"]
    asked = {name for _, pod in schemas.pod_templates(job) for each in pod["spec"]["containers"] for name in each["resources"]["requests"]}
    assert asked <= covered


def test_a_changed_cluster_is_made_anew_and_a_jobs_own_is_not():
    assert named(rendered("overlays/production"), "RayCluster", "cortex")["spec"]["upgradeStrategy"] == {"type": "Recreate"}
    assert "upgradeStrategy" not in named(rendered("kueue"), "RayJob", "labels")["spec"]["rayClusterSpec"]


def test_a_head_goes_before_other_pods_and_belongs_to_the_whole_cluster(tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, K8S / "priority")
    classes = {one["metadata"]["name"]: one for one in found if one["kind"] == "PriorityClass"}
    assert classes["cortex-head"]["value"] > classes["cortex-node"]["value"] and not any("namespace" in one["metadata"] for one in classes.values())
    pods = schemas.pod_templates(named(found, "RayCluster", "cortex"))
    assert [pod["spec"]["priorityClassName"] for _, pod in pods] == ["cortex-head", "cortex-node", "cortex-node"]


def test_delete_workers_never_goes_with_autoscaling():
    found, one = changed(QUEUED, put("spec.shutdownAfterJobFinishes", False))
    one["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] = True
    one["spec"]["deletionStrategy"] = {"deletionRules": [{"policy": "DeleteWorkers", "condition": {"jobStatus": "FAILED"}}]}
    assert any("DeleteWorkers never goes with autoscaling" in line for line in kuberay.findings(found))


