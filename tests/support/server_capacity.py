"""Capacity of a simulated model server: the most that it writes with a constant number of calls, without a limiter."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import msgspec

from actors.simulator.continuous_batch import CallState
from tests.support.queue_simulation import Server

SHARES = (0.5, 0.7, 0.85, 1.0, 1.25, 2.0)
"""Numbers of calls that are tried, as shares of those that fit in slots and cache."""

ANSWERS = 4_000
"""Answers to each of them at least: of 200, where one prompt in ten is a long one, the most is .05 too much by chance.
"""


def steady(server: Server, in_flight: int, *, seed: int = 1, rounds: int = 12) -> dict[str, float]:
    """Hold so many calls at a server, and return tokens of answers written per second, calls worked on, calls that wait
    and preemptions per call, all without the first calls."""
    chance, batch, at_s = random.Random(seed), server.batch(), 0.0
    answered, warm, first = 0, 2 * in_flight, (0.0, 0.0, 0, 0)
    waited = worked = 0.0

    def add() -> None:
        sizes = server.sizes(chance)
        batch.add(at_s, *sizes, server.alone_s(*sizes, chance))

    for _ in range(in_flight):
        add()
    while answered < rounds * in_flight:
        before_s, at_s = at_s, batch.due_s
        waited += batch.waiting * (at_s - before_s)
        worked += len(batch.running) * (at_s - before_s)
        for call in batch.advance(at_s):
            if call.state is CallState.ENDED:
                answered += 1
                add()
                if answered == warm:
                    first, waited, worked = (at_s, batch.written, batch.preemptions, answered), 0.0, 0.0
    took_s = at_s - first[0]
    return {
        "tps": (batch.written - first[1]) / took_s, "running": worked / took_s, "waiting": waited / took_s,
        "preemptions": (batch.preemptions - first[2]) / (answered - first[3]),
    }  # fmt: skip


def fits(server: Server) -> int:
    """Return the calls of mean length that fit in slots and cache, half of their answers written."""
    share, long = server.long_prompts
    mean = (1 - share) * 1_000 + share * long + 100
    return min(server.slots, round(server.kv_tokens / mean)) if server.kv_tokens else server.slots


@cache
def _best(key: bytes) -> tuple[float, int]:
    server = msgspec.msgpack.decode(key, type=Server)
    numbers = {max(1, round(share * fits(server))) for share in SHARES}
    return max((steady(server, n, rounds=max(12, ANSWERS // n))["tps"], n) for n in numbers)


def measured(**fields: Any) -> Server:
    """Return a server that knows the most that it can write."""
    server = Server(**fields)
    return msgspec.structs.replace(server, can_tps=_best(msgspec.msgpack.encode(server))[0])
