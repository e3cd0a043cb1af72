"""Labels from worked examples in the prompt: the nearest examples by word overlap decide."""

import re
from typing import NamedTuple

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.text import all_words, likeness, words
from actors.simulator.reasoning.thought import Thought

_CUE = re.compile(r"[ \t]*([A-Za-z][\w -]{0,30}):$")
_ARROW = re.compile(r"^(.*?\S)\s*(?:->|=>|→)\s*(.*)$")
NEAREST = 3
"""Number of nearest examples that vote, each weighted by its likeness."""


class LabeledExample(NamedTuple):
    """Input of an example, and its label."""

    given: str
    label: str


def by_example(reading: ParsedPrompt) -> Thought | None:
    """Return the label of the nearest examples, if the prompt shows some and ends with an open one."""
    text = f"{reading.system}\n{reading.text}".rstrip()
    cue = _CUE.match(text, text.rfind("\n") + 1) if text.endswith(":") else None
    if cue:
        if text.count(cue[1].strip() + ":") < 2:
            return None
        shown, query = _headed(text, cue[1])
    elif text.endswith(("->", "=>", "→")):
        shown, query = _arrows(text)
    else:
        return None
    labels = list(dict.fromkeys(each.label for each in shown))
    if not labels:
        return None
    asked = words(query) or all_words(query)
    near = sorted(
        ((likeness(asked, words(each.given) or all_words(each.given)), -i, each.label) for i, each in enumerate(shown)),
        reverse=True,
    )[:NEAREST]
    votes = {label: sum(like for like, _, its in near if its == label) for label in labels}
    best = max(votes.values())
    right = max((label for label in labels if votes[label] == best), key=reading.tie)
    others = tuple(label for label in labels if label != right)
    first = query.strip().split("\n")[0]
    return Thought(right, others, f"{right} {first}")  # like a base model that continues after its answer


def _headed(text: str, name: str) -> tuple[list[LabeledExample], str]:
    """Return examples of the form "...given...\\nLabel: x", and the last input."""
    lead = f"{name.strip().lower()}:"
    shown: list[LabeledExample] = []
    given: list[str] = []
    for line in text.split("\n"):
        value = line.strip()
        if not value.lower().startswith(lead):
            given.append(value)
            continue
        label = value[len(lead) :].strip()
        if label:
            shown.append(LabeledExample(_last_block(given), label))
            given = []
    return shown, _last_block(given)


def _last_block(lines: list[str]) -> str:
    """Return the input after the last label, without the introduction of all examples."""
    blocks = [each for each in "\n".join(lines).split("\n\n") if each.strip()]
    return blocks[-1] if blocks else ""


def _arrows(text: str) -> tuple[list[LabeledExample], str]:
    found = [LabeledExample(m[1], m[2].strip()) for line in text.split("\n") if (m := _ARROW.match(line.strip()))]
    return [each for each in found if each.label], found[-1].given if found else ""
