"""Python types that check the answers of a table, and the shape of what they give.

The types are an author's code: they are imported and registered at the edge (``actors.programs.answer_types``).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from cortex.values.json_schema.keywords import check_of
from cortex.values.reply import Malformed
from cortex.values.schema import AnswerShape

_COLUMN_KEYWORDS: Final = frozenset(
    "$ref $defs definitions type properties items prefixItems anyOf oneOf allOf enum const".split()
)
"""Keywords that decide the type of a column. A result is checked by these alone: the form in which a type gives a value
need not match the others, such as the pattern of a decimal."""


class TypeOfAnswers(msgspec.Struct, frozen=True):
    """Python type of a table's answers."""

    place: str
    """Import path, ``module:Type`` or ``file.py:Type``."""
    results: str = ""
    """JSON schema of checked answers, as JSON; empty: that of the table."""


class AnswerCheck(Protocol):
    """Check of answers by a Python type."""

    def read(self, text: str) -> Any:
        """Return a JSON text as plain data, in the form that the type gives its values.

        Raises ``Malformed`` with the reasons for a text that does not fit. Other exceptions are those of the type's own
        code.
        """


_registered: dict[str, AnswerCheck] = {}


def register(place: str, check: AnswerCheck) -> None:
    """Make the check of a type known under the type's place."""
    _registered[place] = check


def registered(place: str) -> AnswerCheck | None:
    """Return the check of the type at a place; None if it was not registered in this process."""
    return _registered.get(place)


class ResultShape(AnswerShape):
    """Shape of checked answers, whose fields become columns."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema, formats=False)
        self._fits = check_of(_columns_only(schema), formats=False)

    def held(self, found: Any) -> dict[str, Any]:
        """Return the fields of a checked answer; those that it leaves out have the default of the schema, or None.

        Raises ``Malformed`` for a value that its column cannot hold, such as an integer of more than 64 bits.
        """
        flaw = self._fits(found)
        if flaw is not None:
            raise Malformed(str(flaw))
        if len(found) == len(self.properties):
            return self.fields(found)
        schemas = {name: each if isinstance(each, dict) else {} for name, each in self.properties.items()}
        return {name: found.get(name, each.get("default")) for name, each in schemas.items()}


def _columns_only(schema: Any) -> Any:
    """Return the schema with the keywords that decide the types of columns."""
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name in _COLUMN_KEYWORDS}
    for name in ("properties", "$defs", "definitions"):
        if isinstance(kept.get(name), dict):
            kept[name] = {key: _columns_only(each) for key, each in kept[name].items()}
    for name in ("prefixItems", "anyOf", "oneOf", "allOf"):
        if isinstance(kept.get(name), list):
            kept[name] = [_columns_only(each) for each in kept[name]]
    if "items" in kept:
        kept["items"] = _columns_only(kept["items"])
    return kept
