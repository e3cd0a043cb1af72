"""Distinguish paths on this machine from names of remote objects, and name the files that belong to a table."""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

READ_BYTES: Final = 1 << 20
"""Bytes per read from a file or stream."""
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


def is_remote(path: str) -> bool:
    """Return whether the path is a URL for ``fsspec``: ``s3://…``, ``gs://…``, ``memory://…``."""
    return _URL.match(path) is not None


def protocol_of(path: str) -> str:
    """Return the part before ``://`` in lower case; empty for a path."""
    found = _URL.match(path)
    return found[1].lower() if found else ""


def rows_of(folder: Path, path: str, job: str, copy: bool = False) -> Path:
    """Return the file in which a job keeps the rows of a table until the table is made.

    The file is hidden beside the table, or in the state folder for a remote table. Two jobs, or a job and a copy of its
    results, never share a file.
    """
    whose = _digest(f"{job}\0copy" if copy else job)
    return _common(folder, path).with_name(f"{_common(folder, path).name}-{whose}")


def rows_of_others(rows: Path) -> list[Path]:
    """Return row files of other jobs for a table of the same name, with those of release 0.1, whose names had no job.
    """
    common = rows.with_name(rows.name.rpartition("-")[0])
    return [each for each in (common, *common.parent.glob(f"{common.name}-*")) if each.exists() and each != rows]


def adopt(rows: Path) -> None:
    """Rename a row file of release 0.1, whose name was common to all jobs, to this job's name."""
    common = rows.with_name(rows.name.rpartition("-")[0])
    if common.exists() and not rows.exists():
        common.rename(rows)


def kept_rows(folder: Path, path: str, job: str) -> list[Path]:
    """Return all row files that a job may have for a table of this name, and partial tables that a killed run left."""
    found = [rows_of(folder, path, job, copy) for copy in (False, True)]
    if not is_remote(path):
        return [*found, Path(path).with_name(f".{Path(path).name}.part")]
    return [*found, *(part for rows in found for part in rows.parent.glob(f".{rows.name}-*.part"))]


def _common(folder: Path, path: str) -> Path:
    if is_remote(path):
        return folder / "jobs" / f".rows-{_digest(path)}"
    return Path(path).with_name(f".{Path(path).name}.rows")


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def digest_of(path: Path) -> str:
    """Return the digest of a file's content, as 32 hexadecimal digits."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as content:
        while some := content.read(1 << 20):
            digest.update(some)
    return digest.hexdigest()
