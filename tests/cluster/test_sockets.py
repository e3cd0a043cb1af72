"""Actors of one node are asked over their sockets on a real Ray, and are found again when they were begun again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from actors.ports.runtime import PeerUnavailable
from tests.cluster.cluster_processes import PATIENCE_S

NAME = "branch:asked"


async def _line(runtime: Any) -> Any:
    """The line to it, as soon as there is one: until then Ray carries what it is asked."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                assert await runtime.peer(NAME).ask("observe") == b""
            except PeerUnavailable:
                await asyncio.sleep(0.1)
            if (line := runtime.lines.to(NAME)) is not None:
                return line
            await asyncio.sleep(0.05)


async def test_an_actor_is_found_at_its_socket_and_so_is_its_next_process(runtime: Any) -> None:
    await runtime.start_actor("branch", NAME)
    path = Path(runtime.lines.sockets.path(NAME))
    try:
        line = await _line(runtime)
        assert await line.ask("observe", ()) == b""
        assert path.parent.stat().st_mode & 0o777 == 0o700
        _, pid = await line.ask("hello", ())
        os.kill(pid, signal.SIGKILL)
        another = await _line(runtime)
        assert another is not line
        assert (await another.ask("hello", ()))[1] != pid
    finally:
        await runtime.end_actor(NAME)
    assert not path.exists()
