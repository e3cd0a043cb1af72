"""Bounded view of a working folder: names and sizes, and some contents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from actors.workspace.tree import Tree, digest_of, open_file
from policies.decisions.file_selection import FolderFile, shown

NAMES_MAX: Final = 300
"""Most files listed by name; the others are counted."""


def matching(paths: Collection[str], patterns: Sequence[str]) -> set[str]:
    """Return the paths that match a pattern: as a whole, by file name, or by a folder above."""
    return {
        path for path in paths for pattern in patterns
        if fnmatch(path, pattern) or fnmatch(path.rpartition("/")[2], pattern) or _inside(path, pattern)
    }  # fmt: skip


def _inside(path: str, pattern: str) -> bool:
    return path.startswith(pattern.rstrip("/") + "/")


def view_of(
    folder: Path, tree: Tree, *, show: Sequence[str], changed: Collection[str], texts: Sequence[str],
    bytes_max: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the view: ``digest``; ``files``: path and description; ``more``: number of further files; ``texts``: path,
    text, whether the text is complete."""
    files = [FolderFile(path, entry.size) for path, entry in tree.items() if entry.kind == "file"]
    others = [[path, f"link to {entry.content}"] for path, entry in tree.items() if entry.kind == "link"]
    wanted = matching([file.path for file in files], show)
    chosen = shown(files, bytes_max, bytes_max // 2, wanted=wanted, changed=changed, texts=texts)
    contents = []
    for path, take in chosen[:NAMES_MAX]:
        text = _text(folder / path, take)
        if text is not None:
            contents.append([path, text, take == tree[path].size])
    named = [[file.path, f"{file.size:,} bytes"] for file in files[:NAMES_MAX]]
    return {
        "digest": digest_of(tree), "files": named + others[: NAMES_MAX - len(named)],
        "more": max(0, len(files) + len(others) - NAMES_MAX), "texts": contents,
    }  # fmt: skip


def _text(place: Path, take: int) -> str | None:
    """Return the first ``take`` bytes as text, to the end of a line if truncated; None for a binary file."""
    with open_file(place) as content:
        some = content.read(take)
        whole = not content.read(1)
    if b"\0" in some:
        return None
    try:
        text = some.decode("utf-8", "strict" if whole else "ignore")
    except UnicodeDecodeError:
        return None
    return text if whole else text[: text.rfind("\n") + 1] or text
