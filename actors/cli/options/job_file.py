"""Job file: the options and arguments of a command, as TOML.

    input = "tickets.jsonl"
    output = "labels.jsonl"
    model = "claude-haiku-4-5"
    max-cost = 20
    deadline = "+6h"

    [sim]
    latency_ms = 200

A job file is checked against the declared options. Precedence: command line, ``CORTEX_`` variables, job file, defaults.
Paths in a job file are relative to the file.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import msgspec

from actors.common.errors import CommandError
from cortex.values.bounds.json_depth import deep_words

PATHS = ("input", "output", "inputs", "state", "api_key_file")
"""Keys whose values are paths."""
TEXTS = ("prompt", "system")
"""Keys whose values are texts, or ``@`` and the path of a file that holds the text."""
SOURCES = (".py", ".toml")
"""Suffixes of program files."""
_TYPE_TEXTS = {
    str: "a text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a table",
}  # fmt: skip


class JobFileKey(msgspec.Struct, frozen=True):
    """A key that a job file may hold."""

    name: str
    """Name as written in the file: the option without its leading dashes."""
    kind: type
    """``str``, ``int``, ``bool``, or ``list`` (of texts)."""
    default_text: str = ""
    pairs: bool = False
    """True for a list of NAME=VALUE, which may be a table."""
    numbers: bool = False
    """True if a text value may be written as a number."""
    option: bool = True
    """True for an option that several commands share; False for an argument of one command."""

    @property
    def form(self) -> str:
        """Required form of the value, for error texts."""
        if self.kind is list:
            return "a list of texts" + (", or a table" if self.pairs else "")
        return "a text or a number" if self.numbers and self.kind is str else _TYPE_TEXTS[self.kind]


class JobFile(msgspec.Struct, frozen=True):
    """Content of a job file, by the field names of ``Options``."""

    path: str
    values: dict[str, Any]
    lines: dict[str, int]
    """Line number of each key; 0 if unknown."""

    def origin(self, name: str) -> str:
        """Return file and line of a value, for messages."""
        line = self.lines.get(name, 0)
        return f"{self.path} line {line}" if line else self.path


def read(path: str, keys: Mapping[str, JobFileKey]) -> JobFile:
    """Read and check a job file. ``keys``: the keys it may hold, by field name. Raises ``CommandError``."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8 text: save it as UTF-8") from None
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:  # of `tomllib`, whose depth no rule of TOML bounds
        raise CommandError(f"{path} holds a value that is {deep_words()}: flatten it") from None
    by_name = {key.name: name for name, key in keys.items()}
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for written, value in found.items():
        line = _line_of(text, written)
        where = f"{path} line {line}" if line else path
        name = by_name.get(written.replace("_", "-"))
        if name is None:
            raise CommandError(f"{where}: unknown key {written!r}{_near(written, list(by_name))}")
        if name in values:
            raise CommandError(f"{where}: {written} is given twice")
        values[name] = _placed(name, _value(keys[name], written, value, where), Path(path).parent)
        lines[name] = line
    return JobFile(path, values, lines)


def _near(written: str, names: list[str]) -> str:
    near = difflib.get_close_matches(written.replace("_", "-").lower(), names, n=1)
    return f": did you mean {near[0]}?" if near else ": see docs/reference.md, or `cortex batch --help`"


def _line_of(text: str, key: str) -> int:
    """Return the line of a top-level key; 0 if not found.

    ``tomllib`` gives no positions, so the first line that begins with the key is taken.
    """
    name = re.escape(key)
    pattern = re.compile(rf"\s*(\[\s*)?([\"']?){name}\2\s*(\]|=|\.)")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 0)


def _value(key: JobFileKey, written: str, value: Any, where: str) -> Any:
    """Convert a value to the form that the command line gives. Raises ``CommandError``."""
    kind = key.kind
    if kind is list and key.pairs and isinstance(value, dict) and all(map(_is_json_value, value.values())):
        return [f"{name}={_text(each)}" for name, each in value.items()]
    if kind is list and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    if kind is list and isinstance(value, str):
        return [value]
    if kind is str and (isinstance(value, str | datetime | date) or (key.numbers and type(value) in (int, float))):
        return _text(value)
    if kind in (bool, int) and type(value) is kind:
        return value
    raise CommandError(f"{where}: {written} is {_shown(value)}: give {key.form}")


def _is_json_value(value: Any) -> bool:
    return isinstance(value, str | bool | int | float | datetime | date)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, list | dict | datetime | date | time):
        return _TYPE_TEXTS.get(type(value), "a time")
    return repr(value).lower() if isinstance(value, bool) else repr(value)


# -- paths ---------------------------------------------------------------------------------------------------------


def _placed(name: str, value: Any, folder: Path) -> Any:
    """Return the value with its paths made relative to the file instead of the working directory."""
    if name in PATHS:
        return [_path(each, folder) for each in value] if isinstance(value, list) else _path(value, folder)
    if name == "base_url":
        return [f"@{_path(each[1:], folder)}" if each.startswith("@") else each for each in value]
    if name == "program":
        file, colon, rest = value.partition(":")
        return _path(file, folder) + colon + rest if file.partition("@")[0].endswith(SOURCES) else value
    if name in TEXTS and value.startswith("@") and not value.startswith("@@"):
        return "@" + _path(value[1:], folder)
    if name == "schema":
        file, colon, rest = value.partition(":")
        return value if colon and not file.endswith(SOURCES) else _path(file, folder) + colon + rest
    if name == "param":
        return [_parameter(each, folder) for each in value]
    return value


def _path(path: str, folder: Path) -> str:
    if path in ("", "-") or "://" in path or path.startswith("~"):
        return path
    return str(folder / path)


def _parameter(pair: str, folder: Path) -> str:
    name, equals, value = pair.partition("=")
    return f"{name}{equals}@{_path(value[1:], folder)}" if value.startswith("@") else pair
