"""Checks of Ray: its import, and the installed releases on each node of the cluster."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from actors.cluster.compatibility import installed_there, versions
from actors.cluster.node_inventory import agreeing
from actors.common.units import clock
from actors.doctor.checks import DoctorOptions, Finding, ok, warning, wrong
from actors.ports.runtime import ClusterError
from cortex import __version__
from policies.decisions.releases import InstalledRelease, differences

if TYPE_CHECKING:
    from actors.cluster.node_inventory import NodeReport

NODE_S = 15.0
"""Longest time in seconds for a small function on a node, which starts a Python process for it."""


def address_of(asked: DoctorOptions) -> str:
    """Return the address of the Ray that a run would join; empty for a run in this process or in a private Ray."""
    where = asked.cluster or "auto"
    where = asked.environ.get("RAY_ADDRESS", "") if where == "auto" else where
    return "" if where in ("inline", "local") else where


def ray(asked: DoctorOptions) -> Iterator[Finding]:
    """Check Ray on this machine, and on every node."""
    try:
        from actors.runtime.ray_runtime import nodes_of
    except Exception as error:  # a broken installation may raise anything
        text = f"Ray cannot be imported: {type(error).__name__}: {error}"
        yield wrong("ray", text, "pip install --force-reinstall ray; --cluster inline works without it")
        return
    own = metadata.version("ray")
    yield ok("ray", f"Ray {own} can be imported")
    address = address_of(asked)
    if not address:
        return
    try:
        found = asyncio.run(nodes_of(address, asked.environ, NODE_S))
    except ClusterError as error:
        do = "start the cluster, or give its address as --cluster; both sides need the same Python and Ray"
        yield wrong("cluster", str(error), do)
        return
    yield from compared(found, own, address)


def compared(found: list[NodeReport], own_ray: str, address: str) -> Iterator[Finding]:
    """Compare each node with this machine."""
    here = InstalledRelease(
        ray=own_ray, python=platform.python_version(), cortex=__version__, packages=versions(agreeing())
    )
    bad, lost = 0, [node for node in found if node.lost_s]
    found = [node for node in found if not node.lost_s]
    for node in found:
        where = f"node {node.node[:8]} at {node.address}"
        differs = list(differences(here, installed_there(node), agreeing()))
        if node.trouble:
            differs.append(node.trouble)
        if differs:
            bad += 1
            yield wrong("cluster", f"{where}: {'; '.join(differs)}", "install the same releases on every node")
    if not found:
        yield warning("cluster", f"{address} has no live node", "start a node")
    elif not bad:
        releases = f"Ray {own_ray}, Python {'.'.join(here.python.split('.')[:2])}, cortex {__version__}"
        yield ok("cluster", f"{len(found)} node{'s' * (len(found) > 1)} of {address} with {releases}")
    for node in lost:
        text = f"node {node.node[:8]} at {node.address or 'an unknown host'} was lost at {clock(node.lost_s)}"
        yield warning("cluster", text, "jobs go on without it: find what ended it, and start it, or another, again")
