"""Work of a call after many other calls of its job, counted: ``python -m benchmarks.growth batch``.

One job in virtual time (`harness.counting`). Python functions, messages, commits and bytes are counted for a stretch
of calls after the first 2,000, after 100,000 and after 950,000. Counts are equal on every machine and show growth with
the number of earlier calls alone; cache misses do not show.
"""

from __future__ import annotations

import argparse
import cProfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from actors.common.gc_tuning import settle
from actors.files.sinks.jsonl_sink import FileSink
from actors.files.sources.line_source import LineSource
from actors.files.sources.row_source import BatchSource
from actors.jobs.spec import JobSpec
from actors.routing.model_spec import ModelSpec
from benchmarks.harness import counting, figures, rows
from benchmarks.harness.counting import Work
from benchmarks.harness.models import AtOnce
from benchmarks.harness.scale_worker import CONCURRENCY, Kept, write_input
from cortex.programs.batch import Batch
from cortex.values.limits import Limits

AFTER = "2000,100000,950000"
CALLS = 30_000
"""Calls counted in each stretch: more than ten windows of rows, since a window is not cut where a stretch ends."""
PER = 10_000
TURN_S = 0.01
"""Virtual seconds of a turn: 30,000 calls a second, as without virtual time. With less, results would arrive faster
than the sink asks for them and would be read back."""


class Stretches(AtOnce):
    """Model that records the work done between calls of given numbers."""

    def __init__(self, work: Work, after: Sequence[int], calls: int) -> None:
        self.found: list[Work] = []
        self._work, self._calls, self._asked = work, calls, 0
        self._profiler: cProfile.Profile | None = None
        self._before: Counter[str] = Counter()
        self._turns = frozenset([*after, *(count + calls for count in after)])
        if any(b - a <= calls for a, b in pairwise(after)):
            raise ValueError(f"stretches of {calls} calls, in their order, after {after} touch each other")

    async def call(self, body: bytes, **how: Any) -> Any:
        """Return the answer."""
        self._asked += 1
        if self._asked in self._turns:
            self._turn()
        return await super().call(body, **how)

    def _turn(self) -> None:
        if self._profiler is None:
            self._before = Counter(self._work.counts)
            self._profiler = cProfile.Profile(builtins=False)
            self._profiler.enable()
            return
        self._profiler.disable()
        work = Work(self._calls)
        work.counts = Counter(self._work.counts)
        work.counts.subtract(self._before)
        work.note_functions(self._profiler)
        self.found.append(work)
        self._profiler = None


@contextmanager
def _unprofiled(work: Work) -> Iterator[None]:
    """Context without a profiler: the model starts and ends the counting itself."""
    yield


def stretches(kind: str, after: Sequence[int], calls: int = CALLS) -> list[Work]:
    """Run a job of `harness.scale_worker`; return the work of ``calls`` calls after each number of earlier calls."""
    size = max(after) + calls + 2 * CONCURRENCY
    work = Work(size)
    model = Stretches(work, after, calls)
    with tempfile.TemporaryDirectory(prefix="count-") as place:
        folder = Path(place)
        write_input(kind, folder / "in", size)
        source: Any = LineSource(str(folder / "in"), spool=folder / "spool")
        if kind == "batch":
            source = BatchSource(str(folder / "in"), model=rows.MODEL, output_tokens_max=None, spool=folder / "spool")
        source.check()
        order = JobSpec(
            program=Batch() if kind == "batch" else Kept(), model_spec=ModelSpec(model=rows.MODEL), job="count",
            state=place,
            cluster="inline", limits=Limits(concurrency=CONCURRENCY, output_tokens_max=rows.OUTPUT_TOKENS_MAX),
        )  # fmt: skip
        sink = FileSink(str(folder / "out"))
        how: Any = {"profiled": _unprofiled, "turn_s": TURN_S, "source": source, "sink": sink}
        road = counting.session(work, order, model, 1, 0.0, **how)
        counting.complete(counting.virtually(road).facts, size)
        source.close()
    return model.found


def measured(kind: str, after: Sequence[int], calls: int = CALLS) -> dict[str, Any]:
    """Return figures for 10,000 calls after each number of earlier calls, and the ratio of most to least functions."""
    found = {str(count): work.figures(PER) for count, work in zip(after, stretches(kind, after, calls), strict=True)}
    functions = [each["functions of ours"] for each in found.values()]
    return {"after": found, "spread": round(max(functions) / min(functions), 3)}


def after_some(calls: int) -> list[int]:
    """Return figures after few calls and after about as many as a job of this size has."""
    many = min(max(calls, 50_000), rows.CALLS_MAX - CALLS - 2 * CONCURRENCY)
    return [2_000, *([100_000] if many > 200_000 else []), many]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("batch", "kept"))
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--after", default=AFTER, help="calls before each counted stretch, separated by commas")
    given = parser.parse_args()
    settle()
    found = measured(given.kind, [int(count) for count in given.after.split(",")])
    for count, each in found["after"].items():
        text = " ".join(f"{name}={value:g}" for name, value in each.items() if not name.startswith("messages: "))
        figures.said(f"{given.kind:6} after {int(count):9,} calls, {PER:,} calls: {text}", given.json)
    figures.tell(found)


if __name__ == "__main__":
    main()
