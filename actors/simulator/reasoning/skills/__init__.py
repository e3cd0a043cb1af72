"""Skills of the reasoner: a table of small pure functions, each from a parsed prompt to an answer or None.

The first skill that understands the request answers it; the last one always does. Add a skill as a row before more
general ones: ``(("moves", moves), *SKILLS)``.
"""

from typing import Final

from actors.simulator.reasoning.skills.arithmetic import count
from actors.simulator.reasoning.skills.classification import choose, rate
from actors.simulator.reasoning.skills.code_snippets import program
from actors.simulator.reasoning.skills.convexity import compose
from actors.simulator.reasoning.skills.extraction import claims, echo, extract, listing, plan
from actors.simulator.reasoning.skills.few_shot import by_example
from actors.simulator.reasoning.skills.file_edits import edit
from actors.simulator.reasoning.skills.hanoi import move
from actors.simulator.reasoning.skills.line_counts import tally
from actors.simulator.reasoning.skills.structured import structured
from actors.simulator.reasoning.thought import Skill, Thought

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
"""Skills from the most particular to the most general."""
