"""Retries for a database that is temporarily unreachable.

Nothing is sent meanwhile, since no command leaves before the commit of its cause. Calls in flight go on, and their
replies wait in the branches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from actors.journal.journal import DatabaseUnreachable, Journal, StateFolder

T = TypeVar("T")

PATIENCE_S = 900.0
"""Seconds that a database may be unreachable: a failover or an upgrade takes less."""
PAUSE_S, PAUSE_MAX_S = 0.25, 5.0
"""Seconds between two attempts, at first."""
SLOW_S = 5.0
"""Seconds that a database may take for one request before the log says so."""

_log = logging.getLogger("cortex.channel")


async def patiently(source: Journal, ask: Callable[[], T], apart: bool = False) -> T:
    """Return the result of ``ask``, a request to a journal or another store. Raises ``StoreError``.

    A request to another machine runs in a thread, so that the event loop goes on. If its answer is lost it is repeated,
    so it must be idempotent. ``apart``: a slow request, which always runs in a thread.
    """
    if not source.remote:
        return await asyncio.to_thread(ask) if apart else ask()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    pause_s, until_s, told = PAUSE_S, began_s + PATIENCE_S, False

    def tell(why: object) -> None:
        nonlocal told
        if not told:
            _log.warning("the job waits: %s", why, extra=_fields("job.waits", source))
        told = True

    while True:
        slow = loop.call_later(SLOW_S, tell, f"the database has not answered for {SLOW_S:g} s")
        try:
            found = await asyncio.to_thread(ask)
        except DatabaseUnreachable as error:
            if loop.time() >= until_s:
                raise
            tell(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            continue
        finally:
            slow.cancel()
        if told:
            waited_s = round(loop.time() - began_s, 3)
            _log.warning("the database answers again", extra=_fields("job.goes_on", source, waited_s=waited_s))
        return found


async def unblocked(folder: StateFolder, ask: Callable[..., T], *args: Any) -> T:
    """Return the result of a request to a state folder. One to another machine runs in a thread, so that the event
    loop goes on: a database that is frozen, or whose tables are locked, does not even refuse."""
    return await asyncio.to_thread(ask, *args) if folder.remote else ask(*args)


def _fields(event: str, source: Journal, **more: float) -> dict[str, Any]:
    """Return the fields of a log record (``actors.observability.logs.formatting``, a higher layer)."""
    return {"fields": {"event": event, "job": source.job, **more}}
