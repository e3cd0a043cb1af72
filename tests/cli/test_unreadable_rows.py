"""Records of the input from which no row can be read: counted wherever rows of the job are counted."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import cortex as public
from actors.api.tables import RowsError
from actors.journal.journal import StateFolder
from actors.routing.routes import SetupError
from tests.cli.cli_runner import keys, request
from tests.cli.table_files import ASK, SIM, ragged
from tests.cli.table_files import BAD as BAD_OK
from tests.cli.test_notify import receiving

GOOD, BAD = 40, 20
STOPPED = ("batch", "t.csv", *ASK, *SIM, "-o", "o.jsonl", "--job", "j")
COMMAND = (*STOPPED, *BAD_OK)
HEAD = "j: complete, 40 of 60 rows succeeded, 20 unreadable, "


def _headline(done: Any) -> str:
    found = [line for line in done.said() if line.startswith("j: ")]
    assert len(found) == 1
    return str(found[0])


def _counts(facts: dict[str, Any]) -> tuple[Any, ...]:
    return facts["outcome"], facts["rows"], facts["rows_succeeded"], facts["rows_failed"], facts["rows_unreadable"]


WHOLE = ("complete", 60, 40, 0, 20)


@pytest.mark.parametrize(
    "more",
    [(), ("--shards", "3"), ("--via", "batches"), ("--ordered", "--no-keep-text"), ("--cluster", "inline")],
    ids=" ".join,
)
def test_every_view_of_the_job_counts_them(cortex: Any, more: tuple[str, ...]) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    done = cortex(*COMMAND, *more, "--json")
    assert done.code == 3, done.err
    assert _headline(done).startswith(HEAD)
    assert _counts(done.last) == WHOLE
    assert len(Path("o.jsonl").read_text().splitlines()) == GOOD
    assert "rows      40 of 60 succeeded, 20 unreadable\n" in cortex("status", "j").out
    assert _counts(cortex("status", "j", "--json").last) == WHOLE
    (line,) = cortex("jobs").out.splitlines()[1:]
    assert "  complete  40/60  " in line
    assert [_counts(each) for each in json.loads(cortex("jobs", "--json").out)["jobs"]] == [WHOLE]
    top = " ".join(cortex("top", "--once").out.split())
    assert "complete 40/60 66%" in top
    resumed = cortex("resume", "j")
    assert (resumed.code, _headline(resumed)[: len(HEAD)]) == (3, HEAD)
    again = cortex(*COMMAND, *more)
    assert (again.code, _headline(again)[: len(HEAD)]) == (3, HEAD)


def test_the_report_counts_them(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    cortex(*COMMAND)
    assert cortex("report", "j", "-o", "r.html").code == 0
    page = Path("r.html").read_text()
    assert "40 of 60 rows succeeded, none failed, 20 unreadable: these records" in page
    assert "of 60, 0 failed, 20 unreadable" in page
    assert cortex("forget", "j").code == 0
    assert _counts(cortex("status", "j", "--json").last) == WHOLE


def test_the_failed_results_name_their_number(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    cortex(*COMMAND)
    text = "0 failed results of j, which is complete; the input also has 20 unreadable records, without results"
    assert cortex("results", "j", "--failed").said() == [text]
    text = "0 failed of the goals and rows of j; the input also has 20 unreadable records, without results"
    assert cortex("inspect", "j", "--failed").said() == [text]


def test_failures_of_shards_name_their_number_once(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, 1)
    cortex(*COMMAND, "--shards", "2")
    assert cortex("inspect", "j", "--failed").said()[-1] == "j: the input also has 1 unreadable record, without results"


def test_a_resumed_job_counts_them(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    first = cortex(*COMMAND, "--max-job-tokens", 400, "--json")
    assert first.code == 3 and first.last["outcome"] == "partial"
    assert (first.last["rows"], first.last["rows_unreadable"]) == (60, 20)
    assert " of 60 rows succeeded, 20 unreadable, " in _headline(first)
    done = cortex("resume", "j", "--max-job-tokens", 100_000, "--json")
    assert (done.code, _counts(done.last)) == (3, WHOLE)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ((), 3),
        (("--accept-partial",), 0),
        (("--accept-failed", "33%"), 3),
        (("--accept-failed", "34%"), 0),
    ],
)
def test_the_exit_code_is_that_of_a_partial_result(cortex: Any, more: tuple[str, ...], code: int) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    assert cortex(*COMMAND, *more).code == code


def test_a_failed_row_decides_the_exit_code(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    done = cortex(*COMMAND, "--sim", "refusal=1", "--json")
    assert (done.code, _counts(done.last)) == (1, ("complete", 60, 0, 40, 20))
    assert "0 of 60 rows succeeded, 40 failed (40 refused), 20 unreadable, " in _headline(done)


def test_requests_are_counted_alike(cortex: Any) -> None:
    lines = [request(f"r{i}") for i in range(4)]
    Path("in.jsonl").write_text("\n".join([lines[0], "{nonsense", *lines[1:], "[]"]) + "\n")
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, *BAD_OK, "--job", "j", "--json")
    assert (done.code, _counts(done.last)) == (3, ("complete", 6, 4, 0, 2))
    assert sorted(keys(Path("out.jsonl"))) == ["r0", "r1", "r2", "r3"]


def test_python_has_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path / "state"))
    ragged(Path("t.csv"), GOOD, BAD)
    answers = public.batch("t.csv", "Label: {{text}}", id="ticket_id", accept_bad=0.34, model="sim", progress=False)
    assert (answers.unreadable, answers.bad_count, len(answers.rows)) == (BAD, BAD, GOOD)
    assert "20 records of the input unreadable" in repr(answers)


@pytest.mark.parametrize("more", [(), ("--shards", "3"), ("--via", "batches")], ids=" ".join)
@pytest.mark.parametrize("bound", ["20", "30%"])
def test_where_they_reach_max_failed_nothing_is_asked(cortex: Any, bound: str, more: tuple[str, ...]) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    done = cortex(*COMMAND, "--max-failed", bound, *more, "--json")
    assert (done.code, done.last["outcome"], done.last["calls"], done.last["attempts"]) == (3, "partial", 0, 0)
    assert "max_failed: 20 of 60 records of the input are unreadable, " in done.err
    assert done.said()[-1] == "to go on: cortex resume j --max-failed N (or a share), higher"
    then = cortex("resume", "j", "--max-failed", "50%", "--json")
    assert (then.code, _counts(then.last)) == (3, WHOLE)


@pytest.mark.parametrize("more", [(), ("--shards", "3")], ids=" ".join)
def test_failed_rows_and_unreadable_ones_reach_max_failed_together(cortex: Any, more: tuple[str, ...]) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    refusing = ("--sim", "refusal=1", "--concurrency", "2")
    done = cortex(*COMMAND, *refusing, "--max-failed", "25", *more, "--json")
    assert (done.code, done.last["outcome"]) == (3, "partial") and 5 <= done.last["rows_failed"] < GOOD
    assert " and 20 of 60 records of the input are unreadable, 25 may; the last: " in done.err
    replayed = cortex("status", "j", "--json").last
    assert (_counts(replayed), replayed["why"][:10]) == (_counts(done.last), "max_failed")


def test_a_share_of_failed_and_unreadable_rows_ends_the_job_at_one_row_in_a_replay_too(cortex: Any) -> None:
    ragged(Path("t.csv"), 400, 60)
    refusing = ("--sim", "refusal=0.2", "--concurrency", "4", "--max-failed", "25%")
    done = cortex(*COMMAND, *refusing, "--json")
    assert (done.code, done.last["outcome"]) == (3, "partial")
    lost, finished = done.last["rows_failed"], done.last["rows_failed"] + done.last["rows_succeeded"]
    passed = 60 * finished / 400
    assert 0.25 <= (lost + passed) / (finished + passed) < 0.45
    replayed = cortex("status", "j", "--json").last
    assert (_counts(replayed), replayed["calls"]) == (_counts(done.last), done.last["calls"])


def test_the_last_message_of_the_webhook_names_them(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    with receiving() as (receiver, url):
        assert cortex(*COMMAND, "--notify", url).code == 3
    (ended,) = [each for each in receiver.heard if each["event"] == "ended"]
    assert ended["rows_unreadable"] == BAD
    assert "ended complete, 20 records of the input unreadable; " in ended["text"]


# -- the number with which a job begins ----------------------------------------------------------------------------


def _nothing_began() -> None:
    assert StateFolder(os.environ["CORTEX_STATE"]).jobs() == []
    assert not list(Path(os.environ["CORTEX_STATE"]).rglob("*.input")) + list(Path().glob("o.*"))


def _line(count: int, of: int, share: str) -> str:
    return f"{count} of {of:,} records ({share}) {'is' if count == 1 else 'are'} unreadable, more than the 1% accepted: nothing was asked or paid; "


def test_a_job_does_not_begin_and_the_command_that_is_told_begins_it(cortex: Any) -> None:
    ragged(Path("t.csv"), 666, 334)
    line = cortex(*STOPPED).refused(
        "t.csv: " + _line(334, 1_000, "33.4%"), "line 2: has 3 cells, the header has 2: ", "; line 4: the same; line 6: the same; and 331 more (--bad FILE lists all)."
    )
    assert len(line) < 700
    _nothing_began()
    command = shlex.split(line.rpartition("go on without them: ")[2])
    assert command == ["cortex", *STOPPED, "--accept-bad", "34%"]
    done = cortex(*command[1:], "--json")
    assert (done.code, _counts(done.last)) == (3, ("complete", 1_000, 666, 0, 334))


@pytest.mark.parametrize(
    ("good", "bad", "accept", "begins"),
    [
        (99, 1, (), True),
        (98, 1, (), False),
        (49, 1, (), False),
        (49, 1, ("--accept-bad", "2%"), True),
        (71, 29, ("--accept-bad", "29%"), True),  # 0.29 * 100 is less than 29 in binary floating point
        (71, 29, ("--accept-bad", "0.289"), False),
        (10, 3, ("--accept-bad", "3"), True),
        (10, 3, ("--accept-bad", "2"), False),
        (300, 1, ("--accept-bad", "0"), False),
        (300, 0, ("--accept-bad", "0"), True),
        (1, 30, ("--accept-bad", "100%"), True),
        (1, 30, ("--accept-bad", "1.0"), True),
        (50, 2, ("--accept-bad", "1"), False),
    ],
)
def test_the_accepted_number(cortex: Any, good: int, bad: int, accept: tuple[str, ...], begins: bool) -> None:
    ragged(Path("t.csv"), good, bad)
    done = cortex("plan", "t.csv", *ASK, *SIM, *accept)
    assert (done.code == 0) == begins
    if not begins:
        assert f"{bad} of {good + bad} records (" in done.refused("cortex plan t.csv ", " --accept-bad ")
    assert cortex(*STOPPED, *accept).code == ((3 if bad else 0) if begins else 2)


@pytest.mark.parametrize("value", ["much", "-1", "1.5", "200.0", "150%", "1/3", "nan", "inf", "1e999999999", "1e-999999999", ""])
def test_a_number_that_makes_no_sense(cortex: Any, value: str) -> None:
    ragged(Path("t.csv"), 5, 0)
    if not value:
        assert cortex(*STOPPED, "--accept-bad", value).code == 0
        return
    cortex(*STOPPED, "--accept-bad", value).refused(f"--accept-bad '{value}': give a share, ")
    _nothing_began()


def test_standard_input_leaves_nothing_behind(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be what a job of that name began with, and another input would be refused."""
    text = ragged(Path("t.csv"), 5, 5).read_bytes()
    wrong = {
        "standard input: " + _line(5, 10, "50%"): text, "is empty: it has columns and no row": b"ticket_id,text\n",
        "standard input line 2: byte 6 (0xe9) is not UTF-8": b"ticket_id,text\n1,caf\xe9\n",
    }  # fmt: skip
    for job in ((), ("--job", "j")):
        for line, content in wrong.items():
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
            cortex("batch", "-", *ASK, *SIM, "-o", "o.jsonl", *job).refused(line)
            _nothing_began()


def test_a_retry_that_cannot_help_says_what_can(cortex: Any) -> None:
    path = ragged(Path("t.csv"), GOOD, BAD)
    with path.open("a") as file:
        file.write("x,\n")
    assert cortex(*COMMAND).code == 2
    cortex("retry", "j").refused(
        "no row of job j can be asked again: 1 row was refused before sending (see cortex results j --failed), 20 records "
        "of the input are unreadable (see cortex results j --bad): correct the input"
    )


def test_the_command_is_not_told_where_it_may_hold_a_secret(cortex: Any) -> None:
    ragged(Path("t.csv"), 5, 5)
    for secret in ("--notify", "http://127.0.0.1:1/token"), ("--limits", "postgresql://u:token@127.0.0.1/d"):
        line = cortex(*STOPPED, *secret).refused()
        assert "token" not in line
    assert line.endswith("go on without them: the same command with --accept-bad 50%") or "--limits" in line


def test_a_job_that_has_begun_keeps_what_it_accepted(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    assert cortex(*STOPPED, "--accept-bad", "34%", "--max-job-tokens", 400).code == 3
    assert ["accept-bad", "34%", "command", "line"] in [line.split() for line in cortex("config", "j").out.splitlines()]
    assert cortex("resume", "j", "--max-job-tokens", 500).code == 3
    done = cortex(*STOPPED, "--max-job-tokens", 100_000, "--json")
    assert (done.code, _counts(done.last)) == (3, WHOLE)
    assert cortex(*STOPPED).code == 3
    cortex(*STOPPED, "--fresh").refused(_line(20, 60, "33.3%"))


def test_failed_rows_are_asked_again_without_the_option(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    hanging = ("--sim", "hang=0.4", "--sim", "latency_ms=1", "--goal-timeout", "0.2s")
    assert cortex(*COMMAND, *hanging).code == 1
    done = cortex("retry", "j", *SIM[2:], "--sim", "hang=0", "--goal-timeout", "none", "--json")
    assert (done.code, _counts(done.last)) == (3, WHOLE)


def test_requests_do_not_begin_either(cortex: Any) -> None:
    Path("in.jsonl").write_text("\n".join([request("a"), "{nonsense", request("b")]) + "\n")
    cortex("batch", "in.jsonl", "-o", "o.jsonl", *SIM).refused(
        "in.jsonl: 1 of 3 records (33.3%) is unreadable", "line 2: ", " --accept-bad 34%"
    )
    _nothing_began()


def test_a_job_file_for_a_cluster_is_refused_alike(cortex: Any) -> None:
    ragged(Path("t.csv"), 5, 5)
    Path("job.toml").write_text('input = "t.csv"\noutput = "o.jsonl"\nprompt = "{{text}}"\nmodel = "sim"\n')
    cortex("k8s", "render", "job.toml").refused(_line(5, 10, "50%"))


def test_python_stops_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path / "state"))
    ragged(Path("t.csv"), 5, 5)
    ask: Any = {"prompt": "Label: {{text}}", "id": "ticket_id", "model": "sim", "progress": False}
    with pytest.raises(RowsError) as raised:
        public.batch("t.csv", **ask)
    assert str(raised.value).startswith("t.csv: " + _line(5, 10, "50%") + "line 2: has 3 cells")
    assert str(raised.value).endswith("go on without them: accept_bad=0.5")
    rows = [{"ticket_id": "1", "text": "It crashes"}, {"ticket_id": "1", "text": "I love it"}]
    with pytest.raises(RowsError, match=r"the table: 1 of 2 records \(50%\) .*row 2: ticket_id .1. stands on row 1"):
        public.batch(rows, **ask, accept_bad=0.01)
    with pytest.raises(RowsError, match=r"the table: 11 of 19 records \(57.9%\) .* accept_bad=0.58$"):
        public.batch([{"ticket_id": str(max(n, 11)), "text": "It crashes"} for n in range(19)], **ask)
    _nothing_began()
    assert public.batch("t.csv", **ask, accept_bad=0.5).unreadable == 5
    assert public.batch("t.csv", **ask).unreadable == 5  # the job has begun
    assert public.batch(rows, **ask, accept_bad=0.5).unreadable == 1
    assert public.batch(rows, **ask).unreadable == 1
    few = [{"ticket_id": str(max(n, 10)), "text": "It crashes"} for n in range(16)]
    assert public.batch(few, **ask).unreadable == len(public.batch(few, **ask).bad) == 10  # all are told
    with pytest.raises(SetupError, match=r"^accept_bad=2.5: give a share, like 5% or 0.05 .* an int a count$"):
        public.batch(rows, **ask, accept_bad=2.5)


def test_the_sample_of_a_plan_has_none(cortex: Any) -> None:
    ragged(Path("t.csv"), 40, 20)
    assert cortex("plan", "t.csv", *ASK, *SIM, *BAD_OK, "--sample", "8").code == 0
    (sample,) = json.loads(cortex("jobs", "--json").out)["jobs"]
    assert _counts(sample) == ("complete", 8, 8, 0, 0)
