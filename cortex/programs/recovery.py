"""``recovery``: techniques for a scheduler kept in a conversation, compared on one task.

The task, the two tools and every word of it are those of ``chatloop``: read notes, label them, count the labels. The
runs differ in one *move*, applied alone, with the same bound on a conversation: ``part`` notes.

    none            one conversation holds everything: the baseline
    compaction      after every part the model writes down what is done, and a fresh conversation begins with that
    externalisation records are kept outside; after every part a fresh conversation gets the items that are not done
                    yet, and the last one the records
    re-derivation   nothing is kept but one number: each label is counted in a pass of its own over all parts
    recursion       the notes are halved until a half is no more than a part; each part has a conversation of its own
    frontloading    work without a model is done before: the conversation begins with the notes' texts, and reads none

The first two and the last leave a model in charge of the whole; re-derivation and recursion give it a part, and code
adds up. None of them is the clean form, in which code keeps all state (``chatloop -p form=clean``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import cortex
from cortex.programs.chatloop import NUDGE, NUDGES_MAX, REPLY_TOKENS_MAX, TOOLS, GroundTruth, turns_max
from cortex.programs.parts import label_task
from cortex.programs.parts.label_task import LABELS, READ, RECORD, record
from cortex.programs.parts.label_task import read as read  # a tool of this flow too
from cortex.values.conversation import Conversation
from policies.failures.failure import FailureKind

Move = Literal["none", "compaction", "externalisation", "re-derivation", "recursion", "frontloading"]
Counts = dict[str, int] | None

SO_FAR = "Write down what is done so far, a line each: item: label"
SUMMARY_TOKENS_MAX = 4_096
RECORDED = "Recorded so far:"
_TWO_STEPS = "1. call read with item\n2. call record"
_ONE_STEP = "1. call record"


@cortex.flow
async def recovery(
    ctx: cortex.Context, move: Move = "externalisation", count: int = 24, part: int = 8, seed: int = 0
) -> dict[str, Any]:
    """Label ``count`` notes and count the labels, with one technique for a conversation that grows."""
    if part < 1:
        raise ValueError(f"part must be 1 or more, not {part}")
    items = label_task.names(count, seed)
    books = GroundTruth(items)
    try:
        counts = await _MOVES[move](ctx, books, items, part)
        ended = "answered" if counts is not None else "no answer in the form asked for"
    except cortex.CallFailed as failed:
        if failed.kind != FailureKind.TOO_LARGE:
            raise
        counts, ended = None, "a conversation is too large"
    return {
        "move": move, "items": count, "counts": counts, "right": counts == label_task.truth(items), "ended": ended,
        "turns": books.turns, "missed": books.missed, "twice": books.twice, "refused": books.refused,
    }  # fmt: skip


async def _talked(
    ctx: cortex.Context, books: GroundTruth, talk: Conversation, turns: int, sample: int = 0
) -> tuple[Conversation, Counts, bool]:
    """Continue a conversation for at most ``turns`` replies: return it, the counts (if any), and whether it has
    ended.
    """
    nudges = 0
    for _ in range(turns):
        answer = await ctx.ask(talk, max_tokens=REPLY_TOKENS_MAX, sample=sample, on_cut="keep")
        books.turns += 1
        if answer.uses:
            results = [await ctx.use(use, TOOLS) for use in answer.uses]
            for use, result in zip(answer.uses, results, strict=True):
                books.note(use, result)
            talk = talk.replied(answer, results)
            continue
        counts = label_task.counts_in(answer.text)
        talk = talk.replied(answer)
        if counts is not None or nudges == NUDGES_MAX:
            return talk, counts, True
        nudges += 1
        talk = talk.said(NUDGE)
    return talk, None, False


def _begun(items: Sequence[str], more: str = "") -> Conversation:
    task = label_task.task(items)
    return Conversation("loop", tools=(READ, RECORD)).said(f"{task}\n\n{more}" if more else task)


async def _whole(ctx: cortex.Context, books: GroundTruth, items: Sequence[str], sample: int = 0) -> Counts:
    """Process all of these items in one conversation."""
    _, counts, _ = await _talked(ctx, books, _begun(items), turns_max(len(items)), sample)
    return counts


async def _none(ctx: cortex.Context, books: GroundTruth, items: Sequence[str], part: int) -> Counts:
    return await _whole(ctx, books, items)


async def _compaction(ctx: cortex.Context, books: GroundTruth, items: Sequence[str], part: int) -> Counts:
    talk = _begun(items)
    while books.turns < turns_max(len(items)):
        talk, counts, ended = await _talked(ctx, books, talk, 2 * part)
        if ended:
            return counts
        answer = await ctx.ask(talk.said(SO_FAR), max_tokens=SUMMARY_TOKENS_MAX, on_cut="keep")
        books.turns += 1
        talk = _begun(items, f"Done so far:\n{answer.text}")
    return None


async def _externalisation(ctx: cortex.Context, books: GroundTruth, items: Sequence[str], part: int) -> Counts:
    while (left := [item for item in items if item not in books.recorded]) and books.turns < turns_max(len(items)):
        await _talked(ctx, books, _begun(left), 2 * part)
    lines = [f"{item}: {texts[-1]}" for item, texts in books.recorded.items()]
    _, counts, _ = await _talked(ctx, books, _begun(items, "\n".join([RECORDED, *lines])), turns_max(0))
    return counts


async def _rederivation(ctx: cortex.Context, books: GroundTruth, items: Sequence[str], part: int) -> Counts:
    counts = dict.fromkeys(LABELS, 0)
    for sample, label in enumerate(LABELS):  # the same conversations again: a stored reply would be state that is kept
        for begin in range(0, len(items), part):
            found = await _whole(ctx, books, items[begin : begin + part], sample)
            if found is None:
                return None
            counts[label] += found[label]
    return {str(label): number for label, number in counts.items()}


async def _recursion(ctx: cortex.Context, books: GroundTruth, items: Sequence[str], part: int) -> Counts:
    if len(items) <= part:
        return await _whole(ctx, books, items)
    middle = len(items) // 2
    halves = await ctx.map(lambda half: _recursion(ctx, books, half, part), [items[:middle], items[middle:]])
    one, two = halves
    return None if one is None or two is None else {label: one[label] + two[label] for label in LABELS}


async def _frontloading(ctx: cortex.Context, books: GroundTruth, items: Sequence[str], part: int) -> Counts:
    texts = await ctx.map(lambda item: ctx.run(read, item), items)
    notes = "\n".join(f"{item}: {text}" for item, text in zip(items, texts, strict=True))
    task = label_task.task(items).replace(_TWO_STEPS, _ONE_STEP)
    talk = Conversation("loop", tools=(RECORD,)).said(f"{task}\n\nTheir texts:\n{notes}")
    _, counts, _ = await _talked(ctx, books, talk, turns_max(len(items)))
    return counts


_MOVES = {
    "none": _none,
    "compaction": _compaction,
    "externalisation": _externalisation,
    "re-derivation": _rederivation,
    "recursion": _recursion,
    "frontloading": _frontloading,
}
MOVES: tuple[Move, ...] = ("compaction", "externalisation", "re-derivation", "recursion", "frontloading")

__all__ = ["MOVES", "Move", "record", "recovery"]
