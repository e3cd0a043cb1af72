"""Edits of a working folder: all or none, and never outside of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from actors.workspace.snapshots import write
from actors.workspace.tree import FILE_BYTES_MAX, FILES_MAX, IGNORED, FolderRefused, Tree, open_file
from cortex.programs.parts.edits import checked_path
from cortex.values.reply import Malformed

WRITTEN_BYTES_MAX: Final = 4 << 20
"""Most bytes of one file written in a round."""


class EditRefused(ValueError):
    """An edit is refused, with all edits of its round. The message is a line for its author."""


def planned(folder: Path, tree: Tree, edits: Sequence[dict[str, Any]]) -> dict[str, str | None]:
    """Return the new text of each file that the edits change, None for a deleted one. Nothing is written.

    Raises ``EditRefused``.
    """
    texts: dict[str, str | None] = {}
    for number, edit in enumerate(edits, start=1):
        path = edit["path"]
        try:
            _within(folder, path)
            texts[path] = _edited(edit, _text(folder, path, texts))
        except (Malformed, EditRefused) as error:
            raise EditRefused(f"edit {number} ({edit['do']} {path}): {error}") from None
    if len(tree.keys() | texts.keys()) > FILES_MAX:
        raise EditRefused(f"more than {FILES_MAX:,} files in the folder")
    gone = {path for path, text in texts.items() if text is None}
    files = {path for path, entry in tree.items() if entry.kind == "file"}
    if files and files <= gone and not texts.keys() - gone:
        raise EditRefused("that deletes every file of the folder")
    return texts


def make(folder: Path, texts: dict[str, str | None]) -> None:
    """Write the planned texts, each file completely or not at all. Raises ``FolderRefused`` for errors of the disk."""
    try:
        for path, text in texts.items():
            place = folder / path
            if text is None:
                place.unlink(missing_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o644
            write(place, text.encode(), mode)
    except OSError as error:
        raise FolderRefused(f"{folder} cannot be written: {error}") from None


def _within(folder: Path, path: str) -> None:
    """Raise ``EditRefused`` for a path that leaves the folder, by its text or by a link, or that is ignored."""
    checked_path(path)
    place = folder
    for piece in path.split("/"):
        if piece in IGNORED:
            raise EditRefused(f"{piece} is no part of the work")
        if place != folder and place.exists() and not place.is_dir():
            raise EditRefused(f"{place.relative_to(folder)} is a file, not a folder")
        place = place / piece
        if place.is_symlink():
            raise EditRefused(f"{place.relative_to(folder)} is a link: links are not followed")
    if place.exists() and not place.is_file():
        raise EditRefused("it is no file")


def _text(folder: Path, path: str, texts: dict[str, str | None]) -> str | None:
    """Return the content of a file after the edits so far; None if there is no file."""
    if path in texts:
        return texts[path]
    place = folder / path
    if not os.path.lexists(place):
        return None
    if place.stat().st_size > FILE_BYTES_MAX:
        raise EditRefused("the file is too large to edit")
    try:
        with open_file(place) as content:
            return str(content.read().decode())
    except UnicodeDecodeError:
        raise EditRefused("it is no UTF-8 text") from None


def _edited(edit: dict[str, Any], text: str | None) -> str | None:
    do = edit["do"]
    if do == "delete":
        if text is None:
            raise EditRefused("there is no such file")
        return None
    if do == "write":
        new = edit["text"]
    elif do == "append":
        before = text or ""
        new = before + ("\n" if before and not before.endswith("\n") else "") + edit["text"]
    else:
        new = _replaced(edit, text)
    if len(new.encode()) > WRITTEN_BYTES_MAX:
        raise EditRefused(f"the file would be larger than {WRITTEN_BYTES_MAX >> 20} MB")
    return str(new)


def _replaced(edit: dict[str, Any], text: str | None) -> str:
    if text is None:
        raise EditRefused("there is no such file")
    whole = text if text.endswith("\n") else text + "\n"
    lined, old = "\n" + whole, "\n" + edit["old"]
    count = 0
    at = lined.find(old)
    while at >= 0 and count < 2:
        count, at = count + 1, lined.find(old, at + 1)
    if count != 1:
        raise EditRefused(f"the old lines stand there {'more than once' if count else 'nowhere'}")
    new = lined.replace(old, "\n" + edit["new"], 1)[1:]
    return new if text.endswith("\n") else new.removesuffix("\n")
