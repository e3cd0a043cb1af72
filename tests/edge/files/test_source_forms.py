"""Inputs that are not what they should be: one clear line that says what they are, and the way out."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random

import pytest

from actors.files.errors import printable
from actors.files.sources.row_source import BatchSource, SourceError

OPENAI = {
    "custom_id": "request-1", "method": "POST", "url": "/v1/images",
    "body": {"model": "gpt", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
}  # fmt: skip
GOOD = {"custom_id": "a", "params": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}}
RESULT = {"custom_id": "a", "result": {"type": "canceled"}}


def bytes_of(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def told(tmp_path, content: bytes | None, name: str = "in.jsonl") -> str:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    path = str(tmp_path / name)
    made = BatchSource(path, model=None, output_tokens_max=None, spool=tmp_path / "spool")
    try:
        with pytest.raises(SourceError) as error:
            made.check()
    finally:
        made.close()
    text, path = str(error.value), printable(path)
    assert text.startswith(path), "it names the file"
    assert "\n" not in text
    return text.removeprefix(path)


WRONG = {
    "empty": (b"", " is empty: give it one request a line"),
    "blank": (b"\n \n\r\n", " holds nothing but blank lines: give it one request a line"),
    "OpenAI": (bytes_of(OPENAI, {**OPENAI, "custom_id": "b"}), ' is in the OpenAI batch format, of "/v1/images": lines of'),
    "OpenAI after a mark": (b"\xef\xbb\xbf" + bytes_of(OPENAI), " is in the OpenAI batch format"),
    "results of OpenAI": (bytes_of({"custom_id": "a", "response": None}), " is a file of results, not of requests"),
    "array": (json.dumps([GOOD, GOOD]).encode(), " is a JSON array; write one object a line, e.g. with jq -c '.[]'"),
    "array over lines": (json.dumps([GOOD], indent=2).encode(), " is a JSON array"),
    "array of rows": (b"[" + bytes_of(GOOD).strip() + b",\n" + bytes_of(GOOD).strip() + b"]\n", " is a JSON array"),
    "object over lines": (json.dumps(GOOD, indent=2).encode(), " has its objects laid out over several lines"),
    "batch body": (bytes_of({"requests": [GOOD]}), " is the body of one Message Batches request; write its requests"),
    "results": (bytes_of(RESULT), " is a file of results, not of requests: give the input that it was made from"),
    "bedrock": (bytes_of({"recordId": "a", "modelInput": {}}), " is in the Bedrock batch format"),
    "bare": (bytes_of(GOOD["params"]), " holds bare requests; give each a name and put it under params"),
    "CSV": (b"id,text\n1,hello\n", " looks like CSV: give --prompt"),
    "TSV": (b"id\ttext\n1\thello\n", " looks like CSV: give --prompt"),
    "XML": (b"<rows>\n<row/>\n</rows>\n", " looks like XML or HTML; cortex wants JSON Lines"),
    "text": (b"hello\nworld\n", ": no line of it is a row; line 1: invalid JSON: expecting value at character 1"),
    "other objects": (b'\n{"text": "x"}\n', ": no line of it is a row; line 2: has no custom_id"),
    "gzip": (gzip.compress(bytes_of(GOOD)), " is compressed with gzip: name it .gz, or pass it through gunzip -c"),
    "bzip2": (bz2.compress(bytes_of(GOOD)), " is compressed with bzip2"),
    "xz": (lzma.compress(bytes_of(GOOD)), " is compressed with xz"),
    "zip": (b"PK\x03\x04rest", " is a zip archive or a spreadsheet"),
    "parquet": (b"PAR1rest", " is a Parquet file"),
    "Latin-1": (b'{"custom_id":"caf\xe9"}\n', " line 1: byte 18 (0xe9) is not UTF-8: give --encoding cp1252 (line 1"),
    "zeros": (bytes(5_000), ": no line of it is a row; line 1: invalid JSON"),
}


@pytest.mark.parametrize("content, said", WRONG.values(), ids=WRONG)
def test_wrong_input(tmp_path, content, said):
    assert told(tmp_path, content).startswith(said)


def test_wrong_input_inside_gzip(tmp_path):
    assert told(tmp_path, gzip.compress(bytes_of(OPENAI)), "in.jsonl.gz").startswith(" is in the OpenAI batch format")
    assert told(tmp_path, gzip.compress(b""), "none.gz").startswith(" is empty")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_requests_in_unicode_of_any_width_are_read(tmp_path, encoding):
    (tmp_path / "in.jsonl").write_bytes(bytes_of(GOOD, {**GOOD, "custom_id": "ü"}).decode().encode(encoding))
    made = BatchSource(str(tmp_path / "in.jsonl"), model=None, output_tokens_max=None, spool=tmp_path / "spool")
    assert [row.key for row in made.read(9).rows] == ["a", "ü"]
    made.close()


def test_some_rows_in_the_other_form_do_not_stop_the_good_ones(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(bytes_of(GOOD, OPENAI, RESULT))
    made = BatchSource(str(tmp_path / "in.jsonl"), model=None, output_tokens_max=None, spool=tmp_path / "spool")
    check = made.check()
    made.close()
    assert (check.rows, check.refused, check.unreadable) == (2, 1, 1)
    assert "as in the OpenAI batch format" in check.problems[0].message


def test_rows_that_are_all_refused_still_have_their_lines(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(bytes_of({**GOOD, "params": {}}))
    made = BatchSource(str(tmp_path / "in.jsonl"), model=None, output_tokens_max=None, spool=tmp_path / "spool")
    assert (made.check().rows, made.check().refused) == (1, 1)
    made.close()


# ------------------------------------------------------------------------------------------------------ the file


def test_missing_file(tmp_path):
    assert told(tmp_path, None).startswith(": no such file (looked in ")


def test_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    assert told(tmp_path, None, "folder") == " is a folder: name a file in it"


def test_a_file_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    assert told(tmp_path, None, "file/in.jsonl") == " cannot be read: a part of the path is a file, no folder: look at the path"


def test_a_name_that_cannot_be(tmp_path):
    assert " cannot be read: " in told(tmp_path, None, "x" * 5_000)
    assert " cannot be read: " in told(tmp_path, None, "a\0b")


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_without_leave(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(bytes_of(GOOD))
    (tmp_path / "in.jsonl").chmod(0)
    assert told(tmp_path, None) == " cannot be read: no permission: let this user read and write there, or name another place"


def test_device(tmp_path):
    made = BatchSource(os.devnull, model=None, output_tokens_max=None, spool=tmp_path / "spool")
    with pytest.raises(SourceError, match="is a device: give a file, or - for standard input"):
        made.check()


def test_gzip_that_is_none(tmp_path):
    text = told(tmp_path, bytes_of(GOOD), "in.jsonl.gz")
    assert text == " is not gzip, whatever its name says: name it without .gz"


def test_gzip_that_was_cut_names_its_line(tmp_path):
    packed = gzip.compress(bytes_of(GOOD), 0) + gzip.compress(bytes_of(GOOD) * 200, 0)
    text = told(tmp_path, packed[:-30], "in.jsonl.gz")
    assert ", its gzip ends too early: it was cut; fetch or make it again" in text
    assert text.startswith(": somewhere after line ")


def test_gzip_that_is_damaged(tmp_path):
    packed = bytearray(gzip.compress(random.Random(1).randbytes(100) + bytes_of(GOOD) * 200))
    packed[len(packed) // 2] ^= 0xFF
    assert ", its gzip is damaged" in told(tmp_path, bytes(packed), "in.jsonl.gz")
    followed = gzip.compress(bytes_of(GOOD)) + b"something else"
    assert ", its gzip is damaged (something else follows it)" in told(tmp_path, followed, "other.gz")
