"""Records that are no rows are listed once each, beside the output or where ``--bad`` says, whatever happens to the job."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cortex as public
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import request
from tests.cli.table_files import ASK, BAD, SIM, ragged
from tests.support.odd_tables import twenty_ways

GO = (*ASK, *SIM, *BAD, "--job", "j")


def listed_in(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def expected(bad: int) -> list[dict[str, Any]]:
    """What `ragged` makes of the bad lines."""
    content, found = Path("t.csv").read_bytes(), []
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        if line.startswith(b"b"):
            found.append({
                "reason": "has 3 cells, the header has 2: a quote or a comma is out of place", "line": number,
                "id": line.decode().split(",")[0], "offset": content.index(b"\n" + line) + 1, "size": len(line),
                "text": line.decode().rstrip("\n"),
            })  # fmt: skip
    assert len(found) == bad
    return found


@pytest.mark.parametrize("output", ["o.csv", "o.parquet", "o.jsonl", "o.jsonl.gz"])
def test_beside_the_output(cortex: Any, output: str) -> None:
    ragged(Path("t.csv"), 40, 20)
    done = cortex("batch", "t.csv", *GO, "-o", output)
    assert done.code == 3
    assert f"cortex: unreadable records are listed in {output}.bad.jsonl" in done.err
    assert listed_in(f"{output}.bad.jsonl") == expected(20)
    shown = cortex("results", "j", "--bad")
    assert [json.loads(line) for line in shown.out.splitlines()] == expected(20)
    assert "20 unreadable records of j" in shown.err
    assert cortex("results", "j", "--bad", "-o", "copy.jsonl").code == 0
    assert listed_in("copy.jsonl") == expected(20)
    Path(f"{output}.bad.jsonl").unlink()
    assert cortex("results", "j", "--bad").out == shown.out, "from the copy in the state folder"
    assert cortex("batch", "t.csv", *GO, "-o", output).code == 3
    assert listed_in(f"{output}.bad.jsonl") == expected(20)


def test_a_file_of_the_users_choice(cortex: Any) -> None:
    ragged(Path("t.csv"), 40, 20)
    assert cortex("batch", "t.csv", *GO, "-o", "o.csv", "--bad", "b.jsonl").code == 3
    assert listed_in("b.jsonl") == expected(20) and not Path("o.csv.bad.jsonl").exists()
    os.mkdir("elsewhere")
    here = os.getcwd()
    os.chdir("elsewhere")
    assert cortex("results", "j", "--bad").out.count("\n") == 20
    os.chdir(here)
    ragged(Path("u.csv"), 3, 0)
    assert cortex("batch", "u.csv", *ASK, *SIM, "-o", "p.csv", "--bad", "none.jsonl").code == 0
    assert Path("none.jsonl").read_bytes() == b"", "asked for: there, and empty"
    assert not Path("p.csv.bad.jsonl").exists()


def test_standard_output(cortex: Any) -> None:
    ragged(Path("t.csv"), 4, 2)
    assert "are listed by: cortex results j --bad" in cortex("batch", "t.csv", *GO, "-o", "-").err
    assert [json.loads(line) for line in cortex("results", "j", "--bad").out.splitlines()] == expected(2)
    assert not list(Path().glob("*.bad.jsonl"))
    cortex("rm", "j")
    assert not list(Path(os.environ["CORTEX_STATE"]).rglob("*.bad.jsonl"))


def test_no_text_is_kept_where_none_shall_be(cortex: Any) -> None:
    ragged(Path("t.csv"), 4, 2)
    assert cortex("batch", "t.csv", *GO, "-o", "o.jsonl", "--no-keep-text").code == 3
    assert listed_in("o.jsonl.bad.jsonl") == expected(2), "the list lies beside the results, which hold the text"
    assert not list(Path(os.environ["CORTEX_STATE"]).rglob("*.bad.jsonl"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bad", "o.csv"], ["--bad o.csv is the input or the output of the job"]),
        (["--bad", "t.csv"], ["--bad t.csv is the input or the output of the job"]),
        (["--bad", "-"], ["--bad -: name a file of this machine"]),
        (["--bad", "s3://b/x"], ["--bad s3://b/x: name a file of this machine"]),
        (["--bad", "none/b.jsonl"], ["--bad none/b.jsonl: there is no folder"]),
        (["--bad", "."], ["--bad .: it is a folder"]),
        (["--bad", "mine.txt"], ["mine.txt exists and is no list of bad lines: give --bad FILE, or --overwrite"]),
    ],
)
def test_places_where_no_list_may_be(cortex: Any, options: list[str], words: list[str]) -> None:
    ragged(Path("t.csv"), 4, 2)
    Path("mine.txt").write_text("mine\n")
    cortex("batch", "t.csv", *GO, "-o", "o.csv", *options).refused(*words)
    assert Path("mine.txt").read_text() == "mine\n"
    assert StateFolder(os.environ["CORTEX_STATE"]).jobs() == []


def test_an_input_that_is_refused_leaves_no_list_but_one_that_was_asked_for(cortex: Any) -> None:
    ragged(Path("t.csv"), 8, 4)
    cortex("batch", "t.csv", *ASK, *SIM, "-o", "o.csv").refused("and 1 more (--bad FILE lists all)", "--accept-bad 34%")
    assert sorted(each for each in os.listdir() if not each.startswith(".")) == ["t.csv"]
    cortex("batch", "t.csv", *ASK, *SIM, "-o", "o.csv", "--bad", "b.jsonl").refused("and 1 more (b.jsonl lists all)")
    assert listed_in("b.jsonl") == expected(4)


def test_a_plan_lists_them_where_it_is_asked_to(cortex: Any) -> None:
    ragged(Path("t.csv"), 8, 4)
    assert cortex("plan", "t.csv", *ASK, *SIM, *BAD, "-o", "o.csv").code == 0
    assert not list(Path().glob("*.bad.jsonl"))
    assert cortex("plan", "t.csv", *ASK, *SIM, *BAD, "-o", "o.csv", "--bad", "b.jsonl").code == 0
    assert listed_in("b.jsonl") == expected(4)
    Path("b.jsonl").unlink()
    cortex("plan", "t.csv", *ASK, *SIM, "-o", "o.csv", "--bad", "b.jsonl").refused("b.jsonl lists all")
    assert listed_in("b.jsonl") == expected(4)


def test_another_input_under_the_same_job_leaves_the_list(cortex: Any) -> None:
    ragged(Path("t.csv"), 4, 2)
    cortex("batch", "t.csv", *GO, "-o", "o.csv")
    before = Path("o.csv.bad.jsonl").read_bytes()
    ragged(Path("t.csv"), 4, 3)
    done = cortex("batch", "t.csv", *GO, "-o", "o.csv")
    assert done.code == 2 and "is not what job j began with" in done.err
    assert Path("o.csv.bad.jsonl").read_bytes() == before
    assert not list(Path().glob(".*.part"))


def test_requests_and_standard_input(cortex: Any) -> None:
    lines = [request("a"), "[]", request("a"), request("b"), '{"custom_id": "c"']
    text = "".join(line.rstrip("\n") + "\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-m", "actors.cli", "batch", "-", *SIM, *BAD, "-o", "o.jsonl", "--job", "j"], input=text.encode(),
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    found = listed_in("o.jsonl.bad.jsonl")
    assert [(each["line"], each.get("id"), each["text"]) for each in found] == [
        (2, None, "[]"), (3, "a", lines[2].rstrip("\n")), (5, None, '{"custom_id": "c"'),
    ]  # fmt: skip
    assert [text.encode()[each["offset"] :][: each["size"]].decode() for each in found] == [
        each["text"] + "\n" for each in found
    ]


def test_an_object_store(cortex: Any, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    ragged(Path("t.csv"), 4, 2)
    source = f"file://{Path('t.csv').absolute()}"
    assert cortex("batch", source, *GO, "-o", f"file://{tmp_path}/o.csv").code == 3
    assert [json.loads(line) for line in cortex("results", "j", "--bad").out.splitlines()] == expected(2)


def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ragged(Path("t.csv"), 40, 20)
    options: dict[str, Any] = {"model": "sim", "state": "s", "progress": False, "accept_bad": "100%"}
    answers = public.batch("t.csv", "{{text}}", id="ticket_id", output="o.csv", **options)
    assert len(answers.bad) == answers.bad_count == 20, "all of them"
    assert listed_in("o.csv.bad.jsonl") == expected(20)
    rows = [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}, {"text": "z"}, *({"id": n, "text": "x"} for n in range(9))]
    answers = public.batch(rows, "{{text}}", id="id", job="k", **options)
    assert [each.split(":")[0] for each in answers.bad] == ["row 2", "row 3"]
    found = [json.loads(line) for line in Path("s/jobs/k.bad.jsonl").read_text().splitlines()]
    assert [(each["row"], each.get("id"), json.loads(each["text"])) for each in found] == [
        (2, "a", rows[1]), (3, None, rows[2]),
    ]  # fmt: skip


def test_a_file_of_the_users_choice_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ragged(Path("t.csv"), 40, 20)
    options: dict[str, Any] = {"model": "sim", "state": "s", "progress": False, "id": "ticket_id"}
    with pytest.raises(ValueError, match="20 of 60 records"):
        public.batch("t.csv", "{{text}}", bad="b.jsonl", **options)
    assert listed_in("b.jsonl") == expected(20), "written though the job does not begin"
    Path("b.jsonl").unlink()
    public.batch("t.csv", "{{text}}", bad="b.jsonl", accept_bad="100%", output="o.csv", **options)
    assert listed_in("b.jsonl") == expected(20) and not Path("o.csv.bad.jsonl").exists()
    with pytest.raises(ValueError, match=r"bad=t\.csv is the input or the output"):
        public.batch("t.csv", "{{text}}", bad="t.csv", **options)


# -- killed ------------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from actors.files import bad_records
from actors.files.sources import row_source
left = [int(sys.argv.pop(1))]
def dying(function):
    def call(*given):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given)
    return call
read = row_source.RowSource.read
row_source.RowSource.read = dying(lambda self, rows_max: read(self, min(rows_max, 37)))
for name in ("add", "put", "begin"):
    setattr(bad_records.BadRecordFile, name, dying(getattr(bad_records.BadRecordFile, name)))
from actors.cli.main import enter
sys.exit(enter(sys.argv[1:]))
"""


def test_a_killed_job_tells_every_record_once(cortex: Any) -> None:
    ragged(Path("t.csv"), 400, 30)
    start = ["batch", "t.csv", *GO, "-o", "o.csv", "--ordered"]
    for left in (0, 7, 31, 33, 38):
        done = subprocess.run([sys.executable, "-c", KILLED, str(left), *start], capture_output=True, text=True, timeout=120)
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert cortex("resume", "j").code == 3
    assert listed_in("o.csv.bad.jsonl") == expected(30)
    with Path("o.csv").open(newline="") as file:
        rows = [line[0] for line in csv.reader(file)]
    assert rows == ["ticket_id", *(f"t{n}" for n in range(400))]
    assert not [each for each in os.listdir() if each.endswith(".part") and "bad" in each]


def test_odd_in_twenty_ways_and_killed_each_record_is_told_once(cortex: Any) -> None:
    path = Path("t.csv")
    table = twenty_ways.write(path, 4_000)
    start = ["batch", "t.csv", "--prompt", "Answer with one of: bug, praise. {{text}}", "--id", "id", "--with-input", *SIM]
    start += ["--accept-bad", "1%", "-o", "o.csv", "--job", "j"]
    for left in (10, 25, 40, 60, 75):
        command = start if left < 60 else ["resume", "j"]  # the first ones end before the job begins
        done = subprocess.run([sys.executable, "-c", KILLED, str(left), *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == -signal.SIGKILL, done.stderr
    last = cortex("resume", "j", "--json")
    rows, lines = len(table.texts), path.read_bytes()
    assert last.code == 2, "rows were refused"
    counts = [last.last[name] for name in ("rows", "rows_succeeded", "rows_failed", "rows_unreadable")]
    assert counts == [rows + len(table.refused) + len(table.bad), rows, len(table.refused), len(table.bad)]
    csv.field_size_limit(1 << 30)
    with Path("o.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert sorted(each["id"] for each in found) == sorted([*table.texts, *table.refused])
    assert {each["id"]: each["text"] for each in found if not each["error"]} == table.texts
    listed = listed_in("o.csv.bad.jsonl")
    assert [lines[each["offset"] :][: each["size"]] for each in listed] == table.bad
