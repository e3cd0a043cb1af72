"""Servers of the user's own: asked without a key, and told apart from providers in all that is said."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import urllib.request
from pathlib import Path

import msgspec
import pytest

import cortex as package
from actors.cli.jobs.settings import changed_model_spec
from actors.cli.options.options import Options
from actors.history.catalog import last_terms
from actors.journal.journal import StateFolder
from actors.routing.routes import SetupError, remembered
from tests.cli.cli_runner import each_once, environment, requests, started
from tests.edge.routing.test_server_features import FIELDS, described
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, http

KEY = "key-of-a-server-0123456789"
JOB = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--json")


def _open(asked: Asked) -> Answer:
    return http(MESSAGE)


def _closed(asked: Asked) -> Answer:
    """As vLLM with ``--api-key``."""
    if asked.headers.get("authorization") == f"Bearer {KEY}":
        return http(MESSAGE)
    return http({"error": "Unauthorized"}, 401)


def test_a_server_without_a_key_is_asked_without_one(cortex) -> None:
    requests(Path("in.jsonl"), 3)
    with served(_open) as server:
        done = cortex(*JOB, "--base-url", server.url)
    assert (done.code, done.last["rows_succeeded"]) == (0, 3), done.err
    each_once(Path("out.jsonl"), 3)
    assert not any("authorization" in asked.headers or "x-api-key" in asked.headers for asked in server.asked)
    assert "anthropic" not in done.err.lower()


def _without_schemas(asked: Asked) -> Answer:
    """As SGLang, which has both APIs and passes over schemas in one."""
    if asked.target == "/openapi.json":
        return http(described(*FIELDS))
    if asked.body == b"{}" or asked.target != "/v1/messages":
        return http({"error": {"message": "messages: Field required", "type": "invalid_request_error"}}, 400)
    return http(MESSAGE)


@pytest.mark.parametrize(
    ("words", "api"), [(("--prompt", "Say {{t}}"), "messages"), (("--prompt", "{{t}}", "--schema", "s.json"), "chat/completions")]
)  # fmt: skip
def test_a_table_leaves_the_messages_api_for_a_schema_alone(cortex, words: tuple[str, ...], api: str) -> None:
    Path("in.csv").write_text("t\na\n")
    Path("s.json").write_text('{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]}')
    with served(_without_schemas) as server:
        done = cortex("batch", "in.csv", "-o", "out.csv", *words, "--base-url", server.url, "--model", "m", "--json",
                      "--max-output-tokens", 20)  # fmt: skip
    assert done.code == (0 if api == "messages" else 1), done.err
    asked = [each.target for each in server.asked if each.method == "POST" and each.body != b"{}"]
    assert set(asked) == {f"/v1/{api}"}


def test_a_refused_call_says_where_the_key_goes_and_the_job_goes_on_with_it(cortex, monkeypatch) -> None:
    requests(Path("in.jsonl"), 3)
    with served(_closed) as server:
        done = cortex(*JOB, "--base-url", server.url)
        assert (done.code, done.last["rows_failed"]) == (3, 0)
        assert "unauthorised: Unauthorized; no row failed: set the key of that server in CORTEX_SERVER_KEY" in done.err
        assert "anthropic" not in done.err.lower()
        monkeypatch.setenv("CORTEX_SERVER_KEY", KEY)
        done = cortex("resume", "mine", "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 3), done.err
    assert KEY not in done.out + done.err


NO_PATH = http({"detail": "Not Found"}, 404)


def test_a_wrong_address_is_named_and_fails_no_row(cortex) -> None:
    requests(Path("in.jsonl"), 3)
    with served(lambda asked: _open(asked) if asked.target == "/v1/messages" else NO_PATH) as server:
        done = cortex(*JOB, "--base-url", f"{server.url}/openai/v1")
        assert (done.code, done.last["rows_failed"]) == (3, 0)
        where = f"{server.url}/openai/v1/messages answered 404 (Not Found)"
        assert f"blocked: {where}: see that --base-url names a server of the Messages API, or give --api chat for chat completions; no row failed" in done.err
        assert "credit" not in done.err and "account" not in done.err and "anthropic" not in done.err.lower()
        shown = cortex("doctor", "--base-url", f"{server.url}/openai").out
        assert f"{where}: see that --base-url" in " ".join(shown.split()) or where in shown
        done = cortex("resume", "mine", "--base-url", server.url, "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 3), done.err


def test_an_unknown_model_is_named_and_fails_no_row(cortex) -> None:
    requests(Path("in.jsonl"), 3)
    unknown = http({"error": {"message": "model not found", "type": "not_found_error"}}, 404)
    with served(lambda asked: unknown if asked.json["model"] == "nope" else _open(asked)) as server:
        done = cortex(*JOB, "--base-url", server.url, "--model", "nope")
    assert (done.code, done.last["rows_failed"]) == (3, 0)
    assert "blocked: model nope: model not found: give a --model that is served there; no row failed" in done.err
    assert "resume with --fallback MODEL asks another one" in done.err, "`cortex resume` has no --model"
    assert "credit" not in done.err and "anthropic" not in done.err.lower()


def test_a_key_that_may_not_do_it_is_not_only_to_be_set_again(cortex) -> None:
    requests(Path("in.jsonl"), 3)
    said = "Request not allowed from your IP address"
    refused = http({"type": "error", "error": {"type": "permission_error", "message": said}}, 403)
    with served(lambda asked: refused) as server:
        done = cortex(*JOB, "--base-url", server.url, "--model", "m", "--api", "messages")
    assert f"unauthorised: {said}; no row failed: set the key of that server in CORTEX_SERVER_KEY" in done.err
    assert "if the key is right, allow it at the provider what it may not do; then resume" in done.err


def test_the_doctor_agrees(cortex, monkeypatch) -> None:
    with served(lambda asked: http({"data": []}) if asked.target == "/v1/models" else _open(asked)) as server:
        done = cortex("doctor", "--base-url", server.url)
        assert f"none is set: calls to {server.url} hold none" in done.out
        assert f"{server.url} answers without a key" in done.out
    with served(lambda asked: http(b"<title>Sign in</title>", 200, "text/html")) as server:
        shown = cortex("doctor", "--base-url", server.url, "--model", "m").out
        assert f"{server.url}/v1/models answers 200 with what is no JSON, such as a page: see that --base-url" in shown
        assert "m exists" not in shown
    with served(_closed) as server:
        shown = cortex("doctor", "--base-url", server.url).out
        assert "set the key of that server in CORTEX_SERVER_KEY" in shown
        monkeypatch.setenv("CORTEX_SERVER_KEY", "another-key-of-nobody-0123")
        shown = cortex("doctor", "--base-url", server.url).out
        assert f"from CORTEX_SERVER_KEY, sent to {server.url}" in shown
        assert "another-key-of-nobody-0123" not in shown


def test_a_misspelt_variable_is_named(cortex, monkeypatch) -> None:
    requests(Path("in.jsonl"), 1)
    monkeypatch.setenv("CORTEX_SERVER_KEYS", KEY)
    assert KEY not in cortex(*JOB, "--model", "sim").refused("write CORTEX_SERVER_KEY")


def test_a_server_that_tells_its_queue_is_kept_busy_and_few_wait(cortex) -> None:
    slots, rows, latency_s = 4, 160, 0.2
    requests(Path("in.jsonl"), rows)
    waiting: list[int] = []
    with started(
        "simulate", "--port", 0, "--queue", f"slots={slots}", "-s", f"latency_ms={latency_s * 1000}", "-s", "latency_spread=0.2"
    ) as server:
        url = re.findall(r"http://\S+", server.stdout.readline())[0]
        with started(*JOB, "--base-url", url, env=environment(CORTEX_SERVER_KEY="any")) as child:
            while child.poll() is None:
                with urllib.request.urlopen(f"{url}/metrics") as answer:
                    found = re.findall(r"^vllm:num_requests_waiting\S* (\S+)", answer.read().decode(), re.MULTILINE)
                waiting.append(int(float(found[0])))
                time.sleep(0.1)
            out, said = child.communicate()
    assert child.returncode == 0, said
    took_s = json.loads(out.splitlines()[-1])["elapsed_s"]  # without the start of its process
    assert max(waiting) <= slots, "never more than the slots"
    assert sum(waiting[len(waiting) // 2 :]) / len(waiting[len(waiting) // 2 :]) <= 2.0
    assert took_s < 3 * rows * latency_s / slots


METRICS = "vllm:num_requests_running 3.0\nvllm:num_requests_waiting 1.0\n"


class _Told:
    """Script of a server that answers a prompt when its metrics were looked at, so that this is while a job runs."""

    def __init__(self) -> None:
        self.looks: list[str] = []

    async def __call__(self, asked: Asked) -> Answer:
        if asked.target in ("/elsewhere", "/nowhere"):
            self.looks.append(asked.target)
            there = asked.target == "/elsewhere"
            return http(METRICS.encode(), 200, "text/plain") if there else http({"detail": "Not Found"}, 404)
        until_s = time.monotonic() + 30 if asked.target == "/v1/messages" and asked.body != b"{}" else 0.0
        while not self.looks and time.monotonic() < until_s:  # noqa: ASYNC110 - the list is of two threads
            await asyncio.sleep(0.02)
        return _open(asked)


def test_metrics_elsewhere_are_read_while_a_job_runs_and_named_again_when_it_is_resumed(cortex, monkeypatch) -> None:
    requests(Path("in.jsonl"), 3)
    monkeypatch.setenv("CORTEX_SERVER_KEY", KEY)
    told = _Told()
    with served(told) as server, served(told) as metrics:
        done = cortex(*JOB, "--base-url", server.url, "--metrics-from", f"{metrics.url}/elsewhere")
        assert (done.code, done.last["rows_succeeded"]) == (0, 3), done.err
        assert {asked.target for asked in metrics.asked} == {"/elsewhere"}
        assert "/metrics" not in {asked.target for asked in server.asked}
        terms = last_terms(StateFolder(os.environ["CORTEX_STATE"]), "mine")
        assert terms is not None
        kept = remembered(terms.places)
    assert kept.metrics_from == (f"{metrics.url}/elsewhere",)
    again = {
        (): kept.metrics_from, ("http://gpu:9000",): ("http://gpu:9000/metrics",), ("none",): msgspec.UNSET,
        ("gpu:1", "gpu:2", "gpu:1"): ("http://gpu:1/metrics", "http://gpu:2/metrics"),
    }  # fmt: skip
    for given, expected in again.items():
        assert changed_model_spec(Options(metrics_from=list(given)), kept).metrics_from == expected
    assert changed_model_spec(Options(base_url=["http://other:8000"]), kept).metrics_from is msgspec.UNSET


def test_metrics_in_a_job_file_and_in_python(cortex) -> None:
    requests(Path("in.jsonl"), 2)
    told = _Told()
    with served(told) as server:
        where = f"{server.url}/elsewhere"
        Path("job.toml").write_text(
            f'input = "in.jsonl"\noutput = "out.jsonl"\nbase-url = "{server.url}"\nmetrics-from = ["{where}"]\n'
        )
        done = cortex("batch", "--file", "job.toml", "--json")
        assert (done.code, done.last["rows_succeeded"]) == (0, 2), done.err
        assert "/elsewhere" in {asked.target for asked in server.asked}
        server.asked.clear()
        told.looks.clear()
        given = {"model": "m", "base_url": server.url, "progress": False, "price": "input=0,output=0"}
        found = package.batch([{"t": "x"}], "Q {{t}}", metrics_from=where, **given)
        assert len(list(found.rows)) == 1
        assert "/elsewhere" in {asked.target for asked in server.asked}
    with pytest.raises(SetupError, match="metrics_from: the address must be an http:// or https:// URL"):
        package.batch([{"t": "x"}], "Q {{t}}", metrics_from=["ftp://gpu"], **given)


def test_metrics_that_tell_no_queue_are_said_by_doctor_and_plan_and_end_no_job(cortex) -> None:
    requests(Path("in.jsonl"), 2)
    told = _Told()
    with served(told) as server:
        given = ("--base-url", server.url, "--metrics-from", f"{server.url}/nowhere")
        shown = " ".join(cortex("doctor", *given).out.split())
        assert f"warning metrics {server.url}/nowhere answered 404: name the server's own metrics" in shown
        shown = " ".join(cortex("doctor", "--base-url", server.url, "--metrics-from", f"{server.url}/v1/messages").out.split())
        assert "holds no queue's metrics (looked for vllm:num_requests_running with vllm:num_requests_waiting, " in shown
        shown = " ".join(cortex("doctor", "--base-url", server.url, "--metrics-from", f"{server.url}/elsewhere").out.split())
        assert f"ok metrics {server.url}/elsewhere: 3 requests worked on, 1 waiting" in shown
        shown = cortex("plan", "in.jsonl", *given).out
        assert f"--metrics-from {server.url}/nowhere answered 404: name the server's own metrics" in shown
        told.looks.clear()
        done = cortex(*JOB, *given)
    assert (done.code, done.last["rows_succeeded"], done.last["failures"]) == (0, 2, {}), done.err
    assert set(told.looks) == {"/nowhere"}


def test_metrics_that_cannot_be_used_are_refused(cortex, monkeypatch) -> None:
    requests(Path("in.jsonl"), 1)
    cases = [
        (("--base-url", "http://gpu:1", "--metrics-from", "http://me:pw@gpu/m"), "--metrics-from: the address holds a user"),
        (("--base-url", "http://gpu:1", "--metrics-from", "ftp://gpu"), "--metrics-from: the address must be an http:// or"),
        (("--model", "sim", "--metrics-from", "http://gpu:1"), "--metrics-from http://gpu:1/metrics: --model sim asks nobody"),
        (("--base-url", "https://api.anthropic.com", "--model", "m", "--metrics-from", "gpu:1", "--price", "input=1,output=1"),
         "--metrics-from: https://api.anthropic.com is no server of your own: leave it out"),
        (("--base-url", "http://gpu:1", "--metrics-from", "gpu:1", "--via", "batches"), "--metrics-from is for single calls"),
    ]  # fmt: skip
    for given, words in cases:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        cortex(*JOB, *given).refused(words)
