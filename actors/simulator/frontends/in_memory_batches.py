"""Message batches of the simulated provider in process, without HTTP and without background tasks.

Each look at a batch first processes the rows that are due.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from actors.ports.message_batches import BatchRequest, BatchStatus
from actors.providers.messages.batch_results import read_result
from actors.simulator.api.batches import BatchQueueFull, NoSuchBatch, SimulatedBatch, SimulatedBatchStore
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.faults import CREDIT, ErrorResponse
from actors.simulator.request import BadRequest
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

FailureOf = Callable[[ErrorResponse], Failure]


class _Request(msgspec.Struct, gc=False):
    custom_id: str
    params: msgspec.Raw


class SimulatedBatches:
    """``actors.ports.message_batches.MessageBatches`` of a provider in this process. ``clock``: seconds since 1970."""

    def __init__(self, provider: SimulatedProvider, clock: Callable[[], float], failure_of: FailureOf) -> None:
        self._provider = provider
        self._batches = SimulatedBatchStore(provider)
        self._clock = clock
        self._failure_of = failure_of

    async def submit(self, rows: Sequence[BatchRequest], timeout_s: float) -> str | Failure:
        """Create a batch of these requests and return its id."""
        if self._provider.out_of_credit:
            return self._failure_of(CREDIT)
        body = msgspec.json.encode({"requests": [_Request(row.custom_id, msgspec.Raw(row.body)) for row in rows]})
        try:
            return self._batches.create(body, self._clock()).name
        except BatchQueueFull as full:
            return self._failure_of(full.refusal)
        except BadRequest as error:
            return self._failure_of(ErrorResponse(400, "invalid_request_error", str(error)))

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus] | Failure:
        """Return the batches of this process, the newest first."""
        found: list[BatchStatus] = []
        for batch in self._batches.page(batches_max, None, None)[0]:
            if batch.name == since or batch.created_s < not_before_s:
                break
            found.append(self._status(batch))
        return found

    async def look(self, name: str) -> BatchStatus | Failure:
        """Return the status of a batch. An unknown batch ended with the process that simulated it: LOST, not refused.
        """
        try:
            return self._status(self._batches.get(name))
        except NoSuchBatch:
            return _died(name)

    async def results(self, name: str) -> AsyncIterator[tuple[str, Reply | Failure]]:
        """Yield the result of each request. A batch that was read to its end is deleted, since a rehearsal may be long.
        """
        try:
            batch = self._batches.get(name)
        except NoSuchBatch:
            yield "", _died(name)
            return
        for line in batch.lines:
            yield read_result(line)
        self._batches.delete(name)

    async def cancel(self, name: str) -> Failure | None:
        """Cancel a batch."""
        try:
            self._batches.cancel(name, self._clock())
        except NoSuchBatch:
            return _died(name)
        return None

    async def discard(self, name: str) -> Failure | None:
        """Return None: a batch has no files."""

    async def close(self) -> None:
        """Release nothing."""

    def _status(self, batch: SimulatedBatch) -> BatchStatus:
        while self._batches.advance(batch, self._clock(), _ROWS_AT_ONCE):
            pass
        return BatchStatus(batch.name, batch.ended_s is not None, batch.requests, batch.created_s)


_ROWS_AT_ONCE: Final = 1_000


def _died(name: str) -> Failure:
    text = f"message batch {name} is gone with the process that simulated its provider"
    return Failure(FailureKind.LOST, text, sent=False)
