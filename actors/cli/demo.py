"""Demo job: the topic of Python Enhancement Proposals by their titles, as typed answers with their probabilities.

The rows are real: the newest proposals of three topics, with the topic that the editors of Python gave each of them
(``demo_rows.csv``; the proposals are in the public domain). The model sees the title alone. The summary counts how
often it is right, beside the share of the most frequent topic, which is right without a model. The model is the small
one of the extra ``local``. A repeated command asks nothing again.
"""

from __future__ import annotations

import csv
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import cortex
from actors.common.terminal import console
from actors.providers.registry import LOCAL, SIMULATED, row_of

ROWS: Final = Path(__file__).with_name("demo_rows.csv")
"""Columns ``pep``, ``title``, ``topic``: the 16 newest proposals with each of these topics and no other, of those about
elections one. From https://github.com/python/peps, as of 2026-08-22."""
ID: Final = "pep"
FIELD: Final = "topic"
PROBABILITY: Final = f"{FIELD}_probability"
TOPICS: Final = ("governance", "packaging", "typing")
PROMPT: Final = """\
Which topic has this proposal for the Python language?

governance: who decides, councils, boards, votes
packaging: packages, wheels, indexes, metadata of distributions
typing: types, annotations, type checkers

Proposal: {{title}}
Topic:"""
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object", "properties": {FIELD: {"enum": list(TOPICS)}}, "required": [FIELD], "additionalProperties": False,
}  # fmt: skip
ANSWER_TOKENS_MAX: Final = 60
FOLDER: Final = Path("demo-results")
RESULTS: Final = FOLDER / "topics.csv"


class Score(msgspec.Struct, frozen=True):
    """Count of right answers, and of those that a constant answer would get right."""

    right: int
    rows: int
    most_frequent: str
    """Topic that is right most often where every row gets the same."""
    base: int
    """Rows that have this topic."""

    @property
    def better(self) -> bool:
        """True if the answers are right more often than the most frequent topic."""
        return self.right > self.base

    def text(self) -> str:
        """Both figures, as a sentence."""
        return (
            f"right: {self.right} of {self.rows} ({self.right / self.rows:.0%}); "
            f"without a model, always {self.most_frequent}: {self.base} of {self.rows} ({self.base / self.rows:.0%})"
        )


def given() -> list[dict[str, str]]:
    """Return the rows, with the editors' topics."""
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def score(answers: Mapping[str, str | None], rows: Sequence[Mapping[str, str]]) -> Score:
    """Return the score of answers by proposal. A row without an answer is wrong."""
    topics = Counter(row[FIELD] for row in rows)
    name, count = topics.most_common(1)[0]
    right = sum(answers.get(row[ID]) == row[FIELD] for row in rows)
    return Score(right, len(rows), name, count)


def chosen_model() -> tuple[str, str]:
    """Return the model to ask, and a notice about it."""
    from actors.providers.local.model import INSTALL, LOCAL_NOTICE, installed

    if installed():
        return LOCAL, LOCAL_NOTICE
    return SIMULATED, (
        f"The local model is not installed ({INSTALL}), so a simulated provider answers: a rehearsal of the path, "
        "without any judgement at all."
    )


def show(results: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, str]]) -> None:
    """Print the answers as a table on the terminal, the surest first."""
    from rich.table import Table

    titles = {row[ID]: row for row in rows}
    table = Table("PEP", "title", "answer", "probability", "editors", "", title="Topics of proposals, by their titles")
    table.columns[3].justify = "right"
    for result in sorted(results, key=lambda result: -(result[PROBABILITY] or 0.0)):
        row, topic, chance = titles[str(result[ID])], result[FIELD], result[PROBABILITY]
        sign = "right" if topic == row[FIELD] else "wrong"
        shown = "" if chance is None else f"{chance:.2f}"
        table.add_row(row[ID], row["title"], topic or f"none: {result['error']}", shown, row[FIELD], sign)
    console().print(table)


def main() -> int:
    """Run the demo, or show the result of an earlier run. Return the exit code."""
    model, notice = chosen_model()
    print(notice)
    began_s = time.monotonic()
    rows = given()
    FOLDER.mkdir(exist_ok=True)
    done = cortex.batch(
        str(ROWS), PROMPT, id=ID, schema=dict(SCHEMA), logprobs=True, output=str(RESULTS), overwrite=True, model=model,
        max_output_tokens=ANSWER_TOKENS_MAX, job="demo-topics", fresh="--fresh" in sys.argv[1:],
    )  # fmt: skip
    show(done.rows, rows)
    took_s = time.monotonic() - began_s
    print(score({str(row[ID]): row[FIELD] for row in done.rows}, rows).text())
    print(f"{done.calls} bounded calls to {row_of(model).title}, {took_s:.1f} s, results in {RESULTS}")
    print("The same by a command of your own:")
    print(f"  {command(model)}")
    print(f"This command again shows the answers at once; `{sys.executable} -m actors.cli.demo --fresh` asks anew.")
    return 0 if done.outcome == "complete" else 1


def command(model: str) -> str:
    """Return the command line that does what the demo does, with files that it writes beside the results."""
    (FOLDER / "prompt.txt").write_text(PROMPT)
    (FOLDER / "schema.json").write_bytes(msgspec.json.encode(SCHEMA))
    words = [
        "cortex", "batch", str(ROWS), "--prompt", f"@{FOLDER}/prompt.txt", "--id", ID, "--schema",
        f"{FOLDER}/schema.json", "--logprobs", "--max-output-tokens", str(ANSWER_TOKENS_MAX), "--model", model, "-o",
        "topics.csv",
    ]  # fmt: skip
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
