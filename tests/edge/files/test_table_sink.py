"""A table of results is whole or not there: made of rows that are certain, again after whatever went wrong."""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas
import polars
import pyarrow.parquet
import pytest

from actors.files.columns import DEFAULT_COLUMNS, Columns
from actors.files.errors import SinkError
from actors.files.paths import rows_of
from actors.files.sinks import table_sink
from actors.files.sinks.table_sink import TableSink

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = Columns([("id", "integer"), ("text", "text"), ("more", "json")])
ROWS = [b'{"id":%d,"text":"a \\"b\\",\\nc","more":[%d]}' % (n, n) for n in range(5)]


@pytest.fixture
def sink(tmp_path: Path) -> Callable[..., TableSink]:
    def make(name: str = "o.csv", **options: Any) -> TableSink:
        path = str(tmp_path / name)
        return TableSink(
            path,
            rows_of(tmp_path, path, job := options.pop("job", "j")),
            options.pop("columns", COLUMNS),
            job=job,
            **options,
        )

    return make


def table(path: Path) -> list[dict[str, Any]]:
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_table(path).to_pylist())
    return list(pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)).to_pylist())


ODD = ["a\rb", "\r", "a\r\nb", "\nb", 'q"q', "a,b", "a\tb", " a ", "", "\ufeffa", "\u2028", "plain"]
FORMULAS = ["=cmd|' /C calc'!A0", '=HYPERLINK("http://x","y")', "+1+1", "-2+3", "@SUM(A1:A9)", "\t=1", "\r=1", "'=1", "|x"]
"""Texts that spreadsheets run (https://owasp.org/www-community/attacks/CSV_Injection). A table has them as they are."""


@pytest.mark.parametrize("name", ["o.csv", "o.tsv"])
def test_any_reader_finds_each_row_once_and_each_text_as_it_is(sink: Any, tmp_path: Path, name: str) -> None:
    """A lone CR among them: Python 3.11 and 3.12 write it bare where lines end with a line feed alone."""
    one = sink(name)
    one.open(0, 0, False)
    texts = ODD + FORMULAS
    one.write([msgspec.json.encode({"id": n, "text": text, "more": []}) for n, text in enumerate(texts)])
    one.flush()
    one.close()
    assert one.holds(len(texts))
    delimiter = "\t" if name.endswith("tsv") else ","
    with (tmp_path / name).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter=delimiter))
    assert [row["text"] for row in rows] == texts
    frame = pandas.read_csv(tmp_path / name, sep=delimiter, keep_default_na=False, dtype=str)
    assert list(frame["text"]) == texts
    assert list(polars.read_csv(tmp_path / name, separator=delimiter, infer_schema=False)["text"].fill_null("")) == texts


def test_a_table_with_a_huge_cell_is_known_as_whole(sink: Any) -> None:
    """The csv module reads no cell over 131,072 characters unless it is told to."""
    one = sink("o.csv")
    one.open(0, 0, False)
    one.write([msgspec.json.encode({"id": 1, "text": "x" * 200_000, "more": []})])
    one.flush()
    one.close()
    before = csv.field_size_limit(131_072)
    try:
        assert one.holds(1)
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize("name", ["o.csv", "o.parquet"])
def test_it_is_made_when_the_run_ends(sink: Any, tmp_path: Path, name: str) -> None:
    one = sink(name)
    assert one.open(0, 0, False) == 0
    one.write(ROWS)
    rows, size = one.flush()
    assert not (tmp_path / name).exists()
    one.close()
    assert table(tmp_path / name) == [{"id": n, "text": 'a "b",\nc', "more": f"[{n}]"} for n in range(5)]
    assert (one.holds(5), one.holds(4), rows_of(tmp_path, str(tmp_path / name), "j").exists()) == (True, False, True)
    two = sink(name)
    assert two.open(rows, size, True) == 5
    two.write(ROWS[:1])
    two.flush()
    two.close()
    two.forget()
    assert len(table(tmp_path / name)) == 6
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["o.csv", "o.parquet"])
def test_a_row_has_nothing_where_it_lacks_a_column_and_no_column_of_its_own(
    sink: Any, tmp_path: Path, name: str
) -> None:
    one = sink(name)
    one.open(0, 0, False)
    one.write([b'{"more":[1],"id":7,"other":1}', b'{"id":8,"text":"t"}'])
    one.close()
    found = table(tmp_path / name)
    assert [{key: value or None for key, value in row.items()} for row in found] == [
        {"id": 7, "text": None, "more": "[1]"}, {"id": 8, "text": "t", "more": None},
    ]  # fmt: skip


@pytest.mark.parametrize("name", ['price "net"', "Total\n(USD)", "a\\b", "tab\t", "\u00e9\u2028", "", "c0", "id"])
def test_a_column_may_have_any_name(sink: Any, tmp_path: Path, name: str) -> None:
    names = list(dict.fromkeys(["id", name, "text"]))
    one = sink("o.parquet", columns=Columns([(each, "integer" if each == "id" else "text") for each in names]))
    one.open(0, 0, False)
    rows = [{each: n if each == "id" else f"{each} {n}" for each in names} for n in range(3)]
    one.write([msgspec.json.encode(row) for row in rows])
    one.close()
    assert table(tmp_path / "o.parquet") == rows


def test_rows_beyond_what_the_journal_knows_are_cut_back(sink: Any, tmp_path: Path) -> None:
    one = sink()
    one.open(0, 0, False)
    one.write(ROWS[:3])
    rows, size = one.flush()
    one.write(ROWS[3:])  # and killed: nothing was closed
    one._rows._opened().sync()
    one._rows._opened().close()
    (tmp_path / ".o.csv.part").write_text("half a table")
    two = sink()
    assert two.open(rows, size, True) == 3
    two.write(ROWS[3:])
    two.flush()
    two.close()
    assert [row["id"] for row in table(tmp_path / "o.csv")] == [0, 1, 2, 3, 4]


def test_a_full_disk_while_it_is_made_loses_nothing(sink: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = sink()
    one.open(0, 0, False)
    one.write(ROWS[:3])
    written = one.flush()
    one.close()
    before = (tmp_path / "o.csv").read_bytes()
    two = sink()
    two.open(*written, True)
    two.write(ROWS[3:])
    written = two.flush()

    def full(*paths: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(table_sink.os, "replace", full)
        with pytest.raises(SinkError, match=r"o\.csv cannot be written: No space left on device"):
            two.close()
    assert (tmp_path / "o.csv").read_bytes() == before
    three = sink()
    assert three.open(*written, True) == 5
    three.close()
    assert len(table(tmp_path / "o.csv")) == 5


TABLES = ["o.csv", "o.tsv", "o.csv.gz", "o.parquet"]


def edited(path: Path) -> None:
    """Write another text into a cell, as whoever has the table open does."""
    if path.suffix == ".parquet":
        found = pyarrow.parquet.read_table(path)  # keeps the job's name in the metadata
        cells = ["mine", *found["text"].to_pylist()[1:]]
        column = pyarrow.array(cells, found.schema.field("text").type)
        pyarrow.parquet.write_table(found.set_column(1, found.schema.field("text"), column), path)
        return
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        text = file.read()
    with opened(path, "wb") as file:
        file.write(text.replace(b"a ", b"A ", 1))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_was_edited_is_not_written_over_when_its_job_goes_on(sink: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    one = sink(name)
    one.open(0, 0, True)
    one.write(ROWS[:3])
    written = one.flush()
    one.close()
    os.utime(path, (1, 1))  # copied or restored: as it was made
    two = sink(name)
    assert two.open(*written, True) == 3
    two.write(ROWS[3:4])
    written = two.flush()
    two.close()
    edited(path)
    before = path.read_bytes()
    with pytest.raises(SinkError, match=f"{name} was changed since job j wrote it: move it away .* --overwrite"):
        sink(name).open(*written, True)
    assert path.read_bytes() == before
    kept = path.rename(tmp_path / f"kept-{name}")
    three = sink(name)
    assert three.open(*written, True) == 4
    three.write(ROWS[4:])
    written = three.flush()
    three.close()
    assert three.holds(5) and kept.read_bytes() == before
    edited(path)
    four = sink(name, overwrite=True)
    assert four.open(*written, True) == 5
    four.close()
    assert four.holds(5) and b"mine" not in path.read_bytes() and b"A " not in path.read_bytes()


@pytest.mark.parametrize("end", [b"", b"\n", b'\n{"made":', b'\n{"made":"table","size_bytes":1}', b'\n{"made":"x"}\n'])
def test_of_a_run_that_was_killed_nothing_is_known(sink: Any, tmp_path: Path, end: bytes) -> None:
    """Its rows are all there, and perhaps a torn record of the table behind them."""
    one = sink()
    one.open(0, 0, True)
    one.write(ROWS)
    written = one.flush()
    one.abandon()
    with rows_of(tmp_path, str(tmp_path / "o.csv"), "j").open("ab") as rows:
        rows.write(end)
    (tmp_path / "o.csv").write_text("of an earlier run\n")
    two = sink()
    assert two.open(*written, True) == 5
    two.close()
    assert two.holds(5)


@pytest.mark.parametrize("name", TABLES)
def test_a_finished_table_is_completed_and_not_written_over(sink: Any, tmp_path: Path, name: str) -> None:
    """Rows that were taken away, or a torn end, are put back; anything else was put there by somebody."""
    path = tmp_path / name
    made = {}
    for count in (2, 5):
        one = sink(name)
        one.open(0, 0, True)
        one.write(ROWS[:count])
        one.close()
        made[count] = path.read_bytes()
        one.forget()

    def completed(content: bytes) -> None:
        path.write_bytes(content)
        again = sink(name)
        assert again.finished()
        again.keep_changes()
        again.open(0, 0, True)
        again.write(ROWS)
        try:
            again.close()
        finally:
            again.forget()

    for torn in (made[2], made[5][:-9], made[5]):
        completed(torn)
        assert path.read_bytes() == made[5]
    edited(path)
    before = path.read_bytes()
    with pytest.raises(SinkError, match="was changed since job j wrote it"):
        completed(before)
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == [name]


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Another process writes to this file."""
    held = "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", held, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.kill()


def test_two_jobs_never_make_a_table_of_one_name(sink: Any, tmp_path: Path) -> None:
    one, two = sink(), sink(job="k")
    one.open(0, 0, False)
    one.write(ROWS[:1])
    rows, size = one.flush()
    one._rows._opened().close()
    with _held(rows_of(tmp_path, str(tmp_path / "o.csv"), "j")):
        for other in (two, sink(job="k", overwrite=True)):
            with pytest.raises(SinkError, match=r"o\.csv is being written by another job"):
                other.open(0, 0, False)
        with pytest.raises(SinkError, match="is being written by another run"):
            sink().open(rows, size, True)
    with pytest.raises(SinkError, match=r"o\.csv is the output of another job, which has not ended"):
        two.open(0, 0, False)
    again = sink()
    assert (again.begun(), again.open(rows, size, True)) == (True, 1)
    again.close()
    assert [row["id"] for row in table(tmp_path / "o.csv")] == [0]


def test_who_says_overwrite_takes_the_name_from_a_job_at_rest(sink: Any, tmp_path: Path) -> None:
    one, two = sink(), sink(job="k", overwrite=True)
    one.open(0, 0, False)
    one.write(ROWS[:1])
    one.flush()
    one._rows._opened().close()  # killed
    assert two.open(0, 0, False) == 0
    two.write(ROWS[1:2])
    two.flush()
    two.close()
    two.forget()
    assert [row["id"] for row in table(tmp_path / "o.csv")] == [1]
    assert not sink().begun(), "what stands there is another's: whoever goes on asks before it is written over"


def test_rows_of_the_first_release_are_taken_over(sink: Any, tmp_path: Path) -> None:
    """They had no job in their name."""
    (tmp_path / ".o.csv.rows").write_bytes(ROWS[0] + b"\n")
    assert sink().begun()
    one = sink()
    assert one.open(1, len(ROWS[0]) + 1, True) == 1
    one.close()
    assert [row["id"] for row in table(tmp_path / "o.csv")] == [0]


def test_parquet_of_another_job_is_not_ours(sink: Any, tmp_path: Path) -> None:
    one = sink("o.parquet")
    one.open(0, 0, False)
    one.write(ROWS)
    one.flush()
    one.close()
    other = TableSink(str(tmp_path / "o.parquet"), tmp_path / "rows", COLUMNS, job="k")
    assert one.holds(5)
    assert not other.holds(5)


def test_a_value_that_does_not_fit_its_column_is_one_line(sink: Any) -> None:
    one = sink("o.parquet")
    one.open(0, 0, False)
    one.write([b'{"id":"x","text":null,"more":null}'])
    one.flush()
    with pytest.raises(SinkError, match=r"o\.parquet: a value does not fit its column: .*; write \.jsonl"):
        one.close()


def test_lines_of_a_batch_of_requests_become_flat_rows(sink: Any, tmp_path: Path) -> None:
    one = sink("o.csv", columns=DEFAULT_COLUMNS, flatten=True)
    one.open(0, 0, False)
    one.write(
        [
            b'{"custom_id":"a","result":{"type":"succeeded","message":{"content":[{"type":"thinking","thinking":"x"},'
            b'{"type":"text","text":"b"},{"type":"text","text":"ug"}]}}}',
            b'{"custom_id":"b","result":{"type":"errored","error":{"type":"error","error":{"type":"api_error",'
            b'"message":"it broke"}}}}',
            b'{"custom_id":"c","result":{"type":"canceled"}}',
        ]
    )
    one.flush()
    one.close()
    assert (tmp_path / "o.csv").read_text() == "custom_id,answer,error\na,bug,\nb,,api_error: it broke\nc,,canceled\n"


def test_gzip(sink: Any, tmp_path: Path) -> None:
    import gzip

    one = sink("o.csv.gz")
    one.open(0, 0, False)
    one.write(ROWS)
    one.flush()
    one.close()
    assert gzip.decompress((tmp_path / "o.csv.gz").read_bytes()).startswith(b"id,text,more\n0,")
    assert one.holds(5)


def test_places_that_cannot_be_written(sink: Any, tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    for name, words in (("no/o.csv", "there is no folder"), ("d.csv", "is a folder")):
        with pytest.raises(SinkError, match=words):
            sink(name).check()
    os.mkfifo(tmp_path / "p.csv")
    with pytest.raises(SinkError, match="no regular file"):
        sink("p.csv").check()


MEMORY = """
import resource, sys
from pathlib import Path
from actors.files.columns import Columns
from actors.files.sinks.table_sink import TableSink
import pyarrow.parquet
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
columns = Columns([("id", "integer"), ("text", "text")])
sink = TableSink(sys.argv[1], Path(sys.argv[1] + ".rows-j"), columns, job="j")
sink.open(0, 0, False)
text = ("It crashes. " * 25)[:300]
for start in range(0, 200_000, 2_000):
    sink.write([b'{"id":%d,"text":"%s"}' % (n, text.encode()) for n in range(start, start + 2_000)])
sink.flush()
before = peak()
sink.close()
assert pyarrow.parquet.read_metadata(sys.argv[1]).num_rows == 200_000
print(peak() - before)
"""


@pytest.mark.parametrize("name", ["o.parquet", "o.csv"])
def test_memory_is_flat_while_a_table_of_60_mb_is_made(tmp_path: Path, name: str) -> None:
    script = MEMORY if name == "o.parquet" else MEMORY.replace("assert pyarrow", "# ")
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / name)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 120
