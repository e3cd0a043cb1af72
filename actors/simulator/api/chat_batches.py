"""Batches of files at the simulated provider, without HTTP: files, batches made of them, and files of results.

https://platform.openai.com/docs/guides/batch. A batch is worked off by the store of message batches; here are the
files, the states and the lines of the other form, those of OpenAI; ``mistral_batches`` and ``gemini_batches`` have the
others. Own code, not that of the client: each is a check of the other.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import msgspec

from actors.simulator.api import chat_wire, embeddings_wire, responses_wire, wire
from actors.simulator.api.batches import BatchQueueFull, NoSuchBatch, SimulatedBatch, SimulatedBatchStore
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest

LIST_DEFAULT: Final = 20
LIST_MAX: Final = 100
REQUESTS_MAX: Final = 50_000
BYTES_MAX: Final = 200_000_000
ENDPOINTS: Final[Mapping[str, ModuleType]] = {
    "/v1/chat/completions": chat_wire, "/chat/completions": chat_wire, "/v1/responses": responses_wire,
    "/v1/embeddings": embeddings_wire,
}  # fmt: skip
"""Wire forms by the path in a batch. ``/chat/completions`` is Azure's."""
QUEUE_FULL: Final = "token_limit_exceeded"
OPENAI: Final = "openai"

_STATUSES: Final = {
    "invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404,
    "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip
_NOT_BEGUN: Final = {"expired": "batch_expired", "canceled": "batch_cancelled"}


class NoSuchFile(LookupError):
    """No file has this name."""


class _Wanted(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class ChatBatch(msgspec.Struct, kw_only=True):
    """A batch: its file, and the message batch that works it off; None if it failed before it began.

    ``form``: API by which it was made. ``facts``: what was said when it was made.
    """

    name: str
    form: str
    file: str
    facts: dict[str, Any]
    created_s: float
    lines: int
    work: SimulatedBatch | None = None
    errors: list[dict[str, Any]] = []
    looks: int = 0

    def counts(self) -> dict[str, int]:
        """Return the requests that were answered and that were not."""
        if self.work is None:
            return {"total": 0, "completed": 0, "failed": 0}
        failed = sum(self.work.counts[kind] for kind in ("errored", "expired", "canceled"))
        return {"total": self.lines, "completed": self.work.counts["succeeded"], "failed": failed}

    def status(self) -> str:
        """Return the status in the words of OpenAI. A batch is checked first, until it is looked at."""
        self.looks += 1
        if self.looks == 1:
            return "validating"
        work = self.work
        if work is None:
            return "failed"
        if work.ended_s is None:
            return "in_progress" if work.cancelled_s is None else "cancelling"
        return "cancelled" if work.cancelled_s is not None else "expired" if work.counts["expired"] else "completed"


def openai_batch(batch: ChatBatch) -> dict[str, Any]:
    """Return a batch in the form of OpenAI. Nothing is counted while it is checked."""
    status = batch.status()
    counts = batch.counts() if status != "validating" else {"total": 0, "completed": 0, "failed": 0}
    over = status in ("completed", "expired", "cancelled")
    return {
        "id": batch.name, "object": "batch", "endpoint": batch.facts["endpoint"],
        "errors": {"object": "list", "data": batch.errors} if status == "failed" else None,
        "input_file_id": batch.file, "completion_window": batch.facts["completion_window"],
        "status": status, "created_at": int(batch.created_s), "request_counts": counts,
        "output_file_id": f"file-output-{batch.name}" if over and counts["completed"] else None,
        "error_file_id": f"file-error-{batch.name}" if over and counts["failed"] else None,
        "metadata": batch.facts["metadata"],
    }  # fmt: skip


LineReader = Callable[[dict[str, Any], int, ChatBatch], tuple[dict[str, Any], bool] | None]
"""Function ``(result of a message batch, its place, batch) -> (line, whether it is an answer)``; None: no line."""


class ChatBatchStore:
    """Files and batches of one simulated provider."""

    def __init__(self, store: SimulatedBatchStore) -> None:
        self._store = store
        self._files: dict[str, bytes] = {}
        self._deleted: set[str] = set()
        self._uploads = 0
        self._all: dict[str, ChatBatch] = {}
        self.readers: dict[str, LineReader] = {OPENAI: _result}
        """Makers of the lines of results by the form of their batch."""

    @property
    def files(self) -> list[str]:
        """Ids of the files that are there, those of results too."""
        results = [
            f"file-{kind}-{batch.name}"
            for batch in self._all.values() if batch.work is not None and batch.work.ended_s is not None
            for kind in ("output", "error")
        ]  # fmt: skip
        return [*self._files, *(file for file in results if file not in self._deleted and self.content(file))]

    def upload(self, content: bytes, purpose: str, now_s: float) -> dict[str, Any]:
        """Keep a file, and return it in the provider's form: Mistral's has two fields more. Raises ``BadRequest``."""
        if purpose != "batch":
            raise BadRequest(f"'{purpose}' is not one of ['batch'] - 'purpose'")
        if len(content) > BYTES_MAX:
            raise BadRequest("Batch input file is larger than the 200 MB maximum")
        name = f"file-{self._uploads:06d}"
        self._uploads += 1
        self._files[name] = content
        return {"id": name, "object": "file", "bytes": len(content), "purpose": purpose, "filename": "requests.jsonl",
                "created_at": int(now_s), "status": "processed",
                "sample_type": "batch_request", "source": "upload"}  # fmt: skip

    def delete(self, file: str) -> dict[str, Any]:
        """Delete a file. Raises ``NoSuchFile``."""
        self.content(file)
        if self._files.pop(file, None) is None:
            self._deleted.add(file)
        return {"id": file, "object": "file", "deleted": True}

    def create(self, body: bytes, now_s: float) -> ChatBatch:
        """Make a batch of a file. Raises ``BadRequest``. A file that is refused makes a batch that fails."""
        try:
            wanted = msgspec.json.decode(body, type=_Wanted)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(str(error)) from None
        if wanted.endpoint not in ENDPOINTS or wanted.completion_window != "24h":
            raise BadRequest(f"Invalid value: '{wanted.endpoint}', '{wanted.completion_window}'")
        facts = msgspec.structs.asdict(wanted)
        errors: list[dict[str, Any]]
        try:
            return self.make(OPENAI, wanted.input_file_id, facts, lambda text: _rows(text, wanted.endpoint), now_s)
        except BatchQueueFull as full:
            text = f"Enqueued token limit reached for sim in organization org-sim. {full.refusal.message}. "
            text += "Please try again once some in_progress batches have been completed."
            errors = [{"code": QUEUE_FULL, "message": text, "param": None, "line": None}]
        except Refused as refused:
            errors = [{"code": refused.code, "message": str(refused), "param": None, "line": refused.line}]
        return self._kept(OPENAI, wanted.input_file_id, facts, 0, None, errors, now_s)

    def make(
        self, form: str, file: str, facts: dict[str, Any], rows_in: Callable[[bytes], list[dict[str, Any]]],
        now_s: float,
    ) -> ChatBatch:  # fmt: skip
        """Make a batch of a file. ``rows_in``: reader of its lines. Raises ``BadRequest``, ``BatchQueueFull`` and the
        errors of the reader."""
        if file not in self._files:
            raise BadRequest(f"Invalid file_id: {file}")
        rows = rows_in(self._files[file])
        work = self._store.create(wire.encoded({"requests": rows}), now_s)
        return self._kept(form, file, facts, len(rows), work, [], now_s)

    def _kept(
        self, form: str, file: str, facts: dict[str, Any], lines: int, work: SimulatedBatch | None,
        errors: list[dict[str, Any]], now_s: float,
    ) -> ChatBatch:  # fmt: skip
        name = f"batch_{len(self._all):06d}"
        self._all[name] = ChatBatch(
            name=name, form=form, file=file, facts=facts, created_s=now_s, lines=lines, work=work, errors=errors
        )
        return self._all[name]

    def get(self, name: str) -> ChatBatch:
        """Return the batch of this name. Raises ``NoSuchBatch``."""
        try:
            return self._all[name]
        except KeyError:
            raise NoSuchBatch(name) from None

    def page(self, limit: int, after: str | None, form: str = OPENAI) -> tuple[list[ChatBatch], bool]:
        """Return batches, the newest first, behind ``after``, and whether more follow."""
        newest = [batch for batch in reversed(self._all.values()) if batch.form == form]
        if after is not None:
            newest = newest[newest.index(self.get(after)) + 1 :]
        return newest[:limit], len(newest) > limit

    def cancel(self, name: str, now_s: float) -> ChatBatch:
        """Cancel a batch; one that has ended is unchanged."""
        batch = self.get(name)
        if batch.work is not None:
            self._store.cancel(batch.work.name, now_s)
        return batch

    def content(self, file: str) -> bytes:
        """Return the content of a file. Raises ``NoSuchFile``."""
        if file in self._deleted:
            raise NoSuchFile(file)
        kind, _, name = file.removeprefix("file-").partition("-")
        batch = self._all.get(name) if kind in ("output", "error") else None
        if batch is not None and batch.work is not None:
            read = self.readers[batch.form]
            found = (read(msgspec.json.decode(line), at, batch) for at, line in enumerate(batch.work.lines))
            lines = [line for line in found if line is not None]
            return b"".join(wire.encoded(line) + b"\n" for line, good in lines if good == (kind == "output"))
        if file not in self._files:
            raise NoSuchFile(file)
        return self._files[file]


class Refused(ValueError):
    """File of a batch that is refused as a whole."""

    def __init__(self, code: str, message: str, line: int | None) -> None:
        super().__init__(message)
        self.code, self.line = code, line


def requests_in(content: bytes, line: type[Any], request: Callable[[Any, int], bytes]) -> list[dict[str, Any]]:
    """Return the requests of a file as those of a message batch. ``line``: type of its lines, with a ``custom_id``;
    ``request``: maker of a request of a line and its number. Raises ``Refused``, as the maker does too; what the maker
    refuses as ``BadRequest`` is refused when it is worked off."""
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(filter(None, content.split(b"\n")), 1):
        try:
            found = msgspec.json.decode(text, type=line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Refused("invalid_json_line", "This line is not parseable as valid JSON.", number) from None
        try:
            params = msgspec.Raw(request(found, number))
        except BadRequest:
            params = msgspec.Raw(b"{}")
        rows.append({"custom_id": found.custom_id, "params": params})
    if not rows:
        raise Refused("empty_file", "The batch input file is empty.", None)
    return rows


def _rows(content: bytes, endpoint: str) -> list[dict[str, Any]]:
    """Return the requests of a file of OpenAI's."""
    models: set[Any] = set()

    def request(line: _Line, number: int) -> bytes:
        if line.url != endpoint or line.method != "POST":
            raise Refused("mismatched_url", "The URL provided does not match the batch endpoint.", number)
        models.add(line.body.get("model"))
        if len(models) > 1:
            raise Refused("mismatched_model", "The provided model does not match the rest of the batch.", number)
        return bytes(ENDPOINTS[endpoint].messages_request(wire.encoded(line.body)))

    rows = requests_in(content, _Line, request)
    if len(rows) > REQUESTS_MAX:
        raise Refused("too_many_tasks", f"The file has more than {REQUESTS_MAX} requests.", None)
    if len({row["custom_id"] for row in rows}) < len(rows):
        raise Refused("duplicate_custom_id", "The custom_id of a line stands twice.", None)
    return rows


def _result(found: dict[str, Any], at: int, batch: ChatBatch) -> tuple[dict[str, Any], bool]:
    """Return a line of results in the form of OpenAI, and whether it is an answer."""
    result, made = found["result"], {"id": f"batch_req_{at:06d}", "custom_id": found["custom_id"]}
    if result["type"] in _NOT_BEGUN:
        text = "This request could not be executed before the completion window expired."
        return made | {"response": None, "error": {"code": _NOT_BEGUN[result["type"]], "message": text}}, False
    response, good = response_of(result, batch)
    return made | {"response": {"request_id": f"req_{at}"} | response, "error": None}, good


def response_of(result: dict[str, Any], batch: ChatBatch) -> tuple[dict[str, Any], bool]:
    """Return status and body of the answer to a request that was worked off, and whether it is a good one."""
    if result["type"] == "errored":
        status, body = chat_wire.error(refusal_in(result))
        return {"status_code": status, "body": body}, False
    whole = msgspec.Raw(ENDPOINTS[batch.facts["endpoint"]].whole(result["message"]))
    return {"status_code": 200, "body": whole}, True


def refusal_in(result: dict[str, Any]) -> ErrorResponse:
    """Return the error in a result of a message batch."""
    error = result["error"]["error"]
    return ErrorResponse(_STATUSES.get(error["type"], 500), error["type"], error["message"])
