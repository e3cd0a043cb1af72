"""Import guard: fail early if another top-level package shadows one of Cortex's own."""

from __future__ import annotations

import policies


def hides(name: str, places: object) -> ImportError:
    """Return the error that names the shadowing package, and what to do."""
    return ImportError(
        f"{places} hides the package {name} of cortex: rename it, run elsewhere, or take it off the path", name=name
    )


if not getattr(policies, "OF_CORTEX", False):
    raise hides("policies", getattr(policies, "__file__", None) or "a folder named policies")
