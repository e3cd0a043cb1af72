"""``cortex simulate``: a simulated provider in its own process, until it is stopped."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable
from typing import Final

from actors.simulator.frontends.http_app import serve
from actors.simulator.settings import SimulatorSettings

LOOPBACK: Final = "127.0.0.1"
PORT_MAX: Final = 65_535


class ListenFailed(OSError):
    """The address cannot be used. The message is one line with the reason."""


def print_url(url: str) -> None:
    """Print the URL on standard output and flush."""
    print(f"simulated provider at {url}", flush=True)


def simulate(
    settings: SimulatorSettings | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    ready: Callable[[str], None] = print_url,
    api: str = "",
) -> int:
    """Serve until SIGTERM or SIGINT, then close and return 0. Call from the main thread.

    ``api``: the only one that is served, of ``http_app.APIS``; empty: all.

    ``ready`` is called with the URL once connections are accepted. Port 0 is any free port. Every client that reaches
    the address may use it and change its settings, so the default is the loopback address. Raises ``ListenFailed``.
    """
    if not 0 <= port <= PORT_MAX:  # uvloop would take the port modulo 65536
        raise ListenFailed(f"cannot listen on {host} port {port}: a port is a number from 0 to {PORT_MAX}")
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_until_stopped(settings, host, port, ready, api))
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory where installed: a fifth to a third more requests a second."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _until_stopped(
    settings: SimulatorSettings | None, host: str, port: int, ready: Callable[[str], None], api: str
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stopped.set)
    try:
        server = await serve(settings, host, port, api=api)
    except OSError as error:
        reason = (error.strerror or str(error)).strip()
        raise ListenFailed(f"cannot listen on {host} port {port}: {reason}") from None
    gc.freeze()  # objects alive now live as long as the server: collections need not scan them
    try:
        ready(server.url)
        await stopped.wait()
    finally:
        await server.close()
