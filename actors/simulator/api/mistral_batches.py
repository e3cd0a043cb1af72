"""Batch jobs of Mistral at the simulated provider, without HTTP: https://docs.mistral.ai/capabilities/batch.

Own code, not that of the client: each is a check of the other.
"""

from typing import Any, Final

import msgspec

from actors.simulator.api import wire
from actors.simulator.api.chat_batches import (
    ENDPOINTS,
    ChatBatch,
    ChatBatchStore,
    Refused,
    requests_in,
    response_of,
)
from actors.simulator.request import BadRequest

MISTRAL: Final = "mistral"
PAGE_MAX: Final = 100

_STATUSES: Final = {
    "validating": "QUEUED", "in_progress": "RUNNING", "cancelling": "CANCELLATION_REQUESTED", "completed": "SUCCESS",
    "failed": "FAILED", "expired": "TIMEOUT_EXCEEDED", "cancelled": "CANCELLED",
}  # fmt: skip


class _Wanted(msgspec.Struct):
    input_files: list[str]
    endpoint: str
    model: str
    metadata: dict[str, str] | None = None
    timeout_hours: int = 24


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    body: dict[str, Any]


class MistralJobs:
    """Batch jobs of one simulated provider."""

    def __init__(self, store: ChatBatchStore) -> None:
        self._store = store
        store.readers[MISTRAL] = _result

    def create(self, body: bytes, now_s: float) -> ChatBatch:
        """Make a job. Raises ``BadRequest``, ``BatchQueueFull``."""
        try:
            wanted = msgspec.json.decode(body, type=_Wanted)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(str(error)) from None
        if wanted.endpoint not in ENDPOINTS or len(wanted.input_files) != 1 or not 1 <= wanted.timeout_hours <= 168:
            raise BadRequest(f"Invalid job: {wanted.endpoint}, {wanted.input_files}, {wanted.timeout_hours}")
        facts = msgspec.structs.asdict(wanted)
        try:
            return self._store.make(MISTRAL, wanted.input_files[0], facts, lambda text: _rows(text, wanted), now_s)
        except Refused as refused:
            raise BadRequest(str(refused)) from None

    def job(self, batch: ChatBatch) -> dict[str, Any]:
        """Return a job in the form of Mistral."""
        status, counts = batch.status(), batch.counts()
        over = status in ("completed", "expired", "cancelled")
        unworked = batch.work.counts["expired"] + batch.work.counts["canceled"] if batch.work is not None else 0
        failed = counts["failed"] - unworked
        return {
            "id": batch.name, "object": "batch", "input_files": [batch.file], "metadata": batch.facts["metadata"],
            "endpoint": batch.facts["endpoint"], "model": batch.facts["model"], "status": _STATUSES[status],
            "created_at": int(batch.created_s), "total_requests": batch.lines, "errors": [],
            "completed_requests": counts["completed"] + failed, "succeeded_requests": counts["completed"],
            "failed_requests": failed,
            "output_file": f"file-output-{batch.name}" if over and counts["completed"] else None,
            "error_file": f"file-error-{batch.name}" if over and failed else None,
        }  # fmt: skip

    def page(self, number: int, size: int) -> dict[str, Any]:
        """Return a page of the list, the newest job first. Pages are counted from 0."""
        newest, _ = self._store.page(1 << 30, None, MISTRAL)
        data = [self.job(batch) for batch in newest[number * size : (number + 1) * size]]
        return {"object": "list", "total": len(newest), "data": data}


def _rows(content: bytes, wanted: _Wanted) -> list[dict[str, Any]]:
    form = ENDPOINTS[wanted.endpoint]
    return requests_in(
        content, _Line, lambda line, _: form.messages_request(wire.encoded({"model": wanted.model} | line.body))
    )


def _result(found: dict[str, Any], at: int, batch: ChatBatch) -> tuple[dict[str, Any], bool] | None:
    """Return a line of results; None for a request that was not worked off."""
    if found["result"]["type"] in ("expired", "canceled"):
        return None
    response, good = response_of(found["result"], batch)
    return {"id": f"batch-{at}", "custom_id": found["custom_id"], "response": response, "error": None}, good
