"""Whether the same calls take more work than they did: ``python -m benchmarks.quick``; ``--keep`` keeps what is now.

Nothing is timed that is judged: commits, messages, bytes and calls of Python functions are counted for 10,000 calls,
and are the same on every machine (``harness.counting``). A figure that is more than 10 % above the one that is kept
in ``quick.json`` fails; one that is as much below it says that less could be kept. Messages that differ by less than
one in a thousand calls are not judged, nor is the count of all functions where Python is another one: only that of our
own.

- ``batch``: `cortex batch`, inline, a model that answers at once;
- ``branches``: the same with two branches and the bytes that travel between processes on Ray;
- ``hanoi``: a chain of steps, three votes each, one after the other;
- ``http``: the client road of a branch, a request over real HTTP.

Beside them, not judged: how much longer than a bare loop each takes in CPU, in pairs that take turns.
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
"""Messages by so few more are not judged, of which some come with time; nor functions, to tell where they grew."""
NAMED_LEAST = PER / 1_000
"""Messages of a kind that is rarer stand together with others of that kind."""
MESSAGES = "messages: "
OTHERS = MESSAGES + "others"
ALL_FUNCTIONS = "functions"

CASES: dict[str, tuple[Callable[[int], Work], int, int, int]] = {
    "batch": (counting.batch, 500, 2_000, 12_000),
    "branches": (lambda calls: counting.batch(calls, branches=2, hop_s=counting.HOP_S), 500, 2_000, 12_000),
    "hanoi": (counting.hanoi, 3, 7, 10),
    "http": (counting.http, 200, 1_000, 6_000),
}
"""A road; how much of it warms up, and two amounts whose difference is counted."""


class Case(msgspec.Struct):
    """What one road takes for 10,000 calls."""

    figures: Figures
    functions_by_part: Figures
    """To tell where it grew; not judged."""


class Kept(msgspec.Struct):
    """What is compared with."""

    python: str
    per_calls: int
    cases: dict[str, Case]


class Line(msgspec.Struct):
    """One figure beside the one that is kept. ``verdict``: ``more``, ``less`` or empty."""

    name: str
    kept: float
    now: float
    verdict: str = ""

    @property
    def change(self) -> float:
        """As a share of what is kept."""
        return self.now / self.kept - 1 if self.kept else float("inf") if self.now else 0.0

    def __str__(self) -> str:
        marks = {"more": "  MORE", "less": "  less: --keep would keep that"}
        told = f"{self.change:+9.1%}" if self.kept else "      new"
        return f"{self.name:38}{self.kept:14,.0f}{self.now:14,.0f}{told}{marks.get(self.verdict, '')}"


def python() -> str:
    """The version whose standard library is counted along."""
    return "{}.{}".format(*sys.version_info)


def case(name: str) -> Case:
    """Count one road."""
    road, warm, few, many = CASES[name]
    road(warm)
    work = road(many).less(road(few))
    return Case(work.figures(PER), work.by_part(PER))


def _summed(now: Mapping[str, float], named: Sequence[str]) -> Figures:
    """Messages of kinds that have no name here, under one."""
    found: Figures = {}
    for name, count in now.items():
        rare = name.startswith(MESSAGES) and name not in named
        name = OTHERS if rare else name
        found[name] = round(found.get(name, 0.0) + count, 1)
    return found


def kept_of(cases: Mapping[str, Case]) -> Kept:
    """What is to be kept of these."""
    found = {}
    for name, each in cases.items():
        named = [key for key, count in each.figures.items() if count >= NAMED_LEAST]
        found[name] = Case(_summed(each.figures, named), each.functions_by_part)
    return Kept(python(), PER, found)


def compared(name: str, now: Figures, kept: Figures, judged: Callable[[str], bool] = lambda figure: True) -> list[Line]:
    """Every figure of a road beside the one that is kept."""
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
    """Where more functions are called than were, in words."""
    more = {part: count - kept.get(part, 0.0) for part, count in now.items()}
    worst = sorted(((by, part) for part, by in more.items() if by > LEAST), reverse=True)[:5]
    return ", ".join(f"{part} +{by:,.0f}" for by, part in worst)


def verdict(cases: Mapping[str, Case], kept: Kept, say: Callable[[str], None]) -> dict[str, Any]:
    """Compare all of them and tell; what came of it, as JSON has it."""
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
    for what, said in (("more", f"more than {MORE_MAX:.0%} above what is kept"), ("less", "as much below")):
        if found[what]:
            say(f"{said}: {', '.join(found[what])}")
    return found


def _as_one_seed() -> None:
    """Begin again where the order in sets would differ from run to run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.quick", *sys.argv[1:]])


def main() -> None:
    """From the command line. Exit code 1: something takes more work."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quick", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object")
    parser.add_argument("--keep", action="store_true", help="keep what is counted now, to be compared with from now on")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--no-ratios", action="store_true", help="count, and time nothing")
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
