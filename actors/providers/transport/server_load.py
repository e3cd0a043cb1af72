"""Load of a model server, read from its metrics while calls are under way: requests worked on, and requests waiting."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from actors.providers.credentials.credential import Credential, without_password
from actors.providers.transport.aiohttp_transport import RequestTemplate
from actors.providers.transport.free_call import free_call
from actors.providers.transport.proxy_tls import network_of

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
_COUNT_MAX: Final = 1e9

Load = tuple[int, int] | None
"""Requests worked on and requests waiting; None: not known."""


class ServerLoad:
    """Reader of one server's load. Reads nothing unless it is asked, and never raises.

    ``address``: URL of the server, whose metrics are at ``/metrics``; ``credential`` returns the present credential,
    whose key is sent along, since llama.cpp asks for it.
    """

    def __init__(self, address: str, credential: Callable[[], Credential]) -> None:
        parts = urlsplit(without_password(address))
        self._url = urlunsplit((parts.scheme, parts.netloc, "/metrics", "", ""))
        self._credential = credential
        self._found: Load = None
        self._due_s = 0.0
        self._task: asyncio.Task[None] | None = None

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
            key = credential.api_key or credential.auth_token
            headers = [("Authorization", f"Bearer {key}")] if key else []
            context, proxy = await network_of(self._url, credential)
            template = RequestTemplate(self._url, headers + list(credential.custom_headers))
            status, _, body = await free_call(template, context, proxy, None, TIMEOUT_S)
            self._found = load_in(body.decode("utf-8", "replace")) if status == 200 else None
            if self._found is None:
                self._due_s = time.monotonic() + AGAIN_S


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
