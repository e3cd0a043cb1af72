"""``status`` tells all there is to know of a job, while it runs and when it has ended; ``top`` prints one screen of it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

from actors.driver import live_status
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import ended, requests, started, until

NAP = """
import cortex

@cortex.flow
async def nap(ctx):
    said = await ctx.ask("Answer yes or no: is 3 even?", max_tokens=8)
    await ctx.sleep(600)
    return said

@cortex.flow
async def asks(ctx):
    return await ctx.approved("pay", "the bill")
"""


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def _lines(out: str) -> dict[str, str]:
    return {line[:10].strip(): line[10:] for line in out.splitlines()}


def _published(job: str) -> bool:
    found = live_status.read(_folder(), job)
    return found is not None and bool(found.cortex)


def test_a_job_with_an_open_breaker(cortex):
    requests(Path("in.jsonl"), 40)
    began_s = time.time()
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine", "--sim", "overloaded=1")
    with started(*command, "--concurrency", 8) as child:
        until(lambda: any(each["state"] == "open" for each in _breakers("mine").values()) and _failed("mine") > 0)
        reported = cortex("status", "mine", "--json").last
        shown = _lines(cortex("status", "mine").out)
        screen = cortex("top", "--once").out
        seen = json.loads(cortex("top", "--json").out)
        child.send_signal(signal.SIGINT)
        ended(child)
    name = next(name for name in reported["live"]["breakers"] if name.startswith("route:"))
    assert reported["outcome"] == "running"
    assert reported["live"]["breakers"][name]["state"] in ("open", "half-open")
    assert reported["live"]["breakers"][name]["until_s"] > began_s
    assert began_s < reported["live"]["as_of_s"] < time.time()
    assert "series" not in reported["live"]["routes"][name.removeprefix("route:")]
    assert re.match(
        r"route sim at sim:\w+: (open, probed at 20.*, in \d+ s \(.*failed.*\)|half-open)", shown["breaker"]
    )
    assert re.match(r"(the breaker is open|half open)", shown["waits"])
    assert shown["branches"] == "1 up"
    assert re.match(r"in its process, \d+(\.\d s| min \d\d s) ago", shown["seen"])
    assert re.search(r"(?m)^mine +running", screen)
    assert re.search(r"(?m)^sim at sim:.* (open, probed in|half-open)", screen)
    assert [each["source"] for each in seen["jobs"]] == ["live"]
    assert seen["jobs"][0]["rate_per_s"] == 0
    assert sum(seen["clusters"][0]["routes"][name.removeprefix("route:")]["series"]["failed"]) > 0
    after = cortex("status", "mine", "--json").last
    assert (after["outcome"], after["live"], after["waits"]) == ("partial", None, "")
    assert not _published("mine")


def _breakers(job: str) -> dict[str, dict[str, str]]:
    found = live_status.read(_folder(), job)
    return found.cortex.get("breakers", {}) if found is not None else {}


def _failed(job: str) -> float:
    """Calls that failed in the seconds that are over: the one that runs is in no series yet."""
    found = live_status.read(_folder(), job)
    routes = found.cortex.get("routes", {}) if found is not None else {}
    return sum(sum(each["series"]["failed"]) for each in routes.values())


def test_a_job_that_has_ended(cortex):
    requests(Path("in.jsonl"), 5)
    before = time.time()
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine")
    assert done.code == 0
    reported = cortex("status", "mine", "--json").last
    assert (reported["outcome"], reported["live"], reported["epoch"], reported["limits_by"]) == (
        "complete",
        None,
        1,
        "",
    )
    assert before <= reported["began_at_s"] <= reported["ended_at_s"] <= time.time()
    shown = _lines(cortex("status", "mine").out)
    assert re.fullmatch(r"complete; it ended 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \S+", shown["state"])
    assert shown["rows"] == "5 of 5 succeeded"
    assert {"breaker", "pool", "branches", "seen", "waits", "resume"}.isdisjoint(shown)
    assert re.search(r"(?m)^mine  complete  +5/5  100%", cortex("top", "--once").out)
    assert live_status.published(_folder()) == {}


def test_a_flow_that_sleeps_says_until_when_and_has_no_rows(cortex):
    Path("nap.py").write_text(NAP)
    began_s = time.time()
    with started("run", "nap.py:nap", "--model", "sim", "--job", "mine") as child:
        until(lambda: _published("mine") and live_status.read(_folder(), "mine").facts["sleeps_until_s"] > 0)
        reported, asked_s = cortex("status", "mine", "--json").last, time.time()
        shown = _lines(cortex("status", "mine").out)
        child.send_signal(signal.SIGINT)
        done = ended(child)
    assert began_s < reported["sleeps_until_s"] - 600 <= asked_s
    assert re.fullmatch(r"sleeps until [\d:-]+( [\d:]+)?", shown["waits"])
    assert "rows" not in shown
    assert re.search(r"mine: partial, 1 call, ", done.err)
    assert "no rows" not in done.err


def test_a_job_that_waits_for_an_answer(cortex):
    Path("nap.py").write_text(NAP)
    done = cortex("run", "nap.py:asks", "--model", "sim", "--job", "mine")
    assert done.code == 3
    reported = cortex("status", "mine", "--json").last
    assert reported["awaited"] == ["approval:pay"] or "pay" in reported["awaited"][0]
    assert "cortex approve mine pay" in _lines(cortex("status", "mine").out)["why"]


def test_what_a_person_is_to_approve_is_told_to_its_last_word(cortex):
    about, name = "item, " * 2_000 + "and all backups", "pay-" + "x" * 3_000 + "-twice"
    Path("nap.py").write_text(NAP.replace('"pay", "the bill"', f"{name!r}, {about!r}"))
    assert cortex("run", "nap.py:asks", "--model", "sim", "--job", "mine").code == 3
    assert cortex("approve", "mine").out == f"{name}  {about}\n"


def test_who_set_a_bound_and_when(cortex):
    requests(Path("in.jsonl"), 20)
    command = ("batch", "in.jsonl", "-o", "out", "--model", "sim", "--job", "mine", "--max-job-tokens", 400)
    assert cortex(*command).code == 3
    assert cortex("status", "mine", "--json").last["limits_by"] == ""
    before_s = time.time()
    assert cortex("set", "mine", "--deadline", "+3h").code == 0
    reported = cortex("status", "mine", "--json").last
    assert reported["limits_by"]
    assert before_s <= reported["limits_at_s"] <= time.time()
    text = _lines(cortex("status", "mine").out)["limits"]
    assert re.search(rf"; last set by {reported['limits_by']}, 20\d\d-", text)


def test_a_limit_of_the_folder_is_said_with_who_set_it(cortex):
    requests(Path("in.jsonl"), 20)
    command = ("batch", "in.jsonl", "-o", "out", "--model", "sim", "--job", "mine", "--max-job-tokens", 400)
    assert cortex(*command).code == 3
    assert cortex("limit", "sim", "--rpm", 600).code == 0
    assert re.match(r"rpm 600 by \S+, since 20.*, for sim at sim:", _lines(cortex("status", "mine").out)["by hand"])


def test_the_row_that_failed_last_is_named(cortex):
    Path("rows.jsonl").write_text('{"name": "good"}\n{"name": "bad"}\n')
    Path("one.py").write_text(
        "import cortex\n@cortex.flow\nasync def one(ctx, name):\n"
        "    if name == 'bad': raise ValueError('no such thing')\n"
        "    return await ctx.ask('Answer yes or no: is 3 even?', max_tokens=8)\n"
    )
    done = cortex("run", "one.py:one", "rows.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine")
    assert done.code == 1
    assert re.search(r"(?m)^cortex: rows failed, the last: row 2: .*no such thing", done.err)
    assert cortex("status", "mine", "--json").last["failed_row"] == "2"
    assert "; the last: row 2: " in _lines(cortex("status", "mine").out)["rows"]


def test_top_wants_a_terminal_or_to_be_asked_for_text(cortex, monkeypatch):
    cortex("top").refused("needs a terminal", "--once", "--json")
    shown = cortex("top", "--once")
    assert shown.code == 0
    assert "no jobs yet" in shown.out
    assert json.loads(cortex("top", "--once", "--json").out)["jobs"] == []
    assert not Path(os.environ["CORTEX_STATE"]).exists()


def test_top_says_what_it_cannot_read_and_shows_the_rest(cortex):
    requests(Path("in.jsonl"), 5)
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "good").code == 0
    (_folder().path / "jobs" / "bad.sqlite").write_bytes(b"no journal at all" * 100)
    shown = cortex("top", "--once").out
    assert re.search(r"(?m)^good  +complete", shown)
    assert re.search(r"(?m)^bad  +unreadable", shown)
