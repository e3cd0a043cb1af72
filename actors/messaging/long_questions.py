"""Questions whose answers may take an hour, to a process that may end meanwhile.

On a real Ray a question to an actor that was killed may never end (``actors.messaging.answer_bounds``), and a bound of
an hour is of no use then. So the process is looked at while it is asked.
"""

from __future__ import annotations

import asyncio
from typing import Any

from actors.messaging.answer_bounds import LOOK_S
from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime


async def ask_process(runtime: Runtime, name: str, incarnation: str, method: str, *args: Any) -> Any:
    """Ask an actor that answers ``ping``, a branch or a worker. ``incarnation``: that of the process which is meant;
    empty: the one that lives now, which is asked for it first. Raises ``PeerUnavailable`` once another process has its
    name, and ``PeerGone`` as any question does.
    """
    known = incarnation or (await runtime.peer(name).ask("ping"))[0]
    waiting = asyncio.timeout(None)
    looking = asyncio.ensure_future(_look(runtime, name, known, waiting))
    try:
        async with waiting:
            return await runtime.peer(name).ask(method, *args)
    except TimeoutError:
        if not waiting.expired():  # the actor itself has raised it
            raise
        raise PeerUnavailable(f"the process of {name} that was asked {method!r} has ended") from None
    finally:
        looking.cancel()


async def _look(runtime: Runtime, name: str, known: str, waiting: asyncio.Timeout) -> None:
    """End a wait once another process has a name, or none has."""
    found = known
    while found == known:
        await asyncio.sleep(LOOK_S)
        try:
            found = (await runtime.peer(name).ask("ping"))[0]
        except PeerGone:
            break
        except PeerUnavailable:
            continue
    waiting.reschedule(asyncio.get_running_loop().time())
