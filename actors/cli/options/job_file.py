"""A job file: the options of the command line, and what a command is about, as TOML.

    input = "tickets.jsonl"
    output = "labels.jsonl"
    model = "claude-haiku-4-5"
    max-cost = 20
    deadline = "+6h"

    [sim]
    latency_ms = 200

It is checked against the options themselves. The command line wins over ``CORTEX_`` variables, these win over the file,
and the file over the defaults. Paths in it are relative to it.
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

PATHS = ("input", "output", "inputs", "state", "api_key_file")
"""Keys whose values are paths."""
TEXTS = ("prompt", "system")
"""Keys whose values are texts; after ``@``, the path of a file that holds one."""
SOURCES = (".py", ".toml")
"""What a program's file ends in."""
_SAID = {
    str: "a text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a table",
}  # fmt: skip


class Key(msgspec.Struct, frozen=True):
    """One key that a job file may hold."""

    name: str
    """As it is written: an option's, without its dashes in front."""
    kind: type
    """``str``, ``int``, ``bool``, or ``list`` of texts."""
    told: str = ""
    pairs: bool = False
    """Whether it is a list of NAME=VALUE, and may be a table."""
    numbers: bool = False
    """Whether a text may stand as a number, too."""
    option: bool = True
    """Whether it is an option that several commands share; else what one command is about."""

    @property
    def form(self) -> str:
        """What its value must be, for people."""
        if self.kind is list:
            return "a list of texts" + (", or a table" if self.pairs else "")
        return "a text or a number" if self.numbers and self.kind is str else _SAID[self.kind]


class JobFile(msgspec.Struct, frozen=True):
    """What a job file says, by the names that commands have for it."""

    path: str
    values: dict[str, Any]
    lines: dict[str, int]
    """Where each of them stands; 0 where that cannot be told."""

    def origin(self, name: str) -> str:
        """Where a value comes from, for people."""
        line = self.lines.get(name, 0)
        return f"{self.path} line {line}" if line else self.path


def read(path: str, keys: Mapping[str, Key]) -> JobFile:
    """A job file. ``keys``: what it may hold, by the names that commands have for it. Raises ``CommandError``."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is no text in UTF-8") from None
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{path} is no TOML: {error}") from None
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
    """Where a key of the top stands. The library does not tell; a line that begins with it is it, or looks like it."""
    name = re.escape(key)
    pattern = re.compile(rf"\s*(\[\s*)?([\"']?){name}\2\s*(\]|=|\.)")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 0)


def _value(key: Key, written: str, value: Any, where: str) -> Any:
    """The value as the command line would have it. Raises ``CommandError``."""
    kind = key.kind
    if kind is list and key.pairs and isinstance(value, dict) and all(map(_is_plain, value.values())):
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


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool | int | float | datetime | date)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, list | dict | datetime | date | time):
        return _SAID.get(type(value), "a time")
    return repr(value).lower() if isinstance(value, bool) else repr(value)


# -- paths ---------------------------------------------------------------------------------------------------------


def _placed(name: str, value: Any, folder: Path) -> Any:
    """The same with its paths relative to the file, not to wherever the command is given."""
    if name in PATHS:
        return [_path(each, folder) for each in value] if isinstance(value, list) else _path(value, folder)
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
