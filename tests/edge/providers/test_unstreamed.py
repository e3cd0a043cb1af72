"""Models that refuse to stream are asked for whole answers from then on, over each API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.providers.client.http_model import STREAM_ABOVE_TOKENS, HttpModel
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.registry import load, row_of
from cortex.values.chat_form.request import RESPONSES_MARK, chat_request, written_request
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.providers.test_chat_errors import openai
from tests.edge.providers.test_chat_response import completion
from tests.edge.providers.test_responses_response import response, said
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, http
from tests.support.patience import PATIENCE_S

USER = [{"role": "user", "content": "Yes?"}]
TOKENS = STREAM_ABOVE_TOKENS + 1
BODY = json.dumps({"model": "m", "max_tokens": TOKENS, "messages": USER}).encode()
FORMS: dict[str, tuple[str, bytes, Any]] = {
    "chat": ("openai", BODY, completion({"content": "yes"})),
    "chat, as written": (
        "openai", chat_request({"model": "m", "max_tokens": TOKENS, "messages": USER}), completion({"content": "yes"}),
    ),
    "responses": ("openai-responses", BODY, response(said("yes"))),
    "responses, as written": (
        "openai-responses", written_request(RESPONSES_MARK, {"model": "m", "max_output_tokens": TOKENS, "input": "Yes?"}),
        response(said("yes")),
    ),
    "messages, through a gateway": ("anthropic", BODY, MESSAGE),
}  # fmt: skip
UNVERIFIED = (
    "Your organization must be verified to stream this model. Please go to: https://platform.openai.com/settings/"
    "organization/general and click on Verify Organization. If you just verified, it can take up to 15 minutes for "
    "access to propagate."
)
REFUSALS = [
    openai(UNVERIFIED, param="stream", code="unsupported_value"),  # continuedev/continue#8209
    {"error": {"message": "Provider returned error", "code": 400, "metadata": {
        "raw": json.dumps(openai(UNVERIFIED, param="stream", code="unsupported_value")),
    }}},  # OpenRouter: BeehiveInnovations/pal-mcp-server#134
    openai("Unsupported value: 'stream' does not support true with this model. Only the default (false) value is supported.",
           param="stream", code="unsupported_value"),  # o1-mini: RooCodeInc/Roo-Code#274
    openai("litellm.BadRequestError: AzureException BadRequestError - Error code: 400 - {'error': {'message': \"Unsupported value: "
           "'stream' does not support true with this model. Supported values are: false.\", 'param': 'stream'}}"),
    # LiteLLM: BerriAI/litellm#7693
]  # fmt: skip


OF_OPENROUTER = 1
"""Place of the refusal in OpenRouter's own form, which is that of chat completions."""


def client(provider: str, url: str) -> HttpModel:
    account = opened(ProviderLocation(provider=provider, base_url=url), {row_of(provider).key_variable: "k" * 20})
    made: HttpModel = load(row_of(provider).client)(
        ClientSpec(endpoint=account.endpoint, provider=provider, credential=account.credential)
    )
    return made


async def calls(provider: str, body: bytes, script: Any, monkeypatch: pytest.MonkeyPatch, count: int = 2) -> Any:
    """Outcomes of as many calls, whether each request that was sent asked to stream, and how long each might be silent."""
    silences: list[float | None] = []
    sent = HttpModel._sent

    async def noted(self: HttpModel, form: Any, body: bytes, timeout_s: float, silence_s: float | None, *rest: Any) -> Any:
        silences.append(silence_s)
        return await sent(self, form, body, timeout_s, silence_s, *rest)

    monkeypatch.setattr(HttpModel, "_sent", noted)
    with served(script) as server:
        model = client(provider, server.url)
        found = [await model.call(body, output_tokens_max=TOKENS, timeout_s=PATIENCE_S) for _ in range(count)]
        await model.close()
        posted = [each for each in server.asked if each.method == "POST"]
        return found, [each.json.get("stream", False) for each in posted], silences


@pytest.mark.parametrize(
    ("form", "refusal"),
    [(form, at) for form in FORMS for at in range(len(REFUSALS)) if "messages" not in form or at != OF_OPENROUTER],
)
async def test_a_refused_stream_is_asked_for_whole(
    form: str, refusal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, body, whole = FORMS[form]

    def script(asked: Asked) -> Answer:
        return http(REFUSALS[refusal], 400) if asked.json.get("stream") else http(whole)

    found, streamed, silences = await calls(provider, body, script, monkeypatch)
    assert [type(each) for each in found] == [Reply, Reply], found
    assert streamed == [True, False, False]
    assert [silence is None for silence in silences] == [False, True, True], "a whole answer is silent to its end"


@pytest.mark.parametrize("first", ["stream", "max_tokens"])
async def test_another_spelling_is_found_beside_it(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(asked: Asked) -> Answer:
        refusals = {"stream": REFUSALS[0], "max_tokens": openai("Unsupported parameter: 'max_tokens' is not supported with this model.")}
        wrong = [name for name in refusals if asked.json.get(name)]
        wrong.sort(key=lambda name: name != first)
        return http(refusals[wrong[0]], 400) if wrong else http(completion({"content": "yes"}))

    found, streamed, silences = await calls("openai", BODY, script, monkeypatch)
    assert [type(each) for each in found] == [Reply, Reply], found
    assert sum(streamed) == (1 if first == "stream" else 2) and len(streamed) == 4
    assert silences[-2:] == [None, None]


@pytest.mark.parametrize(
    ("words", "for_good"),
    [
        (UNVERIFIED, True),
        ("Unsupported value: 'stream' does not support true with this model.", True),
        ("Selected model does not support streaming", True),
        ("Streaming is not supported with this model.", True),
        ("gpt-9 does not support streaming.", True),
        ("Streaming is not supported for your organization", True),
        ("Streaming is not supported with tools.", False),
        ("This model does not support streaming with tools", False),
        ("gpt-9 does not support streaming when logprobs are asked for", False),
        ("Streaming is not supported if n > 1", False),
        ("This endpoint does not support streaming", False),
        ("gpt-9-mini-proxy: streaming is not supported", False),
    ],
)
async def test_a_stream_refused_to_one_request_is_asked_for_by_the_next(
    words: str, for_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(asked: Asked) -> Answer:
        return http(openai(words), 400) if asked.json.get("stream") else http(completion({"content": "yes"}))

    found, streamed, _ = await calls("openai", BODY.replace(b'"m"', b'"gpt-9"'), script, monkeypatch)
    assert [type(each) for each in found] == [Reply, Reply], found
    assert streamed == ([True, False, False] if for_good else [True, False, True, False])


async def test_a_refusal_of_something_else_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = openai("Invalid 'messages': streams of thought are not supported")
    found, streamed, _ = await calls("openai", BODY, lambda _: http(refusal, 400), monkeypatch, 1)
    assert isinstance(found[0], Failure) and (found[0].kind, streamed) == (FailureKind.REJECTED, [True])
