"""Number of lines of the material that match a question, by shared words and names."""

import re
from typing import Final, NamedTuple

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.text import words
from actors.simulator.reasoning.thought import Thought

_ASKED: Final = re.compile(
    r"\bhow many (?:of )?(?:the |these |those )?(?P<what>[^?\n]{1,200}?) (?:mention|are|is|were|was|say|speak of|talk"
    r" of|talk about|complain of|complain about|concern|contain|have|report|describe|ask for|praise)s?\b"
    r"(?P<said>[^?\n]{1,200})\?",
    re.IGNORECASE,
)
_NAME: Final = re.compile(r"\"([^\"]+)\"|\b((?=\w*-?\w*\d)[A-Za-z][\w-]*)\b")
SHARE: Final = 0.5
"""Least share of the telling words in a matching line; with two or more words, at least two."""


class CountQuestion(NamedTuple):
    """Criterion of a count: names that a line must hold literally, and telling words."""

    names: tuple[str, ...]
    words: frozenset[str]

    def holds(self, line: str) -> bool:
        """Return True if the line matches."""
        shared = len(self.words & words(line))
        enough = shared >= max(min(2, len(self.words)), SHARE * len(self.words))
        return enough and all(name in line for name in self.names)


def counted(question: str) -> CountQuestion | None:
    """Return the criterion of a question; None if it asks for something else."""
    found = _ASKED.search(question) if "ow many" in question else None
    if found is None:
        return None
    names = tuple(one or two for one, two in _NAME.findall(f"{found['what']} {found['said']}"))
    telling = words(_NAME.sub(" ", found["said"]))
    return CountQuestion(names, telling) if telling else None


def tally(reading: ParsedPrompt) -> Thought | None:
    """Return the number of matching lines."""
    if "ow many" not in reading.text and "ow many" not in reading.system:
        return None
    wanted = counted(reading.question) or counted(reading.instruction)
    if wanted is None or not reading.material.strip():
        return None
    number = sum(wanted.holds(line) for line in reading.material.split("\n"))
    return Thought(str(number), (str(number + 1), str(abs(number - 1))))
