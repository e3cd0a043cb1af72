"""Any bytes are rows, bad records and blank lines: no byte is told twice, none is lost, wherever the reading begins."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from actors.files import batch_request, csv_reader, line_reader
from actors.files.bad_records import BadRecordList
from actors.files.dialects import encodings, quotes
from actors.files.dialects.dialect import Dialect
from actors.files.errors import SourceError
from actors.files.sources.table_source import TableSource
from actors.files.table_reader import TableFile
from cortex.values.template import Template

LONG = 48
"""Bytes of a record at most in this test, in place of 32 MiB."""
PIECES = (
    b"a", b"1", b",", b",", b'"', b'"', b'""', b"\n", b"\n", b"\n", b"\r\n", b"\r", b" ", b"\\", b"\xff", b"\xef\xbb\xbf", b"\0",
    b"\xc3\xa9", b"k,row\n", b'k,"two\nlines"\n', b"x" * 20, b'"' + b"y" * 60, b"z\n" * 30, b";",
)  # fmt: skip
DIALECTS = (Dialect(), Dialect(quoting="minimal"), Dialect(quoting="none"), Dialect(quoting="backslash"))
Piece = tuple[int, int, bool]
"""Begin and end of a record, and whether the record is bad."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batch_request, csv_reader, line_reader):
        monkeypatch.setattr(module, "LINE_BYTES_MAX", LONG)
    monkeypatch.setattr(line_reader, "READ_BYTES", 7)
    monkeypatch.setattr(quotes, "HELD_BYTES_MAX", 16)


def pieces_from(table: TableFile, position: int) -> list[Piece]:
    reading: Any = table.reading(position)
    found: list[Piece] = []
    while (piece := reading.next()) is not None:
        raw = reading.raw(piece)
        assert raw.offset is not None and raw.size > 0
        assert reading.position == raw.offset + raw.size, "the next record begins where this one ends"
        found.append((raw.offset, reading.position, not isinstance(piece[1], list)))
    assert reading.at_end()
    reading.close()
    return found


contents = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)
steady = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@steady
@given(contents, st.sampled_from(DIALECTS))
@example(b'1,"a\n2,b\n3,"c"\n4,d\n', Dialect())
@example(b'1,"' + b"y" * 60 + b'"\n2,b\n', Dialect())
@example(b"\n\0aa", Dialect())
@example(b'\xef\xbb\xbf"' + b"y" * 60 + b"\na", Dialect())
@example(b'1,"' + b"y\n" * 60 + b'\n2,b\n', Dialect())
def test_records_and_blank_lines_make_up_the_file(rest: bytes, dialect: Dialect) -> None:
    content = b"id,text\n" + rest
    assume(not encodings.by_start(content, True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(content)
        table = TableFile(str(path), Path(folder) / "spool", dialect=dialect)
        try:
            table.open()
            table.reading()
        except SourceError:
            return  # refused as a whole: nothing is asked
        try:
            found = pieces_from(table, 0)
            end = len(b"id,text\n")
            for begin, after, _ in found:
                assert begin >= end, "told twice"
                assert not content[end:begin].replace(b"\xef\xbb\xbf", b"").strip(), "lost"
                assert content[begin:after].strip() or dialect.quoting == "backslash"
                end = after
            assert not content[end:].replace(b"\xef\xbb\xbf", b"").strip(), "lost at the end"
            for place, (_, after, _) in enumerate(found):
                assert pieces_from(table, after) == found[place + 1 :], "as after a restart"
        finally:
            table.close()


@steady
@given(contents, st.sampled_from(DIALECTS), st.integers(1, 5))
def test_the_check_and_the_reading_agree(rest: bytes, dialect: Dialect, rows_max: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(b"id,text\n" + rest)
        made = TableSource(
            str(path), prompt=Template("{{text}}"), id="id", numbered=False, with_input=True, spool=Path(folder) / "spool",
            dialect=dialect,
        )  # fmt: skip
        made.bad = listed = BadRecordList()
        try:
            try:
                check = made.check()
            except SourceError:
                return
            keys: list[str] = []
            ended = False
            while not ended:
                window = made.read(rows_max)
                keys += [row.key for row in window.rows]
                ended = window.ended
                made.seek(window.position)
            assert (len(keys), len(listed.records)) == (check.rows, check.unreadable)
            assert len(set(keys)) == len(keys)
            assert check.size_bytes == path.stat().st_size
            assert check.digest == made._file.digest()
        finally:
            made.close()
