"""Looked at first: whether the packages that stand beside this one are ours."""

from __future__ import annotations

import policies


def hides(name: str, places: object) -> ImportError:
    """The error that names what hides one of our packages, and the way out."""
    return ImportError(
        f"{places} hides the package {name} of cortex: rename it, run elsewhere, or take it off the path", name=name
    )


if not getattr(policies, "OF_CORTEX", False):
    raise hides("policies", getattr(policies, "__file__", None) or "a folder named policies")
