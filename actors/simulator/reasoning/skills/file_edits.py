"""Edits of files, if the text shows the form of an edit and a check names missing or wrong lines.

The files are known only from the check's findings, one a line: ``FILE: missing: LINE`` and ``FILE: wrong: LINE``. A
line that is an expression is written with its value, any other unchanged. One answer handles only some of many
findings, like a careful reader.
"""

import re
from typing import Final

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.arithmetic import valued, written
from actors.simulator.reasoning.thought import Thought

AT_ONCE: Final = 8
"""Findings handled in one answer, unless the text states a limit."""

_FORM: Final = '<append path="'
_FINDING: Final = re.compile(r"^([\w./-]+): (missing|wrong): (.+)$", re.MULTILINE)
_LIMIT: Final = re.compile(r"\bat most (\d+)\b")


def edit(reading: ParsedPrompt) -> Thought | None:
    """Return the edits for the first findings; ``<done/>`` without findings."""
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
    """Return the edits. ``off``: error that a mistaken reader adds to the last value."""
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
    """Return the corrected line."""
    expression = line.partition("=")[0].strip()
    value = valued(expression)
    return line if value is None else f"{expression} = {written(value + off)}"
