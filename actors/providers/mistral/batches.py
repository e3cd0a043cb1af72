"""Batch jobs of Mistral AI: OpenAI's way, with paths, names and statuses of their own.

https://docs.mistral.ai/capabilities/batch and the package `mistralai` 3.7 (`CreateBatchJobRequest`, `BatchJob`,
`BatchJobStatus`, `extra/batch`). A job costs half. It takes a file of up to 512 MB and 100,000 requests, all for one
model (https://docs.mistral.ai/resources/known-limitations), and is worked off within `timeout_hours`; what it has not
come to by then has no line in its results. Files are kept for 30 days (same page), or until they are deleted. The pages
name no code for too many requests that wait: a job that is refused with status 429 counts as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from actors.ports.message_batches import BatchRequest, BatchStatus
from actors.providers.batches.exchange import PAGE
from actors.providers.batches.file_batches import FIRST, FOREIGN, BatchOfFiles
from actors.providers.chat_completions.batches import OpenAIBatches, marked
from actors.providers.client.canonical_request import model_in
from actors.providers.messages.batch_results import canceled, expired
from cortex.values.bounds.counts import count_of
from policies.failures.failure import Failure

TIMEOUT_HOURS: Final = 24
"""Hours that a job may take: the default, as at the other providers."""
RUNNING: Final = frozenset({"QUEUED", "RUNNING", "CANCELLATION_REQUESTED"})
"""Statuses of a job that goes on; any other one, also one that is new, is an end (`extra/batch/client.py`)."""
FAILED, TIMED_OUT, CANCELLED = "FAILED", "TIMEOUT_EXCEEDED", "CANCELLED"


class MistralBatches(OpenAIBatches):
    """``MessageBatches`` of Mistral."""

    batches_path: ClassVar[str] = "/batch/jobs"
    full_by_status: ClassVar[bool] = True

    def _line_with(self, row: BatchRequest, body: bytes) -> bytes:
        return msgspec.json.encode(_Line(marked(row), msgspec.Raw(body))) + b"\n"

    def _making(self, file: str, rows: Sequence[BatchRequest]) -> tuple[str, dict[str, Any]]:
        return self.batches_path, {
            "input_files": [file], "endpoint": self._lines_as.endpoint, "model": model_in(rows[0].body),
            "metadata": {FIRST: rows[0].custom_id}, "timeout_hours": TIMEOUT_HOURS,
        }  # fmt: skip

    def _batch_in(self, data: bytes) -> BatchOfFiles:
        return msgspec.json.decode(data, type=_Job).known()

    async def _page(self, token: str, size: int) -> tuple[list[BatchStatus], str] | Failure:
        """Return a page. Pages are counted, so that all of them have one size. ``token``: number of the page."""
        number = int(token or "0")
        query = {"page": str(number), "page_size": str(PAGE), "order_by": "-created"}
        answer = await self._asked("GET", self.batches_path, query=query, known=self.batches_path)
        if isinstance(answer, Failure):
            return answer

        def read(data: bytes) -> tuple[list[BatchStatus], str]:
            statuses = [job.known().status() for job in msgspec.json.decode(data, type=_Page).data or ()]
            more = len(statuses) >= PAGE
            return statuses[:size] if not number else statuses, str(number + 1) if more else ""

        return self._said("the list of batch jobs", answer, read)


# -- wire form -----------------------------------------------------------------------------------------------------


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    body: msgspec.Raw


class _JobError(msgspec.Struct):
    message: str = ""


class _Job(msgspec.Struct):
    id: str
    status: str
    created_at: float
    input_files: list[str] = []
    total_requests: Any = 0
    completed_requests: Any = 0
    output_file: str | None = None
    error_file: str | None = None
    metadata: dict[str, Any] | None = None
    errors: list[_JobError] | None = None

    def known(self) -> BatchOfFiles:
        """Return what is said of the job."""
        outputs = tuple(filter(None, (self.output_file, self.error_file)))
        never = self.status == FAILED and count_of(self.completed_requests) == 0 and not outputs
        rest = {TIMED_OUT: expired, CANCELLED: canceled}.get(self.status)
        return BatchOfFiles(
            name=self.id, created_at_s=self.created_at, ended=self.status not in RUNNING, total=self.total_requests,
            first_id=str((self.metadata or {}).get(FIRST) or FOREIGN), inputs=tuple(self.input_files), outputs=outputs,
            never_began=("", "; ".join(each.message for each in self.errors or ()), None) if never else None,
            rest=rest() if rest is not None else None,
        )  # fmt: skip


class _Page(msgspec.Struct):
    data: list[_Job] | None = None
