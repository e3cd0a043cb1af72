"""``--metrics-listen``: HTTP server of one page with the metrics of all actors of a run, for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from actors.common.errors import UserError
from actors.observability.metrics.cardinality_limit import CardinalityLimit
from actors.observability.metrics.prometheus_text import page
from actors.observability.metrics.registry import decoded
from actors.observability.metrics.samples import MetricSamples, together
from actors.observability.metrics.shard_fold import ShardFold
from actors.ports.runtime import Runtime
from cortex.values.display import one_line

ANSWER_S = 5.0
"""Most seconds that a scrape waits for an actor; an actor that has not answered is left out. Prometheus's timeout is
10 s."""

_log = logging.getLogger("cortex.observing.metrics")
Ask = Callable[[], Awaitable[list[MetricSamples]]]
Health = Callable[[], Awaitable[str]]
"""Returns what is wrong, in one line; empty if nothing is."""


class ListenError(UserError):
    """The address of ``--metrics-listen`` is invalid, or cannot be listened on."""


def place_of(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``:PORT`` (every address) or ``PORT`` (127.0.0.1). Raises
    ``ListenError``."""
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ListenError(f"--metrics-listen {text}: give HOST:PORT")
    return host.strip("[]") if colon else "127.0.0.1", int(port)


class ScrapeServer:
    """HTTP server of ``/metrics`` and ``/healthz``, for as long as a run goes on."""

    def __init__(self, text: str, resource: Mapping[str, str]) -> None:
        self._address, self._resource = text, resource
        self._host, self._port = place_of(text)
        self._ask: Ask | None = None
        self._health: Health | None = None
        self._ceiling, self._fold = CardinalityLimit(), ShardFold()
        self._runner: web.AppRunner | None = None

    async def open(self) -> str:
        """Listen, and return the URL of the page. Raises ``ListenError``."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        app.router.add_get("/healthz", self._state)
        app.router.add_get("/", self._way)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, self._host or None, self._port)
            await site.start()
        except (OSError, UnicodeError) as error:
            await self.close()
            answer = getattr(error, "strerror", None) or str(error)
            raise ListenError(f"--metrics-listen {self._address}: {answer.lower()}") from None
        host, port = self._runner.addresses[0][:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def serve(self, ask: Ask, health: Health | None = None) -> None:
        """Answer scrapes with the samples that ``ask`` returns, and ``/healthz`` with 503 while ``health`` says what is
        wrong, else with 200."""
        self._ask, self._health = ask, health

    async def close(self) -> None:
        """Stop listening."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        found = await self._ask() if self._ask is not None else []
        readings = self._ceiling.under(self._fold.folded(together(found)))
        body, kind = await asyncio.to_thread(page, readings, self._resource, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _state(self, request: web.Request) -> web.Response:
        wrong = await self._health() if self._health is not None else ""
        return web.Response(text=f"{one_line(wrong) or 'ok'}\n", status=503 if wrong else 200)

    async def _way(self, request: web.Request) -> web.Response:
        return web.Response(text="metrics are at /metrics, their state is at /healthz\n")


def asking(runtime: Runtime, job: str) -> Ask:
    """Return a function that collects the samples of all actors of a job: in this process, or each from its own."""

    async def of(name: str) -> MetricSamples | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                return decoded(await runtime.peer(name).ask("metrics"))
        except Exception as error:  # unreachable, ended, or of another release
            _log.debug("no metrics from %s: %s", name, type(error).__name__)
            return None

    async def ask() -> list[MetricSamples]:
        here = decoded(runtime.telemetry.readings())
        if here is not None:
            return [here]
        children = await runtime.names(f"channel:{job}~")
        found = await asyncio.gather(*map(of, ("cortex", f"channel:{job}", *children)))
        return [each for each in found if each is not None]

    return ask
