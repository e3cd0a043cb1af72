"""Whole jobs of a few rows at a provider that refuses some of their calls, in virtual time: the job's own step, the
scheduler's and the limiter's, with nothing left out but the wire.

`python -m tests.support.refused_jobs` prints a table of cells: rows, refusals of each, with and without Retry-After.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from cortex.values.limits import Limits
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, reply, rows
from tests.edge.support.virtual_clock import VirtualRuntime, virtually

ENDPOINT: Final = "http://127.0.0.1:1"
"""Server of the user's own: two calls at once until more is known (`policies.limits.queueing`)."""
NETWORK_S: Final = (0.002, 0.030)
"""Seconds until a call is refused: requests of one turn reach a server one after another."""


class Case(msgspec.Struct, frozen=True):
    """Job, and what its provider refuses."""

    rows: int
    times: int = 0
    """Refusals of each row before it is answered."""
    retry_after_s: float | None = None
    """Retry-After of a refusal; None: it has none. A limit states its own time."""
    latency_s: float = 0.1
    """Mean seconds of an answered call."""
    concurrency: int = 20
    storms: tuple[tuple[float, float], ...] = ()
    """Times from and until which every call is refused, in seconds."""
    per_min: float = 0.0
    """Requests a minute that a token bucket allows; 0: no bucket."""
    capacity: float = 1.0
    """Requests that the bucket holds."""
    share: float = 0.0
    """Share of the calls that are refused whatever is sent."""
    places: int = 0
    """Calls that the provider works on at once; 0: any number."""

    def __str__(self) -> str:
        told = "no Retry-After" if self.retry_after_s is None else f"Retry-After {self.retry_after_s:g}"
        storms = "".join(f", storm {since:g} to {until:g} s" for since, until in self.storms)
        storms += f", {self.share:.0%} of calls" * bool(self.share) + f", {self.places} places" * bool(self.places)
        bucket = f", {self.per_min:g}/min of {self.capacity:g}" if self.per_min else ""
        return f"{self.rows} rows of {self.latency_s:g} s, {self.times} refusals each, {told}{storms}{bucket}"


class Outcome(msgspec.Struct, frozen=True):
    """Times at which rows were answered, in seconds, and refusals."""

    answered: tuple[float, ...]
    refused: int
    rows_failed: int

    @property
    def took_s(self) -> float:
        return self.answered[-1] if self.answered else math.inf

    @property
    def gap_s(self) -> float:
        """The longest time between two answers."""
        return max((later - former for former, later in itertools.pairwise((0.0, *self.answered))), default=math.inf)


class RefusingModel(FunctionModel):
    """Provider of a case."""

    def __init__(self, case: Case, seed: int) -> None:
        super().__init__(endpoint=ENDPOINT)
        self.case, self.chance = case, random.Random(seed)
        self.seen: Counter[bytes] = Counter()
        self.answered: list[float] = []
        self.refused = self.busy = 0
        self._level, self._filled_s = case.capacity, 0.0

    async def call(self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Any = None) -> Any:
        loop, case = asyncio.get_running_loop(), self.case
        await asyncio.sleep(self.chance.uniform(*NETWORK_S))
        failure = self._refusal(body, loop.time())
        if failure is not None:
            self.refused += 1
            return failure
        await asyncio.sleep(case.latency_s * self.chance.uniform(0.7, 1.3))
        self.busy -= 1
        self.answered.append(loop.time())
        return reply("ok")

    def _refusal(self, body: bytes, at_s: float) -> Failure | None:
        case = self.case
        self.seen[body] += 1
        asked_s = case.retry_after_s
        if case.per_min:
            per_s = case.per_min / 60
            self._level = min(case.capacity, self._level + per_s * (at_s - self._filled_s))
            self._filled_s = at_s
        refused = self.seen[body] <= case.times or any(since <= at_s < until for since, until in case.storms)
        if case.per_min and not refused and self._level < 1:
            refused = True
            if asked_s is not None:
                asked_s = max(1.0, math.ceil((1 - self._level) * 60 / case.per_min))
        refused |= case.share > 0 and self.chance.random() < case.share
        refused |= 0 < case.places <= self.busy
        if refused:
            return Failure(FailureKind.THROTTLED, "later", 429, "rate_limit_error", asked_s, False)
        self._level -= 1
        self.busy += 1
        return None


def outcome(case: Case, seed: int = 1, until_s: float = 900.0) -> Outcome:
    """Run the job to its end, or for `until_s` seconds."""

    async def run() -> Outcome:
        model = RefusingModel(case, seed)
        with tempfile.TemporaryDirectory() as folder:
            job = Run(
                Path(folder), model, source=ListSource(rows(case.rows)), runtime=VirtualRuntime(), job=f"j{seed}",
                limits=Limits(concurrency=case.concurrency),
            )
            failed = 0
            with suppress(TimeoutError):
                failed = (await asyncio.wait_for(job.to_end(), until_s)).facts["rows_failed"]
        return Outcome(tuple(sorted(model.answered)), model.refused, failed)

    return virtually(run())


def cases() -> Iterator[Case]:
    """Every case of rows that are refused some times each."""
    for count, times, asked_s in itertools.product((1, 2, 6, 20), (1, 2, 3), (None, 1.0, 4.0)):
        yield Case(count, times, asked_s)


def main(text: str = "") -> None:
    """Print the cases whose name holds `text`: seconds until the last row is answered, in the median of some seeds."""
    for case in cases():
        if text in str(case):
            found = [outcome(case, seed) for seed in (1, 2, 3)]
            print(f"{median(each.took_s for each in found):6.1f}  {case}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
