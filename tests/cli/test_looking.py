"""``status``, ``jobs`` and ``results`` read the journals alone, and tell who runs from who died."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import msgspec

from actors.cli.jobs.rendering import least_and_most
from actors.journal.journal import StateFolder
from actors.programs.loader import find
from tests.cli.cli_runner import FIELDS, each_once, requests, started
from tests.support.journal_surgery import as_if_killed
from tests.support.patience import PATIENCE_S


def _done(cortex, job: str, count: int = 5) -> None:
    requests(Path(f"{job}.jsonl"), count)
    assert cortex("batch", f"{job}.jsonl", "-o", f"{job}.out", "--model", "sim", "--job", job).code == 0


def _stopped(cortex, job: str) -> None:
    requests(Path(f"{job}.jsonl"), 20)
    command = ("batch", f"{job}.jsonl", "-o", f"{job}.out", "--model", "sim", "--job", job)
    assert cortex(*command, "--max-job-tokens", 400).code == 3


def _without_its_end(job: str) -> None:
    """As if its process had been killed: the last turn was never written, nor a snapshot."""
    source = StateFolder(os.environ["CORTEX_STATE"]).journal(job)
    as_if_killed(source, 2)
    source.close()


def test_money_in_a_column_is_short():
    assert least_and_most({"known_nusd": 1_960_000_000, "assumed_nusd": 0}) == "$1.96"
    assert least_and_most({"known_nusd": 1_960_000_000, "assumed_nusd": 64_730_000}) == "$1.96 to $2.02"


def test_jobs_the_latest_first(cortex):
    assert "no jobs in" in cortex("jobs").said()[0]
    _done(cortex, "one")
    _stopped(cortex, "two")
    _done(cortex, "three")
    _without_its_end("three")
    folder = StateFolder(os.environ["CORTEX_STATE"])
    folder.journal("one~7", create=True).close()
    shown = cortex("jobs")
    lines = {line.split()[0]: line for line in shown.out.splitlines()}
    assert set(lines) == {"JOB", "one", "two", "three"}
    assert "complete" in lines["one"]
    assert "partial: resumable" in lines["two"]
    assert "interrupted: resumable" in lines["three"]
    assert "5/5" in lines["one"]
    assert "/20" in lines["two"]
    with folder.hold("three"):
        assert "running" in next(line for line in cortex("jobs").out.splitlines() if line.startswith("three"))
    found = json.loads(cortex("jobs", "--json").out)["jobs"]
    assert {each["job"]: each["outcome"] for each in found} == {
        "one": "complete", "two": "partial", "three": "interrupted",
    }  # fmt: skip
    assert all(list(each) == [*FIELDS, "size_bytes", "labels"] for each in found)


def test_status_of_one_job(cortex):
    cortex("status").refused("no jobs")
    _stopped(cortex, "two")
    found = cortex("status", "two", "--json").last
    assert (found["outcome"], found["rows"], found["resume"]) == ("partial", 20, "cortex resume two")
    reported = cortex("status").out
    assert "state     partial: resumable" in reported
    assert "resume    cortex resume two" in reported
    assert "over_budget" in reported
    _without_its_end("two")
    assert cortex("status", "two", "--json").last["outcome"] == "interrupted"
    with StateFolder(os.environ["CORTEX_STATE"]).hold("two"):
        assert f"running: process {os.getpid()} on " in cortex("status", "two").out


def test_status_tells_where_calls_go_and_under_which_bounds(cortex):
    requests(Path("two.jsonl"), 20)
    command = ("batch", "two.jsonl", "-o", "two.out", "--model", "sim", "--job", "two", "--deadline", "+6h")
    assert cortex(*command, "--max-job-tokens", 400, "--fallback", "sim,seed=2", "--rpm", "6000").code == 3
    found = cortex("status", "two", "--json").last
    assert (found["why"], found["waits"]) == ("over_budget: the next call could pass the cap", "")
    assert found["route"].startswith("sim at sim:")
    assert len(found["routes"]) == 2
    assert found["deadline_at_s"] - time.time() > 21_000
    assert found["limits"]["--max-job-tokens"] == "400"
    reported = cortex("status", "two").out
    assert re.search(r"(?m)^route     sim at sim:\w+; else sim at sim:\w+$", reported)
    assert re.search(r"(?m)^limits    --max-job-tokens 400 --rpm 6000 --deadline 20", reported)
    assert re.search(r"(?m)^deadline  20.*, in 5 h 59 min$", reported)
    assert re.search(r"(?m)^last turn \d+\.\d s ago$", reported)


def test_the_resume_line_names_a_state_folder_that_is_not_the_usual_one(cortex, monkeypatch):
    requests(Path("in.jsonl"), 20)
    command = ("batch", "in.jsonl", "-o", "out", "--model", "sim", "--job", "far", "--state", "elsewhere")
    done = cortex(*command, "--max-job-tokens", 400, "--json")
    assert done.last["resume"] == f"cortex resume far --state {Path('elsewhere').resolve()}"


def test_whoever_stops_reading_a_listing_has_what_they_wanted(cortex):
    for job in ("one", "two"):
        _done(cortex, job)
    for arguments in (("jobs",), ("inspect", "one"), ("status", "one")):
        read, written = os.pipe()
        os.close(read)
        try:
            with started(*arguments, stdout=written) as child:
                assert child.wait(PATIENCE_S) == 0, arguments
                assert child.stderr.read().count("Traceback") == 0
        finally:
            os.close(written)


def test_what_a_program_prints_while_it_is_imported_is_no_part_of_what_is_asked_for(capsys, tmp_path):
    path = tmp_path / "loud.py"
    path.write_text("import cortex\nprint('hello')\n\n\n@cortex.flow\nasync def loud(ctx):\n    return 1\n")
    find(f"{path}:loud")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "hello\n")


def test_looking_changes_nothing(cortex):
    _stopped(cortex, "two")
    folder = StateFolder(os.environ["CORTEX_STATE"])
    before = _journal_rows(folder, "two")
    for command in (("status", "two"), ("jobs",), ("results", "two")):
        assert cortex(*command).code == 0
    assert _journal_rows(folder, "two") == before
    cortex("jobs", "--state", "nowhere")
    cortex("status", "x", "--state", "nowhere").refused("no job 'x'")
    assert not Path("nowhere").exists()


def _journal_rows(folder: StateFolder, job: str) -> tuple[int, bytes | None]:
    source = folder.journal(job)
    try:
        return source.seq, source.meta("epoch")
    finally:
        source.close()


def test_results_to_standard_output_or_a_file(cortex):
    _done(cortex, "one")
    done = cortex("results", "one")
    assert done.out == Path("one.out").read_text()
    assert "5 results of one, which is complete" in done.err
    assert cortex("results", "one", "-o", "copy.jsonl").code == 0
    each_once(Path("copy.jsonl"), 5)
    cortex("results", "one", "-o", "copy.jsonl").refused("copy.jsonl exists", "--overwrite")
    assert cortex("results", "one", "-o", "copy.jsonl", "--overwrite").code == 0
    each_once(Path("copy.jsonl"), 5)


def test_a_program_that_is_gone_hides_no_job(cortex, monkeypatch):
    _done(cortex, "one")
    Path("label.py").write_text(
        "import cortex\nclass Label(cortex.Program):\n"
        "    def begin(self, k): yield cortex.Goal('x')\n"
        "    def select(self, k):\n"
        "        for g in k.open(): yield cortex.Resolve(g, 1)\n"
    )
    assert cortex("run", "label.py", "--model", "sim", "--job", "gone").code == 0
    Path("label.py").unlink()
    monkeypatch.setattr("actors.programs.loader._known", {})  # as in a later process
    assert cortex("status", "gone", "--json").last["answer"] == 1
    _without_its_end("gone")
    monkeypatch.setattr("actors.programs.loader._known", {})
    assert "the program of gone has changed since, or is gone" in cortex("status", "gone").err
    shown = cortex("jobs")
    assert shown.code == 0 and "the program of gone has changed since" in shown.err
    found = {each["job"]: each["outcome"] for each in msgspec.json.decode(cortex("jobs", "--json").out)["jobs"]}
    assert found == {"one": "complete", "gone": "complete"}


def _as_if_in_a_cluster(job: str, where: str) -> None:
    source = StateFolder(os.environ["CORTEX_STATE"]).journal(job)
    owner = msgspec.json.decode(source.meta("owner") or b"")
    source.set_meta("owner", msgspec.json.encode({**owner, "cluster": where}))
    source.close()


def test_a_job_that_its_driver_left_in_a_cluster(cortex, monkeypatch):
    _stopped(cortex, "two")
    _without_its_end("two")
    _as_if_in_a_cluster("two", "127.0.0.1:1")
    with monkeypatch.context() as patch:
        patch.setattr("actors.cluster.bootstrap.checked_address", str)  # it answers
        assert "in a cluster, without a driver" in cortex("jobs").out
        (listed,) = json.loads(cortex("jobs", "--json").out)["jobs"]
        assert (listed["outcome"], listed["resume"]) == ("detached", "cortex attach two")
    told = cortex("jobs")
    assert "interrupted: its head is lost; resumable" in told.out
    (line,) = told.said()
    assert line.startswith("no Ray answers at 127.0.0.1:1: ")
    others = ", or cortex tend for all that need no person"
    assert line.endswith(f": 1 job rests, nothing is lost: cortex resume two{others}")
    (listed,) = json.loads(cortex("jobs", "--json").out)["jobs"]
    assert (listed["outcome"], listed["resume"]) == ("interrupted", "cortex resume two")
    shown = cortex("status", "two", "--json").last
    assert (shown["outcome"], shown["resume"]) == ("interrupted", "cortex resume two")
    assert shown["why"].startswith("no Ray answers at 127.0.0.1:1")
    done = cortex("cancel", "two")  # where nobody answers any more
    assert done.code == 0
    assert "no Ray answers at 127.0.0.1:1" in done.said()[0]
    assert cortex("status", "two", "--json").last["outcome"] == "cancelled"
