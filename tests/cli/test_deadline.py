"""A deadline is watched from the first seconds, and kept: nothing new is begun after it, and the job can be resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.monitoring.deadline_monitor import DeadlineMonitor, risk_words
from tests.cli.cli_runner import each_once, ended, requests, started, until

COUNT = 800
"""Rows that take 80 s by two: more than any deadline here leaves."""
SLOW = ("--model", "sim", "--concurrency", 2, "--sim", "latency_ms=200", "--sim", "latency_spread=0")


def _command(*more: object) -> tuple[object, ...]:
    requests(Path("in.jsonl"), COUNT)
    return ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *SLOW, *more, "--json")


def test_at_risk_is_said_at_once_and_at_the_deadline_the_job_comes_to_rest(cortex):
    with started(*_command("--deadline", "+30s")) as child:
        until(lambda: '"deadline_at_risk":true' in cortex("status", "mine", "--json").out)
        status = cortex("status", "mine", "--json").last
        assert status["projected_end_s"] > status["deadline_at_s"]
        assert "at risk: ends 20" in cortex("status", "mine").out
        assert cortex("set", "mine", "--deadline", "+2s").code == 0
        done = ended(child)
    assert (done.code, done.last["outcome"]) == (3, "partial")
    assert "is at risk: at its rate of late the job ends 20" in done.err
    assert "deadline: 20" in done.err and "has passed" in done.err
    assert done.last["attempts"] == done.last["paid_calls"], "what was under way came home, nothing new was begun"
    status = cortex("status", "mine", "--json").last
    assert status["deadline_at_risk"] is None, "nobody runs it"
    assert status["ended_at_s"] >= status["deadline_at_s"]
    assert done.last["attempts"] <= 2 * (1 + (status["deadline_at_s"] - status["began_at_s"]) / 0.2), "two at once until then"
    assert cortex("resume", "mine", "--deadline", "+1h", "--sim", "latency_ms=0", "--concurrency", 50).code == 0
    each_once(Path("out.jsonl"), COUNT)


@pytest.mark.long
def test_a_deadline_that_is_moved_away_is_at_risk_no_more(cortex):
    with started(*_command("--deadline", "+30s")) as child:
        until(lambda: '"deadline_at_risk":true' in cortex("status", "mine", "--json").out)
        assert cortex("set", "mine", "--deadline", "+2h", "--concurrency", 20).code == 0
        until(lambda: '"deadline_at_risk":false' in cortex("status", "mine", "--json").out or child.poll() is not None)
        done = ended(child)
    assert done.code == 0
    assert "is no longer at risk" in done.err


def test_a_deadline_that_will_be_met_is_no_news(cortex):
    done = cortex(*_command("--deadline", "+2h", "--concurrency", 40))
    assert done.code == 0
    assert "risk" not in done.err
    assert json.loads(done.out.splitlines()[-1])["outcome"] == "complete"
    (line,) = [line for line in cortex("status", "mine").out.splitlines() if line.startswith("deadline")]
    assert line.endswith("after the job's end"), "nothing is counted down"


def _told(risk: bool | None, ends_at_s: float | None = 2_000.0, left_s: float | None = 100.0) -> dict[str, object]:
    return {
        "deadline_at_risk": risk, "projected_end_s": ends_at_s, "deadline_at_s": 1_500.0, "outcome": "running",
        "rate_per_s": 2.0, "left_s": left_s,
    }  # fmt: skip


def test_it_is_said_once_and_taken_back_once_there_is_time_to_spare():
    promise = DeadlineMonitor()
    assert promise.news(_told(None)) == ""
    assert "is at risk: at its rate of late the job ends" in promise.news(_told(True))
    assert promise.news(_told(True)) == ""
    assert promise.news(_told(False, 1_495.0)) == "", "5 s of 100 are too little to speak of"
    assert "is no longer at risk" in promise.news(_told(False, 1_480.0))
    assert "the job stands still" in promise.news(_told(True, None, None))
    assert risk_words(_told(True, None)) == "deadline at risk"
    assert risk_words(_told(False)) == ""
