"""Choice of the node for an actor, by the labels of the nodes.

A node may carry the label ``cortex/role`` (``ray start --labels``, or the ``labels`` of a worker group in KubeRay):
``control`` for the cortex, ``branch`` for branches, which make calls, ``worker`` for tools and for code written by
models. In a cluster where any node carries the label, branches and workers run only on nodes labelled for them, and
wait for such a node: the firewalls of such a cluster depend on it.

A channel whose journal is on a disk runs on the host of the disk. A host that comes back is a new node for Ray.
Therefore the channel is tied to the address of its host, which Ray knows as a resource, and waits until that address is
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

from cortex.scheduler import lost_nodes
from cortex.scheduler.state import LostNode

LABEL = "cortex/role"
NODE_LABEL = "ray.io/node-id"
"""Label with the node's id, set by Ray on every node."""
_HOST = "node:"
"""Prefix of the resource named by a host's address. Ray gives every node 1 of it."""
_SHARE = 0.0001
"""Smallest amount of a resource that Ray counts: 10,000 channels fit on a host."""
_WAITS = ("PENDING_CREATION", "RESTARTING")
"""States of an actor without a process."""
ROLES = {"cortex": ("control",), "channel": ("channel", "control"), "branch": ("branch",), "worker": ("worker",)}
"""Labels of the nodes of each role, in order of preference: the first that any node carries is used. A channel is
placed by label only if its journal is on no node's disk; else it is placed on the host of that disk."""


def selector(role: str, nodes: Iterable[Mapping[str, Any]], avoid: Sequence[str] = ()) -> dict[str, str]:
    """Return the labels that a node must carry for an actor of a role; empty if any node will do.

    ``nodes`` as Ray lists them. Nodes in ``avoid`` are excluded if another labelled node exists.
    """
    living = [node for node in nodes if node["Alive"]]
    labelled = {node["NodeID"]: (node.get("Labels") or {}).get(LABEL) for node in living}
    if role not in ROLES or not any(labelled.values()):
        return {}
    label = next((one for one in ROLES[role] if one in labelled.values()), "")
    if not label and role in ("cortex", "channel"):
        return {}  # the labels were made for branches and workers only
    label = label or ROLES[role][0]
    own = [node for node, one in labelled.items() if one == label]
    found = {LABEL: label}
    if avoid and set(own) - set(avoid):
        found[NODE_LABEL] = f"!in({','.join(sorted(avoid))})"
    return found


def turn_of(name: str, nodes: Iterable[Mapping[str, Any]], avoid: Sequence[str] = ()) -> str:
    """Return the node for an actor: actors of a role are spread over the nodes by the numbers in their names.

    Empty if there is only one node, or all are in ``avoid``.
    """
    living = sorted(node["NodeID"] for node in nodes if node["Alive"])
    well = [node for node in living if node not in avoid]
    number = name.rpartition(":")[2]
    turn = int(number) if number.isdecimal() else crc32(name.encode())
    return well[turn % len(well)] if well and len(living) > 1 else ""


def in_turn(
    name: str, nodes: Iterable[Mapping[str, Any]], labels: dict[str, str], avoid: Sequence[str] = ()
) -> dict[str, Any]:
    """Return Ray's options that place an actor on its node by ``turn_of``, among the nodes with its role's ``labels``,
    or on any other of those if that node has gone.

    Ray's own SPREAD often puts two actors that need no resources on the same node, and Ray ignores a soft affinity if
    no resource is requested (2.60: eight actors on four nodes gave 0 3 0 3 0 3 0 1). Ray respects a node's label.
    """
    own = [node for node in nodes if LABEL not in labels or (node.get("Labels") or {}).get(LABEL) == labels[LABEL]]
    turn = turn_of(name, own, avoid)
    if not turn:
        return {"label_selector": labels or None}
    return {"label_selector": {**labels, NODE_LABEL: turn}, "fallback_strategy": [{"label_selector": labels}]}


def shapes(
    branches: int, workers: int, nodes: Iterable[Mapping[str, Any]]
) -> tuple[list[dict[str, int]], list[dict[str, str]]]:
    """Return the request to Ray's autoscaler: one core for each branch and worker, and the labels of its node."""
    known = list(nodes)
    labels = [selector("branch", known)] * branches + [selector("worker", known)] * workers
    return [{"CPU": 1}] * len(labels), labels


def host_address(node: str, nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return the address of a node's host if an actor can be tied to it; else empty."""
    for each in nodes:
        if each["NodeID"] == node and _HOST + each["NodeManagerAddress"] in each["Resources"]:
            return str(each["NodeManagerAddress"])
    return ""


def host_name(node: Any) -> str:
    """Return the name of the pod or host that a node is, of Ray's record of it (``GcsNodeInfo``).

    On Kubernetes ``instance_id`` is the pod's name: Ray reads it from ``RAY_CLOUD_INSTANCE_ID``
    (``src/ray/common/constants.h``), which KubeRay sets to ``metadata.name`` by the downward API
    (``ray-operator/controllers/ray/common/pod.go``). Launchers of virtual machines set it to the id of the instance.
    """
    return str(node.instance_id or node.node_manager_hostname)


def was_ended(node: Any) -> bool:
    """Return whether a dead node was ended on purpose, of Ray's record of it (``GcsNodeInfo``).

    Ray's ``NodeDeathInfo`` (``src/ray/protobuf/gcs.proto``) says so of a drain by the autoscaler, and of a raylet that
    received SIGTERM (``src/ray/raylet/main.cc``), as from ``ray stop`` and for a pod that is deleted or scaled down. A
    node that is killed, or stops answering, has ``UNEXPECTED_TERMINATION``.
    """
    info = node.death_info
    return str(info.DESCRIPTOR.enum_types_by_name["Reason"].values_by_number[info.reason].name) in _ON_PURPOSE


_ON_PURPOSE = {"EXPECTED_TERMINATION", "AUTOSCALER_DRAIN_PREEMPTED", "AUTOSCALER_DRAIN_IDLE"}


def lost_since(nodes: Mapping[str, Any], since_s: float) -> dict[str, tuple[str, float]]:
    """Return the nodes that were lost since a Unix time, the earliest first: host and Unix time, by node.

    ``nodes``: Ray's records (``GcsNodeInfo``). The head sets ``end_time_ms`` when it gives a node up
    (``GcsNodeManager``), and keeps 1,000 of dead nodes (``maximum_gcs_dead_node_cached_count``). A host on which
    another node began later is back: one for each such node.
    """
    dead = {name: node for name, node in nodes.items() if node.end_time_ms}
    lives = [node for name, node in nodes.items() if name not in dead]
    found = {}
    for name, node in sorted(dead.items(), key=lambda each: (each[1].end_time_ms, each[0])):
        host = host_name(node)
        back = [one for one in lives if host and host_name(one) == host and one.start_time_ms >= node.end_time_ms]
        if back:
            lives.remove(back[0])
        elif node.end_time_ms >= since_s * 1000 and not was_ended(node):
            found[name] = (host, node.end_time_ms / 1000)
    return found


def missing(nodes: Mapping[str, Any], now_s: float) -> dict[str, tuple[str, float]]:
    """Return the lost nodes that are told at this Unix time (``cortex.scheduler.lost_nodes``), as ``lost_since`` does:
    what Ray's records say came and went is told over."""
    came = [(node.start_time_ms, True, name) for name, node in nodes.items()]
    went = [(node.end_time_ms, False, name) for name, node in nodes.items() if node.end_time_ms]
    lost: dict[str, LostNode] = {}
    for at_ms, comes, name in sorted(came + went):
        node, at_s = nodes[name], at_ms / 1000
        lost_nodes.forget(lost, at_s)
        if comes:
            lost_nodes.replace(lost, lost_nodes.come_back(lost, {name: host_name(node)}))
        elif not was_ended(node):
            lost_nodes.lose(lost, name, host_name(node), at_s, at_s)
    lost_nodes.forget(lost, now_s)
    return {name: (host_name(nodes[name]), one.at_s) for name, one in lost.items()}


def tied(address: str) -> dict[str, float]:
    """Return the resource request that ties an actor to the host of an address."""
    return {_HOST + address: _SHARE} if address else {}


def awaited(state: str, host: str, nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return the address of the host that an actor waits for; empty if the actor is alive or dead, or its host is
    there.

    ``state``: Ray's state of the actor; ``host``: address of the host that the actor is tied to, or empty.
    """
    there = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    return host if state in _WAITS and host not in there else ""
