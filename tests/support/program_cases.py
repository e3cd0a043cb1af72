"""Built-in programs, each with a task small enough for a test, a check of its answer, and its M.

Every test of "every program" uses this table. Answers come from the simulated provider without errors, so that they do
not depend on which sample came first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import cortex
from benchmarks.harness.hanoi_verifier import verified
from cortex.programs.chatloop import chatloop
from cortex.programs.convex import Convex
from cortex.programs.crystal import crystal
from cortex.programs.hanoi import Hanoi
from cortex.programs.notes import Notes, notes_from
from cortex.programs.ralph import Ralph
from cortex.programs.recovery import recovery
from cortex.programs.rlm import rlm
from cortex.programs.toolloop import toolloop
from cortex.state.program import Program
from tests.support.workspace_fixture import CHECK, TASK, workshop


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Program with a task."""

    name: str
    made: Callable[[Path], Program]
    """Return the program; its input files are written into the folder."""
    right: Callable[[Any, list[Any]], bool]
    """Return whether the answer and the results are right."""
    prompt_tokens_max: int
    """M for this task, so small that a program without a bound would exceed it."""
    midway: int
    """Answered calls after which the program is surely not at its end."""
    local_end: str
    """End of a run with the real small model, whose judgement is weak: ``answer``, or the kind of the failure."""
    local_tokens: int = 1_500
    """Tokens of that run together, so few that it is certain which bound is reached first."""
    local: Callable[[Path], Program] | None = None
    """Shorter task for that run; None: the same task."""


QUESTION = "How deep is the harbour?"
TWO = [("depth", "The harbour is nine metres deep."), ("ships", "The ships go seven metres deep.")]


def _notes(folder: Path) -> Program:
    words = "The harbour is {} metres deep. Ships of the line go {} metres deep. The mayor paid {} workers for it."
    texts = [
        (f"note-{n}", " ".join([words.format(n, n + 1, n + 2), "It rained all day in the town."] * 12))
        for n in range(8)
    ]
    return Notes(question=QUESTION, notes=notes_from(texts), summary_words_max=40, answer_words_max=60)


@cortex.flow
async def capitals(ctx: cortex.Context, rounds: int = 12) -> list[str]:
    """Flow that asks one question after another, with two votes each."""
    parts = []
    for number in range(rounds):
        votes = await ctx.ask(f"Answer yes or no: is {number} an even number?", samples=2, max_tokens=8, on_cut="keep")
        parts.append(max(votes, key=votes.count).strip())
    return parts


REVIEWS = "\n".join(
    f"Review {n} of K-{n % 9}: {'a late delivery, sadly' if n % 4 else 'it works'}." for n in range(600)
)
LATE = sum(n % 9 == 3 and n % 4 > 0 for n in range(600))
PIECE = """
lines = context.splitlines()
parts = [lines[at:at + 40] for at in range(0, len(lines), 40)]
asked = "How many of the reviews of K-3 mention a late delivery? Answer with the number alone."
replies = llm_map([asked + "\\n\\n" + "\\n".join(part) for part in parts])
submit(sum(int(each) for each in replies))
"""
CUT_PIECE = """
try:
    text = llm("The sky is")
except RuntimeError as error:
    text = str(error)
submit(text)
"""
"""Piece for the small model, which may not come to an end within its bound: a cut reply is an error of the call."""


def _rlm(**more: Any) -> Program:
    asked = "How many of the reviews of K-3 mention a late delivery?"
    return rlm(question=asked, context=REVIEWS, returns="number", **more)


def _ralph(folder: Path, items: int, output_tokens_max: int = 400) -> Program:
    work = workshop(folder / "work", items)
    return Ralph(folder=str(work), task=TASK, check=CHECK, view_bytes=1_000, output_tokens_max=output_tokens_max)


SYSTEMS = (
    System(
        name="hanoi", made=lambda folder: Hanoi(disks=5), prompt_tokens_max=300, midway=20, local_end="over_budget",
        right=lambda answer, rows: answer["solved"] and verified(5, rows),
    ),
    System(
        name="convex", prompt_tokens_max=800, midway=4, local_end="over_budget",
        made=lambda folder: Convex(functions=("exp(square(double(x)))", "sqrt(minus(abs(pos(x))))", "exp(entropy(x))"), k=2),
        right=lambda answer, rows: sorted(rows) == [[0, "convex"], [1, "concave"], [2, "neither"]],
    ),
    System(
        name="chatloop", made=lambda folder: chatloop(count=6), prompt_tokens_max=1_200, midway=5, local_end="over_budget",
        local=lambda folder: chatloop(count=1), local_tokens=1_250, right=lambda answer, rows: answer["right"],
    ),
    System(
        name="notes", made=_notes, prompt_tokens_max=2_500, midway=3, local_end="answer",
        local=lambda folder: Notes(question=QUESTION, notes=notes_from(TWO), answer_words_max=30),
        right=lambda answer, rows: bool(answer["text"]) and not answer["partial"],
    ),
    System(
        name="toolloop", made=lambda folder: toolloop(count=6, at_most=3), prompt_tokens_max=1_200, midway=6,
        local_end="over_budget", local=lambda folder: toolloop(count=1), local_tokens=1_000, right=lambda answer, rows: answer["right"],
    ),
    System(
        name="flow", made=lambda folder: capitals(), prompt_tokens_max=80, midway=6, local_end="answer",
        right=lambda answer, rows: len(answer) == 12 and set(answer) <= {"yes", "no"},
    ),
    System(
        name="rlm", made=lambda folder: _rlm(), prompt_tokens_max=2_200, midway=3, local_end="malformed",
        local=lambda folder: _rlm(preview=100, errors=1, reply_tokens=40), right=lambda answer, rows: answer == LATE,
    ),
    System(
        name="crystal", prompt_tokens_max=1_500, midway=3, local_end="answer", right=lambda answer, rows: answer == LATE,
        made=lambda folder: crystal(pieces=(PIECE,), context=REVIEWS, returns="number"),
        local=lambda folder: crystal(pieces=(CUT_PIECE,)),
    ),
    System(
        name="recovery", made=lambda folder: recovery(count=6, part=3), prompt_tokens_max=1_200, midway=5,
        local_end="over_budget", local=lambda folder: recovery(count=1), local_tokens=1_250, right=lambda answer, rows: answer["right"],
    ),
    System(
        name="ralph", made=lambda folder: _ralph(folder, 24), prompt_tokens_max=1_400, midway=2, local_end="over_budget",
        local=lambda folder: _ralph(folder, 2, output_tokens_max=40), right=lambda answer, rows: answer["passed"] and rows == [answer],
    ),
)  # fmt: skip
BY_NAME = {system.name: system for system in SYSTEMS}
