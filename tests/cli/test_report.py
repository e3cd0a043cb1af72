"""``report`` writes what happened in a job, also while it runs, from its journal alone."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_runner import ended, requests, started, until
from tests.edge.report.test_page import Seen

SIM = ("--model", "sim", "--sim", "error=0", "--sim", "latency_ms=20", "--price", "input=3,output=15")
PROGRAMS = """
import cortex


@cortex.flow
async def inner(ctx, n: int):
    return await ctx.ask(f"inner {n}")


@cortex.flow
async def walk(ctx, steps: int = 4):
    went = [await ctx.ask(f"Step {step}: where to?") for step in range(steps)]
    went += await ctx.map(lambda n: ctx.ask("the same"), range(3))
    return [*went, await ctx.run(inner(n=1))]
"""


def _batch(cortex, count: int = 30, *more: object) -> dict[str, Any]:
    done = cortex("batch", requests(Path("in.jsonl"), count), "-o", "out.jsonl", "--job", "mine", "--json", *SIM, *more)
    assert done.code in (0, 1, 3), done.err
    return done.last


def test_a_report_says_what_the_summary_says(cortex):
    facts = _batch(cortex, 60, "--sim", "overloaded=0.2", "--sim", "throttled=0.05", "--sim", "seed=3")
    done = cortex("report", "mine")
    assert (done.code, done.said()) == (0, ["the report on mine is in mine.html"])
    text = Path("mine.html").read_text()
    seen = Seen(text)
    assert not seen.wrong and not seen.open
    message = seen.texts["p"]
    assert f"over {facts['calls']} calls in {facts['attempts']} attempts" in message
    assert "60 of 60 rows succeeded, none failed." in message
    failed = sum(facts["failures"].values())
    assert failed and f"{failed} of {facts['attempts']} attempts failed" in message
    charts = {chart["id"]: chart for chart in seen.told()["charts"]}
    assert set(charts) >= {"calls", "flight", "branches", "latency-time", "spent", "input", "output"}
    spans = charts["branches"]["traces"]
    assert sum(len(trace["from"]) for trace in spans) == facts["attempts"]
    assert {trace["name"]: len(trace["from"]) for trace in spans} == {"answered": 60, **facts["failures"]}
    assert charts["spent"]["traces"][0]["y"][-1] == pytest.approx(facts["cost_usd"], rel=1e-4)
    assert len(text) < 2_600_000


def test_a_row_refused_before_sending_is_no_attempt_that_failed_for_good(cortex):
    rows = requests(Path("in.jsonl"), 40).read_text() + '{"custom_id":"bad","params":{"model":"m","max_tokens":9}}\n'
    Path("in.jsonl").write_text(rows)
    cortex("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *SIM, "--sim", "overloaded=0.2", "--sim", "seed=3")
    assert cortex("report", "mine").code == 0
    text = Seen(Path("mine.html").read_text()).texts["p"]
    assert (
        "40 of 41 rows succeeded, 1 failed (1 refused before sending: `cortex inspect mine --failed` says why)." in text
    )
    assert "overloaded. All retryable failures were retried, and nothing that was sent failed for good." in text


def test_what_has_no_price_costs_nothing_in_one_place_and_unknown_in_another_nowhere(cortex):
    cortex("batch", requests(Path("in.jsonl"), 3), "-o", "out.jsonl", "--job", "mine", "--model", "sim")
    assert cortex("report", "mine").code == 0
    page = Path("mine.html").read_text()
    assert "No price is known" in page and "share of cost" not in page


def test_a_folder_is_no_place_for_a_report(cortex):
    _batch(cortex, 3)
    assert cortex("report", "mine", "-o", ".").refused() == ". is a folder: name a file in it"


def test_an_output_that_exists_is_kept(cortex):
    _batch(cortex, 3)
    Path("kept.html").write_text("mine")
    assert "kept.html exists: give --overwrite" in cortex("report", "mine", "-o", "kept.html").refused()
    assert Path("kept.html").read_text() == "mine"
    assert cortex("report", "mine", "-o", "kept.html", "--overwrite").code == 0
    assert Path("kept.html").read_text().startswith("<!doctype html>")
    assert cortex("report", "mine", "-o", "no/such/folder.html").refused("cannot write no/such/folder.html")
    assert not [*Path().glob(".*.part")]


def test_a_job_that_is_not_there_leaves_no_file(cortex):
    _batch(cortex, 3)
    cortex("report", "another").refused("another")
    assert not Path("another.html").exists()
    cortex("report", "mine", "--format", "pdf").refused("--format pdf: give html or perfetto")


def test_standard_output(cortex):
    _batch(cortex, 3)
    done = cortex("report", "mine", "-o", "-")
    assert (done.code, done.err) == (0, "") and done.out.startswith("<!doctype html>") and done.out.endswith("</html>")
    trace = cortex("report", "mine", "-o", "-", "--format", "perfetto")
    assert len([event for event in json.loads(trace.out)["traceEvents"] if event["ph"] == "X"]) == 3


def test_a_trace_packed_and_plain(cortex):
    facts = _batch(cortex, 20, "--sim", "overloaded=0.2", "--sim", "seed=3")
    assert cortex("report", "mine", "--format", "perfetto").said() == ["the report on mine is in mine.trace.json.gz"]
    assert cortex("report", "mine", "--format", "perfetto", "-o", "plain.json").code == 0
    packed = json.loads(gzip.decompress(Path("mine.trace.json.gz").read_bytes()))
    assert packed == json.loads(Path("plain.json").read_text())
    slices = [event for event in packed["traceEvents"] if event["ph"] == "X" and event["cat"] != "breaker"]
    assert len(slices) == facts["attempts"]


def test_no_text(cortex):
    _batch(cortex, 3)
    assert cortex("report", "mine", "-o", "with.html").code == 0
    assert cortex("report", "mine", "-o", "without.html", "--no-text").code == 0
    assert "It crashes" in Path("with.html").read_text()
    without = Path("without.html").read_text()
    assert "It crashes" not in without and "r0" in without and "--no-text" in without


def test_a_flow_with_child_jobs_as_a_tree(cortex):
    Path("own.py").write_text(PROGRAMS)
    done = cortex("run", "own.py:walk", *SIM, "--job", "walk", "--json")
    assert done.code == 0, done.err
    assert cortex("report", "walk").code == 0
    seen = Seen(Path("walk.html").read_text())
    tree = seen.told()["tree"]
    assert [node[2] for node in tree][:2] == ["job", "run"]
    child = next(node for node in tree if node[0].startswith("walk~"))
    above = next(node for node in tree if tree.index(child) in node[10])
    assert above[0].startswith("walk ") and child[0].split()[0] == "walk~" + above[0].split()[1]
    assert tree[0][7] == pytest.approx(done.last["cost_usd"])  # what a child job cost is its parent's too
    assert "Step 0: where to? (own.py:" in json.dumps(tree)


def test_a_program_that_is_gone(cortex):
    Path("own.py").write_text(PROGRAMS)
    reported = cortex("run", "own.py:walk", *SIM, "--job", "walk", "--json").last
    from actors.programs import loader

    loader.forget(str(Path("own.py").resolve()) + ":walk")
    Path("own.py").unlink()
    done = cortex("report", "walk")
    line, written = done.said()
    assert "the program of walk has changed since, or is gone" in line and "walk.html" in written and done.code == 0
    text = Seen(Path("walk.html").read_text()).texts["p"]
    assert "limited to the recorded events" in text and "It is complete." in text
    assert reported["calls"] == 7 and "over 5 calls" in text  # two shared the answer of a third: no event tells of them
    assert re.search(r"It cost \$0\.\d+", text) and "succeeded" not in text


def test_without_plotly_there_are_tables_and_a_line_that_says_so(cortex, monkeypatch):
    _batch(cortex, 3)
    monkeypatch.setattr("actors.report.page.plotly", lambda: None)
    tables, written = cortex("report", "mine").said()
    assert "pip install 'cortex-bounded-calls[report]'" in tables and "mine.html" in written
    assert 'id="library"' not in Path("mine.html").read_text()


def test_a_running_job(cortex):
    requests(Path("in.jsonl"), 400)
    slow = (*SIM, "--sim", "latency_ms=300", "--concurrency", "5")
    with started("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *slow) as child:
        until(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 2_000)
        done = cortex("report", "mine")
        assert done.code == 0, done.err
        text = Path("mine.html").read_text()
        assert child.poll() is None
        child.terminate()
        ended(child)
    message = Seen(text).texts["p"]
    assert "It is still running." in message and "has been running for" in message
    assert cortex("report", "mine", "--overwrite").code == 0
    message = Seen(Path("mine.html").read_text()).texts
    assert "It stopped before its end, and can be resumed." in message["p"]
    assert "cortex resume mine" in message["code"]


def test_what_the_user_calls_a_job_by_stands_in_the_report_the_status_and_every_span(cortex):
    done = _batch(cortex, 12, "--label", "team=search", "--label", "case= two words ")
    assert done["outcome"] == "complete"
    labels = {"team": "search", "case": "two words"}
    assert cortex("status", "mine", "--json").last["labels"] == labels
    assert cortex("report", "mine").code == 0
    page = Path("mine.html").read_text()
    assert "By label" in page and "team=search" in page and "case=two words" in page
    spans = [
        {each["key"]: each["value"].get("stringValue") for each in span["attributes"]}
        for line in Path(os.environ["CORTEX_STATE"], "traces/mine.jsonl").read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert len(spans) > 12 * 4
    assert all(span["cortex.label.team"] == "search" and span["cortex.label.case"] == "two words" for span in spans)


def test_labels_stay_those_that_a_job_began_with_and_a_bad_one_is_refused(cortex):
    _batch(cortex, 2, "--label", "team=search")
    rows = requests(Path("in.jsonl"), 2)
    again = cortex("batch", rows, "-o", "out.jsonl", "--job", "mine", *SIM, "--label", "team=other")
    assert again.code == 0 and "job mine keeps the labels of its start: team=search" in again.said()
    for bad in ("team", "=x", "te am=x", "team=", f"team={'x' * 201}"):
        cortex("batch", rows, "-o", "two.jsonl", "--job", "two", *SIM, "--label", bad).refused("--label")
    twice = cortex("batch", rows, "-o", "two.jsonl", "--job", "two", *SIM, "--label", "a=1", "--label", "a=2")
    twice.refused("--label", "a is given twice")


def test_a_job_that_is_resumed_with_a_program_that_has_changed_keeps_its_labels(cortex):
    Path("mine.py").write_text("import cortex\n\n\n@cortex.flow\nasync def walk(ctx):\n    await ctx.sleep(3600)\n")
    begun = cortex("run", "mine.py:walk", "--job", "w", *SIM, "--label", "team=search", "--deadline", "+1s")
    assert begun.code == 3, begun.err
    Path("mine.py").write_text("import cortex\n\n\n@cortex.flow\nasync def walk(ctx):\n    return 1\n")
    with started("resume", "w", "--deadline", "none") as child:
        assert ended(child).code == 0
    assert cortex("status", "w", "--json").last["labels"] == {"team": "search"}
