"""Words, stems and sentences: the reasoner's whole knowledge of language."""

import functools
import re
from typing import Final

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n+")
_MARKER = re.compile(r"^(?:[-*•>#]+|\(?\d{1,3}[.)])\s+")
_SUFFIXES = ("ations", "ation", "ingly", "ings", "ing", "edly", "ies", "ied", "ed", "ers", "er", "ly", "es", "s", "e")

# Grammatical words of a text, and of a request ("read the following note").
_STOPS: Final = frozenset(
    """a about above after again all also am an and any are as at be because been before being below best between
    both but by can could did do does doing down during each either else every few for from further get gives go
    had has have having he her here him his how i if in into is it its itself just less made make makes making
    many may me might more most much must my neither never no non none nor not now of off on once one only onto
    or other our out over own per rather same shall she should since so some such than that the their them then
    there these they this those through to too under until up upon us very was we well were what when where
    whether which while who whom whose why will with within without would yes yet you your
    answer answers anything asked below best briefly choose classify contain contains content correct decide
    describe described discuss document documents exactly explain extract fact facts false find following give
    given item items label labels line lines list mention mentioned mentions name note notes output passage
    please question read relevant reply respond response return say says sentence sentences short state
    statement summarise summarize summary task tell text true use word words write""".split()
)


@functools.lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return a word without its commonest English endings; short words unchanged."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


def words(text: str) -> frozenset[str]:
    """Return the stems of a text's telling words; may be empty."""
    return frozenset(map(stem, set(_WORD.findall(text.lower())) - _STOPS))


def all_words(text: str) -> frozenset[str]:
    """Return the stems of all words, grammatical ones included, for very short texts."""
    return frozenset(map(stem, _WORD.findall(text.lower())))


def word_count(text: str) -> int:
    """Return the number of words: runs between white space."""
    return len(text.split())


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text, without list markers and heading signs, empty ones left out."""
    found = (_MARKER.sub("", each.strip()).strip() for each in _SENTENCE_END.split(text))
    return [each for each in found if each]


def likeness(one: frozenset[str], two: frozenset[str]) -> float:
    """Return the shared words over the geometric mean of both counts (Ochiai): 0 for none shared, 1 for equal sets."""
    shared = len(one & two)
    return shared / (len(one) * len(two)) ** 0.5 if shared else 0.0
