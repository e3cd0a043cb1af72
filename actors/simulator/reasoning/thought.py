"""Result of a skill: the right answer, and possible wrong ones."""

from collections.abc import Callable
from typing import NamedTuple

from actors.simulator.reasoning.prompt_reader import ParsedPrompt


class Thought(NamedTuple):
    """Computed answer.

    ``wrong``: answers of the right form that a mistaken reader could give. ``rambling``: an answer that misses the
    asked form (JSON left open, say); None is the usual one, with the answer inside the text's first sentence; an empty
    text means that there is no form to miss. An erring reasoner takes one of these.
    """

    right: str
    wrong: tuple[str, ...] = ()
    rambling: str | None = None


Skill = Callable[[ParsedPrompt], Thought | None]
"""Pure function from a parsed prompt to an answer; None if the request asks for something else."""
