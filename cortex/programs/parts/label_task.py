"""Task for tool loops: read each of some notes, give it a label, and count the labels.

Every step is easy; the bookkeeping is what is tested. The notes are generated from their names, so that there are as
many as needed and their labels are known; or they are the user's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal

from cortex.state.program import tool
from cortex.values.conversation import ToolDef

Label = Literal["bug", "praise", "wish"]
LABELS: tuple[Label, ...] = ("bug", "praise", "wish")

_OPENINGS = (
    "We moved our whole office to the new release on Monday and have used it every day since then.",
    "I have been with you for six years now and write to you for the first time.",
    "Two of my colleagues and I looked at this together for most of the afternoon.",
    "This is about the part of the program that prints the weekly schedule for the drivers.",
)
_CLOSINGS: dict[Label, tuple[str, ...]] = {
    "bug": ("I think that this is a bug.", "Please look into this bug before the end of the month."),
    "praise": ("You deserve praise for this.", "My team has nothing but praise for it."),
    "wish": ("I have one wish about it.", "So my wish is that others can read it too."),
}


@tool(repeatable=True)
def read(item: str, text: str = "") -> str:
    """Read the note of this name."""
    return text or note(item)


@tool(repeatable=True)
def record(item: str, label: Label) -> str:
    """Record the label of a note."""
    return f"recorded: {item} is {label}"


READ, RECORD = ToolDef.of(read, hidden=("text",)), ToolDef.of(record)


def names(count: int, seed: int = 0) -> list[str]:
    """Return names of ``count`` notes. Raises ``ValueError`` for less than 1."""
    if count < 1:
        raise ValueError(f"count must be 1 or more, not {count}")
    return [f"note-{seed}-{place}" for place in range(1, count + 1)]


def note(item: str) -> str:
    """Return the note of this name: always the same."""
    number = int.from_bytes(blake2b(item.encode(), digest_size=8).digest(), "big")
    closings = _CLOSINGS[label_of(item)]
    return f"{_OPENINGS[number % len(_OPENINGS)]} {closings[number // 64 % len(closings)]} (This is {item}.)"


def label_of(item: str) -> Label:
    """Return the correct label of the note of this name."""
    return LABELS[blake2b(item.encode(), digest_size=1).digest()[0] % len(LABELS)]


def truth(items: Iterable[str]) -> dict[str, int]:
    """Return the number of these notes with each label."""
    return counted(label_of(item) for item in items)


def counted(labels: Iterable[str]) -> dict[str, int]:
    """Return the number of occurrences of each label."""
    counts = Counter(labels)
    return {label: counts[label] for label in LABELS}


def task(items: Sequence[str]) -> str:
    """Return the instructions for these notes, for a loop with the two tools."""
    form = ", ".join(f"{label}: {place}" for place, label in enumerate(LABELS, start=1))
    return (
        "For each item, do these steps, one item after the other:\n1. call read with item\n"
        "2. call record with item and label\n\nWhen all items are done, answer with how many items have each label,"
        f" and nothing else, in this form: {form}\n\nItems: {', '.join(items)}"
    )


def question(text: str) -> str:
    """Return the prompt about one note, for the form in which code counts."""
    return f"Classify the note as {', '.join(LABELS[:-1])} or {LABELS[-1]}.\n\n<note>\n{text}\n</note>"


def counts_in(text: str) -> dict[str, int] | None:
    """Return the counts in an answer, if it has the requested form."""
    form = ", ".join(rf"{label}: (\d{{1,9}})" for label in LABELS)
    found = re.fullmatch(form, text.strip())
    return dict(zip(LABELS, map(int, found.groups()), strict=True)) if found else None


def own_text(item: object, notes: Mapping[str, str] | None) -> str:
    """Return the note's text if the notes are the user's own; otherwise empty, and ``read`` generates it."""
    return (notes or {}).get(item, "") if isinstance(item, str) else ""
