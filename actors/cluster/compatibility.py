"""Whether the nodes of a Ray have what a driver's jobs need there: asked of each node once, and noted there."""

from __future__ import annotations

import contextlib
import platform
import re
import zlib
from collections.abc import Callable, Collection, Sequence
from importlib import metadata
from typing import Protocol

import msgspec

from actors.cluster.node_inventory import NodeReport, agreeing, packages
from actors.journal.stores import store_of
from actors.ports.runtime import ClusterError
from actors.providers.registry import PROVIDERS
from cortex import __version__
from policies.decisions.releases import InstalledRelease, differences

NODES_S = 20.0
"""How long nodes that nobody asked before may take: each starts a Python process for it."""
_SHOWN = 2


class NoteReader(Protocol):
    """What is noted in a cluster."""

    def put(self, name: str, value: bytes) -> None:
        """Have this stand under the name."""

    def found(self, prefix: str) -> dict[str, bytes]:
        """What stands under names that begin so."""


def needs_of(providers: Collection[str], *places: str) -> tuple[str, ...]:
    """Distributions that nodes must have for jobs of these providers, whose journal and limits are at these places."""
    rows = [PROVIDERS[each] for each in sorted(providers) if each in PROVIDERS]
    asked = dict.fromkeys(name for row in rows for name in row.on_nodes)
    stores = dict.fromkeys(store_of(place).distribution for place in places)
    return (*asked, *filter(None, stores))


def versions(names: Collection[str]) -> dict[str, str]:
    """Versions of distributions here; of one that is not there, an empty text."""
    found = dict.fromkeys(names, "")
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def installed_here() -> InstalledRelease:
    """What this machine has."""
    ray, python = metadata.version("ray"), platform.python_version()
    return InstalledRelease(ray=ray, python=python, cortex=__version__, packages=versions(packages()))


def installed_there(report: NodeReport) -> InstalledRelease:
    """What a node has, as it told."""
    return InstalledRelease(ray=report.ray, python=report.python, cortex=report.cortex, packages=report.packages)


def mismatch_line(text: str) -> str:
    """Ray's own words for a head of another release, of five lines, in one; empty for other words."""
    rays, pythons = (re.findall(rf"^\s*{name}: (\S+)", text, re.MULTILINE) for name in ("Ray", "Python"))
    if "Version mismatch" not in text or (len(rays), len(pythons)) != (2, 2):
        return ""
    there, here = (InstalledRelease(ray=ray, python=python) for ray, python in zip(rays, pythons, strict=True))
    return "; ".join(differences(here, there, ())) or f"Python {there.python}, here {here.python}"


def see_fitting(
    cluster: str, here: InstalledRelease, needs: Sequence[str], paths: Sequence[str], living: Collection[str],
    notes: NoteReader,
    ask: Callable[[Collection[str]], list[NodeReport]],
) -> None:  # fmt: skip
    """Raises ``ClusterError``, one line, where a node that lives cannot run what this driver begins.

    ``ask`` asks all nodes but those named. What they told stays noted: a node is asked again only when what it told
    would keep us away, since somebody may have mended it. ``paths``: what of this machine's a node may find, too.
    """
    prefix = f"installed/{zlib.crc32(chr(0).join(paths).encode()):08x}/"
    kept = {name.removeprefix(prefix): _opened(value) for name, value in notes.found(prefix).items()}
    fit = {node for node in living if node in kept and not _wrong(here, needs, kept[node])}
    if fit.issuperset(living):
        return
    wrong = {}
    for report in ask(fit):
        if not report.python:
            continue  # it is busy, or on its way out: whoever is to live there says what is wrong
        notes.put(prefix + report.node, msgspec.msgpack.encode(report))
        if found := _wrong(here, needs, report):
            wrong[report.node] = f"node {report.address or report.node[:8]} has {found}"
    if wrong:
        shown = [wrong[node] for node in sorted(wrong)]
        more = f"; so {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        raise ClusterError(
            f"{cluster} does not fit: {'; '.join(shown[:_SHOWN])}{more}: install the same releases on every node"
        )


def _opened(value: bytes) -> NodeReport:
    try:
        return msgspec.msgpack.decode(value, type=NodeReport)
    except msgspec.DecodeError:  # another release's
        return NodeReport(node="", address="", trouble="another release noted it")


def _wrong(here: InstalledRelease, needs: Sequence[str], report: NodeReport) -> str:
    found = differences(here, installed_there(report), agreeing(), needs)
    return "; ".join(found or ((f"no cortex ({report.trouble})",) if report.trouble else ()))
