"""Batches of OpenAI: a file of requests is uploaded, worked off within a day at half the price, and its results read.

https://platform.openai.com/docs/guides/batch; Azure has the same (https://learn.microsoft.com/azure/ai-foundry/openai/
how-to/batch). A batch takes 50,000 requests and 200 MB, at Azure too
(https://learn.microsoft.com/azure/foundry/reference/rest/batches-create-batch). At OpenAI files of batches expire after
30 days ("By default, files with `purpose=batch` expire after 30 days", `FileCreateParams` of `openai` 3.57).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from actors.ports.message_batches import BatchRequest, BatchStatus
from actors.providers.batches.file_batches import FIRST, FOREIGN, BatchOfFiles, FileBatches
from actors.providers.chat_completions.batch_results import KEPT_MARK, LINE_MARK, read_line
from cortex.values.chat_form.request import is_written
from cortex.values.reply import Reply
from policies.failures.failure import Failure

WINDOW: Final = "24h"
"""Only completion window that there is."""
_ENDED: Final = frozenset({"completed", "expired", "cancelled"})


class OpenAIBatches(FileBatches):
    """``MessageBatches`` of OpenAI, and of all that follow it."""

    def _line(self, row: BatchRequest) -> bytes:
        return self._line_with(row, self._lines_as.body(row.body))

    def _empty_line(self, row: BatchRequest, model: str) -> bytes:
        return self._line_with(row, msgspec.json.encode({"model": model, self._lines_as.empty: []}))

    def _line_with(self, row: BatchRequest, body: bytes) -> bytes:
        line = _Line(marked(row), self._lines_as.endpoint, msgspec.Raw(body))
        return msgspec.json.encode(line) + b"\n"

    def _making(self, file: str, rows: Sequence[BatchRequest]) -> tuple[str, dict[str, Any]]:
        return self.batches_path, {
            "input_file_id": file, "endpoint": self._lines_as.endpoint, "completion_window": WINDOW,
            "metadata": {FIRST: rows[0].custom_id},
        }  # fmt: skip

    def _batch_in(self, data: bytes) -> BatchOfFiles:
        return msgspec.json.decode(data, type=_Batch).known()

    def _result(self, line: bytes) -> tuple[str, Reply | Failure]:
        return read_line(line, self._failures, self._lines_as.read)

    async def _page(self, token: str, size: int) -> tuple[list[BatchStatus], str] | Failure:
        query = {"limit": str(size)} | ({"after": token} if token else {})
        answer = await self._asked("GET", self.batches_path, query=query, known=self.batches_path)
        if isinstance(answer, Failure):
            return answer

        def read(data: bytes) -> tuple[list[BatchStatus], str]:
            page = msgspec.json.decode(data, type=_Page)
            statuses = [batch.known().status() for batch in page.data]
            return statuses, statuses[-1].name if page.has_more and statuses else ""

        return self._said("the list of batches", answer, read)


def marked(row: BatchRequest) -> str:
    """Return the custom id of a request in its line: it tells whether the reply is to keep the answer as it came."""
    return (KEPT_MARK if is_written(row.body) else LINE_MARK) + row.custom_id


# -- wire form -----------------------------------------------------------------------------------------------------


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Counts(msgspec.Struct):
    total: Any = 0


class _BatchError(msgspec.Struct):
    code: str | None = None
    message: str | None = None
    param: Any = None


class _Errors(msgspec.Struct):
    data: list[_BatchError] = []


class _Batch(msgspec.Struct):
    id: str
    created_at: float
    status: str
    request_counts: _Counts | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    metadata: dict[str, Any] | None = None
    errors: _Errors | None = None

    def known(self) -> BatchOfFiles:
        """Return what is said of the batch."""
        errors = self.errors.data if self.errors is not None else []
        first = errors[0] if errors else _BatchError()
        failed = (first.code or "", first.message or "", first.param) if self.status == "failed" else None
        return BatchOfFiles(
            name=self.id, created_at_s=self.created_at, ended=self.status in _ENDED,
            total=self.request_counts.total if self.request_counts is not None else 0,
            first_id=str((self.metadata or {}).get(FIRST) or FOREIGN),
            inputs=tuple(filter(None, (self.input_file_id,))),
            outputs=tuple(filter(None, (self.output_file_id, self.error_file_id))), never_began=failed,
        )  # fmt: skip


class _Page(msgspec.Struct):
    data: list[_Batch]
    has_more: bool = False
