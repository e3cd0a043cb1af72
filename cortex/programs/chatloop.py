"""``chatloop``: the scheduler kept in a conversation, and the same task with the scheduler in code.

The baseline to compare with. In the *chat* form one conversation holds the task, every note that was read and every
label that was recorded; the model decides from it what is next, and counts at the end. In the *clean* form code goes
through the notes and counts; one bounded call per note reads only that note. Both use the same two tools, on workers,
and see the same notes.

    cortex run chatloop -p count=30                      cortex run chatloop -p count=30 -p form=clean
"""

from __future__ import annotations

from typing import Any, Literal

import cortex
from cortex.programs.parts import label_task
from cortex.programs.parts.label_task import LABELS, READ, RECORD, Label, read, record
from cortex.values.conversation import Conversation, ToolResult
from cortex.values.reply import ToolUse
from policies.failures.failure import FailureKind

TOOLS = (read, record)
REPLY_TOKENS_MAX = 200
NUDGES_MAX = 3
"""Number of times that a reply which is neither a tool use nor an answer gets the text `NUDGE`."""
NUDGE = "That is no answer in the form asked for. Go on with the steps, or answer."


@cortex.flow
async def chatloop(
    ctx: cortex.Context, count: int = 12, form: Literal["chat", "clean"] = "chat", seed: int = 0,
    notes: dict[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Label ``count`` generated notes, or ``notes`` (text by name), and count the labels."""
    items = list(notes) if notes else label_task.names(count, seed)
    books = GroundTruth(items)
    counts, ended = await (_chat if form == "chat" else _clean)(ctx, books, notes)
    facts = {
        "form": form, "items": len(items), "counts": counts, "ended": ended, "turns": books.turns,
        "missed": books.missed, "twice": books.twice, "refused": books.refused,
    }  # fmt: skip
    return facts if notes else {**facts, "right": counts == label_task.truth(items)}


class GroundTruth:
    """Record of what the loop really did; the loop does not see it."""

    def __init__(self, items: list[str]) -> None:
        self.items = items
        self.turns = self.refused = 0
        """Number of replies, and of tool uses that failed (unknown tool or invalid argument)."""
        self.recorded: dict[str, list[str]] = {}

    def note(self, use: ToolUse, result: ToolResult) -> None:
        """Note a tool use and its result."""
        if result.failed:
            self.refused += 1
        elif use.name == "record":
            self.recorded.setdefault(str(use.input["item"]), []).append(str(use.input["label"]))

    @property
    def missed(self) -> int:
        """Number of items without a label."""
        return sum(item not in self.recorded for item in self.items)

    @property
    def twice(self) -> int:
        """Number of items that were recorded more than once."""
        return sum(len(lines) > 1 for lines in self.recorded.values())


async def _chat(
    ctx: cortex.Context, books: GroundTruth, notes: dict[str, str] | None
) -> tuple[dict[str, int] | None, str]:
    """Return the counts, if it reached any, and how it ended."""
    talk = Conversation("chat", tools=(READ, RECORD)).said(label_task.task(books.items))
    nudges = 0
    for _ in range(turns_max(len(books.items))):
        try:
            answer = await ctx.ask(talk, max_tokens=REPLY_TOKENS_MAX, on_cut="keep")
        except cortex.CallFailed as failed:
            if failed.kind != FailureKind.TOO_LARGE:
                raise
            return None, "its conversation is too large"
        books.turns += 1
        if not answer.uses:
            counts = label_task.counts_in(answer.text)
            if counts is not None or nudges == NUDGES_MAX:
                return counts, "answered" if counts is not None else "no answer in the form asked for"
            nudges += 1
            talk = talk.replied(answer).said(NUDGE)
            continue
        results = []
        for use in answer.uses:
            result = await ctx.use(use, TOOLS, {"text": label_task.own_text(use.input.get("item"), notes)})
            books.note(use, result)
            results.append(result)
        talk = talk.replied(answer, results)
    return None, "it came to no end"


def turns_max(items: int) -> int:
    """Return the number of replies after which a loop over these items is stopped: twice what it needs, and some."""
    return 4 * items + 20


async def _clean(
    ctx: cortex.Context, books: GroundTruth, notes: dict[str, str] | None
) -> tuple[dict[str, int] | None, str]:
    """Return the counts. A final failure fails the run: no model is in charge that could overlook it."""

    async def labelled(item: str) -> Label:
        text = await ctx.run(read, item, label_task.own_text(item, notes))
        label: Label = await ctx.ask(label_task.question(text), returns=Label, max_tokens=REPLY_TOKENS_MAX)
        use = ToolUse(item, "record", {"item": item, "label": label})
        books.note(use, await ctx.use(use, TOOLS))
        books.turns += 1
        return label

    return label_task.counted(await ctx.map(labelled, books.items)), "answered"


__all__ = ["LABELS", "GroundTruth", "chatloop", "turns_max"]
