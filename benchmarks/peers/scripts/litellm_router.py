"""litellm's Router: `acompletion` from an event loop, on its own aiohttp transport.

https://docs.litellm.ai/docs/routing (no retries, no cooldowns: none is needed); a model that answers at once is its own
`mock_response`.
"""

import logging
from typing import Any

import common
import litellm
from litellm import Router


async def main() -> None:
    """Make all calls, a fixed number at once."""
    given = common.given()
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    logging.disable(logging.WARNING)
    route = {"model": f"anthropic/{common.MODEL}", "api_base": given.url, "api_key": common.KEY}
    router = Router(
        model_list=[{"model_name": "bench", "litellm_params": route}], num_retries=0, disable_cooldowns=True
    )

    async def ask(number: int) -> str:
        mock: dict[str, Any] = {} if given.work == "http" else {"mock_response": common.instant(number)}
        messages: Any = [{"role": "user", "content": common.prompt(number)}]
        answer = await router.acompletion("bench", messages, max_tokens=common.OUTPUT_TOKENS_MAX, **mock)
        return str(answer.choices[0].message.content)

    began = common.Began()
    answers = await common.in_parallel(ask, range(given.calls), given.at_once)
    common.told(answers, given.calls, began)


common.on_uvloop(main())
