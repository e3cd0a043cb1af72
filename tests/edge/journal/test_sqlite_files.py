"""What a state folder of files promises besides: writing in threads, and that no part of its contract is missing."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.files.line_reader import InputFile
from actors.files.sources.row_source import RowSource
from actors.journal.journal import StateFolder, StoreError
from actors.journal.postgres.folder import DatabaseStateFolder
from actors.journal.sqlite.folder import FileStateFolder
from actors.journal.sqlite.key_values import FileKeyValues
from actors.journal.sqlite.reply_index import FileReplyIndex
from actors.journal.sqlite.storage import FileStorage
from actors.runtime.inline import InlineRuntime
from cortex.journal import codec


@pytest.mark.parametrize(
    "opened",
    [
        FileReplyIndex,
        lambda path: FileStorage(path, create=True),
        lambda path: FileKeyValues(path).change(lambda _: ({}, None)),
    ],
    ids=["index", "journal", "register"],
)
def test_a_new_file_that_another_has_begun_is_waited_for(opened: Callable[[Path], Any], tmp_path: Path) -> None:
    """SQLite's own timeout does not hold there: two that began at once would have one of them refused."""
    path = tmp_path / "new.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as another:
        another.execute("BEGIN IMMEDIATE")
        later = threading.Timer(0.1, lambda: another.execute("COMMIT"))
        later.start()
        made = opened(path)
        later.join()
    if made is not None:
        made.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_turn_is_on_disk_when_it_is_said_to_be_while_another_thread_writes_beside_it(tmp_path: Path) -> None:
    """A channel may commit in a thread, while its notices are noted in the event loop: by the same connection."""
    folder = StateFolder(str(tmp_path))
    folder.prepare()
    ours = folder.journal("j", create=True)
    ours.take_epoch(b"")
    begun, go_on = threading.Event(), threading.Event()

    def note() -> None:
        with ours._storage._writing():  # type: ignore[attr-defined]
            begun.set()
            go_on.wait(0.2)  # an append that did not wait would be done by then, and on no disk

    writing = threading.Thread(target=note)
    writing.start()
    begun.wait(5)
    ours.append([codec.encode_turn(1.0, [])])
    others = folder.journal("j")
    seen = others.seq
    others.close()
    go_on.set()
    writing.join()
    ours.close()
    assert seen == 1


async def test_where_several_channels_share_a_loop_and_the_disk_is_slow_they_wait_for_it_in_threads() -> None:
    runtime = InlineRuntime()
    slow, quick = SimpleNamespace(took_s=0.003), SimpleNamespace(took_s=0.0001)
    await runtime.start_actor("channel", "channel:a", "a", "nowhere")
    assert not runtime.apart(slow), "nobody else is held up"  # type: ignore[arg-type]
    await runtime.start_actor("channel", "channel:b", "b", "nowhere")
    assert runtime.apart(slow) and not runtime.apart(quick)  # type: ignore[arg-type]
    await runtime.kill_actor("channel:b")
    assert not runtime.apart(slow)  # type: ignore[arg-type]
    await runtime.close()


def test_a_place_for_journals_that_lacks_something_cannot_be_made(tmp_path: Path) -> None:
    """A gap shows when the object is made, and not when a job first comes to it."""
    for kind in (FileStateFolder, DatabaseStateFolder):
        assert not kind.__abstractmethods__
    missing = {name for name in vars(StateFolder) if getattr(getattr(StateFolder, name), "__isabstractmethod__", False)}
    assert missing == StateFolder.__abstractmethods__ and {"journal", "hold", "swap_note"} <= missing
    half = type("Half", (FileStateFolder,), {name: vars(StateFolder)[name] for name in ("swap_note", "hold")})
    with pytest.raises(TypeError, match="abstract methods hold, swap_note"):
        half(tmp_path)
    assert isinstance(StateFolder(tmp_path), FileStateFolder)
    with pytest.raises(TypeError, match="abstract method judge"):
        RowSource(InputFile("in", tmp_path / "spool"))  # type: ignore[abstract]


class _Unflushed:
    """A way to a journal whose disk fails to flush once, as SQLite tells it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *args: Any) -> Any:
        if self.fails and sql.startswith(("COMMIT", "INSERT INTO turns")):
            self.fails = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._db.execute(sql, *args)


@pytest.mark.parametrize("at", ["a turn", "a fact"])
def test_after_a_flush_that_failed_nothing_is_written_over_what_it_left(tmp_path: Path, at: str) -> None:
    """SQLite writes the next transaction over it in the log; the rest behind would be told as damage to a resume."""
    path = tmp_path / "j.sqlite"
    FileStorage(path, create=True).close()
    db = _Unflushed(sqlite3.connect(path, isolation_level=None))
    mine = FileStorage(path, db=db)  # type: ignore[arg-type]
    epoch = mine.take_epoch(b"{}")
    mine.append(epoch, 1, [b"one"])
    db.fails = True
    with pytest.raises(StoreError) as first:
        mine.append(epoch, 2, [b"two"]) if at == "a turn" else mine.set_meta("ended", b"1", epoch)
    for write in (lambda: mine.append(epoch, 2, [b"two"]), lambda: mine.append(epoch, 2, [b"two", b"three"]),
                  lambda: mine.set_meta("a", b"1", epoch), lambda: mine.put_snapshot(1, 0, b"", 0, epoch)):  # fmt: skip
        with pytest.raises(StoreError) as again:
            write()
        assert again.value is first.value
    assert mine.last() == 1
    mine.close()


STATS = {errno.ENOENT: True, errno.ENOTDIR: True} | dict.fromkeys(
    (errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOMEM, errno.ETIMEDOUT), False
)
"""Errors of stat(2), and whether each proves that the file has lost its name."""


@pytest.mark.parametrize("error", STATS)
def test_only_a_loss_that_is_proven_is_a_loss_and_stays_one(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, real = StateFolder(tmp_path).prepare().journal("j", create=True), Path.stat
    source.take_epoch(b"{}")

    def stat(path: Path, **more: bool) -> object:
        if sys._getframe(1).f_code.co_name == "see_stands":
            raise OSError(error, os.strerror(error), str(path))
        return real(path, **more)

    with closing(source):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", stat)
            with pytest.raises(StoreError, match="while the job ran") if STATS[error] else nullcontext():
                source.see_writable()
        with pytest.raises(StoreError, match="while the job ran") if STATS[error] else nullcontext():
            source.see_writable()
