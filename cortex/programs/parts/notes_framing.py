"""Framing of the documents of a synthesis: constructor, order and connections.

"Here are six documents" is worth less to a bounded reader than "these two answer yes, that one no". Code makes the
choice from the content of K; the constructor's name records it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cortex.programs.parts import notes_prompts
from cortex.programs.parts.notes_documents import Document, companies
from cortex.values.prompt import Part


def framed(documents: Sequence[Document], question: str, behind: Iterable[Document]) -> tuple[str, list[Part]]:
    """Return the constructor for these documents, and its material. ``behind``: findings that summaries stand for."""
    if any(each.summary for each in documents):
        claims = [notes_prompts.annotation(each.name, "", each.claims) for each in behind]
        return notes_prompts.SUMMARIES, [*_shown(documents), *claims]
    sides = [[each for each in documents if each.says == side] for side in ("yes", "no", "neither")]
    if sides[0] and sides[1]:
        tension = f"These answer yes: {_names(sides[0])}.\nThese answer no: {_names(sides[1])}."
        ordered = [each for side in sides for each in side]
        return notes_prompts.OPPOSED, [notes_prompts.connection(tension), *_shown(ordered)]
    judged = all(each.claims for each in documents)
    found = companies(documents, question) if judged else []
    if not any(words for _, words in found):
        return notes_prompts.DOCUMENTS, _shown(documents)
    material: list[Part] = []
    for members, words in found:
        if words:
            text = f"These belong together: {_names(members)}.\nAll of them speak of: {', '.join(words)}."
            material.append(notes_prompts.connection(text))
        material.extend(_shown(members))
    return notes_prompts.CONNECTED, material


def _shown(documents: Iterable[Document]) -> list[Part]:
    return [part for each in documents for part in each.parts()]


def _names(documents: Iterable[Document]) -> str:
    return "; ".join(notes_prompts.shown(each.name) for each in documents)
