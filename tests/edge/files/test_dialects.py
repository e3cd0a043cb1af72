"""Encodings and dialects of input files: each form of bytes is read, or refused in one line with a way out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from actors.files.dialects import csv_form
from actors.files.dialects.dialect import DETECTED, Dialect, dialect_of
from actors.files.errors import SourceError
from actors.files.sources.row_source import BatchSource
from actors.files.sources.table_source import TableSource
from cortex.values.template import Template

ALL = ("id", "text")


def source(path: Path, dialect: Dialect = DETECTED, columns: tuple[str, ...] = ALL, numbered: bool = False) -> TableSource:
    return TableSource(
        str(path), prompt=Template("{{" + columns[-1] + "}}"), id="row" if numbered else columns[0], numbered=numbered,
        with_input=True, spool=path.parent / "spool", dialect=dialect,
    )  # fmt: skip


def rows_in(made: TableSource) -> list[list[Any]]:
    rows: list[list[Any]] = []
    ended = False
    while not ended:
        window = made.read(100)
        rows += [list(json.loads(row.body).values()) for row in window.rows]
        ended = window.ended
    return rows


def told(path: Path, dialect: Dialect = DETECTED, columns: tuple[str, ...] = ALL) -> str:
    made = source(path, dialect, columns)
    with pytest.raises(SourceError) as error:
        made.check()
    made.close()
    text = str(error.value)
    assert text.startswith(str(path)) and "\n" not in text
    assert all(each.isprintable() for each in text), "no control character"
    return text.removeprefix(str(path))


READ: dict[str, tuple[str, bytes, dict[str, Any], list[list[str]]]] = {
    "comma": ("t.csv", b"id,text\n1,a\n2,b\n", {}, [["1", "a"], ["2", "b"]]),
    "semicolon, commas in the header": (
        "t.csv", b"id;size, cm;text, long;n, m\n1;1,5;a, b;2\n2;2,5;c;3\n", {},
        [["1", "1,5", "a, b", "2"], ["2", "2,5", "c", "3"]],
    ),
    "semicolon and decimal commas": ("t.csv", b"id;text\n1;1,5\n2;2,5\n3;7,25\n", {}, [["1", "1,5"], ["2", "2,5"], ["3", "7,25"]]),
    "tab": ("t.txt", b"id\ttext\n1\ta, b; c\n", {}, [["1", "a, b; c"]]),
    "bar": ("t.csv", b"id|text\n1|a, b\n2|c, d\n", {}, [["1", "a, b"], ["2", "c, d"]]),
    "delimiters in quotes": ("t.csv", b'id,text\n1,"a;b;c;d"\n2,"e;f"\n', {}, [["1", "a;b;c;d"], ["2", "e;f"]]),
    "a delimiter of its own": ("t.csv", b"id^text\n1^a\n", {"delimiter": "^"}, [["1", "a"]]),
    "sep line": ("t.csv", b"sep=;\r\nid;text\r\n1;a,b\r\n", {}, [["1", "a,b"]]),
    "quoted sep line after a mark": ("t.csv", b'\xef\xbb\xbf"sep=|"\nid|text\n1|a\n', {}, [["1", "a"]]),
    "sep line of tab": ("t.csv", b"SEP=\t\nid\ttext\n1\ta\n", {}, [["1", "a"]]),
    "title lines": ("t.csv", b"Report, 2024\n\nid,text\n1,a\n", {"skip_lines": 2}, [["1", "a"]]),
    "comment line": ("t.csv", b"# made by x, y\nid,text\n1,a\n", {"skip_lines": 1}, [["1", "a"]]),
    "CR": ("t.csv", b"id,text\r1,a\r2,b\r3,c\r", {}, [["1", "a"], ["2", "b"], ["3", "c"]]),
    "CR without the last": ("t.csv", b"id,text\r1,a\r2,b", {}, [["1", "a"], ["2", "b"]]),
    "CR LF, LF and CR": ("t.csv", b"id,text\r\n1,a\n2,b\r3,c\r\n", {}, [["1", "a"], ["2", "b"], ["3", "c"]]),
    "line ends in cells": (
        "t.csv", b'id,text\n1,"a\n\xef\xbb\xbfb"\n2,"c\rd"\n3,"e\r\nf"\n4,"tail  "\n', {},
        [["1", "a\n\ufeffb"], ["2", "c\rd"], ["3", "e\r\nf"], ["4", "tail  "]],
    ),
    "joined files with a mark each": ("t.csv", b"\xef\xbb\xbfid,text\n1,a\n\xef\xbb\xbf2,b\n", {}, [["1", "a"], ["2", "b"]]),
    "quotes are text": (
        "t.tsv", b'id\ttext\n1\t"Crying\n2\ta\n3\tb"\n4\tc\n', {"quoting": "none"},
        [["1", '"Crying'], ["2", "a"], ["3", 'b"'], ["4", "c"]],
    ),
    "lines in a cell of tabs": ("t.tsv", b'id\ttext\n1\t"a\nb"\n', {}, [["1", "a\nb"]]),
    "rows in a cell of tabs, as said": ("t.tsv", b'id\ttext\n1\t"a\n2\tb"\n', {"quoting": "minimal"}, [["1", "a\n2\tb"]]),
    "backslashes": ("t.csv", b'id,text\n1,"say \\"a\\", b"\n', {"quoting": "backslash"}, [["1", 'say "a", b']]),
    "no header": ("t.csv", b"1,a\n2,b\n", {"no_header": True}, [["1", "a"], ["2", "b"]]),
    "no header below a title": ("t.csv", b"x\n1;a,b\n2;b\n", {"no_header": True, "skip_lines": 1}, [["1", "a,b"], ["2", "b"]]),
    "one column of sentences": ("t.csv", b"text\nHello, world\nBye\n", {}, [["Hello, world"], ["Bye"]]),
    "cp1252": ("t.csv", "id;text\n1;Grüße: 5 €\n".encode("cp1252"), {"encoding": "cp1252"}, [["1", "Grüße: 5 €"]]),
    "Japanese": ("t.csv", "id,text\n1,表示、ソ\n".encode("cp932"), {"encoding": "shift_jis"}, [["1", "表示、ソ"]]),
    "UTF-16": ("t.csv", "id,text\n1,ü\n".encode("utf-16"), {}, [["1", "ü"]]),
    "UTF-16 as Excel writes it": ("t.txt", "id\ttext\r\n1\tü\r\n".encode("utf-16"), {}, [["1", "ü"]]),
    "UTF-16 without a mark": ("t.csv", "id,text\n1,ü\n".encode("utf-16-le"), {}, [["1", "ü"]]),
    "UTF-16, big, without a mark": ("t.csv", "id,text\n1,ü\n".encode("utf-16-be"), {}, [["1", "ü"]]),
    "UTF-32": ("t.csv", "id,text\n1,ü\n".encode("utf-32"), {}, [["1", "ü"]]),
    "JSON Lines in UTF-16": ("t.jsonl", '{"id":"1","text":"ü"}\n'.encode("utf-16"), {}, [["1", "ü"]]),
    "JSON Lines in cp1252": ("t.jsonl", '{"id":"1","text":"ü"}\n'.encode("cp1252"), {"encoding": "cp1252"}, [["1", "ü"]]),
    "JSON lines that end in CR": ("t.jsonl", b'{"id":"1","text":"a"}\r{"id":"2","text":"b"}\r', {}, [["1", "a"], ["2", "b"]]),
    "array of lines": ("t.json", b'[\n{"id":"1","text":"a"},\n{"id":"2","text":"b]"}\n]\n', {}, [["1", "a"], ["2", "b]"]]),
    "array of lines, brackets beside": ("t.json", b'[{"id":"1","text":"a"},\n{"id":"2","text":"b"}]', {}, [["1", "a"], ["2", "b"]]),
    "array of lines, commas before": ("t.json", b'[ {"id":"1","text":"a"}\r\n, {"id":"2","text":"b"}\r\n]', {}, [["1", "a"], ["2", "b"]]),
    "array of lines, a comma too many": ("t.json", b'[\n{"id":"1","text":"a"},\n{"id":"2","text":"b"},\n]\n \n', {}, [["1", "a"], ["2", "b"]]),
    "arrays one after another": ("t.json", b'[{"id":"1","text":"a"}]\n[{"id":"2","text":"b"}]\n', {}, [["1", "a"], ["2", "b"]]),
    "blank lines": ("t.csv", b"id,text\n\n1,a\n \t \n\r\n2,b\n  ", {}, [["1", "a"], ["2", "b"]]),
    "lines of tabs are cells": ("t.tsv", b"id\ttext\n1\ta\n  \n2\t\n", {}, [["1", "a"], ["2", ""]]),
    "NUL in a cell": ("t.csv", b"id,text\n1,a\0b\n", {}, [["1", "a\0b"]]),
    "ORC as a word": ("t.csv", b"ORCID,text\n1,a\n", {}, [["1", "a"]]),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", READ)
def test_read(tmp_path, case, packed):
    name, content, options, rows = READ[case]
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(content) if packed else content)
    columns = ("column_1", "column_2") if options.get("no_header") else ("text",) if "one column" in case else ALL
    columns = {"semicolon, commas in the header": ("id", "text, long"), "ORC as a word": ("ORCID", "text")}.get(case, columns)
    made = source(path, dialect_of(**options), columns, numbered=len(columns) == 1)
    check = made.check()
    found = rows_in(made)
    assert (check.rows, check.unreadable) == (len(rows), 0)
    assert [row[len(columns) == 1 :] for row in found] == rows
    made.close()


WRONG: dict[str, tuple[str, bytes, dict[str, Any], list[str]]] = {
    "cp1252": (
        "t.csv", "id;text\n1;Grüße: 5 €\n2;naïve café\n3;plain\n".encode("cp1252"), {},
        [" line 2: byte 5 (0xfc) is not UTF-8, and 1 more line is not: give --encoding cp1252 (line 2 then reads",
         "'1;Grüße: 5 €'", ],
    ),
    "cp1252 in the header": ("t.csv", "id,größe,text\n1,2,a\n".encode("cp1252"), {}, [" line 1: byte 6 (0xf6)", "--encoding cp1252"]),
    "cp1250": ("t.csv", "id,text\n1,Zażółć gęślą jaźń\n".encode("cp1250"), {}, ["--encoding cp1250"]),
    "cp1251": ("t.csv", "id,text\n1,Спасибо, хорошо!\n2,Привет, как дела?\n".encode("cp1251"), {}, ["--encoding cp1251", "Спасибо"]),
    "Japanese": ("t.csv", "id,text\n1,こんにちは世界。\n".encode("cp932"), {}, ["--encoding cp932", "こんにちは"]),
    "Latin-1 JSON Lines": ("t.jsonl", b'{"id": 1, "text": "caf\xe9"}\n{"id": 2, "text": "tea"}\n', {}, ["--encoding cp1252"]),
    "title lines": ("t.csv", b"Report, 2024\n\nid,text\n1,a\n", {}, ["has no column 'id'", "line 3 names them: give --skip-lines 2"]),
    "comment": ("t.csv", b"# a comment\nid,text\n1,a\n", {}, ["line 2 names them: give --skip-lines 1"]),
    "sep line and title": ("t.csv", b"sep=;\nReport\nid;text\n1;a\n", {}, ["line 3 names them: give --skip-lines 2"]),
    "no header": ("t.csv", b"1,hello\n2,a\n", {}, ["give --no-header if its first line is a row"]),
    "two delimiters": ("t.csv", b"a,b;c\n1,2;3\n", {}, [" can be read with more than one delimiter: give --delimiter ',' or --delimiter ';'"]),
    "merged lines": (
        "t.tsv", b'id\ttext\tn\n1\t"Crying\t5\n2\ta\t6\n3\tb"\t7\n4\tc\t8\n', {},
        [" line 2 holds a quoted cell of several lines, each of which is a row by itself: give --quoting none"],
    ),
    "open quote in tabs": ("t.tsv", b'id\ttext\n1\ta\n2\t"b\n3\tc\n', {}, [" line 3 opens a quote that takes in the lines below it: give --quoting none"]),
    "backslashes": ("t.csv", b'id,text\n1,"say \\"a\\", b"\n2,c\n', {}, [' holds quotes that follow a backslash (\\"), as MySQL', "give --quoting backslash"]),
    "array": ("t.json", b'[{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]', {}, [" is a JSON array; write one object a line, e.g. with jq -c '.[]'"]),
    "indented array": ("t.json", b'[\n  {\n    "id": 1\n  }\n]', {}, [" is a JSON array"]),
    "empty array": ("t.json", b"[]\n", {}, [" is empty: its JSON array has no row"]),
    "empty array over lines": ("t.json", b"[\n\n ]", {}, [" is empty: its JSON array has no row"]),
    "array cut between two lines": ("t.json", b'[\n{"id":"1","text":"a"},\n{"id":"2","text":"b"},\n', {}, [": its JSON array has no closing ']': it was cut"]),
    "array cut within a line": ("t.json", b'[{"id":"1","text":"a"},\n{"id":"2","te', {}, [": its JSON array has no closing ']': it was cut"]),
    "array that goes on behind its end": ("t.json", b'[\n{"id":"1","text":"a"}\n]\n{"id":"2","text":"b"}\n', {}, ["no closing ']'"]),
    "data": ("t.json", b'{"data": [{"id": 1, "text": "a"}]}', {}, ["write one object a line, e.g. with jq -c '.data[]'"]),
    "data over lines": ("t.json", b'{\n  "data": [\n    {"id": 1, "text": "a"}\n]}', {}, [" is JSON laid out over several lines; write one object a line, e.g. with jq -c '.'"]),
    "data over lines, named": ("t.json", b'{"the data": [\n {"id": 1, "text": "a"}\n]}', {}, ["""jq -c '.["the data"][]'"""]),
    "columns": ("t.json", b'{"id": [1, 2], "text": ["a", "b"]}', {}, [" holds columns, not rows", "jq -c '(.id | keys[]) as $i | map_values(.[$i])'"]),
    "columns of pandas": ("t.json", b'{"id": {"0": 1, "1": 2}, "text": {"0": "a", "1": "b"}}', {}, [" holds columns, not rows"]),
    "delimiter for JSON": ("t.jsonl", b'{"id": 1, "text": "a"}\n', {"delimiter": ";"}, [" is JSON Lines: leave out --delimiter"]),
    "UTF-16 read as UTF-8": ("t.csv", "id,text\n1,a\n".encode("utf-16"), {"encoding": "utf-8"}, [" is UTF-16, not utf-8: leave --encoding out"]),
    "JSON Lines named CSV": ("t.csv", b'\xef\xbb\xbf{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n', {}, ["it is JSON Lines: name it .jsonl"]),
    "a page named CSV": ("t.csv", b"\n<!DOCTYPE html>\n<html><body>Log in</body></html>\n", {}, ["it is XML or HTML"]),
    "XML named TSV": ("t.tsv", b'<?xml version="1.0"?>\n<a/>\n', {}, ["it is XML or HTML"]),
    "zip": ("t.csv", b"PK\x03\x04 and more", {}, ["a zip archive or a spreadsheet"]),
    "xlsx": ("t.csv", b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml", {}, ["an Office file", "pandas.read_excel"]),
    "ods": ("t.csv", b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet", {}, ["an OpenDocument file"]),
    "xls": ("t.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", {}, ["an old Office file"]),
    "SQLite": ("t.csv", b"SQLite format 3\0" + bytes(80), {}, ["an SQLite database: export it, e.g. with sqlite3 -csv"]),
    "DuckDB": ("t.duckdb", bytes(range(1, 9)) + b"DUCK" + bytes(80), {}, ["a DuckDB database"]),
    "Arrow file": ("t.csv", b"ARROW1\0\0" + bytes(40), {}, ["an Arrow or Feather file", "pyarrow.feather.read_table"]),
    "Arrow stream": ("t.arrows", b"\xff\xff\xff\xff\x10\0\0\0" + bytes(40), {}, ["an Arrow stream", "pyarrow.ipc.open_stream"]),
    "Feather": ("t.csv", b"FEA1" + bytes(40), {}, ["a Feather file"]),
    "ORC": ("t.csv", b"ORC\n\x0b\x03\0\0", {}, ["an ORC file"]),
    "Avro": ("t.csv", b"Obj\x01\x04\x14avro.codec", {}, ["an Avro file"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_refused_before_anything_is_asked(tmp_path, case):
    name, content, options, words = WRONG[case]
    (tmp_path / name).write_bytes(content)
    text = told(tmp_path / name, dialect_of(**options))
    assert [each for each in words if each not in text] == [], text
    assert len(text) < 400


def test_the_given_encoding_reads_what_the_refusal_says(tmp_path):
    (tmp_path / "t.csv").write_bytes("id;text\n1;Grüße: 5 €\n2;naïve café\n".encode("cp1252"))
    name = told(tmp_path / "t.csv").partition("--encoding ")[2].partition(" ")[0]
    made = source(tmp_path / "t.csv", dialect_of(name))
    assert rows_in(made) == [["1", "Grüße: 5 €"], ["2", "naïve café"]]
    made.close()


STRAY = {
    "among UTF-8": "id,text\n1,é\n2,à\n3,ü\n4,ö\n5,ä\n6,ñ\n7,ß\n8,ø\n9,ç\n".encode() + b"10,caf\xe9\n",
    "among ASCII": b"id,text\n1,a\n2,\xff\n3,b\n",
    "cut inside a character": b"id,text\n1,a\n2,cut \xe2\x82\n3,b\n",
    "as said": "id,text\n1,a\n2,café\n3,b\n".encode("cp1252"),
}


@pytest.mark.parametrize("case", STRAY)
def test_a_stray_byte_is_one_bad_line(tmp_path, case):
    (tmp_path / "t.csv").write_bytes(STRAY[case])
    made = source(tmp_path / "t.csv", dialect_of("utf-8" if case == "as said" else ""))
    check = made.check()
    assert check.unreadable == 1
    assert "is not UTF-8: correct the line, or give --encoding" in check.problems[0].message
    made.close()


def test_a_byte_that_the_given_encoding_has_not_is_one_bad_line(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"id,text\n1,caf\xe9\n2,caf\xe9\x81\n3,b\n")
    made = source(tmp_path / "t.csv", dialect_of("cp1252"))
    check = made.check()
    assert [(each.line, each.message) for each in check.problems] == [
        (3, "character 7 is not valid in the encoding of the file")
    ]
    assert rows_in(made) == [["1", "café"], ["3", "b"]]
    made.close()


def test_a_repeated_header_is_no_row(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"id,text\n1,a\nid,text\n2,b\n")
    made = source(tmp_path / "t.csv")
    assert [(each.line, each.message) for each in made.check().problems] == [(3, "repeats the header: it is no row")]
    assert rows_in(made) == [["1", "a"], ["2", "b"]]
    made.close()


def test_the_dialect_is_part_of_the_digest_and_detection_is_not(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"id,text\n1,a\n2,b\n")
    digests = set()
    for dialect in (DETECTED, dialect_of(), dialect_of("cp1252"), dialect_of(delimiter=","), dialect_of(quoting="none")):
        made = source(tmp_path / "t.csv", dialect)
        digests.add(made.check().digest)
        made.close()
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoding": "cp9999"}, "--encoding 'cp9999' is unknown"),
        ({"encoding": "hex"}, "--encoding 'hex' is no encoding of text files: leave it out"),
        ({"encoding": "idna"}, "--encoding 'idna' is no encoding of text files"),
        ({"encoding": "a\0b"}, "--encoding 'a\\x00b' is unknown"),
        ({"delimiter": "||"}, "--delimiter '||': give one character"),
        ({"delimiter": '"'}, "--delimiter '\"': give one character"),
        ({"quoting": "all"}, "--quoting 'all': give minimal, none or backslash"),
        ({"skip_lines": -1}, "--skip-lines -1: give 0 or more"),
    ],
)
def test_options_that_make_no_sense(options, words):
    with pytest.raises(ValueError) as error:
        dialect_of(**options)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize("given", ["tab", "\t", "\\t", "TAB"])
def test_names_of_the_tab(given):
    assert dialect_of(delimiter=given).delimiter == "\t"


# ------------------------------------------------------------------------------------------------- any dialect, resumed

WORDS = ["a", "Ann said \"yes\"", "x, y; z", "line\nbreak", "cr\rlf\r\n", "ü", "naïve café", "1,5", "", " ", "tab\there", "|", "'"]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "cp932", "gb18030"]


def _written(seed: int) -> tuple[bytes, Dialect, list[list[str]]]:
    """A table in a random dialect, the options it needs, and its rows."""
    chance = random.Random(seed)
    encoding, end = chance.choice(ENCODINGS), chance.choice(["\n", "\r\n", "\r"])
    delimiter = chance.choice(",;\t|")
    quoting = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    width = chance.randint(2, 5)
    words = [word for word in WORDS if encoding not in ("cp932", "gb18030") or word.isascii()]
    words += {"cp932": ["表示、ソ"], "gb18030": ["你好，世界"]}.get(encoding, [])
    rows = [["id", "text", *(f"c{place}" for place in range(2, width))]]
    for number in range(chance.randint(1, 300)):
        rows.append([str(number), "t" + chance.choice(words), *(chance.choice(words) for _ in range(2, width))])
    # what Python before 3.13 leaves unquoted: a CR
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator="\r\n")
    plain = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    for row in rows:
        (plain if any("\r" in cell for cell in row) else writer).writerow(row)
        if end != "\r\n":
            at = text.tell() - 2
            text.seek(at)
            text.truncate()
            text.write(end)
    given = encoding if encoding in ("cp1252", "cp932", "gb18030") else ""
    return text.getvalue().encode(encoding), dialect_of(given), rows[1:]


@pytest.mark.parametrize("seed", range(120))
def test_a_table_of_any_dialect_reads_back_also_from_any_position(tmp_path, seed):
    content, dialect, rows = _written(seed)
    path = tmp_path / ("t.csv.gz" if seed % 3 == 0 else "t.csv")
    path.write_bytes(gzip.compress(content) if seed % 3 == 0 else content)
    made = source(path, dialect)
    assert made.check().unreadable == 0
    assert rows_in(made) == rows
    made.seek(0)
    found, chance = [], random.Random(seed)
    position, ended = 0, False
    while not ended:  # each window by a new source, as after a kill
        made.close()
        made = source(path, dialect)
        made.seek(position)
        window = made.read(chance.randint(1, 40))
        found += [list(json.loads(row.body).values()) for row in window.rows]
        position, ended = window.position, window.ended
    assert found == rows
    made.close()


@pytest.mark.parametrize("numbered", [False, True])
def test_requests_and_lone_ends_resume_from_any_row(tmp_path, numbered):
    (tmp_path / "t.csv").write_bytes(b"id,text\n" + b"".join(b"%d,a%s" % (n, b"\r" if n % 7 == 3 else b"\n") for n in range(60)))
    found, position = [], 0
    for _ in range(60):
        made = source(tmp_path / "t.csv", columns=ALL, numbered=numbered)
        made.seek(position)
        window = made.read(1)
        found += [json.loads(row.body)["id"] for row in window.rows]
        position = window.position
        made.close()
    assert found == [str(number) for number in range(60)]


def test_a_lone_end_after_the_examined_lines_is_read_and_resumed(tmp_path):
    lines = [b"%d,%s\n" % (n, b"a" * 60) for n in range(6_000)] + [b"x,1\ry,2\rz,3\n", b"last,4\n"]
    (tmp_path / "t.csv").write_bytes(b"id,text\n" + b"".join(lines))
    made = source(tmp_path / "t.csv")
    assert (made.check().rows, made.check().unreadable) == (6_004, 0)
    made.read(6_001)
    position = made.read(1).position
    made.seek(position)
    assert [row.key for row in made.read(9).rows] == ["z", "last"]
    made.close()


def test_an_encoding_of_requests_is_kept_over_positions(tmp_path):
    request = {"params": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "ü"}]}}
    lines = "".join(json.dumps({"custom_id": f"é{n}", **request}, ensure_ascii=False) + "\n" for n in range(20))
    (tmp_path / "in.jsonl").write_bytes(lines.encode("cp1252"))
    found, position = [], 0
    for _ in range(20):
        made = BatchSource(
            str(tmp_path / "in.jsonl"), model=None, output_tokens_max=None, spool=tmp_path / "spool",
            dialect=dialect_of("cp1252"),
        )  # fmt: skip
        made.seek(position)
        window = made.read(1)
        found, position = [*found, *(row.key for row in window.rows)], window.position
        made.close()
    assert found == [f"é{n}" for n in range(20)]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("odd", ["\x0b", "\x1a", "\0", "\x7f", "\ue000"])
@pytest.mark.parametrize("rows", [2, 20_000])
def test_a_control_character_in_utf_16_without_a_mark(tmp_path: Path, encoding: str, odd: str, rows: int) -> None:
    path = tmp_path / "t.csv.gz"
    text = "id,text\n1,café\n" + f"2,a{odd}b Über\n" + "".join(f"k{n},row {n}\n" for n in range(rows))
    path.write_bytes(gzip.compress(text.encode(encoding), 1))
    made = source(path)
    assert rows_in(made)[:2] == [["1", "café"], ["2", f"a{odd}b Über"]]
    made.close()


def test_names_with_commas_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"id;size, cm;text, long;n, m\n1;1,5;a, b;2\n")
    assert told(path) == " has no column 'text', which the prompt names: did you mean 'text, long'?"
    path.write_bytes(b"id;size, cm;words;n, m\n1;1,5;a, b;2\n2;2,5;c;3\n")
    assert "its columns are 'id', 'size, cm', 'words', 'n, m'" in told(path)


@pytest.mark.parametrize("limit", [96, 131_072, csv_form.CELL_MAX, 1 << 40])
def test_the_limit_of_the_csv_module_is_raised_and_never_lowered(limit: int) -> None:
    """It holds for the whole process: a lower one makes others fail, even ``importlib.metadata``."""
    before = csv.field_size_limit(limit)
    try:
        assert list(csv_form.CsvForm().reader(iter(['a,"' + "x" * 200_000 + '"\n'])))
        assert csv.field_size_limit() == max(limit, csv_form.CELL_MAX)
    finally:
        csv.field_size_limit(before)
