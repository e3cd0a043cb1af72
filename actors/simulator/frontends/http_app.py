"""Simulated provider over HTTP, close enough to the real one for the official SDK's typed client.

Messages (streamed too), token counting, Message Batches, models; OpenAI's chat completions, Responses and batches
beside them, with the same answers (``http_chat``); and under ``/_sim/`` endpoints for tests: counters
(``GET /_sim/stats``) and settings at run time (``GET`` and ``POST /_sim/settings``). A server that queues has its
``/metrics``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from actors.simulator.api import wire
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.faults import ErrorResponse
from actors.simulator.frontends.http_batches import BatchRoutes
from actors.simulator.frontends.http_chat import COMPLETIONS, EMPTY, RESPONSES, ChatRoutes
from actors.simulator.frontends.http_delivery import ResponseDelivery, TrackedResponse
from actors.simulator.reasoning.skills import SKILLS, Skill
from actors.simulator.request import BadRequest, asks_logprobs, checked_for_counting
from actors.simulator.settings import SettingsError, SimulatorSettings

REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
CONNECTIONS_WAITING_MAX: Final = 4_096
"""Most connections waiting to be accepted: a cluster's branches open theirs at once."""
CLOSING_GRACE_S: Final = 0.1
"""Seconds that answers in flight may take when the server closes."""

_NO_KEY = ErrorResponse(401, "authentication_error", "x-api-key header is required")
_WRONG_KEY = ErrorResponse(401, "authentication_error", "invalid x-api-key")
_NO_VERSION = ErrorResponse(400, "invalid_request_error", "anthropic-version: header is required")
_TOO_LARGE = ErrorResponse(413, "request_too_large", "Request exceeds the maximum size")
_NOT_FOUND = ErrorResponse(404, "not_found_error", "Not Found")
_WRONG_METHOD = ErrorResponse(405, "invalid_request_error", "Method Not Allowed")
_MODEL_BORN: Final = "2026-01-01T00:00:00Z"

MESSAGES_API: Final = "messages"
CHAT_API: Final = "chat"
RESPONSES_API: Final = "responses"
APIS: Final = (MESSAGES_API, CHAT_API, RESPONSES_API)
"""APIs of which a server may serve one alone."""

Route = Callable[[web.BaseRequest, bytes], Awaitable[web.StreamResponse]]


class HttpApp:
    """Handler of HTTP requests for one simulated provider. ``api``: the only one of ``APIS`` that is served; empty:
    all."""

    def __init__(self, provider: SimulatedProvider, api: str = "") -> None:
        self.provider = provider
        self._api = api
        self.batches = BatchRoutes(provider, self.json_response, self.refused)
        self.chat = ChatRoutes(provider, self.headers, REQUEST_BYTES_MAX, self.batches)
        self._requests = 0
        self._routes: dict[str, dict[str, Route]] = {
            "/v1/messages": {"POST": self._messages},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/v1/models": {"GET": self._models},
            "/_sim/stats": {"GET": self._stats},
            "/_sim/settings": {"GET": self._settings, "POST": self._change},
        }

    def headers(self) -> dict[str, str]:
        """Return the headers of a JSON response, with its own request id."""
        self._requests += 1
        return {
            "content-type": "application/json",
            "request-id": wire.request_id(self._requests, self.provider.settings.seed),
            "anthropic-organization-id": "00000000-0000-4000-8000-000000000000",
        }

    def json_response(self, value: Any) -> web.StreamResponse:
        """Return a response of status 200 with this value as JSON."""
        return TrackedResponse(wire.encoded(value), self.headers(), None, 200)

    def refused(self, refusal: ErrorResponse, limits: dict[str, str] | None = None) -> web.StreamResponse:
        """Return an error response."""
        headers = self.headers()
        if limits:
            headers |= limits
        if refusal.retry_after_s is not None:
            headers["retry-after"] = str(refusal.retry_after_s)
        return TrackedResponse(wire.encoded(wire.error(refusal, headers["request-id"])), headers, None, refusal.status)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        path = request.rel_url.raw_path
        if path == "/metrics":  # vLLM asks for no key there
            return self._metrics()
        own = path.startswith("/_sim/")
        of_chat = self.chat.takes(request, path)
        if self._api and not own and not self._serves(path, of_chat):
            return self.refused(_NOT_FOUND)
        if of_chat:
            return await self.chat.handle(request, path)
        refusal = None if own else self._gate(request)
        if refusal is not None:
            self.provider.tally.unauthorised += refusal.status == 401
            return self.refused(refusal)
        if path.startswith("/v1/messages/batches"):
            route = self.batches.route(request.method, path)
        else:
            methods = self._routes.get(path)
            if methods is None and path.startswith("/v1/models/"):
                methods = {"GET": self._model}
            if methods is not None and request.method not in methods:
                return self.refused(_WRONG_METHOD)
            route = methods[request.method] if methods else None
        if route is None:
            return self.refused(_NOT_FOUND)
        bytes_max = BATCH_BYTES_MAX if path == "/v1/messages/batches" else REQUEST_BYTES_MAX
        if (request.content_length or 0) > bytes_max:
            return self.refused(_TOO_LARGE)
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return self.refused(_TOO_LARGE)
        return await route(request, body)

    def _serves(self, path: str, of_chat: bool) -> bool:
        """Return whether a path belongs to the one API that is served. ``of_chat``: it is one of OpenAI's."""
        other = {CHAT_API: RESPONSES, RESPONSES_API: COMPLETIONS}.get(self._api)
        return not (other and path.startswith(other)) and of_chat == (self._api != MESSAGES_API)

    def _gate(self, request: web.BaseRequest) -> ErrorResponse | None:
        """Return an error unless the request has a key, in either of two headers, and the version of the API."""
        headers = request.headers
        key = headers.get("x-api-key", "")
        if not key:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not key.strip():
                return _NO_KEY
        if self.provider.settings.keys and key.strip() not in self.provider.settings.keys:
            return _WRONG_KEY
        return None if "anthropic-version" in headers else _NO_VERSION

    async def _messages(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        provider = self.provider
        if body == EMPTY:
            return self.refused(ErrorResponse(400, "invalid_request_error", "model: Field required"))
        if asks_logprobs(body):
            return self.refused(ErrorResponse(400, "invalid_request_error", "logprobs: Extra inputs are not permitted"))
        provider.began()
        try:
            now_s = time.time()
            outcome = provider.decide(body, now_s)
            limits = provider.headers(now_s)
            if outcome.refusal is not None:
                if outcome.latency_s > 0:
                    await asyncio.sleep(outcome.latency_s)
                return self.refused(outcome.refusal, limits)
            delivery = ResponseDelivery(provider, request, outcome, self.headers() | limits)
            return await delivery.served()
        finally:
            provider.ended()

    async def _count_tokens(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        try:
            return self.json_response({"input_tokens": self.provider.count_tokens(checked_for_counting(body))})
        except BadRequest as error:
            return self.refused(ErrorResponse(400, "invalid_request_error", str(error)))

    def _known_models(self) -> tuple[str, ...]:
        return self.provider.settings.models or ("sim",)

    def _model_info(self, name: str) -> dict[str, Any]:
        window = self.provider.settings.context_window
        facts = {"type": "model", "id": name, "display_name": f"Simulated {name}", "created_at": _MODEL_BORN}
        return facts | {"lifecycle": "active", "max_input_tokens": window, "max_tokens": window}

    async def _models(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        known = self._known_models()
        page = [self._model_info(name) for name in known]
        return self.json_response({"data": page, "has_more": False, "first_id": known[0], "last_id": known[-1]})

    async def _model(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        name = request.rel_url.path.removeprefix("/v1/models/")
        if name not in self._known_models():
            return self.refused(ErrorResponse(404, "not_found_error", f"model: {name}"))
        return self.json_response(self._model_info(name))

    def _metrics(self) -> web.StreamResponse:
        """Return the metrics of a server that queues, with vLLM's names:
        https://docs.vllm.ai/en/stable/usage/metrics/."""
        batch = self.provider.batch
        queue = self.provider.slots if batch is None else batch
        if queue is None:
            return self.refused(_NOT_FOUND)
        if batch is not None:
            batch.now()
        told: list[tuple[str, str, float]] = [
            ("num_requests_running", "gauge", queue.working), ("num_requests_waiting", "gauge", queue.waiting)
        ]  # fmt: skip
        if batch is not None:
            told.append(("kv_cache_usage_perc", "gauge", batch.batch.kv_usage))
            told.append(("num_preemptions_total", "counter", batch.batch.preemptions))
        lines = (
            f'# TYPE vllm:{name} {kind}\nvllm:{name}{{engine="0",model_name="sim"}} {value:.6g}\n'
            for name, kind, value in told
        )
        text = "".join(lines)
        return TrackedResponse(text.encode(), {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, None, 200)

    async def _stats(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        stats = self.provider.stats()
        user = request.rel_url.query.get("user_id")
        if user is not None:
            stats["answers_to_user"] = self.provider.answers_to_user(user)
        return self.json_response(stats)

    async def _settings(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        return self.json_response(self.provider.settings.public())

    async def _change(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        try:
            changes = msgspec.json.decode(body, type=dict[str, Any])
            return self.json_response(self.provider.change(changes).public())
        except (msgspec.DecodeError, SettingsError) as error:
            return self.refused(ErrorResponse(400, "invalid_request_error", str(error)))


class SimulatorServer:
    """Running simulated provider. ``url``: base URL for clients."""

    def __init__(self, provider: SimulatedProvider, host: str = "127.0.0.1", api: str = "") -> None:
        self.provider = provider
        self.url = ""
        self._host = host
        self._face = HttpApp(provider, api)
        self._runner: web.ServerRunner | None = None

    async def start(self, port: int = 0) -> None:
        """Listen; port 0 is any free port. Raises ``OSError`` if the address cannot be used."""
        # ``handler_cancellation``: a lost client ends the handler that still waits to answer it.
        server = web.Server(self._face.handle, request_factory=_request, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=CLOSING_GRACE_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, port, backlog=CONNECTIONS_WAITING_MAX).start()
        except BaseException:
            await self._runner.cleanup()
            raise
        address = self._runner.addresses[0]
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.url = f"http://{host}:{address[1]}"

    async def close(self) -> None:
        """Stop listening and close every connection."""
        await self._face.batches.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


async def serve(
    settings: SimulatorSettings | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    skills: tuple[tuple[str, Skill], ...] = SKILLS,
    api: str = "",
) -> SimulatorServer:
    """Start a simulated provider on the running event loop. ``api``: the only one that is served, of ``APIS``; empty:
    all. Raises ``OSError`` if the address cannot be used."""
    server = SimulatorServer(SimulatedProvider(settings, skills), host, api)
    await server.start(port)
    return server


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    """Return a request object whose body may be as large as a message batch."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BATCH_BYTES_MAX)
