"""Tables that strangers reported as read or written wrongly, each by its command and with the right result."""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.files.batch_request import LINE_BYTES_MAX
from actors.journal.journal import StateFolder
from tests.support.arrow_columns import key
from tests.support.odd_tables.readback import READERS

ASK = ("--prompt", "Say. {{text}}", "--id", "id", "--model", "sim", "--job", "j")
ALL = ("--with-input", "--ordered")
ALL_BAD = ("--accept-bad", "100%")


class Case(msgspec.Struct, frozen=True):
    """Table, its command, and the rows that the output must have."""

    name: str
    content: bytes
    rows: list[dict[str, Any]]
    options: tuple[str, ...] = ()
    code: int = 0
    unreadable: int = 0
    output: str = "o.csv"
    prompt: str = ""


PLAIN = 'id,text,price\n007,It crashes.,1.50\n008,I love it!,2.00\n009,"naïve, “quoted”\nsecond line",3.10\n'
PLAIN_ROWS = [
    {"id": "007", "text": "It crashes.", "price": "1.50"}, {"id": "008", "text": "I love it!", "price": "2.00"},
    {"id": "009", "text": "naïve, “quoted”\nsecond line", "price": "3.10"},
]  # fmt: skip
CP1252 = "id;text\n1;Größe: 5 €\n2;naïve café\n3;plain\n".encode("cp1252")
SIZES = b"id;size, cm;text, long;n, m\n1;1,5;a, b;2\n2;2,5;c;3\n"
SIZE_ROWS = [
    {"id": "1", "size, cm": "1,5", "text, long": "a, b", "n, m": "2"},
    {"id": "2", "size, cm": "2,5", "text, long": "c", "n, m": "3"},
]
QUOTES = b'id\ttext\tn\n1\t"Crying\t5\n2\ta\t6\n3\tb"\t7\n4\tc\t8\n'
QUOTE_ROWS = [
    {"id": str(place), "text": text, "n": n} for place, (text, n) in enumerate([('"Crying', "5"), ("a", "6"), ('b"', "7"), ("c", "8")], 1)
]
RESERVED = b"id,answer,error,text,kind,model\n1,a,b,t1,k,m\n2,a,b,t2,k,m\n"
RESERVED_ROWS = [
    {"id": str(n), "answer": "a", "error": "b", "text": f"t{n}", "kind": "k", "model": "m"} for n in (1, 2)
]
READ = {
    "cr.jsonl": Case(
        "cr.jsonl",
        b'{"id":1,"text":"a\\rb"}\n{"id":2,"text":"x\\r\\ny"}\n{"id":3,"text":"plain"}\n{"id":4,"text":"\\rlead"}\n',
        [{"id": str(n), "text": text} for n, text in enumerate(["a\rb", "x\r\ny", "plain", "\rlead"], 1)],
    ),
    "make_bad": Case(
        "bad.csv",
        b"id,text\n" + b"".join(b"%d,row %d%b\n" % (i, i, b"" if i % 3 else b",extra") for i in range(1_000)),
        [{"id": str(i), "text": f"row {i}"} for i in range(1_000) if i % 3],
        ("--accept-bad", "34%"), 3, 334,
    ),
    "ragged.csv": Case(
        "ragged.csv", b"id,text,n\n1,a,1\n2,b\n3,c,3,extra\n4,d,4\n",
        [{"id": "1", "text": "a", "n": "1"}, {"id": "4", "text": "d", "n": "4"}], ALL_BAD, 3, 2,
    ),
    "cp1252.csv": Case(
        "cp1252.csv", CP1252,
        [{"id": "1", "text": "Größe: 5 €"}, {"id": "2", "text": "naïve café"}, {"id": "3", "text": "plain"}],
        ("--encoding", "cp1252"),
    ),
    "utf16le_nobom.csv": Case("utf16le_nobom.csv", PLAIN.encode("utf-16-le"), PLAIN_ROWS),
    "plain.csv": Case("plain.csv", PLAIN.encode(), PLAIN_ROWS),
    "cr_only.csv": Case(
        "cr_only.csv", b"id,text\r1,a\r2,b\r3,c\r", [{"id": str(n), "text": text} for n, text in enumerate("abc", 1)]
    ),
    "semicolon_commahead.csv": Case("semicolon_commahead.csv", SIZES, SIZE_ROWS, prompt="Say. {{text, long}}"),
    "semicolon_commahead.csv, given": Case(
        "semicolon_commahead.csv", SIZES, SIZE_ROWS, ("--delimiter", ";"), prompt="Say. {{text, long}}"
    ),
    "tsv_quote_merge.tsv": Case("tsv_quote_merge.tsv", QUOTES, QUOTE_ROWS, ("--quoting", "none")),
    "bomcell.csv": Case(
        "bomcell.csv", b'id,text\n1,"a\n\xef\xbb\xbfb"\n2,"c\rd"\n3,"e\r\nf"\n4,"tail  "\n',
        [{"id": str(n), "text": text} for n, text in enumerate(["a\n\ufeffb", "c\rd", "e\r\nf", "tail  "], 1)],
    ),
    "reserved_names.csv": Case("reserved_names.csv", RESERVED, RESERVED_ROWS, ("--columns-prefix", "our_")),
    "array_lines.json": Case(
        "array_lines.json", b'[\n{"id":1,"text":"a"},\n{"id":2,"text":"b"}\n]\n',
        [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}],
    ),
    "nested_ns.parquet": Case(
        "nested_ns.parquet", b"",
        [{"id": 1, "text": "a", "n": ["2023-11-14T22:13:20.123456789"]}, {"id": 2, "text": "b", "n": []}], output="o.jsonl",
    ),
    "bintext.parquet": Case("bintext.parquet", b"", [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}]),
}  # fmt: skip


def _nested_ns() -> Any:
    times = pa.array([[1_700_000_000_123_456_789], []], pa.list_(pa.timestamp("ns")))
    return pa.table({"id": [1, 2], "text": ["a", "b"], "n": times})


def _far() -> Any:
    return pa.table({"id": [1, 2], "text": ["a", "b"], "n": pa.array([2**60, 0], pa.timestamp("us"))})


def _two_of_one_name() -> Any:
    return pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["id", "text", "text"])


PARQUET: dict[str, Callable[[], Any]] = {
    "nested_ns.parquet": _nested_ns, "bintext.parquet": lambda: pa.table({"id": [1, 2], "text": [b"a", b"b"]}),
    "far.parquet": _far, "dupcol.parquet": _two_of_one_name,
}  # fmt: skip


def _write(name: str, content: bytes) -> None:
    if name in PARQUET:
        pq.write_table(PARQUET[name](), name)
    else:
        Path(name).write_bytes(content)


@pytest.mark.parametrize("name", READ)
def test_a_reported_table_is_read_and_each_reader_finds_its_rows(cortex: Any, name: str) -> None:
    case = READ[name]
    _write(case.name, case.content)
    prompt = ("--prompt", case.prompt) if case.prompt else ()
    done = cortex("batch", case.name, *ASK, *prompt, *ALL, "-o", case.output, *case.options, "--json")
    counts = [done.last[each] for each in ("rows", "rows_succeeded", "rows_failed", "rows_unreadable")]
    rows = len(case.rows)
    assert (done.code, counts) == (case.code, [rows + case.unreadable, rows, 0, case.unreadable]), done.err[:2_000]
    readers = READERS[case.output.rpartition(".")[2]]
    for read in readers:
        found = read(Path(case.output))
        assert [{column: row[column] for column in told} for row, told in zip(found, case.rows, strict=True)] == case.rows


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.csv", READ["make_bad"].content, ["334 of 1,000 records (33.4%) are unreadable", "nothing was asked", "--accept-bad 34%"]),
        ("cp1252.csv", CP1252, ["cp1252.csv line 2: byte 5 (0xf6) is not UTF-8", "--encoding cp1252 (line 2 then reads '1;Größe: 5 €')"]),
        ("tsv_quote_merge.tsv", QUOTES, ["tsv_quote_merge.tsv line 2", "--quoting none"]),
        ("reserved_names.csv", RESERVED, ["has a column 'answer'", "--answer-as"]),
        ("dupcol.parquet", b"", ["dupcol.parquet has two columns named 'text'"]),
        ("far.parquet", b"", ["far.parquet row 1, column 'n': a time is out of range"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_reported_table_is_refused_before_anything_is_asked(cortex: Any, name: str, content: bytes, words: list[str]) -> None:
    _write(name, content)
    output = "o.parquet" if name == "far.parquet" else "o.csv"
    assert len(cortex("batch", name, *ASK, *ALL, "-o", output).refused(*words)) < 700
    assert StateFolder(os.environ["CORTEX_STATE"]).jobs() == []
    assert not list(Path().glob("o.*"))


def test_a_column_named_answer_stays_where_ours_is_named_otherwise(cortex: Any) -> None:
    Path("t.csv").write_bytes(b"id,answer,text\n1,a,t1\n")
    assert cortex("batch", "t.csv", *ASK, *ALL, "-o", "o.csv", "--answer-as", "reply").code == 0
    (row,) = csv.DictReader(Path("o.csv").read_text().splitlines())
    assert (row["answer"], list(row)) == ("a", ["id", "answer", "text", "reply", "error"])


def _types() -> Any:
    """Return a table of the types that were reported as changed, with NaN, infinities and metadata."""
    moments = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None, dt.datetime(2024, 3, 31, tzinfo=dt.UTC)]
    structs = pa.list_(pa.struct([("t", pa.timestamp("ms", "UTC")), ("v", pa.decimal128(5, 2))]))
    columns = {
        "id": pa.array([2**53 + 1, 2, 3]), "text": pa.array(["a", "b\nc", "d"]), "u64": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "f32": pa.array([0.1, float("nan"), float("inf")], pa.float32()), "f64": pa.array([0.1, float("nan"), float("-inf")]),
        "f16": pa.array([None, 1.5, float("nan")], pa.float16()), "dec": pa.array([Decimal("1.10"), None, Decimal("2.00")], pa.decimal128(38, 2)),
        "dec256": pa.array([Decimal("1.1"), Decimal("0.0"), None], pa.decimal256(60, 1)), "date": pa.array([dt.date(2024, 1, 1), None, dt.date(1, 1, 1)]),
        "ns": pa.array([1_700_000_000_123_456_789, None, 0], pa.timestamp("ns")), "tz": pa.array(moments, pa.timestamp("us", "Europe/Berlin")),
        "time": pa.array([dt.time(1, 2, 3, 4), None, dt.time()]), "dur": pa.array([1, None, 3], pa.duration("ms")),
        "bin": pa.array([b"\xff", None, b""]), "fsb": pa.array([b"abcd", None, b"\xff" * 4], pa.binary(4)),
        "cat": pa.array(["x", "y", None]).dictionary_encode(), "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None]), "floats": pa.array([[float("nan"), float("inf")], [], None]),
        "los": pa.array([[{"t": moments[0], "v": Decimal("1.50")}], [], None], structs),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())), "nul": pa.nulls(3), "large": pa.array(["x", None, ""], pa.large_string()),
        "uuid": pa.array([uuid.UUID(int=n).bytes for n in range(3)], pa.uuid()),
    }  # fmt: skip
    return pa.table(columns, metadata={b"huggingface": b"{}"})


def test_types_parquet_comes_back_with_types_values_and_metadata(cortex: Any) -> None:
    given = _types()
    pq.write_table(given, "types.parquet")
    given = pq.read_table("types.parquet")
    assert cortex("batch", "types.parquet", *ASK, *ALL, "-o", "o.parquet").code == 0
    found = pq.read_table("o.parquet")
    for field in given.schema:
        assert found.schema.field(field.name) == field
        assert key(found[field.name].to_pylist()) == key(given[field.name].to_pylist()), field
    assert found.schema.metadata[b"huggingface"] == b"{}"


def test_duck_parquet_has_a_uuid_as_id(cortex: Any) -> None:
    import duckdb

    with duckdb.connect() as database:
        database.execute("COPY (SELECT i AS id, 'text ' || i AS text, uuid() AS u, TIMESTAMPTZ '2024-01-01' AS tz, 0.5::DECIMAL(9, 2) AS d, "
                         "[i] AS l, {'x': i} AS s FROM range(5) t(i)) TO 'duck.parquet'")  # fmt: skip
        names = [str(each) for (each,) in database.execute("SELECT u FROM 'duck.parquet'").fetchall()]
    ask = ("batch", "duck.parquet", *ASK[:2], "--id", "u", "--model", "sim", *ALL)
    assert cortex(*ask, "-o", "o.jsonl").code == cortex(*ask, "-o", "o.parquet").code == 0
    assert [json.loads(line)["u"] for line in Path("o.jsonl").read_text().splitlines()] == names
    assert pq.read_schema("o.parquet").field("u").type == pa.uuid()


def test_bintext_parquet_is_asked_as_text(cortex: Any) -> None:
    _write("bintext.parquet", b"")
    assert cortex("batch", "bintext.parquet", *ASK, "-o", "o.csv").code == 0
    assert "Say. a" in cortex("inspect", "j", "row:1").out


BIGINT = (
    b'{"id":9007199254740993,"text":"a","b":123456789012345678901234567890,"f":0.1,"g":1.0,"h":1e2,"m":-0.0,"d":12345678901234567.89}\n'
    b'{"id":9007199254740992,"text":"b","b":1,"f":0.30000000000000004,"g":2.0,"h":1E+2,"m":0,"d":1}\n'
)


def test_bigint_jsonl_is_kept_to_the_letter(cortex: Any) -> None:
    Path("bigint.jsonl").write_bytes(BIGINT)
    prompt = ("--prompt", "{{id}} {{b}} {{f}} {{h}} {{m}} {{d}}")
    assert cortex("batch", "bigint.jsonl", *ASK, *prompt, *ALL, "-o", "o.jsonl").code == 0
    for given, found in zip(BIGINT.splitlines(), Path("o.jsonl").read_bytes().splitlines(), strict=True):
        assert found.startswith(given[:-1] + b",")
    asked = "9007199254740993 123456789012345678901234567890 0.1 1e2 -0.0 12345678901234567.89"
    assert asked in cortex("inspect", "j", f"row:{2**53 + 1}").out
    assert cortex("results", "j", "-o", "o.csv").code == 0
    for read in READERS["csv"]:
        first, second = read(Path("o.csv"))
        assert [first[name] for name in ("id", "b", "h", "m", "d")] == asked.replace(" 0.1", "").split()
        assert (second["id"], second["h"], second["f"]) == ("9007199254740992", "1E+2", "0.30000000000000004")


NANS = (
    b'{"id":1,"text":"a","x":NaN}\n{"id":2,"text":"b","x":Infinity}\n{"id":3,"text":"c","x":1e400}\n'
    b'{"id":4,"text":"\\ud83d cut","x":1}\n{"id":5,"text":"\\u0000nul"}\n'
)


@pytest.mark.parametrize("output", ["o.csv", "o.parquet"])
def test_nanjson_jsonl_has_a_line_for_each_row(cortex: Any, output: str) -> None:
    Path("nanjson.jsonl").write_bytes(NANS)
    done = cortex("batch", "nanjson.jsonl", *ASK, *ALL, "-o", output, "--json")
    assert (done.code, done.last["rows_succeeded"], done.last["rows_failed"], done.last["rows_unreadable"]) == (2, 4, 1, 0)
    for read in READERS[output.rpartition(".")[2]]:
        rows = read(Path(output))
        assert [row["x"] or "" for row in rows] == ["NaN", "Infinity", "1e400", "1", ""]
        assert [bool(row["error"]) for row in rows] == [False, False, False, True, False]
        assert rows[3]["error"].startswith("rejected: text holds half of a character")
        assert rows[4]["text"] == "\0nul"


def test_make_cell50_loses_no_row_behind_a_cell_that_is_too_large(cortex: Any) -> None:
    with Path("cell50.csv").open("w") as file:
        file.write(f'id,text\n1,small\n2,"{"x" * LINE_BYTES_MAX}"\n3,after\n4,after\n')
    done = cortex("batch", "cell50.csv", *ASK, *ALL, "-o", "o.csv", *ALL_BAD, "--json")
    assert [done.last[each] for each in ("rows", "rows_succeeded", "rows_unreadable")] == [4, 3, 1], done.err
    assert "cell50.csv line 3: longer than 32 MB" in done.err
    assert [line.split(",")[0] for line in Path("o.csv").read_text().splitlines()] == ["id", "1", "3", "4"]
