"""Coalescing of a branch's replies into messages: which replies wait for others, and for how long.

A message by Ray costs both sides a millisecond of CPU, as much as forty replies in it; a waiting reply keeps its
permit. Within a node, by sockets, a message costs less, but neither shorter waits nor smaller groups were faster.
"""

from __future__ import annotations

GATHERED = 64
"""Replies that fill a message. While many calls are under way, a message with fewer waits to grow: it costs as much
CPU, on both sides together, as forty replies in it."""
MANY = 64
"""Calls under way or not delivered yet, beyond which replies wait for each other, since more follow at once."""
GATHER_S = 0.01
"""Seconds that replies wait for each other at most, and no longer than a quarter of the duration of a call."""
GATHER_SHARE, GATHER_LONG_S = 50, 0.25
"""Replies to another process may wait longer than ``GATHER_S``: 1 / ``GATHER_SHARE`` of the duration of a call, at most
``GATHER_LONG_S`` seconds. Of a hundred calls under way two end in that time, and a message costs both sides a
millisecond."""
FEW, SLOW_S = 32, 0.25
"""For another process and calls of at least ``SLOW_S`` seconds, replies wait beyond ``FEW`` instead of ``MANY`` calls:
10 ms are then 4 % at most."""
RISE = 16
"""Divisor of the moving mean of durations: it falls at once to the duration of a quick call, and rises by 1 / ``RISE``
of the difference."""


def worth_s(took_s: float, near: bool) -> float:
    """Return the seconds that replies wait for each other if a call takes ``took_s``. ``near``: within this process."""
    short_s = min(GATHER_S, took_s / 4)
    return short_s if near else max(short_s, min(GATHER_LONG_S, took_s / GATHER_SHARE))


def many(took_s: float, near: bool) -> int:
    """Return the number of calls, under way or not delivered yet, up to which replies do not wait."""
    return FEW if took_s >= SLOW_S and not near else MANY
