"""Deterministic transforms of a tool's result, applied before it is sent to the model, which does not know of them.

- head:N: its first N characters
- lines:N: its first N lines
- fields:a,b: only these fields of JSON
- sort: its lines sorted, without duplicates
- match:WORD: the lines that contain this word
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from cortex.values.bounds.json_depth import too_deep

_FORM = re.compile(r"(?:head|lines):[1-9]\d{0,8}|fields:[\w,]+|sort|match:.+")


def known(transform: str) -> None:
    """Raise ``ValueError`` for an unknown transform."""
    if _FORM.fullmatch(transform) is None:
        raise ValueError(f"no transform {transform!r}: head:N, lines:N, fields:a,b, sort, match:WORD")


def transformed(text: str, transforms: Iterable[str]) -> str:
    """Return the text after these transforms, in their order."""
    for transform in transforms:
        name, _, rest = transform.partition(":")
        if name == "head":
            text = text[: int(rest)]
        elif name == "fields":
            text = _fields(text, rest.split(","))
        else:
            lines = text.splitlines()
            lines = lines[: int(rest)] if name == "lines" else sorted(set(lines)) if name == "sort" else [
                line for line in lines if rest in line
            ]  # fmt: skip
            text = "\n".join(lines)
    return text


def _fields(text: str, names: list[str]) -> str:
    """Keep fields of a JSON object or of a list of objects; leave anything else unchanged."""
    if too_deep(text):
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return msgspec.json.encode(
        [_some(each, names) for each in value] if isinstance(value, list) else _some(value, names)
    ).decode()


def _some(value: Any, names: list[str]) -> Any:
    return {name: value[name] for name in names if name in value} if isinstance(value, dict) else value
