"""Calls and cost of a job that began anew: totals of all its beginnings, and the part of the earlier ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cortex as public

COMMAND = ("--id", "id", "-o", "o.csv", "--job", "j", "--model", "sim", "--price", "input=3,output=15")
ONE = 0.000063
"""Cost of one call: 6 tokens in and 3 out."""


def _begin(cortex: Any, prompt: str, *more: str) -> Any:
    Path("t.csv").write_text("id,text\n" + "".join(f"{n},text {n}\n" for n in range(4)))
    return cortex("batch", "t.csv", "--prompt", f"{prompt} {{{{text}}}}", *COMMAND, *more)


def _seen(facts: dict[str, Any]) -> tuple[Any, ...]:
    names = "rows_succeeded", "calls", "attempts", "paid_calls", "reused_calls", "calls_before", "input_tokens"
    assert facts["cost_usd"] == pytest.approx(facts["paid_calls"] * ONE)
    assert facts["calls"] == facts["paid_calls"] + facts["reused_calls"]
    return *(facts[name] for name in names), round(facts["cost_before_usd"] / ONE)


def test_calls_and_cost_are_of_all_beginnings_and_the_earlier_part_is_told(cortex: Any) -> None:
    first = _begin(cortex, "A", "--json")
    assert _seen(first.last) == (4, 4, 4, 4, 0, 0, 24, 0)
    assert "began anew" not in first.err
    again = _begin(cortex, "B", "--overwrite")
    assert "4 of 4 rows succeeded, 8 calls, $0.000504, of which 4 calls and $0.000252 before it began anew" in again.err
    reused = _begin(cortex, "A", "--overwrite", "--json")
    last = (4, 12, 8, 8, 4, 8, 48, 8)
    assert _seen(reused.last) == last
    assert _seen(json.loads(cortex("status", "j", "--json").out)) == last
    assert _seen(json.loads(cortex("jobs", "--json").out)["jobs"][0]) == last
    lines = cortex("status", "j").out
    assert "12, 8 attempts, 4 remembered" in lines
    assert "$0.000504; 8 calls and $0.000504 before it began anew" in lines
    assert cortex("report", "j", "-o", "r.html").code == 0
    told = Path("r.html").read_text()
    assert "over 12 calls in 8 attempts. Of this, the job had made 8 calls and $0.000504 before it began anew." in told
    (cost,) = json.loads(cortex("costs", "--json").out)["costs"]
    assert (cost["calls"], cost["cost_usd"]) == (8, pytest.approx(8 * ONE))
    assert cortex("replay", "j").code == 0  # replay takes the same terms as the run had
    fresh = _begin(cortex, "A", "--overwrite", "--fresh", "--json")
    assert _seen(fresh.last) == (4, 16, 12, 12, 4, 12, 72, 8)
    assert _seen(_begin(cortex, "A", "--json").last) == _seen(fresh.last)  # it goes on, and has nothing left to do


def test_the_cap_counts_all_beginnings(cortex: Any) -> None:
    assert _begin(cortex, "A").code == 0
    done = _begin(cortex, "B", "--overwrite", "--max-cost", "0.0003")
    assert done.code == 3 and "0 of 4 rows succeeded, 4 calls, $0.000252, of which 4 calls and $0.000252 before" in done.err


def test_python(cortex: Any) -> None:
    rows = [{"id": str(n), "text": f"text {n}"} for n in range(4)]
    options: Any = {"id": "id", "job": "j", "model": "sim", "price": "input=3,output=15", "progress": False}
    public.batch(rows, "A {{text}}", **options)
    answers = public.batch(rows, "B {{text}}", **options)
    assert (answers.calls, answers.facts["calls_before"], answers.cost_usd) == (8, 4, pytest.approx(8 * ONE))
