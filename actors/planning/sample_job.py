"""Rows of a sample, as the source of a job, and the results of that job from its journal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from actors.files.sources.row_source import RowSource, SourceWindow
from actors.journal.journal import StateFolder
from cortex.planning import SampledRow
from cortex.scheduler.pools import pool_in
from cortex.state import events
from cortex.values.reply import Usage
from policies.estimates.duration import BucketRate, caps_together, rate_together
from policies.failures.failure import FailureKind
from policies.limits.limit import PoolCaps
from policies.limits.refill import Refill

READ_ROWS: Final = 5_000


class SampleSource:
    """Source of rows picked from another source. ``places``: their places among the rows that can be sent, in input
    order."""

    def __init__(self, source: RowSource, places: Collection[int]) -> None:
        """Read the rows. Raises the errors of ``source``."""
        wanted = set(places)
        last = max(wanted, default=-1)
        self.rows: dict[int, events.Row] = {}
        place = 0
        while place <= last:
            window = source.read(READ_ROWS)
            for row in window.rows:
                if row.refusal:
                    continue
                if place in wanted:
                    self.rows[place] = row
                place += 1
            if window.ended:
                break
        self._ordered = tuple(self.rows.values())
        self._position = 0

    def seek(self, position: int) -> None:
        """Continue after ``position`` rows."""
        self._position = position

    def read(self, rows_max: int) -> Any:
        """Return the next rows."""
        some = self._ordered[self._position : self._position + rows_max]
        self._position += len(some)
        return SourceWindow(some, self._position, self._position >= len(self._ordered))

    def close(self) -> None:
        """Release nothing."""


class ReportedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that the provider named while the sample ran; None where it named none."""

    requests: BucketRate | None = None
    input_tokens: BucketRate | None = None
    output_tokens: BucketRate | None = None
    caps: PoolCaps = PoolCaps()
    """Manual limits on the pool."""


def seen_in(folder: StateFolder, job: str, places: dict[str, int]) -> tuple[dict[int, SampledRow], int, ReportedLimits]:
    """Return the outcome of the rows by place, the number of reused (unpaid) rows, and the limits named by the
    provider; those of several servers that share the work are added.

    ``places``: place of each row, by key. Raises ``StoreError``.
    """
    found: dict[int, _SampleRow] = {}
    limits: dict[int, ReportedLimits] = {}
    servers = range(1)
    source = folder.journal(job)
    try:
        for _, turn in source.turns():
            for event in (each for batch in turn.batches for each in batch):
                if isinstance(event, events.Opened):
                    servers = range(1 + event.terms.peers)
                    limits = {place: ReportedLimits() for place in servers if not event.terms.is_closed(place)}
                elif isinstance(event, events.PermitsGranted) and event.route in servers and event.memo:
                    limits[event.route] = _reported_limits(event.memo) or limits.get(event.route, ReportedLimits())
                elif isinstance(event, (events.Answered, events.ReplyRecalled, events.AttemptFailed)):
                    place = places.get(event.sample.partition("\x1f")[0])
                    if place is not None:
                        found.setdefault(place, _SampleRow()).take(event)
    finally:
        source.close()
    remembered = sum(each.remembered and not each.paid for each in found.values())
    return {place: each.seen() for place, each in found.items()}, remembered, _together([*limits.values()])


class _SampleRow:
    def __init__(self) -> None:
        self.usages: list[Usage] = []
        self.elapsed_s: list[float] = []
        self.attempts = self.reply_bytes = 0
        self.remembered = self.paid = False

    def take(self, event: events.Answered | events.ReplyRecalled | events.AttemptFailed) -> None:
        if isinstance(event, events.AttemptFailed):
            self.attempts += event.failure.kind is not FailureKind.THROTTLED and event.failure.sent
            return
        assert event.reply is not None, "the store fills it in"
        self.attempts += 1
        self.usages.append(event.reply.usage)
        self.reply_bytes += len(event.reply.body)
        if isinstance(event, events.Answered):
            self.elapsed_s.append(event.elapsed_s)
            self.paid = True
        else:
            self.remembered = True

    def seen(self) -> SampledRow:
        return SampledRow(
            usages=tuple(self.usages), elapsed_s=tuple(self.elapsed_s), attempts=self.attempts,
            reply_bytes=self.reply_bytes, answered=bool(self.usages),
        )  # fmt: skip


def _together(servers: Sequence[ReportedLimits]) -> ReportedLimits:
    return ReportedLimits(
        requests=rate_together([each.requests for each in servers]),
        input_tokens=rate_together([each.input_tokens for each in servers]),
        output_tokens=rate_together([each.output_tokens for each in servers]),
        caps=caps_together([each.caps for each in servers]),
    )


def _reported_limits(memo: bytes) -> ReportedLimits | None:
    known = pool_in(memo)
    if known is None:
        return None
    limit, caps = known
    return ReportedLimits(
        requests=_reported_bucket(limit.requests), input_tokens=_reported_bucket(limit.input_tokens),
        output_tokens=_reported_bucket(limit.output_tokens), caps=caps,
    )  # fmt: skip


def _reported_bucket(bucket: Refill) -> BucketRate | None:
    return BucketRate(bucket.per_s, bucket.capacity) if bucket.per_s else None
