"""Length limits of an answer, parsed from the instruction: words, sentences, items."""

import re
from typing import Final

from actors.simulator.reasoning.text import word_count

WORDS_DEFAULT: Final = 60
ITEMS_DEFAULT: Final = 3

_NUMBERS: Final = {
    name: number
    for number, name in enumerate("one two three four five six seven eight nine ten eleven twelve".split(), start=1)
}
_NUMBER = r"(\d[\d,]{0,6}|" + "|".join(_NUMBERS) + r")"
_WORDS = re.compile(rf"\b(under |below |fewer than |less than )?{_NUMBER}[ -]words?\b", re.IGNORECASE)
_SENTENCES = re.compile(rf"\b{_NUMBER}(?: (?:short|full|complete|concise|brief|plain))?[ -]sentences?\b", re.IGNORECASE)
_ITEMS = re.compile(
    rf"\b{_NUMBER} (?:[\w-]+ ){{0,2}}?(?:claims?|facts?|points?|items?|steps?|sub-?questions?|questions?|sub-?goals?"
    r"|goals?|bullets?|lines?|reasons?|ideas?|examples?|sub-?tasks?|tasks?|parts?|sections?|aspects?|keywords?|themes?"
    r"|topics?|findings?|arguments?|quotes?|names?|entries|tags?|phrases?)\b",
    re.IGNORECASE,
)


def _number(text: str) -> int:
    return _NUMBERS.get(text.lower()) or max(1, int(text.replace(",", "")))


def words_max(instruction: str, default: int = WORDS_DEFAULT) -> int:
    """Return the most words that the instruction allows; of several limits, the smallest."""
    if "word" not in instruction and "Word" not in instruction:
        return default
    found = [_number(n) - (1 if below and _number(n) > 1 else 0) for below, n in _WORDS.findall(instruction)]
    return min(found) if found else default


def sentences_max(instruction: str) -> int | None:
    """Return the most sentences that the instruction allows; None if it states no limit."""
    found = _SENTENCES.search(instruction) if "sentence" in instruction else None
    return _number(found[1]) if found else None


def items_max(instruction: str, default: int = ITEMS_DEFAULT) -> int:
    """Return the most items that the instruction asks for."""
    found = _ITEMS.search(instruction)
    return _number(found[1]) if found else default


def within(text: str, limit: int) -> str:
    """Return the first ``limit`` words of a text, unchanged."""
    return text if word_count(text) <= limit else " ".join(text.split()[:limit])
