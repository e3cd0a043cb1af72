"""What a branch needs of a provider's message batches: submitted, seen in a list, looked at, read, cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from cortex.values.reply import Reply
from policies.failures.failure import Failure


class BatchStatus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How one message batch stands with its provider."""

    name: str
    """The provider's own id of it."""
    ended: bool
    requests: int
    """How many it was made of."""
    created_at_s: float
    """Seconds since 1970, by the provider's clock."""


class BatchRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request of a submission: its custom id, and its body, a canonical request (``cortex.values.canonical``)."""

    custom_id: str
    body: bytes


class MessageBatches(Protocol):
    """The message batches of one account. Nothing here raises anything but ``CancelledError``."""

    async def submit(self, rows: Sequence[BatchRequest], timeout_s: float) -> str | Failure:
        """Make a batch of these; its id. ``surely_not_made`` tells whether a failure leaves room for doubt."""

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus] | Failure:
        """The account's batches, newest first, down to the one named ``since`` (left out) or the first that was made
        before ``not_before_s``; at most so many."""

    async def look(self, name: str) -> BatchStatus | Failure:
        """How a batch stands."""

    def results(self, name: str) -> AsyncIterator[tuple[str, Reply | Failure]]:
        """What became of each request of a batch that has ended, by custom id, in no order, as it is read. The last
        one has an empty id where the reading itself failed."""

    async def cancel(self, name: str) -> Failure | None:
        """Ask for no further request of a batch to be worked off."""


def surely_not_made(failure: Failure) -> bool:
    """Whether a failed submission certainly made no batch: it never left, or the provider itself refused it.

    A gateway's error or a lost connection leaves it open, and then only the provider's list can tell.
    """
    return not failure.sent or 400 <= failure.status < 500 or failure.status == 529
