"""Traffic that must pass, and traffic that must not, by the policies as they are rendered: the base and each cloud."""

from __future__ import annotations

import copy

import pytest

from tests.manifests import kuberay, policies, schemas
from tests.manifests.rendering import K8S, Object, named, rendered
from tests.manifests.test_policies import put
from tests.manifests.test_valid import with_components
from tests.manifests.traffic import End, passes, selects

CLOUDS = ["gke", "eks", "aks", "openshift"]
KIND = "app.kubernetes.io/component"


def own(kind: str) -> End:
    return End({KIND: kind, "app.kubernetes.io/part-of": "cortex"})


HEAD, BRANCH, WORKER, SUBMITTER, COLLECTOR = (own(kind) for kind in ("head", "branch", "worker", "submitter", "collector"))
OURS = {"head": HEAD, "branch": BRANCH, "worker": WORKER, "submitter": SUBMITTER, "collector": COLLECTOR}


def at(address: str) -> End:
    return End(address=address)


KUBE_DNS = End({"k8s-app": "kube-dns"}, "kube-system")
NODE_DNS = End({"k8s-app": "node-local-dns"}, "kube-system")
OPENSHIFT_DNS = End({"dns.operator.openshift.io/daemonset-dns": "default"}, "openshift-dns")
OPERATOR = End({KIND: "kuberay-operator"}, "kuberay")
PROMETHEUS = End({"app.kubernetes.io/name": "prometheus"}, "monitoring")
STRANGER = End({"app": "shop"}, "shop")
PROVIDER, PROVIDER_6 = at("160.79.104.10"), at("2607:6bc0::10")
METADATA = at("169.254.169.254")

NAME_SERVERS: dict[str, list[tuple[End, int]]] = {
    "gke": [(NODE_DNS, 53), (at("169.254.20.10"), 53), (METADATA, 53)],
    "eks": [(at("10.100.0.10"), 53), (at("172.20.0.10"), 53), (at("169.254.20.10"), 53)],
    "aks": [(at("169.254.10.10"), 53), (at("169.254.10.11"), 53)],
    "openshift": [(OPENSHIFT_DNS, 5353)],
}
"""Where the name servers of a cloud are asked, beside the pods ``kube-dns``."""

IDENTITIES: dict[str, list[tuple[End, int]]] = {
    "gke": [(METADATA, 80), (METADATA, 8080), (at("169.254.169.252"), 987), (at("169.254.169.252"), 988)],
    "eks": [(at("169.254.170.23"), 80), (at("fd00:ec2::23"), 80)],
    "aks": [],
    "openshift": [],
}
"""Where a pod gets the credentials of its account; AKS, and IRSA of EKS, have it at a public address on 443."""

PASS = [
    *((each, KUBE_DNS, 53, protocol) for each in OURS.values() for protocol in ("UDP", "TCP")),
    *((each, other, 10002, "TCP") for each in (HEAD, BRANCH, WORKER) for other in (HEAD, BRANCH, WORKER)),
    *((each, to, 443, "TCP") for each in (HEAD, BRANCH) for to in (PROVIDER, PROVIDER_6)),
    (SUBMITTER, HEAD, 8265, "TCP"),
    (OPERATOR, HEAD, 8265, "TCP"),
    *((HEAD, at(address), port, "TCP") for address in ("10.0.0.1", "172.16.0.2", "192.168.1.1", "fd12::1") for port in (443, 6443)),
]
REFUSED = [
    *((WORKER, to, port, "TCP") for to in (PROVIDER, PROVIDER_6, at("10.0.0.1"), at("fd12::1")) for port in (53, 80, 443)),
    *((each, to, port, "TCP") for each in (HEAD, BRANCH) for to in (PROVIDER, PROVIDER_6) for port in (22, 53, 80, 5432)),
    *((BRANCH, at(address), port, "TCP") for address in ("10.0.0.1", "172.16.0.2", "192.168.1.1", "100.64.0.1", "fd12::1") for port in (443, 6443)),
    *((SUBMITTER, to, 443, "TCP") for to in (PROVIDER, at("10.0.0.1"))),
    *((SUBMITTER, to, 8265, "TCP") for to in (BRANCH, WORKER)),
    *((STRANGER, to, port, "TCP") for to in (HEAD, BRANCH, WORKER) for port in (6379, 8080, 8265, 9465, 10001)),
    *((PROMETHEUS, HEAD, port, "TCP") for port in (6379, 8265, 10001)),
    *((each, STRANGER, port, "TCP") for each in OURS.values() for port in (53, 80, 443)),
]
SECRET_PLACES = sorted({(end.address, port) for places in IDENTITIES.values() for end, port in places} | {("169.254.170.2", 80), ("168.63.129.16", 80)})
"""Every cloud's way to credentials: nobody's but of one's own cloud, and then not the workers'."""


def wrong(found: list[Object], rows: list[tuple[End, End, int, str]], wanted: bool) -> list[tuple[End, End, int, str]]:
    return [row for row in rows if passes(found, row[0], row[1], row[2], row[3]) is not wanted]


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Object]]:
    """The production overlay by the cloud's component in it; under ``base``, with none."""
    found = {"base": rendered("overlays/production")}
    for cloud in CLOUDS:
        found[cloud] = with_components(K8S / "overlays" / "production", tmp_path_factory.mktemp(cloud), K8S / "clouds" / cloud)
    return found


@pytest.mark.parametrize("cloud", ["base", *CLOUDS])
def test_what_is_needed_passes_and_nothing_else(cloud, clouds):
    assert wrong(clouds[cloud], PASS, True) == []
    assert wrong(clouds[cloud], [*REFUSED], False) == []
    assert all(passes(clouds[cloud], PROMETHEUS, to, port) for to, port in ((BRANCH, 8080), (HEAD, 8080), (HEAD, 9465)))
    assert passes(clouds[cloud], WORKER, COLLECTOR, 4318)


@pytest.mark.parametrize("cloud", ["base", *CLOUDS])
def test_a_name_server_is_reached_in_its_own_cloud_and_on_its_port_alone(cloud, clouds):
    for other, places in NAME_SERVERS.items():
        for server, port in places:
            here = (server, port) in NAME_SERVERS.get(cloud, ())
            rows = [(each, server, port, protocol) for each in OURS.values() for protocol in ("UDP", "TCP")]
            assert wrong(clouds[cloud], rows, here) == [], (other, server)
    assert wrong(clouds[cloud], [(WORKER, server, port, "TCP") for server, _ in NAME_SERVERS.get(cloud, ()) for port in (22, 80, 443, 8080)], False) == []


@pytest.mark.parametrize("cloud", ["base", *CLOUDS])
def test_credentials_of_the_cloud_are_the_heads_and_the_branches_alone(cloud, clouds):
    mine = {(end.address, port) for end, port in IDENTITIES.get(cloud, ())}
    for address, port in SECRET_PLACES:
        for kind, each in OURS.items():
            may = (address, port) in mine and kind in ("head", "branch")
            assert passes(clouds[cloud], each, at(address), port) is may, (kind, address, port)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_cloud_keeps_the_policies_and_the_operators_rules(cloud, clouds):
    found = clouds[cloud]
    assert policies.findings(found) + policies.of_installation(found) + kuberay.findings(found) == []


@pytest.mark.parametrize("component", ["postgresql", "rocksdb", "external-secrets", "priority", "tend", "tls", "clouds/spot"])
def test_a_component_opens_no_way_but_its_own(component, tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, K8S / component)
    assert wrong(found, PASS, True) + wrong(found, REFUSED, False) == []
    database = [(HEAD, at(address), 5432, "TCP") for address in ("10.1.2.3", "172.20.0.3", "192.168.3.4", "fd12::5")]
    assert wrong(found, database, component == "postgresql") == []
    assert wrong(found, [(each, to, 5432, "TCP") for each in (BRANCH, WORKER, SUBMITTER) for _, to, _, _ in database], False) == []


@pytest.mark.parametrize("folder", ["schedules", "schedules/raycronjob", "jobs"])
def test_who_submits_reaches_the_dashboard_and_nothing_else(folder, clouds):
    for one in rendered(folder):
        for _, pod in schemas.pod_templates(one):
            submitter = End(pod["metadata"]["labels"])
            assert passes(clouds["base"], submitter, HEAD, 8265) and passes(clouds["base"], submitter, KUBE_DNS, 53, "UDP")
            rows = [(submitter, to, port, "TCP") for to in (PROVIDER, at("10.0.0.1"), HEAD, BRANCH, COLLECTOR) for port in (443, 6379, 10001)]
            assert wrong(clouds["base"], rows, False) == []


def test_private_endpoints_are_opened_for_their_subnet_alone(tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, K8S / "clouds" / "endpoints")
    (block,) = [peer["ipBlock"]["cidr"] for rule in named(found, "NetworkPolicy", "private-endpoints")["spec"]["egress"] for peer in rule["to"]]
    first = block.partition("/")[0]
    assert wrong(found, [(each, at(first), 443, "TCP") for each in (HEAD, BRANCH)], True) == []
    assert wrong(found, [(WORKER, at(first), 443, "TCP"), (BRANCH, at(first), 80, "TCP"), (BRANCH, at("10.20.31.0"), 443, "TCP")], False) == []


@pytest.mark.parametrize("cloud", ["base", *CLOUDS])
def test_accounts_that_get_rights_are_none_of_the_workers(cloud, clouds):
    cluster = named(clouds[cloud], "RayCluster", "cortex")
    accounts = {name: pod["spec"]["serviceAccountName"] for name, pod in schemas.pod_templates(cluster)}
    assert accounts == {"cortex-head": "cortex-head", "cortex-branch": "cortex-branch", "cortex-worker": "cortex-node"}
    assert not named(clouds[cloud], "ServiceAccount", "cortex-node")["metadata"].get("annotations")
    for name, pod in schemas.pod_templates(cluster):
        entitled = "azure.workload.identity/use" in pod["metadata"]["labels"]
        assert entitled is (cloud == "aks" and name != "cortex-worker")
    for name in ("cortex-head", "cortex-branch"):
        annotations = named(clouds[cloud], "ServiceAccount", name)["metadata"].get("annotations", {})
        assert ("azure.workload.identity/client-id" in annotations) is (cloud == "aks")


def test_googles_collectors_reach_the_metrics_alone(tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, K8S / "clouds" / "gke" / "monitoring")
    own_name = {"app.kubernetes.io/name": "collector"}
    rows = [(End(own_name, space), each, port, "TCP") for space in ("gke-gmp-system", "gmp-system") for each, port in ((HEAD, 8080), (HEAD, 9465), (BRANCH, 8080), (WORKER, 8080))]
    assert wrong(found, rows, True) == []
    assert wrong(found, [(End(own_name, "shop"), HEAD, 8080, "TCP"), (End(own_name, "gmp-system"), HEAD, 8265, "TCP")], False) == []


def test_a_role_by_annotation_is_the_heads_and_the_branches(tmp_path):
    found = with_components(K8S / "overlays" / "production", tmp_path, K8S / "clouds" / "eks" / "irsa")
    roles = {one["metadata"]["name"] for one in found if "eks.amazonaws.com/role-arn" in one["metadata"].get("annotations", {})}
    assert roles == {"cortex-head", "cortex-branch"}


def test_who_has_no_key_makes_no_secret_and_no_other_pod_sees_one(clouds):
    for found in clouds.values():
        for name, pod in schemas.pod_templates(named(found, "RayCluster", "cortex")):
            keys = [each["secret"] for each in pod["spec"]["volumes"] if each.get("secret", {}).get("secretName") == "cortex-provider"]
            assert [key.get("optional") for key in keys] == ([True] if name == "cortex-head" else [])


def test_disk_space_on_autopilot_is_asked_for_and_fits_a_pod(clouds):
    """10 GiB a pod at most, of which the autoscaler's container and that of the ends of jobs take less than 1 GiB."""
    for _, pod in schemas.pod_templates(named(clouds["gke"], "RayCluster", "cortex")):
        asked = [each["resources"][kind]["ephemeral-storage"] for each in pod["spec"]["containers"] for kind in ("requests", "limits")]
        assert asked[:2] == ["8Gi", "8Gi"] and set(asked[2:]) <= {"128Mi"}


MUTATIONS = [
    ("deny", put("spec.podSelector", {"matchLabels": {"a": "b"}}), PROMETHEUS, SUBMITTER, 80),
    ("dns-gke", put("spec.egress.0.ports.0", {"protocol": "TCP", "port": 80}), WORKER, METADATA, 80),
    ("dns-gke", put("spec.egress.0.ports", None), WORKER, METADATA, 80),
    ("identity-gke", put("spec.podSelector.matchExpressions.0.values.2", "worker"), WORKER, METADATA, 80),
    ("identity-gke", put("spec.podSelector", {}), COLLECTOR, at("169.254.169.252"), 988),
    ("provider", put("spec.egress.0.to.0.ipBlock.except.3", "169.254.0.0/32"), BRANCH, METADATA, 443),
    ("provider", put("spec.egress.0.ports.0.endPort", 6443), BRANCH, PROVIDER, 5432),
    ("cluster", put("spec.ingress.0.from", None), STRANGER, BRANCH, 6379),
    ("head-dashboard", put("spec.ingress.0.from.1.podSelector", None), STRANGER, HEAD, 8265),
]


@pytest.mark.parametrize(("name", "change", "source", "target", "port"), MUTATIONS)
def test_a_way_that_is_opened_too_far_is_seen(name, change, source, target, port, clouds):
    found = copy.deepcopy(clouds["gke"])
    assert not passes(found, source, target, port)
    change(named(found, "NetworkPolicy", name))
    assert passes(found, source, target, port)


SELECTORS = [
    ({}, True),
    ({"matchLabels": {"a": "1"}}, True),
    ({"matchLabels": {"a": "2"}}, False),
    ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
    ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
    ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
]


@pytest.mark.parametrize(("selector", "wanted"), SELECTORS)
def test_a_selector_means_what_kubernetes_says(selector, wanted):
    assert selects(selector, {"a": "1"}) is wanted
