"""What a job has counted so far, as a part of K."""

from __future__ import annotations

import msgspec

from cortex.values.fast_setattr import quick_to_set


@quick_to_set
class Tally(msgspec.Struct):
    """Counts of a job, for its summary."""

    rows_read: int = 0
    rows_refused: int = 0
    succeeded: int = 0
    failed: int = 0
    calls: int = 0
    answered: int = 0
    """Calls that have their reply, shared ones too; remembered ones are in the ledger."""
    calls_failed: int = 0
    """Calls that were given up before they had one."""
    retries: int = 0
    """Attempts at a question that had been attempted before."""
    hedges: int = 0
    votes: int = 0
    """That were cast."""
    dropped: int = 0
    """Replies that came for an answered call: counted, never absorbed."""
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    """Failed attempts by kind."""
    failed_for_good: dict[str, int] = msgspec.field(default_factory=dict)
    """Top goals that failed, by the kind of their last failure."""
    failed_said: str = ""
    """What the latest of these said."""
    failed_row: str = ""
    """Which row of the source that was, where it was one."""

    def attempt_failed(self, kind: str) -> None:
        """An attempt failed so."""
        self.failures[kind] = self.failures.get(kind, 0) + 1
