"""Telling a path on this machine from the name of an object elsewhere, and one file from another."""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


def is_remote(path: str) -> bool:
    """Whether this names something that ``fsspec`` reads and writes: ``s3://…``, ``gs://…``, ``memory://…``."""
    return _URL.match(path) is not None


def protocol_of(path: str) -> str:
    """What stands before ``://``; empty for a path."""
    found = _URL.match(path)
    return found[1].lower() if found else ""


def hidden_beside(path: str) -> Path:
    """Where the rows of a table are kept beside it until it is made."""
    whole = Path(path)
    return whole.with_name(f".{whole.name}.rows")


def passing(folder: Path, whole: str) -> Path:
    """Where they are kept in a state folder, if the table goes elsewhere or is a copy. ``whole``: its whole name."""
    return folder / "jobs" / f".rows-{blake2b(whole.encode(), digest_size=8).hexdigest()}"


def kept_rows(folder: Path, whole: str) -> list[Path]:
    """All files of rows that may stand for a table of this name, and what a kill left of making it."""
    rows = passing(folder, whole)
    found = [rows, *rows.parent.glob(f".{rows.name}-*.part")]
    if not is_remote(whole):
        path = Path(whole)
        found += [hidden_beside(whole), path.with_name(f".{path.name}.part")]
    return found


def digest_of(path: Path) -> str:
    """What a file holds, as 32 hexadecimal digits."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as content:
        while some := content.read(1 << 20):
            digest.update(some)
    return digest.hexdigest()
