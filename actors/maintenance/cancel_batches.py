"""Cancellation of message batches at the provider, for a job that no process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from actors.channel.batches.orders import passes
from actors.routing.model_factory import encode, make_model
from actors.routing.routes import ModelSpec, destination
from cortex.values.limits import Limits
from policies.failures.failure import Failure, FailureKind

TRIES_MAX = 3
PAUSE_S = 1.0


async def withdraw(spec: ModelSpec, limits: Limits, environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Cancel these batches, all of one route. Return name -> reason for each that could not be cancelled.

    Raises ``SetupError`` without a key.
    """
    found = destination(spec, limits, environ)
    try:
        model = make_model(encode(found.connection))
        try:
            left = {}
            for name in names:
                failure = await _cancelled(getattr(model, "batches"), name)  # noqa: B009 - not every model has batches
                # a batch of the simulator ended with its process
                if failure is not None and failure.kind != FailureKind.LOST:
                    left[name] = failure.message
            return left
        finally:
            await model.close()
    finally:
        found.close()


async def _cancelled(batches: object, name: str) -> Failure | None:
    failure: Failure | None = None
    for tried in range(TRIES_MAX):
        await asyncio.sleep(PAUSE_S * tried)
        failure = await batches.cancel(name)  # type: ignore[attr-defined]
        if failure is None or not passes(failure):
            return failure
    return failure
