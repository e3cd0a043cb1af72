"""Bounds in time of questions between actors: a question that is not answered in time is ``PeerUnavailable``.

A call to an actor that was killed may never end on a real Ray: after a kill, 52 replies waited for ever behind a call
that neither answered nor failed. The asker asks again, as it does after any ``PeerUnavailable``: the question may have
been received or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from actors.ports.runtime import PeerUnavailable
from cortex.scheduler.state import LEASE_S

ANSWER_S: Final = 30.0
"""Seconds for the answer to a question of control. An actor that is being restarted lets it wait for 10 s, and a commit
on a slow disk takes seconds."""
STAFF_S: Final = 120.0
"""Seconds for the answer of a scheduler that finds the live branches (10 s) and starts the first ones (60 s)."""
START_S: Final = 600.0
"""Seconds for an actor to be placed, also on a node that is only being added, and for a channel to replay its journal.
"""
DRAIN_S: Final = 3_700.0
"""Seconds for a branch or worker to finish its work: calls and tools may take an hour."""
ORDER_S: Final = 3_600.0
"""Seconds for a branch to carry out an order about a message batch: it may deliver the results of 100,000 rows."""
BOUNDS_S: Final[Mapping[str, float]] = {
    "answer": START_S,  # made by code of the author: of a long one, a shorter bound has it made again without end
    "batches": ORDER_S,
    "drain": DRAIN_S,
    "hello": START_S,
    "join": LEASE_S,  # a later answer is worth nothing: its lease has run out
    "staff": STAFF_S,
    "start": START_S,
}
"""Bounds of the methods that take longer than ``ANSWER_S``, or may take less."""
WAITS: Final[Mapping[str, int]] = {"results": -1, "room": -1, "run": 5}
"""Methods that may wait as many seconds as one of their arguments says, with its position."""
BOUNDED_BY_ASKER: Final = frozenset({"abandon", "beat", "deliver", "on_disk", "work"})
"""Methods of the path of a call. Their askers have timers of their own, or do not wait for the answer."""


def bound_s(method: str, args: tuple[Any, ...]) -> float:
    """Return the seconds within which a question is answered, unless its answer never comes."""
    waits = WAITS.get(method)
    if waits is None:
        return BOUNDS_S.get(method, ANSWER_S)
    return ANSWER_S + float(args[waits])


async def in_time(
    name: str, ask: Callable[[str, tuple[Any, ...]], Awaitable[Any]], method: str, args: tuple[Any, ...]
) -> Any:
    """Ask the actor ``name`` by ``ask``. Raises ``PeerUnavailable`` if no answer has come after ``bound_s``."""
    seconds = bound_s(method, args)
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            return await ask(method, args)
    except TimeoutError:
        if not bound.expired():  # the actor itself has raised it
            raise
        raise PeerUnavailable(f"{name} has not answered {method!r} for {seconds:.0f} s") from None
