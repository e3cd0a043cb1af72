"""A results file that was cut at any byte, then resumed, holds every row exactly once."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from actors.files.sinks.jsonl_sink import FileSink

ROWS = [
    b'{"custom_id":"row-%d","text":"%s"}' % (number, random.Random(number).randbytes(number % 60).hex().encode())
    for number in range(90)
]
FLUSHED_AT = [7, 8, 20, 33, 34, 41, 52, 60, 61, 75, 88]
"""After so many rows the sink was flushed, and the journal told."""
LAST_BYTES = 2_048


def no_fsync(fd: int) -> None:
    """The disk does not matter here."""


class Outlet:
    """What a channel is to a driver: results from an index on, the same ones each time."""

    def read(self, index: int, count: int = 40) -> list[bytes]:
        return ROWS[index : index + count]


def write_on(made: FileSink, index: int) -> None:
    while some := Outlet().read(index):
        made.write(some)
        index += len(some)
    made.flush()
    made.close()


def cut(path: Path, whole: bytes, size: int) -> None:
    """Leave the first bytes of the whole file. Never by way of an empty file: ext4 would write that out each time."""
    with path.open("r+b") as file:
        file.write(whole[:size])
        file.truncate()


def first_run(path: Path) -> list[tuple[int, int]]:
    """What the journal was told, in the order of telling. The run ends a few rows after its last flush."""
    made = FileSink(str(path), fsync=no_fsync)
    entries = [(made.open(0, 0, own=False), 0)]
    for number, row in enumerate(ROWS):
        made.write([row])
        if number + 1 in FLUSHED_AT:
            entries.append(made.flush())
    made.close()
    return entries


def rows_of(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_cut_at_every_byte(tmp_path, name):
    path = tmp_path / name
    entries = first_run(path)
    whole = path.read_bytes()
    assert rows_of(path) == ROWS and len(whole) > LAST_BYTES
    kept_some = 0
    for size in range(len(whole) - LAST_BYTES, len(whole) + 1):
        # The journal's last word, and its word before a flush of which the run was killed before telling it.
        for rows, size_bytes in (entries[-1], entries[-2]):
            cut(path, whole, size)
            made = FileSink(str(path), fsync=no_fsync)
            index = made.open(rows, size_bytes, own=True)
            kept_some += 0 < index < rows
            assert index == rows or size < size_bytes
            assert rows_of(path) == ROWS[:index], (size, rows)
            write_on(made, index)
            assert rows_of(path) == ROWS, (size, rows)
    assert kept_some > LAST_BYTES / 2, "a cut does not cost the whole file"


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
@pytest.mark.parametrize("seed", range(5))
def test_cut_again_and_again(tmp_path, name, seed):
    """Each run is killed somewhere, and its file cut somewhere: what is told of flushes is what the next one knows."""
    chance = random.Random(seed)
    path = tmp_path / name
    rows = size_bytes = 0
    own = False
    for _ in range(60):
        made = FileSink(str(path), fsync=no_fsync)
        index = made.open(rows, size_bytes, own)
        own = True
        rows, size_bytes = made.flush()
        assert rows == index
        for _ in range(chance.randrange(9)):
            some = Outlet().read(index, chance.randrange(4))
            made.write(some)
            index += len(some)
            if chance.random() < 0.4:
                rows, size_bytes = made.flush()
        if chance.random() < 0.5:
            made.close()
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[: size - chance.choice([0, 0, 1, chance.randrange(size + 1)])])
    made = FileSink(str(path), fsync=no_fsync)
    write_on(made, made.open(rows, size_bytes, own))
    assert rows_of(path) == ROWS
