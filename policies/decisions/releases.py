"""Compatibility of a driver and a node of its cluster: versions, and packages that the job needs.

Ray connects only processes of one release, and code that is pickled by value runs on one minor release of Python.
Cortex's own actors exchange structs of one release. Dependencies that take part in messages between processes or in
replies are compatible if the part of their version that marks incompatible changes is equal (https://semver.org, 4 and
8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class InstalledRelease(msgspec.Struct, frozen=True, kw_only=True):
    """Versions on one machine. An empty version: not reported."""

    ray: str = ""
    python: str = ""
    cortex: str = ""
    packages: Mapping[str, str] = {}
    """Version by distribution; empty text for a distribution that is not installed."""


def differences(
    here: InstalledRelease, there: InstalledRelease, agreeing: Sequence[str], needs: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the reasons why a job cannot run on the node ``there``, a few words each; empty if there are none.

    ``agreeing``: distributions whose versions must be compatible on both sides. ``needs``: distributions that the job's
    calls require. A version that was not reported counts as compatible.
    """
    found = []
    if _differ(here.ray, there.ray):
        found.append(f"Ray {there.ray}, here {here.ray}")
    if _differ(_parts(here.python, 2), _parts(there.python, 2)):
        found.append(f"Python {there.python}, here {here.python}")
    if _differ(here.cortex, there.cortex):
        found.append(f"cortex {there.cortex}, here {here.cortex}")
    for name in agreeing:
        ours, theirs = here.packages.get(name, ""), there.packages.get(name, "")
        if _differ(_compatible(ours), _compatible(theirs)):
            found.append(f"{name} {theirs}, here {ours}")
    missing = [name for name in needs if there.packages.get(name) == ""]
    if missing:
        found.append(f"no {', '.join(missing)}, which this job needs there")
    return tuple(found)


def _differ(ours: str, theirs: str) -> bool:
    return bool(ours and theirs) and ours != theirs


def _parts(version: str, count: int) -> str:
    return ".".join(version.split(".")[:count])


def _compatible(version: str) -> str:
    """The part of a version that changes with incompatible releases: the first number, before 1.0 the first two."""
    return _parts(version, 2 if version.startswith("0.") else 1)
