"""Connections and exchanges of the clients of message batches.

Requests go to paths of the provider's own address alone, since every request holds the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from actors.ports.message_batches import BatchRequest, BatchStatus
from actors.providers.batches.result_lines import UnreadableLine
from actors.providers.client.canonical_request import model_in
from actors.providers.client.wire_form import NO_FORM
from actors.providers.credentials.reload import CredentialReload
from actors.providers.transport.aiohttp_transport import RequestTemplate
from actors.providers.transport.body import BODY_BYTES_MAX, UnreadableResponse, bounded
from actors.providers.transport.failures import SHOULD_RETRY, FailureReader
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

PAGE: Final = 100
"""Most batches in one page of a list, at every provider."""
LINES_MAX: Final = 200_000
"""Lines of results of one batch at most: twice the requests that a batch may hold
(https://docs.anthropic.com/en/docs/build-with-claude/batch-processing: 100,000)."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


T = TypeVar("T")
Outcome = tuple[str, Reply | Failure]
"""Custom id of a request, and its reply or failure."""


class NoName(ValueError):
    """Text that cannot be the id of a batch or a file, and must not become part of an address."""


def path_of(name: str) -> str:
    """Return the path of a batch or a file below its kind. Raises NoName for text that is no id."""
    if not _NAME.fullmatch(name):
        raise NoName(f"{name[:80]!r} is no id of a message batch")
    return f"/{name}"


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
        timeout_s: float | None = None, more: Mapping[str, str] | None = None,
    ) -> Any:  # fmt: skip
        """Return an exchange as a context manager. ``path`` is below the template's; ``timeout_s`` bounds the whole
        exchange, in seconds; ``more``: further headers, in place of the template's of the same name."""
        url = URL(f"{self._url}{path}", encoded=True)
        headers: Any = self._headers if body is not None else self._headers_plain
        if more:
            headers = CIMultiDict(headers)
            headers.update(more)
        return self._session.request(
            method, url.with_query(query) if query else url, allow_redirects=False, proxy=self._proxy,
            data=None if body is None else io.BytesIO(body),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s, connect=self._connect_s, sock_read=self._silence_s),
        )  # fmt: skip

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


class BatchClient:
    """Sender of the requests of a client of message batches: every error is a ``Failure``.

    ``open_`` makes the transport when it is first needed. ``timeout_s`` bounds an exchange, unless a request says
    otherwise, in seconds.
    """

    def __init__(
        self, open_: Callable[[], Awaitable[BatchTransport]], keys: CredentialReload, failures: FailureReader,
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._open = open_
        self._keys = keys
        self._failures = failures
        self._timeout_s = timeout_s
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

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus] | Failure:
        """List batches, page by page, as far as the arguments say."""
        found: list[BatchStatus] = []
        token = ""
        while len(found) < batches_max:
            page = await self._page(token, min(PAGE, batches_max - len(found)))
            if isinstance(page, Failure):
                return page
            statuses, token = page
            for status in statuses:
                if status.name == since or status.created_at_s < not_before_s:
                    return found
                found.append(status)
            if not token or not statuses:
                return found
        return found

    def _line_of(self, row: BatchRequest) -> bytes:
        """Return the line of a request; where it has no counterpart, one that the provider refuses."""
        try:
            return self._line(row)
        except NO_FORM as error:
            self._untranslatable[row.custom_id] = str(error)
            return self._empty_line(row, model_in(row.body))

    def _line(self, row: BatchRequest) -> bytes:
        """Return the line of a request. Raises the errors of ``NO_FORM``."""
        raise NotImplementedError

    def _empty_line(self, row: BatchRequest, model: str) -> bytes:
        """Return a line that the provider refuses, in the place of a request that has no counterpart."""
        raise NotImplementedError

    def _told(self, custom_id: str, outcome: Reply | Failure) -> tuple[str, Reply | Failure]:
        """Return a result, with our own reason where a request was not sent as it was meant."""
        why = self._untranslatable.get(custom_id)
        if why is not None and isinstance(outcome, Failure) and outcome.kind is FailureKind.REJECTED:
            outcome = msgspec.structs.replace(outcome, message=self._failures.line(why))
        return custom_id, outcome

    async def _page(self, token: str, size: int) -> tuple[list[BatchStatus], str] | Failure:
        """Return a page of the list, the newest batch first, and the token of the next page; empty: it was the last.

        ``token``: empty for the first page. ``size``: batches that are wanted at most.
        """
        raise NotImplementedError

    async def _ready(self) -> BatchTransport:
        async with self._opening:  # several calls may be the first, and each transport holds connections
            if self.transport is None:
                self.transport = await self._open()
            return self.transport

    async def _asked(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: bytes | None = None,
        timeout_s: float | None = None, more: Mapping[str, str] | None = None, known: str = "",
    ) -> bytes | Failure:  # fmt: skip
        """Return the body of a successful response. ``known``: the path, where each server of the API has it."""
        found = await self._answered(method, path, query, body, timeout_s, more, known)
        return found if isinstance(found, Failure) else found[0]

    async def _answered(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes | None = None,
        timeout_s: float | None = None, more: Mapping[str, str] | None = None, known: str = "",
    ) -> tuple[bytes, Mapping[str, str]] | Failure:  # fmt: skip
        """Return the body of a successful response and its headers. A request whose key is refused is sent once more
        where there is another key now, as a call is: a source of tokens may name another each time.
        """
        try:
            transport, used = await self._ready(), self._keys.credential
            given = (method, path, query, body, timeout_s or self._timeout_s, more)
            found = await self._exchanged(transport.send(*given), known)
            if isinstance(found, Failure) and await self._keys.after(found, used):
                found = await self._exchanged(transport.send(*given), known)
            return found
        except Exception as error:
            return self._failures.of_exception(error)

    async def _exchanged(self, exchange: Any, known: str) -> tuple[bytes, Mapping[str, str]] | Failure:
        async with exchange as answer:
            if 200 <= answer.status < 300:
                data = b"".join([chunk async for chunk in bounded(answer.content.iter_any())])
                return data, answer.headers
            return await self._refused(answer, known)

    async def _lines(self, path: str, query: Mapping[str, str] | None = None) -> AsyncIterator[bytes | Failure]:
        """Yield the lines of a text as they come; a failure is the last element."""
        try:
            transport, used = await self._ready(), self._keys.credential
            async with transport.send("GET", path, query) as answer:
                if answer.status != 200:
                    refused = await self._refused(answer, "")
                    await self._keys.after(refused, used)  # the next request has the new key
                    yield refused
                    return
                async for line in lines_of(answer.content.iter_any()):
                    yield line
        except Exception as error:
            yield self._failures.of_exception(error)

    async def _outcomes(
        self, lines: AsyncIterator[bytes | Failure], read: Callable[[bytes], Outcome]
    ) -> AsyncIterator[Outcome | None]:
        """Yield custom id and outcome of each line of results; the id is empty, and the outcome the last one, where
        reading them fails.

        None stands for a line that cannot be read and names no request, and for a last line without its end, which may
        be whole when it is read again. ``read`` raises UnreadableLine.
        """
        flawed: UnreadableLine | None = None
        async for line in lines:
            if flawed is not None:  # another line came, be it an empty one: it was whole
                told = self._failures.unreadable(str(flawed), 200, True)
                yield (flawed.custom_id, told) if flawed.custom_id else None
                flawed = None
            if isinstance(line, Failure):
                yield "", line
                return
            if not line.strip():
                continue
            try:
                found = read(line)
            except UnreadableLine as error:
                flawed = error
            except Exception as error:  # one line must not keep the others of the batch back
                flawed = UnreadableLine(type(error).__name__, "", line)
            else:
                yield found
        if flawed is not None:
            yield None

    async def _refused(self, answer: aiohttp.ClientResponse, known: str) -> Failure:
        data = b""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, UnreadableResponse):
            data = b"".join([chunk async for chunk in bounded(answer.content.iter_any())])
        headers = CIMultiDict(answer.headers)
        if headers.get(SHOULD_RETRY) == "false":  # obeyed, it would pause a job whose batch is paid
            del headers[SHOULD_RETRY]
        return self._failures.of_response(answer.status, headers, data, known)

    def _no_name(self, error: NoName) -> Failure:
        return Failure(FailureKind.REJECTED, self._failures.line(str(error)), sent=False)

    def _said(self, what: str, data: bytes, read: Callable[[bytes], T]) -> T | Failure:
        """Return what ``read`` makes of the body of a response; a failure that names ``what`` where it raises, whatever
        it raises: a batch is looked at again, and told as one that cannot be read."""
        try:
            return read(data)
        except RecursionError:
            return self._unreadable(what, "it is nested too deeply")
        except Exception as error:
            return self._unreadable(what, error if isinstance(error, ValueError) else type(error).__name__)

    def _unreadable(self, what: str, error: object = "") -> Failure:
        why = f": {error}" if error else ""
        return self._failures.unreadable(f"{what} cannot be read{why}", 200)


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a text that comes in chunks. Raises UnreadableResponse for one longer than
    ``BODY_BYTES_MAX``, and for more than ``LINES_MAX``."""
    rest = b""
    count = 0
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
        for line in whole:
            yield line
        count += len(whole)
        if count > LINES_MAX:
            raise UnreadableResponse(f"the results do not end: more than {LINES_MAX:,} lines")
        if len(rest) > BODY_BYTES_MAX:
            raise UnreadableResponse(f"a line of results is longer than {BODY_BYTES_MAX} bytes")
    yield rest
