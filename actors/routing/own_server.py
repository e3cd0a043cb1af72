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


def at_server(limits: Limits, endpoint: str, *, given: bool) -> Limits:
    """Return a job's limits at an endpoint. ``given``: the user named the concurrency, which then stays.

    Elsewhere they are returned as they are. At a server of the user's own the number of calls in flight follows its
    answers, and the first answers may be long in coming.
    """
    if not is_own_server(endpoint):
        return limits
    timeout = limits.timeout
    if not timeout.fixed and timeout.first_byte_s < QUEUE_S:
        limits = msgspec.structs.replace(limits, timeout=msgspec.structs.replace(timeout, first_byte_s=QUEUE_S))
    if not given:
        wide = max(limits.concurrency, min(connections_max(), limits.window_rows))
        limits = msgspec.structs.replace(limits, concurrency=wide)
    return limits


def connections_max() -> int:
    """Return the connections that this machine lets a process open, at most ``CALLS_MAX``."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CALLS_MAX if soft < 0 else max(min(CALLS_MAX, soft - _OTHER_FILES), 1)
