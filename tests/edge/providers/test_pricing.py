"""Prices by provider and model: at a provider, at a gateway, at a server that bills nobody."""

from __future__ import annotations

import pytest

from actors.providers.pricing import is_of_another, known
from actors.providers.registry import row_of
from actors.routing.routes import ModelSpec, SetupError, destination
from cortex.values.limits import BATCHES, Limits

GATEWAY, OWN = "https://llm.example.com", "http://litellm:4000"
CAPPED = Limits(max_cost_nusd=1_000_000_000)


@pytest.mark.parametrize(
    ("model", "address", "source"),
    [
        ("claude-haiku-4-5", "https://api.anthropic.com", "claude-haiku-4-5"),
        ("claude-haiku-4-5", GATEWAY, "claude-haiku-4-5"),
        ("gpt-5-mini", GATEWAY, "openai/gpt-5-mini"),
        ("gpt-5-mini", OWN, "openai/gpt-5-mini"),
        ("openai/gpt-5-mini", OWN, "openai/gpt-5-mini"),
        ("gemini-2.5-flash", OWN, "google/gemini-2.5-flash"),
        ("groq/llama-3.1-8b-instant", OWN, "groq/llama-3.1-8b-instant"),
        ("deepseek-chat", "https://api.deepseek.com/anthropic", "deepseek/deepseek-chat"),
        ("glm-4.6", "https://api.z.ai/api/anthropic", "zai/GLM-4.6"),
        ("anthropic/claude-haiku-4.5", "https://openrouter.ai/api", "openrouter/anthropic/claude-haiku-4.5"),
        ("gpt-5-mini", "https://api.anthropic.com", ""),  # which does not serve it
        ("Qwen/Qwen3-8B", OWN, ""),
        ("deepseek-ai/DeepSeek-R1", OWN, ""),
        ("mistralai/Mistral-7B-Instruct-v0.3", OWN, ""),
        ("meta-llama/Llama-3.1-8B-Instruct", OWN, ""),
        ("google/gemma-3-27b-it", OWN, ""),
        ("deepseek-r1:8b", OWN, ""),
        ("llama3.2", OWN, ""),
        ("house-model", GATEWAY, ""),
        ("gpt-house", GATEWAY, ""),
        ("/models/qwen.gguf", OWN, ""),
        ("", OWN, ""),
    ],
)
def test_a_price_is_found_by_address_and_name(model: str, address: str, source: str) -> None:
    price, _ = known(model, address=address)
    assert (price.source if price is not None else "") == (f"genai-prices: {source}" if source else "")
    assert price is None or is_of_another(price, row_of("")) == ("/" in source)


@pytest.mark.parametrize(
    ("model", "provider", "rate"),
    [
        ("text-embedding-3-small", "openai", "0.02"), ("text-embedding-3-large", "azure", "0.13"),
        ("gemini-embedding-001", "gemini", "0.15"), ("mistral-embed", "mistral", "0.1"), ("davinci", "azure", ""),
    ],
)  # fmt: skip
def test_a_model_that_gives_vectors_has_a_price_without_one_of_output(model: str, provider: str, rate: str) -> None:
    price, _ = known(model, provider=provider)
    assert (f"{price.input_usd_per_mtok.normalize():f}" if price is not None else "") == rate
    if price is not None and provider != "mistral":  # which lists one
        assert price.output_usd_per_mtok == 0
        assert destination(ModelSpec(model=model, provider="openai", price_as=model), CAPPED, {"OPENAI_API_KEY": "k"}).route.price


def test_a_cap_holds_at_a_gateway_without_more_and_the_notice_names_the_price() -> None:
    found = destination(ModelSpec(model="gpt-5-mini", base_url=OWN), CAPPED, {})
    assert found.route.price is not None and found.route.price.input_usd_per_mtok.normalize().to_eng_string() == "0.25"
    assert found.route.context_window == 400_000
    assert found.notice == (
        "priced at $0.25 in, $2 out per million tokens (genai-prices: openai/gpt-5-mini): "
        "--price sets another, input=0,output=0 for none"
    )
    half = destination(ModelSpec(model="gpt-5-mini", base_url=OWN, via=BATCHES), CAPPED, {}).route.price
    assert half is not None and half.input_usd_per_mtok * 2 == found.route.price.input_usd_per_mtok
    for spec in (
        ModelSpec(model="gpt-5-mini", base_url=OWN, price="input=0,output=0"),
        ModelSpec(model="gpt-5-mini", base_url=OWN, price_as="claude-haiku-4-5"),
        ModelSpec(model="claude-haiku-4-5", base_url=OWN),
    ):
        quiet = destination(spec, CAPPED, {})
        assert quiet.route.price is not None and not quiet.notice
    with pytest.raises(SetupError, match=r"no price known for 'Qwen/Qwen3-8B'.*give --price, .*--price-as MODEL"):
        destination(ModelSpec(model="Qwen/Qwen3-8B", base_url=OWN), CAPPED, {})
