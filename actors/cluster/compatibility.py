"""Check that the nodes of a Ray have the software that a driver's jobs need. Each node is asked once; answers are
stored.
"""

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
"""Seconds that nodes may take to answer the first question: each starts a Python process for it."""
_SHOWN = 2


class NoteReader(Protocol):
    """Interface of the notes of a cluster."""

    def put(self, name: str, value: bytes) -> None:
        """Store a value under a name."""

    def found(self, prefix: str) -> dict[str, bytes]:
        """Return the values whose names begin with the prefix, by name."""


def needs_of(providers: Collection[str], *places: str) -> tuple[str, ...]:
    """Return the distributions that nodes must have for jobs of these providers, with journal and limits at these
    places.
    """
    rows = [PROVIDERS[each] for each in sorted(providers) if each in PROVIDERS]
    asked = dict.fromkeys(name for row in rows for name in row.on_nodes)
    stores = dict.fromkeys(store_of(place).distribution for place in places)
    return (*asked, *filter(None, stores))


def versions(names: Collection[str]) -> dict[str, str]:
    """Return the versions of distributions on this machine; an empty text for a distribution that is not installed."""
    found = dict.fromkeys(names, "")
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def installed_here() -> InstalledRelease:
    """Return the versions of Ray, Python, cortex and packages on this machine."""
    ray, python = metadata.version("ray"), platform.python_version()
    return InstalledRelease(ray=ray, python=python, cortex=__version__, packages=versions(packages()))


def installed_there(report: NodeReport) -> InstalledRelease:
    """Return the versions on a node, as the node reported them."""
    return InstalledRelease(ray=report.ray, python=report.python, cortex=report.cortex, packages=report.packages)


def mismatch_line(text: str) -> str:
    """Condense Ray's five-line message about a head of another release to one line; empty for any other message."""
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
    """Check that every live node can run the jobs of this driver. Raises ``ClusterError``, one line, if one cannot.

    ``ask`` asks all nodes except the named ones. Answers are stored in ``notes``: a node is asked again only if its
    stored answer would refuse this driver, since the node may have been repaired. ``paths``: folders of this machine
    that a node may have too.
    """
    prefix = f"installed/{zlib.crc32(chr(0).join(paths).encode()):08x}/"
    kept = {name.removeprefix(prefix): _opened(value) for name, value in notes.found(prefix).items()}
    fit = {node for node in living if node in kept and not _wrong(here, needs, kept[node])}
    if fit.issuperset(living):
        return
    wrong = {}
    for report in ask(fit):
        if not report.python:
            continue  # the node is busy or leaving: an actor started there reports what is missing
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
