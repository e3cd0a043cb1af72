"""Policies: small questions with pure answers. Leaves that know nothing of K, Ray or models."""

__all__: list[str] = []
OF_CORTEX = True
"""Tells this package from another of its name that hides it."""
