"""Batches of OpenAI: a file of requests is uploaded, worked off within a day at half the price, and its results read.

https://platform.openai.com/docs/guides/batch; Azure has the same (https://learn.microsoft.com/azure/ai-foundry/openai/
how-to/batch). A batch is made of an uploaded file; its results are two files, of answers and of errors. Requests go to
paths of the provider's own address alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from actors.ports.message_batches import UNKNOWN_REQUESTS, BatchRequest, BatchStatus
from actors.providers.chat_completions.batch_results import KEPT_MARK, LINE_MARK, read_chat_result
from actors.providers.chat_completions.request import chat_body
from actors.providers.client.canonical_request import model_in
from actors.providers.client.wire_form import Untranslatable
from actors.providers.credentials.reload import CredentialReload
from actors.providers.messages.batches import BatchTransport, lines_of
from actors.providers.transport.body import UnreadableResponse, bounded
from actors.providers.transport.failures import FailureReader
from cortex.values.chat_form.request import CHAT_MARK
from cortex.values.reply import Reply
from policies.estimates.batching import NOT_BEGUN, QUEUE_FULL
from policies.failures.failure import Failure, FailureKind

BATCHES: Final = "/batches"
FILES: Final = "/files"
PAGE: Final = 100
"""Most batches in one page of the list."""
WINDOW: Final = "24h"
"""Only completion window that there is."""
FIRST: Final = "cortex"
"""Key of a batch's metadata with the custom id of its first request: a lost batch is known by it."""
FOREIGN: Final = "-"
"""First custom id of a batch without that key: it was not made here."""

_ENDED: Final = frozenset({"completed", "expired", "cancelled"})
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_BOUNDARY: Final = "cortex-c2a1f0d47e5b4c6f9a83"


class _NoName(ValueError):
    """Text that cannot be the id of a batch or a file, and must not become part of an address."""


class ChatBatches:
    """``MessageBatches`` of a provider of chat completions. ``open_`` makes the transport when it is first needed;
    ``endpoint`` is the path that a batch names; ``bound`` returns the field of a reply's bound."""

    def __init__(
        self, open_: Callable[[], Awaitable[BatchTransport]], keys: CredentialReload, failures: FailureReader,
        timeout_s: float, endpoint: str, bound: Callable[[], str],
    ) -> None:  # fmt: skip
        self._open = open_
        self._keys = keys
        self._failures = failures
        self._timeout_s = timeout_s
        self._endpoint = endpoint
        self._bound = bound
        self.transport: BatchTransport | None = None
        self._opening = asyncio.Lock()
        self._untranslatable: dict[str, str] = {}
        """Reasons of requests that have no counterpart, by custom id: the provider refuses what is sent in their
        place."""

    async def close(self) -> None:
        """Close every connection."""
        transport, self.transport = self.transport, None
        if transport is not None:
            await transport.close()

    async def submit(self, rows: Sequence[BatchRequest], timeout_s: float) -> str | Failure:
        """Upload a file of these rows and make a batch of it."""
        body, kind = _form(b"".join([self._line(row) for row in rows]))
        uploaded = await self._asked("POST", FILES, body=body, timeout_s=timeout_s, content_type=kind)
        if isinstance(uploaded, Failure):  # a file alone costs nothing, and no batch was made of it
            return msgspec.structs.replace(uploaded, sent=False)
        name = _id_in(uploaded)
        if not name:
            unreadable = self._failures.unreadable("what is said of an uploaded file cannot be read", 200)
            return msgspec.structs.replace(unreadable, sent=False)
        wanted = {
            "input_file_id": name, "endpoint": self._endpoint, "completion_window": WINDOW,
            "metadata": {FIRST: rows[0].custom_id},
        }  # fmt: skip
        made = await self._asked("POST", BATCHES, body=msgspec.json.encode(wanted), timeout_s=timeout_s)
        if isinstance(made, Failure):
            return made
        return _id_in(made) or self._failures.unreadable("what is said of a batch cannot be read", 200)

    def _line(self, row: BatchRequest) -> bytes:
        """Return the line of a request. One that has no counterpart is sent without messages: it is refused alone."""
        kept = row.body.startswith(CHAT_MARK)
        try:
            body = chat_body(row.body, self._bound())
        except (Untranslatable, msgspec.DecodeError, LookupError, TypeError, AttributeError) as error:
            self._untranslatable[row.custom_id] = str(error)
            body = msgspec.json.encode({"model": model_in(row.body), "messages": []})
        name = (KEPT_MARK if kept else LINE_MARK) + row.custom_id
        return msgspec.json.encode(_Line(name, self._endpoint, msgspec.Raw(body))) + b"\n"

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus] | Failure:
        """List batches, page by page, as far as the arguments say."""
        found: list[BatchStatus] = []
        after = ""
        while len(found) < batches_max:
            query = {"limit": str(min(PAGE, batches_max - len(found)))} | ({"after": after} if after else {})
            answer = await self._asked("GET", BATCHES, query=query)
            if isinstance(answer, Failure):
                return answer
            try:
                page = msgspec.json.decode(answer, type=_Page)
                statuses = [batch.status() for batch in page.data]
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
                return self._failures.unreadable(f"the list of batches cannot be read: {error}", 200)
            for status in statuses:
                if status.name == since or status.created_at_s < not_before_s:
                    return found
                found.append(status)
            if not page.has_more or not statuses:
                return found
            after = statuses[-1].name
        return found

    async def look(self, name: str) -> BatchStatus | Failure:
        """Return the status of a batch; a failure of ``NEVER_BEGAN`` if its file was refused as a whole."""
        batch = await self._batch(name)
        if isinstance(batch, Failure):
            return batch
        return self._never_began(batch) if batch.status_ == "failed" else batch.status()

    async def cancel(self, name: str) -> Failure | None:
        """Ask a batch to stop."""
        try:
            answer = await self._asked("POST", f"{BATCHES}{_path(name)}/cancel", body=b"")
        except _NoName as error:
            return Failure(FailureKind.REJECTED, self._failures.line(str(error)), sent=False)
        return answer if isinstance(answer, Failure) else None

    async def results(self, name: str) -> AsyncIterator[tuple[str, Reply | Failure]]:
        """Yield results as their lines are read, answers first; none is kept."""
        batch = await self._batch(name)
        if isinstance(batch, Failure):
            yield "", batch
            return
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            try:
                async for line in self._content(file):
                    if isinstance(line, Failure):
                        yield "", line
                        return
                    found = read_chat_result(line, self._failures)
                    if found is not None:
                        yield self._told(*found)
            except Exception as error:  # every error is a Failure
                yield "", self._failures.of_exception(error)
                return

    def _told(self, custom_id: str, outcome: Reply | Failure) -> tuple[str, Reply | Failure]:
        """Return a result, with our own reason where a request was not sent as it was meant."""
        why = self._untranslatable.get(custom_id)
        if why is not None and isinstance(outcome, Failure) and outcome.kind is FailureKind.REJECTED:
            outcome = msgspec.structs.replace(outcome, message=self._failures.line(why))
        return custom_id, outcome

    # -- one exchange ----------------------------------------------------------------------------------------------

    async def _batch(self, name: str) -> _Batch | Failure:
        try:
            answer = await self._asked("GET", f"{BATCHES}{_path(name)}")
            return answer if isinstance(answer, Failure) else msgspec.json.decode(answer, type=_Batch)
        except _NoName as error:
            return Failure(FailureKind.REJECTED, self._failures.line(str(error)), sent=False)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._failures.unreadable(f"what is said of a batch cannot be read: {error}", 200)

    def _never_began(self, batch: _Batch) -> Failure:
        """Return why a batch failed before any of its requests began: the provider checks the file first."""
        errors = batch.errors.data if batch.errors is not None else []
        first = errors[0] if errors else _BatchError()
        text = first.message or "the provider refused the file of the batch and gave no reason"
        if first.code == QUEUE_FULL:
            return Failure(FailureKind.THROTTLED, self._failures.line(text), 0, QUEUE_FULL, sent=False)
        told = msgspec.json.encode({"error": {"code": first.code, "message": text, "param": first.param}})
        failure = self._failures.of_response(400, {}, told)
        return msgspec.structs.replace(failure, status=0, error_type=NOT_BEGUN, sent=False)

    async def _content(self, file: str) -> AsyncIterator[bytes | Failure]:
        transport, used = await self._ready(), self._keys.credential
        async with transport.send("GET", f"{FILES}{_path(file)}/content") as answer:
            if answer.status != 200:
                refused = await self._refused(answer, "")
                await self._keys.after(refused, used)  # the next request has the new key
                yield refused
                return
            async for line in lines_of(answer.content.iter_any()):
                yield line

    async def _ready(self) -> BatchTransport:
        async with self._opening:  # several calls may be the first, and each transport holds connections
            if self.transport is None:
                self.transport = await self._open()
            return self.transport

    async def _asked(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: bytes | None = None,
        timeout_s: float | None = None, content_type: str = "",
    ) -> bytes | Failure:  # fmt: skip
        """Return the body of a successful response."""
        try:
            transport = await self._ready()
            while True:
                used = self._keys.credential
                async with transport.send(
                    method, path, query, body, timeout_s or self._timeout_s, content_type
                ) as answer:
                    if 200 <= answer.status < 300:
                        return b"".join([chunk async for chunk in bounded(answer.content.iter_any())])
                    refused = await self._refused(answer, path if path in (BATCHES, FILES) else "")
                if not await self._keys.after(refused, used):
                    return refused
        except Exception as error:  # every error is a Failure
            return self._failures.of_exception(error)

    async def _refused(self, answer: aiohttp.ClientResponse, path: str) -> Failure:
        data = b""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, UnreadableResponse):
            data = b"".join([chunk async for chunk in bounded(answer.content.iter_any())])
        return self._failures.of_response(answer.status, answer.headers, data, path)


# -- wire form -----------------------------------------------------------------------------------------------------


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Counts(msgspec.Struct):
    total: int = 0


class _BatchError(msgspec.Struct):
    code: str | None = None
    message: str | None = None
    param: Any = None


class _Errors(msgspec.Struct):
    data: list[_BatchError] = []


class _Batch(msgspec.Struct):
    id: str
    created_at: float
    status_: str = msgspec.field(name="status")
    request_counts: _Counts | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    metadata: dict[str, Any] | None = None
    errors: _Errors | None = None

    def status(self) -> BatchStatus:
        """Return the status. Raises _NoName for an id that is none."""
        _path(self.id)
        ended = self.status_ in _ENDED
        total = self.request_counts.total if self.request_counts is not None else 0
        first = (self.metadata or {}).get(FIRST) or FOREIGN
        return BatchStatus(self.id, ended, total if total or ended else UNKNOWN_REQUESTS, self.created_at, str(first))


class _Page(msgspec.Struct):
    data: list[_Batch]
    has_more: bool = False


def _path(name: str) -> str:
    """Return the path of a batch or a file below its kind. Raises _NoName for text that is no id."""
    if not _NAME.fullmatch(name):
        raise _NoName(f"{name[:80]!r} is no id of a batch")
    return f"/{name}"


def _id_in(data: bytes) -> str:
    try:
        name = msgspec.json.decode(data, type=_Made).id
        return name if _NAME.fullmatch(name) else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


class _Made(msgspec.Struct):
    id: str


def _form(content: bytes) -> tuple[bytes, str]:
    """Return the upload of a file of requests as a form (RFC 7578), and its content type."""
    boundary = _BOUNDARY
    while boundary.encode() in content:
        boundary += "0"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="file"; filename="cortex.jsonl"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    return head.encode() + content + f"\r\n--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
