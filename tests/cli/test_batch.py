"""``batch``: what it gives, in which form, with which exit code, and that the same again costs nothing."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_runner import Done, each_once, environment, keys, kinds, request, requests
from tests.cli.table_files import BAD

SIM = ("--model", "sim")


def test_a_batch_is_done_and_told(cortex):
    done = cortex("batch", requests(Path("in.jsonl"), 30), "-o", "out.jsonl", *SIM, "--json")
    assert done.code == 0
    each_once(Path("out.jsonl"), 30)
    last = done.last
    assert (last["outcome"], last["rows"], last["rows_succeeded"], last["rows_failed"]) == ("complete", 30, 30, 0)
    assert (last["calls"], last["paid_calls"], last["failures"]) == (30, 30, {})
    assert last["output"] == str(Path("out.jsonl").resolve())
    assert last["resume"] is last["answer"] is last["cost_usd"] is None
    assert last["input_tokens"] > 0 < last["output_tokens"]
    assert len(done.out.splitlines()) == 1
    header, summary, where = done.said()
    assert "cluster inline (auto)" in header
    assert "rehearsal" in header
    assert "30 of 30 rows succeeded" in summary
    assert where == f"results: {last['output']}"


@pytest.mark.parametrize("via", ["messages", "batches"])
def test_requests_keep_messages_that_are_no_whole_answer_and_the_summary_counts_them(cortex, via):
    requests(Path("in.jsonl"), 6)
    done = cortex("batch", "in.jsonl", "-o", "o.jsonl", *SIM, "--sim", "thinking_tokens=64", "--via", via, "--job", "j")
    assert done.code == 0 and "6 of 6 rows succeeded, of which 6 cut, 6 calls" in done.err
    messages = [json.loads(line)["result"]["message"] for line in Path("o.jsonl").read_text().splitlines()]
    kept = {(each["stop_reason"], each["content"][0]["type"], len(each["content"])) for each in messages}
    assert kept == {("max_tokens", "thinking", 1)}
    assert "6 of 6 succeeded, of which 6 cut" in cortex("status", "j").out


def test_the_same_command_again_asks_nothing(cortex, monkeypatch):
    command = ("batch", requests(Path("in.jsonl"), 10), "-o", "out.jsonl", *SIM, "--json")
    first = cortex(*command)
    before = Path("out.jsonl").read_bytes()
    again = cortex(*command)
    assert again.code == 0
    assert "is already complete: nothing is asked again" in again.said()[0]
    assert again.last == first.last
    assert Path("out.jsonl").read_bytes() == before
    Path("out.jsonl").write_bytes(before[:-9])
    mended = cortex(*command)
    assert mended.code == 0
    assert "is incomplete" in mended.said()[1]
    assert Path("out.jsonl").read_bytes() == before
    Path("out.jsonl").unlink()
    assert cortex(*command).last["calls"] == 10
    assert Path("out.jsonl").read_bytes() == before
    fresh = cortex(*command, "--fresh")
    assert fresh.last["paid_calls"] == 20  # the ledger goes on counting
    each_once(Path("out.jsonl"), 10)


def test_another_model_begins_anew_and_reuses_what_it_can(cortex):
    requests(Path("in.jsonl"), 10)
    cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--sim", "seed=1")
    other = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--sim", "seed=2", "--json")
    assert (other.code, other.last["reused_calls"]) == (0, 0)
    each_once(Path("out.jsonl"), 10)
    named = cortex("batch", "in.jsonl", "-o", "two.jsonl", *SIM, "--sim", "seed=1", "--job", "two", "--json")
    assert (named.last["job"], named.last["reused_calls"], named.last["paid_calls"]) == ("two", 10, 0)
    each_once(Path("two.jsonl"), 10)


def test_in_the_order_of_the_input(cortex):
    requests(Path("in.jsonl"), 40)
    cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--ordered", "--sim", "latency_ms=20")
    assert list(keys(Path("out.jsonl"))) == [f"r{i}" for i in range(40)]


def test_gzip_in_and_out(cortex):
    with gzip.open("in.jsonl.gz", "wb") as packed:
        packed.write(requests(Path("in.jsonl"), 10).read_bytes())
    assert cortex("batch", "in.jsonl.gz", "-o", "out.jsonl.gz", *SIM).code == 0
    Path("out.jsonl").write_bytes(gzip.decompress(Path("out.jsonl.gz").read_bytes()))
    each_once(Path("out.jsonl"), 10)


def test_standard_output_takes_rows_and_standard_error_the_object(cortex):
    done = cortex("batch", requests(Path("in.jsonl"), 10), "-o", "-", *SIM, "--json")
    assert done.code == 0
    Path("out.jsonl").write_text(done.out)
    each_once(Path("out.jsonl"), 10)
    assert json.loads(done.err.splitlines()[-1])["output"] == "-"


def test_standard_input_is_known_by_what_it_holds(cortex, monkeypatch):
    def piped(text: str) -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return cortex("batch", "-", "-o", "-", *SIM)

    one, two = request("a") + "\n", request("b") + "\n"
    assert json.loads(piped(one).out)["custom_id"] == "a"
    assert json.loads(piped(two).out)["custom_id"] == "b"
    again = piped(one)
    assert "already complete" in again.said()[0]
    assert again.out == ""
    assert not list(Path().rglob(".input-*"))


def test_refused_rows_get_their_lines_and_the_rest_is_done(cortex):
    bad = [request("bad", max_tokens="many"), request("good"), "{nonsense", request("good"), request("fine")]
    Path("in.jsonl").write_text("\n".join(bad) + "\n")
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, *BAD, "--json")
    assert done.code == 2
    assert kinds(Path("out.jsonl")) == {"bad": "invalid_request_error", "good": "succeeded", "fine": "succeeded"}
    lines = done.said()
    assert lines[0] == "in.jsonl: 1 of 3 rows is refused before sending; 2 of 5 records are unreadable and skipped"
    assert [line.partition(": ")[0] for line in lines[1:4]] == ["in.jsonl line 1", "in.jsonl line 3", "in.jsonl line 4"]
    assert "1 refused before sending" in done.err
    assert (done.last["rows_succeeded"], done.last["rows_failed"], done.last["calls"]) == (2, 1, 2)
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM).code == 2
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--accept-failed", "0.6").code == 0


def test_only_the_first_ten_bad_lines_are_told(cortex):
    Path("in.jsonl").write_text(request("fine") + "\n" + "{nonsense\n" * 25)
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, *BAD)
    lines = done.said()
    assert len([line for line in lines if line.startswith("in.jsonl line ")]) == 10
    assert "in.jsonl: and 15 more lines like these" in lines


def test_a_valid_row_that_fails_is_exit_code_one(cortex):
    Path("in.jsonl").write_text(request("long", "word " * 500) + "\n" + request("short") + "\n")
    command = ("batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--prompt-tokens-max", 200)
    done = cortex(*command)
    assert done.code == 1
    assert kinds(Path("out.jsonl")) == {"long": "invalid_request_error", "short": "succeeded"}
    assert "1 failed (1 too_large)" in done.err
    assert cortex(*command).code == 1
    assert cortex(*command, "--accept-failed", "40%").code == 1
    assert cortex(*command, "--accept-failed", "50%").code == 0


def test_a_cap_stops_it_and_more_money_goes_on(cortex):
    requests(Path("in.jsonl"), 30)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--price", "input=1,output=1", "--json")
    done = cortex(*command, "--max-cost", "0.0003")
    last = done.last
    assert (done.code, last["outcome"]) == (3, "partial")
    assert last["resume"] == f"cortex resume {last['job']}"
    assert 0 < last["cost_usd"] + last["cost_assumed_usd"] <= 0.0003
    assert last["rows"] == 30 > last["rows_succeeded"]
    assert "--max-cost USD" in done.said()[-1]
    assert cortex("resume", last["job"], "--accept-partial").code == 0
    rest = cortex("resume", last["job"], "--max-cost", "1", "--json")
    assert (rest.code, rest.last["rows_succeeded"], rest.last["paid_calls"]) == (0, 30, 30)
    each_once(Path("out.jsonl"), 30)


@pytest.mark.parametrize(
    ("settings", "words"),
    [(["credit_calls=5"], "credit balance is too low"), (["models=another"], "there is no model sim")],
)
def test_a_blocked_account_or_model_is_partial_and_says_why(cortex, settings, words):
    requests(Path("in.jsonl"), 12)
    sim = [part for setting in settings for part in ("--sim", setting)]
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, *sim, "--json")
    assert (done.code, done.last["outcome"]) == (3, "partial")
    assert words in done.err
    rest = cortex("resume", done.last["job"], "--sim", "seed=0")
    assert rest.code == 0
    each_once(Path("out.jsonl"), 12)


def test_what_the_rows_ask_is_the_model(cortex):
    done = cortex("batch", requests(Path("in.jsonl"), 3, model="sim"), "-o", "out.jsonl")
    assert done.code == 0
    assert "model sim" in done.said()[0]


def test_options_come_from_the_environment_and_the_command_line_wins(cortex, monkeypatch):
    requests(Path("in.jsonl"), 3)
    monkeypatch.setenv("CORTEX_MODEL", "sim")
    monkeypatch.setenv("CORTEX_SIM", "seed=3 error=0")
    monkeypatch.setenv("CORTEX_JOB", "theirs")
    monkeypatch.setenv("CORTEX_JSON", "1")
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine").last["job"] == "mine"
    assert cortex("batch", "in.jsonl", "-o", "two.jsonl").last["job"] == "theirs"


def test_a_rehearsal_needs_neither_anthropic_nor_ray(tmp_path):
    requests(tmp_path / "in.jsonl", 2)
    script = (
        "import sys; from actors.cli.main import enter\n"
        "assert enter(['batch', 'in.jsonl', '-o', 'out.jsonl', '--model', 'sim']) == 0\n"
        "assert not {'anthropic', 'ray', 'aiohttp', 'rich.progress'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_came_on_standard_input_is_kept_only_while_it_is_needed(cortex, monkeypatch):
    rows = "".join(f"{request(f'r{i}')}\n" for i in range(20))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
    stopped = cortex("batch", "-", "-o", "out.jsonl", *SIM, "--max-job-tokens", 400, "--json")
    assert stopped.code == 3
    state = Path(environment()["CORTEX_STATE"]) / "jobs"
    (kept,) = state.glob("*.input")
    assert kept.read_text() == rows
    assert kept.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(sys, "stdin", None)
    assert cortex("resume", stopped.last["job"], "--max-job-tokens", 10_000).code == 0
    each_once(Path("out.jsonl"), 20)
    assert not kept.exists()


def test_sampling_parameters_are_for_other_servers(cortex):
    Path("in.jsonl").write_text(request("a", temperature=0.5) + "\n")
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM).code == 0
    cortex("batch", "in.jsonl", "-o", "two.jsonl").said()
    assert cortex("batch", "in.jsonl", "-o", "two.jsonl").code == 2


def test_a_change_is_said(cortex):
    requests(Path("in.jsonl"), 20)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--job", "mine")
    assert cortex(*command, "--max-job-tokens", 400).code == 3
    assert "it goes on where it stopped" in cortex(*command, "--max-job-tokens", 500).said()[0]
    before = Path("out.jsonl").read_bytes()
    cortex(*command, "--ordered").refused("job mine is partial, and now asks something else", "--overwrite")
    assert Path("out.jsonl").read_bytes() == before
    changed = cortex(*command, "--ordered", "--overwrite", "--json")
    assert "the program has changed, so the job begins anew; paid replies are reused" in changed.said()[0]
    assert 0 < changed.last["reused_calls"] < 20
    each_once(Path("out.jsonl"), 20)
