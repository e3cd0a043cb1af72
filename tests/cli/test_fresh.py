"""``--fresh`` asks anew, whatever is remembered, and each question once: also where a job is stopped and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_runner import requests

PRICED = ("--model", "sim", "--price", "input=3,output=15", "--max-output-tokens", "4", "--json")


@pytest.mark.parametrize("shards", [(), ("--shards", "2")])
def test_a_fresh_job_that_goes_on_asks_what_is_left_anew_and_nothing_twice(cortex, shards):
    requests(Path("in.jsonl"), 40)
    assert cortex("batch", "in.jsonl", "-o", "first", *PRICED, "--job", "first").last["paid_calls"] == 40
    words = ("batch", "in.jsonl", "-o", "out", *PRICED, "--job", "fresh", "--concurrency", "4", *shards)
    stopped = cortex(*words, "--fresh", "--max-cost", "0.001").last
    assert stopped["outcome"] == "partial" and 0 < stopped["paid_calls"] < 40
    done = cortex("resume", "fresh", "--max-cost", "5", "--json").last
    assert (done["outcome"], done["paid_calls"], done["reused_calls"]) == ("complete", 40, 0)
    again = cortex(*words, "--fresh", "--overwrite").last
    assert (again["paid_calls"], again["reused_calls"]) == (80, 0), "and given once more it begins anew"
