"""Batches of OpenAI at the simulated provider, without HTTP: files, batches made of them, and files of results.

https://platform.openai.com/docs/guides/batch. A batch is worked off by the store of message batches; here are the
files, the states and the lines of the other form. Own code, not that of the client: each is a check of the other.
"""

from typing import Any, Final

import msgspec

from actors.simulator.api import chat_wire, wire
from actors.simulator.api.batches import BatchQueueFull, NoSuchBatch, SimulatedBatch, SimulatedBatchStore
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest

LIST_DEFAULT: Final = 20
LIST_MAX: Final = 100
REQUESTS_MAX: Final = 50_000
BYTES_MAX: Final = 200_000_000
ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/chat/completions"})
"""The second one is Azure's."""
QUEUE_FULL: Final = "token_limit_exceeded"

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
    """A batch: its file, and the message batch that works it off; None if it failed before it began."""

    name: str
    wanted: _Wanted
    created_s: float
    lines: int
    work: SimulatedBatch | None = None
    errors: list[dict[str, Any]] = []
    looks: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the batch in the provider's form. It is checked first, and nothing is counted meanwhile."""
        work, counts = self.work, {"total": 0, "completed": 0, "failed": 0}
        status = "failed" if work is None else _status(work)
        if not self.looks:
            status = "validating"
        elif work is not None:
            failed = sum(work.counts[kind] for kind in ("errored", "expired", "canceled"))
            counts = {"total": self.lines, "completed": work.counts["succeeded"], "failed": failed}
        self.looks += 1
        over = work is not None and work.ended_s is not None and status != "validating"
        failing = over and counts["failed"] > 0
        return {
            "id": self.name, "object": "batch", "endpoint": self.wanted.endpoint,
            "errors": {"object": "list", "data": self.errors} if status == "failed" else None,
            "input_file_id": self.wanted.input_file_id, "completion_window": self.wanted.completion_window,
            "status": status, "created_at": int(self.created_s), "request_counts": counts,
            "output_file_id": f"file-output-{self.name}" if over and counts["completed"] else None,
            "error_file_id": f"file-error-{self.name}" if failing else None,
            "metadata": self.wanted.metadata,
        }  # fmt: skip


def _status(work: SimulatedBatch) -> str:
    if work.ended_s is None:
        return "in_progress" if work.cancelled_s is None else "cancelling"
    return "cancelled" if work.cancelled_s is not None else "expired" if work.counts["expired"] else "completed"


class ChatBatchStore:
    """Files and batches of one simulated provider."""

    def __init__(self, store: SimulatedBatchStore) -> None:
        self._store = store
        self._files: dict[str, bytes] = {}
        self._all: dict[str, ChatBatch] = {}

    def upload(self, content: bytes, purpose: str, now_s: float) -> dict[str, Any]:
        """Keep a file, and return it in the provider's form. Raises ``BadRequest``."""
        if purpose != "batch":
            raise BadRequest(f"'{purpose}' is not one of ['batch'] - 'purpose'")
        if len(content) > BYTES_MAX:
            raise BadRequest("Batch input file is larger than the 200 MB maximum")
        name = f"file-{len(self._files):06d}"
        self._files[name] = content
        return {"id": name, "object": "file", "bytes": len(content), "purpose": purpose, "filename": "requests.jsonl",
                "created_at": int(now_s), "status": "processed"}  # fmt: skip

    def create(self, body: bytes, now_s: float) -> ChatBatch:
        """Make a batch of a file. Raises ``BadRequest``. A file that is refused makes a batch that fails."""
        try:
            wanted = msgspec.json.decode(body, type=_Wanted)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(str(error)) from None
        if wanted.endpoint not in ENDPOINTS or wanted.completion_window != "24h":
            raise BadRequest(f"Invalid value: '{wanted.endpoint}', '{wanted.completion_window}'")
        if wanted.input_file_id not in self._files:
            raise BadRequest(f"Invalid file_id: {wanted.input_file_id}")
        name, count = f"batch_{len(self._all):06d}", 0
        work: SimulatedBatch | None = None
        errors: list[dict[str, Any]] = []
        try:
            rows = _rows(self._files[wanted.input_file_id], wanted.endpoint)
            count = len(rows)
            work = self._store.create(wire.encoded({"requests": rows}), now_s)
        except BatchQueueFull as full:
            text = f"Enqueued token limit reached for sim in organization org-sim. {full.refusal.message}. "
            text += "Please try again once some in_progress batches have been completed."
            errors = [{"code": QUEUE_FULL, "message": text, "param": None, "line": None}]
        except _Refused as refused:
            errors = [{"code": refused.code, "message": str(refused), "param": None, "line": refused.line}]
        batch = ChatBatch(name=name, wanted=wanted, created_s=now_s, lines=count, work=work, errors=errors)
        self._all[name] = batch
        return batch

    def get(self, name: str) -> ChatBatch:
        """Return the batch of this name. Raises ``NoSuchBatch``."""
        try:
            return self._all[name]
        except KeyError:
            raise NoSuchBatch(name) from None

    def page(self, limit: int, after: str | None) -> tuple[list[ChatBatch], bool]:
        """Return batches, the newest first, behind ``after``, and whether more follow."""
        newest = list(reversed(self._all.values()))
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
        kind, _, name = file.removeprefix("file-").partition("-")
        work = self._all[name].work if kind in ("output", "error") and name in self._all else None
        if work is not None:
            lines = [_result(line, at) for at, line in enumerate(work.lines)]
            return b"".join(wire.encoded(line) + b"\n" for line, good in lines if good == (kind == "output"))
        if file not in self._files:
            raise NoSuchFile(file)
        return self._files[file]


class _Refused(ValueError):
    """File of a batch that is refused as a whole."""

    def __init__(self, code: str, message: str, line: int | None) -> None:
        super().__init__(message)
        self.code, self.line = code, line


def _rows(content: bytes, endpoint: str) -> list[dict[str, Any]]:
    """Return the requests of a file as those of a message batch."""
    rows: list[dict[str, Any]] = []
    models: set[Any] = set()
    for number, text in enumerate(filter(None, content.split(b"\n")), 1):
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _Refused("invalid_json_line", "This line is not parseable as valid JSON.", number) from None
        if line.url != endpoint or line.method != "POST":
            raise _Refused("mismatched_url", "The URL provided does not match the batch endpoint.", number)
        models.add(line.body.get("model"))
        if len(models) > 1:
            raise _Refused("mismatched_model", "The provided model does not match the rest of the batch.", number)
        try:
            params = msgspec.Raw(chat_wire.messages_request(wire.encoded(line.body)))
        except BadRequest:
            params = msgspec.Raw(b"{}")  # refused when it is worked off
        rows.append({"custom_id": line.custom_id, "params": params})
    if not rows:
        raise _Refused("empty_file", "The batch input file is empty.", None)
    if len(rows) > REQUESTS_MAX:
        raise _Refused("too_many_tasks", f"The file has more than {REQUESTS_MAX} requests.", None)
    if len({row["custom_id"] for row in rows}) < len(rows):
        raise _Refused("duplicate_custom_id", "The custom_id of a line stands twice.", None)
    return rows


def _result(line: bytes, at: int) -> tuple[dict[str, Any], bool]:
    """Return a line of results in the form of OpenAI, and whether it is an answer."""
    found = msgspec.json.decode(line)
    result, made = found["result"], {"id": f"batch_req_{at:06d}", "custom_id": found["custom_id"]}
    if result["type"] in _NOT_BEGUN:
        text = "This request could not be executed before the completion window expired."
        return made | {"response": None, "error": {"code": _NOT_BEGUN[result["type"]], "message": text}}, False
    if result["type"] == "errored":
        error = result["error"]["error"]
        refusal = ErrorResponse(_STATUSES.get(error["type"], 500), error["type"], error["message"])
        status, body = chat_wire.error(refusal)
        response = {"status_code": status, "request_id": f"req_{at}", "body": body}
        return made | {"response": response, "error": None}, False
    completion = msgspec.Raw(chat_wire.whole(result["message"]))
    response = {"status_code": 200, "request_id": f"req_{at}", "body": completion}
    return made | {"response": response, "error": None}, True
