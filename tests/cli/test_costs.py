"""``cortex costs``: who spent what, and since when, from the journals alone; nothing shrinks when a job is removed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from actors.history import costs
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import requests

PRICED = ("--model", "sim", "--price", "input=3,output=15")


def _told(cortex, *arguments):
    done = cortex("costs", *arguments, "--json")
    assert done.code == 0, done
    return json.loads(done.out)


def _ran(cortex, job, *more, rows=20):
    requests(Path("in.jsonl"), rows)
    return cortex("batch", "in.jsonl", "-o", f"{job}.jsonl", *PRICED, "--fresh", "--job", job, "--json", *more).last


def test_costs_by_label_job_and_model(cortex):
    assert "nothing was spent in " in cortex("costs").said()[0]
    one = _ran(cortex, "one", "--label", "team=search", "--label", "cost_center=42")
    two = _ran(cortex, "two", "--label", "team=search")
    six = _ran(cortex, "six", rows=7)
    reported = _told(cortex, "--by", "team")
    search, none = reported["costs"]
    assert search["team"] == "search" and search["jobs"] == 2 and search["rows"] == search["calls"] == 40
    assert search["cost_usd"] == pytest.approx(one["cost_usd"] + two["cost_usd"])
    assert none["team"] is None and none["cost_usd"] == pytest.approx(six["cost_usd"]) and none["rows"] == 7
    assert search["input_tokens"] == one["input_tokens"] + two["input_tokens"]
    assert reported["total"]["jobs"] == 3 and reported["unpriced"] == reported["unreadable"] == []
    assert [row["cost_center"] for row in _told(cortex, "--by", "cost_center")["costs"]] in (["42", None], [None, "42"])
    assert {row["job"] for row in _told(cortex)["costs"]} == {"one", "two", "six"}
    assert _told(cortex, "--by", "model")["costs"][0]["model"] == "sim"
    assert "search" in cortex("costs", "--by", "team", "--since", "7d").out
    cortex("costs", "--since", "yesterday").refused("--since 'yesterday'", "7d")
    cortex("costs", "--since", "7").refused("--since '7' has no unit: write 7d, 7h")
    assert cortex("costs", "--by", "tem").said() == ["no job has a label 'tem': labels are cost_center, team"]


def test_since_is_when_it_was_spent_not_when_the_job_began(cortex):
    """A job that stops at its cap, rests, and goes on: only what came after counts."""
    requests(Path("in.jsonl"), 60)
    command = ("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, "--job", "a", "--max-output-tokens", "40", "--json")
    first = cortex(*command, "--max-cost", "0.002")
    assert first.code == 3
    time.sleep(0.3)
    now_s = time.time()  # read once: the second may end between two looks at the clock
    between = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now_s)) + f".{int(now_s % 1 * 1000):03d}"
    last = cortex("resume", "a", "--max-cost", "5", "--json").last
    (row,) = _told(cortex, "--since", between)["costs"]
    assert row["cost_usd"] == pytest.approx(last["cost_usd"] - first.last["cost_usd"])
    assert row["rows"] == 60 - first.last["rows_succeeded"]
    assert _told(cortex, "--since", "2099-01-01")["costs"] == []


def test_what_is_removed_forgotten_or_kept_without_text_still_counts(cortex):
    kept = [_ran(cortex, job, "--label", "team=a") for job in ("gone", "lost", "whole")]
    kept.append(_ran(cortex, "quiet", "--label", "team=a", "--no-keep-text"))
    before = _told(cortex, "--by", "team")["costs"]
    assert before[0]["cost_usd"] == pytest.approx(sum(each["cost_usd"] for each in kept)) and before[0]["rows"] == 80
    assert cortex("rm", "gone").code == cortex("forget", "lost").code == 0
    assert _told(cortex, "--by", "team")["costs"] == before
    assert _told(cortex, "--by", "team", "--since", "1h")["costs"] == before
    assert _told(cortex, "--by", "team", "--since", "2099-01-01")["costs"] == []
    assert cortex("rm", "lost", "quiet").code == 0
    assert _told(cortex, "--by", "team")["costs"] == before
    again = _ran(cortex, "gone", "--label", "team=a", "--overwrite")
    now = _told(cortex, "--by", "team")["costs"][0]
    assert now["cost_usd"] == pytest.approx(before[0]["cost_usd"] + again["cost_usd"]) and now["jobs"] == 5


def test_a_fork_does_not_bring_the_bill_of_another_job(cortex):
    flow = Path("flow.py")
    flow.write_text(
        "import cortex\n\n\n@cortex.flow\nasync def main(ctx, question: str = 'why?'):\n"
        "    return [await ctx.ask(f'{question} {n}') for n in range(6)]\n"
    )
    done = cortex("run", "flow.py:main", *PRICED, "--job", "one", "--json").last
    folder = StateFolder(os.environ["CORTEX_STATE"])
    source = folder.journal("one")
    middle = source.seq // 2
    source.close()
    assert cortex("fork", "one", "--at", middle, "--job", "two").code == 0
    by_job = {row["job"]: row["cost_usd"] for row in _told(cortex)["costs"]}
    assert by_job["one"] == pytest.approx(done["cost_usd"]) and by_job.get("two", 0.0) == 0.0


def test_marks_are_kept_by_day():
    spent = [
        costs.DayTotal(at_s, costs.CostTotals(known_nusd=n)) for n, at_s in ((5, 100.0), (9, 90_000.0), (30, 200_000.0))
    ]
    assert costs._between(spent, 0.0).known_nusd == 30
    assert costs._between(spent, 150.0).known_nusd == 25
    assert costs._between(spent, 100_000.0).known_nusd == 21
    assert costs._between(spent, 300_000.0).known_nusd == 0
