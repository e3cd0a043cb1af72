"""Message Batches over HTTP: routes, and the task that processes each batch."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from actors.simulator.api.batches import (
    LIST_DEFAULT,
    LIST_MAX,
    BatchQueueFull,
    NoSuchBatch,
    SimulatedBatch,
    SimulatedBatchStore,
)
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.faults import CREDIT, ErrorResponse
from actors.simulator.request import BadRequest

PATH: Final = "/v1/messages/batches"
ROWS_AT_ONCE: Final = 64
"""Rows processed before other requests get a turn."""
STEP_S: Final = 0.005

Route = Callable[[web.BaseRequest, bytes], Awaitable[web.StreamResponse]]


class BatchRoutes:
    """Routes of message batches."""

    def __init__(
        self,
        provider: SimulatedProvider,
        reported: Callable[[Any], web.StreamResponse],
        refused: Callable[[ErrorResponse], web.StreamResponse],
    ) -> None:
        """``told`` and ``refused``: makers of responses from a plain value and from an error."""
        self._provider = provider
        self._batches = SimulatedBatchStore(provider)
        self._json_response = reported
        self._refused = refused
        self._workers: set[asyncio.Task[None]] = set()

    def route(self, method: str, path: str) -> Route | None:
        """Return the handler of this method and path; None if there is none."""
        parts = path.removeprefix(PATH).strip("/").split("/") if path != PATH else []
        action = {
            ("POST", 0): self._create,
            ("GET", 0): self._list,
            ("GET", 1): self._retrieve,
            ("DELETE", 1): self._delete,
        }.get((method, len(parts)))
        if action is None and len(parts) == 2:
            action = {("POST", "cancel"): self._cancel, ("GET", "results"): self._results}.get((method, parts[1]))
        if action is None:
            return None
        return lambda request, body: self._answered(action, request, body, parts[0] if parts else "")

    async def close(self) -> None:
        """Stop processing all batches."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _answered(
        self, action: Callable[..., web.StreamResponse], request: web.BaseRequest, body: bytes, name: str
    ) -> web.StreamResponse:
        try:
            return action(request, body, name)
        except NoSuchBatch as missing:
            return self._refused(ErrorResponse(404, "not_found_error", f"Message Batch {missing} not found"))
        except BatchQueueFull as full:
            return self._refused(full.refusal)
        except BadRequest as error:
            return self._refused(ErrorResponse(400, "invalid_request_error", str(error)))

    def _batch_json(self, batch: SimulatedBatch, request: web.BaseRequest) -> dict[str, Any]:
        return batch.to_json(f"{request.scheme}://{request.host}")

    def _create(self, request: web.BaseRequest, body: bytes, name: str) -> web.StreamResponse:
        if self._provider.out_of_credit:
            return self._refused(CREDIT)
        batch = self._batches.create(body, time.time())
        self.begin(batch)
        return self._json_response(self._batch_json(batch, request))

    @property
    def store(self) -> SimulatedBatchStore:
        """Batches of this provider."""
        return self._batches

    def begin(self, batch: SimulatedBatch) -> None:
        """Start the task that works a batch off."""
        worker = asyncio.create_task(self._work(batch))
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self, batch: SimulatedBatch) -> None:
        while batch.ended_s is None:
            more = self._batches.advance(batch, time.time(), ROWS_AT_ONCE)
            await asyncio.sleep(0 if more else STEP_S)

    def _list(self, request: web.BaseRequest, body: bytes, name: str) -> web.StreamResponse:
        query = request.rel_url.query
        asked = query.get("limit", str(LIST_DEFAULT))
        if not asked.isdecimal() or not 1 <= int(asked) <= LIST_MAX:
            raise BadRequest(f"limit: Input should be from 1 to {LIST_MAX}")
        page, more = self._batches.page(int(asked), query.get("before_id"), query.get("after_id"))
        names = [batch.name for batch in page]
        ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        return self._json_response(
            {"data": [self._batch_json(batch, request) for batch in page], "has_more": more} | ends
        )

    def _retrieve(self, request: web.BaseRequest, body: bytes, name: str) -> web.StreamResponse:
        return self._json_response(self._batch_json(self._batches.get(name), request))

    def _cancel(self, request: web.BaseRequest, body: bytes, name: str) -> web.StreamResponse:
        return self._json_response(self._batch_json(self._batches.cancel(name, time.time()), request))

    def _delete(self, request: web.BaseRequest, body: bytes, name: str) -> web.StreamResponse:
        self._batches.delete(name)
        return self._json_response({"id": name, "type": "message_batch_deleted"})

    def _results(self, request: web.BaseRequest, body: bytes, name: str) -> web.StreamResponse:
        batch = self._batches.get(name)
        if batch.ended_s is None:
            raise BadRequest(f"Message Batch {name} has no results yet: it is still processing")
        lines = b"".join(line + b"\n" for line in batch.lines)
        return web.Response(body=lines, headers={"content-type": "application/x-jsonl"})
