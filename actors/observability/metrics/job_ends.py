"""Ends of jobs, told for a while after them: outcome, cause, time, rows and cost.

A job's other series vanish with its channel, often before they are scraped once more. The end is told by its own
process until that ends, by the cortex of a cluster that outlives the job, and by ``cortex metrics`` from the journals.
Its series have names of their own, so that no rate or sum counts a job twice where two of these are scraped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import msgspec

from actors.jobs.ending_cause import cause_of
from actors.observability.metrics.instruments import CAUSE, CERTAINTY, JOB, OUTCOME
from actors.observability.metrics.job_samples import rows_expected
from actors.observability.metrics.samples import NumberSample
from cortex.state.state import State
from policies.estimates.price import usd

KEPT_S: Final = 86_400.0
"""Seconds for which the end of a job is told, and so its alert stands, if nothing is done: that of the evening is still
read in the morning."""
KEPT_MAX: Final = 50
"""Most ends that a process tells of: 7 series each, of at most 1,000."""
LATEST: Final = 25
"""Ends of ``KEPT_MAX`` that are the latest ones, whatever they are. An end that was told once is in Prometheus."""


class JobEnd(msgspec.Struct, frozen=True, array_like=True):
    """End of one run of a job. Times are Unix times, money is in USD."""

    job: str
    epoch: int
    outcome: str
    cause: str
    at_s: float
    succeeded: int = 0
    failed: int = 0
    refused: int = 0
    left: int = 0
    cost_known_usd: float = 0.0
    cost_assumed_usd: float = 0.0

    def points(self) -> Iterator[NumberSample]:
        """Yield the samples of this end."""
        own = ((JOB, self.job),)
        how = ((OUTCOME, self.outcome), (CAUSE, self.cause))
        yield NumberSample("cortex.job.ended.timestamp", (*own, *how), self.at_s)
        rows = {"succeeded": self.succeeded, "failed": self.failed, "refused": self.refused, "left": self.left}
        for outcome, count in rows.items():
            yield NumberSample("cortex.job.ended.rows", (*own, (OUTCOME, outcome)), count)
        for certainty, cost in (("known", self.cost_known_usd), ("assumed", self.cost_assumed_usd)):
            yield NumberSample("cortex.job.ended.cost.usd", (*own, (CERTAINTY, certainty)), cost)


def worth_telling(ends: Iterable[JobEnd]) -> list[JobEnd]:
    """Return at most ``KEPT_MAX`` ends: the ``LATEST``, then those that ask for a person, then others, the latest
    first. Else fifty short jobs that end well would silence the alert of one that did not."""
    found = sorted(ends, key=lambda end: -end.at_s)
    latest, rest = found[:LATEST], found[LATEST:]
    rest.sort(key=lambda end: end.outcome in _FINAL and not end.failed)
    return latest + rest[: KEPT_MAX - LATEST]


def end_of(k: State, outcome: str = "") -> JobEnd:
    """Return the end of a job whose state is ``k``. ``outcome``: of a job that has none of its own, because its process
    died. Its time is that of the machine's clock, as ``time()`` of Prometheus is, not the job's own."""
    tally, ledger, outcome = k.tally, k.ledger, k.outcome or outcome
    return JobEnd(
        k.terms.job, k.epoch, outcome, cause_of(outcome, k.why), k.at_s + k.ahead_s,
        tally.succeeded, tally.failed - tally.rows_refused, tally.rows_refused,
        max(0, rows_expected(k) - tally.succeeded - tally.failed), usd(ledger.known_nusd), usd(ledger.assumed_nusd),
    )  # fmt: skip


def is_told(job: str) -> bool:
    """Return whether the end of this job is told: that of a child job is part of its parent's work."""
    return "~" not in job


def encoded(k: State) -> bytes:
    """Return the end of a job for a message; empty if it is not told."""
    return msgspec.msgpack.encode(end_of(k)) if k.outcome and is_told(k.terms.job) else b""


class KeptEnds:
    """Ends of jobs that one process keeps for ``KEPT_S``, those ``worth_telling``. ``now_s``: Unix time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._ends: dict[str, JobEnd] = {}
        self.standing = False
        """Whether this process outlives the jobs whose ends it tells."""

    def keep(self, blob: bytes) -> None:
        """Keep an end that came in a message."""
        end = _decoder.decode(blob)
        self._ends.pop(end.job, None)
        self._ends[end.job] = end
        if len(self._ends) > KEPT_MAX:
            kept = {each.job for each in worth_telling(self._ends.values())}
            self._ends = {job: each for job, each in self._ends.items() if job in kept}

    def drop(self, job: str) -> None:
        """Forget the end of a job that goes on."""
        self._ends.pop(job, None)

    def points(
        self, epoch_of: Callable[[str], int] = lambda job: 0, watched: Collection[str] = ()
    ) -> Iterable[NumberSample]:
        """Yield the samples of the ends. ``epoch_of``: epoch of a job that runs now, 0 if it does not: a later epoch
        than that of the end has continued the job. ``watched``: jobs that tell of themselves."""
        if self.standing:
            yield NumberSample("cortex.ends.kept", (), KEPT_S)
        since_s = self._now_s() - KEPT_S
        for job, end in list(self._ends.items()):
            if end.at_s < since_s or epoch_of(job) > end.epoch:
                del self._ends[job]
            elif job not in watched:
                yield from end.points()


_FINAL: Final = ("complete", "cancelled")
_decoder = msgspec.msgpack.Decoder(JobEnd)
