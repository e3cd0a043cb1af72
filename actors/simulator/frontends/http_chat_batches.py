"""Batches of files over HTTP at the simulated provider: OpenAI's, Mistral's and Gemini's, and their files."""

import time
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from actors.simulator.api import gemini_wire
from actors.simulator.api.batches import BatchQueueFull, NoSuchBatch, SimulatedBatch, SimulatedBatchStore
from actors.simulator.api.chat_batches import (
    LIST_DEFAULT,
    LIST_MAX,
    ChatBatch,
    ChatBatchStore,
    NoSuchFile,
    openai_batch,
)
from actors.simulator.api.gemini_batches import GeminiBatchStore
from actors.simulator.api.mistral_batches import PAGE_MAX, MistralJobs
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest

FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"
JOBS: Final = "/v1/batch/jobs"
GEMINI: Final = ("/v1beta/", "/upload/v1beta/", "/download/v1beta/")
"""Beginnings of the paths of the Gemini API."""
_KINDS: Final = (FILES, BATCHES, JOBS)

Refused = Callable[[ErrorResponse], web.StreamResponse]


class ChatBatchRoutes:
    """Handler of requests about files and batches. ``begin`` starts the work on a batch; ``reported`` and ``refused``
    make responses from a plain value and from an error."""

    def __init__(
        self, store: SimulatedBatchStore, begin: Callable[[SimulatedBatch], None],
        reported: Callable[[Any], web.StreamResponse], refused: Refused,
    ) -> None:  # fmt: skip
        self.store = ChatBatchStore(store)
        self._jobs = MistralJobs(self.store)
        self._gemini = GeminiBatchStore(self.store)
        self._begin = begin
        self._reported = reported
        self._refused_as_openai = refused
        self._uploading: dict[str, bytes] = {}

    def takes(self, path: str) -> bool:
        """Return whether a path is one of files or batches."""
        return path.startswith((*_KINDS, *GEMINI))

    def begins(self, method: str, path: str) -> bool:
        """Return whether a request makes a batch."""
        return method == "POST" and (path in (BATCHES, JOBS) or path.endswith(":batchGenerateContent"))

    async def handle(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer one request."""
        refused = self._refused_as_gemini if path.startswith(GEMINI) else self._refused_as_openai
        try:
            if path.startswith(GEMINI):
                found = await self._of_gemini(request, path)
            else:
                kind = next(kind for kind in _KINDS if path.startswith(kind))
                parts = path.removeprefix(kind).strip("/").split("/") if path != kind else []
                found = await self._answered(request, kind, request.method, parts)
            return found if found is not None else refused(ErrorResponse(404, "not_found_error", "Invalid URL"))
        except (NoSuchBatch, NoSuchFile) as missing:
            return refused(ErrorResponse(404, "not_found_error", f"No such object: {missing}"))
        except BatchQueueFull as full:
            return refused(full.refusal)
        except BadRequest as error:
            return refused(ErrorResponse(400, "invalid_request_error", str(error)))
        except web.HTTPRequestEntityTooLarge:
            return refused(ErrorResponse(413, "request_too_large", "Request exceeds the maximum size"))

    def _refused_as_gemini(self, refusal: ErrorResponse) -> web.StreamResponse:
        status, body = gemini_wire.error(refusal)
        return web.json_response(body, status=status)

    def _begun(self, batch: ChatBatch) -> ChatBatch:
        if batch.work is not None:
            self._begin(batch.work)
        return batch

    async def _answered(
        self, request: web.BaseRequest, kind: str, method: str, parts: list[str]
    ) -> web.StreamResponse | None:
        store, jobs, now_s = self.store, self._jobs, time.time()
        match (kind, method, parts):
            case ("/v1/files", "POST", []):
                form = await request.post()
                file = form.get("file")
                if not isinstance(file, web.FileField):
                    raise BadRequest("'file' is a required property")
                return self._reported(store.upload(file.file.read(), str(form.get("purpose", "")), now_s))
            case ("/v1/files", "GET", [name, "content"]):
                return _text(store.content(name))
            case ("/v1/files", "DELETE", [name]):
                return self._reported(store.delete(name))
            case ("/v1/batches", "POST", []):
                return self._reported(openai_batch(self._begun(store.create(await request.read(), now_s))))
            case ("/v1/batches", "GET", []):
                return self._list(request)
            case ("/v1/batches", "GET", [name]):
                return self._reported(openai_batch(store.get(name)))
            case ("/v1/batches", "POST", [name, "cancel"]):
                return self._reported(openai_batch(store.cancel(name, now_s)))
            case ("/v1/batch/jobs", "POST", []):
                return self._reported(jobs.job(self._begun(jobs.create(await request.read(), now_s))))
            case ("/v1/batch/jobs", "GET", []):
                query = request.rel_url.query
                size = int(query.get("page_size", PAGE_MAX))
                return self._reported(jobs.page(int(query.get("page", 0)), min(size, PAGE_MAX)))
            case ("/v1/batch/jobs", "GET", [name]):
                return self._reported(jobs.job(store.get(name)))
            case ("/v1/batch/jobs", "POST", [name, "cancel"]):
                return self._reported(jobs.job(store.cancel(name, now_s)))
        return None

    async def _of_gemini(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        store, gemini, now_s = self.store, self._gemini, time.time()
        parts, action = path.strip("/").split("/"), ""
        if "v1beta" in parts and ":" in parts[-1]:
            parts[-1], _, action = parts[-1].partition(":")
        match (request.method, parts, action):
            case ("POST", ["upload", "v1beta", "files"], ""):
                return await self._upload(request, now_s)
            case ("GET", ["download", "v1beta", "files", name] | ["v1beta", "files", name], "download"):
                return _text(store.content(name))
            case ("DELETE", ["v1beta", "files", name], ""):
                store.delete(name)
                return self._reported({})
            case ("POST", ["v1beta", "models", model], "batchGenerateContent"):
                batch = self._begun(gemini.create(model, await request.read(), now_s))
                return self._reported(gemini.operation(batch))
            case ("GET", ["v1beta", "batches"], ""):
                query = request.rel_url.query
                return self._reported(gemini.page(int(query.get("pageSize", LIST_DEFAULT)), query.get("pageToken")))
            case ("GET", ["v1beta", "batches", name], ""):
                return self._reported(gemini.operation(store.get(name)))
            case ("POST", ["v1beta", "batches", name], "cancel"):
                store.cancel(name, now_s)
                return self._reported({})
        return None

    async def _upload(self, request: web.BaseRequest, now_s: float) -> web.StreamResponse:
        """Begin an upload, or end one: its content comes in a second request, at the address that the first names."""
        headers, name = request.headers, request.rel_url.query.get("upload_id", "")
        if headers.get("X-Goog-Upload-Command") == "start":
            name = f"upload-{len(self._uploading)}"
            self._uploading[name] = b""
            url = f"http://upload.example/upload/v1beta/files?upload_id={name}&upload_protocol=resumable"
            return web.json_response({}, headers={"X-Goog-Upload-URL": url, "X-Goog-Upload-Status": "active"})
        if name not in self._uploading or headers.get("X-Goog-Upload-Command") != "upload, finalize":
            raise BadRequest("Upload has already been terminated.")
        file = self.store.upload(await request.read(), "batch", now_s)
        return self._reported({"file": {"name": f"files/{file['id']}", "mimeType": "application/jsonl"}})

    def _list(self, request: web.BaseRequest) -> web.StreamResponse:
        query = request.rel_url.query
        asked = query.get("limit", str(LIST_DEFAULT))
        if not asked.isdecimal() or not 1 <= int(asked) <= LIST_MAX:
            raise BadRequest(f"limit: an integer from 1 to {LIST_MAX}")
        page, more = self.store.page(int(asked), query.get("after"))
        ends = {"first_id": page[0].name, "last_id": page[-1].name} if page else {"first_id": None, "last_id": None}
        data = [openai_batch(batch) for batch in page]
        return self._reported({"object": "list", "data": data, "has_more": more} | ends)


def _text(content: bytes) -> web.StreamResponse:
    return web.Response(body=content, headers={"content-type": "application/octet-stream"})
