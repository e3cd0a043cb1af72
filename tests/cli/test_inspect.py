"""``inspect JOB GOAL`` tells what was asked, what came of it and why; ``--failed`` and ``--at``: from the journal alone."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.cli.inspection import show
from actors.journal.journal import Journal, StateFolder
from cortex.journal import codec
from cortex.state import events
from tests.cli.cli_runner import requests

PROGRAMS = '''
import cortex


@cortex.tool
def measured(word: str) -> int:
    return len(word)


@cortex.flow
async def inner(ctx, n: int):
    return await ctx.ask(f"inner {n}")


@cortex.flow
async def tale(ctx, steps: int = 3):
    told = [await ctx.ask(f"step {step}") for step in range(steps)]
    told.append(await ctx.run(measured, "four"))
    return [*told, await ctx.run(inner(n=1))]


@cortex.flow
async def asks(ctx):
    return await ctx.wait("ship", returns=bool)


class Picky(cortex.Program):
    """No reply is good enough."""

    def begin(self, k):
        yield cortex.Goal("g", "Answer yes or no: is 4 an even number?")

    def select(self, k):
        for goal in k.open("g"):
            yield cortex.Ask(goal, cortex.Prompt("picky", (cortex.Part(cortex.Role.GOAL, goal.value),)))

    def absorb(self, k, goal, reply):
        raise cortex.Malformed(f"not good enough: {reply.text}")


class Parts(cortex.Program):
    """A prompt of which not all fits."""

    def begin(self, k):
        yield cortex.Goal("g")

    def select(self, k):
        parts = (
            cortex.Part(cortex.Role.SYSTEM, "Be short.", 9),
            cortex.Part(cortex.Role.GOAL, "What is it?", 9),
            cortex.Part(cortex.Role.DOCUMENT, "long " * 300, 1, cortex.Rule.DROP, "the long one"),
            cortex.Part(cortex.Role.DOCUMENT, "tale " * 300, 2, cortex.Rule.CUT, "the tale"),
        )
        for goal in k.open():
            yield cortex.Ask(goal, cortex.Prompt("framed", parts))

    def absorb(self, k, goal, reply):
        yield cortex.Resolve(goal, reply.text)


class Big(cortex.Program):
    """Too large at first, and smaller when it is told so."""

    def begin(self, k):
        yield cortex.Goal("g")

    def select(self, k):
        for goal in k.open("g"):
            text = "word " * (3_000 // (1 + goal.too_large))
            yield cortex.Ask(goal, cortex.Prompt("big", (cortex.Part(cortex.Role.GOAL, text),)))

    def absorb(self, k, goal, reply):
        yield cortex.Resolve(goal, reply.text)


class Poll(cortex.Program):
    """Votes."""

    def begin(self, k):
        yield cortex.Goal("g", "Answer yes or no: is 4 an even number?")

    def select(self, k):
        for goal in k.open("g"):
            prompt = cortex.Prompt("poll", (cortex.Part(cortex.Role.GOAL, goal.value),))
            yield cortex.Vote(goal, prompt, k=2, output_tokens_max=20)

    def absorb(self, k, goal, reply):
        yield cortex.Resolve(goal, reply.text)
'''
SIM = ("--model", "sim", "--sim", "error=0", "--price", "input=3,output=15")


@pytest.fixture(autouse=True)
def programs(cortex) -> None:
    """A file of programs in the working folder."""
    Path("own.py").write_text(PROGRAMS)


def _run(cortex, name: str, *more: object, code: int = 0) -> None:
    done = cortex("run", f"own.py:{name}", *SIM, "--job", name, *more)
    assert done.code == code, done.err


def _story(cortex, job: str, subject: object) -> dict[str, Any]:
    done = cortex("inspect", job, subject, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def _whats(story: dict[str, Any]) -> list[str]:
    return [each["what"] for each in story["entries"]]


def _of(story: dict[str, Any], what: str) -> list[dict[str, Any]]:
    return [each for each in story["entries"] if each["what"] == what]


def test_a_goal_that_was_tried_again_tells_each_attempt_and_why_it_waited(cortex):
    requests(Path("in.jsonl"), 40)
    run = ("batch", "in.jsonl", "-o", "out", *SIM, "--sim", "overloaded=0.3", "--sim", "seed=3", "--job", "rows")
    assert cortex(*run).code == 0
    source = StateFolder(os.environ["CORTEX_STATE"]).journal("rows")
    broke = next(
        event
        for _, turn in source.turns()
        for b in turn.batches
        for event in b
        if isinstance(event, events.AttemptFailed)
    )
    source.close()
    story = _story(cortex, "rows", f"goal:{broke.goal}")
    assert story == _story(cortex, "rows", broke.sample)  # by its custom_id
    first, second = _of(story, "asked")[:2]
    assert (first["attempt"], second["attempt"], first["call"]) == (1, 2, f"rows/{broke.goal}/{broke.sample}")
    assert first["request"]["messages"] and first["request"] == second["request"]
    assert first["ledger"]["reserved_usd"] > 0 and first["leave"]["permits"] >= first["leave"]["in_flight"] > 0
    (failed, *_), (retry, *_), (wait, *_) = _of(story, "broke"), _of(story, "retry"), _of(story, "backoff")
    assert (failed["kind"], failed["status"]) == ("overloaded", 529)
    assert (retry["again"], retry["failed_attempts"], retry["retries_allowed"] >= 20) == (True, 1, True)
    assert 0 < wait["wait_s"] <= 0.5 and second["at_s"] >= wait["until_s"] - 1e-6
    assert _of(story, "answered")[0]["reply"]["text"] in ("bug", "praise")
    assert _whats(story)[-1] == "ended" and story["goal"]["status"] == "resolved"
    text = cortex("inspect", "rows", f"goal:{broke.goal}").out
    assert "the same request as in turn" in text and "decided: a retry: overloaded at attempt 1 of 8" in text
    assert f"goal {broke.goal} (row {broke.sample}) of rows" in text


def test_a_prompt_tells_its_parts_its_constructor_and_what_was_left_out(cortex):
    _run(cortex, "Parts", "--prompt-tokens-max", 600)
    (asked,) = _of(_story(cortex, "Parts", 1), "asked")
    prompt = asked["prompt"]
    assert (prompt["constructor"], prompt["prompt_tokens_max"], prompt["parts_max"]) == ("framed", 600, 200)
    fates = {part["title"] or part["role"]: part["fate"] for part in prompt["parts"]}
    assert fates == {"system": "sent", "goal": "sent", "the long one": "left out", "the tale": "cut"}
    assert prompt["left_out"] == ["the long one", "the tale: cut"]
    cut = next(part for part in prompt["parts"] if part["fate"] == "cut")
    sent = asked["request"]["messages"][0]["content"]
    assert 0 < cut["bytes_sent"] < cut["bytes"] == 1_500 and sent.count("tale ") >= cut["bytes_sent"] // 5
    assert asked["request"]["system"] == "Be short."
    text = cortex("inspect", "Parts", 1).out
    assert "left out    the long one" in text and "constructor framed: 4 parts" in text


def test_a_prompt_that_does_not_fit_tells_the_bounds_and_what_was_asked_instead(cortex):
    _run(cortex, "Big", "--prompt-tokens-max", 4_000)
    story = _story(cortex, "Big", 1)
    (refused,), (asked,) = _of(story, "too_large"), _of(story, "asked")
    prompt = refused["prompt"]
    assert (prompt["fits"], prompt["prompt_tokens_max"], prompt["parts"][0]["fate"]) == (False, 4_000, "not sent")
    assert prompt["tokens_estimated_before"] > 4_000 >= asked["prompt"]["tokens_estimated"]
    assert asked["prompt_tokens_bound"] > asked["prompt_tokens_max"] == 4_000
    text = cortex("inspect", "Big", 1).out
    assert "does not fit: it was about" in text and "the provider's own counter decides" in text


def test_a_breaker_that_opens_is_told_with_what_it_saw_and_where_the_call_went(cortex):
    requests(Path("in.jsonl"), 30)
    run = ("batch", "in.jsonl", "-o", "out", "--model", "sim", "--sim", "overloaded=1", "--fallback", "sim,seed=2")
    assert cortex(*run, "--job", "rows").code == 0
    story = _story(cortex, "rows", "r3")
    first, *_, last = _of(story, "asked")
    (passed,) = last["passed_over"]
    assert first["route"] == passed["route"] != last["route"]
    assert "the breaker is open" in passed["why"]["why"] and passed["why"]["permits"] == 0
    assert "passed      " in cortex("inspect", "rows", "r3").out


def test_tools_child_jobs_and_where_in_the_source_they_are_awaited(cortex):
    _run(cortex, "tale")
    line = 1 + PROGRAMS.splitlines().index('    told.append(await ctx.run(measured, "four"))')
    tool = _story(cortex, "tale", 5)
    assert tool["entries"][0]["awaited_at"] == f"own.py:{line}"
    assert (_of(tool, "runs_tool")[0]["arguments"], _of(tool, "observed")[0]["value"]) == ({"word": "four"}, 4)
    child = _story(cortex, "tale", 6)
    assert (_of(child, "launches")[0]["job"], _of(child, "returned")[0]["value"]) == ("tale~6", "inner 1")
    below = _story(cortex, "tale~6", "call:2/0")
    assert _of(below, "asked")[0]["call"] == "tale~6/2/0" == below["subject"]["call"]
    assert not below["note"]
    assert _story(cortex, "tale~6", "tale~6/2/0") == below == _story(cortex, "tale", "tale~6/2/0")


def test_votes_are_told_with_the_goal_that_they_are_on(cortex):
    _run(cortex, "Poll")
    story = _story(cortex, "Poll", 1)
    (tally,) = _of(story, "tally")[-1:]
    assert (tally["more_needed"], tally["must_be_ahead_by"]) == (0, 2) and tally["ahead_by"] >= 2
    asked = _of(story, "asked")
    assert len(asked) == sum(each["votes"] for each in tally["counts"])
    assert {each["goal"] for each in asked} == {vote for each in _of(story, "round") for vote in each["votes"]}
    assert _of(story, "round")[0]["prompt"]["constructor"] == "poll"
    assert "tally: " in cortex("inspect", "Poll", 1).out


def test_a_refused_reply_tells_why_and_which_sample_is_next(cortex):
    _run(cortex, "Picky", code=1)
    story = _story(cortex, "Picky", 1)
    resamples = _of(story, "resample")
    assert [each["next_sample"] for each in resamples] == [1, 2, 3, 4, -1]
    assert (resamples[0]["resamples"], resamples[0]["resamples_max"]) == (1, 4)
    assert resamples[0]["why"].startswith("not good enough: ")
    assert story["goal"]["failure"]["kind"] == "malformed"
    alone = _story(cortex, "Picky", "call:1/3")
    assert [each["sample"] for each in _of(alone, "asked")] == ["3"]
    assert [each["next_sample"] for each in _of(alone, "resample")] == [4]
    (listed,) = (json.loads(line) for line in cortex("inspect", "Picky", "--failed", "--json").out.splitlines())
    assert (listed["goal"], listed["failure"]["kind"], listed["attempts"]) == (1, "malformed", 5)
    done = cortex("inspect", "Picky", "--failed")
    assert "1 failed of the goals and rows of Picky" in done.err and "goal:1 " in done.out


def test_a_remembered_reply_tells_who_paid_for_it(cortex):
    _run(cortex, "tale")
    assert cortex("run", "own.py:tale", *SIM, "--job", "again").code == 0
    (recalled,) = _of(_story(cortex, "again", 2), "recalled")
    assert recalled["paid_by"] == "tale" and recalled["paid_at_s"] > 1e9
    assert "tale had paid for the same question at " in cortex("inspect", "again", 2).out


def test_a_wait_for_an_answer_from_outside(cortex):
    _run(cortex, "asks", code=3)
    done = cortex("inspect", "asks")
    assert "the job ends: partial" in done.out and "waits for an answer: ship" in done.err
    assert _story(cortex, "asks", 2)["goal"]["expects"] == "ship"
    assert cortex("answer", "asks", "ship=true").code == 0
    assert cortex("resume", "asks").code == 0
    story = _story(cortex, "asks", 2)
    (facts,) = _of(story, "told")
    assert (facts["name"], facts["value"], _whats(story)[-1]) == ("ship", True, "ended")


def test_what_the_cap_refused_tells_what_was_committed(cortex):
    requests(Path("in.jsonl"), 20)
    assert cortex("batch", "in.jsonl", "-o", "out", *SIM, "--job", "poor", "--max-cost", "0.002").code == 3
    source = StateFolder(os.environ["CORTEX_STATE"]).journal("poor")
    source.close()
    found = [_story(cortex, "poor", f"goal:{goal}") for goal in range(1, 21)]
    seen = [each for story in found for each in _of(story, "over_budget")]
    assert seen
    for each in seen:
        ledger = each["ledger"]
        committed = ledger["known_usd"] + ledger["assumed_usd"] + ledger["reserved_usd"]
        assert committed <= ledger["cap_usd"] < committed + each["next"]["usd"]


def test_a_name_that_may_be_two_things_is_said(cortex):
    lines = Path("in.jsonl")
    requests(lines, 3)
    lines.write_text(lines.read_text().replace('"r0"', '"2"').replace('"r2"', '"1/x"'))
    assert cortex("batch", lines, "-o", "out", *SIM, "--job", "two").code == 0
    cortex("inspect", "two", "2").refused("give goal:2 or row:2")
    assert _story(cortex, "two", "row:2")["goal"]["goal"] == 1
    assert _story(cortex, "two", "goal:2")["goal"]["row"] == "r1"
    cortex("inspect", "two", "1/x").refused("give call:1/x or row:1/x")
    cortex("inspect", "two", "nobody").refused("no goal, call or row 'nobody'", "--failed")
    cortex("inspect", "two", "99").refused("two has no 99")
    cortex("inspect", "two", "--from", "9999").refused("and no turn 9,999")
    cortex("inspect", "two", "--failed", "2").refused("--failed")


def test_a_number_that_is_the_row_and_its_goal_is_one_thing_and_what_is_listed_is_taken(cortex, monkeypatch):
    Path("rows.csv").write_text("text\na\nb\nc\n")
    assert cortex("batch", "rows.csv", "-o", "out.jsonl", "--prompt", "Say {{text}}", *SIM, "--job", "t").code == 0
    assert _story(cortex, "t", 2)["goal"]["row"] == "2"
    assert _story(cortex, "t", 2)["entries"] == _story(cortex, "t", "row:2")["entries"]
    failing = ("--prompt", "Name {{text}}", "--model", "sim", "--sim", "refusal=1", "--job", "mal")
    assert cortex("batch", "rows.csv", "-o", "mal.jsonl", *failing).code == 1
    listed = cortex("inspect", "mal", "--failed")
    assert "`cortex inspect mal goal:N` shows" in listed.err
    for line in listed.out.splitlines():
        assert cortex("inspect", "mal", line.split()[0]).code == 0, line
        assert re.fullmatch(r"goal:\d +row \d +turn +\d+   1 attempts  refused: .*", line), line
    assert cortex("inspect", "mal", "--failed", "--count", 2).out == listed.out, "for a program, a line each"
    grouped = cortex("inspect", "mal", "--failed", "--grouped")
    assert len(grouped.out.splitlines()) == 1 and "e.g. row " in grouped.out
    assert "a pipe without --grouped lists all" in grouped.err
    monkeypatch.setattr(show, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    assert len(cortex("inspect", "mal", "--failed").out.splitlines()) == 3
    many = cortex("inspect", "mal", "--failed", "--count", 2)
    assert many.out == grouped.out and "--count 3, or a pipe, lists all" in many.err
    cortex("inspect", "mal", "--grouped").refused("give it with --failed")
    cortex("inspect", "mal", "--failed", "--grouped", "--json").refused("without --json")


def test_a_row_that_was_refused_says_so(cortex):
    requests(Path("in.jsonl"), 3)
    with Path("in.jsonl").open("a") as more:
        more.write('{"custom_id": "bad", "params": {"model": "m", "max_tokens": 5}}\n')
    assert cortex("batch", "in.jsonl", "-o", "out", *SIM, "--job", "rows").code == 2
    story = _story(cortex, "rows", "bad")
    assert _whats(story) == ["row_refused"] and "messages" in story["entries"][0]["why"]
    (line,) = cortex("inspect", "rows", "--failed", "--json").out.splitlines()
    assert json.loads(line)["row"] == "bad"


def test_k_as_it_was_is_k_as_a_replay_has_it(cortex):
    _run(cortex, "tale", "--sim", "overloaded=0.2")
    source = StateFolder(os.environ["CORTEX_STATE"]).journal("tale")
    for at in range(1, source.seq + 1):
        found = json.loads(cortex("inspect", "tale", "--at", at, "--json").out)
        turn = next(turn for seq, turn in source.turns(at - 1))
        account = codec.decode_account(source.account(at))
        assert (found["turn"], found["at_s"]) == (at, turn.at_s)
        assert found["goals"]["made"] == account.next_goal - 1
        assert round(found["ledger"]["known_usd"] * 1e9) == account.ledger.known_nusd
        assert round(found["ledger"]["reserved_usd"] * 1e9) == account.ledger.reserved_nusd
        assert found["ledger"]["attempts"] == account.ledger.attempts
    seq = source.seq
    source.close()
    assert "state       complete" in cortex("inspect", "tale", "--at", seq).out
    asked = next(each for each in _story(cortex, "tale", 2)["entries"] if each["what"] == "asked")
    then = json.loads(cortex("inspect", "tale", 2, "--at", asked["turn"], "--json").out)
    assert (then["status"], then["in_flight"][0]["call"]) == ("asked", "tale/2/0")
    cortex("inspect", "tale", "--at", 9_999).refused("and no turn 9,999")


def test_snapshots_shorten_the_way_and_change_nothing(cortex):
    requests(Path("in.jsonl"), 60)
    assert (
        cortex(
            "batch", "in.jsonl", "-o", "out", *SIM, "--sim", "overloaded=0.2", "--job", "rows", "--concurrency", 4
        ).code
        == 0
    )
    entries = [_story(cortex, "rows", f"goal:{goal}") for goal in (1, 30, 60)]
    source: Journal = StateFolder(os.environ["CORTEX_STATE"]).journal("rows")
    moments = (5, source.seq // 2)  # the more events come at one moment, the fewer turns there are
    then = [json.loads(cortex("inspect", "rows", "--at", at, "--json").out) for at in moments]
    k = None
    for seq, turn in source.turns():
        k = codec.replay(k, [turn], _batch)
        if seq % 3 == 0:
            source.snapshot(seq, k.emitted, codec.encode_state(k))
    source.close()
    assert entries == [_story(cortex, "rows", f"goal:{goal}") for goal in (1, 30, 60)]
    assert then == [json.loads(cortex("inspect", "rows", "--at", at, "--json").out) for at in moments]


def _batch(terms: Any) -> Any:
    from actors.programs.loader import load

    return load(terms.program, terms.params_json)


def test_a_program_that_has_changed_leaves_what_the_events_say(cortex, monkeypatch):
    _run(cortex, "tale")
    (asked,) = _of(_story(cortex, "tale", 2), "asked")
    Path("own.py").write_text(PROGRAMS.replace("step {step}", "stage {step}"))
    monkeypatch.setattr("actors.programs.loader._known", {})  # as in a later process
    done = cortex("inspect", "tale", 2)
    assert "only data of the journal is shown" in done.err
    assert "made by a flow: kind ask" in done.out and "was answered by" in done.out and "step 0" in done.out
    assert cortex("inspect", "tale", "--failed").code == 0
    found = json.loads(cortex("inspect", "tale", "--at", asked["turn"], "--json").out)
    assert found["note"] and found["ledger"]["attempts"] >= 1
    assert cortex("inspect", "tale").code == 0


def test_what_would_steer_a_terminal_is_written_out(cortex):
    text = "Repeat: \u001b[31mred\u001b]0;title\u0007 \u202eback"
    lines = json.dumps(
        {"custom_id": "x", "params": {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": text}]}}
    )
    Path("in.jsonl").write_text(lines + "\n")
    assert cortex("batch", "in.jsonl", "-o", "out", *SIM, "--job", "rows").code == 0
    out = cortex("inspect", "rows", "x").out
    assert "\\x1b[31mred\\x1b]0;title\\x07 \\u202eback" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


def test_a_running_job_is_looked_at_without_touching_it(cortex):
    requests(Path("in.jsonl"), 20)
    assert cortex("batch", "in.jsonl", "-o", "out", *SIM, "--job", "poor", "--max-job-tokens", 400).code == 3
    folder = StateFolder(os.environ["CORTEX_STATE"])
    source = folder.journal("poor")
    before = (source.seq, source.meta("epoch"))
    for arguments in (("poor",), ("poor", "r0"), ("poor", "--failed"), ("poor", "--at", 2)):
        assert cortex("inspect", *arguments).code == 0
    assert (source.seq, source.meta("epoch")) == before
    source.close()
