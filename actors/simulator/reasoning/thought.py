"""What a skill makes of a request: the answer it holds for right, and how it could be wrong."""

from collections.abc import Callable
from typing import NamedTuple

from actors.simulator.reasoning.prompt_reader import ParsedPrompt


class Thought(NamedTuple):
    """One worked-out answer.

    ``wrong`` are answers of the right form that a mistaken reader could give instead. ``rambling`` is one that misses
    the asked form (JSON left open, say); None is the usual one, the answer buried in the text's first sentence, and an
    empty one says that there is no form to miss. A reasoner that errs takes one of these.
    """

    right: str
    wrong: tuple[str, ...] = ()
    rambling: str | None = None


Skill = Callable[[ParsedPrompt], Thought | None]
"""A pure function from a reading to an answer, or to None where the request asks for something else."""
