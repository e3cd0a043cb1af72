"""On which nodes of a cluster an actor may live, where the nodes say what they are for.

A node may carry the label ``cortex/role`` (``ray start --labels``, or the ``labels`` of a worker group in KubeRay):
``control`` for the cortex, ``branch`` for those that make calls, ``worker`` for tools and for what models wrote. In a
cluster where any node carries it, branches and workers live on theirs alone, and wait for one: that is what such a
cluster's firewalls go by.

A channel whose journal is on a disk lives where the disk is. A host that comes back has another node than before: so
the channel is tied to the address of its host, which Ray knows as a resource, and waits until that is there again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

LABEL = "cortex/role"
NODE_LABEL = "ray.io/node-id"
"""Ray puts it on every node itself."""
_HOST = "node:"
"""Before the address of its host: a resource that Ray gives every node, 1 of it."""
_SHARE = 0.0001
"""The least that Ray counts: there is room for 10,000 channels on a host."""
_WAITS = ("PENDING_CREATION", "RESTARTING")
"""States in which Ray has an actor that has no process."""
ROLES = {"cortex": ("control",), "channel": ("channel", "control"), "branch": ("branch",), "worker": ("worker",)}
"""What the node of an actor is labelled with: the first that any node has. A channel is placed so where its journal is
on no node's disk, else where that disk is."""


def selector(role: str, nodes: Iterable[Mapping[str, Any]], avoid: Sequence[str] = ()) -> dict[str, str]:
    """The labels that a node must carry to take an actor of a role; empty where any will do.

    ``nodes`` as Ray lists them. Those to ``avoid`` are passed over as long as there is another.
    """
    living = [node for node in nodes if node["Alive"]]
    labelled = {node["NodeID"]: (node.get("Labels") or {}).get(LABEL) for node in living}
    if role not in ROLES or not any(labelled.values()):
        return {}
    label = next((one for one in ROLES[role] if one in labelled.values()), "")
    if not label and role in ("cortex", "channel"):
        return {}  # whoever labelled the nodes thought of branches and workers alone
    label = label or ROLES[role][0]
    own = [node for node, one in labelled.items() if one == label]
    found = {LABEL: label}
    if avoid and set(own) - set(avoid):
        found[NODE_LABEL] = f"!in({','.join(sorted(avoid))})"
    return found


def turn_of(name: str, nodes: Iterable[Mapping[str, Any]], avoid: Sequence[str] = ()) -> str:
    """The node whose turn it is: actors of a role take nodes in turns, by the numbers in their names. Empty where there
    is one node, or none but those to ``avoid``."""
    living = sorted(node["NodeID"] for node in nodes if node["Alive"])
    well = [node for node in living if node not in avoid]
    number = name.rpartition(":")[2]
    turn = int(number) if number.isdecimal() else crc32(name.encode())
    return well[turn % len(well)] if well and len(living) > 1 else ""


def in_turn(
    name: str, nodes: Iterable[Mapping[str, Any]], labels: dict[str, str], avoid: Sequence[str] = ()
) -> dict[str, Any]:
    """What Ray is told so that an actor lives on the node whose turn it is, of those with its role's ``labels``; and on
    any other of those where that one has gone.

    Ray's own SPREAD puts two actors that need no resources on one node as often as not, and to a soft affinity it pays
    no heed where no resource is asked for (2.60: eight on four nodes came to 0 3 0 3 0 3 0 1). To a node's label it
    does.
    """
    own = [node for node in nodes if LABEL not in labels or (node.get("Labels") or {}).get(LABEL) == labels[LABEL]]
    turn = turn_of(name, own, avoid)
    if not turn:
        return {"label_selector": labels or None}
    return {"label_selector": {**labels, NODE_LABEL: turn}, "fallback_strategy": [{"label_selector": labels}]}


def shapes(
    branches: int, workers: int, nodes: Iterable[Mapping[str, Any]]
) -> tuple[list[dict[str, int]], list[dict[str, str]]]:
    """What Ray's autoscaler is to have room for: a core for each, and the labels of its node."""
    known = list(nodes)
    labels = [selector("branch", known)] * branches + [selector("worker", known)] * workers
    return [{"CPU": 1}] * len(labels), labels


def host_address(node: str, nodes: Iterable[Mapping[str, Any]]) -> str:
    """The address of a node's host, where an actor can be tied to it; else empty."""
    for each in nodes:
        if each["NodeID"] == node and _HOST + each["NodeManagerAddress"] in each["Resources"]:
            return str(each["NodeManagerAddress"])
    return ""


def tied(address: str) -> dict[str, float]:
    """The resource that ties an actor to the host of an address."""
    return {_HOST + address: _SHARE} if address else {}


def awaited(state: str, home: str, nodes: Iterable[Mapping[str, Any]]) -> str:
    """The address of the host that an actor waits for; empty where it lives, is dead, or may live now.

    ``state``: as Ray has the actor; ``home``: the host that it is tied to, if any.
    """
    there = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    return home if state in _WAITS and home not in there else ""
