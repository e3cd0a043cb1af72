"""Answers in the text's own words: claims, lists, plans, summaries, extractive replies."""

import re
from collections import Counter
from typing import Final

from actors.simulator.reasoning.length_limits import WORDS_DEFAULT, items_max, sentences_max, within, words_max
from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.classification import judged
from actors.simulator.reasoning.text import word_count, words
from actors.simulator.reasoning.thought import Thought

_CLAIMS = re.compile(
    r"\b(?:extract|list|give|state|identify|write|quote|pull out|name|note)\b[^.\n]{0,80}\b(?:claims?|facts?|points?"
    r"|findings?|arguments?|statements?|evidence|quotes?|quotations?|passages?|takeaways?|observations?)\b",
    re.IGNORECASE,
)
_PLAN = re.compile(
    r"\bplan\b|\bbreak\b[^.\n]{0,60}\binto\b|\bdecompose\b|\bsub-?(?:questions?|goals?|tasks?)\b|\bsteps\b",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"(?:^|[.!?:]\s+|\n)\W{0,8}(?:please\s+)?(?:list|enumerate|name)\b|\b(?:numbered|bulleted|bullet) list\b"
    r"|\bone per line\b|\bcomma-separated\b",
    re.IGNORECASE,
)
_LIST_WORDS: Final = ("list", "enumerate", "name", "one per line", "comma-separated")
_KEYWORDS = re.compile(r"\b(?:keywords?|key words|topics?|themes?|tags?)\b", re.IGNORECASE)
_NOTHING = re.compile(
    r"\b(?:if|when|where)\b[^.\n]{0,100}?\b(?:nothing|none|no|not|irrelevant|neither)\b[^.\n]{0,100}?\b(?:answer|reply|say"
    r"|write|respond|output|return)\b(?:\s+(?:only|just|with|exactly|the word))*\s*:?\s+[\"'`]?([\w-]+(?: [\w-]+)?)",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"\b(?:summari[sz]e|summary|condense|shorten|synthesi[sz]e|synthesis)\b", re.IGNORECASE)
_ECHO = re.compile(
    r"^\s*(?:please\s+)?(?:say|repeat|echo|reply|respond|answer|output|print|write)(?:\s+(?:with|exactly|only|just"
    r"|after me|the (?:word|words|text|phrase)|this))*\s*:?\s*(?:[\"“'`](.{1,400}?)[\"”'`]\W*$|(?<=say )(\S+)\W*$)",
    re.IGNORECASE | re.MULTILINE,
)
_CLAUSE = re.compile(r"\s*(?:[,;?]|\band\b|\bor\b)\s*", re.IGNORECASE)
_RAW_WORD = re.compile(r"[^\W\d_][\w-]{2,}")

SENTENCE_WORDS_MAX: Final = 40
"""Most words of a claim; longer sentences are cut."""


def _nothing(reading: ParsedPrompt) -> str:
    """Return the text that the request wants if the material is not about the question; empty if it is, or without such
    a text."""
    low = reading.low
    if not ("if " in low or "when " in low or "where " in low):
        return ""
    match = _NOTHING.search(reading.instruction)
    return match[1] if match and not judged(reading) else ""


def claims_of(reading: ParsedPrompt, items: int, words_each: int = SENTENCE_WORDS_MAX) -> list[str]:
    """Return the sentences that answer most, in the order of the text, each cut to its limit."""
    kept = set(reading.ranked[:items])
    return [within(each, words_each) for each in reading.sentences if each in kept]


def summary_of(reading: ParsedPrompt, limit: int, most: int | None = None) -> str:
    """Return the sentences that answer most, in the order of the text, together within ``limit`` words."""
    kept: list[str] = []
    left = limit
    ranked = reading.ranked
    for each in ranked:
        if left <= 0 or (most is not None and len(kept) >= most):
            break
        length = word_count(each)
        if length <= left:
            kept.append(each)
            left -= length
    if not kept and ranked:
        return within(ranked[0], limit)
    chosen = set(kept)
    return " ".join(each for each in reading.sentences if each in chosen)


def keywords_of(text: str, items: int) -> list[str]:
    """Return the most frequent telling words, as written in the text; of equals, the earlier."""
    counted = Counter(each for each in _RAW_WORD.findall(text) if words(each))
    return [word for word, _ in counted.most_common(items)]


def _laid_out(lines: list[str], instruction: str, numbered: bool) -> str:
    low = instruction.lower()
    if "comma-separated" in low or "separated by commas" in low:
        return ", ".join(lines)
    if numbered or "number" in low:
        return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
    if "one per line" in low and "bullet" not in low:
        return "\n".join(lines)
    return "\n".join(f"- {line}" for line in lines)


def _lines(reading: ParsedPrompt, lines: list[str], others: list[str], numbered: bool) -> Thought:
    right = _laid_out(lines, reading.instruction, numbered)
    other = [*lines[:-1], *others[-1:]] if others else lines[:-1]
    wrong = (_laid_out(other, reading.instruction, numbered),) if other and other != lines else ()
    return Thought(right, wrong, " ".join(lines))


def claims(reading: ParsedPrompt) -> Thought | None:
    """Return the claims, facts or quotes that the question asks for, one a line."""
    if not _CLAIMS.search(reading.instruction):
        return None
    nothing = _nothing(reading)
    if nothing:
        return Thought(nothing, tuple(claims_of(reading, 1)))
    items = items_max(reading.instruction)
    each = words_max(reading.instruction, SENTENCE_WORDS_MAX)
    others = [within(other, each) for other in reading.ranked[items : items + 1]]
    return _lines(reading, claims_of(reading, items, each), others, False)


def plan(reading: ParsedPrompt) -> Thought | None:
    """Return numbered lines: the question's own clauses, then sentences that share most words with it."""
    if not _PLAN.search(reading.instruction):
        return None
    items = items_max(reading.instruction)
    clauses = [each.strip(" .") for each in _CLAUSE.split(reading.question)]
    lines = list(dict.fromkeys(each for each in clauses if words(each)))
    lines += [within(each, SENTENCE_WORDS_MAX) for each in reading.ranked[:items] if each not in lines]
    lines = [line for line in lines if line]
    return _lines(reading, lines[:items], lines[items:], True) if lines else None


def listing(reading: ParsedPrompt) -> Thought | None:
    """Return items of the material, one a line; keywords and topics if asked for."""
    if not any(word in reading.low for word in _LIST_WORDS) or not _LISTED.search(reading.instruction):
        return None
    items = items_max(reading.instruction, 5)
    if _KEYWORDS.search(reading.instruction):
        found = keywords_of(reading.matter, items * 2)
        return _lines(reading, found[:items], found[items:], False) if found else None
    nothing = _nothing(reading)
    if nothing:
        return Thought(nothing, tuple(claims_of(reading, 1)))
    lines = claims_of(reading, items, words_max(reading.instruction, SENTENCE_WORDS_MAX))
    return _lines(reading, lines, [], False) if lines else None


def echo(reading: ParsedPrompt) -> Thought | None:
    """Return the text that the request wants repeated word for word."""
    match = _ECHO.search(reading.text) if len(reading.text) < 1_000 else None
    if match is None:
        return None
    answer = match[1] or match[2]
    return Thought(answer, (answer.split()[0], answer[:-1] or answer), "")


def extract(reading: ParsedPrompt) -> Thought | None:
    """Return the sentences that share most words with the question, within the instruction's limit."""
    nothing = _nothing(reading)
    most = sentences_max(reading.instruction)
    limit = words_max(reading.instruction, SENTENCE_WORDS_MAX * most if most else WORDS_DEFAULT)
    summary = _SUMMARY.search(reading.instruction)
    right = nothing or summary_of(reading, limit, most if most or summary else 3)
    wrong = tuple(dict.fromkeys(within(each, limit) for each in reading.ranked[:-3:-1]))
    return Thought(right, wrong, "") if right else None
