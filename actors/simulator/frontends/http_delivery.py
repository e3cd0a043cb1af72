"""Delivery of an outcome over a connection: complete, as a stream, or broken by its fault."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from aiohttp import web

from actors.simulator.api import wire
from actors.simulator.api.provider import RequestOutcome, SimulatedProvider
from actors.simulator.batch_queue import BatchPlace, LatencyPace
from actors.simulator.faults import ErrorResponse

DRIPS: Final = 20
"""Number of pieces in which a slow drip sends its answer."""
_RESET_NOW = struct.pack("ii", 1, 0)  # linger on with time 0: closing sends a reset
_WEB_PAGE = b"<!doctype html><html><head><title>Gateway</title></head><body><h1>One moment, please</h1></body></html>"


class AnswerForm(Protocol):
    """Wire form of answers: the modules ``wire`` (Messages), ``chat_wire`` (chat completions) and ``responses_wire`` of
    ``actors.simulator.api``. ``facts`` is a message (``RequestOutcome.message``)."""

    BEHIND_CONTENT: bytes

    def whole(self, facts: dict[str, Any]) -> bytes:
        """Return the body of an answer."""

    def events(self, facts: dict[str, Any]) -> list[tuple[bytes, int]]:
        """Return the events of a stream, each with its number of output tokens."""

    def error_event(self, refusal: ErrorResponse) -> bytes:
        """Return the event of an error inside a stream."""


class TrackedResponse(web.Response):
    """Response that calls back when its last byte was handed to the connection."""

    def __init__(self, body: bytes, headers: dict[str, str], written: Callable[[], None] | None, status: int) -> None:
        super().__init__(body=body, headers=headers, status=status)
        self._written = written

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the rest, then call back. Raises ``ConnectionError``, without a call, if the client is gone."""
        await super().write_eof(data)
        if self._written is not None:
            reported, self._written = self._written, None
            reported()


class ResponseDelivery:
    """Delivery of an outcome with an answer or a fault; reports complete answers to the provider."""

    def __init__(
        self, provider: SimulatedProvider, request: web.BaseRequest, outcome: RequestOutcome, headers: dict[str, str],
        form: AnswerForm = wire,
    ) -> None:  # fmt: skip
        self._form = form
        self._provider = provider
        self._request = request
        self._outcome = outcome
        self._headers = headers
        token_s = provider.settings.latency_ms_per_output_token / 1000
        self._pace: BatchPlace | LatencyPace = LatencyPace(outcome.first_s, outcome.latency_s, token_s)

    async def served(self) -> web.StreamResponse:
        """Take a slot, or a place in the batch, of a server that queues; then as ``run``."""
        provider, outcome = self._provider, self._outcome
        if provider.batch is not None:
            async with provider.batch.call(*outcome.work) as self._pace:
                return await self.run()
        if provider.slots is None:
            return await self.run()
        async with provider.slots:
            return await self.run()

    def _delivered(self) -> None:
        assert self._outcome.ask is not None
        self._provider.delivered(self._outcome.ask)

    async def run(self) -> web.StreamResponse:
        """Wait for the latency, then answer. The returned response may be already written, or its connection cut."""
        outcome = self._outcome
        assert outcome.ask is not None
        form = outcome.fault.form if outcome.fault is not None else ""
        if form == "reset":
            await self._pace.whole()
            return self._reset()
        if form == "hang":
            await asyncio.sleep(self._provider.settings.hang_s)
            return self._reset()
        if outcome.ask.stream and form != "wrong_type":
            return await self._stream(form)
        await self._pace.whole()
        if form == "wrong_type":
            page = {**self._headers, "content-type": "text/html; charset=utf-8"}
            return TrackedResponse(_WEB_PAGE, page, None, 200)
        body = self._form.whole(outcome.message())
        if form == "truncated":
            return await self._truncated(body)
        if form == "invalid_json":
            return TrackedResponse(self._within_content(body) + b"\x00<cut>", self._headers, None, 200)
        if form == "slow_drip":
            return await self._drip(body)
        return TrackedResponse(body, self._headers, self._delivered, 200)

    def _cut(self, body: bytes) -> int:
        return max(1, int(len(body) * self._outcome.cut_at))

    def _within_content(self, body: bytes) -> bytes:
        """Return the beginning of a message, without the end of its content: behind that a cut message is an answer."""
        return body[: min(self._cut(body), body.rindex(self._form.BEHIND_CONTENT))]

    def _reset(self) -> web.StreamResponse:
        """Reset the connection; the response is never written."""
        transport = self._request.transport
        if transport is not None:
            held = transport.get_extra_info("socket")
            if held is not None:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_NOW)
            transport.abort()
        return web.Response()

    def _hang_up(self) -> None:
        """Close the connection after the bytes written so far."""
        if self._request.transport is not None:
            self._request.transport.close()

    async def _truncated(self, body: bytes) -> web.StreamResponse:
        """Send a message without its end. One that is cut behind its content is an answer all the same: it counts as
        delivered, and lacks its last byte only, so that no reader can doubt where its content ends."""
        within = self._cut(body) < body.rindex(self._form.BEHIND_CONTENT)
        response = web.StreamResponse(headers=self._headers)
        response.content_length = len(body)
        await response.prepare(self._request)
        await response.write(body[: self._cut(body)] if within else body[:-1])
        if not within:
            self._delivered()
        self._hang_up()
        return response

    async def _drip(self, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers)
        response.content_length = len(body)
        await response.prepare(self._request)
        size = max(1, -(-len(body) // DRIPS))
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        for part in parts:
            await asyncio.sleep(self._provider.settings.drip_s / len(parts))
            await response.write(part)
        await response.write_eof()
        self._delivered()
        return response

    async def _stream(self, form: str) -> web.StreamResponse:
        """Send the answer as server-sent events, spread over its latency."""
        outcome = self._outcome
        facts = outcome.message()
        await self._pace.first()
        headers = {**self._headers, "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(self._request)
        events = self._form.events(facts)
        broken_at = max(1, int(len(events) * outcome.cut_at)) if form in _BREAKING else len(events)
        pace = self._dripping(facts) if form == "slow_drip" else self._pace
        for at, (event, tokens) in enumerate(events):
            if at == broken_at:
                return await self._broken(response, form, event)
            await pace.tokens(tokens)
            await response.write(event)
        await response.write_eof()
        self._delivered()
        return response

    def _dripping(self, facts: dict[str, Any]) -> LatencyPace:
        return LatencyPace(0.0, 0.0, self._provider.settings.drip_s / max(1, int(facts["usage"]["output_tokens"])))

    async def _broken(self, response: web.StreamResponse, form: str, event: bytes) -> web.StreamResponse:
        fault = self._outcome.fault
        assert fault is not None
        if form == "stream":
            assert fault.refusal is not None
            await response.write(self._form.error_event(fault.refusal))
            await response.write_eof()
        elif form == "invalid_json":
            await response.write(event.replace(b"}", b"", 1).replace(b'":', b'"', 1))
            await response.write_eof()
        else:
            await response.write(event[: len(event) // 2])
            self._hang_up()
        return response


_BREAKING: Final = ("stream", "truncated", "invalid_json")
