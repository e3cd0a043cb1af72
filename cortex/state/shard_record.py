"""Records of shards: the report of a shard, and the parent's state of it."""

from __future__ import annotations

import msgspec

from cortex.values.counters import JobCounters
from cortex.values.ledger import Ledger
from policies.estimates.bill_excess import BillExcess
from policies.limits.slices import Holding

Pair = tuple[int, int]
"""Money in 1e-9 USD, and tokens."""


class ShardReport(msgspec.Struct, frozen=True, array_like=True):
    """Report of a shard to its parent."""

    epoch: int
    """Epoch of the shard's channel: a report of an earlier epoch is out of date."""
    serial: int
    """Number of the report within its epoch: a message may arrive twice, or after a later one."""
    ledger: Ledger
    tally: JobCounters | None = None
    """Counts of the shard; None: only the ledger is known yet."""
    results: int = 0
    holds: Pair | None = None
    """Total that the shard may commit now under its latest slices; None: nothing beyond what it has committed."""
    lacks: Pair = (0, 0)
    """Amounts that its next call needs beyond what it has committed, if they could not be had."""
    open: Pair = (0, 0)
    """Amounts reserved for calls in flight, which end soon."""
    over: bool = False
    """True if the shard has ended."""
    excess: tuple[BillExcess, ...] = ()
    """Bills of its routes that were higher than was reserved."""


class ShardRecord(msgspec.Struct, array_like=True):
    """Parent's state of one shard."""

    reported: tuple[int, int] = (0, 0)
    """Epoch and serial of the latest report."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    tally: JobCounters = msgspec.field(default_factory=JobCounters)
    results: int = 0
    written: int = 0
    """Number of its results that are in the sink."""
    money: Holding = msgspec.field(default_factory=Holding)
    tokens: Holding = msgspec.field(default_factory=Holding)
    lent: tuple[int | None, int | None] = (None, None)
    """Totals of money and tokens that the shard may commit; None: no cap."""
    out: bool = False
    """True if what the shard lacks is not available anywhere."""
    excess: tuple[BillExcess, ...] = ()
    """Bills of its routes that were higher than was reserved."""
    again: bool = False
    """True from the time when it was opened again, since its journal had lost its end, until its next report: what it
    had paid for by the report before stays paid. (Of a shard that has not ended, a report may be ahead of its journal:
    what it lacks in its next epoch comes again.)
    """
