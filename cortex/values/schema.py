"""JSON schemas for answers: requested in the provider's form, checked on arrival.

A keyword is checked, or describes only, or is refused when the job is set up (``cortex.values.json_schema.keywords``):
an answer never counts as valid by a rule that was not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import msgspec

from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.json_schema.checks import SchemaError, identity_of, resolved
from cortex.values.json_schema.decoder_types import struct_of
from cortex.values.json_schema.keywords import check_of
from cortex.values.json_schema.structured import closed
from cortex.values.json_schema.whole_numbers import with_integers
from cortex.values.reply import Malformed

COLUMNS_MAX = 500
"""Largest number of top-level properties, which become columns."""
FAULTS_MAX = 10
"""Largest number of an answer's faults that are named to the model."""
OBJECTS_MAX = 100
"""Largest number of JSON objects that are looked for in a text; bounds the time that a text can take."""

_decode = msgspec.json.Decoder().decode
_scan = json.JSONDecoder().raw_decode
_OBJECT_BEGINS = re.compile(r'\{\s*["}]')


class AnswerShape:
    """Schema of an answer: an object with named fields. Raises ``SchemaError``.

    ``formats``: False for the schema of a Python type, which checks by itself; formats and keywords that are not known
    are then passed over.
    """

    def __init__(self, schema: Any, *, formats: bool = True) -> None:
        if not isinstance(schema, dict):
            raise SchemaError('not a JSON schema: give an object, like {"type": "object", "properties": {…}}')
        self.schema = schema
        top = resolved(schema, schema, "$")
        if top.get("type") != "object" or not isinstance(top.get("properties"), dict) or not top["properties"]:
            raise SchemaError('the top level must be {"type": "object"} with properties, which become the columns')
        if len(top["properties"]) > COLUMNS_MAX:
            raise SchemaError(f"it has {len(top['properties'])} properties: at most {COLUMNS_MAX} can be columns")
        self.properties: dict[str, Any] = top["properties"]
        """Schemas of the fields by name, in their order."""
        self._names = [*self.properties]
        self._check = check_of(schema, formats=formats)
        made = struct_of(schema)
        self._fast_decode = None if made is None else msgspec.json.Decoder(made).decode

    def read(self, text: str, *, in_words: bool = False) -> dict[str, Any]:
        """Return the answer in this text, with or without a code fence, as plain data. Raises ``Malformed`` with the
        reason.

        ``in_words``: the schema was asked for in words, so the text may hold prose around the one object.
        """
        if (answer := self.fast_read(text)) is not None:
            return dict(zip(self._names, msgspec.structs.astuple(answer), strict=True))
        return self._read(text, in_words)

    def fast_read(self, text: str) -> msgspec.Struct | None:
        """Return the answer in this text, with the schema's properties as fields in their order (fast path).

        None for a text or a schema that the decoder alone cannot judge. Equal to ``read`` by
        ``tests/properties/test_fast_tables.py``.
        """
        if self._fast_decode is None:
            return None
        try:
            return self._fast_decode(text)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None

    def _read(self, text: str, in_words: bool) -> dict[str, Any]:
        found = decoded(text, in_words=in_words)
        try:
            flaw = self._check(found)
        except RecursionError as error:
            raise Malformed(_line(error)) from None
        if flaw is not None:
            raise Malformed(str(flaw))
        if type(found) is not dict:
            raise Malformed("the answer is no object")
        return self.fields(with_integers(found, self.schema, self.schema))

    def fields(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an answer in the order of the schema; those that are missing are None."""
        if self._names == [*found]:
            return found
        return {name: found.get(name) for name in self._names}

    def provider_form(self) -> dict[str, Any]:
        """Return the schema for the provider's structured outputs: objects closed, bounds moved into the description.

        https://platform.claude.com/docs/en/build-with-claude/structured-outputs; the SDK's ``transform_schema`` does
        the same.
        """
        return closed(self.schema)


def decoded(text: str, *, in_words: bool = False) -> Any:
    """Return the JSON value that a reply's text is, with or without a code fence. Raises ``Malformed``.

    ``in_words``: if the text is no JSON, return the one JSON object that it holds between other text. Several different
    objects, and an object that is cut, are malformed.
    """
    return _found(text, in_words)[0]


def json_text(text: str, *, in_words: bool = False) -> str:
    """Return the JSON text of the value that ``decoded`` returns. Raises ``Malformed``."""
    return _found(text, in_words)[1]


def _found(text: str, in_words: bool) -> tuple[Any, str]:
    message = text.strip()
    if message.startswith("```"):
        message = message.split("\n", 1)[-1].rsplit("```", 1)[0].strip()
    if not message:
        raise Malformed("the answer is empty")
    if too_deep(message):
        raise Malformed(f"the answer is {deep_words()}")
    try:
        return _decode(message), message
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        if not in_words or "{" not in text:
            raise Malformed(_line(error)) from None
        return _only_object(text, _line(error))


def _only_object(text: str, reason: str) -> tuple[Any, str]:
    found: dict[Hashable, tuple[Any, str]] = {}
    place = text.find("{")
    for _ in range(OBJECTS_MAX):
        if place < 0:
            break
        end = place + 1
        if _OBJECT_BEGINS.match(text, place):
            if too_deep(text[place:]):  # quotes before the object may not be those of strings
                raise Malformed(f"the answer is {deep_words()}")
            try:
                _, end = _scan(text, place)
                value = _decode(text[place:end])
            except (ValueError, RecursionError):
                raise Malformed(reason) from None  # cut, or no JSON
            found[identity_of(value)] = value, text[place:end]
            if len(found) > 1:
                raise Malformed("the text holds several different JSON objects: answer with one")
        place = text.find("{", end)
    if len(found) != 1 or place >= 0:
        raise Malformed(reason)
    return next(iter(found.values()))


__all__ = ["AnswerShape", "SchemaError", "decoded", "json_text", "reasons"]


def reasons(error: Exception) -> str:
    """Return the reasons of an error in one line, as they are sent to the model: pydantic's without its links."""
    faults = getattr(error, "errors", None)
    if faults is None:
        return _line(error)
    each = [
        f"{fault['msg']} - at `$" + "".join(map(_step, fault["loc"])) + "`" if fault["loc"] else str(fault["msg"])
        for fault in faults(include_url=False, include_context=False, include_input=False)
    ]
    more = f"; and {len(each) - FAULTS_MAX} more" if len(each) > FAULTS_MAX else ""
    return " ".join(("; ".join(each[:FAULTS_MAX]) + more).split())


def _step(part: str | int) -> str:
    return f"[{part}]" if isinstance(part, int) else f".{part}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
