"""Load of a model server, read from its metrics while calls are under way: requests worked on, and requests waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from actors.providers.credentials.base_url import METRICS_PATH
from actors.providers.credentials.credential import Credential, CredentialError, without_password
from actors.providers.transport.aiohttp_transport import RequestTemplate
from actors.providers.transport.failures import ConfigurationFault
from actors.providers.transport.free_call import free_call
from actors.providers.transport.proxy_tls import network_of
from cortex.values.bounds.counts import COUNT_MAX

NAMES: Final[Mapping[str, str]] = {
    "vllm:num_requests_running": "vllm:num_requests_waiting",
    "sglang:num_running_reqs": "sglang:num_queue_reqs",
    "llamacpp:requests_processing": "llamacpp:requests_deferred",
    "tgi_batch_current_size": "tgi_queue_size",
}
"""Names of the gauges of requests worked on and of requests waiting, by server:
https://docs.vllm.ai/en/latest/usage/metrics.html, https://docs.sglang.io/references/production_metrics.html (with
``--enable-metrics``), README of llama.cpp's server (with ``--metrics``),
https://huggingface.co/docs/text-generation-inference/reference/metrics."""
EVERY_S: Final = 1.0
"""Seconds between two readings."""
AGAIN_S: Final = 60.0
"""Seconds until a server without such metrics is asked again: another may have taken its place."""
TIMEOUT_S: Final = 2.0
_COUNT_MAX: Final = float(COUNT_MAX)
_OK: Final = 200

Load = tuple[int, int] | None
"""Requests worked on and requests waiting; None: not known."""
LOOKED_FOR: Final = ", ".join(f"{running} with {waiting}" for running, waiting in NAMES.items())
"""Names of the gauges in one text, for messages."""
_UNREADABLE: Final = (CredentialError, ConfigurationFault, aiohttp.ClientError, TimeoutError, OSError, ValueError)

_log = logging.getLogger("cortex.providers")


class MetricsReading(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of one URL of metrics."""

    url: str
    load: Load = None
    problem: str = ""
    """Reason why there is no load, in a few words that hold no secret; empty: there is one."""
    told: bool = True
    """False if the URL could not be read: it may be readable in a moment."""


class ServerLoad:
    """Reader of one server's load. Reads nothing unless it is asked, and never raises.

    ``address``: URL of the server; ``credential`` returns the present credential; ``named``: URLs of the metrics that
    the user named, one for each replica, whose counts are added. Empty: ``/metrics`` at the root of the address.
    """

    def __init__(self, address: str, credential: Callable[[], Credential], named: Sequence[str] = ()) -> None:
        self._address = address
        self._urls = tuple(named) or (metrics_url(address),)
        self._credential = credential
        self._found: Load = None
        self._due_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._unsaid = set(named)
        """URLs that the user named and of which no problem was logged yet."""

    def take(self) -> Load:
        """Return the latest reading if it was not returned before, and begin the next one when it is due. To be called
        on the event loop."""
        now_s = time.monotonic()
        if now_s >= self._due_s and (self._task is None or self._task.done()):
            self._due_s = now_s + EVERY_S
            self._task = asyncio.get_running_loop().create_task(self._read())
        found, self._found = self._found, None
        return found

    async def close(self) -> None:
        """Stop reading."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _read(self) -> None:
        with contextlib.suppress(Exception):  # without a reading the job goes on as before
            credential = self._credential()
            found = await asyncio.gather(*(read_metrics(url, self._address, credential) for url in self._urls))
            loads = [each.load for each in found if each.load is not None]
            self._found = (sum(load[0] for load in loads), sum(load[1] for load in loads)) if loads else None
            if all(each.told for each in found) and not loads:
                self._due_s = time.monotonic() + AGAIN_S
            for each in found:
                if each.problem and each.told and each.url in self._unsaid:
                    self._unsaid.discard(each.url)
                    _log.warning("--metrics-from %s: %s; the wait is found without it", each.url, each.problem)


def metrics_url(address: str) -> str:
    """Return the URL of the metrics at the root of a server's address."""
    parts = urlsplit(without_password(address))
    return urlunsplit((parts.scheme, parts.netloc, METRICS_PATH, "", ""))


async def read_metrics(
    url: str, address: str, credential: Credential, timeout_s: float = TIMEOUT_S
) -> MetricsReading:  # fmt: skip
    """Return what a URL of metrics tells. Raises nothing but a cancellation.

    The key of the server at ``address`` is sent to the same host alone, at any port: llama.cpp asks for it.
    """
    try:
        headers: list[tuple[str, str]] = []
        host = ""
        if urlsplit(url).hostname == urlsplit(address).hostname:
            key = credential.api_key or credential.auth_token
            headers = [*([("Authorization", f"Bearer {key}")] if key else []), *credential.custom_headers]
            host = credential.host
        context, proxy = await network_of(url, credential)
        status, _, body = await free_call(RequestTemplate(url, headers, host), context, proxy, None, timeout_s)
        if status != _OK:
            return MetricsReading(url=url, problem=f"answered {status}")
        if (load := load_in(body.decode("utf-8", "replace"))) is None:
            return MetricsReading(url=url, problem=f"holds no queue's metrics (looked for {LOOKED_FOR})")
        return MetricsReading(url=url, load=load)
    except _UNREADABLE as error:
        text = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        return MetricsReading(url=url, problem=f"cannot be read: {text}", told=False)


def load_in(metrics: str) -> Load:
    """Return the load in a text of Prometheus' exposition format; None if none of the gauges of ``NAMES`` is there.

    The counts of several engines of one server are added. Raises ``ValueError`` for a broken line.
    """
    for running, waiting in NAMES.items():
        found = _sum(metrics, running), _sum(metrics, waiting)
        if found[0] is not None and found[1] is not None:
            return found[0], found[1]
    return None


def _sum(metrics: str, name: str) -> int | None:
    """Sum of the samples of a gauge; None where there are none. Only its lines are parsed: a server has thousands."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in metrics.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    values = [sample.value for family in families for sample in family.samples]
    return int(sum(min(max(value, 0.0), _COUNT_MAX) for value in values if value == value)) if values else None
