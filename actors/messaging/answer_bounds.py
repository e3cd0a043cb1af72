"""Bounds in time of questions between actors: a question that is not answered in time is ``PeerUnavailable``.

A call to an actor that was killed may never end on a real Ray: after a kill, 52 replies waited for ever behind a call
that neither answered nor failed. The asker asks again, as it does after any ``PeerUnavailable``: the question may have
been received or not.

Where an answer may take minutes, such a bound is of little use. The actor itself is asked then, now and then, what it
is answering (``serving``): a question that it does not know was left behind by a process that has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from actors.ports.runtime import PeerGone, PeerUnavailable
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
SERVED: Final = frozenset({"answer", "drain", "hello", "staff", "start"})
"""Methods of any role that may take much longer than ``ANSWER_S``, of which an actor tells by ``serving`` that it is
answering one. A run of a tool and an order about a message batch have ``actors.messaging.long_questions``."""
LOOK_S: Final = 15.0
"""Seconds between two looks at the actor that was asked, half as many as it may take to answer any other question."""
ON_ITS_WAY_S: Final = 5.0
"""Seconds for an answer that is on its way when the actor knows nothing of its question any more."""
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
    """Ask the actor ``name`` by ``ask``. Raises ``PeerUnavailable`` if no answer has come after ``bound_s``, or if none
    will come, since the process that was asked has ended.
    """
    clock = asyncio.get_running_loop().time
    bound, asked_s = asyncio.timeout(bound_s(method, args)), clock()
    looking = asyncio.ensure_future(_look(name, ask, method, bound)) if method in SERVED else None
    try:
        async with bound:
            return await ask(method, args)
    except TimeoutError:
        if not bound.expired():  # the actor itself has raised it
            raise
        raise PeerUnavailable(f"{name} has not answered {method!r} for {clock() - asked_s:.0f} s") from None
    finally:
        if looking is not None:
            looking.cancel()


async def _look(
    name: str, ask: Callable[[str, tuple[Any, ...]], Awaitable[Any]], method: str, bound: asyncio.Timeout
) -> None:
    """End a wait soon once the actor that was asked is gone, or answers and knows nothing of the question."""
    known = True
    while known:
        await asyncio.sleep(LOOK_S)
        try:
            known = method in await in_time(name, ask, "serving", ())
        except PeerGone:
            known = False
        except Exception:  # silent, away, or of another release: nothing is known
            continue
    until_s, ends_s = asyncio.get_running_loop().time() + ON_ITS_WAY_S, bound.when()
    if not bound.expired() and ends_s is not None and until_s < ends_s:
        bound.reschedule(until_s)
