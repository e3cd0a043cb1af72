"""``--shards``: one job for whoever looks, however many journals it has."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.cli_runner import each_once, keys, requests

SIM = ("--model", "sim")


def jobs() -> Path:
    """Where this test's journals are."""
    return Path(os.environ["CORTEX_STATE"]) / "jobs"


@pytest.fixture
def batch(cortex):
    """A job with shards that is done; the command that did it."""
    command = (
        "batch",
        requests(Path("in.jsonl"), 30),
        "-o",
        "out.jsonl",
        *SIM,
        "--job",
        "whole",
        "--shards",
        "3",
        "--json",
    )
    done = cortex(*command)
    assert done.code == 0, done
    return command, done


def test_it_is_one_job_with_one_file_of_results(cortex, batch):
    command, done = batch
    each_once(Path("out.jsonl"), 30)
    last = done.last
    assert (last["outcome"], last["rows"], last["rows_succeeded"], last["calls"], last["paid_calls"]) == (
        "complete", 30, 30, 30, 30,
    )  # fmt: skip
    listed = json.loads(cortex("jobs", "--json").out)["jobs"]
    assert [(each["job"], each["rows_succeeded"]) for each in listed] == [("whole", 30)]
    assert cortex("status", "whole", "--json").last["rows_succeeded"] == 30
    again = cortex(*command)
    assert (again.code, again.last) == (0, last)
    assert "is already complete" in again.said()[0]


def test_a_lost_journal_of_a_shard_matters_only_if_the_file_lacks_rows(cortex, batch):
    for path in jobs().glob("whole~2.sqlite*"):
        path.unlink()
    before = Path("out.jsonl").read_text()
    assert cortex("resume", "whole").code == 0
    assert Path("out.jsonl").read_text() == before
    Path("out.jsonl").write_text("".join(before.splitlines(keepends=True)[:-1]))
    said = cortex("resume", "whole")
    assert said.code == 2 and "the journals of whole~2 have lost their end" in said.err, said
    assert cortex("resume", "whole").code == 0
    each_once(Path("out.jsonl"), 30)


def test_its_results_come_out_of_all_journals(cortex, batch):
    before = set(Path("out.jsonl").read_text().splitlines())
    Path("out.jsonl").unlink()
    assert cortex("resume", "whole").code == 0
    assert set(Path("out.jsonl").read_text().splitlines()) == before
    assert set(cortex("results", "whole").out.splitlines()) == before
    assert cortex("export", "whole", "-o", "calls.jsonl").code == 0
    assert len(Path("calls.jsonl").read_text().splitlines()) == 30


def test_a_row_is_told_of_by_the_name_of_the_whole(cortex, batch):
    key = sorted(keys(Path("out.jsonl")))[7]
    done = cortex("inspect", "whole", key)
    assert done.code == 0, done
    assert key in done.out


def test_its_parts_are_listed_where_all_jobs_are_wanted(cortex, batch):
    assert [each["job"] for each in json.loads(cortex("jobs", "--json").out)["jobs"]] == ["whole"]
    listed = json.loads(cortex("jobs", "--all", "--json").out)["jobs"]
    parts = [each for each in listed if each["job"].startswith("whole~")]
    assert len(listed) == 1 + len(parts) and len(parts) > 1
    assert sum(each["rows_succeeded"] for each in parts) == next(each for each in listed if each["job"] == "whole")["rows_succeeded"]


def test_it_goes_with_all_its_parts(cortex, batch):
    assert cortex("rm", "whole").code == 0
    assert not list(jobs().glob("whole*.sqlite"))


def test_its_failed_rows_are_a_job_of_their_own(cortex, batch):
    cortex("retry", "whole").refused("has shards", "cortex results whole --failed")


def test_how_many_there_are_is_settled_when_it_begins(cortex, batch):
    command, _ = batch
    again = cortex(*command[:-3], "--shards", "5", "--json")
    assert again.code == 0
    assert "keeps the number of shards of its start: 3" in again.said()[0]
    assert cortex(*command[:-3]).code == 0


def test_the_cap_is_one_for_all(cortex):
    command = (
        "batch", requests(Path("in.jsonl"), 40), "-o", "out.jsonl", *SIM, "--shards", "3", "--price",
        "input=3,output=15", "--json", "--job", "capped",
    )  # fmt: skip
    done = cortex(*command, "--max-cost", "0.0015")
    assert done.code == 3
    assert 0 < done.last["cost_usd"] <= 0.0015
    assert done.last["resume"].startswith("cortex resume capped")
    assert len(keys(Path("out.jsonl"))) == done.last["rows_succeeded"]
    more = cortex("resume", "capped", "--max-cost", "5", "--json")
    assert (more.code, more.last["paid_calls"]) == (0, 40)
    each_once(Path("out.jsonl"), 40)


@pytest.mark.parametrize(("given", "said"), [("0", "--shards"), ("257", "from 1 to 256"), ("two", "--shards")])
def test_a_number_that_makes_no_sense_is_one_line(cortex, given, said):
    cortex("batch", requests(Path("in.jsonl"), 2), "-o", "out.jsonl", *SIM, "--shards", given).refused(said)
    assert not Path("out.jsonl").exists()


def test_a_job_file_and_a_variable_say_it_too(cortex, monkeypatch):
    requests(Path("in.jsonl"), 6)
    Path("job.toml").write_text('input = "in.jsonl"\noutput = "out.jsonl"\nmodel = "sim"\nshards = 2\njob = "filed"\n')
    assert cortex("batch", "-f", "job.toml").code == 0
    assert (jobs() / "filed~2.sqlite").exists()
    monkeypatch.setenv("CORTEX_SHARDS", "2")
    assert cortex("batch", "in.jsonl", "-o", "other.jsonl", *SIM, "--job", "said").code == 0
    assert (jobs() / "said~2.sqlite").exists()


def test_a_table_is_dealt_like_requests_and_no_text_is_kept(cortex):
    Path("in.csv").write_text("word\n" + "".join(f"w{number}\n" for number in range(20)))
    done = cortex(
        "batch", "in.csv", "-o", "out.csv", *SIM, "--prompt", "Say {{word}}", "--ordered", "--shards", "3",
        "--no-keep-text", "--job", "table",
    )  # fmt: skip
    assert done.code == 0, done
    lines = Path("out.csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in lines] == [str(number) for number in range(1, 21)]
    assert b"Say w7" not in b"".join(path.read_bytes() for path in jobs().iterdir())
