"""Requests that their users wrote as chat completions: sent as they stand, and answered with the completion that came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.providers.client.http_model import STREAM_ABOVE_TOKENS
from cortex.values.chat_form.completion import completion_of
from cortex.values.chat_form.request import chat_request
from cortex.values.reply import Reply, Usage
from tests.edge.providers.test_chat_client import asked
from tests.edge.providers.test_chat_response import completion
from tests.edge.support.scripted_http_server import http


@pytest.mark.parametrize(("fields", "tokens"), [({}, 8), ({"logprobs": True}, STREAM_ABOVE_TOKENS + 1)])
async def test_a_request_that_was_written_as_chat_is_sent_and_answered_as_it_stands(
    fields: dict[str, Any], tokens: int
) -> None:
    written = {"model": "gpt", "messages": [{"role": "developer", "name": "Ann", "content": "Yes?"}], "odd": {"b": [1, 2.5]}}
    logprobs = {"content": [{"token": "yes", "logprob": -0.5}]}
    whole = completion({"content": "yes"}, logprobs=logprobs) | {"system_fingerprint": "fp"}
    body = chat_request(written | fields | {"max_tokens": tokens})
    found, requests, _ = await asked(lambda _: http(whole), body, tokens)
    assert requests[0].json == written | fields | {"max_tokens": tokens}
    assert isinstance(found, Reply) and (found.text, found.usage) == ("yes", Usage(10, 3))
    assert json.loads(completion_of(found.body, 0.0)[0]) == whole
