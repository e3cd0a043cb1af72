"""Return protocols: the form of a task's result, and how it is read.

- text: any text
- number: a number
- counts: "name: 2, other: 5"
- json: any JSON value
- choice:a|b: one of these
- tally:TOOL.FIELD: counted by code from the tool uses, whatever the reply
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec

from cortex.control.tasks import CommandRefused, ControlTask
from cortex.values.bounds.json_depth import deep_words, too_deep

KINDS = ("text", "number", "counts", "json")
"""Protocols without a parameter."""
_COUNT = re.compile(r"\s*([\w][\w -]*?): (\d{1,15})\s*")
FORMS = {
    "text": "", "number": "Return a number and nothing else.", "json": "Return JSON and nothing else.",
    "counts": "Return counts and nothing else, in this form: name: 2, other: 5",
}  # fmt: skip
"""Instructions to the model, by protocol."""


def known(kind: str) -> bool:
    """Return True if there is such a protocol."""
    if kind.startswith("choice:"):
        return len(set(_choices(kind))) > 1 and all(_choices(kind))
    return kind in KINDS or re.fullmatch(r"tally:\w+\.\w+", kind) is not None


def asked(kind: str) -> str:
    """Return the instruction to the task; empty if none is needed."""
    if kind.startswith("choice:"):
        return f"Return one of: {', '.join(_choices(kind))}."
    return FORMS.get(kind, "")


def read(task: ControlTask, answer: Any) -> Any:
    """Return the task's result from its reply. Raises ``CommandRefused`` if the reply does not fit the protocol."""
    kind = task.returns
    if kind.startswith("tally:"):
        tool, _, field = kind.removeprefix("tally:").partition(".")
        return _tallied(task, tool, field)
    text = answer.strip() if isinstance(answer, str) else answer
    if text in ("", None):
        raise CommandRefused("the result is empty")
    if kind == "json":
        return _json(text)
    if kind == "counts":
        return _counts(text)
    if kind == "number":
        return _number(text)
    if kind.startswith("choice:"):
        for choice in _choices(kind):
            if str(text).strip("\"'`. ").casefold() == choice.casefold():
                return choice
        raise CommandRefused(f"the result is not one of {', '.join(_choices(kind))}: {str(text)[:60]!r}")
    return text if isinstance(text, str) else msgspec.json.encode(text, order="sorted").decode()


def shown(value: Any) -> str:
    """Return a result as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value and all(isinstance(each, int) for each in value.values()):
        return ", ".join(f"{name}: {count}" for name, count in value.items())
    return msgspec.json.encode(value, order="sorted").decode()


def _choices(kind: str) -> list[str]:
    return [each.strip() for each in kind.removeprefix("choice:").split("|")]


def _tallied(task: ControlTask, tool: str, field: str) -> dict[str, int]:
    """Counts of the values of an argument; for an item that was processed twice, the last use counts."""
    last: dict[str, str] = {}
    for deed in task.deeds:
        if deed.tool == tool and field in deed.given:
            others = {name: value for name, value in deed.given.items() if name != field}
            last[msgspec.json.encode(others, order="sorted").decode()] = str(deed.given[field])
    return dict(sorted(Counter(last.values()).items()))


def _json(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    if too_deep(text):
        raise CommandRefused(f"the result is {deep_words()}")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CommandRefused(f"the result is no JSON: {error}") from None


def _counts(text: Any) -> dict[str, int]:
    if isinstance(text, dict):
        text = shown(text)
    found = [_COUNT.fullmatch(each) for each in str(text).split(",")]
    if not all(found):
        raise CommandRefused(f"the result has not the form 'name: 2, other: 5': {str(text)[:60]!r}")
    return {each[1]: int(each[2]) for each in found if each is not None}


def _number(text: Any) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        raise CommandRefused(f"the result is no number: {str(text)[:60]!r}") from None
    if not -1e300 < number < 1e300:
        raise CommandRefused("the result is no finite number")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
