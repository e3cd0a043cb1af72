"""Python types that check answers, by the place that a journal names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from actors.programs.python_types import PythonType
from cortex.programs.parts.typed_answers import register, registered

_TYPED: Final = b'"answer_type":{'
"""Bytes of the parameters of a table, or of its shards, with a Python type (``cortex.programs.table.Table``)."""
_places: dict[int, str] = {}
"""Places of types from another process, by identity."""


def holds_types(params_json: bytes) -> bool:
    """Return True if the parameters of a built-in program name a Python type."""
    return _TYPED in params_json


def place_of(type_: Any) -> str:
    """Return the place of a type: ``module:Type``, or ``file.py:Type`` for a script and for a file that was loaded as
    one. Raises ``ValueError`` for a type that is no class: a later run finds it by its name."""
    if id(type_) in _places:
        return _places[id(type_)]
    if not isinstance(type_, type):
        raise ValueError(f"{type_} is no class, which a later run would find by its name: give a class")
    module, name = type_.__module__, type_.__qualname__
    source = getattr(sys.modules.get(module), "__file__", None) or ""
    if Path(source).is_file() and (module == "__main__" or module.startswith("cortex_program_")):
        return f"{Path(source).resolve()}:{name}"
    return f"{module}:{name}"


def adopt(place: str, type_: Any) -> PythonType:
    """Register a type under a place, in place of an earlier one. Raises ``SchemaError``."""
    made = PythonType(type_)
    register(place, made)
    _places[id(type_)] = place
    return made


def load(places: Iterable[str], at: Callable[[str, str], Any]) -> None:
    """Import the types of these places that are not registered yet.

    ``at`` imports an object by its place and its name in errors. Raises ``ValueError`` with one line.
    """
    for place in places:
        if registered(place) is None:
            adopt(place, at(place, f"the type {place}"))


def type_at(place: str) -> Any:
    """Return the registered type of a place."""
    return _at(place).type_


def library_of(place: str) -> str:
    """Return the name and the version of the library that checks answers by the type of a place."""
    return _at(place).library


def _at(place: str) -> PythonType:
    found = registered(place)
    assert isinstance(found, PythonType), f"{place} is not registered"
    return found
