"""Schemas in the form of a provider's structured outputs, and which of them that form expresses without loss.

https://platform.claude.com/docs/en/build-with-claude/structured-outputs: each object is closed, so a map of any keys
would always be empty; schemas must not contain themselves; at most 24 optional fields and 16 fields of several types.
A schema that is too large is refused by the provider with an error ("The compiled grammar is too large",
https://github.com/TanStack/ai/issues/682), hence the bound on all fields.
"""

from __future__ import annotations

from typing import Any, Final

from cortex.values.json_schema.checks import SchemaError, resolved
from cortex.values.json_schema.formats import FORMATS

OPTIONAL_MAX: Final = 24
"""Fields that may be missing, at most."""
UNIONS_MAX: Final = 16
"""Fields of several types, at most."""
FIELDS_MAX: Final = 100
"""Fields of all objects together, at most."""


def structured_form(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return an object's schema in the form of structured outputs; None if they would accept other answers than the
    schema does, or refuse it."""
    counts = _Counts(schema)
    try:
        top = resolved(schema, schema, "$")
        if top.get("type") != "object" or not counts.expresses(schema, ()):
            return None
    except SchemaError:
        return None
    return closed(schema) if counts.fit() else None


class _Counts:
    """Counts of a schema's fields."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self._whole = whole
        self._fields = self._optional = self._unions = 0

    def fit(self) -> bool:
        """Return whether the counts are within the bounds."""
        return self._fields <= FIELDS_MAX and self._optional <= OPTIONAL_MAX and self._unions <= UNIONS_MAX

    def expresses(self, schema: Any, under: tuple[str, ...]) -> bool:
        """Return whether structured outputs express this schema. ``under``: references that lead to it."""
        if not isinstance(schema, dict) or not self._fields <= FIELDS_MAX:
            return False
        if isinstance(ref := schema.get("$ref"), str):
            return ref not in under and self.expresses(resolved(schema, self._whole, "$"), (*under, ref))
        kind = schema.get("type")
        several = next((schema[name] for name in ("anyOf", "oneOf", "allOf") if name in schema), None)
        if several is None and isinstance(kind, list):
            several = [{**schema, "type": each} for each in kind]
        if several is not None:
            self._unions += len(several) > 1
            return all(self.expresses(each, under) for each in several)
        if "enum" in schema or "const" in schema:
            return True
        if kind == "object":
            return self._object(schema, under)
        if kind == "array":
            items = schema.get("prefixItems", [schema.get("items")])
            return all(self.expresses(each, under) for each in items)
        return kind in ("string", "integer", "number", "boolean", "null")

    def _object(self, schema: dict[str, Any], under: tuple[str, ...]) -> bool:
        fields = schema.get("properties") or {}
        self._fields += len(fields)
        self._optional += len(fields) - len(schema.get("required", ()))
        if not fields or schema.get("additionalProperties", False) is not False:
            return False
        return all(self.expresses(each, under) for each in fields.values())


_PASSED = ("description", "title")


def closed(schema: Any) -> dict[str, Any]:
    """Return the schema in keywords that the provider supports; other keywords become part of the description."""
    if not isinstance(schema, dict):
        return {}
    schema = _listed(schema)
    rest = dict(schema)
    form: dict[str, Any] = {}
    if isinstance(defs := rest.pop("$defs", None) or rest.pop("definitions", None), dict):
        form["$defs"] = {name: closed(each) for name, each in defs.items()}
    if isinstance(ref := rest.pop("$ref", None), str):
        return form | {"$ref": ref.replace("#/definitions/", "#/$defs/")}
    kind = rest.pop("type", None)
    several = next((name for name in ("anyOf", "oneOf", "allOf") if name in rest), "")
    if several:
        form["allOf" if several == "allOf" else "anyOf"] = [closed(each) for each in rest.pop(several)]
    elif isinstance(kind, list):
        form["anyOf"] = [closed({**rest, "type": each}) for each in kind]
        rest = {}
    elif "enum" in rest or "const" in rest:
        form |= {name: rest.pop(name) for name in ("enum", "const") if name in rest}
    elif kind is not None:
        form["type"] = kind
    form |= {name: rest.pop(name) for name in _PASSED if name in rest}
    if kind == "object":
        form["properties"] = {name: closed(each) for name, each in (rest.pop("properties", None) or {}).items()}
        form["additionalProperties"] = False
        rest.pop("additionalProperties", None)
        form |= {"required": rest.pop("required")} if "required" in rest else {}
    elif kind == "array":
        form |= {"items": closed(rest.pop("items"))} if "items" in rest else {}
        form |= {"minItems": rest.pop("minItems")} if rest.get("minItems") in (0, 1) else {}
    elif kind == "string" and rest.get("format") in FORMATS:
        form["format"] = rest.pop("format")
    for name in ("$schema", "$id", "$comment", "discriminator"):
        rest.pop(name, None)
    if rest:
        text = "{" + ", ".join(f"{name}: {value}" for name, value in rest.items()) + "}"
        form["description"] = f"{form['description']}\n\n{text}" if form.get("description") else text
    return form


def _listed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the items of a tuple as alternatives: the provider knows one schema for all items."""
    each = schema.get("prefixItems")
    if not isinstance(each, list) or schema.get("items", True) not in (True, False):
        return schema
    different = [one for place, one in enumerate(each) if one not in each[:place]]
    return schema | {"items": different[0] if len(different) == 1 else {"anyOf": different}}
