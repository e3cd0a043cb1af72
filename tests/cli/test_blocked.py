"""A blocked account pauses the job and fails no row: what is said, and that a resumed job tries one call first."""

from __future__ import annotations

import re
import time
from pathlib import Path

from tests.cli.cli_runner import each_once, request, requests

COUNT = 40
SIM = ("--model", "sim", "--job", "mine")


def _begun(cortex, *settings: str):
    requests(Path("in.jsonl"), COUNT)
    more = [each for setting in settings for each in ("--sim", setting)]
    return cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, *more, "--json")


def test_no_credit_and_then_credit(cortex):
    done = _begun(cortex, "credit_calls=15")
    last = done.last
    assert (done.code, last["outcome"], last["rows_succeeded"], last["rows_failed"]) == (3, "partial", 15, 0)
    lines = done.said()
    assert "credit balance is too low" in lines[-3]
    assert "no row failed: " in lines[-3]
    assert "then resume: one call is sent first, the rest after its answer" in lines[-3]
    assert lines[-1] == "to go on: cortex resume mine"
    shown = cortex("status", "mine", "--json").last
    assert shown["why"].startswith("blocked: ")
    assert shown["waits"] == ""

    before = last["attempts"]
    again = cortex("resume", "mine", "--sim", "credit_calls=0", "--json")  # no top-up: one call finds out
    assert (again.code, again.last["rows_succeeded"], again.last["rows_failed"]) == (3, 15, 0)
    assert again.last["attempts"] == before + 1

    rest = cortex("resume", "mine", "--sim", "latency_ms=0", "--json")
    assert (rest.code, rest.last["rows_succeeded"], rest.last["paid_calls"]) == (0, COUNT, COUNT)
    each_once(Path("out.jsonl"), COUNT)


def test_a_wait_beyond_patience_pauses_the_job_with_the_time(cortex):
    done = _begun(cortex, "throttled=1", "throttled_retry_after_s=7200")
    assert (done.code, done.last["outcome"], done.last["rows_failed"]) == (3, "partial", 0)
    assert re.search(
        r"throttled: .*; the provider names the time: 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d .*resume it then", done.err
    )
    shown = cortex("status", "mine", "--json").last
    assert 7_000 < shown["paused_until_s"] - time.time() <= 7_200
    rest = cortex("resume", "mine", "--sim", "latency_ms=0")
    assert rest.code == 0
    each_once(Path("out.jsonl"), COUNT)


def _short_job_s(cortex) -> float:
    """How long a job takes of which the provider takes no time."""
    requests(Path("short.jsonl"), 2)
    began_s = time.monotonic()
    command = ("batch", "short.jsonl", "-o", "short.out", "--model", "sim", "--job", "short", "--state", "other")
    assert cortex(*command).code == 0
    return time.monotonic() - began_s


def test_a_deadline_ends_a_job_partial_and_a_later_one_goes_on(cortex):
    deadline_s = 1 + 4 * _short_job_s(cortex)  # on a slow machine a second is over before the first call
    requests(Path("in.jsonl"), COUNT)
    slow = ("--concurrency", 2, "--sim", f"latency_ms={100 * deadline_s:.0f}", "--sim", "latency_spread=0")
    slow += ("--deadline", f"+{deadline_s:.2f}s")  # half of what the rows take by two
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, *slow, "--json")
    last = done.last
    assert (done.code, last["outcome"], last["rows_failed"]) == (3, "partial", 0)
    assert 2 <= last["rows_succeeded"] < COUNT
    assert last["attempts"] == last["paid_calls"]  # what was in flight was finished
    assert re.search(r"deadline: 20.* has passed; resume with a later --deadline", done.err)
    assert done.said()[-1] == "to go on: cortex resume mine --deadline +2h"
    rest = cortex("resume", "mine", "--deadline", "+6h", "--sim", "latency_ms=0")
    assert rest.code == 0
    assert rest.said()[-2].endswith(", rests included")
    each_once(Path("out.jsonl"), COUNT)


def test_a_job_that_mostly_fails_stops_and_goes_on_when_its_user_says_so(cortex):
    long = "word " * 500
    lines = [request(f"r{row}", long if row % 2 else f"short {row}") for row in range(200)]
    Path("in.jsonl").write_text("\n".join(lines))
    bounds = ("--concurrency", 4, "--prompt-tokens-max", 200, "--max-failed", "20%")
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, *bounds, "--json")
    last = done.last
    assert (done.code, last["outcome"]) == (3, "partial")
    assert 20 <= last["rows_succeeded"] + last["rows_failed"] < 60
    assert re.search(r"max_failed: \d+ of \d+ finished rows failed \(too_large \d+\), 0.2 may", done.err)
    rest = cortex("resume", "mine", "--max-failed", "none", "--json")
    assert rest.code == 1
    assert (rest.last["rows_succeeded"], rest.last["rows_failed"]) == (100, 100)
    each_once(Path("out.jsonl"), 200)


def test_when_the_first_rows_all_fail_alike_it_stops_unasked(cortex):
    Path("in.jsonl").write_text("\n".join(request(f"r{row}", "word " * 500) for row in range(120)))
    done = cortex(
        "batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--concurrency", 4, "--prompt-tokens-max", 200, "--json"
    )
    assert (done.code, done.last["outcome"]) == (3, "partial")
    assert 50 <= done.last["rows_failed"] < 60
    assert re.search(r"alike: all of the first 5\d rows failed alike, too_large", done.err)
    again = cortex("resume", "mine", "--json")  # so it is said to go on, until as many more have failed alike
    assert (again.code, again.last["rows_failed"] // 10) == (3, 10)
    rest = cortex("resume", "mine", "--json")
    assert (rest.code, rest.last["rows_failed"]) == (1, 120)


def test_work_moves_to_the_fallback_when_the_provider_fails(cortex):
    requests(Path("in.jsonl"), COUNT)
    failing = ("--sim", "overloaded=1", "--sim", "latency_ms=30", "--fallback", "sim,seed=2")
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, *failing, "--json")
    assert (done.code, done.last["rows_succeeded"], done.last["paid_calls"]) == (0, COUNT, COUNT)
    assert done.last["elapsed_s"] < 30  # nothing sat out the waits of the route that it left
    each_once(Path("out.jsonl"), COUNT)
    shown = cortex("status", "mine", "--json").last
    assert shown["route"].endswith("(fallback 1)")
