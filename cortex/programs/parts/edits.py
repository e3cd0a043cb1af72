"""Edits to the files of a folder, as a model writes them: the requested format, and its strict parser."""

from __future__ import annotations

import re
from typing import Any

from cortex.values.reply import Malformed

FORM = """Answer with edits alone, one after the other, and nothing before, between or after them:

<write path="a/b.txt">
the whole new text of the file
</write>

<append path="a/b.txt">
lines to add at the end of the file, which is made where there is none
</append>

<replace path="a/b.txt">
<old>
lines that stand in the file exactly once
</old>
<new>
the lines to put in their place
</new>
</replace>

<delete path="a/b.txt"/>

Paths are relative to the folder. Each tag stands on a line of its own. When you think that nothing is left to do, answer <done/>."""  # noqa: E501 - the last paragraph is one line of the prompt

EDITS_MAX = 50
"""Edits in one answer."""
_PATH_LENGTH_MAX = 500

_TAG = re.compile(r'<(write|append|replace) path="([^"\n]+)">|<delete path="([^"\n]+)"/>|(<done/>)')


def edits_of(text: str) -> list[dict[str, Any]]:
    """Return the edits of an answer, in order, as plain data; empty if it says that the work is done.

    Each has ``do`` (``write``, ``append``, ``replace``, ``delete``), ``path``, and ``text``, or ``old`` and ``new``.
    Raises ``Malformed``, with a line for the model, for any other content.
    """
    lines = text.strip().splitlines()
    edits: list[dict[str, Any]] = []
    at = 0
    done = False
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        if not line:
            continue
        found = _TAG.fullmatch(line)
        if found is None:
            raise Malformed(f"this line is no edit and stands in none: {line[:80]!r}")
        do, path, deleted, over = found.groups()
        if over:
            done = True
        elif deleted:
            edits.append({"do": "delete", "path": checked_path(deleted)})
        else:
            inside, at = _until(lines, at, f"</{do}>")
            edits.append({"do": do, "path": checked_path(path), **_content(do, inside)})
    if not edits and not done:
        raise Malformed("there is no edit in it")
    if len(edits) > EDITS_MAX:
        raise Malformed(f"{len(edits)} edits; at most {EDITS_MAX} in one answer")
    return edits


def checked_path(path: str) -> str:
    """Return the path if its text cannot lead out of a folder. Raises ``Malformed``."""
    pieces = path.split("/")
    if path.startswith(("/", "~")) or "\\" in path or ".." in pieces or ":" in pieces[0]:
        raise Malformed(f"path {path[:80]!r} leads out of the folder: give one relative to it")
    if any(piece in ("", ".") or piece != piece.strip() for piece in pieces) or not path.isprintable():
        raise Malformed(f"path {path[:80]!r} is no plain path of a file")
    if len(path.encode()) > _PATH_LENGTH_MAX:
        raise Malformed(f"a path of more than {_PATH_LENGTH_MAX} bytes: {path[:80]!r}")
    return path


def _until(lines: list[str], at: int, close: str) -> tuple[list[str], int]:
    """The lines up to a closing tag, and the index after it."""
    for end in range(at, len(lines)):
        if lines[end].strip() == close:
            return lines[at:end], end + 1
    raise Malformed(f"{close} is missing: the answer was cut, or the tag does not stand on a line of its own")


def _content(do: str, inside: list[str]) -> dict[str, Any]:
    if do != "replace":
        return {"text": _text(inside)}
    lines = [line.strip() for line in inside]
    if not lines or lines[0] != "<old>" or lines[-1] != "</new>":
        raise Malformed("a replace is <old> lines </old> <new> lines </new>, each tag on a line of its own")
    old, at = _until(inside, 1, "</old>")
    if at >= len(inside) or inside[at].strip() != "<new>":
        raise Malformed("<new> must follow </old>")
    new = inside[at + 1 : -1]
    if not any(line.strip() for line in old):
        raise Malformed("a replace of nothing: <old> holds the lines to be replaced")
    return {"old": _text(old), "new": _text(new)}


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
