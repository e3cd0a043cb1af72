"""Batches of the Gemini API: https://ai.google.dev/gemini-api/docs/batch-api, https://ai.google.dev/api/batch-api.

A batch costs half and is worked off within a day; one that runs or waits for more than 48 hours expires, without
results. Requests and results have the form of `generateContent`, not that of chat completions, by which the provider is
asked otherwise: a list of batches, which a lost one is found in, is documented for this API alone. Requests are
uploaded as a file (2 GB at most): results of requests that are part of the batch would come back inside the list.

Files are uploaded in two requests (https://ai.google.dev/gemini-api/docs/files): the second one goes to the path that
the first one names, at the provider's own address. Files expire after 48 hours, and have 20 GB in all at most. An
account has 100 batches at a time and a number of tokens in them by model, and what is beyond is refused with status 429
(https://ai.google.dev/gemini-api/docs/rate-limits#batch-api).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from actors.ports.message_batches import BatchRequest, BatchStatus
from actors.providers.batches.exchange import NoName, path_of
from actors.providers.batches.file_batches import BatchOfFiles, FileBatches, id_read, in_work
from actors.providers.batches.result_lines import result_in
from actors.providers.client.canonical_request import model_in
from actors.providers.gemini.generate_request import generate_body
from actors.providers.gemini.generate_response import read_generated
from actors.providers.messages.batch_results import canceled, expired
from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from cortex.values.bounds.counts import count_of
from cortex.values.chat_form.messages import messages_request
from cortex.values.chat_form.request import is_written
from cortex.values.reply import Reply
from policies.estimates.batching import QUEUE_FULL
from policies.failures.failure import Failure

KEY_HEADER: Final = "x-goog-api-key"
VERSION: Final = "/v1beta"
"""Version of the API that its pages on batches and files have, and chat completions; `google-genai` 3.6 asks `v1`."""
SHOWN: Final = "cortex "
"""Beginning of the name of a batch; the custom id of its first request follows."""
_COMPATIBLE: Final = re.compile(r"(/v1(?:beta|alpha)?)?(/openai)?/*$")
"""End of the address of chat completions at the provider: `/v1beta/openai`."""
_ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"})
_QUOTA: Final = 8
"""`google.rpc.Code.RESOURCE_EXHAUSTED`."""


class GeminiBatches(FileBatches):
    """``MessageBatches`` of the Gemini API."""

    batches_path: ClassVar[str] = f"{VERSION}/batches"
    files_path: ClassVar[str] = f"{VERSION}/files"
    full_by_status: ClassVar[bool] = True

    @staticmethod
    def address(url: str) -> str:
        """Return the address without version: paths of uploads and downloads have a word before it."""
        return _COMPATIBLE.sub("", url)

    @staticmethod
    def headers(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers with the key in the header of this API: as a bearer token it takes those of OAuth."""
        return [
            (KEY_HEADER, value.removeprefix("Bearer ")) if name.lower() == "authorization" else (name, value)
            for name, value in headers
        ]

    def _line(self, row: BatchRequest) -> bytes:
        body = messages_request(row.body) if is_written(row.body) else row.body
        return msgspec.json.encode(_Line(row.custom_id, msgspec.Raw(generate_body(body)))) + b"\n"

    def _empty_line(self, row: BatchRequest, model: str) -> bytes:
        return msgspec.json.encode(_Line(row.custom_id, msgspec.Raw(b'{"contents":[]}'))) + b"\n"

    async def _uploaded(self, content: bytes, timeout_s: float) -> tuple[str, bool] | Failure:
        path = f"/upload{VERSION}/files"
        about = {
            "X-Goog-Upload-Protocol": "resumable", "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": str(len(content)),
            "X-Goog-Upload-Header-Content-Type": "application/jsonl",
        }  # fmt: skip
        body = b'{"file":{"display_name":"cortex.jsonl"}}'
        begun = await self._answered("POST", path, body=body, timeout_s=timeout_s, more=about, known=path)
        if isinstance(begun, Failure):
            return begun
        address = urlsplit(begun[1].get("X-Goog-Upload-URL", ""))
        if not address.path.startswith("/"):
            return self._unreadable("where a file is to be uploaded")
        where = address.path + (f"?{address.query}" if address.query else "")
        about = {"X-Goog-Upload-Command": "upload, finalize", "X-Goog-Upload-Offset": "0"}
        sent = await self._asked("POST", where, body=content, timeout_s=timeout_s, more=about)
        if isinstance(sent, Failure):
            return sent

        def read(data: bytes) -> tuple[str, bool]:
            file = msgspec.json.decode(data, type=_Uploaded).file
            return _bare(file.name, "files"), in_work(file.state)

        return self._said("what is said of an uploaded file", sent, read)

    def _making(self, file: str, rows: Sequence[BatchRequest]) -> tuple[str, dict[str, Any]]:
        model = model_in(rows[0].body).removeprefix("models/")
        wanted = {"display_name": f"{SHOWN}{rows[0].custom_id}", "input_config": {"file_name": f"files/{file}"}}
        return f"{VERSION}/models{path_of_model(model)}:batchGenerateContent", {"batch": wanted}

    def _made(self, data: bytes) -> str:
        return id_read(data, lambda data: _bare(msgspec.json.decode(data, type=_Named).name, "batches"))

    def _cancel_path(self, name: str) -> str:
        return f"{self.batches_path}{path_of(name)}:cancel"

    def _batch_in(self, data: bytes) -> BatchOfFiles:
        return msgspec.json.decode(data, type=_Operation).known()

    async def _page(self, token: str, size: int) -> tuple[list[BatchStatus], str] | Failure:
        query = {"pageSize": str(size)} | ({"pageToken": token} if token else {})
        answer = await self._asked("GET", self.batches_path, query=query, known=self.batches_path)
        if isinstance(answer, Failure):
            return answer

        def read(data: bytes) -> tuple[list[BatchStatus], str]:
            page = msgspec.json.decode(data, type=_Page)
            return [each.known().status() for each in page.operations], page.next_page_token

        return self._said("the list of batches", answer, read)

    async def _content(self, file: str) -> AsyncIterator[bytes | Failure]:
        try:
            path = f"/download{self._file_path(file)}:download"
        except NoName as error:
            yield self._no_name(error)
            return
        async for line in self._lines(path, {"alt": "media"}):
            yield line

    def _result(self, line: bytes) -> tuple[str, Reply | Failure]:
        return result_in(line, _RESULT, "key", self._outcome)

    def _outcome(self, found: _Result) -> Reply | Failure:
        body = bytes(found.response)
        if not body:
            error = found.error or _Status()
            status = _HTTP_STATUSES.get(error.code, 500)
            told = msgspec.json.encode({"error": {"message": error.message, "status": error.status}})
            failure = self._failures.of_response(status, {}, told)
            return msgspec.structs.replace(failure, status=500) if failure.may_be_billed else failure
        try:
            return read_generated(body)
        except StreamError as error:
            return self._failures.of_stream_error(error, 200, {})
        except UnreadableResponse as error:
            return self._failures.unreadable(str(error), 200, isinstance(error, UnreadableAnswer))


def path_of_model(model: str) -> str:
    """Return the path of a model below the models. Raises NoName for text that is none."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", model):
        raise NoName(f"{model[:80]!r} is no name of a model")
    return f"/{model}"


def _bare(name: str, kind: str) -> str:
    """Return an id without its kind: `batches/x` is x. Raises NoName."""
    bare = name.removeprefix(f"{kind}/")
    path_of(bare)
    return bare


# -- wire form -----------------------------------------------------------------------------------------------------

_HTTP_STATUSES: Final = {
    1: 499, 3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501, 13: 500, 14: 503, 16: 401,
}  # fmt: skip
"""HTTP statuses of `google.rpc.Code` (https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto)."""


class _Line(msgspec.Struct, gc=False):
    key: str
    request: msgspec.Raw


class _Named(msgspec.Struct):
    name: str


class _File(_Named):
    state: Any = None


class _Uploaded(msgspec.Struct):
    file: _File


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""
    status: str = ""


class _Result(msgspec.Struct):
    key: str
    response: msgspec.Raw = msgspec.Raw(b"")
    error: _Status | None = None


_RESULT: Final = msgspec.json.Decoder(_Result)


class _Stats(msgspec.Struct, rename="camel"):
    request_count: Any = 0
    successful_request_count: Any = 0


class _Input(msgspec.Struct, rename="camel"):
    file_name: str = ""


class _Output(msgspec.Struct, rename="camel"):
    responses_file: str = ""


class _Batch(msgspec.Struct, rename="camel"):
    state: str = ""
    display_name: str = ""
    create_time: str = ""
    batch_stats: _Stats = msgspec.field(default_factory=_Stats)
    input_config: _Input = msgspec.field(default_factory=_Input)
    output: _Output = msgspec.field(default_factory=_Output)


class _Operation(msgspec.Struct):
    name: str
    metadata: _Batch = msgspec.field(default_factory=_Batch)
    response: _Output | None = None
    error: _Status | None = None

    def known(self) -> BatchOfFiles:
        """Return what is said of the batch. Raises NoName for an id that is none, ValueError for a time that is none.
        """
        batch, done = self.metadata, self.metadata.state.rpartition("STATE_")[2]
        output = batch.output.responses_file or (self.response.responses_file if self.response is not None else "")
        answered = count_of(batch.batch_stats.successful_request_count) != 0
        error = self.error or _Status()
        failed = done == "FAILED" and not output and not answered
        rest = {"EXPIRED": expired, "CANCELLED": canceled}.get(done)
        shown = batch.display_name
        return BatchOfFiles(
            name=_bare(self.name, "batches"),
            created_at_s=datetime.fromisoformat(batch.create_time).timestamp() if batch.create_time else 0.0,
            ended=done in _ENDED, total=batch.batch_stats.request_count,
            first_id=shown.removeprefix(SHOWN) if shown.startswith(SHOWN) else "-",
            inputs=tuple(_bare(each, "files") for each in (batch.input_config.file_name,) if each),
            outputs=tuple(_bare(each, "files") for each in (output,) if each),
            never_began=(QUEUE_FULL if error.code == _QUOTA else "", error.message, None) if failed else None,
            # what was answered before a batch ended without results may be billed: then nothing is told of the rest
            rest=rest() if rest is not None and (output or not answered) else None,
        )  # fmt: skip


class _Page(msgspec.Struct):
    operations: list[_Operation] = []
    next_page_token: str = msgspec.field(name="nextPageToken", default="")
