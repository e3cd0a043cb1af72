"""Records of shards: a report of one, and the parent's knowledge of it."""

from __future__ import annotations

import msgspec

from cortex.values.counters import Tally
from cortex.values.ledger import Ledger
from policies.limits.slices import Holding

Pair = tuple[int, int]
"""Money in 1e-9 USD, and tokens."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What a shard says of itself."""

    epoch: int
    """Of its channel: what an earlier one says comes late."""
    serial: int
    """Of what that channel says: the same message may come twice, or after a later one."""
    ledger: Ledger
    tally: Tally | None = None
    """None: only the ledger is known yet."""
    results: int = 0
    holds: Pair | None = None
    """What it may commit at this moment, all told, under its last slices; None: nothing beyond what it has."""
    lacks: Pair = (0, 0)
    """What its next call needs beyond what it has committed, where that was not to be had."""
    open: Pair = (0, 0)
    """Reserved for calls that are under way and end soon."""
    over: bool = False


class Shard(msgspec.Struct, array_like=True):
    """What the parent knows of one."""

    heard: tuple[int, int] = (0, 0)
    """Epoch and serial of its last report."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    tally: Tally = msgspec.field(default_factory=Tally)
    results: int = 0
    written: int = 0
    """So many of its results are in the sink."""
    money: Holding = msgspec.field(default_factory=Holding)
    tokens: Holding = msgspec.field(default_factory=Holding)
    lent: tuple[int | None, int | None] = (None, None)
    """So much it may commit, all told, of money and of tokens; None: there is no cap."""
    out: bool = False
    """What it lacks is nowhere."""
