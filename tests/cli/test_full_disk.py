"""A disk that is full when a job begins: what happened is said then and later, and the same command begins it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from actors.journal.journal import DiskFull, StateFolder, StoreError
from actors.journal.sqlite import disk, reply_index, storage
from tests.cli.cli_runner import requests

SIM = ("--model", "sim")


def _full(*_: Any) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def _not_begun(said: str) -> bool:
    return "job rows has not begun" in said and "nothing was sent or paid" in said


@pytest.mark.parametrize("where", ["first turn", "schema", "index"])
def test_a_job_that_cannot_begin_says_so_then_and_later_and_begins_when_there_is_room(cortex, monkeypatch, where):
    requests(Path("in.jsonl"), 3)
    batch = ("batch", "in.jsonl", "-o", "out", *SIM, "--job", "rows")
    with monkeypatch.context() as full:
        if where == "first turn":
            full.setattr(storage.FileStorage, "_appended", _full)
        else:
            of = storage if where == "schema" else reply_index
            full.setattr(of, "_SCHEMA", "SELECT no_room();" if where == "schema" else of._SCHEMA)
            if where == "schema":
                full.setattr(disk, "_ROOM", ("no_room",))
            else:
                full.setattr(reply_index, "_SCHEMA", "SELECT no_room();")
                full.setattr(disk, "_ROOM", ("no_room",))
        done = cortex(*batch)
    assert done.code == 3, done.err
    (answer,) = done.said()
    assert (
        "is full" in answer
        and _not_begun(answer)
        and answer.count("give the same command again") == 1
        and "resume" not in answer
    )
    if where != "schema":
        assert _not_begun(cortex("status", "rows").refused("give its command again"))
        assert _not_begun(cortex("resume", "rows").refused())
        assert _not_begun(cortex("inspect", "rows").refused())
        listed = cortex("jobs")
        assert "not begun" in listed.out and _not_begun(listed.said()[0])
        with StateFolder(os.environ["CORTEX_STATE"]).hold("rows"):  # by a run that is about to write its first turn
            assert not _not_begun(cortex("status", "rows").refused("job rows is just beginning"))
            assert "job rows is just beginning" in cortex("jobs").said()[0]
    assert cortex(*batch).code == 0
    assert cortex("status", "rows").code == 0


def test_one_that_has_begun_is_not_said_not_to_have(cortex, monkeypatch):
    requests(Path("in.jsonl"), 3)
    batch = ("batch", "in.jsonl", "-o", "out", *SIM, "--job", "rows")
    assert cortex(*batch).code == 0
    with monkeypatch.context() as full:
        full.setattr(storage.FileStorage, "_appended", _full)
        done = cortex(*batch, "--fresh", "--overwrite")
    assert done.code == 3 and "is full" in done.err and "has not begun" not in done.err


def test_an_index_on_a_full_disk_is_no_index_to_be_removed(tmp_path):
    place = tmp_path / "replies.sqlite"
    error = reply_index.unusable(place, sqlite3.OperationalError("database or disk is full"))
    assert isinstance(error, DiskFull) and "make room" in str(error)
    error = reply_index.unusable(place, sqlite3.OperationalError("disk I/O error"))
    assert isinstance(error, DiskFull) and "the disk fails" in str(error) and "make room" not in str(error)
    error = reply_index.unusable(tmp_path, sqlite3.OperationalError("file is not a database"))
    assert type(error) is StoreError and "may be removed" in str(error)


def test_rm_takes_away_what_never_began(cortex, monkeypatch):
    requests(Path("in.jsonl"), 3)
    with monkeypatch.context() as full:
        full.setattr(storage.FileStorage, "_appended", _full)
        cortex("batch", "in.jsonl", "-o", "out", *SIM, "--job", "rows")
    assert cortex("rm", "rows").code == 0
    assert not list(Path(os.environ["CORTEX_STATE"], "jobs").glob("rows.sqlite*"))
