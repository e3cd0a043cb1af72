"""Do a driver and a node of its cluster fit together, and has the node what the job needs?

Ray speaks between processes of one release alone, and code that travels by value runs on one minor release of Python.
Our own actors speak to each other in structs of one release. Of what they stand on, the packages named here take part
in what passes between processes, or in what a reply comes to: those fit by the part of their version that says so
(https://semver.org, 4 and 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

FITTING: Final = ("anthropic", "msgspec")
"""Packages whose versions matter on both sides."""


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine has. An empty version: it was not told."""

    ray: str = ""
    python: str = ""
    cortex: str = ""
    packages: Mapping[str, str] = {}
    """Versions by distribution; of one that is not there, an empty text."""


def differences(here: Installed, there: Installed, needs: Sequence[str] = ()) -> tuple[str, ...]:
    """What keeps a job from running there, a few words each; empty where nothing does.

    ``needs``: distributions that the job's calls cannot do without. What was not told is not held against anybody.
    """
    found = []
    if _differ(here.ray, there.ray):
        found.append(f"Ray {there.ray}, here {here.ray}")
    if _differ(_parts(here.python, 2), _parts(there.python, 2)):
        found.append(f"Python {there.python}, here {here.python}")
    if _differ(here.cortex, there.cortex):
        found.append(f"cortex {there.cortex}, here {here.cortex}")
    for name in FITTING:
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
    """The part of a version that changes with what it promises: the first, and before 1.0 the second too."""
    return _parts(version, 2 if version.startswith("0.") else 1)
