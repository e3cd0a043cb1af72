"""Results as lines in a file: what is written, what a flush promises, whose file it is."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.files.errors import SinkError
from actors.files.sinks.jsonl_sink import FileSink, line_of, lines_of

NAMES = ["out.jsonl", "out.jsonl.gz"]


def opened(path: Path | str, rows: int = 0, size_bytes: int = 0, own: bool = False, **options: Any) -> FileSink:
    made = FileSink(str(path), **options)
    made.open(rows, size_bytes, own)
    return made


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


# ------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_lines(tmp_path, name):
    path = tmp_path / name
    made = opened(path)
    made.write([b'{"a":1}', b'{"a":2}'])
    assert made.flush() == (2, path.stat().st_size)
    made.write([b'{"a":3}'])
    made.write([])
    assert made.flush() == (3, path.stat().st_size)
    made.close()
    assert content(path) == b'{"a":1}\n{"a":2}\n{"a":3}\n'


def test_values_of_any_program_are_written_as_json(tmp_path):
    made = opened(tmp_path / "out.jsonl")
    made.write([{"b": 1, "a": "é\n"}, "text", 5, None, [1, 2], b'{"raw":true}'])
    made.close()
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert lines == ['{"b":1,"a":"é\\n"}', '"text"', "5", "null", "[1,2]", '{"raw":true}']


def test_a_value_laid_out_over_lines_stays_one_row(tmp_path):
    made = opened(tmp_path / "out.jsonl")
    made.write([b'{\n "a": "x\\ny"\n}'])
    made.close()
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line) for line in lines] == [{"a": "x\ny"}]


@pytest.mark.parametrize(
    "first", [1, "a\nb", None, b'{"a":1}', b'{"a":\n1}', msgspec.Raw(b'{"a":\n1}')],
    ids=["number", "text", "null", "line", "lines", "raw lines"],
)  # fmt: skip
def test_rows_written_at_once_are_those_written_one_by_one(first):
    values = [first, {"row": 7, "answer": "x"}, [first if type(first) is not bytes else 0]]
    assert lines_of(values) == b"".join(map(line_of, values))
    assert lines_of(values).count(b"\n") == 3


@pytest.mark.parametrize("name", NAMES)
def test_what_flush_names_is_whole_and_on_disk(tmp_path, name):
    path, synced = tmp_path / name, []

    def fsync(fd: int) -> None:
        if os.path.samestat(os.fstat(fd), path.stat()):
            synced.append(content(path))
        else:
            synced.append(os.path.samestat(os.fstat(fd), tmp_path.stat()))

    made = opened(path, fsync=fsync)
    made.write([b"1"])
    made.flush()
    made.write([b"2"])
    made.flush()
    made.close()
    assert synced == [b"1\n", True, b"1\n2\n"], "the file each time, its folder once"


def test_gzip_has_a_member_a_flush(tmp_path):
    path = tmp_path / "out.gz"
    made = opened(path)
    ends = []
    for number in range(3):
        made.write([str(number).encode()])
        ends.append(made.flush()[1])
    made.flush()
    made.close()
    packed = path.read_bytes()
    members = [packed[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [gzip.decompress(member) for member in members] == [b"0\n", b"1\n", b"2\n"]
    assert len(packed) == ends[-1], "no empty members"


@pytest.mark.parametrize("name", NAMES)
def test_closing_leaves_whole_rows_and_a_file_that_opens(tmp_path, name):
    opened(tmp_path / name).close()
    assert content(tmp_path / name) == b""
    assert bool((tmp_path / name).stat().st_size) == name.endswith(".gz"), "without a member gunzip would complain"
    made = opened(tmp_path / name, own=True)
    made.write([b"1"])
    made.close()
    made.close()
    assert content(tmp_path / name) == b"1\n"


# ------------------------------------------------------------------------------------------------ whose file it is


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_exists_is_left_alone(tmp_path, name):
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(SinkError, match="exists: give --overwrite to write over it, or name another output"):
        opened(tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"precious"


@pytest.mark.parametrize("name", NAMES)
def test_overwrite_begins_anew(tmp_path, name):
    (tmp_path / name).write_bytes(b"1\n" * 100)
    made = FileSink(str(tmp_path / name), overwrite=True)
    assert made.open(3, 6, own=False) == 0, "what the job wrote elsewhere does not count here"
    made.write([b"1"])
    made.close()
    assert content(tmp_path / name) == b"1\n"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("overwrite", [False, True])
def test_own_file_is_cut_back_and_written_on(tmp_path, name, overwrite):
    path = tmp_path / name
    made = opened(path)
    made.write([b"1", b"2"])
    rows, size_bytes = made.flush()
    made.write([b"never promised"])
    made.close()
    again = FileSink(str(path), overwrite=overwrite)
    assert again.open(rows, size_bytes, own=True) == 2
    assert path.stat().st_size == size_bytes
    again.write([b"3"])
    assert again.flush() == (3, path.stat().st_size)
    again.close()
    assert content(path) == b"1\n2\n3\n"


@pytest.mark.parametrize("name", NAMES)
def test_own_file_that_is_gone_is_written_anew(tmp_path, name):
    assert FileSink(str(tmp_path / name)).open(9, 999, own=True) == 0
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_never_flushed_begins_anew(tmp_path, name):
    (tmp_path / name).write_bytes(b"1\n2")
    assert FileSink(str(tmp_path / name)).open(0, 0, own=True) == 0
    assert (tmp_path / name).read_bytes() == b""


@pytest.mark.parametrize(
    "now, message",
    [(b"1\n2\n3\n4\n", None), (b'{"x": 1}\n{"y": 2}\n', "is not as this job left it"), (b"11111111\n", "is not as"),
     (b"1\n1\n1\n1\n1", "is not as this job left it")],
    ids=["longer", "other rows", "other sizes", "more rows in fewer bytes"],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_left_alone(tmp_path, now, message):
    path = tmp_path / "out.jsonl"
    path.write_bytes(now)
    made = FileSink(str(path))
    if message is None:
        assert made.open(3, 6, own=True) == 3
        return
    rows, size_bytes = (3, 6) if len(now) > 6 and not now.startswith(b"1\n") else (3, 12)
    with pytest.raises(SinkError, match=message):
        made.open(rows, size_bytes, own=True)
    assert path.read_bytes() == now
    assert FileSink(str(path), overwrite=True).open(rows, size_bytes, own=True) == 0


@pytest.mark.parametrize("left", [b"1\n3\n", b"1\n3"])
def test_rows_that_were_taken_out_are_put_back(tmp_path, left):
    path = tmp_path / "out.jsonl"
    path.write_bytes(left)
    assert FileSink(str(path)).open(3, 6, own=True) == 0
    assert path.read_bytes() == b""


@pytest.mark.parametrize("holes", [b"\0" * 5, b"\0" * 5 + b"3\n", b"3" + b"\0" * 3 + b"\n4\n"])
def test_what_a_crash_left_unwritten_is_cut_off(tmp_path, holes):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"1\n2\n" + holes)
    assert FileSink(str(path)).open(4, 4 + len(holes), own=True) == 2
    assert path.read_bytes() == b"1\n2\n"


def test_a_flipped_bit_or_an_edit_in_a_row_that_was_written_is_told(tmp_path):
    path = tmp_path / "out.jsonl"
    made = opened(path)
    for row in "abc":
        made.write([b'{"id": "%s"}' % row.encode()])
        rows, size_bytes = made.flush()
    made.write([b'{"id": "not flushed"}'])
    checksum = made.checksum
    made.close()
    whole = path.read_bytes()
    assert checksum == zlib.crc32(whole[:size_bytes])
    for bit in range(0, 8 * size_bytes, 3):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        again = FileSink(str(path))
        again.checksum = checksum
        with pytest.raises(SinkError, match="is not as this job left it"):
            again.open(rows, size_bytes, own=True)
        assert path.read_bytes() == damaged
    path.write_bytes(whole.replace(b"a", b"e"))
    again = FileSink(str(path))
    assert again.open(rows, size_bytes, own=True) == 3, "a journal of an earlier release has no checksum"
    path.write_bytes(whole)
    again = FileSink(str(path))
    again.checksum = checksum
    assert again.open(rows, size_bytes, own=True) == 3
    assert again.checksum == checksum
    again.write([b"4"])
    again.flush()
    assert again.checksum == zlib.crc32(path.read_bytes())
    assert again.open(0, 0, own=True) == 0 and again.checksum == 0


@pytest.mark.parametrize("left", ["half a row", "whole rows", "a hole", "nothing"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_some_of_its_rows_is_written_anew_unless_it_is_the_only_copy(tmp_path, name, left):
    """After a loss of power they may be rows of a retry that the journal has lost, in another order."""
    path, ends = tmp_path / name, [0]
    made = opened(path)
    for row in "abc":
        made.write([row.encode() * 30])
        rows, size_bytes = made.flush()
        ends.append(size_bytes)
    checksum = made.checksum
    made.close()
    whole = path.read_bytes()
    torn = {
        "half a row": whole[:-9], "whole rows": whole[: ends[2]], "a hole": whole[: ends[2]] + bytes(ends[3] - ends[2]),
        "nothing": b"",
    }[left]  # fmt: skip
    kept = 2 if left in ("half a row", "a hole") else 0
    for only_copy, expected in ((True, kept), (False, 0)):
        path.write_bytes(torn)
        again = FileSink(str(path))
        again.checksum, again.only_copy = checksum, only_copy
        assert again.open(rows, size_bytes, own=True) == expected
        again.write([b"new"])
        again.flush()
        assert again.checksum == zlib.crc32(path.read_bytes())
        again.close()
        assert content(path).count(b"\n") == expected + 1


def test_a_damaged_member_and_all_after_it_are_cut_off(tmp_path):
    path = tmp_path / "out.gz"
    members = [gzip.compress(b"%d\n" % number * 9) for number in range(4)]
    whole = bytearray(b"".join(members))
    whole[len(members[0]) + len(members[1]) + 15] ^= 0xFF
    path.write_bytes(whole)
    assert FileSink(str(path)).open(36, len(whole), own=True) == 18
    assert path.read_bytes() == members[0] + members[1]


def test_a_large_file_is_counted_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("actors.files.sinks.results_recovery.READ_BYTES", 7)
    for name in NAMES:
        made = opened(tmp_path / name)
        made.write([b"x" * (number % 20) for number in range(100)])
        rows, size_bytes = made.flush()
        made.close()
        assert FileSink(str(tmp_path / name)).open(rows, size_bytes, own=True) == 100
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
        assert FileSink(str(tmp_path / name)).open(rows, size_bytes, own=True) == (99 if name == NAMES[0] else 0)
