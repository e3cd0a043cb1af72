"""Most tokens of a reply, by the name of a model on each platform."""

from __future__ import annotations

import pytest

from actors.providers.messages.output_limits import output_tokens_max
from actors.routing.model_spec import ModelSpec
from actors.routing.routes import destination
from cortex.values.limits import Limits


@pytest.mark.parametrize(("tokens", "names"), [
    (4_096, "claude-3-haiku-20240307 claude-3-haiku@20240307 us.anthropic.claude-3-opus-20240229-v1:0 claude-3-opus-latest"),
    (8_192, "claude-3-5-haiku-latest claude-3-5-sonnet-20241022 anthropic/claude-3.5-sonnet"),
    (32_000, "claude-opus-4-0 claude-opus-4-1 claude-opus-4-1-20250805 claude-opus-4-20250514 claude-opus-4@20250514 "
             "us.anthropic.claude-opus-4-20250514-v1:0 claude-4-opus anthropic/claude-opus-4.1"),
    (None, "claude-opus-4-5 claude-opus-4-5-20251101 claude-opus-4-8 claude-opus-5 claude-sonnet-4-5 claude-haiku-4-5 "
           "claude-3-7-sonnet-latest claude-opus-4.5 anthropic.claude-opus-4-6-v1 gpt-4o sim"),
])  # fmt: skip
def test_small_maxima_are_known_by_name(tokens, names):
    assert {name: output_tokens_max(name) for name in names.split()} == dict.fromkeys(names.split(), tokens)


def test_a_route_knows_the_maximum_of_its_model():
    environ = {"ANTHROPIC_API_KEY": "sk-none"}
    for model, tokens in (("claude-3-haiku-20240307", 4_096), ("claude-haiku-4-5", None)):
        found = destination(ModelSpec(model=model), Limits(), environ, start=False)
        found.close()
        assert found.route.output_tokens_max == tokens
