"""A provider that bills more than was reserved: the cap, the words, the exit code."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.cli_runner import requests

PRICED = ("--model", "sim", "--price", "input=3,output=15", "--max-output-tokens", "40")
DEAR = ("--sim", "billed_times=300")
FRONT = ("--sim", "billed_more=7552")


def test_a_cap_that_was_passed_is_said_and_the_exit_code_is_3(cortex):
    requests(Path("in.jsonl"), 4)
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *PRICED, *DEAR, "--max-cost", "0.01", "--job", "j", "--json")
    assert done.code == 3
    last = done.last
    assert (last["outcome"], last["rows_succeeded"], last["replies_over_reserved"]) == ("complete", 4, 4)
    assert last["cost_over_cap_usd"] > 0.01
    said = next(line for line in done.said() if line.startswith("--max-cost was passed by $"))
    assert "4 replies cost more than was reserved, up to " in said
    logged = [json.loads(line) for line in done.err.splitlines() if line.startswith('{"time":')]
    warned = [each for each in logged if each.get("event") == "job.overbilled"]
    assert warned and all(each["level"] == "warning" for each in warned)
    status = cortex("status", "j")
    assert "--max-cost was passed by $" in status.out


def test_one_call_at_a_time_after_the_first_dear_bill_keeps_the_rest_unpaid(cortex):
    requests(Path("in.jsonl"), 60)
    words = ("batch", "in.jsonl", "-o", "out.jsonl", *PRICED, *FRONT, "--max-cost", "0.3", "--concurrency", "5")
    done = cortex(*words, "--json")
    last = done.last
    assert done.code == 3 and last["outcome"] == "partial"
    assert last["cost_usd"] <= 0.3 + 5 * 7_552 * 3e-6 and last["rows_succeeded"] < 20


def test_bills_within_their_bounds_say_nothing(cortex):
    requests(Path("in.jsonl"), 4)
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *PRICED, "--max-cost", "1", "--json")
    assert done.code == 0 and (done.last["replies_over_reserved"], done.last["cost_over_cap_usd"]) == (0, 0.0)
    assert not any("reserved" in line for line in done.said())
