"""The index of remembered replies: what cannot be written now is written later, and is in nobody's way."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder
from actors.journal.reply_index import ReplyCache
from actors.journal.sqlite.reply_index import FileReplyIndex, anything, known, unremember, unsorted, whose


def _kept(path: Path) -> set[str]:
    with sqlite3.connect(path / "replies.sqlite") as db:
        return {
            job
            for (job,) in db.execute(
                "SELECT job FROM replies UNION SELECT job FROM recent UNION SELECT job FROM unsorted"
            )
        }


class _Full:
    """A way to the index over which the next COMMIT finds no room; what was begun stays open, as SQLite leaves it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.full = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def execute(self, sql: str, *args: object) -> object:
        if sql == "COMMIT" and self.full:
            raise sqlite3.OperationalError("database or disk is full")
        return self._db.execute(sql, *args)


@pytest.mark.parametrize("closes", [False, True])
def test_a_full_disk_holds_up_neither_other_jobs_nor_this_one_later(tmp_path: Path, closes: bool) -> None:
    folder = StateFolder(tmp_path).prepare()
    db = _Full(sqlite3.connect(tmp_path / "replies.sqlite", isolation_level=None, timeout=0.0))
    first = ReplyCache(folder, "first", FileReplyIndex(tmp_path, db))  # type: ignore[arg-type]
    first.note(1, [(b"a" * 16, 1, 0)])
    first.flush()
    assert _kept(tmp_path) == set()
    other = ReplyCache(
        folder,
        "other",
        FileReplyIndex(tmp_path, sqlite3.connect(tmp_path / "replies.sqlite", isolation_level=None, timeout=0.0)),
    )
    other.note(1, [(b"b" * 16, 1, 0)])
    other.flush()
    assert _kept(tmp_path) == {"other"}, "the write lock was given back"
    db.full = False
    if closes:
        first.close()
    else:
        first.flush()
    assert _kept(tmp_path) == {"first", "other"}
    other.close()


def _opened(path: Path) -> FileReplyIndex:
    return FileReplyIndex(path / "replies.sqlite")


def test_what_was_put_down_is_sorted_in_when_somebody_looks(tmp_path: Path) -> None:
    index = _opened(tmp_path)
    for seq in range(200):
        index.put("one", seq, [(bytes([seq, place]) * 8, seq, place) for place in range(10)])
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        assert _counts(db) == (0, 0, 200)
        assert list(index.find([bytes([7, 3]) * 8])) == [(bytes([7, 3]) * 8, "one", 7, 3)]
        assert _counts(db) == (2_000, 0, 0)
    index.close()


def _counts(db: sqlite3.Connection) -> tuple[int, ...]:
    tables = ("recent", "replies", "unsorted")
    return tuple(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)


def test_many_are_sorted_into_the_large_table_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.journal.sqlite.reply_index.RECENT_MAX", 30)
    path, index, counts = tmp_path / "replies.sqlite", _opened(tmp_path), []
    hashes = [bytes([number]) * 16 for number in range(50)]
    with sqlite3.connect(path) as db:
        for seq in range(5):
            index.put("one", seq, [(hashes[seq * 10 + place], seq, place) for place in range(10)])
            for number, hash_ in enumerate(hashes):  # whatever table it is in, and before it is sorted
                wanted = ("one", number // 10) if number < 10 * (seq + 1) else ("", 0)
                assert whose(path, hash_) == wanted
            assert known(path, hashes) == set(hashes[: 10 * (seq + 1)]) and anything(path)
            found = {(hash_, *rest) for hash_, *rest in index.find(hashes)}
            assert found == {(hashes[at], "one", at // 10, at % 10) for at in range(10 * (seq + 1))}
            counts.append(_counts(db))
        assert counts == [(10, 0, 0), (20, 0, 0), (0, 30, 0), (10, 30, 0), (20, 30, 0)]
        index.put("two", 9, [(hashes[3], 9, 1)])
        assert next(iter(index.find([hashes[3]])))[1:] == ("two", 9, 1), "the latest first"
        assert whose(path, hashes[3]) == ("two", 9)
        unremember(path, ["one"])
        assert _counts(db) == (1, 0, 0) and not index.empty()
        unremember(path, ["two"])
        assert index.empty() and not anything(path)
    index.close()


def test_who_looks_knows_what_it_put_down_itself_and_sorts_in_nothing_for_what_is_not_there(tmp_path: Path) -> None:
    index = _opened(tmp_path)
    index.put("one", 1, [(b"a" * 16, 1, 0)])  # as a life before has left it
    assert list(index.find([b"x" * 16])) == []
    for seq in range(2, 5):
        index.put("one", seq, [(bytes([seq]) * 16, seq, 0)])
        assert list(index.find([b"x" * 16, b"y" * 16])) == []
    other = _opened(tmp_path)
    assert list(other.find([b"x" * 16])) == []
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        assert _counts(db) == (0, 0, 4)
        other.put("two", 1, [(b"x" * 16, 1, 0)])
        assert list(index.find([b"y" * 16])) == []
        assert _counts(db) == (5, 0, 0), "another has put down what it does not know"
        assert list(index.find([b"x" * 16])) == [(b"x" * 16, "two", 1, 0)]
    assert list(other.find([bytes([3]) * 16])) == [(bytes([3]) * 16, "one", 3, 0)]
    index.close()
    other.close()


@pytest.mark.parametrize("how", ["put down before its own", "sorted in by another", "removed"])
def test_what_another_has_put_down_is_found_also_where_its_row_has_a_number_that_was_seen(
    tmp_path: Path, how: str
) -> None:
    index, other, asked = _opened(tmp_path), _opened(tmp_path), b"x" * 16
    assert list(index.find([asked])) == []
    if how == "put down before its own":
        other.put("two", 1, [(asked, 1, 0)])
        index.put("one", 1, [(b"a" * 16, 1, 0)])
    else:
        index.put("one", 1, [(b"a" * 16, 1, 0)])
        if how == "removed":
            unremember(tmp_path / "replies.sqlite", ["one"])
        else:
            assert len(list(other.find([b"a" * 16]))) == 1
        other.put("two", 1, [(asked, 1, 0)])
    assert list(index.find([asked])) == [(asked, "two", 1, 0)]
    index.close()
    other.close()


def test_what_was_sorted_in_once_costs_no_more_sorting(tmp_path: Path) -> None:
    index, first, later = _opened(tmp_path), b"a" * 16, b"b" * 16
    index.put("one", 1, [(first, 1, 0)])
    assert len(list(index.find([first]))) == 1
    index.put("one", 2, [(later, 2, 0)])
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        for asked, found in ((b"x" * 16, 0), (first, 1), (b"x" * 16, 0)):
            assert len(list(index.find([asked]))) == found
            assert _counts(db) == (1, 0, 1)
        assert len(list(index.find([later, first]))) == 2
        assert _counts(db) == (2, 0, 0)
    index.close()


def test_where_nothing_was_sorted_in_no_table_is_looked_through(tmp_path: Path) -> None:
    db, asked = sqlite3.connect(tmp_path / "replies.sqlite", isolation_level=None, check_same_thread=False), []
    index = FileReplyIndex(tmp_path, db)
    index.put("one", 1, [(b"a" * 16, 1, 0)])
    list(index.find([b"x" * 16]))
    db.set_trace_callback(asked.append)
    index.put("one", 2, [(b"b" * 16, 2, 0)])
    list(index.find([b"x" * 16]))
    assert asked and not [
        statement for statement in asked if "FROM re" in statement or "FROM unsorted WHERE" in statement
    ]
    index.close()


def _put(index: FileReplyIndex, rows: int) -> list[bytes]:
    hashes = [bytes([row]) * 16 for row in range(rows)]
    for seq, hash_ in enumerate(hashes):
        index.put("one", seq, [(hash_, seq, 0)])
    return hashes


def test_too_many_to_be_learned_are_sorted_in_look_by_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.journal.sqlite.reply_index.LEARN_MAX", 4)
    monkeypatch.setattr("actors.journal.sqlite.reply_index.SORT_AT_ONCE", 2)
    index = _opened(tmp_path)
    hashes = _put(index, 5)
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        assert list(index.find([b"x" * 16])) == [] and _counts(db) == (2, 0, 3)
        for counts in ((4, 0, 1), (5, 0, 0), (5, 0, 0)):
            assert {hash_ for hash_, *_ in index.find([*hashes, b"x" * 16])} == set(hashes)
            assert _counts(db) == counts
    index.close()


def test_too_many_that_were_put_down_since_are_sorted_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.journal.sqlite.reply_index.KNOWN_MAX", 4)
    index = _opened(tmp_path)
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        assert list(index.find([b"x" * 16])) == []
        for count, left in ((4, 4), (1, 0)):
            _put(index, count)
            assert list(index.find([b"x" * 16])) == []
            assert _counts(db)[2] == left
    index.close()


def test_a_whole_journal_is_put_down_in_several_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.journal.sqlite.reply_index.PUT_AT_ONCE", 3)
    index = _opened(tmp_path)
    assert list(index.find([b"x" * 16])) == []
    hashes = [bytes([row]) * 16 for row in range(7)]
    index.put("one", 9, [(hash_, 9, place) for place, hash_ in enumerate(hashes)])
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        assert [len(replies) for _, replies in unsorted(db)] == [1, 3, 3]
        assert list(index.find([b"x" * 16])) == [] and _counts(db) == (0, 0, 3), "each is known"
    assert {(hash_, place) for hash_, _, _, place in index.find(hashes)} == {*zip(hashes, range(7), strict=True)}
    index.close()


def test_the_latest_reply_to_a_question_is_the_one_that_is_found(tmp_path: Path) -> None:
    index = _opened(tmp_path)
    index.put("one", 1, [(b"a" * 16, 1, 0)])
    index.put("two", 5, [(b"a" * 16, 4, 2)])
    assert whose(tmp_path / "replies.sqlite", b"a" * 16) == ("two", 4)
    assert list(index.find([b"a" * 16])) == [(b"a" * 16, "two", 4, 2)]
    assert whose(tmp_path / "replies.sqlite", b"a" * 16) == ("two", 4)
    index.close()


def test_what_cannot_be_sorted_in_is_found_all_the_same(tmp_path: Path) -> None:
    db = _Full(sqlite3.connect(tmp_path / "replies.sqlite", isolation_level=None, timeout=0.0))
    db.full = False
    index = FileReplyIndex(tmp_path, db)  # type: ignore[arg-type]
    index.put("one", 1, [(b"a" * 16, 1, 0)])
    index.put("two", 5, [(b"a" * 16, 4, 2)])
    db.full = True
    found = [(b"a" * 16, "two", 4, 2), (b"a" * 16, "one", 1, 0)]
    assert list(index.find([b"a" * 16, b"b" * 16])) == found, "the latest first"
    index.close()


def test_an_index_of_the_first_release_is_read_by_those_who_only_read(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    index = _opened(tmp_path)
    index.put("one", 1, [(b"a" * 16, 1, 0)])
    list(index.find([b"a" * 16]))
    index.close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO replies SELECT * FROM recent")
        db.execute("DROP TABLE recent")
        db.execute("DROP TABLE unsorted")
    assert (anything(path), known(path, [b"a" * 16]), whose(path, b"a" * 16)) == (True, {b"a" * 16}, ("one", 1))
    unremember(path, ["one"])
    assert not anything(path)
