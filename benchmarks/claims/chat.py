"""Claims about the place of the scheduler: in a conversation, in code, in a state machine behind a tool.

Task of growing length: read n notes, label each, count the labels. All forms share notes, two tools and reader.

    chat       one conversation holds the task and everything done so far; the model decides the next step
    control    the model gives commands to a state machine, which runs subtasks of six notes in fresh conversations
    clean      code iterates over the notes and counts; one bounded call a note

Tokens and calls are of a run in which the reader makes no mistake; success is measured over runs with the reader's
stated error rates.
"""

from __future__ import annotations

import math
from typing import Any

from actors.simulator import tokenizer
from actors.simulator.api.reasoner import FORM_SHARE, error_share
from actors.simulator.request import TOKENS_PER_MESSAGE
from actors.simulator.settings import SimulatorSettings
from benchmarks.claims.core_run import Ended, run
from cortex.flows.answer_types import returns_of
from cortex.programs.chatloop import chatloop
from cortex.programs.parts import label_task
from cortex.programs.toolloop import toolloop
from cortex.state.program import Program

LENGTHS = (5, 10, 20, 40, 80)
RUNS = 60
PARTS_MAX = 1_000
"""Bound on message parts, above the longest conversation here, so that no form is stopped by it."""
FORMS = ("chat", "control", "clean")


def program(form: str, length: int, seed: int) -> Program:
    """Return the task in one form."""
    if form == "control":
        made: Program = toolloop(count=length, seed=seed)
        return made
    return chatloop(count=length, form=form, seed=seed)


def _ran(form: str, length: int, seed: int, error: float | None) -> Ended:
    return run(program(form, length, seed), SimulatorSettings(seed=seed, error=error), parts_max=PARTS_MAX)


def clean_error(length: int, seed: int) -> float:
    """Return the mean share of wrong labels among well-formed labels, one note a call."""
    errors = []
    form = returns_of(label_task.Label).instruction
    for item in label_task.names(length, seed):
        text = f"{label_task.question(label_task.note(item))}\n\n{form}"
        error = error_share(text, tokenizer.count(text) + TOKENS_PER_MESSAGE)
        errors.append(error * (1 - FORM_SHARE) / (1 - error * FORM_SHARE))
    return sum(errors) / len(errors)


def _row(length: int, runs: int) -> dict[str, Any]:
    row: dict[str, Any] = {"items": length, "runs": runs}
    for form in FORMS:
        calm = _ran(form, length, 0, error=0.0)
        assert calm.answer["right"], (form, length)
        ended = [_ran(form, length, seed, error=None) for seed in range(1, runs + 1)]
        right = sum(each.answer["right"] for each in ended) / runs
        row[form] = {
            "input_tokens": calm.provider.tally.input_tokens, "calls": calm.samples,
            "largest_prompt_tokens": calm.largest_prompt_tokens, "success": right,
            "success_error": math.sqrt(right * (1 - right) / runs),
        }  # fmt: skip
        if form == "chat":
            for name in ("missed", "twice"):
                row[form][name] = sum(each.answer[name] for each in ended) / runs
    wrong = clean_error(length, 1)
    row["clean"]["success_expected"] = (1 - wrong) ** length
    return row


def growth(rows: list[dict[str, Any]], form: str, what: str) -> float:
    """Return the exponent of growth with length, between the last two lengths."""
    one, two = rows[-2], rows[-1]
    return math.log(two[form][what] / one[form][what]) / math.log(two["items"] / one["items"])


def measure(small: bool = False) -> dict[str, Any]:
    """Return tokens, calls and success for each length and form, and whether the claims hold."""
    lengths, runs = ((5, 20), 10) if small else (LENGTHS, RUNS)
    rows = [_row(length, runs) for length in lengths]
    first, last = rows[0], rows[-1]
    return {
        "rows": rows, "parts_max": PARTS_MAX,
        "growth": {form: growth(rows, form, "input_tokens") for form in FORMS},
        "holds": {
            "in a conversation tokens grow faster than the task": growth(rows, "chat", "input_tokens") > 1.5,
            "in code they grow as the task does": abs(growth(rows, "clean", "input_tokens") - 1) < 0.1,
            "and behind a tool": growth(rows, "control", "input_tokens") < 1.25,
            "the clean loop makes a call an item, the chat loop two and one more": all(
                (row["clean"]["calls"], row["chat"]["calls"]) == (row["items"], 2 * row["items"] + 1) for row in rows
            ),
            "the clean loop's largest prompt is that of one item": last["clean"]["largest_prompt_tokens"]
            < 1.1 * first["clean"]["largest_prompt_tokens"],
            "the chat loop fails more and more": last["chat"]["success"] < first["chat"]["success"] - 0.3,
            "the clean loop succeeds as predicted": all(
                abs(row["clean"]["success"] - row["clean"]["success_expected"]) < 0.15 for row in rows
            ),
            "at the last length the clean loop is ahead of the chat loop": last["clean"]["success"]
            > last["chat"]["success"] + 0.3,
        },
    }  # fmt: skip
