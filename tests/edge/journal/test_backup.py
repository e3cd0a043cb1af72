"""A copy of a state folder that is being written: each database as it was at one moment, and all of them fit together."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from actors.journal.journal import Journal, StateFolder, StoreError, replies_in
from actors.journal.reply_index import ReplyCache
from actors.journal.sqlite import backup
from actors.journal.sqlite.reply_index import unsorted
from cortex.journal import codec
from cortex.state import events
from cortex.values.reply import Reply, Usage


class Busy:
    """A folder in which a job absorbs one more reply, and notes it in the index, whenever it is looked away."""

    def __init__(self, place: Path) -> None:
        self.folder = StateFolder(place).prepare()
        self.jobs: dict[str, Journal] = {}
        self.count = 0

    def begin(self, *names: str) -> None:
        for name in names:
            self.jobs[name] = self.folder.journal(name, create=True)
            self.jobs[name].take_epoch(b"{}")

    def goes_on(self) -> None:
        for name, own in list(self.jobs.items()):
            self.count += 1
            question = b"%016d" % self.count
            reply = Reply(b"{}", "end_turn", "m", Usage())
            answered = events.Answered(self.count, "0", 1, question, reply)
            own.append([codec.encode_turn(float(self.count), [codec.encode_batch([answered])])])
            index = self.folder.index()
            index.put(name, own.seq, [(question, own.seq, 0)])
            index.close()

    def close(self) -> None:
        for own in self.jobs.values():
            own.close()


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Busy:
    """It goes on before and after each database is copied."""
    made = Busy(tmp_path / "state")
    made.begin("a", "b", "b~2")
    copy = backup._database

    def meanwhile(path: Path, to: Path) -> None:
        made.goes_on()
        copy(path, to)
        made.goes_on()

    monkeypatch.setattr(backup, "_database", meanwhile)
    made.goes_on()
    return made


def _lacking(copy: StateFolder) -> list[str]:
    """What the index of a copy says that stands in a journal, and does not."""
    with closing(sqlite3.connect(copy.path / "replies.sqlite")) as db:
        rows = db.execute("SELECT hash, job, seq FROM replies UNION ALL SELECT hash, job, seq FROM recent").fetchall()
        rows += [(hash_, job, seq) for job, replies in unsorted(db) for hash_, seq, _ in replies]
    lacking = []
    assert rows
    for hash_, job, seq in rows:
        source = copy.journal(job)
        if hash_ not in {each for each, where, _ in replies_in(source.turns()) if where == seq}:
            lacking.append(f"{job} {seq}")
        source.close()
    return lacking


def _is_index(path: Path) -> bool:
    return path.name == "replies.sqlite"


def test_all_that_the_index_names_is_in_the_journals_of_the_copy(busy: Busy, tmp_path: Path) -> None:
    busy.folder.backup(tmp_path / "copy")
    busy.close()
    copy = StateFolder(tmp_path / "copy")
    assert sorted(copy.jobs()) == ["a", "b", "b~2"]
    assert _lacking(copy) == []
    for name in copy.jobs():
        source = copy.journal(name)
        assert [seq for seq, _ in source.turns()] == list(range(1, source.seq + 1))
        index = copy.index()
        memory = ReplyCache(copy, name, index)
        memory.catch_up(source)  # what the index lacks is found in the journal
        asked = [each for each, _, _ in replies_in(source.turns())]
        assert len(memory.find(asked, source)) == len(asked)
        memory.close()
        source.close()


def test_the_index_copied_last_would_name_what_is_not_there(
    busy: Busy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_order: Callable[[Path], Iterable[Path]] = backup._in_order
    monkeypatch.setattr(backup, "_in_order", lambda source: sorted(in_order(source), key=_is_index))
    busy.folder.backup(tmp_path / "copy")
    busy.close()
    assert _lacking(StateFolder(tmp_path / "copy")) != []


def test_a_child_that_its_parent_began_is_in_the_copy(busy: Busy, tmp_path: Path) -> None:
    """It came to be when its parent's journal was copied already, so its parent's copy knows nothing of it, or it is
    there: never the other way round."""
    names = [path.name for path in backup._in_order(busy.folder.path)]
    assert names.index("b.sqlite") < names.index("b~2.sqlite")
    found = backup._in_order(busy.folder.path)
    while next(found).name != "b.sqlite":
        pass
    busy.begin("b~3")
    assert "b~3.sqlite" in {path.name for path in found}
    busy.close()


def test_a_copy_is_there_whole_or_not_at_all(busy: Busy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (busy.folder.path / "jobs" / "c.sqlite").write_bytes(b"no journal" * 500)
    with pytest.raises(StoreError, match=r"c\.sqlite is no journal, or is damaged"):
        busy.folder.backup(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    (busy.folder.path / "jobs" / "c.sqlite").unlink()
    (busy.folder.path / "jobs" / "a.control").write_text("stop")
    (busy.folder.path / "jobs" / "a.input").write_text("rows")
    busy.folder.backup(tmp_path / "copy")
    busy.close()
    assert {path.name for path in (tmp_path / "copy" / "jobs").iterdir()} == {
        "a.input", "a.sqlite", "b.sqlite", "b~2.sqlite",
    }  # fmt: skip
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "copy" / "jobs" / "a.sqlite").stat().st_mode & 0o777 == 0o600
    for wrong, text in (("copy", "is there already"), ("state/copy", "is in the state folder itself")):
        with pytest.raises(StoreError, match=text):
            busy.folder.backup(tmp_path / wrong)
    with pytest.raises(StoreError, match="there is no state folder"):
        StateFolder(tmp_path / "none").backup(tmp_path / "other")


@pytest.mark.parametrize("name", ["a", "b~2"])
def test_an_index_ahead_of_a_journal_takes_its_replies_anew(busy: Busy, tmp_path: Path, name: str) -> None:
    """After a loss of power, or a journal that was brought back: its turns get numbers that the index has seen."""
    for _ in range(5):
        busy.goes_on()
    job, index = name.partition("~")[0], busy.folder.index()
    index.put(name, 9, [(b"lost" * 4, 9, 0)])
    memory = ReplyCache(busy.folder, job, index)
    memory.catch_up(busy.jobs[job], anew=True)
    assert index.seq_of(name) == busy.jobs[name].seq == 6, "at once: a kill would leave it ahead"
    for _ in range(6):
        busy.count += 1
        answered = events.Answered(busy.count, "0", 1, b"%016d" % busy.count, Reply(b"{}", "end_turn", "m", Usage()))
        busy.jobs[name].append([codec.encode_turn(float(busy.count), [codec.encode_batch([answered])])])
    memory.close()
    memory = ReplyCache(busy.folder, job, busy.folder.index())
    memory.catch_up(busy.jobs[job], anew=True)
    asked = [each for each, _, _ in replies_in(busy.jobs[name].turns())]
    assert len(memory.find(asked, busy.jobs[job])) == len(asked) == 12
    assert not memory.find([b"lost" * 4], busy.jobs[job])
    memory.close()
    busy.close()
