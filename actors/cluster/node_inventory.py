"""Inventory of the software on each node of a Ray, from a task that runs on each node. Ray is an argument
(``actors.runtime.ray_runtime``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from actors.cluster.bootstrap import code_paths, first_line
from actors.journal.stores import STORES
from actors.providers.registry import PROVIDERS


def agreeing() -> tuple[str, ...]:
    """Return the distributions whose versions must agree on the driver and on every node.

    They take part in messages between processes, or in replies.
    """
    return (*dict.fromkeys(name for row in PROVIDERS.values() for name in row.agreeing), "msgspec")


def packages() -> tuple[str, ...]:
    """Return the distributions that a node is asked about: those that must agree, and those that some jobs need on
    nodes.
    """
    of_providers = dict.fromkeys(name for row in PROVIDERS.values() for name in row.on_nodes)
    return (*agreeing(), *of_providers, *(store.distribution for store in STORES if store.distribution))


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Versions found on one node. An empty field was not reported; ``trouble`` gives the reason. A lost node has
    reported nothing."""

    node: str
    """Ray's id of the node."""
    address: str
    python: str = ""
    ray: str = ""
    cortex: str = ""
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions as in ``policies.decisions.releases.InstalledRelease``; empty if the node could not import cortex."""
    trouble: str = ""
    lost_s: float = 0.0
    """Unix time at which the node was lost; 0 for one that lives."""


def of(
    ray: Any, affinity: Any, join: Callable[[], Any], leave: Callable[[Any], None],
    lost: Callable[[], Mapping[str, tuple[str, float]]], timeout_s: float,
) -> list[NodeReport]:  # fmt: skip
    """Connect to a Ray, ask its nodes, and disconnect. ``lost``: returns the host and the time of each node that is
    missing; they follow the live ones. Raises what ``join`` raises."""
    connection = join()
    try:
        found = taken(ray, affinity, code_paths(), timeout_s)  # first: a node may be declared dead meanwhile
        return found + [NodeReport(node=name, address=host, lost_s=at_s) for name, (host, at_s) in lost().items()]
    finally:
        leave(connection)


def taken(
    ray: Any, affinity: Any, paths: Sequence[str], timeout_s: float, known: Collection[str] = ()
) -> list[NodeReport]:  # fmt: skip
    """Ask all live nodes except the known ones, in parallel. A node that does not answer in time is reported with
    ``trouble``; a node that Ray declares dead meanwhile is left out.

    Ray lists a killed node as alive until its health checks have failed, which takes seconds.
    """
    living = [each for each in _alive(ray).items() if each[0] not in known]
    ask = ray.remote(_make_probe(packages()))
    asked = []
    for node, address in living:
        there = ask.options(num_cpus=0, max_retries=0, scheduling_strategy=affinity(node, soft=False))
        asked.append((there.remote(tuple(paths)), node, address))
    ready, _ = ray.wait([each[0] for each in asked], num_returns=len(asked), timeout=timeout_s)
    found = []
    for reference, node, address in asked:
        if reference not in ready:
            found.append(NodeReport(node=node, address=address, trouble=f"no task ran there within {timeout_s:g} s"))
            continue
        try:
            found.append(NodeReport(node=node, address=address, **ray.get(reference)))
        except Exception as error:  # any error of Ray
            found.append(NodeReport(node=node, address=address, trouble=first_line(error)))
    if any(report.trouble for report in found):
        alive = _alive(ray)
        found = [report for report in found if not report.trouble or report.node in alive]
    return found


def _alive(ray: Any) -> dict[str, str]:
    """Return the address of each node that Ray lists as alive, by node id."""
    return {row["NodeID"]: row.get("NodeManagerAddress", "") for row in ray.nodes() if row["Alive"]}


def finds(ray: Any, there: Any, path: str) -> bool:
    """Return whether the node of the scheduling strategy ``there`` has this path, owned by the user of its processes.
    """

    def found(path: str) -> bool:
        import os

        return os.path.exists(path) and (os.name == "nt" or os.stat(path).st_uid == os.geteuid())

    asked = ray.remote(found).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return bool(ray.get(asked.remote(path)))


def _make_probe(packages: tuple[str, ...]) -> Callable[[tuple[str, ...]], dict[str, Any]]:
    """Return the function that a node runs.

    As a nested function it is pickled by value, so the node does not need this release to run it.
    """

    def told(paths: tuple[str, ...]) -> dict[str, Any]:
        import os
        import platform
        import sys
        from importlib import metadata

        found: dict[str, Any] = {"python": platform.python_version(), "ray": metadata.version("ray")}
        sys.path[:] = dict.fromkeys([*(path for path in paths if os.path.isdir(path)), *sys.path])
        try:
            import cortex
        except Exception as error:
            return {**found, "trouble": f"cortex cannot be imported there: {type(error).__name__}"}
        versions = dict.fromkeys(packages, "")
        for name in packages:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return {**found, "cortex": cortex.__version__, "packages": versions}

    return told
