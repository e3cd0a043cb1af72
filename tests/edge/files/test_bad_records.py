"""Every record of an input is a row, or stands once in the list of bad records, with its place and its bytes."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from actors.files import batch_request, csv_reader, line_reader
from actors.files.bad_records import BadRecordFile, BadRecordList, ListedRecord
from actors.files.dialects import quotes
from actors.files.dialects.dialect import DETECTED, Dialect, dialect_of
from actors.files.errors import SinkError, SourceError
from actors.files.sources.row_source import BatchSource
from actors.files.sources.table_source import TableSource
from cortex.values.template import Template

HEAD = b"id,text\n"
GOOD = b'{"custom_id":"%s","params":{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}}\n'


def table(path: Path, dialect: Dialect = DETECTED, numbered: bool = False) -> TableSource:
    return TableSource(
        str(path), prompt=Template("{{text}}"), id="row" if numbered else "id", numbered=numbered, with_input=True,
        spool=path.parent / "spool", dialect=dialect,
    )  # fmt: skip


def read(made: TableSource | BatchSource) -> tuple[list[str], list[ListedRecord]]:
    """The keys of the rows, in order, and the bad records."""
    made.bad = found = BadRecordList()
    keys: list[str] = []
    try:
        check = made.check()
        ended = False
        while not ended:
            window = made.read(7)
            keys += [row.key for row in window.rows]
            ended = window.ended
    finally:
        made.close()
    assert (check.rows, check.unreadable) == (len(keys), len(found.records))
    return keys, found.records


def plain(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.name.endswith(".gz") else content


Found = list[tuple[int, str | None, str, bytes]]
"""Line, id, words of the reason, text of each bad record."""

CASES: dict[str, tuple[str, bytes, dict[str, Any], list[str], Found]] = {
    "too few and too many cells": (
        "t.csv", b"id,text,n\n1,a,1\n2,b\n3,c,3,extra\n4,d,4\n", {}, ["1", "4"],
        [(3, "2", "has 2 cells, the header has 3", b"2,b"), (4, "3", "has 4 cells, the header has 3", b"3,c,3,extra")],
    ),
    "text after a closing quote": (
        "t.csv", HEAD + b'1,a\n2,"b" c\n3,d\n', {}, ["1", "3"], [(3, "2", "after a closing quote", b'2,"b" c')],
    ),
    "a quote that is never closed": (
        "t.csv", HEAD + b'1,a\n2,"b\n3,c\n4,d\n', {}, ["1", "3", "4"], [(3, "2", "never closed", b'2,"b')],
    ),
    "a quote that the next quote closes": (
        "t.csv", HEAD + b'1,"a\n2,b\n3,"c"\n4,d\n', {}, ["2", "3", "4"], [(2, "1", "never closed", b'1,"a')],
    ),
    "two quotes that are never closed": (
        "t.csv", HEAD + b'1,"a\n2,b\n3,"c\n4,d\n5,e\n', {}, ["2", "4", "5"],
        [(2, "1", "never closed", b'1,"a'), (4, "3", "never closed", b'3,"c')],
    ),
    "two such lines in turn": (
        "t.csv", HEAD + b'1,"a\n2,"b\n3,c\n', {}, ["3"],
        [(2, "1", "never closed", b'1,"a'), (3, "2", "never closed", b'2,"b')],
    ),
    "a quote at the last line": ("t.csv", HEAD + b'1,a\n2,"b\n', {}, ["1"], [(3, "2", "never closed", b'2,"b')]),
    "a cell of several lines that is cut": (
        "t.csv", HEAD + b'1,a\n2,"long text\nits second line\nthe th', {}, ["1"],
        [(3, "2", "never closed", b'2,"long text\nits second line\nthe th')],
    ),
    "a cell of several lines with a quote in it": (
        "t.csv", HEAD + b'1,a\n2,"x\ny" z\n3,c\n', {}, ["1", "3"], [(3, "2", "after a closing quote", b'2,"x\ny" z')],
    ),
    "a cell of several lines that begins with a quote in one": (
        "t.csv", HEAD + b'1,a\n2,"x:\n"y, z"\n3,c\n', {}, ["1", "3"],
        [(3, "2", "after a closing quote", b'2,"x:\n"y, z"')],
    ),
    "a quote that is never closed among other bad records": (
        "t.csv", HEAD + b'1,"a\n2,b\n3,c,d\n4,"e"\n', {}, ["2", "4"],
        [(2, "1", "never closed", b'1,"a'), (4, "3", "3 cells", b"3,c,d")],
    ),
    "a quote that is never closed before a cell of several lines": (
        "t.csv", b'id,text,n\n1,"a,1\n2\n3,"b\nc",1\n4,d,1\n', {}, ["3", "4"],
        [(2, "1", "never closed", b'1,"a,1'), (3, "2", "1 cell", b"2")],
    ),
    "a ragged record of several lines": (
        "t.csv", HEAD + b'1,a\n2,"x\ny",z\n3,c\n', {}, ["1", "3"], [(3, "2", "has 3 cells", b'2,"x\ny",z')],
    ),
    "one column, a quote that is never closed": (
        "t.csv", b"text\na\n\"b\nc\nd\n", {"numbered": True}, ["1", "3", "4"], [(3, "2", "never closed", b'"b')],
    ),
    "invalid UTF-8": (
        "t.csv", HEAD + b"1,caf\xe9\n2,caf\xc3\xa9\n3,\xc3\xa9\n4,\xc3\xa9\n", {}, ["2", "3", "4"],
        [(2, "1", "byte 6 (0xe9) is not UTF-8", b"1,caf\xe9")],
    ),
    "invalid UTF-8 in a cell of several lines": (
        "t.csv", HEAD + b'1,"a\n\xe9"\n2,\xc3\xa9\n3,\xc3\xa9\n', {}, ["2", "3"], [(2, "1", "0xe9", b'1,"a\n\xe9"')],
    ),
    "a byte that the encoding does not have": (
        "t.csv", HEAD + b"1,\x81\n2,\xe9\n", {"encoding": "cp1252"}, ["2"],
        [(2, "1", "not valid in the encoding", b"1,\xed\xb3\xbf")],
    ),
    "ids: twice, blank, none": (
        "t.csv", HEAD + b"1,a\n1,b\n ,c\n,d\n2,e\n", {}, ["1", "2"],
        [(3, "1", "stands on line 2 already", b"1,b"), (4, None, "has no id", b" ,c"), (5, None, "has no id", b",d")],
    ),
    "the header once more": (
        "t.csv", HEAD + b"1,a\nid,text\n2,b\n", {}, ["1", "2"], [(3, "id", "repeats the header", b"id,text")],
    ),
    "blank lines": ("t.csv", HEAD + b"1,a\n\n   \n \t \n2,b\n\n", {}, ["1", "2"], []),
    "blank lines, one column": ("t.csv", b"text\na\n\n  \nb\n", {"numbered": True}, ["1", "2"], []),
    "NUL bytes and marks": (
        "t.csv", b"\xef\xbb\xbf" + HEAD + b"1,a\0b\n2\n\xef\xbb\xbf3,c\n", {}, ["1", "3"], [(3, "2", "has 1 cell", b"2")],
    ),
    "CR alone": (
        "t.csv", b'id,text\r1,a\r2\r3,"c\r4,d\r5,"e"\r', {}, ["1", "4", "5"],
        [(3, "2", "has 1 cell", b"2"), (4, "3", "never closed", b'3,"c')],
    ),
    "CR LF": (
        "t.csv", b'id,text\r\n1,a\r\n2\r\n3,"c\r\n4,d\r\n5,"e"\r\n', {}, ["1", "4", "5"],
        [(3, "2", "has 1 cell", b"2"), (4, "3", "never closed", b'3,"c')],
    ),
    "a lone CR in a record": ("t.csv", HEAD + b'1,"a\rb"\n2,c\n3,d,e\n', {}, ["1", "2"], [(5, "3", "3 cells", b"3,d,e")]),
    "a semicolon file": (
        "t.csv", b"id;text\n1;a\n2;b;c\n3;\"d\n4;e\n", {}, ["1", "4"],
        [(3, "2", "a quote or a semicolon", b"2;b;c"), (4, "3", "never closed", b'3;"d')],
    ),
    "a backslash before the closing quote": (
        "t.csv", HEAD + b'1,"a\\"\n2,b\n3,"c \\" d"\n4,e\n', {"quoting": "backslash"}, ["2", "3", "4"],
        [(2, "1", "never closed", b'1,"a\\"')],
    ),
    "quotes are text": (
        "t.csv", HEAD + b'1,"a\n2,b,c\n3,d"\n', {"quoting": "none"}, ["1", "3"], [(3, "2", "3 cells", b"2,b,c")],
    ),
    "gzip": ("t.csv.gz", gzip.compress(HEAD + b"1,a\n2\n3,c\n"), {}, ["1", "3"], [(3, "2", "has 1 cell", b"2")]),
    "JSON that is no object": (
        "t.jsonl", b'{"id":1,"text":"a"}\n[1]\n"x"\n3\nnull\n{"id":2\n{"id":3,"text":"c"}\n{ "id" : 4 , "text":"x" y}\n', {}, ["1", "3"],
        [(2, None, "is no object", b"[1]"), (3, None, "is no object", b'"x"'), (4, None, "is no object", b"3"),
         (5, None, "is no object", b"null"), (6, None, "ends too early", b'{"id":2'), (8, "4", "invalid JSON", b'{ "id" : 4 , "text":"x" y}')],
    ),
    "JSON: ids, bytes, marks, CR": (
        "t.jsonl",
        b'\xef\xbb\xbf{"id":1,"text":"a"}\r\n\n{"id":1,"text":"b"}\r\n{"text":"c"}\n{"id":2,"text":"\xe9"}\n'
        b'{"id":3,"text":"\xc3\xa9"}\n{"id":[4],"text":"d"}\n',
        {}, ["1", "3"],
        [(3, "1", "stands on line 1 already", b'{"id":1,"text":"b"}'), (4, None, "has no id", b'{"text":"c"}'),
         (5, "2", "0xe9", b'{"id":2,"text":"\xe9"}'), (7, None, "an id is text", b'{"id":[4],"text":"d"}')],
    ),
    "an array of lines": (
        "t.json", b'[\n{"id":1,"text":"a"},\n{"id":1,"text":"b"},\n{"id":2 "text":"c"}\n]\n', {}, ["1"],
        [(3, "1", "already", b'{"id":1,"text":"b"},'), (4, None, "invalid JSON", b'{"id":2 "text":"c"}')],
    ),
    "requests": (
        "in.jsonl", GOOD % b"a" + b"\n[]\nx\n" + GOOD % b"a" + b'{"params":{}}\n' + GOOD % b"b", {}, ["a", "b"],
        [(3, None, "is a list", b"[]"), (4, None, "invalid JSON", b"x"), (5, "a", "line 1 already", (GOOD % b"a")[:-1]),
         (6, None, "has no custom_id", b'{"params":{}}')],
    ),
}  # fmt: skip


def opened(path: Path, options: dict[str, Any]) -> TableSource | BatchSource:
    options = dict(options)
    numbered = options.pop("numbered", False)
    if path.name.startswith("in."):
        return BatchSource(str(path), model=None, output_tokens_max=None, spool=path.parent / "spool")
    return table(path, dialect_of(**options), numbered)


@pytest.mark.parametrize("case", CASES)
def test_cases(tmp_path: Path, case: str) -> None:
    name, content, options, keys, expected = CASES[case]
    path = tmp_path / name
    path.write_bytes(content)
    found, bad = read(opened(path, options))
    assert found == keys
    assert [(each.line, each.id) for each in bad] == [(line, key) for line, key, _, _ in expected]
    text = plain(path)
    if "encoding" in options:
        text = text.replace(b"\x81", b"\xed\xb3\xbf").replace(b"\xe9", "é".encode())  # as UTF-8
    for each, (_, _, words, raw) in zip(bad, expected, strict=True):
        assert words in each.reason
        assert each.offset is not None
        there = text[each.offset : each.offset + each.size]
        assert there.rstrip(b"\r\n") == raw or there.rstrip(b"\r\n") == b"\xef\xbb\xbf" + raw
        assert (base64.b64decode(each.base64) if each.base64 else (each.text or "").encode()) == raw
        assert not each.cut


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": ["a", None, "a", "b"], "text": ["w", "x", "y", "z"]}), path)
    keys, bad = read(table(path))
    assert keys == ["a", "b"]
    assert [(each.row, each.line, each.id, each.offset) for each in bad] == [(2, 0, None, None), (3, 0, "a", None)]
    assert [json.loads(each.text or "") for each in bad] == [{"id": None, "text": "x"}, {"id": "a", "text": "y"}]


# -- records that are too long -----------------------------------------------------------------------------------------


UNIT = 1 << 18
"""Bytes of the longest line in these tests."""


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 256 KiB instead of 32 MiB, and pieces of 256 KiB instead of 1 MiB."""
    for module in (batch_request, csv_reader, line_reader):
        monkeypatch.setattr(module, "LINE_BYTES_MAX", UNIT)
    monkeypatch.setattr(line_reader, "READ_BYTES", UNIT)
    monkeypatch.setattr(quotes, "HELD_BYTES_MAX", UNIT >> 2)


LONG: dict[str, tuple[bytes, list[str], list[tuple[int, str, int]]]] = {
    "one line": (b'2,"' + b"x" * 3 * UNIT + b'"\n', ["1", "3", "4"], [(3, "longer than", 3 * UNIT + 5)]),
    "one line, quotes within": (
        b'2,"' + b'x""' * UNIT + b'"\n', ["1", "3", "4"], [(3, "longer than", 3 * UNIT + 5)],
    ),
    "one line without quotes": (b"2," + b"x" * 3 * UNIT + b"\n", ["1", "3", "4"], [(3, "longer than", 3 * UNIT + 3)]),
    "many lines": (
        b'2,"' + b"xyz, x\n" * 100_000 + b'"\n', ["1", "3", "4"], [(3, "longer than", 7 * 100_000 + 5)],
    ),
    "a long line in the middle": (
        b'2,"a\n' + b"x" * 3 * UNIT + b'\nb"\n', ["1", "3", "4"], [(3, "longer than", 3 * UNIT + 9)],
    ),
    "two in turn": (
        b'2,"' + b"x" * 3 * UNIT + b'"\n5,"' + b"y\n" * UNIT + b'"\n', ["1", "3", "4"],
        [(3, "longer than", 3 * UNIT + 5), (4, "longer than", 2 * UNIT + 5)],
    ),
    "quotes that are not closed": (
        b'2,"b\n' + b"".join(b"k%d,row\n" % n for n in range(50_000)),
        ["1", *(f"k{n}" for n in range(50_000)), "3", "4"], [(3, "never closed", 5)],
    ),
    "text after the closing quote of many lines": (
        b'2,"' + b"a line of prose as it is\n" * 50_000 + b'" y\n', ["1", "3", "4"],
        [(3, "longer than", 25 * 50_000 + 7)],
    ),
    "text after the closing quote": (
        b'2,"' + b"x" * 3 * UNIT + b'" y\n', ["1", "3", "4"], [(3, "longer than", 3 * UNIT + 7)],
    ),
}  # fmt: skip


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize(("ending", "line_end"), [(".csv", b"\n"), (".csv.gz", b"\n"), (".csv", b"\r")])
@pytest.mark.parametrize("case", LONG)
def test_a_long_record_costs_no_row_behind_it(tmp_path: Path, case: str, ending: str, line_end: bytes) -> None:
    middle, keys, expected = LONG[case]
    content = (HEAD + b"1,a\n" + middle + b"3,c\n4,d\n").replace(b"\n", line_end)
    path = tmp_path / ("t" + ending)
    path.write_bytes(gzip.compress(content, 1) if ending.endswith("gz") else content)
    made = table(path)
    found, bad = read(made)
    assert found == keys
    assert [(each.line, each.size) for each in bad] == [(line, size) for line, _, size in expected]
    assert all(each.id in ("2", "5") for each in bad)
    for each, (_, words, size) in zip(bad, expected, strict=True):
        assert words in each.reason and each.offset is not None
        start = content[each.offset : each.offset + min(size, 65_536)]
        assert (each.text or "").encode() == (start if each.cut else start.rstrip(line_end))
        assert each.cut == (size > 65_536)


@pytest.mark.usefixtures("short_lines")
def test_the_digest_and_every_position_are_those_of_a_reading_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(HEAD + b'1,a\n2,"b\n3,c\n4,"d"\n5,"' + b"x\n" * UNIT + b'"\n6,"e\n7,f\n')
    made = table(path)
    check = made.check()
    assert check.digest == made._file.digest() and check.size_bytes == path.stat().st_size
    expected, positions, ended = [], [0], False
    while not ended:
        window = made.read(1)
        expected += [row.key for row in window.rows]
        positions.append(window.position)
        ended = window.ended
    assert expected == ["1", "3", "4", "7"]
    for count, position in enumerate(positions):
        made.seek(position)
        rest: list[str] = []
        ended = False
        while not ended:
            window = made.read(100)
            rest += [row.key for row in window.rows]
            ended = window.ended
        assert rest == expected[count:], position
    made.close()


@pytest.mark.usefixtures("short_lines")
def test_a_long_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"id":1,"text":"a"}\n{"id":2,"text":"' + b"x" * 3 * UNIT + b'"}\n{"id":3,"text":"c"}\n')
    keys, bad = read(table(path))
    assert keys == ["1", "3"]
    assert [(each.line, each.offset, each.size, each.cut) for each in bad] == [(2, 20, 3 * UNIT + 19, True)]


# -- the file ----------------------------------------------------------------------------------------------------------


def listed_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_with(file: BadRecordFile, path: Path) -> None:
    made = table(path)
    made.bad = file
    try:
        made.check()
        file.put()
    finally:
        made.close()


def test_the_list_is_written_in_one_step_and_anew_by_each_check(tmp_path: Path) -> None:
    path, bad = tmp_path / "t.csv", tmp_path / "o.bad.jsonl"
    path.write_bytes(HEAD + b"1,a\n2\n1,b\n")
    for _ in range(2):
        check_with(BadRecordFile(bad), path)
        assert listed_in(bad) == [
            {"reason": "has 1 cell, the header has 2: a quote or a comma is out of place", "line": 3, "id": "2", "offset": 12,
             "size": 2, "text": "2"},
            {"reason": "id '1' stands on line 2 already: give another", "line": 4, "id": "1", "offset": 14, "size": 4,
             "text": "1,b"},
        ]  # fmt: skip
    path.write_bytes(HEAD + b"1,a\n")
    check_with(BadRecordFile(bad), path)
    assert not bad.exists(), "no bad record, no list"
    check_with(BadRecordFile(bad, always=True), path)
    assert bad.read_bytes() == b""
    check_with(BadRecordFile(bad), path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.csv"]


def test_a_check_that_fails_leaves_the_list_of_an_earlier_one(tmp_path: Path) -> None:
    path, bad = tmp_path / "t.csv", tmp_path / "o.bad.jsonl"
    path.write_bytes(HEAD + b"1,a\n2\n")
    check_with(BadRecordFile(bad), path)
    before = bad.read_bytes()
    path.write_bytes(HEAD + b"1\n2\n")
    with pytest.raises(SourceError):
        check_with(BadRecordFile(bad), path)
    assert bad.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["o.bad.jsonl", "t.csv"]


def test_a_file_that_is_no_list_is_not_overwritten(tmp_path: Path) -> None:
    path, bad = tmp_path / "t.csv", tmp_path / "o.bad.jsonl"
    path.write_bytes(HEAD + b"1,a\n2\n")
    bad.write_text('{"id": 1}\n')
    with pytest.raises(SinkError, match="is no list of bad lines: give --bad FILE, or --overwrite"):
        check_with(BadRecordFile(bad), path)
    assert bad.read_text() == '{"id": 1}\n'
    check_with(BadRecordFile(bad, overwrite=True), path)
    assert len(listed_in(bad)) == 1
    with pytest.raises(SinkError, match="give --bad FILE in another folder"):
        check_with(BadRecordFile(tmp_path / "none" / "o.bad.jsonl"), path)


def test_without_text(tmp_path: Path) -> None:
    path, bad = tmp_path / "t.csv", tmp_path / "o.bad.jsonl"
    path.write_bytes(HEAD + b"1,a\n2\n")
    check_with(BadRecordFile(bad, text=False), path)
    assert set(listed_in(bad)[0]) == {"reason", "line", "offset", "size"}
