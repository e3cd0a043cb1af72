"""What the doctor says of the road to a cloud that serves the model, played by a server of this machine."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest

from actors.cli.admin.doctor import _secrets
from actors.doctor import provider as road
from actors.doctor.checks import DoctorOptions, Finding, examine
from tests.edge.support import cloud_server
from tests.edge.support.scripted_http_server import MESSAGE, Answer, http, scripted
from tests.edge.support.scripted_http_server import Asked as Request
from tests.support.patience import PATIENCE_S

AWS = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), cloud_server.KEYS, strict=True))
VERTEX = {"provider": "vertex", "region": "global", "project": "p"}


async def found(environ: dict[str, str], **more: Any) -> dict[str, Finding]:
    """What it finds, by the names of the checks; nothing of it shows a secret."""
    what = DoctorOptions(environ=environ, timeout_s=PATIENCE_S, **more)
    secrets = await asyncio.to_thread(_secrets, what)
    entries = await asyncio.to_thread(examine, [("check", road.connection_findings)], what, secrets, 2 * PATIENCE_S)
    for finding in entries:
        assert not any(
            secret in repr(finding) for secret in (*cloud_server.KEYS[1:], cloud_server.FOUNDRY_KEY, cloud_server.TOKEN)
        )
        assert (finding.state == "ok") == (not finding.do), finding
    return {finding.check: finding for finding in entries}


def answers(request: Request) -> Answer:
    counts = "count" in request.target
    return cloud_server.gives_token(request) or http({"input_tokens": 7} if counts else MESSAGE)


async def test_bedrock_is_asked_nothing_that_costs_unless_told_to():
    where = {
        "model": "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
        "provider": {"provider": "bedrock", "region": "eu-west-1"},
    }
    async with scripted(answers) as server:
        facts = await found(AWS, base_url=server.url, **where)
        assert not server.asked
        assert {name: finding.state for name, finding in facts.items()} == {
            "provider": "ok", "key": "ok", "certificates": "ok", "proxy": "ok", "endpoint": "ok", "model": "warning",
            "price": "ok",
        }  # fmt: skip
        assert "AWS_ACCESS_KEY_ID" in facts["key"].message and "Amazon Bedrock" in facts["provider"].message
        assert "--paid" in facts["model"].do
        assert "1.1 in, 5.5 out" in facts["price"].message
        facts = await found(AWS, base_url=server.url, paid=True, **where)
        assert [asked.target for asked in server.asked] == [f"/model/{where['model']}/invoke"]
    assert facts["credit"].state == "ok"


async def test_vertex_and_foundry_count_a_prompt_for_nothing(tmp_path, monkeypatch):
    async with scripted(answers) as server:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(cloud_server.service_account(tmp_path, server.url)))
        facts = await found({}, base_url=f"{server.url}/v1", model="claude-haiku-4-5", provider=VERTEX)
        assert (facts["key"].state, facts["model"].state) == ("ok", "ok"), facts
        facts = await found(
            {"ANTHROPIC_FOUNDRY_API_KEY": cloud_server.FOUNDRY_KEY}, base_url=server.url, model="ours", provider={"provider": "foundry"}
        )  # fmt: skip
        assert (facts["model"].state, facts["price"].state) == ("ok", "warning")
        assert "--price-as MODEL" in facts["price"].do


@pytest.mark.parametrize(
    ("provider", "environ", "said", "do"),
    [
        ({"provider": "bedrock"}, {}, "no region", "give --provider bedrock,region="),
        ({"provider": "vertex", "region": "global"}, {}, "no project", "give --provider vertex,project=NAME"),
        ({"provider": "foundry", "resource": "r"}, {}, "no key", "ANTHROPIC_FOUNDRY_API_KEY"),
        ({"provider": "bedrock", "region": "x-1"}, {"AWS_ACCESS_KEY_ID": "a"}, "AWS_SECRET_ACCESS_KEY is not", "correct"),
    ],
)
async def test_what_is_missing_is_said_with_what_to_do(provider, environ, said, do, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    facts = await found(environ, provider=provider, model="m")
    assert list(facts) == ["provider"]
    assert facts["provider"].state == "wrong" and said in facts["provider"].message
    assert do in facts["provider"].message + facts["provider"].do


async def test_a_missing_package_is_said_with_how_to_install_it(monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "boto3" else there(name, *more)
    )
    facts = await found({}, provider={"provider": "bedrock", "region": "x-1"}, model="m")
    assert facts["provider"].do == "pip install 'cortex-bounded-calls[bedrock]'"


async def test_no_credentials_anywhere(tmp_path, monkeypatch):
    for name in ("HOME", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    for name in AWS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with scripted(answers) as server:
        facts = await found({}, base_url=server.url, provider={"provider": "bedrock", "region": "x-1"}, model="m")
    assert facts["key"].state == "wrong" and "AWS_PROFILE" in facts["key"].do
    assert "model" not in facts
