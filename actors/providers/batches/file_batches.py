"""Batches that are made of uploaded files of requests, and whose results are files: OpenAI's way, which others follow.

A file holds a request a line. A batch is made of an uploaded file; its results are a file of answers and perhaps one of
errors. All of them stay at the provider until they are deleted or expire (``discard``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from actors.ports.message_batches import THE_REST, UNKNOWN_REQUESTS, BatchRequest, BatchStatus, surely_not_made
from actors.providers.batches.exchange import BatchClient, BatchTransport, NoName, path_of
from actors.providers.credentials.reload import CredentialReload
from actors.providers.transport.body import json_bytes
from actors.providers.transport.failures import FailureReader
from cortex.values.bounds.counts import count_of
from cortex.values.reply import Reply
from policies.estimates.batching import NOT_BEGUN, QUEUE_FULL
from policies.failures.failure import Failure, FailureKind

FIRST: Final = "cortex"
"""Key of a batch's metadata with the custom id of its first request: a lost batch is known by it."""
FOREIGN: Final = "-"
"""First custom id of a batch without that key: it was not made here."""
NO_SUCH_FILE: Final = 404
LOOK_S: Final = 1.0
LOOK_GROWTH: Final = 1.5
LOOK_MAX_S: Final = 15.0
"""Seconds before the first look at a file that its provider still works on, factor from each pause to the next, and the
longest one: Microsoft's sample looks every 15 s."""
WAITING_SHARE: Final = 0.8
"""Share of the time of a submission in which its file may become ready; the rest is for the batch. Microsoft names no
longest time, and its sample looks until the file is ready, without end."""
UNREADY_MAX: Final = 8
"""Most files that are kept for another try of their submissions; a route hands two over at once."""
CLOSING_S: Final = 5.0
"""Seconds in which a client that is closed deletes the files that it kept."""
_IN_WORK: Final = frozenset({"pending", "running", "notrunning", "processing", "uploading", "queued", "in_progress"})
"""States, in lower case, of an uploaded file of which no batch can be made yet. Azure's are pending and running, then
`processed` (sample of https://learn.microsoft.com/azure/ai-services/openai/how-to/batch, openai/openai-dotnet#312);
Gemini's is PROCESSING, then ACTIVE (https://ai.google.dev/api/files#State). OpenAI's say nothing: `status` is
deprecated there (`FileObject` of the package `openai` 3.57)."""
_UNREADY: Final = re.compile(
    r"\bin '?(?:pending|running|notrunning|processing)'? state\b|\bnot in an ACTIVE state\b", re.IGNORECASE
)
"""Words of a refusal to make a batch of such a file: "The input file '…' is in 'pending' state. Only files with status
'Processed' are accepted for batch inferencing." (Azure, https://learn.microsoft.com/answers/questions/2203029)."""
_BOUNDARY: Final = "cortex-c2a1f0d47e5b4c6f9a83"


class BatchOfFiles(msgspec.Struct, kw_only=True):
    """Description of such a batch by its provider."""

    name: str
    created_at_s: float
    ended: bool
    total: Any = 0
    """Number of its requests, as the provider counts them; 0: not counted yet. What is no count is not believed."""
    first_id: str = FOREIGN
    inputs: tuple[str, ...] = ()
    """Ids of the files it was made of."""
    outputs: tuple[str, ...] = ()
    """Ids of the files of its results, answers first."""
    never_began: tuple[str, str, Any] | None = None
    """Code, message and parameter of the error for which none of its requests was begun."""
    rest: Failure | None = None
    """Outcome of the requests without a line in the results."""

    def status(self) -> BatchStatus:
        """Return the status. Raises NoName for an id that is none."""
        path_of(self.name)
        total = count_of(self.total) or 0
        total = total if total or self.ended else UNKNOWN_REQUESTS
        return BatchStatus(self.name, self.ended, total, self.created_at_s, self.first_id)


class LineForm(msgspec.Struct, frozen=True, kw_only=True):
    """Form of requests and answers in the lines of files: that of an API of single calls."""

    endpoint: str
    """Path of the API in a batch and in its lines."""
    body: Callable[[bytes], bytes]
    """Function from a request to the body of a line (``HttpModel.line_body``). Raises the errors of ``NO_FORM``."""
    empty: str
    """Field that is sent as an empty list where a request has no counterpart, so that it is refused."""
    read: Callable[[bytes, bool], Reply]
    """Function ``(body of an answer, kept) -> Reply``. ``kept``: the reply holds the answer as it came. Raises as
    ``WireForm.read`` does."""


class FileBatches(BatchClient):
    """``MessageBatches`` of a provider that makes batches of files. A subclass knows the form of requests and results,
    and what the provider says of a batch."""

    batches_path: ClassVar[str] = "/batches"
    files_path: ClassVar[str] = "/files"
    full_by_status: ClassVar[bool] = False
    """True: a batch that too many tokens or batches wait before is refused with status 429. False: it is made, and
    fails."""

    def __init__(
        self, open_: Callable[[], Awaitable[BatchTransport]], keys: CredentialReload, failures: FailureReader,
        timeout_s: float, lines: LineForm,
    ) -> None:  # fmt: skip
        super().__init__(open_, keys, failures, timeout_s)
        self._lines_as = lines
        self._unready: dict[tuple[str, ...], str] = {}
        """Uploaded files that the provider still works on, of submissions that will be tried again, by custom ids."""

    @staticmethod
    def address(url: str) -> str:
        """Return the address below which the paths are, given that of calls."""
        return url

    @staticmethod
    def headers(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers of all requests, given those of calls."""
        return headers

    def _making(self, file: str, rows: Sequence[BatchRequest]) -> tuple[str, dict[str, Any]]:
        """Return path and body of the request that makes a batch of an uploaded file."""
        raise NotImplementedError

    def _made(self, data: bytes) -> str:
        """Return the id of a batch that was made; empty: none."""
        return id_in(data)

    def _cancel_path(self, name: str) -> str:
        """Return the path that cancels a batch. Raises NoName."""
        return f"{self.batches_path}{path_of(name)}/cancel"

    def _not_made(self, failure: Failure) -> Failure:
        """Return the failure of a batch that was not made, of the type ``QUEUE_FULL`` where there was no room."""
        if self.full_by_status and failure.kind is FailureKind.THROTTLED:
            return msgspec.structs.replace(failure, error_type=QUEUE_FULL, sent=False)
        return failure

    def _batch_in(self, data: bytes) -> BatchOfFiles:
        """Return what is said of a batch. Raises anything for what cannot be read."""
        raise NotImplementedError

    def _result(self, line: bytes) -> tuple[str, Reply | Failure]:
        """Return custom id and outcome of a line of results. Raises UnreadableLine."""
        raise NotImplementedError

    async def submit(self, rows: Sequence[BatchRequest], timeout_s: float) -> str | Failure:
        """Upload a file of these rows and make a batch of it, once the provider is ready for that. The file that it is
        not ready for in time is waited for when the same rows are submitted again: a failure of the kind that says to
        come back later, any number of which count as no fault."""
        begun_s = time.monotonic()
        ids = tuple([row.custom_id for row in rows])
        uploaded: tuple[str, bool] | Failure | None = await self._kept(ids)
        if uploaded is None:
            uploaded = await self._uploaded(b"".join([self._line_of(row) for row in rows]), timeout_s)
        if isinstance(uploaded, Failure):  # a file alone costs nothing, and no batch was made of it
            return msgspec.structs.replace(uploaded, sent=False)
        file, unready = uploaded
        try:
            path, wanted = self._making(file, rows)
        except NoName as error:
            return self._no_name(error)
        for refusals in itertools.count():
            until_s = begun_s + WAITING_SHARE * timeout_s
            if unready and not await self._until_ready(file, refusals, until_s):
                await self._keep(ids, file)
                text = "the provider still works on the file of the batch, which is waited for"
                return Failure(FailureKind.THROTTLED, self._failures.line(text), sent=False)
            left_s = max(begun_s + timeout_s - time.monotonic(), 1.0)
            made = await self._asked("POST", path, body=msgspec.json.encode(wanted), timeout_s=left_s, known=path)
            unready = isinstance(made, Failure) and 400 <= made.status < 500 and bool(_UNREADY.search(made.message))
            if not unready:
                break
        if not isinstance(made, Failure):
            return self._made(made) or self._unreadable("what is said of a batch")
        if surely_not_made(made):
            await self._delete((file,))
        return self._not_made(made)

    async def _until_ready(self, file: str, refusals: int, until_s: float) -> bool:
        """Wait until the provider has done its work on a file, or a look at it fails: the batch that is then made tells
        why. Return False if the time of the monotonic clock came first. ``refusals``: those of a batch of it so far."""
        pause_s = LOOK_S * LOOK_GROWTH**refusals
        while time.monotonic() + pause_s <= until_s:
            await asyncio.sleep(pause_s)
            found = await self._asked("GET", self._file_path(file))
            if isinstance(found, Failure) or not in_work(_state_in(found)):
                return True
            pause_s = min(pause_s * LOOK_GROWTH, LOOK_MAX_S)
        return False

    async def _keep(self, ids: tuple[str, ...], file: str) -> None:
        """Keep a file for the next try of its rows; the oldest one goes where there are too many."""
        self._unready[ids] = file
        while len(self._unready) > UNREADY_MAX:
            await self._delete((self._unready.pop(next(iter(self._unready))),))

    async def _kept(self, ids: tuple[str, ...]) -> tuple[str, bool] | None:
        """Return the file that was uploaded for these rows, and whether the provider still works on it; None without
        one that is there."""
        file = self._unready.pop(ids, "")
        if not file:
            return None
        found = await self._asked("GET", self._file_path(file))
        if not isinstance(found, Failure):
            return file, in_work(_state_in(found))
        return None if found.status == NO_SUCH_FILE else (file, True)

    async def close(self) -> None:
        """Close every connection, after the files were deleted that no batch will be made of."""
        files = tuple(self._unready.values())
        self._unready.clear()
        if files:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._delete(files), CLOSING_S)
        await super().close()

    async def _uploaded(self, content: bytes, timeout_s: float) -> tuple[str, bool] | Failure:
        """Upload a file and return its id, and whether the provider still works on it."""
        body, kind = form_of(content)
        more = {"content-type": kind}
        uploaded = await self._asked(
            "POST", self.files_path, body=body, timeout_s=timeout_s, more=more, known=self.files_path
        )
        if isinstance(uploaded, Failure):
            return uploaded
        name = id_in(uploaded)
        return (name, in_work(_state_in(uploaded))) if name else self._unreadable("what is said of an uploaded file")

    async def look(self, name: str) -> BatchStatus | Failure:
        """Return the status of a batch; a failure of ``NEVER_BEGAN`` if its file was refused as a whole."""
        batch = await self._batch(name)
        if isinstance(batch, Failure):
            return batch
        if batch.never_began is None:
            return batch.status()
        code, message, param = batch.never_began
        text = message or "the provider refused the file of the batch and gave no reason"
        if code == QUEUE_FULL:
            return Failure(FailureKind.THROTTLED, self._failures.line(text), 0, QUEUE_FULL, sent=False)
        told = json_bytes({"error": {"code": code or None, "message": text, "param": param}})
        failure = self._failures.of_response(400, {}, told)
        return msgspec.structs.replace(failure, status=0, error_type=NOT_BEGUN, sent=False)

    async def cancel(self, name: str) -> Failure | None:
        """Ask a batch to stop."""
        try:
            answer = await self._asked("POST", self._cancel_path(name), body=b"")
        except NoName as error:
            return self._no_name(error)
        return answer if isinstance(answer, Failure) else None

    async def results(self, name: str) -> AsyncIterator[tuple[str, Reply | Failure]]:
        """Yield results as their lines are read, answers first; none is kept.

        Nothing is told of the rest where a line could not be read whose request is not known: it may be any of them,
        and paid for.
        """
        batch = await self._batch(name)
        if isinstance(batch, Failure):
            yield "", batch
            return
        all_known = True
        for file in batch.outputs:
            async for found in self._outcomes(self._content(file), self._result):
                if found is None:
                    all_known = False
                    continue
                yield self._told(*found)
                if not found[0]:
                    return
        if batch.rest is not None and all_known:
            yield THE_REST, batch.rest

    async def discard(self, name: str) -> Failure | None:
        """Delete the files of a batch: its requests and its results."""
        batch = await self._batch(name)
        return batch if isinstance(batch, Failure) else await self._delete(batch.inputs + batch.outputs)

    async def _delete(self, files: tuple[str, ...]) -> Failure | None:
        """Delete files, each of them; return the first failure. A file that is gone is no failure."""
        first: Failure | None = None
        for file in files:
            try:
                found = await self._asked("DELETE", self._file_path(file))
            except NoName as error:
                found = self._no_name(error)
            if isinstance(found, Failure) and found.status != NO_SUCH_FILE:
                first = first or found
        return first

    def _file_path(self, file: str) -> str:
        """Return the path of a file. Raises NoName."""
        return f"{self.files_path}{path_of(file)}"

    async def _content(self, file: str) -> AsyncIterator[bytes | Failure]:
        try:
            path = f"{self._file_path(file)}/content"
        except NoName as error:
            yield self._no_name(error)
            return
        async for line in self._lines(path):
            yield line

    async def _batch(self, name: str) -> BatchOfFiles | Failure:
        try:
            path = f"{self.batches_path}{path_of(name)}"
        except NoName as error:
            return self._no_name(error)

        def read(data: bytes) -> BatchOfFiles:
            batch = self._batch_in(data)
            batch.status()
            return batch

        answer = await self._asked("GET", path)
        return answer if isinstance(answer, Failure) else self._said("what is said of a batch", answer, read)


# -- wire form -----------------------------------------------------------------------------------------------------


class _Made(msgspec.Struct):
    id: str


def id_in(data: bytes) -> str:
    """Return the id in what a provider says of something that it made; empty: none."""

    def read(data: bytes) -> str:
        name = msgspec.json.decode(data, type=_Made).id
        path_of(name)
        return name

    return id_read(data, read)


def id_read(data: bytes, read: Callable[[bytes], str]) -> str:
    """Return the id that ``read`` finds in what a provider says; empty where it raises, whatever it raises."""
    try:
        return read(data)
    except Exception:
        return ""


class _File(msgspec.Struct):
    status: Any = None
    state: Any = None


def in_work(state: object) -> bool:
    """Return whether a provider that says this of a file still works on it."""
    return str(state).lower() in _IN_WORK


def _state_in(data: bytes) -> object:
    try:
        file = msgspec.json.decode(data, type=_File)
    except (ValueError, RecursionError):
        return None
    return file.status or file.state


def form_of(content: bytes) -> tuple[bytes, str]:
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
