"""Lost nodes: which are told, for how long, and what ends the telling.

Each node that comes replaces the oldest loss that is not replaced yet. One that begins on the host of a lost node is
that node come back, which is told no more. Nodes that are ended on purpose are no losses: a cluster that is made
smaller misses none of them. A node that comes for another reason, as a cluster grows, replaces a loss too: nobody says
what it is for, and the cluster has the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cortex.scheduler.state import NEVER, LostNode

LOST_S: Final = 900.0
"""Seconds for which a lost node is told at least: long enough for whoever was woken to ask."""
MISSING_S: Final = 86_400.0
"""Seconds for which a lost node is told that is not replaced: a day, as for lost jobs, so that a person who comes in
the morning hears of the night."""
LOST_MAX: Final = 16
"""Most lost nodes that are told, the latest: a rack, or a group of spot instances, goes at once."""


def lose(lost: dict[str, LostNode], name: str, host: str, at_s: float, now_s: float) -> None:
    """Note that a node is lost; ``at_s``, ``now_s``: time by the scheduler's clock, and Unix time."""
    short = 1 + max((one.short for one in lost.values()), default=0)
    lost[name] = LostNode(host or name, at_s, now_s, short)


def come_back(lost: dict[str, LostNode], new: Mapping[str, str]) -> int:
    """Forget lost nodes that are among the new ones, whose hosts are given; return the number of new nodes that may
    replace other losses, as one does that was itself replaced meanwhile.

    A node that begins again has another name on the same host.
    """
    others = 0
    for name, host in new.items():
        back = [each for each, one in lost.items() if each == name or (host and one.host == host)]
        if (short := lost.pop(back[0]).short if back else 0) > 0:
            _filled(lost, short)
        else:
            others += 1
    return others


def replace(lost: dict[str, LostNode], nodes: int) -> None:
    """Let so many nodes replace the oldest losses."""
    for _ in range(nodes):
        _filled(lost, 0)


def forget(lost: dict[str, LostNode], at_s: float) -> float:
    """Forget lost nodes whose time is over; return when the next one's is, by the scheduler's clock."""
    next_s = NEVER
    for name in list(lost):
        one = lost[name]
        until_s = one.at_s + (MISSING_S if one.short else LOST_S)
        if at_s < until_s:
            next_s = min(next_s, until_s)
            continue
        del lost[name]
        if one.short:
            _filled(lost, one.short)
    return next_s


def _filled(lost: dict[str, LostNode], above: int) -> None:
    """Let one node less be needed for the losses behind this place."""
    for name, one in lost.items():
        if one.short > above:
            lost[name] = msgspec.structs.replace(one, short=one.short - 1)
