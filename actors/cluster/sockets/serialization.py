"""Serialization of a message between processes, request or answer, into one byte string.

Ray serializes each argument separately, twice, by a serializer written in Python, but passes byte strings on as they
are. So one byte string costs less CPU on both sides.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

from actors.ports.runtime import PeerUnavailable

OPEN = frozenset({"hello"})
"""Methods that are called without this serialization: other releases, with another serialization, understand them."""


def sealed(content: Any) -> bytes:
    """Serialize arguments or an answer: bytes, text and numbers, alone or in tuples and dicts."""
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def opened(letter: bytes) -> Any:
    """Deserialize the result of ``sealed``."""
    return pickle.loads(letter)


def cause_of(error: BaseException, name: str) -> BaseException:
    """Return the error that an actor raised. An actor that ends cancels its tasks, so a ``CancelledError`` becomes
    ``PeerUnavailable``: it must not cancel the caller.
    """
    return PeerUnavailable(name) if isinstance(error, asyncio.CancelledError) else error


async def post(handle: Any, method: str, args: tuple[Any, ...]) -> Any:
    """Call a method of the actor behind a Ray handle. Raises what Ray raises."""
    if method in OPEN:
        return await getattr(handle, method).remote()
    return opened(await getattr(handle, method).remote(sealed(args)))
