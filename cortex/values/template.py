r"""Prompt templates with placeholders for the columns of a table: ``Label: {{text}}``.

The text between ``{{`` and ``}}``, less surrounding space, is a column's name, matched exactly; it is never code. A
value is inserted once and never parsed again, so a table's content cannot change the template. Text is inserted
unchanged; numbers as they are written, true and false, lists and objects in their JSON form; null, and a column that
this row lacks, as nothing. A literal ``{{`` is written ``\{{``; single braces and ``}}`` have no meaning by themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_PLACE = re.compile(r"\\\{\{|\{\{(.*?)\}\}|\{\{", re.DOTALL)
_MINUS_ZERO = re.compile(rb"-0(?<![^\[,:\s]-0)(?![0-9.eE])")
_encode = msgspec.json.Encoder().encode


class TemplateError(ValueError):
    """The template is invalid. The message is one line."""


class Template:
    """Parsed template. Raises ``TemplateError`` if it is blank or has a placeholder that is not closed."""

    __slots__ = ("_fast_decode", "_form", "_parts", "columns")

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
                message = "names no column" if found[1] is not None else "is never closed with }}"
                raise TemplateError(f"the {{{{ on its line {line} {message} (write \\{{{{ for one that is text)")
            columns.append(name)
            texts.append("")
        texts[-1] += source[at:]
        self._parts = [part for text in texts for part in (text, "")][:-1]
        """Texts between the placeholders, with an empty slot for each placeholder."""
        self.columns: tuple[str, ...] = tuple(columns)
        """Columns that the template names, in order, with repetitions."""
        self._form = "%s".join(text.replace("%", "%%") for text in texts)
        self._fast_decode = _texts_decoder(self.columns)

    def render(self, row: Mapping[str, Any]) -> str:
        """Return the prompt of a row; empty if all columns that the template names are blank, so that there is nothing
        to ask.
        """
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


    def fast_render(self, row: bytes) -> str | None:
        """Return what ``render`` returns for a row in JSON (fast path); None unless all columns that the template names
        are texts, and one of them is not blank. Equal by ``tests/properties/test_fast_tables.py``.
        """
        if self._fast_decode is None:
            return None
        try:
            values = msgspec.structs.astuple(self._fast_decode(row))
        except ValueError:  # msgspec's errors are ValueErrors
            return None
        for value in values:
            if value and not value.isspace():
                return self._form % values
        return None


def _texts_decoder(columns: tuple[str, ...]) -> Callable[[bytes], Any] | None:
    """Return a decoder of these columns of a row, which raises if one of them is no text; None if columns are repeated,
    or are named as msgspec does not allow."""
    if not columns or len(set(columns)) < len(columns):
        return None
    names = {f"column_{place}": name for place, name in enumerate(columns)}
    try:
        return msgspec.json.Decoder(msgspec.defstruct("Row", [(each, str) for each in names], rename=names)).decode
    except ValueError:  # a quote, a backslash or a control character in a name
        return None


def as_written(text: str) -> msgspec.Raw:
    """Return a number that is encoded again as it is written: the ``float_hook`` of decoders of rows.

    JSON bounds neither digits nor size of a number (https://www.rfc-editor.org/rfc/rfc8259#section-6); a float has 15
    to 17 digits and ends at 1.8e308. Whole numbers but ``-0`` are exact without it.
    """
    return msgspec.Raw(text.encode())


def whole_as_written(text: str) -> int | msgspec.Raw:
    """Return a whole number; ``-0`` as it is written: the ``parse_int`` of decoders of rows."""
    return as_written(text) if text == "-0" else int(text)


def holds_minus_zero(text: bytes) -> bool:
    """Return whether JSON holds the whole number ``-0``, whose sign an ``int`` does not keep. True also where a text of
    it reads alike.
    """
    return b"-0" in text and _MINUS_ZERO.search(text) is not None


_decode = msgspec.json.Decoder(float_hook=as_written).decode


def values_as_written(text: bytes) -> Any:
    """Return the values of JSON, whose numbers are encoded again as they are written. Raises ``ValueError``."""
    if holds_minus_zero(text):  # msgspec has no hook for whole numbers
        return json.loads(text, parse_float=as_written, parse_int=whole_as_written)
    return _decode(text)


def shown(value: Any) -> str:
    """Return a value as it appears in a prompt."""
    if type(value) is str:
        return value
    return "" if value is None else _encode(value).decode()
