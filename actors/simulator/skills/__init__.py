"""The reasoner's skills: a table of small pure functions, each from a reading to an answer or None.

The first that understands the request answers it; the last one always does. A further skill is a further row, put
before the more general ones: ``(("moves", moves), *SKILLS)``.
"""

from typing import Final

from actors.simulator.skills.choosing import choose, rate
from actors.simulator.skills.composing import compose
from actors.simulator.skills.counting import count
from actors.simulator.skills.editing import edit
from actors.simulator.skills.examples import by_example
from actors.simulator.skills.extracting import claims, echo, extract, listing, plan
from actors.simulator.skills.moving import move
from actors.simulator.skills.programming import program
from actors.simulator.skills.structured import structured
from actors.simulator.skills.tallying import tally
from actors.simulator.skills.thought import Skill, Thought

__all__ = ["SKILLS", "Skill", "Thought"]

SKILLS: Final[tuple[tuple[str, Skill], ...]] = (
    ("program", program),
    ("moves", move),
    ("curvature", compose),
    ("tally", tally),
    ("edits", edit),
    ("json", structured),
    ("examples", by_example),
    ("arithmetic", count),
    ("rating", rate),
    ("choice", choose),
    ("echo", echo),
    ("claims", claims),
    ("plan", plan),
    ("list", listing),
    ("extract", extract),
)
"""From the most particular to the most general."""
