"""Names of pools: what a provider limits together."""

from __future__ import annotations

from actors.providers.registry import of_endpoint
from policies.failures.route_choice import pool_name


def pool_of(endpoint: str, credential: str, model: str) -> str:
    """Return the name of the pool that a route draws on, by the rules of its provider. ``credential`` is a
    fingerprint."""
    return pool_name(endpoint, credential, model, each_model=of_endpoint(endpoint).limits_each_model)
