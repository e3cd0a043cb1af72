"""Reader of notes from folders, text files and JSON Lines, as (name, text) pairs."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from actors.cli.options.errors import print_error
from actors.common.errors import CommandError

SUFFIXES: Final = frozenset({".md", ".markdown", ".txt", ".text", ".rst", ".org", ".adoc"})
"""Suffixes of notes in a folder. A file named by the user is read with any suffix."""

_LINES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_TEXTS: Final = ("text", "content", "body")
_NAMES: Final = ("name", "id", "title", "path")


def files_of(parameter: str, paths: list[str]) -> dict[str, Any]:
    """Return the program parameter that holds files, read from ``paths``: notes, or plain texts.

    A single file gives its text; several files or a folder give a dict of texts by name. Raises ``CommandError`` with
    the name of a file that cannot be read.
    """
    if parameter == "notes":
        return {parameter: notes_of(paths)}
    named: dict[str, str] = {}
    for path in paths:
        if path == "-":
            found = [("standard input", _utf8("standard input", standard_input()))]
        elif Path(path).is_dir():
            found = list(_folder(Path(path)))
        else:
            found = [(path, _text(Path(path)))]
        named.update(found)
    if not any(text.strip() for text in named.values()):
        raise CommandError(f"{', '.join(paths)}: no text found")
    alone = len(paths) == 1 and not Path(paths[0]).is_dir()
    return {parameter: next(iter(named.values())) if alone else named}


def notes_of(paths: list[str]) -> list[dict[str, str]]:
    """Return all notes in the given order, those of a folder sorted by name. Empty files are skipped.

    Raises ``CommandError`` with file and line.
    """
    notes: list[dict[str, str]] = []
    for path in paths:
        notes += [{"name": name, "text": text} for name, text in _read(path) if text.strip()]
    if not notes:
        raise CommandError(f"{', '.join(paths)}: no note with any text found")
    return notes


def _read(path: str) -> Iterator[tuple[str, str]]:
    if path == "-":
        yield from _lines("standard input", standard_input())
        return
    place = Path(path)
    if place.is_dir():
        yield from _folder(place)
    elif path.lower().endswith(_LINES):
        yield from _lines(path, _bytes(place))
    else:
        yield place.name, _text(place)


def standard_input() -> bytes:
    """Return all of standard input. Raises ``CommandError`` where it is closed."""
    if sys.stdin is None:
        raise CommandError("standard input is closed: name a file, or pass the text through a pipe")
    return sys.stdin.buffer.read()


def _folder(folder: Path) -> Iterator[tuple[str, str]]:
    seen = sorted(place for place in folder.rglob("*") if place.is_file())
    inside = [place for place in seen if not _is_hidden(place.relative_to(folder))]
    texts = [place for place in inside if place.suffix.lower() in SUFFIXES]
    if len(texts) < len(inside):
        known = " ".join(sorted(SUFFIXES))
        print_error(f"{folder}: {len(inside) - len(texts)} of {len(inside)} files skipped; notes end in {known}")
    for place in texts:
        yield str(place.relative_to(folder)), _text(place)


def _is_hidden(place: Path) -> bool:
    return any(part.startswith(".") for part in place.parts)


def _bytes(place: Path) -> bytes:
    try:
        content = place.read_bytes()
        return gzip.decompress(content) if place.suffix.lower() == ".gz" else content
    except FileNotFoundError:
        raise CommandError(f"{place}: no such file or folder (looked in {Path.cwd()})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise CommandError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _text(place: Path) -> str:
    return _utf8(str(place), _bytes(place))


def _utf8(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(f"{name}: byte {error.start + 1} is not UTF-8: save it as UTF-8, or leave it out") from None


def _lines(name: str, content: bytes) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line)
        except (ValueError, RecursionError) as error:
            raise CommandError(f"{name} line {number} is not JSON ({error}): write one note a line") from None
        yield _note(found, name, number)


def _note(found: Any, name: str, number: int) -> tuple[str, str]:
    if isinstance(found, str):
        return f"line {number}", found
    if isinstance(found, dict):
        text = next((found[key] for key in _TEXTS if isinstance(found.get(key), str)), None)
        if text is not None:
            named = next((str(found[key]) for key in _NAMES if found.get(key)), f"line {number}")
            return named, text
    raise CommandError(f'{name} line {number}: a note is {{"name": "...", "text": "..."}}, or a string')
