"""A turn is committed; and where its database is away for a while, that is waited out.

Nothing is sent meanwhile, since no command leaves before the commit that holds its cause. What is under way goes on,
and what comes back waits in the branches.
"""

from __future__ import annotations

import asyncio
import logging

from actors.store import Journal, Unreachable

PATIENCE_S = 900.0
"""How long a database may be away: one that fails over or is upgraded is back by then."""
PAUSE_S, PAUSE_MAX_S = 0.25, 5.0

_log = logging.getLogger("cortex.channel")


async def committed(source: Journal, blob: bytes) -> int:
    """The number of the turn, which is durable. Raises ``StoreError``.

    A commit that another machine makes is waited for in a thread: the event loop has others to serve. One whose
    answer was lost is sent again, and done once.
    """
    if not source.remote:
        return source.append([blob])
    loop = asyncio.get_running_loop()
    pause_s, until_s = PAUSE_S, loop.time() + PATIENCE_S
    while True:
        try:
            return await asyncio.to_thread(source.append, [blob])
        except Unreachable as error:
            if loop.time() >= until_s:
                raise
            if pause_s == PAUSE_S:
                _log.warning("job %s waits: %s", source.job, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
