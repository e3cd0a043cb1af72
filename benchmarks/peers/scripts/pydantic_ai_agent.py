"""Pydantic AI: an `Agent` whose runs are one call each.

https://ai.pydantic.dev/agents/ and https://ai.pydantic.dev/models/anthropic/ (the SDK's client is given); a model that
answers at once is its own `FunctionModel`.
"""

from typing import Any

import common
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


async def echo(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Return the answer to the last eleven characters of the prompt."""
    return ModelResponse(parts=[TextPart(common.instant(int(str(messages[-1].parts[-1].content)[-6:])))])


async def main() -> None:
    """Make all calls, a fixed number at once."""
    given = common.given()
    model: Any
    if given.work == "null":
        model = FunctionModel(echo)
    else:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        provider = AnthropicProvider(anthropic_client=common.sdk_client(given.url))
        model = AnthropicModel(common.MODEL, provider=provider)
    agent = Agent(model, model_settings={"max_tokens": common.OUTPUT_TOKENS_MAX})

    async def ask(number: int) -> str:
        return str((await agent.run(common.prompt(number))).output)

    began = common.Began()
    answers = await common.in_parallel(ask, range(given.calls), given.at_once)
    common.told(answers, given.calls, began)


common.on_uvloop(main())
