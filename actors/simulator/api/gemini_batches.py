"""Batches of the Gemini API at the simulated provider, without HTTP: https://ai.google.dev/api/batch-api.

Own code, not that of the client: each is a check of the other.
"""

from typing import Any, Final

import msgspec

from actors.simulator.api import gemini_wire
from actors.simulator.api.chat_batches import ChatBatch, ChatBatchStore, Refused, refusal_in, requests_in
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest
from actors.simulator.token_buckets import rfc3339

GEMINI: Final = "gemini"
_STATES: Final = {
    "validating": "PENDING", "in_progress": "RUNNING", "cancelling": "RUNNING", "completed": "SUCCEEDED",
    "failed": "FAILED", "expired": "EXPIRED", "cancelled": "CANCELLED",
}  # fmt: skip
_LATE: Final = ErrorResponse(504, "timeout_error", "Deadline expired before operation could complete.")


class _Input(msgspec.Struct):
    file_name: str = ""
    fileName: str = ""


class _Batch(msgspec.Struct):
    display_name: str = ""
    displayName: str = ""
    input_config: _Input | None = None
    inputConfig: _Input | None = None


class _Wanted(msgspec.Struct):
    batch: _Batch


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str = msgspec.field(name="key")
    request: dict[str, Any]


class GeminiBatchStore:
    """Batches of one simulated provider."""

    def __init__(self, store: ChatBatchStore) -> None:
        self._store = store
        store.readers[GEMINI] = _result

    def create(self, model: str, body: bytes, now_s: float) -> ChatBatch:
        """Make a batch. Raises ``BadRequest``, ``BatchQueueFull``."""
        try:
            wanted = msgspec.json.decode(body, type=_Wanted).batch
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(str(error)) from None
        given = wanted.input_config or wanted.inputConfig or _Input()
        file = (given.file_name or given.fileName).removeprefix("files/")
        facts = {"model": model, "display_name": wanted.display_name or wanted.displayName}
        try:
            return self._store.make(GEMINI, file, facts, lambda text: _rows(text, model), now_s)
        except Refused as refused:
            raise BadRequest(str(refused)) from None

    def operation(self, batch: ChatBatch) -> dict[str, Any]:
        """Return a batch as an operation. One that expired or was cancelled has no results, unless some of its requests
        were answered before they expired."""
        counts, status = batch.counts(), batch.status()
        if status == "expired" and counts["completed"]:
            status = "completed"
        output = {"responsesFile": f"files/file-output-{batch.name}"} if status == "completed" else None
        name, stats = f"batches/{batch.name}", {"requestCount": str(batch.lines)}
        if status == "completed":
            stats["successfulRequestCount"] = str(counts["completed"])
        about: dict[str, Any] = {
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch", "name": name,
            "model": f"models/{batch.facts['model']}", "displayName": batch.facts["display_name"],
            "createTime": rfc3339(batch.created_s), "inputConfig": {"fileName": f"files/{batch.file}"},
            "batchStats": stats, "state": f"BATCH_STATE_{_STATES[status]}",
        }  # fmt: skip
        if output is None:
            return {"name": name, "metadata": about}
        return {"name": name, "metadata": about | {"output": output}, "done": True, "response": output}

    def page(self, size: int, token: str | None) -> dict[str, Any]:
        """Return a page of the list, the newest batch first."""
        page, more = self._store.page(size, token, GEMINI)
        found: dict[str, Any] = {"operations": [self.operation(batch) for batch in page]} if page else {}
        return found | ({"nextPageToken": page[-1].name} if more else {})


def _rows(content: bytes, model: str) -> list[dict[str, Any]]:
    return requests_in(content, _Line, lambda line, _: gemini_wire.messages_request(line.request, model))


def _result(found: dict[str, Any], at: int, batch: ChatBatch) -> tuple[dict[str, Any], bool] | None:
    """Return a line of results: answers and errors are in one file, and have the key of their request."""
    result, made = found["result"], {"key": found["custom_id"]}
    if result["type"] == "succeeded":
        return made | {"response": gemini_wire.response(result["message"])}, True
    refusal = refusal_in(result) if result["type"] == "errored" else _LATE
    return made | {"error": gemini_wire.status(refusal)}, True
