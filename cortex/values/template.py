"""A prompt with places for the columns of a table: ``Label: {{text}}``.

What stands between ``{{`` and ``}}``, less the space around it, is a column's name, to the letter; nothing there is
code. A value is put in once and never read again, so what a table holds cannot change the template. Text goes in as it
stands; numbers, true and false, lists and objects in their JSON form; null, and a column that this row lacks, as
nothing. A ``{{`` that is meant as such is written ``\\{{``; single braces and ``}}`` mean nothing by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

_PLACE = re.compile(r"\\\{\{|\{\{(.*?)\}\}|\{\{", re.DOTALL)
_encode = msgspec.json.Encoder().encode


class TemplateError(ValueError):
    """This is no template. The message is one clear line."""


class Template:
    """A template, read. Raises ``TemplateError`` for one that is blank or opens a place that it does not close."""

    __slots__ = ("_parts", "columns")

    def __init__(self, source: str) -> None:
        if not source.strip():
            raise TemplateError("it is empty: write what to ask, like 'Label: {{text}}'")
        texts, columns = [""], []
        at = 0
        for found in _PLACE.finditer(source):
            texts[-1] += source[at : found.start()]
            at = found.end()
            if found[0].startswith("\\"):
                texts[-1] += "{{"
                continue
            name = (found[1] or "").strip()
            if found[1] is None or not name:
                line = source.count("\n", 0, found.start()) + 1
                said = "names no column" if found[1] is not None else "is never closed with }}"
                raise TemplateError(f"the {{{{ on its line {line} {said} (write \\{{{{ for one that is text)")
            columns.append(name)
            texts.append("")
        texts[-1] += source[at:]
        self._parts = [part for text in texts for part in (text, "")][:-1]
        """What stands between the places, with room for what stands in them."""
        self.columns: tuple[str, ...] = tuple(columns)
        """The columns that it names, in their order, each as often as it is named."""

    def render(self, row: Mapping[str, Any]) -> str:
        """The prompt of a row. Empty where there is nothing to ask: all the columns that it names are blank."""
        parts, place, blank = self._parts.copy(), 1, bool(self.columns)
        for name in self.columns:
            value = row.get(name)
            if type(value) is not str:
                value = shown(value)
            parts[place] = value
            place += 2
            if blank and value and not value.isspace():
                blank = False
        return "" if blank else "".join(parts)


def shown(value: Any) -> str:
    """A value as it stands in a prompt."""
    if type(value) is str:
        return value
    return "" if value is None else _encode(value).decode()
