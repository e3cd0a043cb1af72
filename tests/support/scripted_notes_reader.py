"""Scripted reader for ``notes``: answers each of its prompts by simple rules, from the prompt only.

A note is relevant if it contains the word ``harbour``; its claims are its sentences with that word. A note that says
``Answer: yes`` or ``no`` takes that side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from cortex.programs.notes import NoteText
from cortex.values.reply import Reply
from policies.failures.failure import Failure

QUESTION = "Is the harbour deep enough for the new ships?"

Said = str | Reply | Failure

_NOTE = re.compile(r"<(note(?:-\d+)?) name=\"([^\"]*)\">\n(.*?)\n</\1>", re.DOTALL)
_SHOWN = re.compile(r"<(note|claims|summary)((?:-\d+)?) name=\"([^\"]*)\">")


def task(text: str) -> str:
    """Return the kind of the prompt: plan, filter, summary or answer."""
    first = text.split(" ", 2)[1]
    return {"Break": "plan", "Judge": "filter", "Summarise": "summary", "Answer": "answer"}[first]


def shown(text: str) -> list[str]:
    """Return the names of the documents that a prompt shows, in order."""
    return [match[3] for match in _SHOWN.finditer(text)]


def words_max(text: str) -> int:
    """Return the number of words that the prompt allows."""
    found = re.search(r"in at most (\d+) words", text)
    assert found is not None
    return int(found[1])


def reader(summary_words: int = 12, **instead: Callable[[str], Said]) -> Callable[[str], Said]:
    """Return the reader; ``instead`` replaces it for some tasks, by name."""

    def read(text: str) -> Said:
        kind = task(text)
        if kind in instead:
            return instead[kind](text)
        if kind == "plan":
            return "1. how deep is the harbour\n2. how deep do the ships go"
        if kind == "filter":
            return judged(text)
        if kind == "summary":
            return " ".join(["harbour", *shown(text), *["depth"] * min(summary_words, words_max(text) - 1)])
        return f"Answered from {len(shown(text))} texts."

    return read


def judged(text: str) -> str:
    """Return the judgement of the note in a filter's prompt."""
    (_, _, note), = _NOTE.findall(text)  # fmt: skip
    sentences = [part.strip() for part in re.split(r"[.\n]", note) if "harbour" in part]
    side = re.search(r"Answer: (yes|no)\b", note)
    return json.dumps({
        "relevant": bool(sentences), "why": "It speaks of the harbour." if sentences else "It does not.",
        "says": side[1] if side else "neither", "claims": [part[:200] for part in sentences[:3]],
    })  # fmt: skip


def note(name: str, size: int, relevant: bool = True, says: str = "", word: str = "") -> NoteText:
    """Return a note of about ``size`` characters. ``word``: word that it shares with other notes."""
    first = f"The harbour of {name} has a {word or name} of its own." if relevant else f"The hill of {name} is green."
    side = f" Answer: {says}." if says else ""
    filler = f" Nothing else is known of the place called {name}, where it rained again."
    return NoteText(name, (first + side + filler * (size // len(filler) + 1))[: max(size, len(first) + len(side))])


def several(count: int, size: int, relevant: int) -> tuple[NoteText, ...]:
    """Return ``count`` notes of about this size, of which the first ``relevant`` are relevant to the question."""
    return tuple(note(f"n{i:03}", size, i < relevant) for i in range(count))
