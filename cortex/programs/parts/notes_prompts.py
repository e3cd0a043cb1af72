"""Prompts of ``notes`` and strict parsers of their replies.

Every constructor of a prompt names itself, so that the journal distinguishes two framings of the same items. The
prompts are plain instructions with one strict, short form at their end; a reply of any other form is ``Malformed`` and
is asked for again, never repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from cortex.values.endings import Ending, ending_of_reason
from cortex.values.prompt import Part, Prompt, Role, Rule
from cortex.values.reply import Malformed, Reply, as_json, as_line, finished
from policies.decisions.selection import cut
from policies.estimates.tokens import tokens_bound

PLAN: Final = "plan"
FILTER: Final = "filter"
SUMMARY: Final = "summary"
DOCUMENTS: Final = "synthesis of documents"
CONNECTED: Final = "synthesis of connected documents"
OPPOSED: Final = "synthesis of opposed documents"
SUMMARIES: Final = "synthesis of summaries"

CLAIM_WORDS_MAX: Final = 40
"""Words of a claim."""
CLAIM_CHARS_MAX: Final = 600
"""Characters of a claim or a reason: a longer one is refused. Twice the length of 40 long words."""
SUB_QUESTION_CHARS_MAX: Final = 300
"""Characters of a sub-question."""
NAME_CHARS_MAX: Final = 120
"""Characters of a note's name in a prompt; the answer names the note in full."""
NAMES_BYTES_MAX: Final = 2_000
"""Bytes of all names in a planning call: enough to tell what kind of notes they are."""
BYTES_PER_WORD: Final = 16
"""Bytes of a reply for each allowed word: English has 6, text full of links some 12."""
TOKENS_PER_WORD: Final = 3
"""Tokens of a reply for each allowed word: English has about 1.3, links and other languages more."""

Says = Literal["yes", "no", "neither"]

_FRAMINGS: Final = {
    DOCUMENTS: "",
    CONNECTED: " Each <connection> says which notes belong together: weigh those against each other.",
    OPPOSED: " The notes disagree, as the <connection> says: resolve the tension, or say which side has more for it.",
    SUMMARIES: " The notes are too long to be read at once: you are given summaries of them, and some of their claims.",
}
LONGEST: Final = max(_FRAMINGS, key=lambda framing: len(_FRAMINGS[framing]))
"""Framing with the longest instruction."""


class Judgement(msgspec.Struct, forbid_unknown_fields=True):
    """Judgement of a filter call about one note, or one piece of it."""

    relevant: bool
    why: str
    claims: list[str]
    says: Says = "neither"
    """Answer of the note, if the question can be answered by yes or no."""


def size_bytes(text: str) -> int:
    """Return the most tokens that a text can be within a request: its bytes in JSON."""
    return tokens_bound(msgspec.json.encode(text), framing=0) - 2


# -- parts -------------------------------------------------------------------------------------------------------


def shown(name: str) -> str:
    """Return a name as it may appear in a tag of a prompt."""
    return re.sub(r"[\s<>\"]+", " ", name).strip()[:NAME_CHARS_MAX]


def title(name: str, start: int, end: int, whole: int) -> str:
    """Return a note's name, with the position of the piece if only a piece of its ``whole`` characters is meant."""
    return name if end - start == whole else f"{name} [{start}-{end}]"


def _tagged(tag: str, name: str, text: str) -> str:
    """Text between tags that do not occur in it: a note's content cannot end the note."""
    number, own = 1, tag
    while f"</{own}>" in text:
        number += 1
        own = f"{tag}-{number}"
    label = f' name="{shown(name)}"' if name else ""
    return f"<{own}{label}>\n{text}\n</{own}>"


def document(name: str, text: str) -> Part:
    """Return a note, or a piece of one, verbatim."""
    return Part(Role.DOCUMENT, _tagged("note", name, text))


def extract(name: str, claims: Iterable[str]) -> Part:
    """Return the claims of a note, in place of a text that does not fit."""
    return Part(Role.DOCUMENT, _tagged("claims", name, "\n".join(f"- {claim}" for claim in claims)))


def summary(name: str, text: str) -> Part:
    """Return a summary by an earlier call."""
    return Part(Role.DOCUMENT, _tagged("summary", name, text))


def annotation(name: str, why: str, claims: Iterable[str] = ()) -> Part:
    """Return why a note matters and what it claims. It may be dropped before anything else."""
    lines = [why, *(f"- {claim}" for claim in claims)]
    return Part(Role.ANNOTATION, _tagged("about", name, "\n".join(line for line in lines if line)), 1, Rule.DROP)


def connection(text: str) -> Part:
    """Return a relation between notes, found by code."""
    return Part(Role.CONNECTION, f"<connection>\n{text}\n</connection>", 2, Rule.DROP)


def _question(question: str) -> Part:
    return Part(Role.GOAL, _tagged("question", "", question), 9)


def _aspects(sub_questions: Sequence[str]) -> str:
    if not sub_questions:
        return ""
    return " The question has these parts: " + "; ".join(sub_questions) + "."


# -- constructors ------------------------------------------------------------------------------------------------


def plan(question: str, names: Sequence[str], lines_max: int) -> Prompt:
    """Return the prompt for the sub-questions of the question, given the names of the notes (only the first are
    shown).
    """
    task = f"Task: Break a question into at most {lines_max} sub-questions that can be looked up in notes."
    titles = Part(Role.DOCUMENT, _tagged("names", "", cut("\n".join(map(shown, names)), NAMES_BYTES_MAX)), 0, Rule.DROP)
    form = (
        "Reply with the numbered sub-questions and nothing else, each on a line of its own, like this:\n"
        "1. first sub-question\n2. second sub-question"
    )
    return Prompt(PLAN, (Part(Role.GOAL, task, 9), titles, _question(question), Part(Role.GOAL, form, 9)))


_POLAR = re.compile(
    r"(?:am|are|can|could|did|do|does|had|has|have|is|may|might|must|shall|should|was|were|will|would)\b[^?]*\?\s*",
    re.IGNORECASE,
)


def polar(question: str) -> bool:
    """Return True if the question can be answered by yes or no, judged by its English words.

    A polar question that is not recognised is asked as an open one: then notes are not distinguished by the side they
    take.
    """
    return _POLAR.fullmatch(re.split(r"(?<=[.!:])\s+", question.strip())[-1]) is not None


def judge(question: str, sub_questions: Sequence[str], claims_max: int, documents: Sequence[Part]) -> Prompt:
    """Return the prompt for the relevance, the reason and the claims of a note; for a polar question also its
    answer.
    """
    task = "Task: Judge whether a note helps to answer a question, and draw out what the note says about it."
    says = '"says": "yes" or "no" or "neither", ' if polar(question) else ""
    form = (
        f'Put under "claims" at most {claims_max} claims in words of the note, each at most {CLAIM_WORDS_MAX} words; '
        "none where the note is not relevant." + (' Put under "says" what the note answers.' if says else "")
        + "\nReply with one line of JSON in this form and nothing else:\n"
        f'{{"relevant": true or false, "why": "one short sentence", {says}"claims": ["claim", "claim"]}}'
    )  # fmt: skip
    first = Part(Role.GOAL, task + _aspects(sub_questions), 9)
    return Prompt(FILTER, (first, *documents, _question(question), Part(Role.GOAL, form, 9)))


def summarise(question: str, sub_questions: Sequence[str], words_max: int, documents: Sequence[Part]) -> Prompt:
    """Return the prompt for a short summary of what these documents say to the question."""
    task = (
        f"Task: Summarise what the texts below say to a question, in at most {words_max} words."
        " Keep names, numbers and disagreements." + _aspects(sub_questions)
    )
    form = "Reply with the summary and nothing else."
    return Prompt(SUMMARY, (Part(Role.GOAL, task, 9), *documents, _question(question), Part(Role.GOAL, form, 9)))


def synthesise(
    framing: str, question: str, sub_questions: Sequence[str], words_max: int, material: Sequence[Part]
) -> Prompt:  # fmt: skip
    """Return the prompt for the answer to the question, from documents under one of four framings."""
    task = (
        f"Task: Answer a question from the texts below alone, in at most {words_max} words."
        + _aspects(sub_questions) + _FRAMINGS[framing]
    )  # fmt: skip
    form = "Reply with the answer and nothing else."
    return Prompt(framing, (Part(Role.GOAL, task, 9), *material, _question(question), Part(Role.GOAL, form, 9)))


# -- replies -----------------------------------------------------------------------------------------------------

_NUMBERED = re.compile(r"\d{1,2}[.)]\s+(\S.*)")


def as_plan(reply: Reply, lines_max: int) -> list[str]:
    """Return the sub-questions of a plan: numbered lines, 1 to ``lines_max`` of them. Raises ``Malformed``."""
    lines = [line.strip() for line in _whole(reply).splitlines() if line.strip()]
    if len(lines) > lines_max:
        raise Malformed(f"a plan of {len(lines)} lines; at most {lines_max}")
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    found = [match[1].rstrip(" .;") for match in matches if match is not None]
    if len(found) < len(lines):
        raise Malformed("a plan has numbered lines and nothing else")
    if any(len(line) > SUB_QUESTION_CHARS_MAX for line in found):
        raise Malformed(f"a sub-question has at most {SUB_QUESTION_CHARS_MAX} characters")
    return list(dict.fromkeys(found))


def as_judgement(reply: Reply, claims_max: int) -> Judgement:
    """Return the judgement in a filter's reply: JSON of exactly the requested form, within its limits. Raises
    ``Malformed``.
    """
    _whole(reply)
    judged = as_json(reply, Judgement)
    lines = [judged.why, *judged.claims]
    if any(len(text) > CLAIM_CHARS_MAX for text in lines):
        raise Malformed(f"a reason or a claim has at most {CLAIM_CHARS_MAX} characters")
    if len(judged.claims) > claims_max:
        raise Malformed(f"{len(judged.claims)} claims; at most {claims_max}")
    if judged.relevant and not (judged.claims and all(text.strip() for text in lines)):
        raise Malformed("a note that is relevant has a reason, and claims that are not empty")
    return judged


def as_summary(reply: Reply, bytes_max: int) -> str:
    """Return a summary of at most ``bytes_max`` bytes. Raises ``Malformed``.

    A summary that was cut at ``max_tokens`` is accepted: it is as lossy as any.
    """
    text = _reply_text(reply, bytes_max)
    if (size := size_bytes(text)) > bytes_max:
        raise Malformed(f"a summary of {size} bytes; at most {bytes_max}")
    return text


def as_answer(reply: Reply, words_max: int) -> tuple[str, bool]:
    """Return the answer's text, and whether the model ended it by itself. Raises ``Malformed`` if it is empty or far
    too long.
    """
    return _reply_text(reply, words_max * 2 * BYTES_PER_WORD), finished(reply)


def _reply_text(reply: Reply, chars_max: int) -> str:
    """Text that may have been cut. Raises ``Malformed`` for a refusal."""
    if not finished(reply) and ending_of_reason(reply.stop_reason) is not Ending.CUT:
        raise Malformed(f"the reply stopped at {reply.stop_reason}")
    return as_line(reply, chars_max)


def _whole(reply: Reply) -> str:
    if not finished(reply):
        raise Malformed(f"the reply stopped at {reply.stop_reason}")
    return as_line(reply, 1 << 20)
