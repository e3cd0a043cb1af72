"""Python types of answers: their schemas, and their own check of an answer.

A type is a pydantic model, a msgspec struct, a dataclass, an attrs class or a ``TypedDict``. The library that the type
is written for checks each answer, validators included: pydantic where the type or a part of it belongs to pydantic,
msgspec otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from cortex.values.json_schema.checks import SchemaError, resolved
from cortex.values.reply import Malformed
from cortex.values.schema import reasons

_PYDANTIC: Final = frozenset({"pydantic", "pydantic_core", "annotated_types"})
"""Packages whose objects in a type say that pydantic checks it."""
_EITHER: Final = "pydantic, or msgspec by a hook"
"""Library of a class that pydantic knows by a method: a struct of msgspec may hold it as well."""


class PythonType:
    """Type of answers, with the schemas that its library makes of it.

    ``asked``: JSON schema of answers, for the model. ``results``: JSON schema of a checked answer as plain data; it
    differs where a type takes a value in one form and gives it in another, as pydantic does with ``Decimal``.
    ``library``: name and version of the library that checks.

    Raises ``SchemaError`` for a type that has no schema.
    """

    __slots__ = ("_plain", "_read", "asked", "library", "results", "type_")

    def __init__(self, type_: Any) -> None:
        self.type_ = type_
        self.asked: dict[str, Any]
        self.library: str
        self.results: dict[str, Any]
        self._read: Callable[[bytes], Any]
        self._plain: Callable[[Any], Any]
        libraries = _libraries(type_, set())
        name = getattr(type_, "__name__", type_)
        if {"msgspec", "pydantic"} <= libraries:
            raise SchemaError(
                f"{name} mixes msgspec with pydantic or annotated_types, and neither runs the checks of the other: "
                "use one of them"
            )
        try:
            if "pydantic" in libraries or (_EITHER in libraries and "msgspec" not in libraries):
                self._of_pydantic(type_)
            else:
                self._of_msgspec(type_)
        except Exception as error:  # msgspec and pydantic raise different errors
            text = _line(error).partition(" For further information visit")[0]
            raise SchemaError(f"{name} has no JSON schema: {text}") from None

    def _of_pydantic(self, type_: Any) -> None:
        pydantic = importlib.import_module("pydantic")
        self.library = f"pydantic {pydantic.VERSION}"
        adapter = pydantic.TypeAdapter(type_)
        self.asked = adapter.json_schema()
        self.results = adapter.json_schema(mode="serialization")
        self._read = adapter.validate_json
        sets = b'"uniqueItems":true' in msgspec.json.encode(self.results)

        def plain(value: Any) -> Any:
            found = adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
            return _ordered(found, self.results, self.results) if sets else found

        self._plain = plain

    def _of_msgspec(self, type_: Any) -> None:
        """A class with fields of other classes may hold the hooks of msgspec as static methods."""
        self.library = f"msgspec {msgspec.__version__}"
        hooks = {name: getattr(type_, name, None) for name in ("dec_hook", "enc_hook", "schema_hook")}
        self.asked = self.results = msgspec.json.schema(type_, schema_hook=hooks["schema_hook"])
        self._read = msgspec.json.Decoder(type_, dec_hook=hooks["dec_hook"]).decode
        # sets in one order in all processes, since a replay must come to the same result
        self._plain = lambda value: msgspec.to_builtins(value, enc_hook=hooks["enc_hook"], order="deterministic")

    def read(self, text: str) -> Any:
        """Return a JSON text as plain data, in the form that the type gives its values.

        Raises ``Malformed`` with the reasons for a text that does not fit. Other exceptions are those of the type's own
        code.
        """
        try:
            value = self._read(text.encode())
        except ValueError as error:  # errors of msgspec and pydantic are ValueErrors
            raise Malformed(reasons(error)) from None
        return self._plain(value)


def _ordered(value: Any, schema: Any, whole: dict[str, Any]) -> Any:
    """Return plain data with the items of sets in one order in all processes: a replay must come to the same result."""
    if not isinstance(schema, dict) or not isinstance(value, (list, dict)):
        return value
    schema = resolved(schema, whole, "$")
    for each in schema.get("anyOf", ()):
        value = _ordered(value, each, whole)
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        return {name: _ordered(each, known.get(name, rest), whole) for name, each in value.items()}
    items = [_ordered(each, schema.get("items"), whole) for each in value]
    return sorted(items, key=msgspec.json.encode) if schema.get("uniqueItems") else items


def _libraries(type_: Any, seen: set[int]) -> set[str]:
    """Return which of ``msgspec`` and ``pydantic`` a type and its parts are written for."""
    if id(type_) in seen:
        return set()
    seen.add(id(type_))
    found = {library for each in (type_, *_marks(type_)) if (library := _library(each))}
    return found.union(*(_libraries(part, seen) for part in _parts(type_)))


def _library(value: Any) -> str:
    """Return the library that a type, or an object of an annotation, is written for; empty if it says nothing."""
    if isinstance(value, msgspec.Meta) or (isinstance(value, type) and issubclass(value, msgspec.Struct)):
        return "msgspec"
    own = value if isinstance(value, type) else type(value)
    made = hasattr(own, "__pydantic_core_schema__") or hasattr(own, "__pydantic_validator__")
    if made or own.__module__.partition(".")[0] in _PYDANTIC:
        return "pydantic"
    return _EITHER if hasattr(own, "__get_pydantic_core_schema__") else ""


def _marks(type_: Any) -> Iterator[Any]:
    """Yield the objects that annotate a type, and the defaults of a dataclass's fields."""
    if get_origin(type_) is Annotated:
        yield from type_.__metadata__
    if dataclasses.is_dataclass(type_):
        yield from (field.default for field in dataclasses.fields(type_) if field.default is not dataclasses.MISSING)


def _parts(type_: Any) -> Iterator[Any]:
    """Yield the types that a type is made of."""
    yield from (each for each in get_args(type_) if not isinstance(each, (str, bytes, int, bool)))
    if isinstance(type_, type) and hasattr(type_, "__annotations__"):
        with contextlib.suppress(Exception):  # a name that is not known: the library itself says so
            yield from get_type_hints(type_, include_extras=True).values()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
