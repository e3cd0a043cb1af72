"""Detection of a user's folder that shadows one of this project's packages: Python imports the first of a name."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

PACKAGES = ("actors", "cortex", "policies")
HERE = Path(__file__).resolve().parents[2]
"""Folder that contains the project's packages."""


def hidden_line(folder: Path = HERE) -> str:
    """Return one line that names the folder that shadows a package, and what to do; empty if there is none."""
    for name in PACKAGES:
        place = _place(importlib.util.find_spec(name))
        if place is None:
            return f"the package {name} is missing beside {folder / 'actors'}: install cortex-bounded-calls again"
        if place.parent != folder:
            return (
                f"{place} hides the package {name} of cortex (in {folder}): "
                f"rename it, run elsewhere, or take {place.parent} off PYTHONPATH"
            )
    return ""


def _place(spec: ModuleSpec | None) -> Path | None:
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None
