"""OpenAI's batch files from end to end: over chat completions as they are, over the Messages API translated."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_runner import Done, each_once, environment, started, until
from tests.cli.test_chat_completions import simulated, stats
from tests.support.patience import PATIENCE_S

KEY = "sk-made-up-of-openai-0123"
TEXT = "Answer with one of: bug, praise.\n\nIt crashes {} times."


def line(key: str, text: str = TEXT, url: str = "/v1/chat/completions", **body: Any) -> str:
    asked = {"model": "gpt-5-mini", "max_tokens": 8, "messages": [{"role": "user", "content": text}]} | body
    return json.dumps({"custom_id": key, "method": "POST", "url": url, "body": asked}) + "\n"


def lines(count: int, **body: Any) -> str:
    return "".join(line(f"r{at}", TEXT.format(at), **body) for at in range(count))


def results(path: str = "out.jsonl") -> dict[str, dict[str, Any]]:
    return {found["custom_id"]: found for found in map(json.loads, Path(path).read_text().splitlines())}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with simulated("error=0") as url:
        yield url


@pytest.fixture
def run(cortex: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run a command with a key: a command takes the keys out of its environment."""

    def with_key(*words: object) -> Done:
        monkeypatch.setenv("CORTEX_SERVER_KEY", KEY)
        return cortex(*words)

    return with_key


def test_a_killed_run_of_a_file_goes_on_and_pays_for_each_line_once(run):
    Path("in.jsonl").write_text(lines(200))
    with simulated("latency_ms=40", "latency_spread=0", "error=0") as url:
        command = ("batch", "in.jsonl", "-o", "out.jsonl", "--base-url", f"{url}/v1", "--concurrency", 8,
                   "--price-as", "gpt-5-mini", "--max-cost", 1)  # fmt: skip
        with started(*command, env=environment(CORTEX_SERVER_KEY=KEY)) as child:
            until(lambda: Path("out.jsonl").exists() and len(Path("out.jsonl").read_text().splitlines()) >= 40)
            child.kill()
            child.wait()
        done = run(*command, "--json")
        seen = stats(url)
    assert (done.code, done.last["rows_succeeded"]) == (0, 200), done.err
    assert "no Messages API" not in done.err
    each_once(Path("out.jsonl"), 200)
    assert seen["complete_answers"] <= 208, "a crash re-pays at most what was in flight"
    route = run("status", done.last["job"], "--json").last["route"]
    assert route == f"gpt-5-mini at openai://+{url}", "chat completions are preferred for these lines"
    found = results()["r7"]
    assert list(found) == ["id", "custom_id", "response", "error"]
    body = found["response"]["body"]
    assert (found["response"]["status_code"], found["response"]["request_id"], found["error"]) == (200, body["id"], None)
    said = body["choices"][0]["message"]["content"]
    assert body["object"] == "chat.completion" and said in ("bug", "praise")
    run("results", done.last["job"], "-o", "copy.csv")
    assert f"r7,{said}," in Path("copy.csv").read_text()


@pytest.mark.parametrize("where", [("--api", "chat"), ("--api", "messages"), ()])
def test_results_are_completions_over_each_road(run, server, where):
    Path("in.jsonl").write_text(lines(3) + line("long", max_tokens=None, max_completion_tokens=9_000))
    there = ("--base-url", server) if where else ("--model", "sim")
    done = run("batch", "in.jsonl", "-o", "out.jsonl", *there, *where, "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 4), done.err
    from openai.types.chat import ChatCompletion

    for found in results().values():
        completion = ChatCompletion.model_validate(found["response"]["body"])
        assert completion.object == "chat.completion" and completion.choices[0].message.content in ("bug", "praise")
        assert completion.choices[0].finish_reason == "stop" and completion.usage is not None


def test_a_server_that_has_both_apis_is_asked_over_chat_completions(run, server):
    Path("in.jsonl").write_text(lines(2))
    assert run("batch", "in.jsonl", "-o", "out.jsonl", "--base-url", server, "--job", "j").code == 0
    assert " at openai://" in run("status", "j").out


def test_each_record_is_accounted_for(run, server):
    rows = [line("a"), "no json\n", line("a"), line("b", url="/v1/responses"), line("c", n=2), line("d"),
            line("e", messages=[{"role": "bot", "content": "x"}])]  # fmt: skip
    Path("in.jsonl").write_text("".join(rows))
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--base-url", server, "--api", "chat", "--job", "j", "--json")
    assert run(*job).code == 2, "more than 1 % is unreadable"
    done = run(*job, "--accept-bad", "50%", "--bad", "bad.jsonl")
    assert done.code == 1, done.err
    counts = [done.last[name] for name in ("rows", "rows_succeeded", "rows_failed", "rows_unreadable")]
    assert counts == [7, 2, 3, 2]
    found = results()
    assert sorted(found) == ["a", "b", "c", "d", "e"]
    assert found["a"]["response"]["status_code"] == 200
    assert found["b"]["response"] is None and found["b"]["error"]["code"] == "invalid_request_error"
    assert 'url is "/v1/responses"' in found["b"]["error"]["message"]
    assert found["e"]["error"] is None and found["e"]["response"]["status_code"] == 400
    assert found["e"]["response"]["body"]["error"]["message"]
    bad = [json.loads(each) for each in Path("bad.jsonl").read_text().splitlines()]
    assert [each["line"] for each in bad] == [2, 3]


def test_what_a_road_has_not_is_refused_before_it_is_asked(run, server):
    Path("in.jsonl").write_text(line("a") + line("b", seed=3))
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--base-url", server, "--json")
    over_messages = run(*job, "--api", "messages", "--job", "m")
    assert (over_messages.code, over_messages.last["rows_succeeded"]) == (2, 1)
    assert "seed: the Messages API has no such field: leave it out, or ask a server of chat" in over_messages.err
    over_chat = run(*job[:3], "chat.jsonl", *job[4:], "--api", "chat", "--job", "c")
    assert (over_chat.code, over_chat.last["rows_succeeded"]) == (0, 2), over_chat.err


def test_a_fallback_over_the_other_api_takes_what_it_can(run):
    Path("in.jsonl").write_text(lines(2) + line("seed", seed=3))
    with simulated("overloaded=1", api="chat") as broken, simulated("error=0", api="messages") as other:
        done = run("batch", "in.jsonl", "-o", "out.jsonl", "--api", "chat", "--base-url", broken, "--json",
                      "--fallback", f"gpt-5-mini@{other}")  # fmt: skip
    assert (done.last["rows_succeeded"], done.last["rows_failed"]) == (2, 1), done.err
    found = results()
    assert found["r0"]["response"]["body"]["object"] == "chat.completion"
    assert "seed: the Messages API has no such field" in found["seed"]["error"]["message"]


def test_into_a_table_and_from_standard_input(run, server):
    Path("in.jsonl").write_text(lines(3))
    done = run("batch", "in.jsonl", "-o", "out.csv", "--base-url", server, "--api", "chat", "--ordered")
    assert done.code == 0, done.err
    with open("out.csv", newline="") as file:
        answers = [(row["custom_id"], row["answer"] in ("bug", "praise"), row["error"]) for row in csv.DictReader(file)]
    assert answers == [(f"r{at}", True, "") for at in range(3)]
    given = Path("in.jsonl").read_text()
    with started("batch", "-", "-o", "-", "--model", "sim", "--ordered", stdin=subprocess.PIPE) as child:
        out, err = child.communicate(given, timeout=PATIENCE_S)
    assert child.returncode == 0, err
    assert [json.loads(each)["custom_id"] for each in out.splitlines()] == ["r0", "r1", "r2"]


def test_shards_plan_retry_and_replay_know_the_form(run):
    Path("in.jsonl").write_text(lines(6) + line("cut", max_tokens=1))
    plan = run("plan", "in.jsonl", "--model", "sim", "--json")
    assert plan.code == 0, plan.err
    done = run("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--shards", 2, "--job", "s", "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 7), done.err
    assert {found["response"]["status_code"] for found in results().values()} == {200}
    again = run("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--shards", 2, "--job", "s")
    assert again.code == 0 and "is already complete" in again.err
