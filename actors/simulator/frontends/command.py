"""``cortex simulate``: a simulated provider in a process of its own, until it is told to stop."""

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
    """The address is not to be had. One line that says why."""


def print_url(url: str) -> None:
    """One line on standard output, at once."""
    print(f"simulated provider at {url}", flush=True)


def simulate(
    settings: SimulatorSettings | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    ready: Callable[[str], None] = print_url,
) -> int:
    """Serve until SIGTERM or SIGINT, then close cleanly and return 0. Must run in the main thread.

    ``ready`` is given the URL as soon as connections are taken. Port 0 is any free one. Anybody who reaches the address
    may use it and change its settings, so it is the loopback one unless another is asked for. Raises ``ListenFailed``.
    """
    if not 0 <= port <= PORT_MAX:  # uvloop would take it modulo 65536
        raise ListenFailed(f"cannot listen on {host} port {port}: a port is a number from 0 to {PORT_MAX}")
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_until_stopped(settings, host, port, ready))
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one: a fifth to a third more requests a second."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _until_stopped(
    settings: SimulatorSettings | None, host: str, port: int, ready: Callable[[str], None]
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stopped.set)
    try:
        server = await serve(settings, host, port)
    except OSError as error:
        reason = (error.strerror or str(error)).strip()
        raise ListenFailed(f"cannot listen on {host} port {port}: {reason}") from None
    gc.freeze()  # what is alive now lives as long as the server: no collection needs to look at it again
    try:
        ready(server.url)
        await stopped.wait()
    finally:
        await server.close()
