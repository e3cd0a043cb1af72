"""Evaluation of NetworkPolicies: whether a packet passes, by the rules of Kubernetes' own documentation.

https://kubernetes.io/docs/concepts/services-networking/network-policies: a pod that no policy selects for a direction is
open in it; one that is selected lets through what some rule of some policy names, and a connection passes when both its
ends let it. An ``ipBlock`` matches addresses outside the cluster's pods alone: plugins differ on addresses of pods.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from tests.manifests.rendering import Object

NAMESPACE_NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class End:
    """End of a connection: a pod by its labels and namespace, or an address when ``address`` is set."""

    labels: dict[str, str] = field(default_factory=dict)
    namespace: str = "cortex"
    address: str = ""


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches everything. Raises ValueError for an unknown operator."""
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions", ()))


def _holds(expression: Object, labels: dict[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values", ())
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    raise ValueError(f"operator {operator} is unknown")


def passes(found: list[Object], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies among these objects let a connection through, at both its ends."""
    policies = [one for one in found if one["kind"] == "NetworkPolicy"]
    return _lets(policies, source, target, "egress", port, protocol) and _lets(
        policies, target, source, "ingress", port, protocol
    )


def _lets(policies: list[Object], own: End, other: End, way: str, port: int, protocol: str) -> bool:
    if own.address:
        return True
    mine = [
        one["spec"]
        for one in policies
        if one["metadata"]["namespace"] == own.namespace
        and way.capitalize() in one["spec"]["policyTypes"]
        and selects(one["spec"]["podSelector"], own.labels)
    ]
    peers = "to" if way == "egress" else "from"
    return not mine or any(
        _names(rule.get(peers), other, own.namespace) and _takes(rule.get("ports"), port, protocol)
        for spec in mine
        for rule in spec.get(way) or ()
    )


def _names(peers: list[Object] | None, other: End, namespace: str) -> bool:
    return not peers or any(_is(peer, other, namespace) for peer in peers)


def _is(peer: Object, other: End, namespace: str) -> bool:
    if "ipBlock" in peer:
        return bool(other.address) and _within(peer["ipBlock"], other.address)
    if other.address:
        return False
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], {NAMESPACE_NAME: other.namespace}):
            return False
    elif other.namespace != namespace:
        return False
    return selects(peer.get("podSelector", {}), other.labels)


def _within(block: Object, address: str) -> bool:
    own = ipaddress.ip_address(address)

    def holds(cidr: str) -> bool:
        network = ipaddress.ip_network(cidr)
        return network.version == own.version and own in network

    return holds(block["cidr"]) and not any(holds(cidr) for cidr in block.get("except", ()))


def _takes(ports: list[Object] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        each.get("protocol", "TCP") == protocol
        and ("port" not in each or each["port"] <= port <= each.get("endPort", each["port"]))
        for each in ports
    )
