"""Checks of ``cortex doctor`` for a state folder: owner, safety of journals, free space."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from actors.common.file_systems import NETWORK_FILE_SYSTEMS, file_system
from actors.common.findings import Finding, ok, warning, wrong
from actors.files.local.os_errors import WORDS
from actors.journal.journal import StateFolder, StoreError
from actors.journal.sqlite.disk import disk_cause
from cortex.journal import codec

ROW_BYTES = 600
"""Bytes in a journal for a row of ``batch`` with a prompt of 60 characters and a reply of one word (580 measured over
100,000 rows). Used if the folder has no job to measure."""
_ROWS_MIN = 1_000
_FREE_MIN, _FREE_FEW = 100 << 20, 1 << 30
_INODES_MIN, _INODES_FEW = 100, 1_000
_SLOW_COMMIT_S = 0.05
_COMMITS = 5


def state(address: str) -> Iterator[Finding]:
    """Check that the folder is writable, local, private to its owner, and supports a write-ahead log."""
    path = StateFolder(address).path
    kind = file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        text = f"{path} is on a network file system ({kind}), where a journal is not safe"
        yield wrong("state", text, "give a local --state")
        return
    there = _nearest(path)
    if not there.is_dir():
        yield wrong("state", f"{there} is no folder", "give another --state")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield wrong("state", f"{there} cannot be written to", "give another --state, or the right to write there")
        return
    yield from _modes(path)
    yield from _commits(there, path, kind)


def _nearest(path: Path) -> Path:
    """Return the folder, or its nearest existing parent: a first run creates the rest."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _modes(path: Path) -> Iterator[Finding]:
    """Check that only the owner can read the journals, which hold prompts and replies."""
    jobs = path / "jobs"
    if not jobs.is_dir():
        return
    owner = jobs.stat().st_uid
    if owner != os.geteuid():
        yield warning("state", f"{jobs} belongs to user {owner}, not to you", "give another --state, or chown it")
    places = [jobs, *(each for each in jobs.iterdir() if each.suffix == ".sqlite"), path / "replies.sqlite"]
    if jobs.stat().st_mode & 0o077:
        open_ = [each for each in places if each.exists() and each.stat().st_mode & 0o077]
        text = f"others may read {len(open_)} places below {path}, {open_[0].name} among them: prompts and replies"
        yield warning("state", text, f"chmod -R go= {path}")


def _commits(there: Path, path: Path, kind: str) -> Iterator[Finding]:
    """Create a journal, write to it as a job does, measure the commits, and remove it."""
    took: list[float] = []
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=there) as folder:
            db = sqlite3.connect(Path(folder) / "try.sqlite", isolation_level=None, timeout=2.0)
            with contextlib.closing(db):
                mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                db.execute("PRAGMA synchronous=FULL")
                db.execute("CREATE TABLE turns (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
                for _ in range(_COMMITS):
                    begun_s = time.perf_counter()
                    db.execute("INSERT INTO turns (blob) VALUES (?)", (b"0" * 400,))
                    took.append(time.perf_counter() - begun_s)
    except (sqlite3.Error, OSError) as error:
        cause = disk_cause(error, there / ".doctor")
        _, do = WORDS.get(cause.errno or 0, ("", "")) if cause is not None else ("", "")
        if not (do and (path / "jobs").is_dir()):  # a job that is in the folder cannot go on in another
            do = f"{do}, or give another --state" if do else "give another --state"
        yield wrong("state", f"no journal can be written in {there}: {error}", do)
        return
    if mode != "wal":
        text = f"SQLite's write-ahead log does not work in {there} (it says {mode})"
        yield wrong("state", text, "give a --state on another disk")
        return
    commit_s = statistics.median(took)
    text = f"{path}, {kind or 'a file system'}: a commit takes {1_000 * commit_s:.1f} ms"
    if not path.exists():
        text += "; it is made by the first run"
    if commit_s > _SLOW_COMMIT_S:
        yield warning("state", text, "a faster disk for --state: each turn waits for it")
    else:
        yield ok("state", text)


def room(address: str) -> Iterator[Finding]:
    """Check the free space on the disk of the state folder: bytes, rows and inodes."""
    path = StateFolder(address).path
    there = _nearest(path)
    free = shutil.disk_usage(there).free
    row_bytes, measured = _row_bytes(path)
    basis = "as large as here so far" if measured else "of short ones"
    text = f"{free / (1 << 30):,.1f} GB free: about {free // row_bytes:,} rows, {basis}"
    text += f" ({row_bytes:,} bytes of a journal each)"
    do = "make room, or give a --state on a larger disk"
    if free < _FREE_MIN:
        yield wrong("disk", text, do)
    elif free < _FREE_FEW:
        yield warning("disk", text, do)
    else:
        yield ok("disk", text)
    if hasattr(os, "statvfs"):
        yield from _inodes(os.statvfs(there), there)


def _inodes(found: os.statvfs_result, there: Path) -> Iterator[Finding]:
    if not found.f_files:
        return  # this file system has no fixed number of inodes
    free = found.f_favail
    text = f"{free:,} of {found.f_files:,} inodes are free at {there}"
    if free < _INODES_MIN:
        yield wrong("inodes", text, "remove small files there: each job needs about five")
    elif free < _INODES_FEW:
        yield warning("inodes", text, "remove small files there: each job needs about five")
    else:
        yield ok("inodes", text)


def _row_bytes(path: Path) -> tuple[int, bool]:
    """Return (bytes, True) for a row of the folder's largest journal; otherwise (``ROW_BYTES``, False)."""
    places = sorted((path / "jobs").glob("*.sqlite"), key=lambda place: -place.stat().st_size)
    for place in places[:1]:
        with contextlib.suppress(StoreError, ValueError, OSError):
            source = StateFolder(path).journal(place.stem)
            try:
                blob = source.account(source.seq)
                goals = codec.decode_account(blob).next_goal - 1 if blob else 0
                if goals >= _ROWS_MIN:
                    return max(1, source.size_bytes() // goals), True
            finally:
                source.close()
    return ROW_BYTES, False
