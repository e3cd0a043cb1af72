"""Prefix affinity of a job at several servers of one model: what was asked where, and what is asked there next.

A prompt's beginnings are known by hashes of its first 2, 4, 8, 16 and 32 KiB; of each beginning K has the servers that
were asked it lately. That is a guess: a server may have dropped it. `policies.failures.affinity` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


NextCall = tuple[int, int, tuple[bytes, ...] | None]
"""Place of a call among those that are wanted, place of its server, and the names of its beginnings (None: not looked
up)."""


def window(k: State) -> int:
    """Return how many more calls to look through than may begin now: none before a long prompt was asked."""
    return WINDOW if k.holders else 0


def next_calls(k: State, asks: Sequence[Ask], most: int) -> list[NextCall]:
    """Return which of the calls that a program wants are asked now, and at which server; at most ``most``. Each prompt
    is looked at once, and none after the last call is found."""
    shares = k.shares[: 1 + k.terms.peers]
    usable = sum(1 << place for place, share in enumerate(shares) if share.takes_calls(k.at_s))
    servers = [(share.free(k.at_s), share.in_flight, share.permits) for share in shares]
    seen: list[tuple[bytes, ...] | None] = []
    found = dealt(_looked_at(k, asks, usable, seen), servers, most)
    return [(at, place, seen[at]) for at, place in found]


def _looked_at(
    k: State, asks: Sequence[Ask], usable: int, seen: list[tuple[bytes, ...] | None]
) -> Iterator[tuple[int, int]]:
    """Yield for each call the servers that hold its beginning, and those that failed it; append the names of its
    beginnings to ``seen``, None while no beginning is known at all."""
    for change in asks:
        goal = k.goals.get(change.goal.id)
        tried = goal.tried if goal is not None else 0
        names = beginnings_of(change) if k.holders else None
        seen.append(names)
        held = next((held for name in names or () if (held := k.holders.get(name, 0))), 0)
        yield held & usable & ~tried, tried


def asked(k: State, change: Ask, place: int, names: tuple[bytes, ...] | None = None) -> None:
    """Note that a server computes the beginnings of a call now. ``names``: those of its beginnings, where they were
    looked up."""
    for name in beginnings_of(change) if names is None else names:
        held = k.holders.pop(name, 0)
        k.holders[name] = held | 1 << place
    while len(k.holders) > KEPT_MAX:
        del k.holders[next(iter(k.holders))]


def beginnings_of(change: Ask) -> tuple[bytes, ...]:
    """Return the names of the beginnings of a call. Its prompt is put together for that, unless it is already."""
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
