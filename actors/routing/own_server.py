"""Limits of a job at a server of the user's own, which may queue calls (``policies.limits.queueing``)."""

from __future__ import annotations

from typing import Final

import msgspec

from actors.providers.registry import is_own_server
from cortex.values.limits import Limits
from policies.failures.timeout import QUEUE_S

CALLS_MAX: Final = 2_048
"""Calls in flight at most where the user names no limit: twice the sequences that vLLM runs at once on large GPUs
(``max_num_seqs``: 256, or 1,024)."""
METRICS_OPTION: Final = "--metrics-from"
"""Option that names the metrics of such a server."""
_OTHER_FILES: Final = 150
"""File descriptors of a run beside its connections."""


def at_server(limits: Limits, endpoint: str, *, given: bool, servers: int = 1) -> Limits:
    """Return a job's limits at an endpoint. ``given``: the user named the concurrency, which then stays; ``servers``:
    the number of servers that share the work.

    Elsewhere they are returned as they are. At a server of the user's own the number of calls in flight follows its
    answers, and the first answers may be long in coming.
    """
    if not is_own_server(endpoint):
        return limits
    timeout = limits.timeout
    if not timeout.fixed and timeout.first_byte_s < QUEUE_S:
        limits = msgspec.structs.replace(limits, timeout=msgspec.structs.replace(timeout, first_byte_s=QUEUE_S))
    if not given:
        most = connections_max(servers)
        window_rows = limits.window_rows if servers == 1 else max(limits.window_rows, most)
        wide = max(limits.concurrency, min(most, window_rows))
        limits = msgspec.structs.replace(limits, concurrency=wide, window_rows=window_rows)
    return limits


def connections_max(servers: int = 1) -> int:
    """Return the connections that this machine lets a process open, at most ``CALLS_MAX`` to each server."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = CALLS_MAX * servers
    return most if soft < 0 else max(min(most, soft - _OTHER_FILES), 1)
