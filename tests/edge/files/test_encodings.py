"""Each encoding that Python knows reads a file, or is refused with the option that reads the whole of it."""

from __future__ import annotations

import codecs
import encodings.aliases
import gzip
import json
from pathlib import Path

import pytest

from actors.files.dialects import streams
from actors.files.dialects.dialect import DETECTED, Dialect, DialectError, dialect_of
from actors.files.dialects.given_encoding import UTF8
from actors.files.errors import SourceError, WrongEncoding
from actors.files.sources.row_source import BatchSource, InputCheck, RowSource
from actors.files.sources.table_source import TableSource
from cortex.values.template import Template

ROWS = [("1", "Grüße: 5 €"), ("2", "naïve café"), ("3", "plain")]
CHINESE = [("1", "你好，世界"), ("2", "今天天气很好")]
CODECS = sorted(
    {*encodings.aliases.aliases.values(), "charmap", "idna", "palmos", "punycode", "raw_unicode_escape", "undefined",
     "unicode_escape", "utf_8_sig"}
)  # fmt: skip


def table(rows: list[tuple[str, str]], delimiter: str = ";") -> str:
    return "".join(f"{delimiter.join(row)}\n" for row in [("id", "text"), *rows])


def lines(rows: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"id": key, "text": text}, ensure_ascii=False) + "\n" for key, text in rows)


def requests(rows: list[tuple[str, str]]) -> str:
    made = [
        {"custom_id": key, "params": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": text}]}}
        for key, text in rows
    ]
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in made)


FILES: dict[str, tuple[str, bytes, list[tuple[str, str]]]] = {
    "CSV in UTF-8": ("t.csv", table(ROWS).encode(), ROWS),
    "CSV in cp1252, gzip": ("t.csv.gz", gzip.compress(table(ROWS).encode("cp1252")), ROWS),
    "TSV as Excel writes it": ("t.tsv", table(ROWS, "\t").replace("\n", "\r\n").encode("utf-16"), ROWS),
    "CSV in UTF-16 without a mark": ("t.csv", table(ROWS).encode("utf-16-le"), ROWS),
    "CSV of ASCII that ends in CR": ("t.csv", table([("1", "a"), ("2", "b")]).replace("\n", "\r").encode(), [("1", "a"), ("2", "b")]),
    "CSV in GB18030": ("t.csv", table(CHINESE).encode("gb18030"), CHINESE),
    "JSON Lines in UTF-8 with a mark": ("t.jsonl", lines(ROWS).encode("utf-8-sig"), ROWS),
    "JSON Lines in cp1252": ("t.jsonl", lines(ROWS).encode("cp1252"), ROWS),
    "requests in UTF-8": ("requests.jsonl", requests(ROWS).encode(), ROWS),
    "requests in UTF-16": ("requests.jsonl", requests(ROWS).encode("utf-16"), ROWS),
}  # fmt: skip


def source(path: Path, dialect: Dialect = DETECTED) -> RowSource:
    if path.name.startswith("requests"):
        return BatchSource(str(path), model=None, output_tokens_max=None, spool=path.parent / "spool", dialect=dialect)
    return TableSource(
        str(path), prompt=Template("{{text}}"), id="id", numbered=False, with_input=True, spool=path.parent / "spool",
        dialect=dialect,
    )  # fmt: skip


def read(path: Path, dialect: Dialect = DETECTED) -> tuple[InputCheck, list[tuple[str, str]]]:
    made = source(path, dialect)
    try:
        check = made.check()
        found = [json.loads(row.body) for row in made.read(100).rows]
    finally:
        made.close()
    if path.name.startswith("requests"):
        return check, [("", each["messages"][0]["content"]) for each in found]
    return check, [(each["id"], each["text"]) for each in found]


def told(path: Path, dialect: Dialect = DETECTED) -> str:
    """The one line with which a file is refused. The option in it reads the whole file."""
    with pytest.raises(SourceError) as error:
        read(path, dialect)
    text = str(error.value)
    assert text.startswith(str(path)) and text.isprintable()
    return text


def option_in(text: str) -> Dialect:
    """The encoding that a refusal says to give."""
    assert "--encoding" in text, text
    if "leave --encoding out" in text:
        return DETECTED
    return dialect_of(text.partition("give --encoding ")[2].split()[0])


@pytest.mark.parametrize("case", FILES)
def test_every_codec_reads_the_file_or_is_refused_with_the_one_that_does(tmp_path: Path, case: str) -> None:
    name, content, rows = FILES[case]
    path = tmp_path / name
    path.write_bytes(content)
    texts = [text for _, text in rows]
    plain = gzip.decompress(content) if name.endswith(".gz") else content
    for each in CODECS:
        try:
            dialect = dialect_of(each)
        except DialectError as error:
            assert "leave it out" in str(error)
            continue
        try:
            check, found = read(path, dialect)
        except SourceError as error:
            check, found = read(path, option_in(str(error)))
            assert (check.unreadable, [text for _, text in found]) == (0, texts), (each, str(error))
            continue
        if dialect.encoding in UTF8:
            assert found == [row for row in rows if row[1].isascii()] or check.unreadable == 0, each
        else:
            assert not check.unreadable, each
            plain.decode(dialect.encoding)  # without an error


@pytest.mark.parametrize("error", [UnicodeError, LookupError, ValueError, KeyError, ArithmeticError])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_whatever_a_codec_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], at: int
) -> None:
    """At the opening of the file, in its header or in the middle."""
    monkeypatch.setattr(streams, "_PIECE_BYTES", 64)
    pieces: list[bytes] = []

    class Decoder(codecs.IncrementalDecoder):
        def decode(self, some: bytes, final: bool = False) -> str:  # type: ignore[override]
            pieces.append(some)
            if len(pieces) % 10 == at:
                raise error("no such\nbytes")
            return some.decode("latin-1")

    def find(name: str) -> codecs.CodecInfo | None:
        known = codecs.lookup("latin-1")
        return codecs.CodecInfo(known.encode, known.decode, incrementaldecoder=Decoder, name=name) if name == "own" else None

    codecs.register(find)
    try:
        (tmp_path / "t.csv").write_bytes(table([(str(n), "x" * 20) for n in range(40)]).encode())
        text = told(tmp_path / "t.csv", dialect_of("own"))
    finally:
        codecs.unregister(find)
    assert "\n" not in text and "leave --encoding out" in text


def test_a_header_that_is_not_utf_8_is_never_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id;größe;text\n1;2;a\n".encode("cp1252"))
    for dialect in (DETECTED, dialect_of("utf-8"), dialect_of("ascii")):
        text = told(path, dialect)
        assert "line 1: byte 6 (0xf6) is not UTF-8: give --encoding cp1252 (line 1 then reads 'id;größe;text')" in text
        assert "utf-8" not in text
    assert read(path, option_in(text))[1] == [("1", "a")]


def test_the_encoding_that_is_told_reads_the_whole_file(tmp_path: Path) -> None:
    """If none does, the lines are told that remain bad."""
    path = tmp_path / "t.csv"
    path.write_bytes(table([(str(n), "Grüße, naïve café") for n in range(9)]).encode("cp1252") + b"9;a \x81 b\n")
    assert "--encoding cp1252 (line 2 then reads '0;Grüße, naïve café'; 1 line is not cp1252 either)" in told(path)
    check, _ = read(path, option_in(told(path)))
    assert (check.rows, check.unreadable) == (9, 1)
    path.write_bytes("id;text\n1;Привет, как дела?\n2;Спасибо, хорошо!\n".encode("cp1251"))
    assert read(path, option_in(told(path, dialect_of("cp932"))))[0].unreadable == 0


@pytest.mark.parametrize(("name", "given"), [("utf-16-le", "utf-16"), ("utf-16-be", "utf-16"), ("utf-32-be", "utf-32")])
def test_utf_16_without_a_mark_has_the_order_that_its_text_shows(tmp_path: Path, name: str, given: str) -> None:
    (tmp_path / "t.csv").write_bytes(table(ROWS).encode(name))
    assert read(tmp_path / "t.csv", dialect_of(given))[1] == ROWS


def test_a_right_encoding_is_never_refused(tmp_path: Path) -> None:
    """Also where a column is missing, some bytes are bad, or the text is as short as the classic two of GBK."""
    path = tmp_path / "t.csv"
    path.write_bytes(table([("1", "联通")]).encode("gbk"))
    assert read(path, dialect_of("gbk"))[1] == [("1", "联通")]
    path.write_bytes("id;txt\n1;Zażółć gęślą jaźń\n".encode("cp1250"))
    assert "has no column 'text'" in told(path, dialect_of("cp1250"))
    path.write_bytes(table([("1", "Ünlü bir şey"), ("2", "ağaç")]).encode("cp1254") + b"3;\x81\n")
    assert read(path, dialect_of("cp1254"))[0].unreadable == 1


def test_a_first_row_without_a_header_is_one_bad_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("1;é\n2;ü\n3;ö\n4;ä\n5;ñ\n6;ß\n7;ø\n8;ç\n9;å\n".encode().replace(b"1;\xc3", b"1;", 1))
    made = TableSource(
        str(tmp_path / "t.csv"), prompt=Template("{{column_2}}"), id="column_1", numbered=False, with_input=False,
        spool=tmp_path / "spool", dialect=dialect_of(no_header=True, delimiter=";"),
    )  # fmt: skip
    check = made.check()
    made.close()
    assert (check.rows, check.unreadable, check.problems[0].line) == (8, 1, 1)


def test_a_refusal_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(table(ROWS).encode())
    made = source(tmp_path / "t.csv", dialect_of("utf-16"))
    for _ in range(2):  # and it stays one
        with pytest.raises(WrongEncoding, match="is UTF-8, not utf-16: leave --encoding out"):
            made.check()
    made.close()
