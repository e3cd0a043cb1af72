"""Jobs over OpenAI's chat completions and Responses, from end to end: what holds over the Messages API holds over these."""

from __future__ import annotations

import csv
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.cli.jobs.settings import changed_model_spec, named_provider
from actors.cli.options.options import Options
from actors.routing.routes import ModelSpec
from tests.cli.cli_runner import Done, each_once, environment, request, requests, started, until
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import http

KEY = "sk-made-up-of-openai-0123"
ROWS = 200


@contextmanager
def simulated(*settings: str, api: str = "") -> Iterator[str]:
    """A simulated provider in its own process: its URL."""
    more = ("--api", api) if api else ()
    with started("simulate", "--port", 0, *more, *(each for one in settings for each in ("-s", one))) as server:
        assert server.stdout is not None
        yield re.findall(r"http://\S+", server.stdout.readline())[0].rstrip("/")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The provider of all tests but one; each sets what it needs, and the defaults again (``settings``)."""
    with simulated("error=0") as url:
        yield url


@pytest.fixture
def settings(server: str) -> Iterator[Callable[..., None]]:
    yield lambda **changes: change(server, changes)
    change(server, {"keys": [], "models": [], "faults": {}, "rpm": None, "burst_s": 60})


def change(url: str, changes: dict[str, Any]) -> None:
    urllib.request.urlopen(f"{url}/_sim/settings", data=json.dumps(changes).encode()).close()


def stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/_sim/stats") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


def table(path: str, rows: int) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("id", "text"), *((f"r{at}", f"Ticket {at}: it crashes") for at in range(rows))])


BOTH = pytest.mark.parametrize("api", ["chat", "responses"])
ROWS_BY_API = {"chat": "openai", "responses": "openai-responses"}


@pytest.mark.parametrize("api", ["chat", pytest.param("responses", marks=pytest.mark.long)])
def test_a_job_that_is_killed_pays_for_each_row_once_at_the_price_of_openai(cortex, api):
    requests(Path("in.jsonl"), ROWS, model="gpt-5-mini")
    with simulated("latency_ms=40", "latency_spread=0") as url:
        where = ("--api", api, "--base-url", f"{url}/v1", "--concurrency", 8, "--max-cost", 1)
        command = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *where)
        with started(*command, env=environment(OPENAI_API_KEY=KEY)) as child:
            until(lambda: Path("out.jsonl").exists() and len(Path("out.jsonl").read_text().splitlines()) >= 40)
            child.kill()
            child.wait()
        done = cortex(*command, "--json")
        seen = stats(url)
    assert (done.code, done.last["rows_succeeded"]) == (0, ROWS), done.err
    each_once(Path("out.jsonl"), ROWS)
    assert seen["complete_answers"] <= ROWS + 8, "a crash re-pays at most what was in flight"
    message = json.loads(Path("out.jsonl").read_text().splitlines()[0])["result"]["message"]
    usage = message["usage"]
    assert (message["type"], message["stop_reason"], message["model"]) == ("message", "end_turn", "gpt-5-mini")
    usd = ROWS * (usage["input_tokens"] * 0.25 + usage["output_tokens"] * 2.00) / 1e6  # genai-prices: openai
    assert done.last["cost_usd"] == pytest.approx(usd, rel=0.2)
    assert cortex("status", "mine", "--json").last["route"] == f"gpt-5-mini at {ROWS_BY_API[api]}://+{url}"
    assert KEY not in done.out + done.err


@BOTH
@pytest.mark.parametrize("how", ["format", "tool", "prompt"])
def test_a_schema_is_kept_in_each_form_and_the_answers_are_those_of_the_messages_api(cortex, how, api, server, monkeypatch):
    table("in.csv", 12)
    Path("schema.json").write_text(json.dumps({
        "type": "object", "properties": {"label": {"enum": ["bug", "praise"]}}, "required": ["label"],
    }))  # fmt: skip
    asks = ("batch", "in.csv", "--prompt", "Label: {{text}}", "--id", "id", "--schema", "schema.json", "--ordered",
            "--schema-as", how, "--model", f"{how}-{api}", "--base-url", server)  # fmt: skip
    before = stats(server)["worked"]
    assert cortex(*asks, "-o", "chat.csv", "--api", api, "--job", "chat").code == 0
    assert stats(server)["worked"] == before + 12
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert cortex(*asks, "-o", "messages.csv", "--job", "messages").code == 0
    assert Path("chat.csv").read_text() == Path("messages.csv").read_text()


def test_a_row_whose_generation_failed_at_groq_is_asked_again(cortex, monkeypatch):
    """Status 400 of one answer (`tool_use_failed`) is no fault of the row: pydantic/pydantic-ai#2774."""
    table("in.csv", 2)
    Path("schema.json").write_text('{"type":"object","properties":{"label":{"enum":["bug"]}},"required":["label"]}')
    failed = {"error": {"message": "Failed to call a function.", "type": "invalid_request_error", "code": "tool_use_failed",
                        "failed_generation": "It is a bug."}}  # fmt: skip
    use = {"id": "c", "type": "function", "function": {"name": "answer", "arguments": '{"label":"bug"}'}}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [use]}}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    whole = {"id": "x", "model": "m", "choices": [choice], "usage": usage}
    answers = iter([http(failed, status=400), *[http(whole)] * 2])
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    with served(lambda asked: next(answers)) as server:
        monkeypatch.setenv("GROQ_BASE_URL", server.url)
        done = cortex("batch", "in.csv", "--prompt", "Label: {{text}}", "--id", "id", "--schema", "schema.json", "-o", "out.csv",
                      "--provider", "groq", "--model", "m", "--price", "input=0,output=0", "--concurrency", 1, "--json")  # fmt: skip
    assert (done.code, done.last["rows_succeeded"]) == (0, 2), done.err
    assert len(server.asked) == 3 and done.last["failures"] == {"unreadable": 1}


@BOTH
def test_limits_in_headers_are_kept_and_faults_are_retried(cortex, api, server, settings, monkeypatch):
    requests(Path("in.jsonl"), 60, model="gpt-5-mini")
    settings(rpm=1_200, burst_s=2)
    before = stats(server)["throttled_by_limit"]
    there = ("--api", api, "--base-url", server, "--fresh", "--json")
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *there)
    assert (done.code, done.last["rows_succeeded"]) == (0, 60), done.err
    assert stats(server)["throttled_by_limit"] - before <= 6
    monkeypatch.setenv("OPENAI_API_KEY", KEY)  # a command takes it out of its environment
    settings(rpm=None, faults={"overloaded": 0.1, "reset": 0.1})
    done = cortex("batch", "in.jsonl", "-o", "faults.jsonl", "--job", "faults", *there)
    assert (done.code, done.last["rows_succeeded"]) == (0, 60), done.err
    assert done.last["failures"]


@BOTH
def test_long_replies_are_streamed(cortex, api, server):
    table("in.csv", 6)
    done = cortex("batch", "in.csv", "--prompt", "Topic: {{text}}", "--id", "id", "-o", "out.csv", "--model", "gpt-5",
                  "--api", api, "--base-url", server, "--max-output-tokens", 9_000, "--json")  # fmt: skip
    assert (done.code, done.last["rows_succeeded"]) == (0, 6), done.err
    assert done.last["cost_usd"] > 0


def test_what_makes_no_sense_is_one_line(cortex, monkeypatch):
    requests(Path("in.jsonl"), 1)
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "m")
    cortex(*job, "--api", "complete").refused("--api 'complete': give messages, chat, responses")
    cortex(*job, "--api", "responses", "--provider", "groq").refused("--provider groq is asked by another")
    cortex(*job, "--api", "messages", "--provider", "groq").refused("--provider groq is asked by another")
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    cortex(*job, "--provider", "groq", "--via", "batches").refused("--via batches: groq takes no message batches")
    cortex(*job, "--provider", "azure").refused("no resource: give --provider azure,resource=NAME")
    cortex(*job, "--provider", "azure", "--api", "responses").refused("no resource: give --provider azure-responses,resource=")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    cortex(*job, "--provider", "openai").refused("--provider openai: no key: set a good key in OPENAI_API_KEY")


def test_a_row_may_hold_fields_of_chat_completions_and_none_without_counterpart(cortex, server):
    lines = [request("a", seed=3, temperature=0), request("b", container="c")]
    Path("in.jsonl").write_text("\n".join(lines))
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--api", "chat", "--base-url", server, "--json")
    assert (done.last["rows_succeeded"], done.last["failures"]) == (1, {"rejected": 1}), done.err
    assert "container: chat completions have no such field: leave it out" in done.err


def test_a_row_may_hold_fields_of_responses_and_none_without_counterpart(cortex, server):
    lines = [request("a", reasoning={"summary": "auto"}, store=True), request("b", stop_sequences=["END"]), request("c", seed=3)]
    Path("in.jsonl").write_text("\n".join(lines))
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--api", "responses", "--base-url", server, "--json")
    assert (done.last["rows_succeeded"], done.code) == (1, 1), done.err
    assert "stop_sequences: responses have no such field: leave it out, or give --api chat" in done.err


@pytest.mark.parametrize(
    ("provider", "api", "expected"),
    [
        ("openai", "responses", "openai-responses"), ("openai-responses", "chat", "openai"), ("openai", "chat", "openai"),
        ("azure,resource=r", "responses", "azure-responses,resource=r"), ("", "responses", "openai-responses"),
        ("openai-responses", "", "openai-responses"),
    ],
)  # fmt: skip
def test_a_provider_and_an_api_lead_to_a_row(provider: str, api: str, expected: str):
    assert named_provider(Options(provider=provider, api=api)) == expected


def test_a_resumed_job_may_have_another_address_of_its_api():
    before = ModelSpec(model="m", provider="openai", base_url="http://gpu:8000")
    resumed = changed_model_spec(Options(base_url=["https://gateway.example/openai/v1"]), before)
    assert (resumed.provider, resumed.base_url) == ("openai", "https://gateway.example/openai/v1")


def test_a_wrong_key_and_a_wrong_model_are_named(cortex, server, settings, monkeypatch):
    requests(Path("in.jsonl"), 3, model="gpt-5-mini")
    settings(keys=["another-key-0123456789"], models=["gpt-5-mini"])
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--fresh", "--overwrite", "--api", "chat", "--base-url", server)
    wrong = cortex(*job, "--job", "a")
    monkeypatch.setenv("CORTEX_SERVER_KEY", "another-key-0123456789")
    missing = cortex(*job, "--job", "b", "--model", "gpt-9")
    assert (wrong.code, missing.code) == (3, 3)
    assert "set the key of that server in CORTEX_SERVER_KEY or --api-key-file" in wrong.err
    assert "gpt-9" in missing.err and "give a --model that is served there" in missing.err
    assert KEY not in wrong.out + wrong.err


@BOTH
def test_the_doctor_checks_the_key_the_list_of_models_and_one_call(cortex, api, server, settings, monkeypatch):
    def found(*more: object) -> dict[str, Any]:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        done = cortex("doctor", "--api", api, "--json", *more)
        assert KEY not in done.out + done.err
        return {each["check"]: each for each in json.loads(done.out)["findings"]}

    settings(models=["gpt-5-mini"])
    facts = found("--base-url", server, "--model", "gpt-5-mini", "--paid")
    assert [facts[name]["state"] for name in ("key", "account", "model", "credit")] == ["ok"] * 4
    assert f"{server}/v1 accepts the key" in facts["account"]["said"]
    facts = found("--base-url", f"{server}/v1", "--model", "gpt-9")
    assert "it is not in the list of models (gpt-5-mini)" in facts["model"]["said"]


def test_a_server_of_chat_completions_alone_needs_no_option(cortex, monkeypatch):
    def run(*words: object) -> Done:
        monkeypatch.setenv("CORTEX_SERVER_KEY", KEY)  # a command takes the keys out of its environment
        return cortex(*words)

    table("t.csv", 30)
    with simulated("latency_ms=1", "error=0", api="chat") as url:
        where = ("--base-url", f"{url}/v1", "--model", "m", "--price", "input=1,output=1")
        ask = ("batch", "t.csv", "-o", "o.csv", "--prompt", "Answer: {{text}}", "--max-output-tokens", 60, "--job", "j")
        first = run(*ask, *where, "--max-cost", 0.0003)
        assert first.code == 3 and f"{url} has no Messages API: asked by OpenAI's chat completions" in first.err, first.err
        assert run("status", "j", "--json").last["route"] == f"m at openai://+{url}"
        assert (done := run("resume", "j", "--max-cost", 1)).code == 0, done.err
        assert run(*ask, *where, "--max-cost", 1).code == 0  # the same command: the job is complete
        plan = run("plan", "t.csv", "--prompt", "Answer: {{text}}", *where, "--sample", 2, "--max-output-tokens", 60)
        assert plan.code == 0, plan.err
        doctor = run("doctor", "--base-url", url, "--model", "m")
        assert f"{url} has no Messages API: asked by OpenAI's chat completions" in doctor.out
        assert "wrong    account" not in doctor.out
        named = ("batch", "t.csv", "-o", "k.csv", *ask[4:-1], "k", *where, "--api", "messages")
        by_name = run(*named, "--wait-blocked", "1s")
        assert "give --api chat for chat completions" in by_name.err, "the user's word holds"
    assert len(Path("o.csv").read_text().splitlines()) == 31


def test_a_simulated_server_of_another_api_is_refused(cortex):
    assert "--api 'x': give messages, chat, responses" in cortex("simulate", "--api", "x").refused("--api")
