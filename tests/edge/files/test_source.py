"""A batch's source: checked whole, then read a window at a time, from any place on."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.files import duplicates, line_reader
from actors.files.batch_request import LINE_BYTES_MAX
from actors.files.sources import row_source
from actors.files.sources.row_source import BatchSource, InputCheck, InputProblem, SourceError, SourceWindow
from tests.support.repository_rules import ROOT


def line(custom_id: Any, **changes: Any) -> bytes:
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}], **changes}
    return json.dumps({"custom_id": custom_id, "params": params}).encode() + b"\n"


def lines(count: int) -> bytes:
    return b"".join(line(f"row-{number}") for number in range(count))


@pytest.fixture
def open_source(tmp_path):
    """A source over these bytes, in a file of that name; closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(content: bytes | None, name: str = "in.jsonl", **options: Any) -> BatchSource:
            if content is not None:
                packed = gzip.compress(content) if name.endswith(".gz") else content
                (tmp_path / name).write_bytes(packed)
            options = {"model": None, "output_tokens_max": None, "spool": tmp_path / "spool" / "input", **options}
            made = BatchSource(name if name == "-" else str(tmp_path / name), **options)
            stack.callback(made.close)
            return made

        yield make


def windows(read_from: BatchSource, rows_max: int = 3) -> list[SourceWindow]:
    found = []
    while not found or not found[-1].ended:
        found.append(read_from.read(rows_max))
    return found


def keys(read_from: BatchSource, rows_max: int = 3) -> list[str]:
    return [row.key for window in windows(read_from, rows_max) for row in window.rows]


# ------------------------------------------------------------------------------------------------------ the check


def test_check_of_a_good_input(open_source):
    content = lines(25)
    check = open_source(content).check()
    assert check == InputCheck(25, 0, (), 0, 0, len(content), check.digest, ("m",))


def test_check_tells_bad_lines_apart(open_source):
    content = line("a") + b"\n" + b"{oops\n" + line("b", max_tokens=-1) + line("a") + line("c", model="n")
    check = open_source(content).check()
    assert (check.rows, check.refused, check.unreadable, check.problems_more) == (3, 1, 2, 0)
    assert [problem.line for problem in check.problems] == [3, 4, 5]
    assert check.problems[1] == InputProblem(4, "max_tokens is -1: it must not be negative")
    assert check.problems[2] == InputProblem(5, "custom_id 'a' stands on line 1 already: give another")
    assert check.models == ("m", "n")


def test_only_ten_problems_are_told(open_source):
    check = open_source(b"{oops\n" * 13 + line("a")).check()
    assert [problem.line for problem in check.problems] == list(range(1, 11))
    assert (check.problems_more, check.unreadable) == (3, 13)


def test_doubled_row_counts_once_whatever_else_is_wrong_with_it(open_source):
    check = open_source(line("a", stream=True) + line("a", stream=True) + line("b")).check()
    assert (check.rows, check.refused, check.unreadable) == (2, 1, 1)
    assert [problem.line for problem in check.problems] == [1, 2]


def test_model_given_is_the_only_one(open_source):
    assert open_source(line("a") + line("b", model="n"), model="other").check().models == ("other",)


def test_digest_is_of_the_content(open_source):
    plain = open_source(lines(3)).check()
    assert open_source(lines(3), "in.jsonl.gz").check() == plain
    assert open_source(lines(4), "more.jsonl").check().digest != plain.digest
    assert open_source(lines(3) + b"\n", "blank.jsonl").check().digest != plain.digest


# ------------------------------------------------------------------------------------------------- doubled names


def test_a_hash_shared_by_two_names_is_not_a_double(open_source, monkeypatch):
    monkeypatch.setattr(duplicates, "hash", lambda name: len(name), raising=False)
    content = line("a") + line("b") + line("a") + line("cc") + line("dd")
    read_from = open_source(content)
    assert read_from.check().unreadable == 1
    assert read_from.check().problems == (InputProblem(3, "custom_id 'a' stands on line 1 already: give another"),)
    assert keys(read_from) == ["a", "b", "cc", "dd"]


def test_the_first_of_doubled_rows_is_read_from_any_place(open_source):
    content = b"".join(line(name) for name in "abacbda")
    read_from = open_source(content)
    assert keys(read_from) == ["a", "b", "c", "d"]
    size = len(line("a"))
    for start, rest in enumerate(["abcd", "bcd", "cd", "cd", "d", "d", "", ""]):
        read_from.seek(start * size)
        assert "".join(keys(read_from, 1)) == rest


def test_hashes_take_eight_bytes_a_name():
    hashes = duplicates.HashBuckets()
    for number in range(100_000):
        hashes.add(f"row-{number}")
    taken = sum(sys.getsizeof(bucket) for bucket in hashes._buckets)
    assert taken < 100_000 * 8 * 1.2 + 1_024 * 100
    assert hashes.repeated() == frozenset()
    hashes.add("row-77")
    assert len(hashes.repeated()) == 1


def test_too_many_doubled_names_are_a_mistake(open_source, monkeypatch):
    monkeypatch.setattr(duplicates, "SUSPECTS_MAX", 3)
    assert open_source(lines(3) * 2).check().unreadable == 3
    with pytest.raises(SourceError, match="custom_ids stand twice: give each row one of its own"):
        open_source(lines(4) * 2, "more.jsonl").check()


# ------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_reading_goes_on_from_every_position(open_source, name):
    content = line("a") + b"{oops\n\n" + line("b", max_tokens=-1) + line("a") + line("c") + b"\n"
    read_from = open_source(content, name)
    whole = [window.rows[0] for window in windows(read_from, 1) if window.rows]
    assert [row.key for row in whole] == ["a", "b", "c"]
    assert whole[1].refusal and not whole[1].body
    read_from.seek(0)
    for place, window in enumerate(windows(read_from, 1), 1):
        other = open_source(None, name)
        other.seek(window.position)
        assert [row for later in windows(other) for row in later.rows] == whole[place:]
    assert window.position == len(content)


@pytest.mark.parametrize("count, rows_max", [(6, 3), (7, 3), (2, 3), (6, 100)])
def test_windows_hold_so_many_rows_and_the_last_says_so(open_source, count, rows_max):
    found = windows(open_source(lines(count)), rows_max)
    assert [len(window.rows) for window in found[:-1]] == [rows_max] * (len(found) - 1)
    assert [window.ended for window in found] == [False] * (len(found) - 1) + [True]
    assert sum(len(window.rows) for window in found) == count
    assert len(found) == -(-count // rows_max)


def test_reading_at_the_end_is_an_empty_window(open_source):
    read_from = open_source(lines(2))
    assert read_from.read(5).ended
    assert read_from.read(5) == SourceWindow((), len(lines(2)), True)


def test_a_window_of_long_rows_ends_early(open_source, monkeypatch):
    monkeypatch.setattr(row_source, "WINDOW_BYTES_MAX", 2 * len(line("row-0")))
    assert [len(window.rows) for window in windows(open_source(lines(5)), 4)] == [2, 2, 1]


def test_rows_are_as_the_options_say(open_source):
    window = open_source(line("a"), model="other", output_tokens_max=2).read(1)
    assert json.loads(window.rows[0].body) == {
        "model": "other", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}],
    }  # fmt: skip
    assert window.rows[0].output_tokens_max == 2


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + line("a") + line("b"),
        line("a").replace(b"\n", b"\r\n") + line("b").replace(b"\n", b"\r\n"),
        b"\n\r\n  \t\n" + line("a") + b"\n\n" + line("b") + b"\n \n",
        line("a") + line("b").rstrip(),
        line("a") + b"\xef\xbb\xbf" + line("b"),
        b"\xef\xbb\xbf\n" + line("a") + b" " + line("b"),
    ],
    ids=["byte order mark", "CRLF", "blank lines", "no last newline", "appended with its mark", "indented"],
)
def test_layouts_that_are_tolerated(open_source, content):
    read_from = open_source(content)
    check = read_from.check()
    assert (check.rows, check.refused, check.unreadable) == (2, 0, 0)
    assert keys(read_from) == ["a", "b"]


def test_gzip_of_several_members(open_source, tmp_path):
    (tmp_path / "in.JSONL.GZ").write_bytes(gzip.compress(lines(2)) + gzip.compress(line("b")[:9]) +
                                           gzip.compress(line("b")[9:]))  # fmt: skip
    assert keys(open_source(None, "in.JSONL.GZ")) == ["row-0", "row-1", "b"]


def test_a_line_that_is_too_long_is_passed_over(open_source):
    long = b'{"custom_id":"long","params":{"x":"' + b"x" * (LINE_BYTES_MAX + (1 << 20)) + b'"}}\n'
    read_from = open_source(line("a") + long + line("b"))
    check = read_from.check()
    assert (check.rows, check.unreadable, check.problems[0].line) == (2, 1, 2)
    assert check.size_bytes == len(long) + 2 * len(line("a"))
    assert keys(read_from) == ["a", "b"]


# ------------------------------------------------------------------------------------------------- a changed file


def test_a_file_that_changes_after_the_check_is_noticed(open_source, tmp_path):
    read_from = open_source(lines(3))
    assert read_from.read(1).rows[0].key == "row-0"
    with (tmp_path / "in.jsonl").open("ab") as file:
        file.write(line("late"))
    with pytest.raises(SourceError, match="has changed since it was checked"):
        read_from.read(1)


def test_a_file_that_was_only_touched_is_read_on(open_source, tmp_path, monkeypatch):
    monkeypatch.setattr(line_reader, "READ_BYTES", 64)
    read_from = open_source(lines(3))
    assert read_from.read(1).rows[0].key == "row-0"
    os.utime(tmp_path / "in.jsonl", (1, 1))
    assert keys(read_from) == ["row-1", "row-2"]


def test_a_file_that_takes_its_name_is_not_read(open_source, tmp_path):
    read_from = open_source(lines(3))
    read_from.check()
    (tmp_path / "new").write_bytes(lines(9))
    os.replace(tmp_path / "new", tmp_path / "in.jsonl")
    assert keys(read_from) == ["row-0", "row-1", "row-2"]


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_a_position_beyond_the_end(open_source, name):
    with pytest.raises(SourceError, match="is shorter than when it was read before"):
        open_source(lines(3), name).seek(len(lines(3)) + 1)


# ------------------------------------------------------------------------------------------ standard input, pipes


class _Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True

    def read(self, *_: Any) -> bytes:
        pytest.fail("a terminal is waited for, though the input is kept")


def test_standard_input_is_kept_and_private(open_source, tmp_path):
    old = os.umask(0)
    try:
        assert keys(open_source(None, "-", stdin=io.BytesIO(lines(4)))) == [f"row-{n}" for n in range(4)]
    finally:
        os.umask(old)
    spool = tmp_path / "spool" / "input"
    assert spool.read_bytes() == lines(4)
    assert spool.stat().st_mode & 0o777 == 0o600
    assert spool.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(spool.parent) == ["input"]


@pytest.mark.parametrize("later", [io.BytesIO(lines(4)), io.BytesIO(b""), _Terminal()], ids=["same", "empty", "tty"])
def test_kept_input_is_used_again(open_source, later):
    open_source(None, "-", stdin=io.BytesIO(lines(4))).check()
    assert open_source(None, "-", stdin=later).check().rows == 4


def test_another_standard_input_is_another_job(open_source, tmp_path):
    open_source(None, "-", stdin=io.BytesIO(lines(4))).check()
    with pytest.raises(SourceError, match="standard input is not what this job began with: give another --job"):
        open_source(None, "-", stdin=io.BytesIO(lines(5))).check()
    assert (tmp_path / "spool" / "input").read_bytes() == lines(4)
    assert os.listdir(tmp_path / "spool") == ["input"]


class _Breaks(io.BytesIO):
    def read(self, *_: Any) -> bytes:
        if self.tell():
            raise KeyboardInterrupt
        return super().read(9)


def test_an_input_that_was_not_kept_whole_is_not_kept(open_source, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        open_source(None, "-", stdin=_Breaks(lines(4))).check()
    assert os.listdir(tmp_path / "spool") == []
    (tmp_path / "spool" / "input.part").write_bytes(b"left by a run that was killed")
    assert open_source(None, "-", stdin=io.BytesIO(lines(2))).check().rows == 2


def test_no_standard_input(open_source, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SourceError, match="standard input is closed: pipe the input in, or name a file"):
        open_source(None, "-").check()


def test_no_room_for_standard_input(open_source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"standard input cannot be kept in .*: a part of the path is a file"):
        open_source(None, "-", stdin=io.BytesIO(lines(1)), spool=tmp_path / "file" / "in" / "spool").check()


def test_a_named_pipe_is_kept(open_source, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", 'cat > "$0"', str(tmp_path / "pipe")], stdin=subprocess.PIPE) as writer:
        writer.stdin.write(lines(3))
        writer.stdin.close()
        assert keys(open_source(None, "pipe")) == ["row-0", "row-1", "row-2"]
    (tmp_path / "pipe").unlink()
    assert open_source(None, "pipe").check().rows == 3, "a pipe is read once, and then gone"


# --------------------------------------------------------------------------------------------------------- memory

_PEAK = """
import json, resource, sys
from pathlib import Path
from actors.files.sources.row_source import BatchSource
made = BatchSource(sys.argv[1], model=None, output_tokens_max=None, spool=Path("unused"))
rows = made.check().rows
while not made.read(2_000).ended:
    pass
print(json.dumps([rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def test_memory_does_not_grow_with_the_input(tmp_path):
    peaks = []
    for count in (5_000, 80_000):
        path = tmp_path / f"{count}.jsonl"
        with path.open("wb") as file:
            file.writelines(line(f"row-{number}", system="x" * 400) for number in range(count))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, str(path)], env=environment, capture_output=True, text=True, check=True
        )
        rows, peak = json.loads(done.stdout)
        assert rows == count
        peaks.append(peak * (1 if sys.platform == "darwin" else 1_024))
    assert peaks[1] - peaks[0] < 8_000_000, "the larger input has 48 MB"


def test_a_source_can_be_closed_at_any_time(open_source, tmp_path):
    made = open_source(lines(2))
    made.close()
    made.check()
    made.close()
    made.close()
    assert Path(tmp_path / "in.jsonl").exists()
