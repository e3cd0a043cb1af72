"""Bytecodes of a call of ``null`` by line: ``python -m benchmarks.profile.bytecodes``; ``--lines 8``: line by line.

Bytecodes of our code are counted, not sampled: counts are equal on every machine of one Python, while a sampling
profiler has too few samples for a function of a microsecond. Half of a call's machine instructions are the
interpreter's loop, some thirty for each bytecode; the other half are in called C code and not counted.

The program of ``null`` runs inline in virtual time, with a number of calls and with twice that number; the difference
is reported, so start and end cancel. Tracing costs ten times the run itself. From Python 3.12 on the first call of
each function is not seen.
"""

from __future__ import annotations

import argparse
import linecache
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from actors.files.sinks.jsonl_sink import FileSink
from actors.jobs.spec import JobSpec
from actors.routing.model_spec import ModelSpec
from benchmarks.harness import counting, figures, profile_parts, rows
from benchmarks.harness.models import AtOnce
from benchmarks.null.null_program import Null
from cortex.values.limits import Limits
from tests.edge.support.virtual_clock import virtually

CALLS = 4_000
FUNCTIONS = 40
LEAST = 0.5
"""Bytecodes a call below which a line is not reported."""

_TOLD = tuple(f"{profile_parts.ROOT}/{name}/" for name in (*profile_parts.OWN, "benchmarks"))

Place = tuple[str, str, int]
"""Position: file relative to the checkout, function, line."""


@contextmanager
def traced(found: Counter[Place], _work: counting.Work) -> Iterator[None]:
    """Count the bytecodes of our three packages, and of the benchmark's program and model."""
    counts: Counter[tuple[Any, int]] = Counter()

    def within(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            counts[frame.f_code, frame.f_lineno or 0] += 1
        return within

    def called(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if file == __file__ or not file.startswith(_TOLD):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return within

    before = sys.gettrace(), threading.gettrace()
    threading.settrace(called)
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
    for (code, line), count in counts.items():
        found[code.co_filename.removeprefix(f"{profile_parts.ROOT}/"), code.co_qualname, line] += count


def counted(calls: int) -> Counter[Place]:
    """Return the bytecodes of a run of ``calls`` calls. Raises ``rows.Lost`` where a call is not answered."""
    found: Counter[Place] = Counter()
    with tempfile.TemporaryDirectory(prefix="bytecodes-") as folder:
        order = JobSpec(
            program=Null(calls=calls), model_spec=ModelSpec(model=rows.MODEL), job="count", state=folder,
            cluster="inline",
            limits=Limits(concurrency=counting.PLACES),
        )  # fmt: skip
        sink = FileSink(str(Path(folder, "results.jsonl")))
        work = counting.Work(calls)
        whole = counting.session(work, order, AtOnce(), 1, 0.0, profiled=partial(traced, found), sink=sink)
        counting.complete(virtually(whole).facts, calls)
    return found


def a_call(calls: int) -> dict[Place, float]:
    """Return bytecodes a call, by line."""
    first, second = counted(calls), counted(2 * calls)
    second.subtract(first)
    return {place: count / calls for place, count in second.items() if count > 0}


def by_function(found: dict[Place, float]) -> Counter[tuple[str, str]]:
    """Return bytecodes a call, by function."""
    functions: Counter[tuple[str, str]] = Counter()
    for (file, function, _), count in found.items():
        functions[file, function] += count  # type: ignore[assignment]
    return functions


def table(found: dict[Place, float], lines: int) -> Iterator[str]:
    """Yield the report, line by line for the first ``lines`` functions."""
    functions = by_function(found)
    yield f"{sum(functions.values()):8.1f} bytecodes a call"
    for at, ((file, function), count) in enumerate(functions.most_common(FUNCTIONS)):
        yield f"{count:8.1f} {file}: {function}"
        for (its, name, line), here in sorted(found.items()) if at < lines else ():
            if (its, name) == (file, function) and here >= LEAST:
                yield f"{here:16.1f} {line:4} {linecache.getline(str(profile_parts.ROOT / file), line).rstrip()}"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--lines", type=int, default=0, help="number of functions told line by line")
    given = parser.parse_args()
    found = a_call(given.calls)
    for line in table(found, given.lines):
        figures.said(line, given.json)
    functions = {f"{file}: {function}": round(count, 1) for (file, function), count in by_function(found).most_common()}
    python = ".".join(map(str, sys.version_info[:3]))
    whole = round(sum(found.values()), 1)
    facts = {"benchmark": "bytecodes", "python": python, "calls": given.calls, "a_call": whole, "functions": functions}
    print(msgspec.json.encode(facts).decode(), flush=True)


if __name__ == "__main__":
    main()
