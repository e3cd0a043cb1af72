"""Message batches over HTTP: https://docs.claude.com/en/api/creating-message-batches.

The ``results_url`` that a batch names is not followed. Nothing is uploaded as a file: requests and results stay with
the batch, for 29 days from its making (https://platform.claude.com/docs/en/build-with-claude/batch-processing).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from actors.ports.message_batches import UNKNOWN_REQUESTS, BatchRequest, BatchStatus
from actors.providers.batches.exchange import BatchClient, BatchTransport, NoName, path_of
from actors.providers.credentials.reload import CredentialReload
from actors.providers.messages.batch_results import read_result
from actors.providers.transport.failures import FailureReader
from cortex.values.bounds.counts import count_of
from cortex.values.reply import Reply
from policies.failures.failure import Failure

BATCHES: Final = "/v1/messages/batches"


class ProviderBatches(BatchClient):
    """``MessageBatches`` of a provider. ``line_body``: function from a request to the body of its line
    (``HttpModel.line_body``)."""

    def __init__(
        self, open_: Callable[[], Awaitable[BatchTransport]], keys: CredentialReload, failures: FailureReader,
        timeout_s: float, line_body: Callable[[bytes], bytes],
    ) -> None:  # fmt: skip
        super().__init__(open_, keys, failures, timeout_s)
        self._line_body = line_body

    def _line(self, row: BatchRequest) -> bytes:
        return self._line_body(row.body)

    def _empty_line(self, row: BatchRequest, model: str) -> bytes:
        return msgspec.json.encode({"model": model, "max_tokens": 1, "messages": []})

    async def submit(self, rows: Sequence[BatchRequest], timeout_s: float) -> str | Failure:
        """Submit a batch of these rows."""
        requests = [_Request(row.custom_id, msgspec.Raw(self._line_of(row))) for row in rows]
        body = msgspec.json.encode({"requests": requests})
        failure = await self._about("POST", body=body, timeout_s=timeout_s)
        if isinstance(failure, Failure):
            return failure
        status = self._read(failure)
        return status.name if isinstance(status, BatchStatus) else status

    async def _page(self, token: str, size: int) -> tuple[list[BatchStatus], str] | Failure:
        query = {"limit": str(size)} | ({"after_id": token} if token else {})
        answer = await self._about("GET", query=query)
        if isinstance(answer, Failure):
            return answer

        def read(data: bytes) -> tuple[list[BatchStatus], str]:
            page = msgspec.json.decode(data, type=_Page)
            statuses = [batch.status() for batch in page.data]
            return statuses, statuses[-1].name if page.has_more and statuses else ""

        return self._said("the list of message batches", answer, read)

    async def look(self, name: str) -> BatchStatus | Failure:
        """Return the status of a batch."""
        answer = await self._about("GET", name)
        return answer if isinstance(answer, Failure) else self._read(answer)

    async def cancel(self, name: str) -> Failure | None:
        """Ask a batch to stop."""
        answer = await self._about("POST", name, "/cancel", body=b"")
        return answer if isinstance(answer, Failure) else None

    async def results(self, name: str) -> AsyncIterator[tuple[str, Reply | Failure]]:
        """Yield results as their lines are read; none is kept."""
        try:
            path = f"{path_of(name)}/results"
        except NoName as error:
            yield "", self._no_name(error)
            return
        async for found in self._outcomes(self._lines(path), read_result):
            if found is not None:
                yield self._told(found[0], self._redacted(found[1]))

    async def discard(self, name: str) -> Failure | None:
        """Return None: a batch has no files."""

    def _redacted(self, outcome: Reply | Failure) -> Reply | Failure:
        """Return the outcome without secrets in the provider's own words."""
        if isinstance(outcome, Reply):
            return outcome
        text, kind = self._failures.line(outcome.message), self._failures.redact(outcome.error_type)
        return msgspec.structs.replace(outcome, message=text, error_type=kind)

    async def _about(
        self, method: str, name: str = "", action: str = "", query: Mapping[str, str] | None = None,
        body: bytes | None = None, timeout_s: float | None = None,
    ) -> bytes | Failure:  # fmt: skip
        """Return the body of a successful response, about the batch of this name or about all."""
        try:
            path = f"{path_of(name)}{action}" if name else ""
        except NoName as error:
            return self._no_name(error)
        known = "" if name else BATCHES
        return await self._asked(method, path, query=query, body=body, timeout_s=timeout_s, known=known)

    def _read(self, data: bytes) -> BatchStatus | Failure:
        return self._said(
            "what is said of a message batch", data, lambda data: msgspec.json.decode(data, type=_Batch).status()
        )


# -- wire form -----------------------------------------------------------------------------------------------------


class _Request(msgspec.Struct, gc=False):
    custom_id: str
    params: msgspec.Raw


class _Batch(msgspec.Struct):
    id: str
    processing_status: str
    request_counts: dict[str, Any]
    created_at: str

    def status(self) -> BatchStatus:
        """Return the status. Raises ValueError for an id or a time that is none."""
        path_of(self.id)
        created_at_s = datetime.fromisoformat(self.created_at).timestamp()
        counts = [count_of(each) for each in self.request_counts.values()]
        known = [each for each in counts if each is not None]
        requests = sum(known) if len(known) == len(counts) else UNKNOWN_REQUESTS
        return BatchStatus(self.id, self.processing_status == "ended", requests, created_at_s)


class _Page(msgspec.Struct):
    data: list[_Batch]
    has_more: bool = False
