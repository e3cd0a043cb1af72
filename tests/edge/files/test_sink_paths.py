"""Where results cannot go, a full disk, and streams, which cannot be cut back."""

from __future__ import annotations

import errno
import gzip
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.files.errors import SinkClosed, SinkError, SinkFailed, SinkFull
from actors.files.sinks import jsonl_sink
from actors.files.sinks.jsonl_sink import FileSink, StdoutSink
from tests.support.repository_rules import ROOT

NAMES = ["out.jsonl", "out.jsonl.gz"]


def opened(path: Path | str, **options: Any) -> FileSink:
    made = FileSink(str(path), **options)
    made.open(0, 0, own=False)
    return made


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


# ---------------------------------------------------------------------------------------------------- bad places


@pytest.mark.parametrize("own", [False, True])
def test_bad_places(tmp_path, own):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    wrong = {
        "folder": "is a folder: name a file in it",
        "none/out.jsonl": "there is no folder .*none: make it first",
        "file/out.jsonl": "file is a file, no folder: name another place",
        "file/none/out.jsonl": "file is a file, no folder: name another place",
        "x" * 5_000: "cannot be written: File name too long",
        "a\0b": "cannot be written: ",
    }
    for name, message in wrong.items():
        made = FileSink(str(tmp_path / name), overwrite=True)
        with pytest.raises(SinkError, match=message) as error:
            made.open(0, 0, own)
        assert "\n" not in str(error.value)
        with pytest.raises(SinkError, match=message):
            made.check()
        made.close()
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_check_makes_nothing(tmp_path):
    FileSink(str(tmp_path / "out.jsonl")).check()
    assert os.listdir(tmp_path) == []


def test_the_input_is_never_written_over(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b"rows")
    (tmp_path / "link").symlink_to("in.jsonl")
    made = FileSink(str(tmp_path / "link"), overwrite=True, keep_off=["-", str(tmp_path / "in.jsonl")])
    with pytest.raises(SinkError, match="is the input itself: name another output"):
        made.open(0, 0, own=False)
    assert (tmp_path / "in.jsonl").read_bytes() == b"rows"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_no_leave_to_write(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SinkError, match="cannot be written: no permission"):
        opened(tmp_path / "out.jsonl")


def test_writing_before_opening_or_after_closing(tmp_path):
    made = FileSink(str(tmp_path / "out.jsonl"))
    with pytest.raises(SinkError, match="is not open"):
        made.write([b"1"])
    made.close()


# ---------------------------------------------------------------------------------------------------- a full disk


class _Disk:
    """`os.write` on a disk that has room for so many bytes, and writes at most seven at a time."""

    def __init__(self, room: int, code: int = errno.ENOSPC) -> None:
        self.room = room
        self.code = code

    def write(self, fd: int, some: bytes) -> int:
        taken = min(len(some), self.room, 7)
        if not taken:
            raise OSError(self.code, os.strerror(self.code))
        self.room -= taken
        return os.pwrite(fd, some[:taken], _moved(fd, taken))


def _moved(fd: int, by: int) -> int:
    at = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, by, os.SEEK_CUR)
    return at


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_keeps_the_rows_of_the_last_flush(tmp_path, monkeypatch, name, code):
    path = tmp_path / name
    disk = _Disk(1_000, code)
    monkeypatch.setattr(jsonl_sink.os, "write", disk.write)
    made = opened(path)
    made.write([b"1" * 30, b"2" * 30])
    flushed = made.flush()
    disk.room = 11
    with pytest.raises(SinkFull, match=r"make room|raise the limit") as error:
        made.write([os.urandom(60).hex().encode()])
        made.flush()
    assert str(path) in str(error.value)
    assert content(path) == b"1" * 30 + b"\n" + b"2" * 30 + b"\n"
    disk.room = 1_000
    made.write([b"3"])
    assert made.flush()[0] == flushed[0] + 1, "there is room again"
    made.close()
    assert content(path).endswith(b"2\n3\n")


@pytest.mark.parametrize("name", NAMES)
def test_full_disk_keeps_the_rows_of_earlier_runs(tmp_path, monkeypatch, name):
    path = tmp_path / name
    made = opened(path)
    made.write([b"1"])
    flushed = made.flush()
    made.close()
    again = FileSink(str(path))
    again.open(*flushed, own=True)
    monkeypatch.setattr(jsonl_sink.os, "write", _Disk(5).write)
    with pytest.raises(SinkFull):
        again.write([os.urandom(60).hex().encode()])
        again.flush()
    again.close()
    assert content(path) == b"1\n"


def test_a_disk_that_is_full_when_it_syncs(tmp_path):
    def fsync(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made = opened(tmp_path / "out.jsonl", fsync=fsync)
    made.write([b"1"])
    with pytest.raises(SinkFull, match="No space left on device: make room"):
        made.flush()
    made.close()


def test_a_broken_disk_is_not_a_full_one(tmp_path, monkeypatch):
    made = opened(tmp_path / "out.jsonl")
    monkeypatch.setattr(jsonl_sink.os, "write", _Disk(0, errno.EIO).write)
    with pytest.raises(SinkError, match="cannot be written: ") as error:
        made.write([b"1"])
    assert type(error.value) is SinkFailed


# -------------------------------------------------------------------------------------------------------- streams


class _Stdout:
    def __init__(self) -> None:
        self.buffer = io.BytesIO()

    def flush(self) -> None: ...


@pytest.mark.parametrize("make", [StdoutSink, lambda: FileSink("-")])
def test_standard_output_goes_on_where_the_journal_stands(monkeypatch, make):
    monkeypatch.setattr(sys, "stdout", stdout := _Stdout())
    made = make()
    assert not made.cuts_back
    made.check()
    assert made.open(7, 70, own=True) == 7
    made.write([b"8", {"a": 9}])
    assert made.flush() == (9, 70 + len(b'8\n{"a":9}\n'))
    made.close()
    assert stdout.buffer.getvalue() == b'8\n{"a":9}\n', "and it stays open"


def test_no_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SinkError, match="standard output is closed: redirect it"):
        StdoutSink().open(0, 0, own=False)


@pytest.mark.parametrize("flag, first", [("-c", ""), ("-uc", ""), ("-c", "import io,sys\nsys.stdout=io.StringIO()\n")])
def test_standard_output_of_a_real_process(flag, first):
    """Buffered, not buffered, and in a place that shows text alone."""
    code = "from actors.files.sinks.jsonl_sink import *\ns=StdoutSink()\ns.open(0,0,False)\ns.write([b'x'*300_000]*9)\ns.close()"
    code = first + code
    done = subprocess.run(
        [sys.executable, flag, code], cwd=ROOT, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert done.stdout == (b"x" * 300_000 + b"\n") * 9


def test_a_reader_that_goes_away_is_told_without_a_traceback():
    code = (
        "import sys\nfrom actors.files.sinks.jsonl_sink import *\ns=StdoutSink()\ns.open(0,0,False)\n"
        "try:\n  while True:\n    s.write([b'x'*99]); s.flush()\n"
        "except SinkClosed as e:\n  print(e, file=sys.stderr)\nfinally:\n  s.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    ) as child:  # fmt: skip
        child.stdout.read(5)
        child.stdout.close()
        text = child.stderr.read().decode()
    assert text == "standard output was closed by its reader\n"
    assert child.returncode == 0
    assert issubclass(SinkClosed, SinkError)


def test_devices_and_pipes_are_streams(tmp_path):
    made = FileSink(os.devnull)
    assert not made.cuts_back
    assert made.open(3, 30, own=False) == 3
    made.write([b"1"])
    assert made.flush() == (4, 32)
    made.close()
    assert FileSink(str(tmp_path / "out.jsonl")).cuts_back
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        piped = opened(tmp_path / "pipe")
        piped.write([b"1", b"2"])
        piped.close()
        assert reader.stdout.read() == b"1\n2\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_device():
    made = opened("/dev/full")
    with pytest.raises(SinkFull):
        made.write([b"1"])
        made.flush()
    made.close()
