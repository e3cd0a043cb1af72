"""OpenAI's APIs at the simulated provider: the same decisions and answers in those forms.

``POST /v1/chat/completions`` and ``POST /v1/responses``, streamed too, ``POST /v1/responses/input_tokens``,
``POST /v1/embeddings``, and ``GET /v1/models`` where the request has no version of the Messages API.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from aiohttp import web

from actors.simulator.api import chat_wire, embeddings_wire, responses_wire, wire
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.faults import CREDIT, ErrorResponse
from actors.simulator.frontends.http_batches import BatchRoutes
from actors.simulator.frontends.http_chat_batches import ChatBatchRoutes
from actors.simulator.frontends.http_delivery import ResponseDelivery, TrackedResponse
from actors.simulator.request import BadRequest

COMPLETIONS: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
RESPONSES: Final = "/v1/responses"
COUNTER: Final = f"{RESPONSES}/input_tokens"
FORMS: Final[Mapping[str, ModuleType]] = {
    COMPLETIONS: chat_wire, RESPONSES: responses_wire, EMBEDDINGS: embeddings_wire,
}  # fmt: skip
"""Wire forms by path."""
MODELS: Final = "/v1/models"
COMPATIBLE: Final = "/v1beta/openai"
"""Address at which Gemini has OpenAI's API."""
EMPTY: Final = b"{}"
"""Request that asks which API is there, and no model anything: it is refused and not counted."""
_NO_KEY: Final = ErrorResponse(
    401, "authentication_error", "You didn't provide an API key. You need to provide your API key in an Authorization "
    "header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
)  # fmt: skip
_TOO_LARGE: Final = ErrorResponse(413, "request_too_large", "Request exceeds the maximum size")
_WRONG_METHOD: Final = ErrorResponse(405, "invalid_request_error", "Method Not Allowed")


def own_path(path: str) -> str:
    """Return a path of Gemini's chat completions as OpenAI's; any other one as it is."""
    return f"/v1{path.removeprefix(COMPATIBLE)}" if path.startswith(COMPATIBLE) else path


class ChatRoutes:
    """Handler of requests of OpenAI's APIs. ``headers`` makes those of a response."""

    def __init__(
        self, provider: SimulatedProvider, headers: Callable[[], dict[str, str]], bytes_max: int, batches: BatchRoutes
    ) -> None:
        self._provider = provider
        self._headers = headers
        self._bytes_max = bytes_max
        self.batches = ChatBatchRoutes(batches.store, batches.begin, self._response, self._refused)

    def takes(self, request: web.BaseRequest, path: str) -> bool:
        """Return whether a request is one of OpenAI's API."""
        path = own_path(path)
        own = path in FORMS or path == COUNTER or self.batches.takes(path)
        return own or (path.startswith(MODELS) and "anthropic-version" not in request.headers)

    async def handle(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer one request."""
        path = own_path(path)
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        named = request.headers.get("api-key", "") or request.headers.get("x-goog-api-key", "")
        key = key.strip() if scheme.lower() == "bearer" else named.strip()
        known = self._provider.settings.keys
        if not key or (known and key not in known):
            self._provider.tally.unauthorised += 1
            wrong = ErrorResponse(401, "authentication_error", "Incorrect API key provided.")
            return self._refused(wrong if key else _NO_KEY)
        if self.batches.takes(path):
            if self.batches.begins(request.method, path) and self._provider.out_of_credit:
                return self._refused(CREDIT)
            return await self.batches.handle(request, path)
        form = FORMS.get(path)
        if request.method != ("POST" if form is not None or path == COUNTER else "GET"):
            return self._refused(_WRONG_METHOD)
        if form is None and path != COUNTER:
            return self._models(path)
        if (request.content_length or 0) > self._bytes_max:
            return self._refused(_TOO_LARGE)
        try:
            given = await request.read()
            if given == EMPTY:
                return self._refused(ErrorResponse(400, "invalid_request_error", "you must provide a model parameter"))
            if form is None:
                counted = self._provider.count_tokens(responses_wire.counted_request(given))
                return self._response({"object": "response.input_tokens", "input_tokens": counted})
            body = form.messages_request(given)
            answered: Any = form
            if form is responses_wire and responses_wire.asks_for_thoughts(given):
                answered = responses_wire.ThoughtsTold
        except BadRequest as error:
            self._provider.tally.bad_requests += 1
            return self._refused(ErrorResponse(400, "invalid_request_error", str(error)))
        except web.HTTPRequestEntityTooLarge:
            return self._refused(_TOO_LARGE)
        return await self._answered(request, body, answered)

    async def _answered(self, request: web.BaseRequest, body: bytes, form: Any) -> web.StreamResponse:
        provider = self._provider
        provider.began()
        try:
            now_s = time.time()
            outcome = provider.decide(body, now_s)
            limits = provider.chat_headers(now_s)
            if outcome.refusal is not None:
                if outcome.latency_s > 0:
                    await asyncio.sleep(outcome.latency_s)
                return self._refused(outcome.refusal, limits)
            delivery = ResponseDelivery(provider, request, outcome, self._headers() | limits, form)
            return await delivery.served()
        finally:
            provider.ended()

    def _models(self, path: str) -> web.StreamResponse:
        known = [_model_info(name) for name in self._provider.settings.models or ("sim",)]
        if path == MODELS:
            return self._response({"object": "list", "data": known})
        name = path.removeprefix(f"{MODELS}/")
        found = next((each for each in known if each["id"] == name), None)
        if found is None:
            return self._refused(ErrorResponse(404, "not_found_error", f"The model `{name}` does not exist"))
        return self._response(found)

    def _refused(self, refusal: ErrorResponse, limits: dict[str, str] | None = None) -> web.StreamResponse:
        status, body = chat_wire.error(refusal)
        headers = self._headers() | (limits or {})
        if refusal.retry_after_s is not None:
            headers |= {"retry-after": str(refusal.retry_after_s)}
        return TrackedResponse(wire.encoded(body), headers, None, status)

    def _response(self, value: Any) -> web.StreamResponse:
        return TrackedResponse(wire.encoded(value), self._headers(), None, 200)


def _model_info(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1_767_225_600, "owned_by": "cortex"}
