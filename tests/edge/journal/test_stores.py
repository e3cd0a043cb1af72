"""What a journal and a state folder promise, wherever they are kept: files of this machine, or a database."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from actors.journal.journal import (
    ContentRemoved,
    Fenced,
    JobHeld,
    Journal,
    NoSuchJob,
    StateFolder,
    StoreError,
    TextRedacted,
    UnsupportedFormat,
)
from actors.journal.postgres import job_lock
from actors.journal.stores import STORES, JournalStore, examples, known, store_of
from cortex.journal import codec
from cortex.state import events
from tests.cli.cli_runner import ROOT
from tests.support.patience import PATIENCE_S


@pytest.fixture
def folder(state: str) -> StateFolder:
    return StateFolder(state).prepare()


@pytest.fixture
def mine(folder: StateFolder) -> Iterator[Journal]:
    made = folder.journal("j", create=True)
    made.take_epoch(b"{}")
    yield made
    made.close()


def _turn(at_s: float, *more: events.Event) -> bytes:
    return codec.encode_turn(at_s, [codec.encode_batch([events.Ticked(), *more])], b"")


def _times(source: Journal, after: int = 0) -> list[float]:
    return [turn.at_s for _, turn in source.turns(after)]


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.folder)
def test_each_row_of_the_registry_names_what_is_there(store: JournalStore) -> None:
    assert issubclass(store.load(store.folder), StateFolder)
    checks = store.load(store.checks)
    assert callable(checks.state) and callable(checks.room)
    assert not store.accounts or all(hasattr(store.load(store.accounts), name) for name in ("ask", "leave", "cap"))
    assert bool(store.extra) == bool(store.distribution), "nodes are asked for what the extra installs"


def test_the_store_is_chosen_by_the_beginning_of_the_address() -> None:
    assert [store_of(each) is STORES[0] for each in ("postgres://h/d", "postgresql://h/d", ".cortex")] == [
        True,
        True,
        False,
    ]
    assert (known("postgresql://h/d"), known(".cortex"), known("mysql://h/d")) == (True, True, False)
    assert examples(STORES) == "postgresql://…"
    with pytest.raises(StoreError, match=r"a database needs the extra q: pip install 'cortex-bounded-calls\[q\]'"):
        JournalStore(schemes=("q://",), folder="", checks="", extra="q").load("actors.journal.no_such_store:Folder")


def test_what_is_not_made_is_not_there(state: str) -> None:
    bare = StateFolder(state)
    assert (bare.jobs(), bare.has("j"), bare.size_bytes("j"), bare.changed_s("j")) == ([], False, 0, 0.0)
    assert bare.whose(b"x" * 16) == ("", 0)
    assert (bare.note("live", "j"), bare.notes("live"), bare.is_held("j")) == (None, [], False)
    for look in (bare, bare.prepare()):
        with pytest.raises(NoSuchJob, match="no job 'j' in"):
            look.journal("j")
    with pytest.raises(StoreError, match="job name"):
        bare.journal("a/b", create=True)


def test_turns_stand_by_their_numbers(folder: StateFolder, mine: Journal) -> None:
    assert mine.append([_turn(1.0)]) == 1
    assert mine.append([_turn(float(at)) for at in range(2, 101)]) == 100
    reader = folder.journal("j")
    assert reader.seq == 100
    assert _times(reader) == [float(at) for at in range(1, 101)]
    assert _times(reader, 97) == [98.0, 99.0, 100.0]
    assert [seq for seq, _ in reader.page(10, 3)] == [11, 12, 13]
    assert [seq for seq, _ in reader.blobs(2)] == [1, 2]
    assert reader.first_at_s() == 1.0
    assert folder.size_bytes("j") >= sum(len(blob) for _, blob in reader.blobs(100))
    mine.append([_turn(101.0)])
    assert [seq for seq, _ in reader.page(99, 9)] == [100, 101], "a page sees what was written since"
    reader.close()


def test_a_reading_is_of_one_moment(folder: StateFolder, mine: Journal) -> None:
    mine.append([_turn(1.0)])
    reader = folder.journal("j")
    with reader.as_it_is():
        assert reader.meta("fact") is None
        mine.append([_turn(2.0)])
        mine.set_meta("fact", b"new")
        assert (_times(reader), reader.meta("fact")) == ([1.0], None)
    assert (_times(reader), reader.meta("fact")) == ([1.0, 2.0], b"new")
    reader.close()


def test_turns_that_hold_what_is_looked_for(mine: Journal) -> None:
    mine.append(
        [
            _turn(1.0),
            _turn(2.0, events.AnswerGiven("ann", "x%y'z", 1)),
            _turn(3.0, events.AnswerGiven("bob", "x%y'z", 2)),
        ]
    )
    assert [seq for seq, _ in mine.turns_with((b"x%y'z",))] == [2, 3]
    assert [seq for seq, _ in mine.turns_with((b"x%y'z", b"bob"))] == [3]
    assert [seq for seq, _ in mine.turns_with((b"x%y'z",), after=2)] == [3]


def test_the_last_account_of_a_turn_is_found_from_behind(mine: Journal) -> None:
    for at, account in enumerate((b"one", b"", b"three", b""), 1):
        mine.append([codec.encode_turn(float(at), [codec.encode_batch([events.Ticked()])], account)])
    assert [mine.account(upto) for upto in (0, 1, 2, 3, 4)] == [b"", b"one", b"one", b"three", b"three"]


def test_snapshots_the_latest_first(mine: Journal) -> None:
    mine.append([_turn(float(at)) for at in range(1, 10)])
    for seq, emitted in ((2, 10), (5, 20), (8, 30)):
        mine.snapshot(seq, emitted, b"K%d" % seq)
    mine.snapshot(8, 31, b"K8 again")
    assert mine.latest_snapshot() == (8, b"K8 again")
    assert mine.latest_snapshot(emitted_max=30) == (5, b"K5")
    assert mine.latest_snapshot(upto=4) == (2, b"K2")
    assert mine.latest_snapshot(emitted_max=9) is None
    assert list(mine.snapshots(2, 8)) == [(8, b"K8 again"), (5, b"K5")]
    assert mine.replay_from() == 8
    mine.set_meta("opened_at", b"8")
    assert (mine.replay_from(), mine.latest_snapshot()) == (8, None)


def test_old_snapshots_go_with_the_one_that_is_written(folder: StateFolder, mine: Journal) -> None:
    mine.append([_turn(float(at)) for at in range(1, 10)])
    for seq in (1, 3, 5):
        mine.snapshot(seq, seq, b"K%d" % seq)
    mine.snapshot(7, 7, b"K7", keep=2)
    assert list(mine.snapshots(0, 9)) == [(7, b"K7"), (5, b"K5")]
    mine.snapshot(8, 8, b"K8", keep=1)
    assert list(mine.snapshots(0, 9)) == [(8, b"K8")]
    mine.snapshot(9, 9, b"K9", keep=2)
    other = folder.journal("j")
    other.take_epoch(b"{}")
    with pytest.raises(Fenced):
        mine.snapshot(9, 9, b"late", keep=1)
    assert list(other.snapshots(0, 9)) == [(9, b"K9"), (8, b"K8")], "the one is written and the others go, or neither"
    other.close()


def test_whose_epoch_is_over_writes_nothing(folder: StateFolder, mine: Journal) -> None:
    mine.append([_turn(1.0)])
    other = folder.journal("j")
    assert other.take_epoch(b"{}") == 2
    writings = (
        lambda: mine.append([_turn(2.0)]), lambda: mine.append([_turn(2.0), _turn(3.0)]),
        lambda: mine.snapshot(1, 1, b"K"), lambda: mine.set_meta("fact", b"x"), lambda: mine.drop(1),
    )  # fmt: skip
    for writes in writings:
        with pytest.raises(Fenced, match="another run has taken the job over"):
            writes()
    assert (_times(other), other.meta("fact"), other.latest_snapshot()) == ([1.0], None, None)
    other.append([_turn(5.0)])
    assert _times(other) == [1.0, 5.0]
    other.close()


def test_what_was_dropped_is_gone_and_said(mine: Journal) -> None:
    mine.append([_turn(float(at)) for at in range(1, 6)])
    mine.snapshot(1, 0, b"K1")
    mine.snapshot(3, 0, b"K3")
    mine.drop(3)
    assert (mine.dropped(), mine.first_at_s(), mine.latest_snapshot()) == (3, 1.0, (3, b"K3"))
    assert _times(mine, 3) == [4.0, 5.0]
    with pytest.raises(TextRedacted):
        list(mine.turns())
    mine.drop(5, shrink=True)
    assert mine.append([_turn(6.0)]) == 6
    assert _times(mine, 5) == [6.0]


def test_what_was_forgotten_leaves_its_figures(folder: StateFolder, mine: Journal) -> None:
    mine.append([_turn(1.0, events.AnswerGiven("ann", "secret words", 1))])
    mine.snapshot(1, 0, b"secret K")
    again = folder.journal("j")
    again.forget(b'{"rows":1}')
    again.close()
    with pytest.raises(Fenced):
        mine.append([_turn(2.0)])
    with pytest.raises(ContentRemoved, match="job j was forgotten"):
        folder.journal("j")
    left = folder.journal("j", forgotten_too=True)
    assert left.meta("forgotten") == b'{"rows":1}'
    assert (_times(left), list(left.snapshots(0, 99)), left.meta("owner")) == ([], [], None)
    left.close()


def test_one_of_another_format_is_refused_in_one_line_that_names_both(folder: StateFolder, mine: Journal) -> None:
    mine.set_meta("format", b"%d" % (codec.FORMAT + 1))
    text = rf"job j was written by a newer release \(journal format {codec.FORMAT + 1}, this one reads {codec.FORMAT}\)"
    with pytest.raises(UnsupportedFormat, match=text + ": upgrade cortex-bounded-calls to open it$"):
        folder.journal("j")
    mine.set_meta("format", b"%d" % (codec.OLDEST - 1))
    with pytest.raises(UnsupportedFormat, match=r"an older release .*: open it with the release that wrote it$"):
        folder.journal("j")


def test_one_of_an_older_format_is_read_as_it_is_and_takes_the_new_one_when_it_is_written(
    folder: StateFolder, mine: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine.append([_turn(1.0)])
    monkeypatch.setattr(codec, "FORMAT", codec.OLDEST + 1)
    reader = folder.journal("j")
    assert (_times(reader), reader.meta("format")) == ([1.0], b"%d" % codec.OLDEST), (
        "whoever only looks changes nothing"
    )
    reader.take_epoch(b"{}")
    assert reader.meta("format") == b"%d" % (codec.OLDEST + 1)
    monkeypatch.setattr(codec, "FORMAT", codec.OLDEST)
    with pytest.raises(UnsupportedFormat, match="newer release"):
        folder.journal("j")


def test_one_that_is_being_made_is_there_whole_or_never(folder: StateFolder) -> None:
    with pytest.raises(ZeroDivisionError), folder.making("new") as made:
        made.take_epoch(b"{}")
        made.append([_turn(1.0)])
        assert folder.jobs() == []
        assert 1 / 0
    assert (folder.jobs(), folder.has("new")) == ([], False)
    with folder.making("new") as made:
        assert made.take_epoch(b"{}", least=7) == 7
        made.append([_turn(2.0)])
    found = folder.journal("new")
    assert (folder.jobs(), _times(found), found.newest_epoch()) == (["new"], [2.0], 7)
    found.close()


def test_jobs_the_latest_written_first(folder: StateFolder) -> None:
    for name in ("a", "b", "c"):
        folder.journal(name, create=True).close()
    marks = {name: folder.mark(name) for name in "abc"}
    time.sleep(0.02)  # times of files are as coarse as the kernel's tick, and two within one are of one time
    source = folder.journal("a")
    source.take_epoch(b"{}")
    source.append([_turn(1.0)])
    source.close()
    assert folder.jobs()[0] == "a"
    assert folder.changed_s("a") >= folder.changed_s("c") > 1e9
    assert [name for name in "abc" if folder.mark(name) != marks[name]] == ["a"]
    folder.remove("a")
    assert not folder.has("a")
    assert set(folder.jobs()) == {"b", "c"}


def test_one_holder_at_a_time_until_it_dies(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.is_attended("j") is None
    with folder.hold("j"):
        assert (folder.is_held("j"), folder.is_held("other")) == (True, False)
        with folder.attend("j"):  # its channel and its driver are two processes
            assert (folder.is_attended("j"), folder.is_attended("other")) == (True, None)
            with pytest.raises(JobHeld), folder.attend("j"):
                pass
        assert (folder.is_attended("j"), folder.is_held("j")) == (False, True)
        with pytest.raises(JobHeld), folder.hold("j"):
            pass
    assert not folder.is_held("j")
    script = (
        "import sys; from actors.journal.journal import StateFolder\n"
        f"with StateFolder({folder.address!r}).hold('j'): print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert folder.is_held("j")
        child.kill()
        child.wait()
    # a server ends the session of a process that has died once it comes to it
    monkeypatch.setattr(job_lock, "_TRIES", int(PATIENCE_S / job_lock._TRY_AGAIN_S))
    with folder.hold("j"):
        assert folder.is_held("j")


def test_notes_are_left_taken_and_swapped(folder: StateFolder) -> None:
    folder.put_note("live", "b", b"1")
    folder.put_note("live", "a", b"2")
    before = folder.note_mark("live", "a")
    folder.put_note("live", "a", b"33")
    assert folder.note_mark("live", "a") != before
    assert (folder.notes("live"), folder.note("live", "a"), folder.note("live", "c")) == (["a", "b"], b"33", None)
    assert folder.swap_note("control", "a", None, b"x")
    assert not folder.swap_note("control", "a", None, b"y")
    assert not folder.swap_note("control", "a", b"y", b"z")
    assert folder.swap_note("control", "a", b"x", b"z")
    assert folder.note("control", "a") == b"z"
    folder.drop_note("control", "a")
    folder.drop_note("control", "a")
    assert folder.note("control", "a") is None
    assert folder.swap_note("limits", "", None, b"{}")


def test_replies_are_remembered_by_job(folder: StateFolder) -> None:
    index = folder.index()
    assert index.empty()
    index.put("one", 4, [(b"a" * 16, 3, 0), (b"b" * 16, 4, 2)])
    index.put("two", 9, [(b"c" * 16, 9, 1)])
    index.put("two", 11, [])
    found = sorted(index.find([bytes([letter]) * 16 for letter in b"cbx"]))
    assert found == [(b"b" * 16, "one", 4, 2), (b"c" * 16, "two", 9, 1)]
    assert (index.seq_of("one"), index.seq_of("two"), index.seq_of("three")) == (4, 11, 0)
    assert folder.whose(b"a" * 16) == ("one", 3)
    index.put("two", 12, [(b"a" * 16, 12, 0)])
    assert folder.whose(b"a" * 16) == ("two", 12)
    index.close()
    folder.unremember(["two"])
    assert folder.whose(b"a" * 16) in (("", 0), ("one", 3))  # whether the older place was written over by then
    assert folder.whose(b"b" * 16) == ("one", 4)


def test_a_large_turn_and_many_small_ones(mine: Journal) -> None:
    large = codec.encode_turn(1.0, [codec.encode_batch([events.AnswerGiven("ann", "n", "x" * 9_000_000)])], b"")
    mine.append([large])
    mine.append([_turn(float(at)) for at in range(2, 1_500)])
    assert [seq for seq, _ in mine.blobs(2_000)] == list(range(1, 1_500))
    event = mine.event(1, 0)
    assert isinstance(event, events.AnswerGiven)
    assert len(msgspec.to_builtins(event.value)) == 9_000_000


def test_several_change_a_register_one_at_a_time(state: str, folder: StateFolder) -> None:
    bare, register = StateFolder(state).register("budgets"), folder.register("budgets")
    assert bare.read() == {}

    def more(there: dict[str, bytes]) -> tuple[dict[str, bytes | None], int]:
        count = int(there.get("count", b"0")) + 1
        return {"count": b"%d" % count, "gone": None}, count

    def work() -> None:
        mine = StateFolder(state).register("budgets")
        for _ in range(20):
            mine.change(more)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert register.change(more) == 61
    assert register.read() == {"count": b"61"}
    with pytest.raises(ValueError, match="not this"):
        register.change(_fails)
    assert register.change(lambda there: ({"count": None}, sorted(there))) == ["count"]
    assert (register.read(), folder.register("others").read()) == ({}, {})


def _fails(there: dict[str, bytes]) -> tuple[dict[str, bytes | None], None]:
    raise ValueError("not this")


def test_a_line_stays_when_its_job_goes(state: str, folder: StateFolder, mine: Journal) -> None:
    assert list(StateFolder(state).lines("spent")) == []
    folder.add_line("spent", b'{"job":"j"}')
    folder.add_line("spent", b'{"job":"k"}')
    mine.close()
    folder.remove("j")
    assert [line for _, line in StateFolder(state).lines("spent")] == [b'{"job":"j"}', b'{"job":"k"}']


def test_a_plan_knows_what_is_remembered(state: str, folder: StateFolder) -> None:
    assert (StateFolder(state).remembers(), StateFolder(state).remembered([b"a" * 16])) == (False, set())
    index = folder.index()
    index.put("one", 4, [(bytes([at]) * 16, 3, at) for at in range(200)])
    index.close()
    assert folder.remembers()
    questions = [bytes([at % 256]) * 16 for at in range(150, 250)]
    assert folder.remembered(questions) == {bytes([at]) * 16 for at in range(150, 200)}
