"""Files of this machine: no planted link is followed, no folder of another user is used, and errors are told apart."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from pathlib import Path

import pytest

from actors.cli.admin.backup import backup
from actors.cli.options.atomic_write import check_free, whole
from actors.cli.options.errors import error_line
from actors.cli.options.options import Options
from actors.cli.run.sinks import check_output
from actors.common.errors import CommandError
from actors.files.bad_records import replaced
from actors.files.errors import SinkError, SinkFailed
from actors.files.local.new_files import is_of_another, is_private, opened_new, touched
from actors.files.local.os_errors import LIMITS, WORDS, told
from actors.files.sinks.jsonl_sink import FileSink
from actors.files.sinks.table_sink import TableSink, _made
from actors.jobs.bad_record_list import named_list
from actors.jobs.sink_selection import results_sink
from actors.journal.errors import DiskFull, StoreError
from actors.journal.journal import StateFolder
from actors.journal.postgres import dsn
from actors.journal.sqlite import disk, folder
from actors.journal.sqlite.storage import error_line as sqlite_line
from actors.programs.saved import _put


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file of the victim, to which a link was planted under the name of a file that is being made."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".out.part").symlink_to(victim)
    return victim


def _atomic(place: Path) -> None:
    with whole(str(place)) as half:
        half.write_bytes(b"new")


def _bad(place: Path) -> None:
    with replaced(place) as file:
        file.write(b"new")


def _table(place: Path) -> None:
    part = place.with_name(f".{place.name}.part")
    with _made(part, "wb", place) as file:
        file.write(b"new")
    os.replace(part, place)


@pytest.mark.parametrize("write", [_atomic, _bad, _table, lambda place: _put(place, b"new")])
def test_a_planted_link_is_not_written_through(theirs: Path, write) -> None:
    place = theirs.with_name("out")
    write(place)
    assert theirs.read_text() == "precious"
    assert place.read_bytes() == b"new" and not place.is_symlink()


def test_rows_beside_a_table_are_not_written_through_a_link(theirs: Path) -> None:
    sink = FileSink(str(theirs.with_name(".out.part")), overwrite=True, hidden=True)
    with pytest.raises(SinkError):
        sink.open(0, 0, True)
    assert theirs.read_text() == "precious"


def test_an_output_that_the_user_names_may_be_a_link(theirs: Path) -> None:
    sink = FileSink(str(theirs.with_name(".out.part")), overwrite=True)
    sink.open(0, 0, False)
    sink.write([b"{}"])
    sink.flush()
    sink.close()
    assert theirs.read_text() == "{}\n"


@pytest.fixture
def link(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A link whose target is missing."""
    (tmp_path / "there").mkdir()
    link = tmp_path / f"link{request.param}"
    link.symlink_to(tmp_path / "there" / f"made{request.param}")
    return link


def _sink(link: Path, overwrite: bool = False) -> FileSink | TableSink:
    folder = StateFolder(link.parent / "state").prepare()
    sink = results_sink(folder, "j", str(link), "", overwrite, {}, "batch", own=True)
    assert sink is not None
    return sink


def _backed_up(link: Path) -> None:
    state = StateFolder(link.parent / "state").prepare()
    backup(str(link), Options(state=str(state.path)))


DOORS = {
    "results": lambda link: check_output(_sink(link), str(link), False),
    "report": lambda link: check_free(str(link), False),
    "bad": lambda link: named_list(str(link), ()),
    "backup": lambda link: _backed_up(link),
}


@pytest.mark.parametrize("link", [".jsonl", ".csv", ".parquet", ".jsonl.gz"], indirect=True)
@pytest.mark.parametrize("door", DOORS)
def test_a_link_to_nothing_is_a_name_that_is_taken(link: Path, door: str) -> None:
    with pytest.raises((SinkError, CommandError), match=r"link\S* (exists|is a link)"):
        DOORS[door](link)
    assert link.is_symlink() and not any((link.parent / "there").iterdir())


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("link", [".jsonl", ".csv", ".parquet"], indirect=True)
def test_results_are_written_where_the_users_link_points_and_the_link_stays(link: Path, before: str | None) -> None:
    if before is not None:
        link.write_text(before)
    sink = _sink(link, overwrite=True)
    check_output(sink, str(link), True)
    sink.open(0, 0, False)
    sink.write([b'{"custom_id":"a","result":{"type":"canceled"}}'])
    sink.flush()
    sink.close()
    assert link.is_symlink() and b"custom_id" in Path(os.path.realpath(link)).read_bytes()


@pytest.mark.parametrize("link", [".jsonl", ".csv"], indirect=True)
def test_a_link_into_a_folder_that_is_missing_is_refused_before_anything_is_paid(link: Path) -> None:
    (link.parent / "there").rmdir()
    with pytest.raises(SinkError, match="there"):
        check_output(_sink(link, overwrite=True), str(link), True)


@pytest.mark.parametrize("link", [".html"], indirect=True)
def test_a_report_over_a_link_to_nothing_is_written_at_its_target(link: Path) -> None:
    check_free(str(link), True)
    with whole(str(link)) as half:
        half.write_bytes(b"new")
    assert link.is_symlink() and link.read_bytes() == b"new"


def test_a_new_file_takes_the_place_of_an_old_one_with_the_mode_of_the_umask(tmp_path: Path) -> None:
    place = tmp_path / "x"
    place.write_text("old")
    place.chmod(0o600)
    before = os.umask(0o022)
    try:
        os.close(opened_new(place))
        touched(tmp_path / "own")
    finally:
        os.umask(before)
    assert place.read_bytes() == b"" and place.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["own", "open to others", "a link", "a file"])
def test_a_temporary_folder_that_is_not_this_users_alone_is_refused(tmp_path: Path, monkeypatch, kind: str) -> None:
    monkeypatch.setattr(dsn.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"cortex-{os.getuid()}"
    if kind == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "a file":
        folder.write_text("")
    if kind == "own":
        assert dsn._temporary() == folder and is_private(folder) and dsn._temporary() == folder
    else:
        with pytest.raises(StoreError, match=r"remove it, or set XDG_STATE_HOME|set XDG_STATE_HOME"):
            dsn._temporary()


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o000])
def test_a_state_folder_is_its_owners_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        folder = StateFolder(tmp_path / "deep" / "state").prepare()
        folder.register("budgets").change(lambda values: ({"a": b"1"}, None))
        folder.index().close()
        folder.journal("j", create=True).close()
    finally:
        os.umask(before)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    for path in folder.path.rglob("*"):
        if path.name != ".gitignore":
            assert not path.stat().st_mode & 0o077, path


def test_a_state_folder_of_an_older_release_is_tightened_and_one_with_other_files_is_told(tmp_path: Path, caplog) -> None:
    for name, more in (("old", ""), ("shared", "notes.txt")):
        folder = StateFolder(tmp_path / name).prepare()
        folder.path.chmod(0o777)
        if more:
            (folder.path / more).write_text("")
        folder.prepare()
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o777
    (warned,) = caplog.messages
    assert "others may write to the state folder" in warned and "chmod go-w" in warned


@pytest.mark.parametrize(
    ("owner", "own", "sudo", "other"),
    [
        (1000, 1000, "", False), (1000, 1001, "", True), (0, 1001, "", False), (0, 0, "", False), (1000, 0, "", True),
        (1000, 0, "1000", False), (1000, 0, "1001", True), (1000, 1001, "1000", True),
    ],
)  # fmt: skip
def test_files_of_this_user_of_root_and_of_who_called_sudo_are_trusted(
    monkeypatch: pytest.MonkeyPatch, owner: int, own: int, sudo: str, other: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: own)
    monkeypatch.setenv("SUDO_UID", sudo)
    assert is_of_another(owner) is other


def test_a_state_folder_of_another_user_is_told_once_by_whatever_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    StateFolder(tmp_path / "s").prepare().journal("j", create=True).close()
    assert not caplog.messages
    monkeypatch.setattr(folder, "is_of_another", lambda owner: True)
    StateFolder(tmp_path / "s").journal("j").close()
    StateFolder(tmp_path / "s").prepare().journal("j").close()
    (warned,) = caplog.messages
    assert f"the state folder {tmp_path / 's'} belongs to the user " in warned and "chown -R" in warned


@pytest.mark.parametrize("number", sorted(WORDS))
def test_each_error_has_its_own_words_and_what_to_do(tmp_path: Path, monkeypatch, number: int) -> None:
    error = OSError(number, os.strerror(number), "x")
    text = told(error)
    assert ": " in text and "\n" not in text
    assert [each for each in WORDS if told(OSError(each, "")) == text] == [number]
    monkeypatch.setattr(disk, "_tried", lambda path: error)
    found = sqlite_line(sqlite3.OperationalError("disk I/O error"), tmp_path / "j.sqlite")
    assert isinstance(found, DiskFull) and str(found).endswith("then resume")
    assert ("is full" in str(found)) == (number == errno.ENOSPC) and text.rpartition(": ")[2] in str(found)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_an_output_on_such_a_disk_says_which(tmp_path: Path, number: int) -> None:
    def fails(fd: int) -> None:
        raise OSError(number, "nonsense")

    sink = FileSink(str(tmp_path / "out.jsonl"), fsync=fails)
    sink.open(0, 0, False)
    sink.write([b"{}"])
    with pytest.raises(SinkFailed, match=WORDS[number][0].split(",")[0].replace("(", r"\(").replace(")", r"\)")):
        sink.flush()
    sink.close()


def test_too_few_files_are_no_fault_of_this_project() -> None:
    assert error_line(OSError(errno.EMFILE, "Too many open files")) == (
        1, "this process may open no more files: raise the limit (`ulimit -n 1024`)"
    )  # fmt: skip
    assert error_line(OSError(errno.ENOENT, "x")) is None


@pytest.mark.parametrize("number", sorted(LIMITS))
def test_what_fails_in_turn_is_told_as_the_limit_that_it_came_of(number: int) -> None:
    """Under `ulimit -n 12` the event loop cannot begin, its tasks cannot be cancelled, and it cannot be closed."""

    def fails(text: str) -> None:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError, match="Cannot close") as last, contextlib.ExitStack() as closing:
        closing.callback(fails, "Cannot close a running event loop")
        closing.callback(fails, "this event loop is already running.")
        raise OSError(number, os.strerror(number))
    assert error_line(last.value) == (1, told(OSError(number, "")))
    try:
        raise RuntimeError("of its own") from None
    except RuntimeError as error:
        error.__context__, error.__suppress_context__ = OSError(number, "x"), True
        assert error_line(error) is None


def test_the_error_of_the_disk_is_asked_for_once_more(tmp_path: Path) -> None:
    place = tmp_path / "j.sqlite"
    place.write_bytes(b"")
    assert "the disk fails" in str(disk.disk_error(sqlite3.OperationalError("disk I/O error"), place))
    assert list(tmp_path.iterdir()) == [place]
    gone = tmp_path / "gone" / "j.sqlite"
    assert "no such file or folder" in str(disk.disk_error(sqlite3.OperationalError("unable to open database file"), gone))
    assert disk.disk_error(sqlite3.OperationalError("near x: syntax error"), place) is None
