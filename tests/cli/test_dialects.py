"""Encodings and dialects on the command line: refused before paying with the command that is right, kept over resumes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cortex as api
from actors.routing.routes import SetupError
from tests.cli.cli_runner import request
from tests.cli.table_files import BAD, SIM

ASK = ("--prompt", "Answer with one of: bug, praise. {{text}}", "--id", "id")
CP1252 = "id;text\n1;Grüße: 5 €\n2;naïve café\n3;plain\n".encode("cp1252")


def rows(path: str) -> list[list[str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return [line[:2] for line in csv.reader(file)]


def test_a_file_of_another_encoding_is_refused_and_the_command_that_is_told_reads_it(cortex: Any) -> None:
    Path("t.csv").write_bytes(CP1252)
    line = cortex("batch", "t.csv", *ASK, "--with-input", "--ordered", "-o", "o.csv", *SIM).refused(
        "t.csv line 2: byte 5 (0xfc) is not UTF-8", "give --encoding cp1252 (line 2 then reads '1;Grüße: 5 €')"
    )
    assert "LATIN1" not in line.upper() and not Path("o.csv").exists()
    told = line[line.index("--encoding") :].split()[:2]
    done = cortex("batch", "t.csv", *ASK, "--with-input", "--ordered", "-o", "o.csv", *SIM, *told)
    assert done.code == 0, done.err
    assert rows("o.csv") == [["id", "text"], ["1", "Grüße: 5 €"], ["2", "naïve café"], ["3", "plain"]]


def test_utf_8_as_given_leaves_the_bad_lines_out(cortex: Any) -> None:
    Path("t.csv").write_bytes(CP1252)
    done = cortex("batch", "t.csv", *ASK, "-o", "o.csv", *SIM, *BAD, "--encoding", "utf-8")
    assert done.code == 3
    assert [line[0] for line in rows("o.csv")] == ["id", "3"]


@pytest.mark.parametrize("given", ["utf-16", "utf-32", "utf-16-le", "cp037", "cp932", "hz", "cp1252"])
def test_a_wrong_encoding_is_refused_and_the_command_that_is_told_reads_the_file(cortex: Any, given: str) -> None:
    Path("t.csv").write_bytes(CP1252.decode("cp1252").encode())
    start = ["batch", "t.csv", *ASK, "--with-input", "--ordered", "-o", "o.csv", *SIM]
    cortex(*start, "--encoding", given).refused(f"t.csv is UTF-8, not {given}: leave --encoding out")
    assert not Path("o.csv").exists()
    assert cortex(*start).code == 0
    assert rows("o.csv")[1] == ["1", "Grüße: 5 €"]


def test_a_job_whose_input_was_replaced_by_one_in_another_encoding(cortex: Any) -> None:
    text = "id;text\n" + "".join(f"{n};Grüße {n}\n" for n in range(200))
    Path("t.csv").write_bytes(text.encode("utf-16"))
    start = ["batch", "t.csv", *ASK, "-o", "o.csv", *SIM, "--encoding", "utf-16", "--job", "j"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *start], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    Path("t.csv").write_bytes(text.encode())
    line = cortex("resume", "j").refused("t.csv has changed since job j began: put it back")
    assert "--encoding" not in line, "no option of resume"
    Path("t.csv").write_bytes(text.encode("utf-16"))
    assert cortex("resume", "j").code == 0


CASES = {
    "semicolons": (
        "t.csv", b"id;size, cm;text;n, m\n1;1,5;a, b;2\n2;2,5;c;3\n", [], [["1", "a, b"], ["2", "c"]],
    ),
    "UTF-16 without a mark": ("t.csv", "id,text\n007,It crashes.\n".encode("utf-16-le"), [], [["007", "It crashes."]]),
    "CR": ("t.csv", b"id,text\r1,a\r2,b\r", [], [["1", "a"], ["2", "b"]]),
    "quotes are text": (
        "t.tsv", b'id\ttext\n1\t"Crying\n2\ta\n3\tb"\n', ["--quoting", "none"], [["1", '"Crying'], ["2", "a"], ["3", 'b"']],
    ),
    "a mark in a cell": ("t.csv", b'id,text\n1,"a\n\xef\xbb\xbfb"\n', [], [["1", "a\n\ufeffb"]]),
    "array of lines": ("t.json", b'[\n{"id":1,"text":"a"},\n{"id":2,"text":"b"}\n]\n', [], [["1", "a"], ["2", "b"]]),
    "Excel's sep line": ("t.csv", b"sep=;\r\nid;text\r\n1;a\r\n", [], [["1", "a"]]),
    "delimiter": ("t.csv", b"id^text\n1^a\n", ["--delimiter", "^"], [["1", "a"]]),
    "tab": ("t.csv", b"id\ttext\n1\ta\n", ["--delimiter", "tab"], [["1", "a"]]),
    "titles": ("t.csv", b"A report, of 2024\n\nid,text\n1,a\n", ["--skip-lines", "2"], [["1", "a"]]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_read(cortex: Any, case: str) -> None:
    name, content, options, expected = CASES[case]
    Path(name).write_bytes(content)
    done = cortex("batch", name, *ASK, "--with-input", "--ordered", "-o", "o.csv", *SIM, *options)
    assert done.code == 0, done.err
    names, *found = csv.reader(io.StringIO(Path("o.csv").read_text(encoding="utf-8"), newline=""))
    assert [[line[names.index("id")], line[names.index("text")]] for line in found] == expected


def test_without_a_header(cortex: Any) -> None:
    Path("t.csv").write_bytes(b"1,a\n2,b\n")
    prompt = "Answer with one of: bug, praise. {{column_2}}"
    cortex("batch", "t.csv", "--prompt", prompt, "-o", "o.csv", *SIM).refused("give --no-header")
    done = cortex("batch", "t.csv", "--prompt", prompt, "--id", "column_1", "-o", "o.csv", *SIM, "--no-header", "--ordered")
    assert done.code == 0
    assert [line[0] for line in rows("o.csv")] == ["column_1", "1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("t.tsv", b'id\ttext\tn\n1\t"Crying\t5\n2\ta\t6\n3\tb"\t7\n', [], ["t.tsv line 2 holds", "--quoting none"]),
        ("t.csv", b"Title\nid,text\n1,a\n", [], ["has no column 'id'", "line 2 names them: give --skip-lines 1"]),
        ("t.csv", b'id,text\n1,"a \\"b\\" c"\n', [], ["--quoting backslash"]),
        ("t.json", b'{"data": [{"id": 1, "text": "a"}]}', [], ["jq -c '.data[]'"]),
        ("t.duckdb", bytes(8) + b"DUCK" + bytes(60), [], ["is a DuckDB database"]),
        ("t.csv", b"i\0d\x1b,text\n1,a\n", [], ["has no column 'id'", "i\\x00d\\x1b"]),
        ("t.csv", b"id,text\n1,a\n", ["--encoding", "cp9"], ["--encoding 'cp9' is unknown"]),
        ("t.csv", b"id,text\n1,a\n", ["--delimiter", ", "], ["--delimiter ', '"]),
        ("t.csv", b"id,text\n1,a\n", ["--quoting", "all"], ["--quoting 'all': give minimal, none or backslash"]),
        ("t.jsonl", b'{"id":1,"text":"a"}\n', ["--skip-lines", "1"], ["is JSON Lines: leave out --skip-lines"]),
    ],
)  # fmt: skip
def test_refused(cortex: Any, name: str, content: bytes, options: list[str], words: list[str]) -> None:
    Path(name).write_bytes(content)
    for command in (["batch", name, "-o", "o.csv"], ["plan", name]):
        line = cortex(*command, *ASK, *SIM, *options).refused(*words)
        assert line.isprintable()


def test_requests_in_cp1252(cortex: Any) -> None:
    Path("in.jsonl").write_bytes(request("é").replace("\\u00e9", "é").encode("cp1252"))
    cortex("batch", "in.jsonl", "-o", "o.jsonl", *SIM).refused("in.jsonl line 1: byte ", "--encoding cp1252")
    assert cortex("batch", "in.jsonl", "-o", "o.jsonl", *SIM, "--encoding", "cp1252").code == 0
    assert json.loads(Path("o.jsonl").read_text())["custom_id"] == "é"
    cortex("batch", "in.jsonl", "-o", "p.jsonl", *SIM, "--delimiter", ";").refused("--delimiter is for tables")


def test_a_job_file_and_the_environment(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.csv").write_bytes(b"# x\n1^caf\xe9\n")
    Path("job.toml").write_text(
        'input = "t.csv"\noutput = "o.csv"\nprompt = "{{column_2}}"\nid = "column_1"\nmodel = "sim"\nskip-lines = 1\n'
        'no-header = true\ndelimiter = "^"\nwith-input = true\n'
    )
    monkeypatch.setenv("CORTEX_ENCODING", "cp1252")
    assert cortex("batch", "-f", "job.toml").code == 0
    assert rows("o.csv")[1] == ["1", "café"]


def test_the_dialect_is_part_of_the_job(cortex: Any) -> None:
    Path("t.csv").write_bytes(CP1252)
    first = cortex("batch", "t.csv", *ASK, "-o", "o.csv", *SIM, "--encoding", "cp1252", "--job", "j", "--ordered")
    assert first.code == 0
    again = cortex("batch", "t.csv", *ASK, "-o", "o.csv", *SIM, "--encoding", "windows-1252", "--job", "j", "--ordered")
    assert again.code == 0, "another name of the same encoding"
    cortex("batch", "t.csv", *ASK, "-o", "o.csv", *SIM, "--encoding", "cp1250", "--job", "j").refused(
        "t.csv is not what job j began with"
    )
    facts = cortex("config", "j").out
    assert "encoding" in facts and "cp1252" in facts


KILLED = """
import os, signal, sys
from actors.driver.driver import Driver
from actors.files.sources import row_source
read, times = row_source.RowSource.read, []
def dying(self, rows_max):
    times.append(1)
    if len(times) > 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, min(rows_max, 37))
row_source.RowSource.read = dying
from actors.cli.main import enter
sys.exit(enter(sys.argv[1:]))
"""


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_killed_job_goes_on_in_its_encoding_without_being_told_again(cortex: Any, ending: str) -> None:
    text = "".join(f"{n};Grüße {n} €\r" for n in range(300))
    content = ("id;text\r" + text).encode("cp1252")
    Path("t" + ending).write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    start = ["batch", "t" + ending, *ASK, "--with-input", "--ordered", "-o", "o.csv", *SIM, "--encoding", "cp1252", "--job", "j"]
    for command in (start, ["resume", "j"]):
        done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == -signal.SIGKILL, done.stderr
    last = cortex("resume", "j")
    assert last.code == 0, last.err
    assert rows("o.csv") == [["id", "text"], *([str(n), f"Grüße {n} €"] for n in range(300))]


def test_standard_input(cortex: Any) -> None:
    start = ["batch", "-", *ASK, "--with-input", "-o", "o.csv", *SIM]
    for given in ([], ["--encoding", "utf-16"]):
        line = subprocess.run(
            [sys.executable, "-m", "actors.cli", *start, *given], input=CP1252, capture_output=True, timeout=120
        )
        assert line.returncode == 2 and b"--encoding cp1252" in line.stderr
    done = subprocess.run(
        [sys.executable, "-m", "actors.cli", *start, "--encoding", "cp1252", "--ordered"], input=CP1252, capture_output=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert rows("o.csv")[1] == ["1", "Grüße: 5 €"]


def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_bytes(b"x\n1^caf\xe9\n")
    options: dict[str, Any] = {"model": "sim", "state": "s", "progress": False}
    answers = api.batch(
        "t.csv", "{{column_2}}", id="column_1", with_input=True, encoding="cp1252", delimiter="^", skip_lines=1,
        no_header=True, **options,
    )  # fmt: skip
    assert [row["column_2"] for row in answers.rows] == ["café"]
    with pytest.raises(SetupError, match="encoding 'cp9' is unknown"):
        api.batch("t.csv", "{{text}}", encoding="cp9", **options)
    with pytest.raises(SetupError, match="these rows are none"):
        api.batch([{"text": "a"}], "{{text}}", encoding="cp1252", **options)
    Path("u.csv").write_bytes(CP1252)
    with pytest.raises(ValueError, match='give encoding="cp1252"'):
        api.batch("u.csv", "{{text}}", id="id", **options)
