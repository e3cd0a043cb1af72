"""A database that is away for a while is waited for.

Nothing is sent meanwhile, since no command leaves before the commit that holds its cause. What is under way goes on,
and what comes back waits in the branches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from actors.journal.journal import DatabaseUnreachable, Journal

T = TypeVar("T")

PATIENCE_S = 900.0
"""How long a database may be away: one that fails over or is upgraded is back by then."""
PAUSE_S, PAUSE_MAX_S = 0.25, 5.0

_log = logging.getLogger("cortex.channel")


async def patiently(source: Journal, ask: Callable[[], T], apart: bool = False) -> T:
    """What a question to a journal, or to what stands beside it, is answered. Raises ``StoreError``.

    One that another machine answers is waited for in a thread: the event loop has others to serve. One whose answer was
    lost is asked again, so it must be one that may be. ``apart``: it takes long, so always in a thread.
    """
    if not source.remote:
        return await asyncio.to_thread(ask) if apart else ask()
    loop = asyncio.get_running_loop()
    pause_s, until_s = PAUSE_S, loop.time() + PATIENCE_S
    while True:
        try:
            return await asyncio.to_thread(ask)
        except DatabaseUnreachable as error:
            if loop.time() >= until_s:
                raise
            if pause_s == PAUSE_S:
                _log.warning("job %s waits: %s", source.job, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
