"""Which of a branch's replies wait for others to go with them to their channel, and for how long.

A message by Ray costs both sides a millisecond of CPU, as much as forty replies in it; a reply that waits keeps its
place. Within a node, by sockets, it costs less, but neither shorter waits nor smaller groups were any faster there.
"""

from __future__ import annotations

GATHERED = 64
"""So many go at once. With fewer, where many are under way, a message waits a moment to grow: it costs as much CPU, on
both sides together, as forty replies in it."""
MANY = 64
"""Calls under way, or done and not told yet, beyond which replies wait for each other, since others follow at once."""
GATHER_S = 0.01
"""So long they wait for each other at the most, and no longer than a quarter of what a call takes;"""
GATHER_SHARE, GATHER_LONG_S = 50, 0.25
"""but a fiftieth of that where it is longer, and another process is to hear of it: of a hundred calls under way two end
in that time, and a message costs both sides a millisecond."""
FEW, SLOW_S = 32, 0.25
"""And there they do so beyond these many, where calls take that long: 10 ms are then 4 % at most."""
RISE = 16
"""How long calls take falls at once to what a quick one took, and rises by so small a part of the difference."""


def worth_s(took_s: float, near: bool) -> float:
    """How long replies wait for each other where a call takes so long. ``near``: a message stays in this process."""
    short_s = min(GATHER_S, took_s / 4)
    return short_s if near else max(short_s, min(GATHER_LONG_S, took_s / GATHER_SHARE))


def many(took_s: float, near: bool) -> int:
    """So many calls may be under way, or done and not told yet, without any wait."""
    return FEW if took_s >= SLOW_S and not near else MANY
