"""Conversion of JSON schemas into checks of values: a schema is the checks of its keywords, and a value is valid if
none of them finds a flaw.

The keywords are in ``cortex.values.json_schema.keywords``. Reasons have the form of msgspec's: "Expected `int`, got
`str` - at `$.a[0]`".
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple

from cortex.values.json_schema.formats import EXAMPLES, FORMATS

DESCRIBING: Final = frozenset(
    "title description default examples deprecated readOnly writeOnly contentEncoding contentMediaType contentSchema "
    "$schema $comment $defs definitions discriminator".split()
)
"""Keywords that do not affect which answers are valid, or are read from elsewhere."""
REFUSED: Final = frozenset(
    "$anchor $dynamicAnchor $dynamicRef $vocabulary unevaluatedItems unevaluatedProperties".split()
)
"""Keywords of JSON Schema 2020-12 that answers are not checked by."""


class SchemaError(ValueError):
    """The schema is invalid, or answers cannot be checked by it. The message is one line."""


class Flaw(NamedTuple):
    """Difference between a value and its schema: place in the value, and reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        """Return the reason in one line, as it is sent to the model."""
        return f"{self.reason} - at `${self.path}`" if self.path else self.reason

    def below(self, step: str) -> Flaw:
        """Return the flaw as seen from the value that holds this one."""
        return Flaw(step + self.path, self.reason)


Check = Callable[[Any], Flaw | None]
"""Check of a value: None if the value is valid."""


def resolved(schema: dict[str, Any], whole: dict[str, Any], at: str) -> dict[str, Any]:
    """Return the schema that a ``$ref`` leads to, or the schema itself. Raises ``SchemaError``."""
    seen = []
    while isinstance(ref := schema.get("$ref"), str):
        if ref in seen:
            raise SchemaError(f"{at}: {ref} refers to itself")
        seen.append(ref)
        schema = _target(ref, whole, at)
    return schema


def _target(ref: str, whole: Any, at: str) -> Any:
    if not ref.startswith("#/"):
        raise SchemaError(f"{at}: $ref {ref!r} leads out of the schema: put what it means under $defs")
    found: Any = whole
    for step in ref[2:].split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise SchemaError(f"{at}: $ref {ref!r} leads to nothing in the schema")
    return found


def identity_of(value: Any) -> Hashable:
    """Return a key that is equal for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if type(value) is str:
        return value
    if isinstance(value, bool):
        return (bool, value)
    if isinstance(value, list):
        return (list, *map(identity_of, value))
    if isinstance(value, dict):
        return (dict, frozenset((name, identity_of(each)) for name, each in value.items()))
    return value  # type: ignore[no-any-return]


# -- kinds of values -------------------------------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Return True for a number; false and true are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """Return True for a number without a fraction."""
    return is_number(value) and (isinstance(value, int) or value.is_integer())


KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str), "integer": is_integer, "number": is_number,
    "boolean": lambda value: isinstance(value, bool), "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list), "object": lambda value: isinstance(value, dict),
}  # fmt: skip
"""Types of JSON Schema, and whether a value is of them."""
PLAIN: Final[dict[str, frozenset[type]]] = {
    "string": frozenset({str}), "integer": frozenset({int}), "number": frozenset({int, float}),
    "boolean": frozenset({bool}), "null": frozenset({type(None)}), "array": frozenset({list}),
    "object": frozenset({dict}),
}  # fmt: skip
"""Classes whose instances, as a decoder of JSON makes them, are surely of a type of JSON Schema. A look at the class
costs a tenth of the tests above: an answer of four fields is read in 5 µs instead of 11."""
NAMES: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
"""Names of types in reasons, where they differ from those of JSON Schema."""


def name_of(value: Any) -> str:
    """Return the name of a value's type in reasons."""
    kind = next(kind for kind in KINDS if kind != "integer" and KINDS[kind](value))
    return "int" if isinstance(value, int) and kind == "number" else NAMES.get(kind, kind)


class Checks:
    """Conversion of schemas into checks."""

    def __init__(self, whole: Any, formats: bool, keywords: Mapping[str, Make]) -> None:
        self._whole = whole
        self._formats = formats
        self._keywords = keywords
        self._under: list[str] = []

    def of(self, schema: Any, at: str) -> Check:
        """Return the check of a schema at this place. Raises ``SchemaError``."""
        if schema is True:
            return _passes
        if schema is False:
            return lambda value: Flaw("", "No value is allowed")
        if not isinstance(schema, dict):
            raise SchemaError(f"{at} must be a schema, an object, not {schema!r:.40}")
        checks: list[Check] = []
        for name in ("type", *(name for name in schema if name != "type")):
            if name not in schema or name in DESCRIBING or (name == "$id" and at == "$"):
                continue
            make = self._keywords.get(name)
            if make is None and not self._formats:
                continue
            if make is None:
                raise SchemaError(f"{at}: keyword {name!r}: {self._hint(name)}")
            check = make(self, schema[name], schema, at)
            if check is not None:
                checks.append(check)
        if not checks:
            return _passes
        return checks[0] if len(checks) == 1 else all_of(checks)

    def each(self, given: Any, at: str) -> list[Check]:
        """Return the checks of a list of schemas."""
        if not isinstance(given, list) or not given:
            raise SchemaError(f"{at} must be a list of schemas")
        return [self.of(each, f"{at}[{place}]") for place, each in enumerate(given)]

    def named(self, given: Any, at: str) -> dict[str, Check]:
        """Return the checks of an object of schemas."""
        if not isinstance(given, dict):
            raise SchemaError(f"{at} must be an object of schemas")
        return {name: self.of(each, f"{at}.{name}") for name, each in given.items()}

    def ref(self, ref: Any, schema: dict[str, Any], at: str) -> Check:
        """Return the check of a ``$ref``; keywords beside it hold as well."""
        if not isinstance(ref, str):
            raise SchemaError(f"{at}.$ref must be a text")
        if ref in self._under:
            raise SchemaError(f"{at}: {ref} contains itself: an answer that may nest without end cannot be asked for")
        self._under.append(ref)
        try:
            return self.of(_target(ref, self._whole, at), at)
        finally:
            self._under.pop()

    def format(self, given: Any, schema: dict[str, Any], at: str) -> Check | None:
        """Return the check of a format. Raises ``SchemaError`` for one that is not checked."""
        check = FORMATS.get(given) if isinstance(given, str) else None
        if check is None:
            if not self._formats:
                return None
            near = difflib.get_close_matches(str(given), FORMATS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(FORMATS)}, or leave it out"
            raise SchemaError(f"{at}: format {given!r:.40}: answers cannot be checked by it: {hint}")
        reason = f"Expected `str` in the format {given}, like {EXAMPLES[given]}"
        return lambda value: Flaw("", reason) if isinstance(value, str) and not check(value) else None

    def _hint(self, name: str) -> str:
        if name in REFUSED:
            return "answers cannot be checked by it: leave it out"
        if name == "$id":
            return "it is supported at the top only: leave it out"
        near = difflib.get_close_matches(name, [*self._keywords, *DESCRIBING], n=1)
        return f"did you mean {near[0]}?" if near else "answers cannot be checked by it: leave it out"


def _passes(value: Any) -> Flaw | None:
    return None


def all_of(checks: list[Check]) -> Check:
    """Return the check that a value passes if it passes each of these."""

    def check(value: Any) -> Flaw | None:
        for each in checks:
            flaw = each(value)
            if flaw is not None:
                return flaw
        return None

    return check


Make = Callable[[Checks, Any, dict[str, Any], str], Check | None]
"""Function that makes the check of a keyword: checks, value of the keyword, its schema, place of the schema."""
