"""Simulated log probabilities: whoever reads the tokens gets back the shares that they were made of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.providers.chat_completions.client import model_of
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.credentials.credential import Credential
from actors.providers.messages.client import AnthropicModel
from actors.simulator.api.logprobs import pieces, shares
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.frontends.http_app import serve
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.request import BadRequest, read
from actors.simulator.settings import SimulatorSettings
from cortex.programs.parts.choice_columns import choices_of
from cortex.programs.parts.token_logprobs import field_probabilities, tokens_of
from cortex.values.reply import Reply
from policies.failures.failure import Failure
from tests.support.patience import PATIENCE_S

SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["topic", "size", "urgent", "why"],
    "properties": {
        "topic": {"enum": ["code", "codec", "database", "data", "web"]}, "size": {"enum": [1, 10, 100]},
        "urgent": {"type": "boolean"}, "why": {"type": "string"},
    },
}  # fmt: skip


def request(number: int, top: int | None = 20, tokens: int = 100) -> bytes:
    fields: dict[str, Any] = {
        "model": "sim", "max_tokens": tokens,
        "messages": [{"role": "user", "content": f"Which topic, size and urgency has ticket {number}? The web is down."}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    }  # fmt: skip
    if top is not None:
        fields |= {"logprobs": True, "top_logprobs": top}
    return json.dumps(fields).encode()


@pytest.mark.parametrize("error", [0, 1])
def test_the_formula_gets_the_shares_back(error: float) -> None:
    provider = SimulatedProvider(SimulatorSettings(error=error))
    choices = choices_of(json.dumps(SCHEMA))
    read_back = 0
    for number in range(40):
        outcome = provider.decide(request(number), 0.0)
        assert outcome.ask is not None and outcome.answer is not None
        made = shares(outcome.answer, outcome.ask)
        text = outcome.answer.text
        if not text.endswith("}"):  # an error that misses the form
            continue
        found = field_probabilities(json.dumps(outcome.message()).encode(), text, choices)
        for name, chance in found.items():
            if name in made:
                value = json.dumps(json.loads(text)[name])
                assert chance == pytest.approx(made[name][value], abs=2e-5), (text, name)
                read_back += 1
            else:
                assert chance is None
    assert read_back > 30


def test_tokens_give_the_text_and_no_more_alternatives_than_wanted() -> None:
    assert pieces('{"é":"日本語"}') == ['{"é', '":"', "日", "本", '語"', "}"]
    provider = SimulatedProvider(SimulatorSettings(error=0))
    for top in (0, 1, 20):
        message = provider.decide(request(1, top), 0.0).message()
        assert "".join(text for text, _, _ in message["logprobs"]) == message["content"][0]["text"]
        most = max(len(others) for _, _, others in message["logprobs"])
        assert most == top if top < 2 else 1 < most <= top
    assert "logprobs" not in provider.decide(request(1, None), 0.0).message()


@pytest.mark.parametrize("top", [-1, 21])
def test_a_number_of_alternatives_that_openai_refuses(top: int) -> None:
    with pytest.raises(BadRequest):
        read(request(1, top))


@pytest.mark.parametrize("tokens", [100, 20_000])  # the latter is streamed
async def test_chat_completions_over_http_give_what_the_model_in_process_gives(tokens: int) -> None:
    near = SimulatedModel(SimulatorSettings(error=0))
    server = await serve(SimulatorSettings(error=0))
    account = opened(ProviderLocation(provider="openai", base_url=server.url), {"OPENAI_API_KEY": "k"})
    far = model_of(ClientSpec(endpoint=account.endpoint, provider="openai", credential=account.credential))
    try:
        ours = await near.call(request(1, tokens=tokens), output_tokens_max=tokens, timeout_s=PATIENCE_S)
        theirs = await far.call(request(1, tokens=tokens), output_tokens_max=tokens, timeout_s=PATIENCE_S)
        assert isinstance(ours, Reply) and isinstance(theirs, Reply), theirs
        assert ours.text == theirs.text and tokens_of(ours.body) == tokens_of(theirs.body) != []
    finally:
        await far.close()
        await server.close()


async def test_the_messages_api_refuses_the_field() -> None:
    server = await serve(SimulatorSettings(error=0))
    far = AnthropicModel(Credential(api_key="k", base_url=server.url))
    try:
        outcome = await far.call(request(1), output_tokens_max=100, timeout_s=PATIENCE_S)
        assert isinstance(outcome, Failure) and "logprobs: Extra inputs are not permitted" in outcome.message
        assert server.provider.stats()["worked"] == 0
    finally:
        await far.close()
        await server.close()
