"""Schemas of answers, from files or from Python types."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from actors.programs import answer_types, loader
from actors.programs.python_types import PythonType
from cortex.programs.parts.typed_answers import ResultShape, TypeOfAnswers
from cortex.programs.table import FORMS
from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.json_schema.structured import structured_form
from cortex.values.schema import AnswerShape, SchemaError

_TOO_DEEP: Final = f"is {deep_words()}: flatten it"


class AnswerSchema(msgspec.Struct, frozen=True):
    """Schema of answers, as the program of a table holds it."""

    schema: str = ""
    """JSON schema as JSON; empty: none."""
    answer_type: TypeOfAnswers | msgspec.UnsetType = msgspec.UNSET
    """Python type that checks the answers, if the schema is that of a type."""


def answer_schema(given: Any) -> AnswerSchema:
    """Return a schema of answers: from a file, from a Python type (``module:Type``, ``file.py:Type``, or the type
    itself), or from a dict. A type is registered, so that a program of this process can use it.

    Raises ``SchemaError``, also for a schema that answers cannot be checked with.
    """
    if isinstance(given, str):
        module, colon, name = given.rpartition(":")
        if colon and not Path(given).exists():
            return _of_type(*_found(module, name))
        try:
            content = Path(given).expanduser().read_bytes()
        except OSError as error:
            raise SchemaError(f"cannot be read: {error.strerror or error}") from None
        if too_deep(content):
            raise SchemaError(_TOO_DEEP)
        try:
            given = msgspec.json.decode(content)
        except ValueError as error:
            raise SchemaError(f"is not JSON: {error}") from None
    elif not isinstance(given, dict):
        try:
            return _of_type(given, answer_types.place_of(given))
        except ValueError as error:
            raise SchemaError(str(error)) from None
    try:
        text = _text(given)
    except RecursionError:
        raise SchemaError(_TOO_DEEP) from None
    except Exception:
        AnswerShape(given)  # names what is wrong with it, where it can
        raise
    if too_deep(text):
        raise SchemaError(_TOO_DEEP)
    AnswerShape(given)
    return AnswerSchema(text)


def schema_form(given: str, usual: str, schema: str) -> str:
    """Return how a schema is sent (``cortex.programs.table.FORMS``): as ``given``; if empty, in the ``usual`` form of
    the provider, but in words where structured outputs would allow other answers than the schema does."""
    if given or usual != FORMS[0] or not schema or structured_form(msgspec.json.decode(schema)) is not None:
        return given or usual
    return FORMS[-1]


def _found(module: str, name: str) -> tuple[Any, str]:
    """Return the type that a text names, and its place."""
    if module.endswith(".py"):
        module = os.path.realpath(os.path.expanduser(module))
    place = f"{module}:{name}"
    try:
        return loader.at(place, "it"), place
    except loader.NoSuchProgram as error:
        raise SchemaError(str(error).removeprefix("it ")) from None


def _of_type(type_: Any, place: str) -> AnswerSchema:
    made = PythonType(type_)
    AnswerShape(made.asked, formats=False)
    ResultShape(made.results)
    answer_types.adopt(place, type_)
    asked, results = _text(made.asked), _text(made.results)
    return AnswerSchema(asked, TypeOfAnswers(place, "" if results == asked else results))


def _text(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()
