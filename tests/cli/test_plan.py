"""``cortex plan``: what `cortex batch` with the same words comes to, told before anything is paid."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from actors.history.catalog import last_terms
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import request, requests
from tests.cli.table_files import ASK, BAD, SIM, table
from tests.edge.routing.test_api_detection import serving

PRICED = (*SIM, "--price", "input=3,output=15", "--max-output-tokens", "40")
LONG = ("--prompt", "Summarise in at most {{words}} words:\n\n{{text}}", "--id", "ticket_id")


def long_table(count: int = 300) -> Path:
    """Rows of many lengths, and answers of others."""
    path = Path("t.csv")
    lines = [f"t{i},{1 + i % 9},{'The harbour is deep. ' * (1 + i * 7 % 60)}" for i in range(count)]
    path.write_text("\n".join(["ticket_id,words,text", *lines]) + "\n")
    return path


def told(done: Any, code: int = 0) -> dict[str, Any]:
    assert done.code == code, done.err
    (line,) = done.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def jobs() -> list[str]:
    return StateFolder(os.environ["CORTEX_STATE"]).jobs()


def test_the_same_words_but_one_and_nothing_is_paid_twice(cortex: Any) -> None:
    """A stranger plans, reads, and changes ``plan`` to ``batch``: the bill is the planned one, without the sample's."""
    long_table()
    words = ("t.csv", *LONG, "-o", "o.parquet", "--with-input", "--meta", *PRICED, "--json")
    plan = told(cortex("plan", *words, "--sample", "60"))
    assert plan["rows"] == {
        "to_ask": 300, "remembered": 0, "left": 240, "refused": 0, "unreadable": 0, "too_large": 0,
    }  # fmt: skip
    assert (plan["sample"]["rows"], plan["sample"]["answered"], plan["sample"]["reused_by_job"]) == (60, 60, True)
    assert not Path("o.parquet").exists()
    cortex("batch", *words, "--sample", "61").refused(
        "--sample 61 reuses a sample of `cortex plan`", "all 300 rows", "leave it out"
    )
    job = cortex("batch", *words, "--sample", "60").last
    assert (job["rows_succeeded"], job["paid_calls"], job["reused_calls"]) == (300, 240, 60)
    cost, bill = plan["cost_usd"], job["cost_usd"]
    assert cost["low"] <= cost["expected"] <= cost["high"] <= cost["worst"]
    assert cost["expected"] == pytest.approx(bill, rel=0.1)
    assert bill < cost["worst"]
    assert plan["input_tokens"]["expected"] == pytest.approx(job["input_tokens"], rel=0.02)
    sampled = cortex("status", plan["sample"]["job"], "--json").last
    assert sampled["cost_usd"] == plan["sample"]["paid_usd"] > 0
    again = told(cortex("plan", *words, "--overwrite", "--sample", "60"))
    assert (again["rows"]["left"], again["cost_usd"]["expected"]) == (0, 0)


def test_the_worst_case_of_longer_holds_its_larger_bounds(cortex: Any) -> None:
    """Every row is cut at 2, 4, 8 and 16 tokens, so that the worst case of a plain job would be passed."""
    Path("t.csv").write_text("id,text\n" + "".join(f"{n},{'The harbour is deep. ' * 3}\n" for n in range(40)))
    words = ("t.csv", "--prompt", "Summarise in at most 90 words: {{text}}", "--id", "id", *SIM)
    words += ("--price", "input=0,output=15", "--max-output-tokens", "2", "-o", "o.csv")
    plain = told(cortex("plan", *words, "--json"))["cost_usd"]["worst"]
    longer = told(cortex("plan", *words, "--on-cut", "longer", "--json"))["cost_usd"]
    assert "every reply cut at each bound of --on-cut longer" in cortex("plan", *words, "--on-cut", "longer").out
    assert "every reply of --max-output-tokens" in cortex("plan", *words).out
    job = cortex("batch", *words, "--on-cut", "longer", "--json").last
    assert plain < job["cost_usd"] <= longer["worst"]
    assert longer["high"] <= longer["worst"]


def test_a_sample_is_asked_once(cortex: Any) -> None:
    long_table()
    words = ("plan", "t.csv", *LONG, *PRICED, "--json")
    first, then = (told(cortex(*words, "--sample", "30")) for _ in range(2))
    assert first["sample"] == then["sample"]
    assert first["cost_usd"] == then["cost_usd"]
    larger = told(cortex(*words, "--sample", "90"))
    assert larger["sample"]["remembered"] + larger["rows"]["left"] <= 300
    assert larger["rows"]["left"] == 300 - len(_answered(first, larger))
    fresh = told(cortex(*words, "--sample", "30", "--fresh"))
    assert fresh["sample"]["reused_by_job"] is False
    everything = told(cortex(*words, "--sample", "5000"))
    assert (everything["sample"]["rows"], everything["rows"]["left"], everything["cost_usd"]["high"]) == (300, 0, 0)


def _answered(*plans: dict[str, Any]) -> set[str]:
    from cortex.state import events

    keys = set()
    for plan in plans:
        source = StateFolder(os.environ["CORTEX_STATE"]).journal(plan["sample"]["job"])
        for _, turn in source.turns():
            keys |= {e.sample for b in turn.batches for e in b if isinstance(e, events.Answered | events.ReplyRecalled)}
        source.close()
    return keys


def test_rows_that_came_to_yesterdays_table_are_all_that_is_planned(cortex: Any) -> None:
    long_table(100)
    assert cortex("batch", "t.csv", *LONG, "-o", "o.jsonl", *PRICED).code == 0
    long_table(160)
    plan = told(cortex("plan", "t.csv", *LONG, *PRICED, "--job", "new", "--json"))
    assert (plan["rows"]["remembered"], plan["rows"]["left"]) == (100, 60)
    fresh = told(cortex("plan", "t.csv", *LONG, *PRICED, "--job", "new", "--fresh", "--json"))
    assert (fresh["rows"]["remembered"], fresh["rows"]["left"]) == (0, 160)


def test_without_a_sample_nothing_is_asked_and_no_key_is_needed(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    table(Path("t.csv"), 20)
    done = cortex("plan", "t.csv", *ASK, "--model", "claude-haiku-4-5", "-o", "o.csv")
    assert done.code == 0
    assert "the length of replies is assumed" in done.out
    assert "genai-prices: claude-haiku-4-5" in done.out
    assert "--via batches: $" in done.out
    assert jobs() == [] and not Path("o.csv").exists()
    cortex("plan", "t.csv", *ASK, "--model", "claude-haiku-4-5", "--sample", "3").refused("no key in the environment")
    assert jobs() == []


@pytest.mark.parametrize(("status", "listed"), [(404, False), (200, True), (401, True)])
def test_batches_of_an_own_server_are_listed_only_where_it_has_them_or_does_not_tell(
    cortex: Any, status: int, listed: bool
) -> None:
    table(Path("t.csv"), 5)
    with serving({}, other=(status, {"data": []})) as asked:
        done = cortex("plan", "t.csv", *ASK, "--model", "m", "--base-url", asked.url, "--max-output-tokens", "9")
        assert done.code == 0, done.err
        assert ("        --via batches: " in done.out, "may not work" in done.out) == (listed, status == 401)
        by_name = ("--price", "input=3,output=15", "--max-cost", "1", "--via", "batches")
        if not listed:
            cortex("plan", "t.csv", *ASK, "--model", "m", "--base-url", asked.url, *by_name).refused("no message batches")


def test_a_price_that_nobody_knows(cortex: Any) -> None:
    table(Path("t.csv"), 5)
    done = cortex("plan", "t.csv", *ASK, "--model", "mine")
    assert done.code == 0
    assert "unknown: no price is known for 'mine': give --price" in done.out
    assert told(cortex("plan", "t.csv", *ASK, "--model", "mine", "--json"))["cost_usd"] is None
    cortex("plan", "t.csv", *ASK, "--model", "mine", "--max-cost", "3").refused("no price known for 'mine'", "--price")
    rehearsed = cortex("plan", "t.csv", *ASK, *SIM)
    assert "none: the provider is simulated" in rehearsed.out


def test_limits_that_the_provider_tells_are_counted_with(cortex: Any) -> None:
    """Twelve rows are enough to hear of them, also where their answers would all come at one moment."""
    long_table()
    slow = ("--sim", "latency_ms=400", "--sim", "latency_spread=0", "--sim", "rpm=600", "--sim", "burst_s=6")
    words = ("plan", "t.csv", *LONG, *PRICED, *slow, "--json")
    plan = told(cortex(*words, "--sample", "12"))
    assert plan["limits"]["requests_per_min"] == {"told_per_min": 600.0, "set_per_min": None}
    terms = last_terms(StateFolder(os.environ["CORTEX_STATE"]), plan["sample"]["job"])
    assert terms is not None and terms.limits.concurrency == 3, "the rest is asked when the first have told"
    assert plan["bound_by"] == "requests_per_min"
    assert 22 < plan["seconds"] < 35
    own = told(cortex(*words, "--sample", "12", "--rpm", "60", "--concurrency", "3"))
    assert own["bound_by"] == "requests_per_min"
    assert (own["limits"]["requests_per_min"]["set_per_min"], own["limits"]["concurrency"]) == (60.0, 3)
    assert 280 < own["seconds"] < 310
    unknown = cortex(*words[:-1])
    assert "the account's own limits are unknown until a call is made" in unknown.out


@pytest.mark.parametrize(
    ("wanted", "code", "route"),
    [
        ((), 0, "now"),
        (("--via", "batches"), 0, "batches"),
        (("--max-cost", "5", "--deadline", "+2h"), 0, "now"),
        (("--max-cost", "0.12"), 0, "mixed"),
        (("--max-cost", "0.12", "--deadline", "+2h"), 1, None),
        (("--max-cost", "0.02"), 1, None),
        (("--via", "batches", "--deadline", "+2d"), 0, "batches"),
        (("--via", "batches", "--deadline", "+2h"), 0, "now"),
    ],
)  # fmt: skip
def test_the_road_that_meets_what_is_asked(cortex: Any, wanted: tuple[str, ...], code: int, route: str | None) -> None:
    """By single calls it costs $0.18, in batches half."""
    long_table()
    words = ("plan", "t.csv", *LONG, *PRICED, *wanted)
    plan = told(cortex(*words, "--sample", "20", "--json"), code)
    assert plan["route"] == route
    assert [each["route"] for each in plan["routes"] if each["meets"]][:1] == ([route] if route else []) or wanted[
        0
    ] == "--via"
    done = cortex(*words, "--sample", "20")
    assert done.code == code
    assert ("none meets" in done.out) == (route is None)


def test_the_mixed_road_as_it_is_told(cortex: Any) -> None:
    """The first job stops at its cap, the second finds what it was answered, and both together are below the cap."""
    long_table()
    words = (*LONG, *PRICED, "--json")
    plan = told(cortex("plan", "t.csv", *words, "--max-cost", "0.12", "--sample", "20"))
    mixed = next(each for each in plan["routes"] if each["route"] == "mixed")
    line = next(
        line
        for line in cortex("plan", "t.csv", *words[:-1], "--max-cost", "0.12", "--sample", "20").out.splitlines()
        if "mixed is two" in line
    )
    cap = line.partition("--max-cost ")[2].split(";")[0]
    first = cortex("batch", "t.csv", *words, "--job", "now", "--max-cost", cap, "-o", "first.jsonl")
    assert (first.code, 0 < first.last["rows_succeeded"] < 300) == (3, True)
    then = cortex("batch", "t.csv", *words, "--via", "batches", "-o", "all.jsonl").last
    assert then["rows_succeeded"] == 300
    assert first.last["cost_usd"] + then["cost_usd"] <= 0.12
    assert mixed["rows_now"] == pytest.approx(first.last["paid_calls"], rel=0.25)


def test_what_is_wrong_is_told_as_by_the_job(cortex: Any) -> None:
    """Bad rows with their lines; whatever the job would refuse is refused."""
    Path("t.csv").write_text("ticket_id,text\n1,fine\n2,\n1,again\n3,good\n")
    assert "1 of 4 records (25%) is unreadable" in cortex("plan", "t.csv", *ASK, *SIM, "-o", "o.csv").refused()
    done = cortex("plan", "t.csv", *ASK, *SIM, *BAD, "-o", "o.csv")
    assert done.code == 0
    assert "t.csv line 3: there is nothing to ask: text is empty" in done.err
    assert "ticket_id '1' stands on line 2 already" in done.err
    assert "2 to ask; 1 refused before sending; 1 unreadable" in done.out
    assert told(cortex("plan", "t.csv", *ASK, *SIM, *BAD, "--sample", "2", "--json", "--job", "other"))["rows"]["left"] == 0
    assert cortex("batch", "t.csv", *ASK, *SIM, *BAD, "-o", "other.csv", "--job", "other", "--json").last["reused_calls"] == 2
    for job in jobs():
        assert cortex("rm", job).code == 0
    Path("o.csv").write_text("mine")
    cortex("plan", "t.csv", *ASK, *SIM, *BAD, "-o", "o.csv").said()
    assert "o.csv exists: give --overwrite" in cortex("plan", "t.csv", *ASK, *SIM, *BAD, "-o", "o.csv").err
    for words, line in (
        (("none.csv", *ASK), "none.csv: no such file"),
        (("t.csv", "--prompt", "{{texxt}}"), "did you mean text?"),
        (("t.csv",), "t.csv is a table: give --prompt"),
        (("t.csv", *ASK, "--schema", "no.json"), "--schema no.json: cannot be read"),
        (("t.csv", *ASK, "--deadline", "soon"), "--deadline: 'soon' is no time"),
        (("t.csv", *ASK, "--job", "a/b"), "job name 'a/b'"),
        (("t.csv", *ASK, "-f", "no.toml"), "no.toml cannot be read"),
    ):
        refused = cortex("plan", *words, *SIM)
        assert (refused.code, line in refused.err) == (2, True), refused.err
    assert jobs() == []


def test_requests_as_they_stand_and_a_job_file(cortex: Any) -> None:
    requests(Path("in.jsonl"), 30)
    Path("job.toml").write_text('input = "in.jsonl"\noutput = "o.jsonl"\nmodel = "sim"\nmax-output-tokens = 4\n')
    plan = told(cortex("plan", "-f", "job.toml", "--sample", "10", "--json"))
    assert (plan["rows"]["left"], plan["simulated"]) == (20, True)
    job = cortex("batch", "-f", "job.toml", "--json").last
    assert (job["rows_succeeded"], job["reused_calls"]) == (30, 10)


def test_standard_input_is_planned_and_not_kept(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "".join(request(f"r{i}") + "\n" for i in range(9)).encode()
    for more in ((), ("--job", "q")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert told(cortex("plan", "-", *SIM, *more, "--sample", "4", "--json"))["rows"]["left"] == 5
    assert not list(Path(os.environ["CORTEX_STATE"], "jobs").glob("*input*"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert cortex("batch", "-", *SIM, "-o", "o.jsonl", "--json").last["reused_calls"] == 4


def test_a_sample_that_is_blocked_plans_nothing(cortex: Any) -> None:
    long_table()
    words = ("plan", "t.csv", *LONG, *PRICED, "--sample", "20")
    done = cortex(*words, "--sim", "credit_calls=0")
    assert (done.code, done.out) == (3, "")
    assert "credit" in done.err and "to go on: the same command" in done.err
    sampled = jobs()[0]
    assert "is the sample of a plan" in cortex("resume", sampled).err


def test_rows_that_cannot_fit_are_counted(cortex: Any) -> None:
    Path("t.csv").write_text("ticket_id,text\n1,short\n2," + "word " * 20_000 + "\n")
    plan = told(cortex("plan", "t.csv", *ASK, *SIM, "--prompt-tokens-max", "2000", "--json"))
    assert plan["rows"]["too_large"] == 1
    assert "1 of them too large" in cortex("plan", "t.csv", *ASK, *SIM, "--prompt-tokens-max", "2000").out


def test_disk_is_about_what_the_job_takes(cortex: Any) -> None:
    long_table(1_000)
    words = ("t.csv", *LONG, *PRICED, "-o", "o.jsonl", "--json")
    plan = told(cortex("plan", *words, "--sample", "40"))
    job = cortex("batch", *words).last["job"]
    assert plan["disk"]["journal_bytes"] == pytest.approx(
        StateFolder(os.environ["CORTEX_STATE"]).journal_path(job).stat().st_size, rel=0.35
    )
    assert plan["disk"]["results_bytes"] == pytest.approx(Path("o.jsonl").stat().st_size, rel=0.5)


def test_answers_that_do_not_fit_a_schema_are_counted_with_their_second(cortex: Any) -> None:
    """Many answers are refused and asked for again: both are in the bill, and in the planned one."""
    table(Path("t.csv"), 200)
    schema = {"type": "object", "properties": {"label": {"enum": ["bug", "praise"]}}, "required": ["label"]}
    Path("s.json").write_text(json.dumps(schema))
    asked = ("--schema", "s.json", "--schema-as", "prompt", "--sim", "error=0.5", "--accept-failed", "1")
    words = ("t.csv", *ASK, *PRICED, *asked, "-o", "o.jsonl", "--json")
    plan = told(cortex("plan", *words, "--sample", "100"))
    job = cortex("batch", *words).last
    assert job["paid_calls"] > 110
    assert plan["calls"] == pytest.approx(job["paid_calls"], rel=0.15)
    assert plan["cost_usd"]["expected"] == pytest.approx(job["cost_usd"], rel=0.15)
    assert job["cost_usd"] < plan["cost_usd"]["worst"]


def test_one_row_says_nothing_of_the_spread(cortex: Any) -> None:
    long_table()
    plan = told(cortex("plan", "t.csv", *LONG, *PRICED, "--sample", "1", "--json"))
    assert plan["cost_usd"]["low"] == 0
    assert (
        plan["cost_usd"]["high"] == plan["cost_usd"]["worst"] or plan["cost_usd"]["high"] <= plan["cost_usd"]["worst"]
    )
    assert plan["output_tokens"]["high"] == 299 * 40


def test_what_a_sample_leaves_open_is_said(cortex: Any) -> None:
    """A limit that nobody tells; a text that stays; a cap that not even the sample keeps."""
    long_table()
    words = ("plan", "t.csv", *LONG, *PRICED, "--sample", "20")
    done = cortex(*words, "--sim", "fault.throttled=0.3")
    assert "calls of the sample were throttled, and the provider named no limit" in done.out
    done = cortex(*words, "--no-keep-text", "-o", "o.jsonl", "--job", "other", "--fresh")
    assert "`cortex forget other-sample-" in done.out
    done = cortex(*words, "--max-cost", "0.009", "--job", "third", "--fresh")
    assert (done.code, "none meets --max-cost" in done.out) == (1, True)
    assert "over_budget" in done.err


def test_a_plan_reads_the_input_once_and_quickly(cortex: Any) -> None:
    """Half a million rows of 300 bytes in 20 s of processor time: ten times as long as to count their words."""
    filling = "The quick brown fox jumps over the lazy dog. " * 7
    with open("t.csv", "w") as file:
        file.write("ticket_id,text\n")
        file.writelines(f"t{i},{filling[: 299 - len(f't{i},')]}\n" for i in range(50_000))
    plan = ("plan", "t.csv", "--prompt", "Label: {{text}}", "--id", "ticket_id", *PRICED, "--json")
    told(cortex(*plan))  # and import what a plan needs
    began_s = time.process_time()
    with open("t.csv", newline="") as file:
        assert sum(len(row["text"].split()) for row in csv.DictReader(file)) > 50_000
    counted_s = time.process_time()  # a fifth of a second, or what it is on this machine
    found = told(cortex(*plan))
    assert time.process_time() - counted_s < 10 * (counted_s - began_s)
    assert found["rows"]["to_ask"] == 50_000
