"""Interface of a provider's message batches: submit, list, inspect, read, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from cortex.values.reply import Reply
from policies.failures.failure import Failure

UNKNOWN_REQUESTS = -1
"""Number of requests of a batch that its provider has not counted yet."""


THE_REST = "*"
"""Custom id that stands for all requests of a batch of which the results hold no line."""


class BatchStatus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Status of one message batch at its provider."""

    name: str
    """Id that the provider gave to the batch."""
    ended: bool
    requests: int
    """Number of its requests, or ``UNKNOWN_REQUESTS``."""
    created_at_s: float
    """Time of creation in seconds since 1970, by the provider's clock."""
    first_id: str = ""
    """Custom id of its first request, where the provider keeps what we say of a batch, or a text that is no such id for
    a batch that was made elsewhere; empty: only its results tell."""


class BatchRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Request of a submission: its custom id, and its body, a canonical request (``cortex.values.canonical``)."""

    custom_id: str
    body: bytes


class MessageBatches(Protocol):
    """Message batches of one account. No method raises anything but ``CancelledError``."""

    async def submit(self, rows: Sequence[BatchRequest], timeout_s: float) -> str | Failure:
        """Submit a batch and return its id. ``surely_not_made`` tells whether a failure leaves the outcome open."""

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus] | Failure:
        """Return the account's batches, newest first, at most ``batches_max``.

        The list ends before the batch named ``since``, or at the first batch made before ``not_before_s``.
        """

    async def look(self, name: str) -> BatchStatus | Failure:
        """Return the status of a batch."""

    def results(self, name: str) -> AsyncIterator[tuple[str, Reply | Failure]]:
        """Yield (custom id, outcome) of each request of an ended batch, in no order. If reading fails, the last id is
        empty.
        """

    async def cancel(self, name: str) -> Failure | None:
        """Cancel the requests of a batch that have not begun."""

    async def discard(self, name: str) -> Failure | None:
        """Delete the files that were uploaded for a batch and those with its results: nobody reads them any more."""


def surely_not_made(failure: Failure) -> bool:
    """Return True if a failed submission certainly made no batch: it was not sent, or the provider itself refused it.

    After a gateway's error or a lost connection the outcome is open, and only the provider's list can tell.
    """
    return not failure.sent or 400 <= failure.status < 500 or failure.status == 529
