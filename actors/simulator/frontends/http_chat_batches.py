"""Batches of OpenAI over HTTP: files, batches and their results, at the simulated provider."""

import time
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from actors.simulator.api.batches import NoSuchBatch, SimulatedBatch, SimulatedBatchStore
from actors.simulator.api.chat_batches import LIST_DEFAULT, LIST_MAX, ChatBatchStore, NoSuchFile
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest

FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"

Refused = Callable[[ErrorResponse], web.StreamResponse]


class ChatBatchRoutes:
    """Handler of requests about files and batches. ``begin`` starts the work on a batch; ``reported`` and ``refused``
    make responses from a plain value and from an error."""

    def __init__(
        self, store: SimulatedBatchStore, begin: Callable[[SimulatedBatch], None],
        reported: Callable[[Any], web.StreamResponse], refused: Refused,
    ) -> None:  # fmt: skip
        self.store = ChatBatchStore(store)
        self._begin = begin
        self._reported = reported
        self._refused = refused

    def takes(self, path: str) -> bool:
        """Return whether a path is one of files or batches."""
        return path.startswith((FILES, BATCHES))

    async def handle(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer one request."""
        try:
            kind = FILES if path.startswith(FILES) else BATCHES
            parts = path.removeprefix(kind).strip("/").split("/") if path != kind else []
            return await self._answered(request, kind, request.method, parts)
        except (NoSuchBatch, NoSuchFile) as missing:
            return self._refused(ErrorResponse(404, "not_found_error", f"No such object: {missing}"))
        except BadRequest as error:
            return self._refused(ErrorResponse(400, "invalid_request_error", str(error)))
        except web.HTTPRequestEntityTooLarge:
            return self._refused(ErrorResponse(413, "request_too_large", "Request exceeds the maximum size"))

    async def _answered(
        self, request: web.BaseRequest, kind: str, method: str, parts: list[str]
    ) -> web.StreamResponse:
        store, now_s = self.store, time.time()
        match (kind, method, parts):
            case ("/v1/files", "POST", []):
                form = await request.post()
                file = form.get("file")
                if not isinstance(file, web.FileField):
                    raise BadRequest("'file' is a required property")
                return self._reported(store.upload(file.file.read(), str(form.get("purpose", "")), now_s))
            case ("/v1/files", "GET", [name, "content"]):
                return web.Response(body=store.content(name), headers={"content-type": "application/octet-stream"})
            case ("/v1/batches", "POST", []):
                batch = store.create(await request.read(), now_s)
                if batch.work is not None:
                    self._begin(batch.work)
            case ("/v1/batches", "GET", []):
                return self._list(request)
            case ("/v1/batches", "GET", [name]):
                batch = store.get(name)
            case ("/v1/batches", "POST", [name, "cancel"]):
                batch = store.cancel(name, now_s)
            case _:
                return self._refused(ErrorResponse(404, "not_found_error", "Invalid URL"))
        return self._reported(batch.to_json())

    def _list(self, request: web.BaseRequest) -> web.StreamResponse:
        query = request.rel_url.query
        asked = query.get("limit", str(LIST_DEFAULT))
        if not asked.isdecimal() or not 1 <= int(asked) <= LIST_MAX:
            raise BadRequest(f"limit: an integer from 1 to {LIST_MAX}")
        page, more = self.store.page(int(asked), query.get("after"))
        ends = {"first_id": page[0].name, "last_id": page[-1].name} if page else {"first_id": None, "last_id": None}
        data = [batch.to_json() for batch in page]
        return self._reported({"object": "list", "data": data, "has_more": more} | ends)
