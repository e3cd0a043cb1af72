"""Prompt reader of the bounded reasoner: separates the question from the material.

The reader knows general habits of prompts (tags, ``Question:`` headings, instructions before or after the material) and
no particular program. Only the text of the request is used.
"""

import re
import zlib
from bisect import bisect_left
from typing import Any, Final, NamedTuple

from actors.simulator.reasoning.text import all_words, sentences, words

_OPEN = re.compile(r"<([A-Za-z][\w-]{0,40})(\s[^<>]{0,400})?>")
_CLOSE = re.compile(r"</([A-Za-z][\w-]{0,40})>")
_TAG_DEPTH_MAX = 3
_ATTRIBUTE = re.compile(r"[\w-]+\s*=\s*[\"']?([^\"'>]+)[\"']?")
_FIELD = re.compile(r"^\s{0,3}(?:#{1,6}\s+|\*\*)?([A-Za-z][A-Za-z0-9 _/#-]{0,40}?)(?:\*\*)?\s*:(?:\*\*)?(?:\s+(.*))?$")
_HEADING = re.compile(r"^#{1,6}\s+([A-Za-z][A-Za-z0-9 _/#-]{0,40})$")
_CUE = re.compile(
    r"^\W{0,8}(?:please\s+)?(?:now\s+)?(?:answer|reply|respond|return|write|classify|label|extract|list|summari[sz]e|choose"
    r"|pick|select|decide|say|output|give|judge|rate|score|tell|determine|identify|categori[sz]e|you (?:are|will|must"
    r"|should|have)|your (?:task|job|goal)|plan|break|decompose|compute|calculate|evaluate|repeat|use only|do not|don't"
    r"|in at most|explain|describe|compare|combine|merge|synthesi[sz]e|read the|given the|below (?:is|are)|here (?:is"
    r"|are)|name the|find the|state|quote|propose|make a|draw up|the following)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“]([^\"“”]{8,})[\"”]")
_INSTRUCTION_CHARS_MAX: Final = 600  # a longer closing paragraph is material, however it begins

_QUESTION: Final = frozenset({"question", "query", "goal", "topic", "user question", "top goal", "the question"})
_OPTIONS: Final = frozenset({"options", "labels", "categories", "choices", "classes", "allowed labels", "candidates"})
_INSTRUCTION: Final = frozenset({"instruction", "instructions", "task", "rules", "format", "output format"})
_ROLES: Final = _QUESTION | _OPTIONS | _INSTRUCTION
_NO_MATERIAL: Final = _ROLES | {"example", "examples"}


class PromptPart(NamedTuple):
    """Named part of the request: the content of a tag, or the text below a heading."""

    name: str
    title: str
    text: str


_PARTED: Final = frozenset({"instruction", "low", "material", "options_text", "parts", "question"})


class ParsedPrompt:
    """Request as the reasoner reads it. Immutable; parts, words and sentences are computed at first use."""

    __slots__ = (
        "_material_words",
        "_question_words",
        "_ranked",
        "_sentences",
        "instruction",
        "low",
        "material",
        "options_text",
        "parts",
        "question",
        "schema",
        "system",
        "text",
    )

    def __init__(self, text: str, system: str = "", schema: dict[str, Any] | None = None) -> None:
        """``text``: texts of the user; ``schema``: JSON schema that the answer must meet."""
        self.text = text
        self.system = system
        self.schema = schema
        self._question_words: frozenset[str] | None = None
        self._material_words: frozenset[str] | None = None
        self._sentences: list[str] | None = None
        self._ranked: list[str] | None = None

    def __getattr__(self, name: str) -> Any:
        """Split the text at the first use of a part."""
        if name not in _PARTED:
            raise AttributeError(name)
        self._part()
        return getattr(self, name)

    def _part(self) -> None:
        text, system = self.text, self.system
        frame, parts = _untagged(text)
        found = _fielded(frame)
        parts += found.parts
        self.parts = [part for part in parts if part.name not in _NO_MATERIAL]
        lines, asked, options = found.lead, "", []
        for part in parts:
            if part.name in _QUESTION:
                asked = asked or part.text.strip()
            elif part.name in _OPTIONS:
                options.append(part.text)
            elif part.name in _INSTRUCTION:
                lines.append(part.text)
        self.options_text = "\n".join(options)
        material = "\n\n".join([part.text for part in self.parts])
        if not material.strip():
            lines, material = _parted(lines)
        instruction = "\n".join(lines)
        self.instruction = f"{system}\n{instruction}" if system else instruction
        self.low = self.instruction.lower()
        self.material = material
        self.question = asked or _last_question(instruction) or instruction.strip() or system

    @property
    def question_words(self) -> frozenset[str]:
        """Telling words of the question; all words if none is telling."""
        if self._question_words is None:
            self._question_words = words(self.question) or all_words(self.question)
        return self._question_words

    @property
    def material_words(self) -> frozenset[str]:
        """Telling words of the material."""
        if self._material_words is None:
            self._material_words = words(self.material)
        return self._material_words

    @property
    def matter(self) -> str:
        """Material, or the whole text if the request does not separate the two."""
        return self.material if self.material.strip() else self.text

    @property
    def sentences(self) -> list[str]:
        """Sentences of the matter in their order, without repetitions."""
        if self._sentences is None:
            self._sentences = list(dict.fromkeys(sentences(self.matter)))
        return self._sentences

    @property
    def ranked(self) -> list[str]:
        """Sentences of the matter, those that share most words with the question first; of equals, the earlier."""
        if self._ranked is None:
            asked = self.question_words
            scored = []
            for at, each in enumerate(self.sentences):
                its = words(each)
                scored.append((-len(asked & its) / (1 + len(its)) ** 0.5, at, each))
            self._ranked = [each for _, _, each in sorted(scored)]
        return self._ranked

    def tie(self, candidate: str) -> int:
        """Return a checksum over the text and a candidate, which decides between equal candidates."""
        return zlib.crc32(candidate.encode(), zlib.crc32(self.text.encode("utf-8", "replace")))


class _FoundPart(NamedTuple):
    lead: list[str]
    parts: list[PromptPart]


def _untagged(text: str, depth: int = 0) -> tuple[str, list[PromptPart]]:
    """Return the text outside of tags, and the contents of tags; of nested tags, the innermost."""
    if "</" not in text or depth == _TAG_DEPTH_MAX:
        return text, []
    closings: dict[str, list[int]] = {}
    for closing in _CLOSE.finditer(text):
        closings.setdefault(closing[1], []).append(closing.start())
    parts: list[PromptPart] = []
    outside: list[str] = []
    at = 0
    for opening in _OPEN.finditer(text):
        ends = closings.get(opening[1], [])
        nearest = bisect_left(ends, opening.end())
        if opening.start() < at or nearest == len(ends):
            continue
        content = text[opening.end() : ends[nearest]].strip()
        outside.append(text[at : opening.start()])
        at = ends[nearest] + len(opening[1]) + 3
        name = opening[1].lower().replace("_", " ")
        inner = _untagged(content, depth + 1)[1] if name not in _QUESTION else []
        parts.extend(inner or [PromptPart(name, " ".join(_ATTRIBUTE.findall(opening[2] or "")), content)])
    return "\n".join([*outside, text[at:]]), parts


def _fielded(frame: str) -> _FoundPart:
    """Return the lines before any heading, and the parts below headings. A closing instruction belongs to the former.
    """
    lead: list[str] = []
    parts: list[list[Any]] = []
    blank = True
    for line in frame.split("\n"):
        match = _FIELD.match(line) if ":" in line else _HEADING.match(line) if line.startswith("#") else None
        if match is not None and _opens(match[1].strip().lower(), line, parts, blank):
            name = match[1].strip()
            parts.append([name.lower(), name, [match[2] or "" if match.re is _FIELD else ""]])
        elif parts:
            parts[-1][2].append(line)
        elif line.strip() or lead:
            lead.append(line)
        blank = not line.strip()
    _give_back(lead, parts)
    return _FoundPart(lead, [PromptPart(name, title, "\n".join(text).strip()) for name, title, text in parts])


def _opens(name: str, line: str, parts: list[list[Any]], blank: bool) -> bool:
    """Return True if this line opens a part. Within material, only a missing question or a sibling does."""
    if name in _ROLES:
        return not any(part[0] == name for part in parts)
    if _CUE.match(line) and len(name.split()) > 1:
        return False
    if not parts or parts[-1][0] in _ROLES:
        return True
    return blank and name.split()[0] == str(parts[-1][0]).split()[0]


def _give_back(lead: list[str], parts: list[list[Any]]) -> None:
    """Move closing instructions and an empty ``Answer:`` out of the last part."""
    if not parts:
        return
    text: list[str] = parts[-1][2]
    while text and (not text[-1].strip() or (_FIELD.match(text[-1]) and text[-1].rstrip().endswith(":"))):
        text.pop()
    for _ in range(3):
        start = max((i for i, line in enumerate(text) if not line.strip()), default=-1) + 1
        closing = "\n".join(text[start:])
        if start == 0 or len(closing) > _INSTRUCTION_CHARS_MAX:
            return
        if not _CUE.match(closing) and not closing.rstrip().endswith("?"):
            return
        lead.append(closing)
        del text[max(start - 1, 0) :]
        while text and not text[-1].strip():
            text.pop()


def _parted(lead: list[str]) -> tuple[list[str], str]:
    """Return instruction and material of a text without tags or headings: by paragraph, quotation or sentence."""
    whole = "\n".join(lead).strip()
    paragraphs = [each for each in re.split(r"\n\s*\n", whole) if each.strip()]
    if len(paragraphs) < 2:
        quoted = _QUOTED.search(whole)
        if quoted:
            return [whole.replace(quoted[0], " ")], quoted[1]
        paragraphs = re.split(r"(?<=[.!?])\s+", whole)
    asks: list[str] = []
    rest: list[str] = []
    for each in paragraphs:
        (asks if _CUE.match(each) or each.rstrip().endswith("?") else rest).append(each)
    if not asks or not rest:
        return [whole], ""
    return asks, "\n\n".join(rest)


def _last_question(instruction: str) -> str:
    if "?" not in instruction:
        return ""
    return next((each for each in reversed(sentences(instruction)) if each.endswith("?")), "")
