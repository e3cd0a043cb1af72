"""Regression guard for the work of equal calls: ``python -m benchmarks.quick``; ``--keep`` stores the present counts.

No timed value is judged. Commits, messages, bytes and calls of Python functions are counted for 10,000 calls and are
equal on every machine (``harness.counting``). A figure more than 10 % above the stored one in ``quick.json`` fails; a
figure 10 % below is reported. Differences of less than one message in a thousand calls are not judged. With another
Python version only functions of ours are judged, not the count of all functions.

- ``batch``: `cortex batch`, inline, a model that answers at once;
- ``branches``: the same with two branches and the bytes that travel between processes on Ray;
- ``hanoi``: a chain of steps, three votes each, one after the other;
- ``http``: the client of a branch, a request over real HTTP.

Also reported, not judged: CPU of each as a multiple of a bare loop's, in pairs that take turns.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import counting, figures
from benchmarks.harness.counting import Figures, Work
from benchmarks.quick import paired_ratios

KEPT = Path(__file__).with_name("quick.json")
PER = 10_000
MORE_MAX = 0.10
LEAST = PER / 1_000
"""Difference in messages that is not judged, since some come with time; also the least growth of functions to report
by part."""
NAMED_LEAST = PER / 1_000
"""Least count of a kind of message with its own line; rarer kinds are added up."""
MESSAGES = "messages: "
OTHERS = MESSAGES + "others"
ALL_FUNCTIONS = "functions"

CASES: dict[str, tuple[Callable[[int], Work], int, int, int]] = {
    "batch": (counting.batch, 500, 2_000, 12_000),
    "branches": (lambda calls: counting.batch(calls, branches=2, hop_s=counting.HOP_S), 500, 2_000, 12_000),
    "hanoi": (counting.hanoi, 3, 7, 10),
    "http": (counting.http, 200, 1_000, 6_000),
}
"""Counting function of a case, its warm-up size, and two sizes whose difference is counted."""


class Case(msgspec.Struct):
    """Figures of one case for 10,000 calls."""

    figures: Figures
    functions_by_part: Figures
    """Function calls by part, to locate growth; not judged."""


class Kept(msgspec.Struct):
    """Stored figures."""

    python: str
    per_calls: int
    cases: dict[str, Case]


class Line(msgspec.Struct):
    """Figure beside its stored value. ``verdict``: ``more``, ``less`` or empty."""

    name: str
    kept: float
    now: float
    verdict: str = ""

    @property
    def change(self) -> float:
        """Return the change as a share of the stored value."""
        return self.now / self.kept - 1 if self.kept else float("inf") if self.now else 0.0

    def __str__(self) -> str:
        marks = {"more": "  MORE", "less": "  less: --keep would keep that"}
        text = f"{self.change:+9.1%}" if self.kept else "      new"
        return f"{self.name:38}{self.kept:14,.0f}{self.now:14,.0f}{text}{marks.get(self.verdict, '')}"


def python() -> str:
    """Return the Python version, whose standard library is counted too."""
    return "{}.{}".format(*sys.version_info)


def case(name: str) -> Case:
    """Count one case."""
    road, warm, few, many = CASES[name]
    road(warm)
    work = road(many).less(road(few))
    return Case(work.figures(PER), work.by_part(PER))


def _summed(now: Mapping[str, float], named: Sequence[str]) -> Figures:
    """Return the figures with messages of unnamed kinds added up."""
    found: Figures = {}
    for name, count in now.items():
        rare = name.startswith(MESSAGES) and name not in named
        name = OTHERS if rare else name
        found[name] = round(found.get(name, 0.0) + count, 1)
    return found


def kept_of(cases: Mapping[str, Case]) -> Kept:
    """Return the figures to store."""
    found = {}
    for name, each in cases.items():
        named = [key for key, count in each.figures.items() if count >= NAMED_LEAST]
        found[name] = Case(_summed(each.figures, named), each.functions_by_part)
    return Kept(python(), PER, found)


def compared(name: str, now: Figures, kept: Figures, judged: Callable[[str], bool] = lambda figure: True) -> list[Line]:
    """Return every figure of a case beside its stored value."""
    lines = []
    now = _summed(now, list(kept))
    for figure in {**kept, **now}:
        line = Line(f"{name}: {figure}", kept.get(figure, 0.0), now.get(figure, 0.0))
        least = LEAST if MESSAGES in figure else 1.0
        if judged(figure) and abs(line.now - line.kept) >= least:
            if line.now > line.kept * (1 + MORE_MAX):
                line.verdict = "more"
            elif line.now < line.kept * (1 - MORE_MAX):
                line.verdict = "less"
        lines.append(line)
    return lines


def grown(now: Figures, kept: Figures) -> str:
    """Return the parts in which more functions are called than stored, as text."""
    more = {part: count - kept.get(part, 0.0) for part, count in now.items()}
    worst = sorted(((by, part) for part, by in more.items() if by > LEAST), reverse=True)[:5]
    return ", ".join(f"{part} +{by:,.0f}" for by, part in worst)


def verdict(cases: Mapping[str, Case], kept: Kept, say: Callable[[str], None]) -> dict[str, Any]:
    """Compare and print all cases; return the verdict as JSON data."""
    same = kept.python == python()
    found: dict[str, Any] = {"more": [], "less": []}
    say(f"{'for 10,000 calls':38}{'kept':>14}{'now':>14}{'change':>9}")
    for name, each in cases.items():
        before = kept.cases.get(name, Case({}, {}))
        lines = compared(name, each.figures, before.figures, lambda figure: same or figure != ALL_FUNCTIONS)
        for line in lines:
            say(str(line))
            if line.verdict:
                found[line.verdict].append(line.name)
        if any(line.verdict == "more" and "functions" in line.name for line in lines):
            say(f"{name}: it grew in {grown(each.functions_by_part, before.functions_by_part)}")
    if not same:
        say(f"kept by Python {kept.python}, this is {python()}: functions of the libraries are not judged")
    for what, text in (("more", f"more than {MORE_MAX:.0%} above what is kept"), ("less", "as much below")):
        if found[what]:
            say(f"{text}: {', '.join(found[what])}")
    return found


def _as_one_seed() -> None:
    """Restart with a fixed hash seed, so that the order in sets is the same in each run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.quick", *sys.argv[1:]])


def main() -> None:
    """Run from the command line. Exit code 1: a figure is more than 10 % above its stored value."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quick", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--keep", action="store_true", help="store the present counts for later comparisons")
    parser.add_argument("--cases", default=",".join(CASES), help=f"any of {', '.join(CASES)}")
    parser.add_argument("--no-ratios", action="store_true", help="count without timing")
    given = parser.parse_args()
    names = given.cases.split(",")
    if unknown := set(names) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    _as_one_seed()
    say = lambda line: figures.said(line, given.json)  # noqa: E731
    cases = {name: case(name) for name in names}
    kept = msgspec.json.decode(KEPT.read_bytes(), type=Kept) if KEPT.exists() else Kept(python(), PER, {})
    found: dict[str, Any] = {"benchmark": "quick", "machine": figures.machine(), "per_calls": PER, "cases": cases}
    if given.keep:
        new = kept_of(cases)
        new.cases = {**kept.cases, **new.cases}
        KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(new)) + b"\n")
        say(f"kept in {KEPT.name}: {', '.join(names)}")
        kept = new
    found |= verdict(cases, kept, say)
    if not given.no_ratios:
        found["ratios"] = paired_ratios.measure(say)
    figures.tell(found)
    sys.exit(1 if found["more"] else 0)


if __name__ == "__main__":
    main()
