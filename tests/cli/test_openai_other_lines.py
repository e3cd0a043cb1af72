"""OpenAI's batch files of the Responses API and of embeddings, from end to end: killed, capped, over batches, over a fallback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_runner import Done, each_once, environment, started, until
from tests.cli.test_chat_completions import simulated, stats

KEY = "sk-made-up-of-openai-0123"
TEXT = "Answer with one of: bug, praise.\n\nIt crashes {} times."
APIS = pytest.mark.parametrize("api", ["responses", "embeddings"])


def line(api: str, key: str, text: str, **fields: Any) -> str:
    body = {"model": "gpt-5-mini", "input": text} | ({"max_output_tokens": 8} if api == "responses" else {"dimensions": 4})
    return json.dumps({"custom_id": key, "method": "POST", "url": f"/v1/{api}", "body": body | fields}) + "\n"


def lines(api: str, count: int) -> str:
    return "".join(line(api, f"r{at}", TEXT.format(at)) for at in range(count))


def results(path: str = "out.jsonl") -> dict[str, dict[str, Any]]:
    return {found["custom_id"]: found for found in map(json.loads, Path(path).read_text().splitlines())}


def valid(api: str, found: dict[str, Any]) -> None:
    """Assert that a result is one of the vendor's, by its own types."""
    from openai.types import CreateEmbeddingResponse
    from openai.types.responses import Response

    assert list(found) == ["id", "custom_id", "response", "error"] and found["error"] is None
    response = found["response"]
    assert response["status_code"] == 200
    if api == "responses":
        told = Response.model_validate(response["body"])
        assert told.output_text in ("bug", "praise") and response["request_id"] == told.id
    else:
        vectors = CreateEmbeddingResponse.model_validate(response["body"])
        assert len(vectors.data[0].embedding) == 4


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with simulated("error=0", "batch_ms=5") as url:
        yield url


@pytest.fixture
def run(cortex: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    def with_key(*words: object) -> Done:
        monkeypatch.setenv("CORTEX_SERVER_KEY", KEY)  # a command takes the keys out of its environment
        return cortex(*words)

    return with_key


@pytest.mark.parametrize("api", ["responses", pytest.param("embeddings", marks=pytest.mark.long)])
def test_a_killed_run_goes_on_and_pays_for_each_line_once(run, api):
    Path("in.jsonl").write_text(lines(api, 120))
    with simulated("latency_ms=40", "latency_spread=0", "error=0") as url:
        command = ("batch", "in.jsonl", "-o", "out.jsonl", "--base-url", f"{url}/v1", "--concurrency", 8,
                   "--job", "j", "--price", "input=1,output=1", "--max-cost", 1)  # fmt: skip
        with started(*command, env=environment(CORTEX_SERVER_KEY=KEY)) as child:
            until(lambda: Path("out.jsonl").exists() and len(Path("out.jsonl").read_text().splitlines()) >= 24)
            child.kill()
            child.wait()
        done = run("resume", "j", "--json")
        seen = stats(url)
    assert (done.code, done.last["rows_succeeded"]) == (0, 120), done.err
    each_once(Path("out.jsonl"), 120)
    assert seen["complete_answers"] <= 128, "a crash re-pays at most what was in flight"
    for found in results().values():
        valid(api, found)


@APIS
def test_a_cap_holds(run, server, api):
    Path("in.jsonl").write_text(lines(api, 30))
    done = run("batch", "in.jsonl", "-o", "out.jsonl", "--base-url", server, "--price", "input=1000,output=1000",
               "--max-cost", 0.3, "--json")  # fmt: skip
    assert done.code == 3 and 0 < done.last["rows_succeeded"] < 30, done.err
    assert done.last["cost_usd"] <= 0.3


def test_lines_of_the_responses_api_go_by_batches_too(run, server):
    Path("in.jsonl").write_text(lines("responses", 3) + line("embeddings", "v", "x"))
    done = run("batch", "in.jsonl", "-o", "out.jsonl", "--provider", "openai", "--base-url", server, "--via", "batches",
               "--json")  # fmt: skip
    assert (done.last["rows_succeeded"], done.last["rows_failed"]) == (3, 1), done.err
    found = results()
    for at in range(3):
        valid("responses", found[f"r{at}"])
    assert 'url is "/v1/embeddings": lines of /v1/responses are asked here' in found["v"]["error"]["message"]


def test_embeddings_by_batches_are_refused_before_anything_is_paid(run, server):
    Path("in.jsonl").write_text(lines("embeddings", 2))
    done = run("batch", "in.jsonl", "-o", "out.jsonl", "--provider", "openai", "--base-url", server, "--via", "batches")
    assert done.code != 0 and "embeddings are asked for in single requests" in done.err


@pytest.mark.long
def test_a_fallback_over_another_api_cannot_take_such_lines(run):
    Path("in.jsonl").write_text(lines("responses", 1))
    with simulated("overloaded=1") as broken, simulated("error=0", api="messages") as other:
        done = run("batch", "in.jsonl", "-o", "out.jsonl", "--base-url", broken, "--fallback", f"gpt-5-mini@{other}", "--json")
    assert done.last["rows_failed"] == 1, done.err
    assert "a request of OpenAI's responses is asked over that API alone" in results()["r0"]["error"]["message"]


def test_a_long_response_is_streamed_and_whole(run, server):
    Path("in.jsonl").write_text(line("responses", "r0", TEXT.format(1), max_output_tokens=9_000))
    done = run("batch", "in.jsonl", "-o", "out.jsonl", "--base-url", server)
    assert done.code == 0, done.err
    valid("responses", results()["r0"])


def test_nothing_is_kept_at_the_provider_unless_a_line_says_so() -> None:
    from actors.providers.responses.request import written_body

    assert json.loads(written_body(b'{"api":"responses","input":"x","model":"m"}')) == {"store": False, "input": "x", "model": "m"}
    assert json.loads(written_body(b'{"api":"responses","input":"x","store":true}'))["store"] is True


@APIS
def test_a_plan_knows_how_such_lines_may_be_asked(run, server, api):
    Path("in.jsonl").write_text(lines(api, 3))
    done = run("plan", "in.jsonl", "--base-url", server)
    assert done.code == 0, done.err
    assert ("--via batches" in done.out) == (api == "responses")
