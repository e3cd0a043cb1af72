"""Message of a driver to its channel: the servers that share a job's work from now on."""

from __future__ import annotations

import msgspec

from cortex.values.limits import Route


class ServersChanged(msgspec.Struct, frozen=True):
    """Servers of a job's own model, after those that it has: the places of these stay."""

    fallbacks: tuple[Route, ...]
    """All servers but the first one."""
    closed: tuple[str, ...]
    """Endpoints of those that get no more calls."""
    wish: str
    """Specification of the model with these servers, for the job's next run."""
