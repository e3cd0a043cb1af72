"""Message Batches without HTTP: creation, processing over a seeded time, cancellation, list, results as JSON Lines.

https://docs.claude.com/en/docs/build-with-claude/batch-processing. Time is an argument; rows are processed in step with
it, so a batch that is cancelled half way has half of its answers.
"""

import re
from typing import Any, Final

import msgspec

from actors.simulator import random_draws
from actors.simulator.api import wire
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest
from actors.simulator.token_buckets import rfc3339

REQUESTS_MAX: Final = 100_000
BATCHES_MAX: Final = 1_000
"""Most batches kept; beyond it the oldest batch that has ended is dropped."""
EXPIRES_AFTER_S: Final = 24 * 3600
LIST_DEFAULT: Final = 20
LIST_MAX: Final = 1_000

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_COUNTS: Final = ("processing", "succeeded", "errored", "canceled", "expired")


class NoSuchBatch(LookupError):
    """No batch has this name, or the batch was dropped."""


class BatchQueueFull(Exception):
    """Too many requests of the account are in batches."""

    def __init__(self, refusal: ErrorResponse) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    params: msgspec.Raw


class _Create(msgspec.Struct):
    requests: list[_Row]


class SimulatedBatch(msgspec.Struct, kw_only=True):
    """A message batch and its results so far."""

    name: str
    number: int
    created_s: float
    ends_s: float
    rows: list[_Row]
    requests: int
    lines: list[bytes] = msgspec.field(default_factory=list)
    counts: dict[str, int]
    done: int = 0
    cancelled_s: float | None = None
    ended_s: float | None = None

    def to_json(self, base_url: str) -> dict[str, Any]:
        """Return the batch in the provider's form; like there, the counts are given only at its end."""
        ended = self.ended_s is not None
        counts = self.counts if ended else dict.fromkeys(_COUNTS, 0) | {"processing": len(self.rows)}
        status = "ended" if ended else "in_progress" if self.cancelled_s is None else "canceling"
        return {
            "id": self.name,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": counts,
            "created_at": rfc3339(self.created_s),
            "expires_at": rfc3339(self.created_s + EXPIRES_AFTER_S),
            "ended_at": rfc3339(self.ended_s) if self.ended_s is not None else None,
            "cancel_initiated_at": rfc3339(self.cancelled_s) if self.cancelled_s is not None else None,
            "archived_at": None,
            "results_url": f"{base_url}/v1/messages/batches/{self.name}/results" if ended else None,
        }


class SimulatedBatchStore:
    """Message batches of one simulated provider."""

    def __init__(self, provider: SimulatedProvider) -> None:
        self._provider = provider
        self._all: dict[str, SimulatedBatch] = {}
        self._created = 0

    def create(self, body: bytes, now_s: float) -> SimulatedBatch:
        """Create a batch of the requests in ``body``. Raises ``BadRequest``, ``BatchQueueFull``."""
        try:
            rows = msgspec.json.decode(body, type=_Create).requests
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"requests: {error}") from None
        if not 0 < len(rows) <= REQUESTS_MAX:
            raise BadRequest(f"requests: List should have 1 to {REQUESTS_MAX} items after validation, not {len(rows)}")
        seen: set[str] = set()
        for at, row in enumerate(rows):
            if not _CUSTOM_ID.fullmatch(row.custom_id):
                raise BadRequest(f"requests.{at}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
            if row.custom_id in seen:
                raise BadRequest(f"requests.{at}.custom_id: Each custom_id must be unique within a batch")
            seen.add(row.custom_id)
        self._see_room(len(rows))
        settings, number = self._provider.settings, self._created
        named = random_draws.identity(body)
        one, two = (random_draws.draw(settings.seed, named, number * 2 + each, random_draws.BATCH) for each in (0, 1))
        takes_s = random_draws.lognormal(settings.batch_ms / 1000, settings.latency_spread, one, two)
        name = random_draws.name("msgbatch_sim", settings.seed, named, number)
        counts = dict.fromkeys(_COUNTS, 0) | {"processing": len(rows)}
        rows = _shuffled(rows, named)
        batch = SimulatedBatch(
            name=name, number=number, created_s=now_s, ends_s=now_s + takes_s, rows=rows, counts=counts,
            requests=len(rows),
        )  # fmt: skip
        self._created += 1
        self._provider.tally.batches += 1
        self._forget()
        self._all[name] = batch
        return batch

    def _see_room(self, requests: int) -> None:
        """Raise ``BatchQueueFull`` if the account's queue has no room for these requests."""
        most = self._provider.settings.batch_queue
        waiting = sum(len(batch.rows) for batch in self._all.values())
        if most is not None and waiting + requests > most:
            text = f"Your account has hit a rate limit: at most {most} requests may wait in message batches"
            wait_s = self._provider.settings.throttled_retry_after_s
            raise BatchQueueFull(ErrorResponse(429, "rate_limit_error", text, retry_after_s=wait_s))

    def _forget(self) -> None:
        while len(self._all) >= BATCHES_MAX:
            oldest = next((name for name, batch in self._all.items() if batch.ended_s is not None), None)
            if oldest is None:
                raise BadRequest(f"at most {BATCHES_MAX} batches may be in progress")
            del self._all[oldest]

    def get(self, name: str) -> SimulatedBatch:
        """Return the batch of this name. Raises ``NoSuchBatch``."""
        try:
            return self._all[name]
        except KeyError:
            raise NoSuchBatch(name) from None

    def page(self, limit: int, before: str | None, after: str | None) -> tuple[list[SimulatedBatch], bool]:
        """Return batches, the newest first, and whether more follow in that direction."""
        newest = list(reversed(self._all.values()))
        names = [batch.name for batch in newest]
        for name in (before, after):
            if name is not None and name not in names:
                raise NoSuchBatch(name)
        if before is not None:
            earlier = newest[: names.index(before)]
            return earlier[-limit:], len(earlier) > limit
        later = newest[names.index(after) + 1 :] if after is not None else newest
        return later[:limit], len(later) > limit

    def delete(self, name: str) -> None:
        """Delete a batch that has ended. Raises ``NoSuchBatch``, ``BadRequest``."""
        if self.get(name).ended_s is None:
            raise BadRequest(f"Message Batch {name} is still processing; cancel it and wait until it has ended")
        del self._all[name]

    def cancel(self, name: str, now_s: float) -> SimulatedBatch:
        """Cancel a batch, which ends with the next step; a batch that has ended is unchanged."""
        batch = self.get(name)
        if batch.ended_s is None and batch.cancelled_s is None:
            batch.cancelled_s = now_s
        return batch

    def advance(self, batch: SimulatedBatch, now_s: float, rows_max: int) -> bool:
        """Process rows that are due, at most ``rows_max``. Return True if more rows are due."""
        if batch.ended_s is not None:
            return False
        due = 0 if batch.cancelled_s is not None else self._due(batch, now_s) - batch.done
        for row in batch.rows[batch.done : batch.done + min(due, rows_max)]:
            batch.lines.append(self._result(row, batch, now_s))
            batch.done += 1
        if due > rows_max:
            return True
        if batch.cancelled_s is not None:
            for row in batch.rows[batch.done :]:
                batch.lines.append(_line(row, batch, "canceled", {}))
            batch.done = len(batch.rows)
        if batch.done == len(batch.rows) and (now_s >= batch.ends_s or batch.cancelled_s is not None):
            batch.ended_s = now_s
            batch.rows = []
        return False

    def _due(self, batch: SimulatedBatch, now_s: float) -> int:
        if now_s >= batch.ends_s:
            return len(batch.rows)
        return int(len(batch.rows) * (now_s - batch.created_s) / (batch.ends_s - batch.created_s))

    def _result(self, row: _Row, batch: SimulatedBatch, now_s: float) -> bytes:
        settings = self._provider.settings
        if settings.batch_expired:
            named = random_draws.identity(row.custom_id.encode())
            if random_draws.draw(settings.seed, named, batch.number, random_draws.EXPIRED) < settings.batch_expired:
                return _line(row, batch, "expired", {})
        outcome = self._provider.decide(bytes(row.params), now_s, batched=True)
        if outcome.refusal is not None:
            return _line(row, batch, "errored", {"error": wire.error(_in_a_batch(outcome.refusal), None)})
        assert outcome.ask is not None
        self._provider.delivered(outcome.ask)
        return _line(row, batch, "succeeded", {"message": outcome.message("batch")})


def _in_a_batch(refusal: ErrorResponse) -> ErrorResponse:
    """Return the error in the form of a result line, which has no status and no type ``request_too_large``."""
    known = refusal.error_type != "request_too_large"
    return refusal if known else msgspec.structs.replace(refusal, error_type="invalid_request_error")


def _line(row: _Row, batch: SimulatedBatch, kind: str, more: dict[str, Any]) -> bytes:
    batch.counts["processing"] -= 1
    batch.counts[kind] += 1
    return wire.encoded({"custom_id": row.custom_id, "result": {"type": kind} | more})


def _shuffled(rows: list[_Row], named: int) -> list[_Row]:
    """Return the rows in another order, since the order of results is unspecified."""
    return [row for _, row in sorted(enumerate(rows), key=lambda each: random_draws.mixed(named + each[0]))]
