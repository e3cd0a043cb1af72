"""Message batches over HTTP: https://docs.claude.com/en/api/creating-message-batches.

Requests go to paths of the provider's own address alone. The ``results_url`` that a batch names is not followed, since
every request holds the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from actors.ports.message_batches import BatchRequest, BatchStatus
from actors.providers.credentials.reload import CredentialReload
from actors.providers.messages.batch_results import read_result
from actors.providers.transport.aiohttp_transport import RequestTemplate
from actors.providers.transport.body import BODY_BYTES_MAX, UnreadableResponse, bounded
from actors.providers.transport.failures import FailureReader
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

BATCHES: Final = "/v1/messages/batches"
PAGE: Final = 100
"""Most batches in one page of the list."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


class _NoName(ValueError):
    """Text that cannot be the id of a message batch, and must not become part of an address."""


class BatchTransport:
    """Sender of requests to the provider's batches. Belongs to the event loop in which it was made."""

    def __init__(
        self, template: RequestTemplate, *, context: Any, proxy: str | None, connect_s: float, silence_s: float
    ) -> None:
        self.take(template)
        self._proxy = proxy
        self._connect_s = connect_s
        self._silence_s = silence_s
        connector = aiohttp.TCPConnector(limit=8, ssl=True if context is None else context)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    def take(self, template: RequestTemplate) -> None:
        """Use this template for requests from now on."""
        self._url = template.url
        self._headers = template.headers
        plain = CIMultiDict(template.headers)
        plain.pop("content-type", None)
        self._headers_plain = plain

    def send(
        self, method: str, path: str = "", query: Mapping[str, str] | None = None, body: bytes | None = None,
        timeout_s: float | None = None, content_type: str = "",
    ) -> Any:  # fmt: skip
        """Return an exchange as a context manager. ``path`` is below the template's; ``timeout_s`` bounds the whole
        exchange, in seconds; ``content_type``: that of the body; empty: JSON."""
        url = URL(f"{self._url}{path}", encoded=True)
        headers: Any = self._headers if body is not None else self._headers_plain
        if content_type:
            headers = CIMultiDict(self._headers_plain)
            headers["content-type"] = content_type
        return self._session.request(
            method, url.with_query(query) if query else url, allow_redirects=False, proxy=self._proxy,
            data=None if body is None else io.BytesIO(body),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s, connect=self._connect_s, sock_read=self._silence_s),
        )  # fmt: skip

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


class ProviderBatches:
    """``MessageBatches`` of a provider. ``open_`` makes the transport when it is first needed."""

    def __init__(
        self,
        open_: Callable[[], Awaitable[BatchTransport]],
        keys: CredentialReload,
        failures: FailureReader,
        timeout_s: float,
    ) -> None:
        self._open = open_
        self._keys = keys
        self._failures = failures
        self._timeout_s = timeout_s
        self.transport: BatchTransport | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Close every connection."""
        transport, self.transport = self.transport, None
        if transport is not None:
            await transport.close()

    async def submit(self, rows: Sequence[BatchRequest], timeout_s: float) -> str | Failure:
        """Submit a batch of these rows."""
        body = msgspec.json.encode({"requests": [_Request(row.custom_id, msgspec.Raw(row.body)) for row in rows]})
        failure = await self._asked("POST", body=body, timeout_s=timeout_s)
        if isinstance(failure, Failure):
            return failure
        status = self._read(failure)
        return status.name if isinstance(status, BatchStatus) else status

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus] | Failure:
        """List batches, page by page, as far as the arguments say."""
        found: list[BatchStatus] = []
        after = ""
        while len(found) < batches_max:
            size = min(PAGE, batches_max - len(found))
            query = {"limit": str(size)} | ({"after_id": after} if after else {})
            failure = await self._asked("GET", query=query)
            if isinstance(failure, Failure):
                return failure
            try:
                page = msgspec.json.decode(failure, type=_Page)
                statuses = [batch.status() for batch in page.data]
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
                return self._failures.unreadable(f"the list of message batches cannot be read: {error}", 200)
            for status in statuses:
                if status.name == since or status.created_at_s < not_before_s:
                    return found
                found.append(status)
            if not page.has_more or not statuses:
                return found
            after = statuses[-1].name
        return found

    async def look(self, name: str) -> BatchStatus | Failure:
        """Return the status of a batch."""
        answer = await self._asked("GET", name)
        return answer if isinstance(answer, Failure) else self._read(answer)

    async def cancel(self, name: str) -> Failure | None:
        """Ask a batch to stop."""
        answer = await self._asked("POST", name, "/cancel", body=b"")
        return answer if isinstance(answer, Failure) else None

    async def results(self, name: str) -> AsyncIterator[tuple[str, Reply | Failure]]:
        """Yield results as their lines are read; none is kept."""
        try:
            transport, used = await self._ready(), self._keys.credential
            async with transport.send("GET", f"{_path(name)}/results") as answer:
                if answer.status != 200:
                    refused = await self._refused(answer, "")
                    await self._keys.after(refused, used)  # the next request has the new key
                    yield "", refused
                    return
                async for line in lines_of(answer.content.iter_any()):
                    found = read_result(line)
                    if found is not None:
                        yield found[0], self._redacted(found[1])
        except _NoName as error:
            yield "", Failure(FailureKind.REJECTED, self._failures.line(str(error)), sent=False)
        except Exception as error:  # every error is a Failure
            yield "", self._failures.of_exception(error)

    def _redacted(self, outcome: Reply | Failure) -> Reply | Failure:
        """Return the outcome without secrets in the provider's own words."""
        if isinstance(outcome, Reply):
            return outcome
        text, kind = self._failures.line(outcome.message), self._failures.redact(outcome.error_type)
        return msgspec.structs.replace(outcome, message=text, error_type=kind)

    # -- one exchange ----------------------------------------------------------------------------------------------

    async def _ready(self) -> BatchTransport:
        async with self._opening:  # several calls may be the first, and each transport holds connections
            if self.transport is None:
                self.transport = await self._open()
            return self.transport

    async def _asked(
        self, method: str, name: str = "", action: str = "", query: Mapping[str, str] | None = None,
        body: bytes | None = None, timeout_s: float | None = None,
    ) -> bytes | Failure:  # fmt: skip
        """Return the body of a successful response, about the batch of this name or about all."""
        try:
            path = f"{_path(name)}{action}" if name else ""
            transport = await self._ready()
            while True:
                used = self._keys.credential
                async with transport.send(method, path, query, body, timeout_s or self._timeout_s) as answer:
                    if 200 <= answer.status < 300:
                        return b"".join([chunk async for chunk in bounded(answer.content.iter_any())])
                    refused = await self._refused(answer, "" if name else BATCHES)
                if not await self._keys.after(refused, used):
                    return refused
        except _NoName as error:
            return Failure(FailureKind.REJECTED, self._failures.line(str(error)), sent=False)
        except Exception as error:  # every error is a Failure
            return self._failures.of_exception(error)

    async def _refused(self, answer: aiohttp.ClientResponse, path: str) -> Failure:
        data = b""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, UnreadableResponse):
            data = b"".join([chunk async for chunk in bounded(answer.content.iter_any())])
        return self._failures.of_response(answer.status, answer.headers, data, path)

    def _read(self, data: bytes) -> BatchStatus | Failure:
        try:
            return msgspec.json.decode(data, type=_Batch).status()
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            return self._failures.unreadable(f"what is said of a message batch cannot be read: {error}", 200)


# -- wire form -----------------------------------------------------------------------------------------------------


class _Request(msgspec.Struct, gc=False):
    custom_id: str
    params: msgspec.Raw


class _Batch(msgspec.Struct):
    id: str
    processing_status: str
    request_counts: dict[str, int]
    created_at: str

    def status(self) -> BatchStatus:
        """Return the status. Raises ValueError for an id or a time that is none."""
        _path(self.id)
        created_at_s = datetime.fromisoformat(self.created_at).timestamp()
        return BatchStatus(self.id, self.processing_status == "ended", sum(self.request_counts.values()), created_at_s)


class _Page(msgspec.Struct):
    data: list[_Batch]
    has_more: bool = False


def _path(name: str) -> str:
    """Return the path of a batch below the batches. Raises _NoName for text that is no id."""
    if not _NAME.fullmatch(name):
        raise _NoName(f"{name[:80]!r} is no id of a message batch")
    return f"/{name}"


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a text that comes in chunks. Raises UnreadableResponse for one longer than
    ``BODY_BYTES_MAX``."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
        for line in whole:
            yield line
        if len(rest) > BODY_BYTES_MAX:
            raise UnreadableResponse(f"a line of results is longer than {BODY_BYTES_MAX} bytes")
    yield rest
