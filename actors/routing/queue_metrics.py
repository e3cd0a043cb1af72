"""Look at the metrics of a server of the user's own that tell how many calls wait, before a job relies on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from actors.providers.credentials.account import credential_of, endpoint_named
from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.registry import is_own_server
from actors.routing.model_spec import ModelSpec

if TYPE_CHECKING:
    from actors.providers.transport.server_load import MetricsReading

TIMEOUT_S: Final = 5.0
"""Longest wait for an answer, in seconds."""
NO_METRICS: Final = (
    "name the server's own metrics, not those of a gateway in front of it; SGLang has them with --enable-metrics, "
    "llama.cpp with --metrics"
)
"""Advice where the metrics that a user named tell nothing of a queue."""


async def queue_metrics(
    spec: ModelSpec, credential: Credential, timeout_s: float = TIMEOUT_S
) -> tuple[MetricsReading, ...]:
    """Return what the metrics of a specification's server tell: those that it names, else those at the root of its
    address; nothing for a provider's service, which tells its limits otherwise."""
    if not is_own_server(endpoint_named(credential)):
        return ()
    from actors.providers.transport.server_load import metrics_url, read_metrics

    address = credential.base_url
    urls = spec.metrics_from or (metrics_url(address),)
    return tuple(await asyncio.gather(*(read_metrics(url, address, credential, timeout_s) for url in urls)))


async def metrics_notes(spec: ModelSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each URL of metrics that a specification names and that tells nothing of a queue."""
    if not spec.metrics_from or spec.row.by_model:
        return ()
    try:
        credential = credential_of(spec.location(), environ, required=False)
    except CredentialError:
        return ()  # the plan says what is wrong
    found = await queue_metrics(spec, credential)
    return tuple(f"--metrics-from {each.url} {each.problem}: {NO_METRICS}" for each in found if each.load is None)
