"""Counters of a job, as a part of K."""

from __future__ import annotations

import msgspec

from cortex.values.fast_setattr import fast_setattr


@fast_setattr
class JobCounters(msgspec.Struct):
    """Counts of a job, for its summary."""

    rows_read: int = 0
    """Rows read from the source."""
    rows_refused: int = 0
    """Rows that the input check refused."""
    succeeded: int = 0
    """Results that are no failures."""
    failed: int = 0
    """Results that are failures, and failed top goals without a result."""
    calls: int = 0
    """Questions asked."""
    answered: int = 0
    """Calls that have their reply, shared ones included; stored replies are counted in the ledger."""
    calls_failed: int = 0
    """Calls that were given up without a reply."""
    retries: int = 0
    """Attempts at a question that had been attempted before."""
    hedges: int = 0
    """Second attempts at slow calls."""
    votes: int = 0
    """Votes that were cast."""
    dropped: int = 0
    """Replies to a call that had been answered: counted, never absorbed."""
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    """Failed attempts by kind."""
    failed_for_good: dict[str, int] = msgspec.field(default_factory=dict)
    """Failed top goals by the kind of their last failure."""
    failed_said: str = ""
    """Message of the latest of these failures."""
    failed_row: str = ""
    """Source row of that failure; empty if it was no row."""
    endings: dict[str, int] = msgspec.field(default_factory=dict)
    """Results that are no failures although their reply is no whole answer, by its ending: cut, empty and so on."""
    uncounted: int = 0
    """Paid replies whose provider reported no usage that can be read: each is charged at its worst case."""

    def attempt_failed(self, kind: str) -> None:
        """Count a failed attempt of this kind."""
        self.failures[kind] = self.failures.get(kind, 0) + 1
