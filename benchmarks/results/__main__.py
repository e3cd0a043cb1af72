"""Table of the page of benchmarks, from the newest results file of each: ``python -m benchmarks.results``.

Without options the table between the two markers is rewritten. ``--check`` writes nothing and exits with code 1 where
the table does not match the files. ``--history NAME`` prints the figures of one benchmark, day by day.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.results import records
from benchmarks.results.records import Baseline, Figure, Goal, Result

PAGE = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- results: begin, made by python -m benchmarks.results -->", "<!-- results: end -->"
HEAD = ("benchmark", "figure", "measured", "goal", "reached", "baseline")


def number(value: float) -> str:
    """Return a number with separators of thousands and no more digits than it has."""
    return f"{value:,}"


def measured(figure: Figure) -> str:
    """Return value and unit, and the range of the rounds where there are several."""
    text = f"{number(figure.value)} {figure.unit}".strip()
    if len(figure.rounds) > 1:
        text += f" ({number(min(figure.rounds))} to {number(max(figure.rounds))})"
    return text


def aimed(goal: Goal | None) -> str:
    """Return the bounds of a goal, or an empty text."""
    if goal is None:
        return ""
    bounds = [f"≥ {number(goal.at_least)}"] if goal.at_least is not None else []
    bounds += [f"≤ {number(goal.at_most)}"] if goal.at_most is not None else []
    return ", ".join(bounds)


def compared(baseline: Baseline | None) -> str:
    """Return name and value of a baseline, or an empty text."""
    if baseline is None:
        return ""
    value = "" if baseline.value is None else f": {number(baseline.value)} {baseline.unit}".rstrip()
    return baseline.name + value


def row(result: Result, figure: Figure, first: str) -> str:
    """Return one row of the table; ``first`` is the text of its first cell."""
    reached = "" if figure.goal is None else "yes" if figure.goal.reached(figure.value) else "**no**"
    cells = (first, figure.name, measured(figure), aimed(figure.goal), reached, compared(figure.baseline))
    return f"| {' | '.join(cells)} |"


def table(results: Iterable[Result]) -> str:
    """Return the table as Markdown: the figures of the newest file of each benchmark, except those left out."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for result in records.newest(results):
        link = f"[`{result.benchmark}`](results/{result.date}-{result.benchmark}.json), {result.date}"
        shown = [figure for figure in result.figures if figure.table]
        lines += [row(result, figure, link if not at else "") for at, figure in enumerate(shown)]
    return "\n".join(lines)


def history(results: Iterable[Result], benchmark: str) -> str:
    """Return all figures of one benchmark as a Markdown table, oldest day first."""
    lines = [f"| {' | '.join(('date', *HEAD[1:]))} |", f"|{'---|' * len(HEAD)}"]
    kept = [result for result in results if result.benchmark == benchmark]
    return "\n".join([*lines, *(row(result, figure, result.date) for result in kept for figure in result.figures)])


def replaced(page: str, text: str) -> str:
    """Return the page with the text between its markers. Raise ``ValueError`` if a marker is missing or repeated."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page needs {BEGIN!r} and {END!r}, once each and in this order")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main(argv: list[str] | None = None, page: Path = PAGE, folder: Path = records.FOLDER) -> int:
    """Run the command. Return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="exit with code 1 where the table does not match the files")
    group.add_argument("--history", metavar="NAME", help="print the figures of one benchmark, day by day")
    given = parser.parse_args(argv)
    try:
        results = records.read_all(folder)
        if given.history:
            print(history(results, given.history))
            return 0
        was = page.read_text()
        now = replaced(was, table(results))
    except (records.Invalid, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if given.check and was != now:
        print(f"{page.name} does not match the results files: run python -m benchmarks.results", file=sys.stderr)
        return 1
    if not given.check:
        page.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
