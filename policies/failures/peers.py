"""Servers of one model that rank equal: which takes the next call, and which failures cost a call nothing.

A call that one server did not take is taken by another, so the failure says nothing about the call, and uses up none of
its attempts. That holds as long as it was not worked on, or rarely: a request that ends each server that works on it
must not be given to all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from policies.failures.failure import Failure, FailureKind

CUT_OFF_MAX: Final = 2
"""Servers that may break off a call before its attempts are counted. One request may end a server
(https://github.com/vllm-project/vllm/issues/5822); the death of more than two servers within one call is rare."""
_REFUSED: Final = frozenset({FailureKind.THROTTLED, FailureKind.OVERLOADED})


def least_loaded(peers: Iterable[tuple[int, int, int]], tried: int = 0) -> int:
    """Return the place of the server that takes the next call; -1: none can now.

    `peers`: for each server the calls that may begin now, the calls in flight, and the permits. The one with the
    smallest part of its permits in use is chosen, the first of equals: the permits already follow its speed
    (`policies.limits.fair_share`). `tried`: servers that failed the call, as bits by place; they are left out.
    """
    best, least = -1, float("inf")
    for place, (free, in_flight, permits) in enumerate(peers):
        if free <= 0 or tried >> place & 1:
            continue
        load = (in_flight + 1) / max(permits, 1)
        if load < least:
            best, least = place, load
    return best


def moves_on(failure: Failure, tried: int) -> bool:
    """Return True if a call goes to another server without a wait, and the failed attempt does not count.

    `tried`: servers that failed this call so far, as bits by place, this one included. True for a call that was refused
    or never sent, and for the first `CUT_OFF_MAX` servers that broke it off. Attempts that may have used up the time of
    a call, or may be paid, count: the call itself may be the cause.
    """
    if failure.kind in _REFUSED or (failure.kind is FailureKind.TRANSIENT and not failure.sent):
        return True
    return failure.kind is FailureKind.TRANSIENT and not failure.answer_came and tried.bit_count() <= CUT_OFF_MAX
