"""Simulated embeddings: equal for equal texts, near for texts alike, and what OpenAI's SDK reads."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest

from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.embeddings.client import model_of
from actors.simulator.api.vectors import as_base64, from_base64, vector
from actors.simulator.frontends.http_app import serve
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.request import BadRequest, read
from actors.simulator.settings import SimulatorSettings
from cortex.programs.parts.embedding import embedding_request, vectors_in
from cortex.values.reply import Reply
from tests.support.patience import PATIENCE_S


def near(one: list[float], two: list[float]) -> float:
    return sum(a * b for a, b in zip(one, two, strict=True))


def test_texts_alike_are_near_each_other() -> None:
    cat, cats, tax = (vector(text, 256) for text in ("the cat eats a fish", "a cat eats the fish now", "tax form 1040"))
    assert near(cat, cat) == pytest.approx(1.0)
    assert near(cat, cats) > 0.7 > near(cat, tax)
    assert all(math.isfinite(number) for number in vector(" ", 8))
    assert from_base64(as_base64([0.5, -1.0])) == [0.5, -1.0]


async def test_http_gives_what_the_model_in_process_gives() -> None:
    body = embedding_request(["It crashes", "I love it"], "sim", 8)
    near_model = SimulatedModel(SimulatorSettings())
    server = await serve(SimulatorSettings())
    account = opened(ProviderLocation(provider="openai", base_url=server.url), {"OPENAI_API_KEY": "k"})
    far = model_of(ClientSpec(endpoint=account.endpoint, provider="openai", credential=account.credential))
    try:
        ours = await near_model.call(body, output_tokens_max=1, timeout_s=PATIENCE_S)
        theirs = await far.call(body, output_tokens_max=1, timeout_s=PATIENCE_S)
        assert isinstance(ours, Reply) and isinstance(theirs, Reply), theirs
        assert vectors_in(ours.body) == vectors_in(theirs.body)
        assert ours.usage == theirs.usage and ours.usage.output_tokens == 0
        assert [len(from_base64(each)) for each in vectors_in(ours.body)] == [8, 8]
    finally:
        await far.close()
        await server.close()


async def test_the_sdk_of_openai_reads_them() -> None:
    server = await serve(SimulatorSettings())
    client = openai.AsyncOpenAI(api_key="sk-test", base_url=f"{server.url}/v1", max_retries=0, timeout=PATIENCE_S)
    try:
        found = await client.embeddings.create(model="sim", input=["a cat", "a dog"])
        plain = await client.embeddings.create(model="sim", input="a cat", encoding_format="float")
        assert [len(each.embedding) for each in found.data] == [64, 64]
        assert found.data[0].embedding == pytest.approx(plain.data[0].embedding)
        assert (found.usage.prompt_tokens, found.usage.total_tokens) == (4, 4)
        with pytest.raises(openai.BadRequestError, match="empty string"):
            await client.embeddings.create(model="sim", input=["a", ""])
    finally:
        await client.close()
        await server.close()


@pytest.mark.parametrize(
    "fields",
    [{"input": []}, {"input": ["a"] * 2049}, {"input": ["ab " * 9000]}, {"input": ["a"], "dimensions": 0},
     {"input": ["ab " * 8000] * 40}, {"input": ["a"], "max_tokens": 1}, {"input": [1]}],
)  # fmt: skip
def test_what_openai_refuses(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        read(json.dumps({**fields, "model": "sim"}).encode().replace(b'"input": ', b'"input":', 1))
