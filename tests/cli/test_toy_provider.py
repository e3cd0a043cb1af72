"""A made-up provider is one package (``tests/support/toy_provider``) and one row: no other module knows it, and all of it works."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.journal.journal import StateFolder
from actors.observability.base.conventions import provider_of, server_of
from actors.providers import registry
from actors.providers.credentials.account import ProviderLocation, opened
from actors.providers.pools import pool_of
from actors.providers.registry import PROVIDERS
from actors.routing.model_factory import ConnectionSpec, encode, make_model
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import ReportedBucket
from tests.cli.cli_runner import each_once, requests
from tests.edge.support.scripted_http_server import Answer, Asked
from tests.support.patience import PATIENCE_S
from tests.support.toy_provider.client import ToyModel
from tests.support.toy_provider.row import TOY
from tests.support.toy_provider.server import KEY, answer, fault, serving

JOB = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "toy-1", "--json")
PRICE = ("--price", "input=3,output=15", "--max-cost", 1)
BODY = json.dumps(
    {"model": "toy-1", "max_tokens": 8, "system": "Be brief.", "messages": [{"role": "user", "content": "Yes?"}]}
).encode()


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The row in the table, and a key in the environment."""
    monkeypatch.setitem(PROVIDERS, TOY.name, TOY)
    monkeypatch.setenv("TOY_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    yield
    provider_of.cache_clear()
    server_of.cache_clear()


def _no_key(*folders: Path, shown: str) -> None:
    for folder in folders:
        for path in folder.rglob("*"):
            assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert KEY not in shown


def test_a_job_end_to_end_with_its_wire_form_limits_errors_price_and_span(cortex, monkeypatch, tmp_path):
    requests(Path("in.jsonl"), 12)
    refused: list[str] = []

    def script(asked: Asked) -> Answer:
        if asked.target == "/ask" and len(refused) < 3:
            refused.append(asked.target)
            return fault(429, "slow-down", f"not so fast, {KEY}", x_toy_wait="20ms", x_toy_limits="")
        return answer(asked)

    with serving(script) as server:
        done = cortex(*JOB, *PRICE, "--provider", "toy,shelf=3", "--base-url", server.url)
        bodies = [asked.json for asked in server.asked if asked.target == "/ask"]
    assert (done.code, done.last["rows_succeeded"], done.last["failures"]) == (0, 12, {"throttled": 3}), done.err
    each_once(Path("out.jsonl"), 12)
    assert {tuple(sorted(body)) for body in bodies} == {("engine", "limit", "turns")}
    message = json.loads(Path("out.jsonl").read_text().splitlines()[0])["result"]["message"]
    assert message["content"] == [{"type": "text", "text": "bug"}]
    assert (message["stop_reason"], message["model"], message["usage"]["input_tokens"]) == ("end_turn", "toy-1", 7)
    assert done.last["cost_usd"] == pytest.approx(12 * (3 * 12 + 15) / 1e6)
    status = cortex("status", "mine", "--json").last
    assert status["route"] == f"toy-1 at toy://3+{server.url}"
    state = StateFolder(os.environ["CORTEX_STATE"]).path
    assert '"toy.ai"' in (state / "traces" / "mine.jsonl").read_text()
    _no_key(tmp_path, state, shown=done.out + done.err)
    assert "TOY_KEY" not in os.environ


def test_a_refused_key_ends_the_job_partial_and_says_what_to_do(cortex, monkeypatch, tmp_path):
    requests(Path("in.jsonl"), 3)
    monkeypatch.setenv("TOY_KEY", "another-key-of-nobody-0123")
    with serving() as server:
        monkeypatch.setenv("TOY_BASE_URL", server.url)
        done = cortex(*JOB, "--provider", "toy")
    assert done.code == 3
    assert "set a good key in TOY_KEY, or --api-key-file" in done.err
    assert "another-key-of-nobody-0123" not in done.out + done.err


def test_the_key_may_be_in_a_file_and_a_fallback_may_be_there(cortex, monkeypatch, tmp_path):
    requests(Path("in.jsonl"), 3)
    (tmp_path / "key").write_text(KEY)
    monkeypatch.setenv("TOY_KEY", " ")
    with serving() as server:
        monkeypatch.setenv("TOY_KEY_FILE", str(tmp_path / "key"))
        monkeypatch.setenv("TOY_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "opens-nothing-here")
        away = ("--base-url", "http://127.0.0.1:9", "--fallback", "toy:toy-1,shelf=2")
        done = cortex(*JOB, *away)
    assert (done.code, done.last["rows_succeeded"]) == (0, 3), done.err
    assert [each["route"].partition("+")[0] for each in cortex("status", "mine", "--json").last["routes"]] == [
        "toy-1 at 127.0.0.1:9", "toy-1 at toy://2",
    ]  # fmt: skip


def test_what_is_missing_or_makes_no_sense_is_one_line(cortex, monkeypatch):
    requests(Path("in.jsonl"), 1)
    cortex(*JOB, "--provider", "toy,region=x").refused("--provider: toy has no region", "toy,shelf=NUMBER")
    cortex(*JOB, "--provider", "toys").refused("'toys' is no provider: did you mean toy?")
    monkeypatch.setenv("TOY_KEY", KEY)
    cortex(*JOB, "--provider", "toy", "--via", "batches").refused("--via batches: toy takes no message batches")
    monkeypatch.setenv("TOY_KEY", KEY)
    cortex(*JOB, "--provider", "toy", "--max-cost", 1).refused("no price known for 'toy-1'")
    cortex(*JOB, "--provider", "toy").refused("--provider toy: no key: set a good key in TOY_KEY, or --api-key-file")


def test_the_doctor_checks_it(cortex, monkeypatch):
    def found(*more: object) -> dict[str, dict[str, Any]]:
        monkeypatch.setenv("TOY_KEY", KEY)
        done = cortex("doctor", "--model", "toy-1", "--provider", "toy", "--json", *more)
        assert KEY not in done.out + done.err
        return {each["check"]: each for each in json.loads(done.out)["findings"]}

    with serving() as server:
        facts = found("--base-url", server.url)
        assert "/ask" not in [asked.target for asked in server.asked]
        names = ("provider", "key", "certificates", "proxy", "endpoint", "model", "price")
        assert [facts[name]["state"] for name in names] == ["ok"] * 6 + ["warning"]
        assert "Toy AI: toy://" in facts["provider"]["said"] and "toy-1 exists" in facts["model"]["said"]
        assert found("--base-url", server.url, "--paid")["credit"]["said"].startswith(
            "a paid call of one token was answered"
        )
    with serving(lambda _: fault(401, "bad-key", "no")) as server:
        credit = found("--base-url", server.url, "--paid")["credit"]
    assert credit["state"] == "wrong" and credit["do"] == "set a good key in TOY_KEY, or in the file of TOY_KEY_FILE"


def test_a_plan_hears_the_limits_in_its_headers(cortex):
    requests(Path("in.jsonl"), 20)
    with serving() as server:
        where = ("--provider", "toy", "--base-url", server.url, "--price", "input=3,output=15")
        planned = cortex("plan", "in.jsonl", "--sample", 5, "--model", "toy-1", *where, "--json")
    reported = json.loads(planned.out)["limits"]
    assert (reported["requests_per_min"]["told_per_min"], reported["input_tokens_per_min"]["told_per_min"]) == (
        600,
        40_000,
    )


async def test_its_client_translates_both_ways_and_hears_limits_and_errors(monkeypatch):
    faults = iter(
        [
            fault(429, "slow-down", "wait", x_toy_wait="1m0.5s"),
            fault(400, "odd", "turns are too many for this engine"),
            fault(404, "no-such-engine", "?"),
            fault(500, "tired", "later"),
            [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"],
        ]
    )
    with serving() as server:
        account = opened(ProviderLocation(provider="toy", base_url=server.url), {"TOY_KEY": KEY})
        spec = ConnectionSpec(endpoint=account.endpoint, provider="toy", credential=account.credential)
        model = make_model(encode(spec))
        assert isinstance(model, ToyModel)
        reply = await model.call(BODY, output_tokens_max=8, timeout_s=PATIENCE_S)
        assert isinstance(reply, Reply), reply
        assert (reply.text, reply.stop_reason, reply.usage) == ("bug", "end_turn", Usage(7, 1, 5))
        assert server.asked[0].json == {
            "engine": "toy-1", "limit": 8,
            "turns": [{"who": "rules", "says": "Be brief."}, {"who": "user", "says": "Yes?"}],
        }  # fmt: skip
        assert model.rate is not None
        assert (model.rate.requests, model.rate.input_tokens) == (
            ReportedBucket(600, 590, 1.0),
            ReportedBucket(40_000, 39_000, 66.0),
        )
        assert await model.count_tokens(BODY) == 7
        server.script = lambda _: next(faults)
        found = [await model.call(BODY, output_tokens_max=8, timeout_s=PATIENCE_S) for _ in range(5)]
        await model.close()
    assert [each.kind for each in found if isinstance(each, Failure)] == [
        FailureKind.THROTTLED, FailureKind.TOO_LARGE, FailureKind.BLOCKED, FailureKind.OVERLOADED, FailureKind.TRANSIENT,
    ]  # fmt: skip
    assert isinstance(found[0], Failure) and found[0].retry_after_s == 60.5


def test_names_of_its_routes_pools_and_spans_come_from_the_row():
    endpoint = "toy://3+http://127.0.0.1:8"
    assert provider_of(endpoint) == "toy.ai"
    assert server_of(endpoint) == [("server.address", "127.0.0.1"), ("server.port", 8)]
    assert registry.of_endpoint(endpoint) is TOY
    assert pool_of(endpoint, "k", "claude-haiku-4-5") != pool_of(endpoint, "k", "claude-haiku-3-5")
