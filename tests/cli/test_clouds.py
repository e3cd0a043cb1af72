"""``--provider``: a job through Amazon Bedrock, Google Vertex AI or Microsoft Foundry, played by a server of this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import cortex
from actors.journal.journal import StateFolder
from actors.observability.base.conventions import provider_of, server_of
from actors.routing.routes import SetupError
from tests.cli.cli_runner import each_once, requests
from tests.edge.support import cloud_server
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, http

MODELS = {
    "bedrock": "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
    "vertex": "claude-haiku-4-5@20251001",
    "foundry": "claude-haiku-4-5",
}
PLACES = {"bedrock": ",region=eu-west-1", "vertex": ",region=eu-west-1,project=a-project", "foundry": ""}
PER_MTOK = {"bedrock": 1.1, "vertex": 1.1, "foundry": 1.0}
"""Of input; a region of Bedrock's or Vertex AI's costs a tenth more than the plain price."""


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """An environment that opens all of them, and nothing else."""
    for name, value in zip(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), cloud_server.KEYS, strict=True
    ):
        monkeypatch.setenv(name, value)
    for name in ("ANTHROPIC_API_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_FOUNDRY_API_KEY", cloud_server.FOUNDRY_KEY)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))

    def at(url: str) -> None:
        for name, path in (("BEDROCK", ""), ("VERTEX", "/v1"), ("FOUNDRY", "/anthropic")):
            monkeypatch.setenv(f"ANTHROPIC_{name}_BASE_URL", url + path)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(cloud_server.service_account(tmp_path, url)))
        monkeypatch.setenv("ANTHROPIC_FOUNDRY_API_KEY", cloud_server.FOUNDRY_KEY)  # each command takes it away

    return at


@cortex.flow
async def say(ctx: cortex.Context) -> str:
    """What the model says."""
    return str(await ctx.ask("Say yes."))


def _answers(asked: Asked) -> Answer:
    return cloud_server.gives_token(asked) or http(MESSAGE)


def _no_secret(*folders: Path, shown: str = "") -> None:
    secrets = [*cloud_server.KEYS[1:], cloud_server.FOUNDRY_KEY, cloud_server.TOKEN, cloud_server.BEARER]
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                held = path.read_bytes()
                assert not any(secret.encode() in held for secret in secrets), path
    assert not any(secret in shown for secret in secrets)


@pytest.mark.parametrize("cloud", MODELS)
def test_a_job_through_a_cloud_with_its_price_its_span_and_no_secret(cloud, cortex, opened, monkeypatch, tmp_path):
    requests(Path("in.jsonl"), 5)
    with cloud_server.served(_answers) as server:
        opened(server.url)
        job = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--max-cost", 1, "--json")
        done = cortex(*job, "--provider", cloud + PLACES[cloud], "--model", MODELS[cloud])
        paths = [asked.target for asked in server.asked if asked.target != "/token"]
    assert (done.code, done.last["rows_succeeded"]) == (0, 5), done.err
    each_once(Path("out.jsonl"), 5)
    assert len(paths) == 5 and len(set(paths)) == 1
    usage = MESSAGE["usage"]
    plain, read, made = (
        usage[name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    a_call = PER_MTOK[cloud] * (plain + 0.1 * read + 1.25 * made + 5 * usage["output_tokens"]) / 1e6
    assert done.last["cost_usd"] == pytest.approx(5 * a_call, rel=1e-3)
    status = cortex("status", "mine", "--json").last
    assert f" at {cloud}://" in status["route"] and status["route"].endswith(
        f"+{server.url}{'/v1' * (cloud == 'vertex')}{'/anthropic' * (cloud == 'foundry')}"
    )
    state = StateFolder(os.environ["CORTEX_STATE"]).path
    names = {"bedrock": "aws.bedrock", "vertex": "gcp.vertex_ai", "foundry": "azure.ai.inference"}
    assert f'"{names[cloud]}"' in (state / "traces" / "mine.jsonl").read_text()
    (tmp_path / "service-account.json").unlink()
    _no_secret(tmp_path, state, shown=done.out + done.err)


def test_where_a_cloud_is_is_read_from_the_environment_too(cortex, opened, monkeypatch):
    requests(Path("in.jsonl"), 1)
    with cloud_server.served(_answers) as server:
        opened(server.url)
        for name, value in (("CLOUD_ML_REGION", "europe-west9"), ("ANTHROPIC_VERTEX_PROJECT_ID", "another")):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CORTEX_PROVIDER", "vertex")
        done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "claude-x")
        assert done.code == 0, done.err
        assert server.asked[-1].target == (
            "/v1/projects/another/locations/europe-west9/publishers/anthropic/models/claude-x:rawPredict"
        )


def test_a_refused_signature_ends_the_job_partial_and_says_what_opens_that_cloud(cortex, opened):
    requests(Path("in.jsonl"), 3)
    refusal = http(
        {"message": "The security token included in the request is expired"},
        403,
        x_amzn_errortype="ExpiredTokenException",
    )
    with cloud_server.served(lambda _: refusal) as server:
        opened(server.url)
        done = cortex(
            "batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--provider", "bedrock,region=x-1", "--model", "m"
        )
        assert done.code == 3
        assert "unauthorised: The security token included in the request is expired" in done.err
        assert "AWS_ACCESS_KEY_ID" in done.err and "ANTHROPIC_API_KEY" not in done.err
        server.script = _answers
        done = cortex("resume", "mine", "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 3), done.err


def test_a_fallback_at_another_provider_takes_over_and_each_is_paid_at_its_price(cortex, opened, monkeypatch):
    requests(Path("in.jsonl"), 40)

    def script(asked: Asked) -> Answer:
        if asked.target.startswith("/model/"):
            return http(
                {"message": "The service isn't currently available."},
                503,
                x_amzn_errortype="ServiceUnavailableException",
            )
        return _answers(asked)

    with cloud_server.served(script) as server:
        opened(server.url)
        job = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--max-cost", 1, "--json")
        done = cortex(
            *job, "--provider", "bedrock,region=eu-west-1", "--model", MODELS["bedrock"],
            "--fallback", "vertex:claude-haiku-4-5@20251001,region=global,project=p", "--concurrency", 8,
        )  # fmt: skip
        status = cortex("status", "mine", "--json").last
    assert (done.code, done.last["rows_succeeded"]) == (0, 40), done.err
    assert [each["route"].partition(" at ")[2].partition("+")[0] for each in status["routes"]] == [
        "bedrock://eu-west-1", "vertex://p/global",
    ]  # fmt: skip
    each_once(Path("out.jsonl"), 40)


def test_a_model_without_a_known_price_is_billed_as_another(cortex, opened, monkeypatch):
    requests(Path("in.jsonl"), 2)
    with cloud_server.served(_answers) as server:
        opened(server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "of-a-gateway-of-ours")
        job = (
            "batch",
            "in.jsonl",
            "--max-cost",
            1,
            "--model",
            "our-own-llama",
            "--base-url",
            f"{server.url}/x",
            "--json",
        )
        cortex(*job, "-o", "a.jsonl").refused("no price known for 'our-own-llama'", "--price-as MODEL")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "of-a-gateway-of-ours")
        done = cortex(*job, "-o", "b.jsonl", "--price-as", "claude-haiku-4-5")
        assert done.code == 0, done.err
        assert [asked.target for asked in server.asked if asked.method == "POST"][-1] == "/x/v1/messages"
        monkeypatch.setenv("ANTHROPIC_API_KEY", "of-a-gateway-of-ours")
        dearer = cortex(*job, "-o", "c.jsonl", "--price-as", "claude-opus-4-5", "--fresh")
        assert dearer.last["cost_usd"] == pytest.approx(5 * done.last["cost_usd"])
        monkeypatch.setenv("ANTHROPIC_API_KEY", "of-a-gateway-of-ours")
        cortex(*job, "-o", "d.jsonl", "--price-as", "m", "--price", "input=1,output=1").refused(
            "--price-as m and --price"
        )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (("--provider", "bedrok", "--model", "m"), ("--provider: 'bedrok' is no provider: did you mean bedrock?",)),
        (("--provider", "bedrock,zone=1", "--model", "m"), ("--provider: cannot read 'zone=1'",)),
        (("--provider", "foundry,region=x", "--model", "m"), ("--provider: foundry has no region",)),
        (("--provider", "bedrock,region=", "--model", "m"), ("--provider: 'region=' has no value",)),
        (("--provider", "bedrock,region=a/b", "--model", "m"), ("--provider bedrock: 'a/b' is no region",)),
        (("--provider", "bedrock", "--model", "m"), ("--provider bedrock: no region", "AWS_REGION")),
        (("--provider", "vertex", "--model", "m"), ("--provider vertex: no region", "CLOUD_ML_REGION")),
        (("--provider", "vertex,region=global", "--model", "m"), ("--provider vertex: no project", "ANTHROPIC_VERTEX_PROJECT_ID")),
        (("--provider", "vertex,region=global,project=p", "--model", "m", "--api-key-file", "k"), ("--api-key-file: vertex takes Google's",)),
        (("--provider", "foundry", "--model", "m"), ("--provider foundry: no resource", "ANTHROPIC_FOUNDRY_RESOURCE")),
        (("--provider", "bedrock,region=x-1", "--model", "m", "--via", "batches"), ("--via batches: bedrock takes no message batches",)),
        (("--provider", "bedrock,region=x-1", "--model", "m", "--max-cost", 1), ("no price known for 'm'", "--price-as MODEL")),
        (("--provider", "bedrock,region=x-1", "--model", "m", "--fallback", "bedrock:m"), ("--fallback m: this route is named twice",)),
        (("--model", "m", "--fallback", "vertex:m"), ("--provider vertex: no region",)),
        (("--model", "m", "--fallback", "foundry:m,region=x"), ("--fallback m: foundry has no region",)),
        (("--model", "m", "--role", "judge=bedrock:sim"), ("--role ", "sim has no provider")),
        (("--model", "sim", "--base-url", "http://x"), ("--base-url http://x: --model sim asks nobody there",)),
        (("--model", "local", "--base-url", "http://x"), ("--base-url http://x: --model local asks nobody there",)),
        (("--model", "sim", "--provider", "vertex"), ("--provider vertex: --model sim asks nobody there",)),
        (("--model", "sim", "--price-as", "nonsense-9"), ("--price-as nonsense-9: no price is known for it",)),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line_before_anything_is_asked(said, words, cortex, opened, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-that-opens-nothing")
    for name in (
        "CLOUD_ML_REGION",
        "ANTHROPIC_VERTEX_PROJECT_ID",
        "GOOGLE_CLOUD_PROJECT",
        "ANTHROPIC_FOUNDRY_RESOURCE",
    ):
        monkeypatch.delenv(name, raising=False)
    requests(Path("in.jsonl"), 2)
    cortex("batch", "in.jsonl", "-o", "out.jsonl", *said).refused(*words)
    assert not Path("out.jsonl").exists()


def test_a_missing_extra_is_one_line(cortex, opened, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("boto3", "google.auth") else found(name, *rest),
    )
    requests(Path("in.jsonl"), 2)
    for cloud in ("bedrock", "vertex"):
        done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "m", "--provider", cloud + PLACES[cloud])
        done.refused(f"--provider {cloud}: ", f"pip install 'cortex-bounded-calls[{cloud}]'")


def test_a_job_file_may_say_it_all(cortex, opened):
    requests(Path("in.jsonl"), 2)
    Path("key").write_text(cloud_server.FOUNDRY_KEY)
    with cloud_server.served(_answers) as server:
        opened(server.url)
        Path("job.toml").write_text(
            'input = "in.jsonl"\noutput = "out.jsonl"\njob = "mine"\nmodel = "ours"\nprovider = "foundry"\n'
            f'base-url = "{server.url}/anthropic"\napi-key-file = "key"\nprice-as = "claude-haiku-4-5"\nmax-cost = 1\n'
        )
        done = cortex("batch", "-f", "job.toml", "--json")
        assert (done.code, done.last["rows_succeeded"]) == (0, 2), done.err
        assert server.asked[0].headers["x-api-key"] == cloud_server.FOUNDRY_KEY
        answer = json.loads(cortex("config", "mine", "--json").out)
    assert "foundry" in json.dumps(answer)


def test_python_says_it_in_the_same_words(opened, tmp_path):
    Path(tmp_path / "key").write_text(cloud_server.FOUNDRY_KEY)
    with cloud_server.served(_answers) as server:
        opened(server.url)
        where = {"state": str(tmp_path / "state"), "progress": False, "max_cost": 1, "price_as": "claude-haiku-4-5"}
        found = cortex.run(say(), model="m", provider="bedrock,region=eu-west-1", **where)
        assert found.answer == "yes — é"
        assert server.asked[-1].target == "/model/m/invoke"
        at = {"provider": "foundry", "base_url": f"{server.url}/anthropic", "api_key_file": str(tmp_path / "key")}
        assert cortex.run(say(), model="m", **at, **where).answer == "yes — é"
        with pytest.raises(SetupError, match="did you mean bedrock"):
            cortex.run(say(), model="m", provider="bedrok", **where)


def test_spans_name_who_served_the_model_and_where():
    assert provider_of("bedrock://eu-west-1") == provider_of("bedrock://eu-west-1+http://gateway:8") == "aws.bedrock"
    assert provider_of("vertex://p/global") == "gcp.vertex_ai"
    assert provider_of("foundry://r") == "azure.ai.inference"
    assert server_of("bedrock://eu-west-1") == []
    assert server_of("bedrock://eu-west-1+http://gateway:8/x") == [("server.address", "gateway"), ("server.port", 8)]
