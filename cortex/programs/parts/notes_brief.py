"""Common part of all calls of one ``notes`` job: the question, its sub-questions, and the lengths of replies.

A ``NotesBrief`` renders the job's prompts and computes what fits them. It reads K for sizes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from cortex.programs.parts import notes_documents, notes_prompts
from cortex.programs.parts.notes_documents import Document, DocumentGroup, PromptScale
from cortex.programs.parts.notes_framing import framed
from cortex.state.state import State
from cortex.values.prompt import Part, Prompt

_SUMMARY_WORDS_MIN: Final = 10
_FILTER_TOKENS_SPARE: Final = 200  # for the reason and the frame of the JSON
_FRAME_PARTS: Final = 3  # task, question and form
_NUMBER: Final = 1 << 40  # an item or character number of maximum length


class NotesBrief(msgspec.Struct, frozen=True):
    """Question and limits of all calls. ``claims_max`` per note; maximum words of a summary and of the answer."""

    question: str
    sub_questions: tuple[str, ...]
    claims_max: int
    summary_words_max: int
    answer_words_max: int

    # -- the calls -----------------------------------------------------------------------------------------------

    @property
    def filter_tokens(self) -> int:
        """``max_tokens`` of a filter call."""
        return self.claims_max * notes_prompts.CLAIM_WORDS_MAX * notes_prompts.TOKENS_PER_WORD + _FILTER_TOKENS_SPARE

    @property
    def summary_tokens(self) -> int:
        """``max_tokens`` of a summary call."""
        return self.summary_words_max * notes_prompts.TOKENS_PER_WORD

    @property
    def answer_tokens(self) -> int:
        """``max_tokens`` of the synthesis."""
        return self.answer_words_max * notes_prompts.TOKENS_PER_WORD

    def judge(self, shown: Sequence[Part]) -> Prompt:
        """Return the prompt of a filter call."""
        return notes_prompts.judge(self.question, self.sub_questions, self.claims_max, shown)

    def summarise(self, words_max: int, shown: Sequence[Part]) -> Prompt:
        """Return the prompt of a cluster's summary."""
        return notes_prompts.summarise(self.question, self.sub_questions, words_max, shown)

    def synthesise(self, framing: str, material: Sequence[Part]) -> Prompt:
        """Return the prompt of the synthesis, whatever its size."""
        return notes_prompts.synthesise(framing, self.question, self.sub_questions, self.answer_words_max, material)

    # -- sizes -------------------------------------------------------------------------------------------------------

    def fits_filter(self, k: State, name: str, text: str, level: int) -> bool:
        """Return True if a filter call can read this note whole."""
        frame, shown = self.judge([]), [notes_prompts.document(name, text)]
        return any(s.of(shown) <= s.room(frame, self.filter_tokens) for s in notes_documents.scales(k, level))

    def cuts(self, k: State, name: str, text: str, level: int) -> list[int]:
        """Return the ends of a text's pieces, each small enough for every kind of call; empty if that is not possible.
        """
        scale = notes_documents.scale(k, level)
        room = min(scale.room(self.judge([]), self.filter_tokens), self._room(k, scale))
        room -= scale.of([notes_prompts.document(notes_prompts.title(name, _NUMBER, 2 * _NUMBER, 0), "")])
        pieces = notes_documents.divided(text, room, scale.size)
        return list(accumulate(map(len, pieces))) if len(pieces) > 1 else []

    def synthesis(self, k: State, shown: Sequence[Document], behind: Sequence[Document], level: int) -> Prompt | None:
        """Return the prompt that answers the question from all of these documents; None if it does not fit.

        ``behind``: the findings that summaries among them stand for; their claims are shown as far as there is room.
        """
        framing, material = framed(shown, self.question, behind)
        frame = self.synthesise(framing, [])
        parts_max = k.terms.limits.parts_max - _FRAME_PARTS
        for scale in notes_documents.scales(k, level):
            taken = notes_documents.packed(scale, scale.room(frame, self.answer_tokens), parts_max, material)
            if shown and taken is not None:
                return self.synthesise(framing, taken)
        return None

    def clusters(self, k: State, shown: Sequence[Document], level: int) -> tuple[list[DocumentGroup], list[Document]]:
        """Return the groups of another round to summarise, and the documents that fit in none; both empty if nothing
        can shrink.

        A document that is alone and no larger than its summary may be is in neither: it waits for the next round.
        """
        scale = notes_documents.scale(k, level)
        room = self._room(k, scale)
        items_max = (k.terms.limits.parts_max - _FRAME_PARTS) // 2
        empty = [Document(_NUMBER, f"summary {_NUMBER}", "", summary=True)]
        empty += [msgspec.structs.replace(each, text="") for each in shown]
        frame = max(scale.of(each.parts(notes_documents.BARE)) for each in empty)
        summary_bytes = min(self.summary_words_max * notes_prompts.BYTES_PER_WORD, room // 2 - frame)
        enough = summary_bytes >= _SUMMARY_WORDS_MIN * notes_prompts.BYTES_PER_WORD
        if level > notes_documents.LEVEL_MAX or items_max < 2 or not enough:
            return [], []
        groups, left_out = notes_documents.clusters(shown, scale, room, items_max, self.question, summary_bytes)
        return [group for group in groups if group.larger_than(summary_bytes)], left_out

    def _room(self, k: State, scale: PromptScale) -> int:
        """Room that the prompts of a summary and of a synthesis both have besides their frames."""
        summary = self.summarise(self.summary_words_max, [])
        synthesis = self.synthesise(notes_prompts.LONGEST, [])
        return min(scale.room(summary, self.summary_tokens), scale.room(synthesis, self.answer_tokens))
