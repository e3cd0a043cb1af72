"""Many jobs: how big they are, some of their results, removed, forgotten."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder
from tests.cli.cli_runner import request, requests, started, until
from tests.support.patience import PATIENCE_S

MARK = "marmalade"


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def _done(cortex, job: str, count: int = 6, *more: object) -> None:
    requests(Path(f"{job}.jsonl"), count)
    done = cortex(
        "batch", f"{job}.jsonl", "-o", f"{job}.out", "--model", "sim", "--job", job, "--sim", "latency_ms=0", *more
    )
    assert done.code in (0, 3), done


def _marked(job: str) -> Path:
    """Input that can be told wherever it is."""
    path = Path(f"{job}.jsonl")
    path.write_text("".join(request(f"r{i}", f"{MARK} {job} {i} " * 30) + "\n" for i in range(40)))
    return path


def _holding(words: bytes) -> list[str]:
    """Files of the state folder that hold these bytes, in whatever part of them."""
    return sorted(str(path) for path in _folder().path.rglob("*") if path.is_file() and words in path.read_bytes())


def _indexed() -> list[str]:
    """Jobs whose replies are remembered, a name a reply."""
    with closing(sqlite3.connect(_folder().path / "replies.sqlite")) as db:
        known = db.execute(
            "SELECT job FROM replies UNION ALL SELECT job FROM recent UNION ALL SELECT job FROM unsorted"
        )
        return [name for (name,) in known]


def test_jobs_tells_sizes(cortex):
    _done(cortex, "one", 6)
    _done(cortex, "two", 600)
    lines = {line.split()[0]: line for line in cortex("jobs").out.splitlines()}
    assert "SIZE" in lines["JOB"] and " kB " in lines["one"]
    found = {each["job"]: each["size_bytes"] for each in json.loads(cortex("jobs", "--json").out)["jobs"]}
    files = _folder().path.rglob("two.*")  # its journal, its traces
    assert found["two"] == sum(each.stat().st_size for each in files) > found["one"] > 0


def test_some_results(cortex):
    _done(cortex, "one", 50)
    lines = Path("one.out").read_text().splitlines()
    assert cortex("results", "one", "--tail", 3).out.splitlines() == lines[-3:]
    some = cortex("results", "one", "--sample", 7).out.splitlines()
    assert len(some) == 7 and [line for line in lines if line in some] == some, "in their order"
    assert cortex("results", "one", "--sample", 7).out.splitlines() == some, "the same again"
    assert cortex("results", "one", "--failed").out == ""
    assert cortex("results", "one", "--sample", 3, "-o", "some.jsonl").code == 0
    assert len(Path("some.jsonl").read_text().splitlines()) == 3
    assert len(cortex("results", "one", "--sample", 700).out.splitlines()) == 50
    assert cortex("results", "one", "--tail", -1).code == 2


def test_failed_results_alone(cortex):
    path = requests(Path("in.jsonl"), 10)
    path.write_text(path.read_text() + request("bad", max_tokens=-1) + "\n")
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine").code == 2
    (line,) = cortex("results", "mine", "--failed").out.splitlines()
    assert json.loads(line)["custom_id"] == "bad"
    assert "1 failed result of mine" in cortex("results", "mine", "--failed").said()[0]


def test_rm_takes_a_job_with_all_that_is_its(cortex):
    for job in ("one", "one.b", "two"):
        _done(cortex, job)
    _folder().journal("one~7", create=True).close()
    done = cortex("rm", "one", "two", "--json")
    assert done.code == 0
    assert [each["job"] for each in json.loads(done.out)["removed"]] == ["one", "two"]
    assert {path.name.partition(".sqlite")[0] for path in _folder().path.glob("jobs/*.sqlite*")} == {"one.b"}
    assert Path("one.out").exists(), "results stay"
    assert set(_indexed()) <= {"one.b"}
    _done(cortex, "one", 6, "--overwrite")
    cortex("rm", "nope").refused("no job 'nope'")
    cortex("rm", "one", "nope").refused("no job 'nope'")
    assert _folder().journal_path("one").exists(), "all are looked at before the first is removed"
    cortex("rm", "one~7").refused("is a child of the job one")
    cortex("rm", "../x").refused("job name")


def test_a_job_that_runs_is_left_alone(cortex):
    requests(Path("in.jsonl"), 400)
    slow = ("--sim", "latency_ms=200", "--concurrency", 2)
    with started("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine", *slow) as child:
        until(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0)
        for command in ("rm", "forget"):
            cortex(command, "mine").refused("job mine is in use by process")
        assert "0 jobs removed" in cortex("gc", "--older-than", "1s").said()[0]
        assert child.poll() is None
    assert _folder().journal_path("mine").exists()


def test_gc_takes_what_is_old_and_over(cortex, monkeypatch):
    _done(cortex, "over")
    _done(cortex, "rests", 20, "--max-job-tokens", 400)
    _done(cortex, "new")
    assert "0 jobs removed" in cortex("gc", "--older-than", "1h").said()[0]
    monkeypatch.setattr("actors.cli.admin.remove.age_s", lambda folder, job: 5.0 if job == "new" else 100.0)
    done = cortex("gc", "--older-than", "30s", "--dry-run")
    assert (
        done.said()[0].startswith("over: complete, last turn 1 min 40 s ago") and "would be removed" in done.said()[0]
    )
    assert _folder().journal_path("over").exists()
    done = cortex("gc", "--older-than", "30s", "--json")
    assert "kept jobs that can be resumed or cannot be read: rests" in done.said()
    reported = json.loads(done.out)
    assert ([each["job"] for each in reported["removed"]], reported["kept"]) == (["over"], ["rests"])
    assert sorted(_folder().jobs()) == ["new", "rests"]
    assert cortex("gc", "--older-than", "30s", "--resumable").code == 0
    assert "rests" not in _folder().jobs()
    cortex("gc", "--older-than", "30").refused("--older-than: '30' has no unit: write 30d, or 30h")
    cortex("gc", "--older-than", "soon").refused("--older-than: 'soon' is no duration")
    assert cortex("gc").code == 2


def test_results_that_are_not_there_are_not_said_to_be(cortex):
    _marked("mine")
    assert cortex("batch", "mine.jsonl", "-o", "mine.out", "--model", "sim", "--job", "mine").code == 0
    Path("mine.out").unlink()
    assert cortex("forget", "mine").said()[-1].startswith("no results are left: /")


@pytest.mark.parametrize("stdin", [False, True])
def test_forgotten_prompts_and_replies_are_off_the_disk_and_figures_stay(cortex, stdin):
    _marked("mine")
    command = (
        "batch",
        "-" if stdin else "mine.jsonl",
        "-o",
        "mine.out",
        "--model",
        "sim",
        "--job",
        "mine",
        "--sim",
        "latency_ms=1",
    )
    if stdin:  # what came that way was kept
        with Path("mine.jsonl").open() as rows, started(*command, "--max-job-tokens", 5_000, stdin=rows) as child:
            child.wait(PATIENCE_S)
        assert child.returncode == 3
    else:
        assert cortex(*command).code == 0
    reply = json.loads(Path("mine.out").read_text().splitlines()[0])["result"]["message"]["id"].encode()
    assert _holding(MARK.encode()) and _holding(reply)
    before = cortex("status", "mine", "--json").last
    assert cortex("forget", "mine").said()[-1].startswith("results are not touched: /")
    assert _holding(MARK.encode()) == [] and _holding(reply) == []
    assert not list(_folder().path.glob("jobs/mine.input"))
    after = cortex("status", "mine", "--json").last
    figures = ("outcome", "rows", "rows_succeeded", "calls", "attempts", "paid_calls", "input_tokens", "output_tokens")
    assert [after[name] for name in figures] == [before[name] for name in figures]
    assert after["resume"] is None
    assert f"{before['outcome']}, forgotten" in cortex("jobs").out
    assert f"{before['outcome']}, forgotten" in cortex("status", "mine").out
    for verb in ("resume", "retry", "results", "inspect", "config", "cancel", "drain", "replay"):
        assert "job mine was forgotten" in cortex(verb, "mine").refused()
    cortex("export", "mine", "-o", "x.jsonl").refused("job mine was forgotten")
    cortex("batch", "mine.jsonl", "-o", "mine.out", "--model", "sim", "--job", "mine").refused("job mine was forgotten")
    assert "was forgotten already" in cortex("forget", "mine").said()[0]
    assert cortex("rm", "mine").code == 0


def test_what_is_forgotten_is_remembered_by_nobody(cortex):
    """The same questions under another name are asked, and paid, again; those of other jobs are not."""
    for job in ("mine", "other"):
        _marked(job)
        assert (
            cortex(
                "batch", f"{job}.jsonl", "-o", f"{job}.out", "--model", "sim", "--job", job, "--sim", "latency_ms=0"
            ).code
            == 0
        )
    assert cortex("forget", "mine").code == 0
    assert set(_indexed()) == {"other"}
    for job, reused in (("mine", 0), ("other", 40)):
        done = cortex("batch", f"{job}.jsonl", "-o", f"{job}.2", "--model", "sim", "--json", "--sim", "latency_ms=0")
        assert (done.code, done.last["reused_calls"]) == (0, reused)


def test_forget_names_what_still_holds_it(cortex):
    _done(cortex, "mine")
    assert cortex("fork", "mine", "--at", 3, "--job", "copy").code == 0
    lines = cortex("forget", "mine").said()
    assert lines[-1] == "copy was forked from mine and still holds a copy of its first turns: cortex forget copy"
    with _folder().hold("copy"):
        assert "in use" in cortex("forget", "copy").refused()
