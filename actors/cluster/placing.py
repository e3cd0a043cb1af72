"""On which nodes of a cluster an actor may live, where the nodes say what they are for.

A node may carry the label ``cortex/role`` (``ray start --labels``, or the ``labels`` of a worker group in KubeRay):
``control`` for the cortex, ``branch`` for those that make calls, ``worker`` for tools and for what models wrote. In a
cluster where any node carries it, branches and workers live on theirs alone, and wait for one: that is what such a
cluster's firewalls go by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LABEL = "cortex/role"
NODE_LABEL = "ray.io/node-id"
"""Ray puts it on every node itself."""
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


def shapes(
    branches: int, workers: int, nodes: Iterable[Mapping[str, Any]]
) -> tuple[list[dict[str, int]], list[dict[str, str]]]:
    """What Ray's autoscaler is to have room for: a core for each, and the labels of its node."""
    known = list(nodes)
    labels = [selector("branch", known)] * branches + [selector("worker", known)] * workers
    return [{"CPU": 1}] * len(labels), labels
