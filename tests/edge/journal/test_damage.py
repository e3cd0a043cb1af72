"""Bits that flip in a journal on the disk: whatever is read is what was written, or one line says what is damaged."""

from __future__ import annotations

import contextlib
import gc
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import pytest

from actors.common.errors import UserError
from actors.history.catalog import replayed
from actors.history.result_history import lines
from actors.journal.journal import Damaged, Journal, StateFolder, StoreError
from actors.journal.sqlite.backup import backup
from actors.journal.sqlite.key_values import FileKeyValues
from actors.journal.sqlite.reply_index import FileReplyIndex, anything, known
from actors.journal.sqlite.wal import CutLog, see_whole
from actors.maintenance.fork import ForkSpec, fork
from actors.programs import loader
from cortex.journal import codec, seals
from cortex.state.program import Program
from cortex.values.limits import JobTerms, Limits
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows

SHORT, LONG = 40, 1_000


def _load(terms: JobTerms) -> Program:
    return loader.load(terms.program, terms.params_json)


def _read(place: Path) -> tuple[bytes, list[object]]:
    """Return K and all results, as a resume and `cortex results` read them."""
    with closing(StateFolder(place).journal("j")) as source:
        source.take_epoch(b"{}")
        k = replayed(source, _load)
        found = list(takewhile(lambda each: each is not None, lines(source, _load)))
        return codec.encode_state(k) if k is not None else b"", found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that was stopped half-way, with snapshots, closed: all of it is in one file."""
    import asyncio

    folder = tmp_path_factory.mktemp("whole") / "state"

    async def half() -> None:
        limits = Limits(concurrency=5, window_rows=20, snapshot_events=60)
        model = FunctionModel()
        await Run(folder, model, source=ListSource(rows(120)), limits=limits).crash_after(lambda: len(model.complete) > 80)

    asyncio.run(half())
    gc.collect()  # connections of the killed run, which would remove its log while the folder is copied
    with closing(sqlite3.connect(folder / "jobs" / "j.sqlite")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


def _flipped(place: Path, to: Path, chance: random.Random, zero: bool) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(place, to)
    path = to / "jobs" / "j.sqlite"
    blob = bytearray(path.read_bytes())
    at = chance.randrange(len(blob))
    if zero:
        at -= at % 512
        blob[at : at + 512] = bytes(512)
    else:
        blob[at] ^= 1 << chance.randrange(8)
    path.write_bytes(blob)


def _trials(place: Path, to: Path, count: int) -> Counter[str]:
    whole, found, chance = _read(_copy(place, to)), Counter[str](), random.Random(7)
    for number in range(count):
        _flipped(place, to, chance, zero=number % 4 == 3)
        try:
            found["as it was" if _read(to) == whole else "WRONG"] += 1
        except Damaged as error:
            assert "damaged" in str(error) and "\n" not in str(error)
            found["told"] += 1
        except UserError as error:
            found["refused"] += 1
            assert "\n" not in str(error)
    return found


def _copy(place: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(place, to))


def test_no_flipped_bit_and_no_zeroed_sector_is_believed(place: Path, tmp_path: Path) -> None:
    found = _trials(place, tmp_path / "state", SHORT)
    assert not found["WRONG"] and found["told"] > SHORT // 4, found


@pytest.mark.release
def test_none_of_a_thousand_is(place: Path, tmp_path: Path) -> None:
    found = _trials(place, tmp_path / "state", LONG)
    assert not found["WRONG"] and found["told"] > LONG // 4, found


def _no_text(path: Path) -> None:
    """Damage the structure of a file so that SQLite's error quotes bytes that are no text."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET name = CAST(x'74ff' AS TEXT), sql = CAST(x'43ffff' AS TEXT) WHERE rootpage > 1")
        db.commit()


def test_a_structure_that_is_no_text_is_told_as_damage(place: Path, tmp_path: Path) -> None:
    to = _copy(place, tmp_path / "state")
    for path in (to / "jobs" / "j.sqlite", to / "replies.sqlite"):
        _no_text(path)
        with closing(sqlite3.connect(path)) as db, pytest.raises(UnicodeDecodeError):
            db.execute("PRAGMA journal_mode=WAL")
    for opened in (lambda: StateFolder(to).journal("j"), lambda: FileReplyIndex(to / "replies.sqlite")):
        with pytest.raises(StoreError, match="malformed"):
            opened()
    with pytest.raises(StoreError, match="malformed"):
        backup(to, tmp_path / "copy")
    assert not known(to / "replies.sqlite", [b"q"]) and not anything(to / "replies.sqlite")


def test_a_backup_does_not_change_the_mode_of_what_it_copies(place: Path, tmp_path: Path) -> None:
    """A copy that was made by a backup is in SQLite's first mode, and may be in a folder that is read-only."""
    to = _copy(place, tmp_path / "state")
    with closing(sqlite3.connect(to / "jobs" / "j.sqlite")) as db:
        db.execute("PRAGMA journal_mode=DELETE")
    backup(to, tmp_path / "copy")
    with closing(sqlite3.connect(to / "jobs" / "j.sqlite")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def _write(place: Path, table: str, number: int, value: bytes | None) -> None:
    key = "place" if table == "pieces" else "seq"
    with closing(sqlite3.connect(place / "jobs" / "j.sqlite")) as db:
        if value is None:
            db.execute(f"DELETE FROM {table} WHERE {key} = ?", (number,))
        else:
            db.execute(f"UPDATE {table} SET blob = ? WHERE {key} = ?", (value, number))
        db.commit()


def _first(place: Path, table: str) -> tuple[int, bytes]:
    with closing(sqlite3.connect(place / "jobs" / "j.sqlite")) as db:
        number, blob = db.execute(f"SELECT * FROM {table} ORDER BY 1 LIMIT 1").fetchone()[:: 2 if table == "snapshots" else 1]
        return number, blob


@pytest.mark.parametrize("kind", ["flipped", "of another place", "missing", "cut off"])
def test_a_damaged_turn_is_named_with_what_to_do(place: Path, tmp_path: Path, kind: str) -> None:
    to = _copy(place, tmp_path / "state")
    with closing(StateFolder(to).journal("j")) as source:
        last = source.seq
        bare = dict(source.blobs(last))
        stored = dict(source._storage.turns(0))
    at = last if kind == "cut off" else 3
    if kind == "cut off":
        with closing(StateFolder(to).journal("j")) as source:
            source.note_end()
    values = {"flipped": stored[3][:9] + bytes([stored[3][9] ^ 1]) + stored[3][10:], "of another place": stored[4]}
    _write(to, "turns", at, values.get(kind))
    said = rf"job j is damaged at turn {at}: .*`cortex fork j .*--at {at - 1}`"
    with pytest.raises(Damaged, match=said), closing(StateFolder(to).journal("j")) as source:
        assert list(bare) == [seq for seq, _ in source.turns()]
    with closing(StateFolder(to).journal("j")) as source:
        assert [number for kind, number in source.damages() if kind == "turn"][:1] == [at]
    fork(StateFolder(to), ForkSpec(job="j", at=at - 1, name="other"))
    with closing(StateFolder(to).journal("other")) as source:
        assert source.seq == at and not list(source.damages())


def test_a_damaged_snapshot_costs_a_replay_and_no_more(place: Path, tmp_path: Path, caplog) -> None:
    to = _copy(place, tmp_path / "state")
    whole = _read(to)
    to = _copy(place, tmp_path / "state")
    number, blob = _first(to, "snapshots")
    _write(to, "snapshots", number, blob[:40] + b"!" + blob[41:])
    assert _read(to) == whole
    with closing(StateFolder(to).journal("j")) as source:
        assert list(source.damages()) == [("snapshot", number)]


def test_a_fact_that_was_changed_or_lost_is_noticed(place: Path, tmp_path: Path) -> None:
    for change in ("UPDATE meta SET value = '7' WHERE key = 'opened_at'", "DELETE FROM meta WHERE key = 'sealed'",
                   "UPDATE meta SET key = 'opdned_at' WHERE key = 'opened_at'", "DELETE FROM meta WHERE key = 'digests'",
                   "DELETE FROM meta"):  # fmt: skip
        to = _copy(place, tmp_path / "state")
        with closing(sqlite3.connect(to / "jobs" / "j.sqlite")) as db:
            db.execute(change)
            db.commit()
        with pytest.raises(Damaged, match="fact"):
            _read(to)


def _log(path: Path, chance: random.Random) -> tuple[bytes, bytes]:
    """A write-ahead log of sixty commits, and the file that it belongs to."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)")
        for number in range(60):
            db.execute("INSERT INTO t VALUES (?, ?)", (number, chance.randbytes(chance.randrange(100, 5_000))))
        return path.with_name(f"{path.name}-wal").read_bytes(), path.read_bytes()


def test_a_log_that_was_cut_off_in_its_middle_is_noticed_and_one_at_its_end_is_a_power_cut(tmp_path: Path) -> None:
    chance = random.Random(3)
    log, _ = _log(tmp_path / "x.sqlite", chance)
    damaged = tmp_path / "log"
    damaged.write_bytes(log)
    see_whole(damaged, same_boot=True)
    for _ in range(60):
        blob = bytearray(log)
        blob[chance.randrange(len(blob) - 12_000)] ^= 1 << chance.randrange(8)
        damaged.write_bytes(blob)
        with pytest.raises(CutLog):
            see_whole(damaged)
    torn = bytearray(log)
    torn[-100] ^= 1
    damaged.write_bytes(torn)
    see_whole(damaged)
    with pytest.raises(CutLog):
        see_whole(damaged, same_boot=True)
    for blob in (b"", bytes(40_000), log[: len(log) // 2]):
        damaged.write_bytes(blob)
        see_whole(damaged, same_boot=True)


@pytest.mark.parametrize("change", ["turn", "gone", "fact"])
def test_each_store_notices_what_was_changed_under_it(state: str, change: str) -> None:
    folder = StateFolder(state).prepare()
    with closing(folder.journal("j", create=True)) as mine:
        mine.take_epoch(b"{}")
        mine.append([codec.encode_turn(float(number), []) for number in range(1, 6)])
        mine.set_meta("opened_at", b"0")
        bare = [codec.encode_turn(float(number), []) for number in range(1, 6)]
        assert [blob for _, blob in mine.blobs(5)] == bare and not list(mine.damages())
        _change(mine, change)
    said = "fact" if change == "fact" else "at turn 3"
    with closing(folder.journal("j")) as source, pytest.raises(Damaged, match=said):
        source.opened_at()
        list(source.turns())


def _change(source: Journal, change: str) -> None:
    storage: Any = source._storage
    turns, facts = ("cortex_turns", "cortex_meta") if storage.remote else ("turns", "meta")
    statement = {
        "turn": f"UPDATE {turns} SET blob = (SELECT blob FROM {turns} WHERE seq = 2) WHERE seq = 3",
        "gone": f"DELETE FROM {turns} WHERE seq = 3",
        "fact": f"UPDATE {facts} SET value = '7' WHERE key = 'opened_at'",
    }[change]
    storage._link.count(statement) if storage.remote else storage._db.execute(statement)


@pytest.mark.parametrize("old", [False, True])
def test_a_small_value_that_was_changed_is_not_believed_and_one_of_an_earlier_release_is_read(state: str, old: bool) -> None:
    """Budgets, and accounts that clusters share: a flipped bit of a cap would be another cap."""
    folder = StateFolder(state).prepare()
    register = folder.register("budgets")
    register.change(lambda there: ({"cap": b"\x93\x01\x02\x03", "other": b""}, None))
    remote = state.startswith("postgres")
    table, key = ("cortex_notes", "value") if remote else ("budgets", "blob")

    def put(blob: bytes, old: bool = False) -> None:
        if remote:
            folder._link.count(f"UPDATE {table} SET {key} = %s WHERE name = %s", (blob, "cap"))
            if old:
                folder._link.count(f"DELETE FROM {table} WHERE name = %s", (seals.SET,))
        else:
            with closing(sqlite3.connect(Path(state) / "budgets.sqlite")) as db, db:
                db.execute(f"UPDATE {table} SET {key} = ? WHERE name = ?", (blob, "cap"))
                if old:
                    db.execute(f"DELETE FROM {table} WHERE name = ?", (seals.SET,))
                    db.execute("PRAGMA user_version = 0")

    if old:
        put(b"\x93\x01\x02\x04", old=True)
        assert register.read()["cap"] == b"\x93\x01\x02\x04"
        register.change(lambda there: ({"cap": there["cap"]}, None))
        assert register.read() == {"cap": b"\x93\x01\x02\x04", "other": b""}
        put(b"\x93\x01\x02\x05")
        with pytest.raises(StoreError, match="damaged at 'cap'"):
            register.read()
        return
    whole = seals.sealed_value("cap", b"\x93\x01\x02\x03")
    for bit in range(8 * len(whole)):
        blob = bytearray(whole)
        blob[bit // 8] ^= 1 << bit % 8
        with pytest.raises(seals.BadSeal):
            seals.opened_value("cap", bytes(blob))
    with pytest.raises(seals.BadSeal):
        seals.opened_value("cop", whole)
    for name, value in ((b"cap", whole), ("cap", whole.decode("latin-1")), ("cap", None), ("cap", 7), (None, whole)):
        with pytest.raises(seals.BadSeal):  # a flipped bit in the header of a SQLite record is another type
            seals.opened_value(cast(Any, name), cast(Any, value))
    put(bytes(blob))
    for read in (register.read, lambda: register.change(lambda there: ({}, None))):
        with pytest.raises(StoreError, match=r"damaged at 'cap'.*backup"):
            read()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("lost", ["first", "last", "all", "list", "stale", "added"])
def test_a_small_value_that_was_lost_is_told(state: str, count: int, lost: str) -> None:
    """A budget that is gone bounds nothing."""
    folder = StateFolder(state).prepare()
    register = folder.register("budgets")
    names = [f"budget {n}" for n in range(count)]
    register.change(lambda there: (dict.fromkeys(names, b"\x93\x01\x02\x03"), None))
    register.change(lambda there: ({"removed": b"1"}, None))
    register.change(lambda there: ({"removed": None, names[0]: b"\x93\x01\x02\x04"}, None))
    assert list(register.read()) == names
    remote = state.startswith("postgres")
    table, key = ("cortex_notes", "value") if remote else ("budgets", "blob")

    def run(statement: str, *values: object) -> None:
        if remote:
            folder._link.count(statement.replace("?", "%s"), values)
        else:
            with closing(sqlite3.connect(Path(state) / "budgets.sqlite")) as db, db:
                db.execute(statement, values)

    stale = seals.sealed_value(names[0], b"\x93\x01\x02\x03")
    match lost:
        case "first" | "last":
            run(f"DELETE FROM {table} WHERE name = ?", names[0 if lost == "first" else -1])
        case "all" | "list":
            run(f"DELETE FROM {table}" + (f" WHERE name = '{seals.SET}'" if lost == "list" else ""))
            if remote:  # a table has no header: as if nothing had been set, or by an earlier release
                assert list(register.read()) == (names if lost == "list" else [])
                return
        case "stale":
            run(f"UPDATE {table} SET {key} = ? WHERE name = ?", stale, names[0])
        case _:
            kind = "kind, " if remote else ""
            place = "'budgets', " if remote else ""
            run(f"INSERT INTO {table} ({kind}name, {key}) VALUES ({place}?, ?)", "z", seals.sealed_value("z", b"1"))
    for read in (register.read, lambda: register.change(lambda there: ({}, None))):
        with pytest.raises(StoreError, match=r"damaged at .*backup"):
            read()


@pytest.mark.parametrize("count", [1, 3, 15])
def test_no_flipped_bit_of_a_file_of_budgets_loses_one_without_a_word(tmp_path: Path, count: int) -> None:
    """The bits that say how many rows there are: in the header, in the schema's page, and in that of the values."""
    path = tmp_path / "budgets.sqlite"
    right = {f"team=n{n} a day": b"\x93\x01\x02\x03" for n in range(count)}
    FileKeyValues(path).change(lambda there: (right, None))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = int(db.execute("PRAGMA page_size").fetchone()[0])
        root = int(db.execute("SELECT rootpage FROM sqlite_master").fetchone()[0])
    whole = path.read_bytes()
    page = (root - 1) * size
    for at in (*range(56, 64), *range(100, 110), *range(page, page + 8 + 2 * (count + 1))):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            for name in ("-wal", "-shm"):
                path.with_name(path.name + name).unlink(missing_ok=True)
            path.write_bytes(damaged)
            with contextlib.suppress(StoreError):
                assert FileKeyValues(path).read() == right, f"bit {bit} of byte {at}"


def test_an_index_of_replies_that_was_changed_says_what_to_do(tmp_path: Path) -> None:
    """A flipped hash would be a question that is asked, and paid, again."""
    path = tmp_path / "replies.sqlite"
    with closing(FileReplyIndex(path)) as index:
        index.put("j", 7, [(bytes([number]) * 16, 7, number) for number in range(9)])
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (whole,) = db.execute("SELECT replies FROM unsorted").fetchone()
    for at in range(0, len(whole), 7):
        blob = bytearray(whole)
        blob[at] ^= 4
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE unsorted SET replies = ?", (bytes(blob),))
        with closing(FileReplyIndex(path)) as index, pytest.raises(StoreError, match=r"damaged; .* may be removed"):
            list(index.find([bytes([3]) * 16]))
