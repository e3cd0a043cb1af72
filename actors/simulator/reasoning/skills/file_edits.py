"""Edits to files, where the text shows the form of an edit and a check names what is missing or wrong.

Nothing is known of the files beyond what the check says of them: ``FILE: missing: LINE`` and ``FILE: wrong: LINE``, a
line each. A line that is an expression is written with its value, any other as it stands. Of many findings a few are
dealt with at once: a careful reader does no more in one sitting.
"""

import re
from typing import Final

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.arithmetic import valued, written
from actors.simulator.reasoning.thought import Thought

AT_ONCE: Final = 8
"""Findings dealt with in one answer, where the text sets no limit of its own."""

_FORM: Final = '<append path="'
_FINDING: Final = re.compile(r"^([\w./-]+): (missing|wrong): (.+)$", re.MULTILINE)
_LIMIT: Final = re.compile(r"\bat most (\d+)\b")


def edit(reading: ParsedPrompt) -> Thought | None:
    """The edits for the first findings; that it is done, where there are none."""
    if _FORM not in reading.system and _FORM not in reading.text:
        return None
    findings = _FINDING.findall(reading.text)
    if not findings:
        return Thought("<done/>", (), "I think that nothing is left to do.")
    match = _LIMIT.search(reading.text)
    some = findings[: int(match[1]) if match else AT_ONCE]
    right = _edits(some, off=0)
    return Thought(right, (_edits(some, off=1),), f"Here is what I would change:\n{right}")


def _edits(findings: list[tuple[str, str, str]], off: int) -> str:
    """``off``: what a mistaken reader adds to the last value."""
    edits: list[str] = []
    missing: dict[str, list[str]] = {}
    for place, (path, kind, line) in enumerate(findings, start=1):
        right = _line(line, off if place == len(findings) else 0)
        if kind == "missing":
            missing.setdefault(path, []).append(right)
        else:
            edits.append(f'<replace path="{path}">\n<old>\n{line}\n</old>\n<new>\n{right}\n</new>\n</replace>')
    edits += [f'<append path="{path}">\n' + "\n".join(lines) + "\n</append>" for path, lines in missing.items()]
    return "\n\n".join(edits)


def _line(line: str, off: int) -> str:
    """The line as it should be."""
    expression = line.partition("=")[0].strip()
    value = valued(expression)
    return line if value is None else f"{expression} = {written(value + off)}"
