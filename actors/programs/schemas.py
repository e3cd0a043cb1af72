"""Schemas of answers, from files or from Python types."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import msgspec

from cortex.values.schema import AnswerShape, SchemaError


def schema_text(given: Any) -> str:
    """Return a JSON schema as JSON text: from a file, from a Python type (``module:Type``, ``file.py:Type``, or the
    type itself), or from a dict. Raises ``SchemaError``, also for a schema that answers cannot be checked with."""
    schema = _schema(given)
    AnswerShape(schema)
    return msgspec.json.encode(schema).decode()


def _schema(given: Any) -> Any:
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        return _of_type(given)
    module, colon, name = given.rpartition(":")
    if colon and not Path(given).exists():
        return _of_type(_found(module, name))
    try:
        return msgspec.json.decode(Path(given).expanduser().read_bytes())
    except OSError as error:
        raise SchemaError(f"cannot be read: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise SchemaError(f"is not JSON: {error}") from None


def _found(module: str, name: str) -> Any:
    try:
        if module.endswith(".py"):
            names = runpy.run_path(str(Path(module).expanduser()))
        else:
            if str(Path.cwd()) not in sys.path:
                sys.path.append(str(Path.cwd()))
            names = vars(importlib.import_module(module))
    except (Exception, SystemExit) as error:  # an author's module may raise anything while it is imported
        text = " ".join(str(error).split())
        raise SchemaError(f"cannot be imported: {type(error).__name__}: {text}") from None
    if name not in names:
        raise SchemaError(f"{module} has no {name}")
    return names[name]


def _of_type(type_: Any) -> Any:
    try:
        if hasattr(type_, "model_json_schema"):
            return type_.model_json_schema()
        return msgspec.json.schema(type_)
    except Exception as error:  # msgspec and pydantic raise different errors
        name = getattr(type_, "__name__", type_)
        raise SchemaError(f"{name} has no JSON schema: {' '.join(str(error).split())}") from None
