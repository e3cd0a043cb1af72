"""Prefix affinity of a job at several servers of one model: what was asked where, and what is asked there next.

A prompt's beginnings are known by hashes of its first 2, 4, 8, 16 and 32 KiB; of each beginning K has the servers that
were asked it lately. That is a guess: a server may have dropped it. `policies.failures.affinity` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from cortex.state.changes import Ask
from policies.failures.affinity import dealt

if TYPE_CHECKING:
    from cortex.state.state import State

SHORTEST: Final = 2_048
"""Bytes of the shortest beginning that is looked at: some 500 tokens, which a server computes in less than a tenth of a
second."""
LONGEST: Final = 32_768
"""Bytes of the longest one; longer prompts differ before that, or hardly."""
KEPT_MAX: Final = 2_048
"""Beginnings in K; the one that was not asked for the longest time is forgotten first. Some 45 KB in a snapshot."""
WINDOW: Final = 64
"""Calls that are looked through beyond those that may begin now. Simulated with ten rows a document, next to each
other, 64 find as much as 256."""


def window(k: State) -> int:
    """Return how many more calls to look through than may begin now: none before a long prompt was asked."""
    return WINDOW if k.holders else 0


def next_calls(k: State, asks: Sequence[Ask], most: int) -> list[tuple[int, int]]:
    """Return which of the calls that a program wants are asked now, by their places there, and at which server; at most
    ``most``."""
    shares = k.shares[: 1 + k.terms.peers]
    usable = sum(1 << place for place, share in enumerate(shares) if share.takes_calls(k.at_s))
    calls = []
    for change in asks:
        goal = k.goals.get(change.goal.id)
        tried = goal.tried if goal is not None else 0
        calls.append((_holders(k, change) & usable & ~tried, tried))
    servers = [(share.free(k.at_s), share.in_flight, share.permits) for share in shares]
    return dealt(calls, servers, most)


def asked(k: State, change: Ask, place: int) -> None:
    """Note that a server computes the beginnings of a call now."""
    for name in _names(change):
        held = k.holders.pop(name, 0)
        k.holders[name] = held | 1 << place
    while len(k.holders) > KEPT_MAX:
        del k.holders[next(iter(k.holders))]


def _holders(k: State, change: Ask) -> int:
    """Servers that hold the longest known beginning of a call, as bits by place; 0: none does."""
    for name in _names(change) if k.holders else ():
        if held := k.holders.get(name, 0):
            return held
    return 0


def _names(change: Ask) -> tuple[bytes, ...]:
    if change.made is not None:
        return beginnings(change.made[0][:LONGEST])
    if change.prompt is not None:
        return beginnings(change.prompt.text()[:LONGEST])
    return beginnings((change.body or b"")[:LONGEST])


@lru_cache(maxsize=256)
def beginnings(text: str | bytes) -> tuple[bytes, ...]:
    """Return the names of a prompt's beginnings, the longest first; empty for a short one. Kept, since a call that is
    looked at is looked at again soon. ``text``: its first ``LONGEST`` characters or bytes: what is kept holds it."""
    data = text[:LONGEST].encode() if isinstance(text, str) else text[:LONGEST]
    hashed = blake2b(digest_size=8)
    found: list[bytes] = []
    done, size = 0, SHORTEST
    while size <= min(len(data), LONGEST):
        hashed.update(data[done:size])
        found.append(hashed.digest())
        done, size = size, 2 * size
    return tuple(reversed(found))
