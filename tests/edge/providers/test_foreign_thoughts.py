"""Thoughts of other models, in a conversation that goes on at Claude."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.providers.credentials.credential import Credential
from actors.providers.messages.client import AnthropicModel
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, http

GOOGLE, OPENAI, UNSIGNED, CLAUDE = 'tool_call:{"id":"a","extra_content":{}}', "rs_1:gAAA=", "", "EqQBCgIYAhIM+/="
REFUSED = {"type": "error", "error": {"type": "invalid_request_error", "message": "messages.1.content.0: Invalid `signature` in `thinking` block"}}
MESSAGE = {
    "id": "x", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": None,
    "content": [{"type": "text", "text": "42"}], "usage": {"input_tokens": 9, "output_tokens": 1},
}  # fmt: skip


def conversation(*signatures: str) -> bytes:
    """Return the request that follows a tool call, before which a model has thought."""
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": each} for each in signatures]
    said = [*thoughts, {"type": "tool_use", "id": "a", "name": "look", "input": {}}]
    told = [{"type": "tool_result", "tool_use_id": "a", "content": "42"}]
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": said}, {"role": "user", "content": told}]
    return msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": turns})


def signatures_of(asked: Asked) -> list[str]:
    return [block["signature"] for block in asked.json["messages"][1]["content"] if block["type"] == "thinking"]


@pytest.mark.parametrize("told", [{}, {"x_should_retry": "true"}])
@pytest.mark.parametrize("foreign", [(GOOGLE,), (OPENAI,), (UNSIGNED,), (GOOGLE, OPENAI)])
async def test_thoughts_that_claude_has_not_signed_are_left_out_once_it_refuses_them(foreign: Any, told: dict[str, str]) -> None:
    def script(asked: Asked) -> Answer:
        wrong = set(signatures_of(asked)) & {GOOGLE, OPENAI, UNSIGNED}
        return http(REFUSED, 400, **told) if wrong else http(MESSAGE)

    with served(script) as server:
        model = AnthropicModel(Credential(api_key="k" * 20), base_url=server.url)
        for _ in range(2):
            found = await model.call(conversation(*foreign, CLAUDE), output_tokens_max=9, timeout_s=30)
            assert isinstance(found, Reply), found
        await model.close()
    assert [signatures_of(each) for each in server.asked] == [[*foreign, CLAUDE], [CLAUDE], [CLAUDE]]
    assert [block["type"] for block in server.asked[-1].json["messages"][1]["content"]] == ["thinking", "tool_use"]


async def test_a_signature_of_its_own_that_claude_refuses_is_asked_once_more_and_then_refused() -> None:
    with served(lambda asked: http(REFUSED, 400)) as server:
        model = AnthropicModel(Credential(api_key="k" * 20), base_url=server.url)
        found = await model.call(conversation(CLAUDE), output_tokens_max=9, timeout_s=30)
        await model.close()
    assert isinstance(found, Failure) and found.kind is FailureKind.REJECTED and len(server.asked) == 2
