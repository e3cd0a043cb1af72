"""Client of the Responses API against a server of this machine: what is sent, and what each answer becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from actors.providers.client.http_model import STREAM_ABOVE_TOKENS
from actors.providers.client.keyed_model import KeyedModel
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.credentials.credential import Credential
from actors.providers.registry import APIS, PROVIDERS, RESPONSES_CLIENT, of_endpoint, over_api, row_of
from actors.providers.remedies import RESPONSES_ADDRESS
from actors.providers.responses.client import model_of
from actors.providers.responses.request import responses_body
from actors.providers.transport.body import REPLY_BYTES_LEAST
from actors.simulator.frontends.http_app import SimulatorServer, serve
from actors.simulator.settings import SimulatorSettings
from cortex.values.chat_form.request import RESPONSES_MARK, written_request
from cortex.values.endings import Ending
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind
from tests.edge.providers.test_chat_errors import AZURE_FILTER, TPM, openai
from tests.edge.providers.test_responses_request import THOUGHT, TOLD, USE
from tests.edge.providers.test_responses_response import events, response, said, stream_of
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, Scripted, Step, http
from tests.support.patience import PATIENCE_S

KEY = "sk-made-up-0123456789"
BODY = json.dumps({"model": "gpt", "max_tokens": 20, "messages": [{"role": "user", "content": "Yes?"}]}).encode()
LOOP = json.dumps({"model": "gpt", "max_tokens": 20, "messages": [
    {"role": "user", "content": "Add."}, {"role": "assistant", "content": [THOUGHT, USE]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "5"}]},
]}).encode()  # fmt: skip
TOOLED = json.dumps(json.loads(LOOP) | {"tools": [{"name": "add"}]}).encode()
YES = response(said("yes"))
EVENTS = "text/event-stream"
K = FailureKind


def client(server: Scripted | SimulatorServer, environ: dict[str, str] | None = None, **where: str) -> KeyedModel:
    name = "openai-responses"
    account = opened(ProviderLocation(provider=name, base_url=server.url, **where), environ or {"OPENAI_API_KEY": KEY})
    return model_of(ClientSpec(endpoint=account.endpoint, provider=name, credential=account.credential))


async def asked(script: Callable[[Asked], Answer], body: bytes = BODY, tokens: int = 20) -> tuple[Any, list[Asked], KeyedModel]:
    with served(script) as server:
        model = client(server)
        found = await model.call(body, output_tokens_max=tokens, timeout_s=PATIENCE_S)
        await model.close()
        return found, server.asked, model


async def test_a_call_is_sent_with_its_key_and_its_limits_are_heard() -> None:
    limits = {"x_ratelimit_limit_requests": "60", "x_ratelimit_remaining_requests": "59", "x_ratelimit_reset_requests": "1s"}
    found, requests, model = await asked(lambda _: http(YES, **limits))
    assert isinstance(found, Reply) and (found.text, found.usage) == ("yes", Usage(10, 3))
    assert (requests[0].target, requests[0].headers["authorization"]) == ("/v1/responses", f"Bearer {KEY}")
    assert requests[0].json == {"model": "gpt", "input": "Yes?", "max_output_tokens": 20, "store": False}
    assert model.rate is not None and model.rate.requests.limit == 60
    assert KEY not in repr(model)


async def test_a_long_reply_is_streamed() -> None:
    stream = events(stream_of(YES))
    found, requests, _ = await asked(lambda _: http(stream, content_type=EVENTS), tokens=STREAM_ABOVE_TOKENS + 1)
    assert isinstance(found, Reply) and (found.text, found.usage) == ("yes", Usage(10, 3))
    assert requests[0].json["stream"] is True


async def test_a_written_request_may_be_answered_by_pictures_beyond_its_tokens() -> None:
    """Tools that the provider runs put what they make into the response: max_output_tokens does not bound it."""
    picture = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "A" * (REPLY_BYTES_LEAST + 100_000)}
    body = written_request(RESPONSES_MARK, {"model": "gpt", "input": "Draw.", "tools": [{"type": "image_generation"}]})
    found, _, _ = await asked(lambda _: http(response(picture, said("here"))), body)
    assert isinstance(found, Reply), found.message


def failed(code: str, message: str = "x") -> dict[str, Any]:
    return response(status="failed", error={"code": code, "message": message})


@pytest.mark.parametrize(
    ("answer", "kind", "came"),
    [
        # https://platform.openai.com/docs/guides/error-codes
        (http(openai("slow", "requests", "rate_limit_exceeded"), 429), K.THROTTLED, False),
        (http(openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), 429), K.BLOCKED, False),
        (http(openai("Incorrect API key provided", code="invalid_api_key"), 401), K.UNAUTHORISED, False),
        (http(openai("The requested model 'g' does not exist.", code="model_not_found"), 400), K.BLOCKED, False),
        (http(openai("Your input exceeds the context window of this model. Please adjust your input and try again.",
                     code="context_length_exceeded", param="input"), 400), K.TOO_LARGE, False),
        (http(openai("Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 1 instead.",
                     code="integer_below_min_value", param="max_output_tokens"), 400), K.REJECTED, False),
        (http(openai("Invalid schema for response_format 'answer'", code="invalid_json_schema"), 400), K.REJECTED, False),
        # `ResponseError` of the package `openai`: the status is 200
        (http(failed("server_error")), K.TRANSIENT, False),
        (http(failed("rate_limit_exceeded")), K.THROTTLED, False),
        (http(failed("rate_limit_exceeded", TPM.replace("Rate limit reached", "Request too large"))), K.TOO_LARGE, False),
        (http(failed("vector_store_timeout")), K.TRANSIENT, False),
        (http(failed("invalid_image_url")), K.REJECTED, False),
        (http(failed("image_parse_error")), K.REJECTED, False),
        (http(failed("data_residency_mismatch")), K.BLOCKED, False),
        (http(response(said("ye"), status="failed", error={"code": "server_error", "message": "x"})), K.TRANSIENT, True),
        (http(response(status="queued")), K.TRANSIENT, False),
        (http(events([*stream_of(YES)[:3], {"type": "error", "error": {"code": "rate_limit_exceeded", "message": "slow"}}]),
              content_type=EVENTS), K.THROTTLED, True),
        (http(events([{"type": "response.failed", "response": failed("rate_limit_exceeded")}]), content_type=EVENTS),
         K.THROTTLED, False),  # Azure: earendil-works/pi#1458
        (http({"choices": []}), K.UNREADABLE, True),
        (http(b"<html>One moment</html>", content_type="text/html"), K.TRANSIENT, False),
        ([Step.RESET], K.TRANSIENT, False),
    ],
)  # fmt: skip
async def test_each_failure_has_its_kind(answer: Answer, kind: FailureKind, came: bool) -> None:
    found, _, _ = await asked(lambda _: answer)
    assert isinstance(found, Failure) and (found.kind, found.answer_came) == (kind, came), found


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (http(AZURE_FILTER, 400), Usage(unknown=True)),  # billed for its prompt
        (http(openai("flagged as potentially violating our usage policy", code="invalid_prompt"), 400), Usage()),
        (http(failed("invalid_prompt")), Usage(unknown=True)),  # the model had begun
        (http(failed("bio_policy")), Usage(unknown=True)),
        (http(failed("image_content_policy_violation")), Usage(unknown=True)),
    ],
)
async def test_a_prompt_that_a_filter_declines_is_a_refusal_not_a_failure(answer: Answer, usage: Usage) -> None:
    found, _, _ = await asked(lambda _: answer)
    assert isinstance(found, Reply) and (found.ending, found.usage, found.model) == (Ending.REFUSED, usage, "gpt")


@pytest.mark.parametrize("told", [{}, {"x_should_retry": "true"}])
async def test_thoughts_that_the_server_cannot_read_are_left_out_from_then_on(told: dict[str, str]) -> None:
    def script(asked: Asked) -> Answer:
        if any(item.get("type") == "reasoning" for item in asked.json["input"]):
            text = "The encrypted content gAAA...DQ== could not be verified."  # openai/codex#8145
            return http(openai(text, code="invalid_encrypted_content"), 400, **told)
        return http(YES)

    with served(script) as server:
        model = client(server)
        found = [await model.call(LOOP, output_tokens_max=20, timeout_s=PATIENCE_S) for _ in range(2)]
        await model.close()
        assert [type(each) for each in found] == [Reply, Reply]
        assert [len(each.json["input"]) for each in server.asked] == [4, 3, 3]


NONE_TOLD = [
    "Encrypted content is not supported with this model.",  # OpenAI, Azure: pydantic/pydantic-ai#2867, #2915
    "Unknown parameter: 'include'.",
    "Invalid value: 'reasoning.encrypted_content'. Supported values are: 'message.input_image.image_url'.",
]


@pytest.mark.parametrize("text", NONE_TOLD)
@pytest.mark.parametrize("told", [{}, {"x_should_retry": "true"}])
async def test_thoughts_that_the_server_does_not_tell_are_not_asked_for_from_then_on(text: str, told: dict[str, str]) -> None:
    with served(lambda asked: http(openai(text, param="include"), 400, **told) if "include" in asked.json else http(YES)) as server:
        model = client(server)
        found = [await model.call(TOOLED, output_tokens_max=20, timeout_s=PATIENCE_S) for _ in range(2)]
        await model.close()
        assert [type(each) for each in found] == [Reply, Reply]
        assert [each.json.get("include") for each in server.asked] == [[TOLD], None, None]
        assert [len(each.json["input"]) for each in server.asked] == [4, 4, 4], "earlier thoughts are given back"
        assert "include" not in json.loads(model.line_body(TOOLED))


def test_a_line_of_a_batch_asks_for_no_thoughts_since_its_refusal_would_cost_the_row() -> None:
    model = model_of(ClientSpec(endpoint="x", provider="openai-responses", credential=Credential(api_key=KEY)))
    line = json.loads(model.line_body(TOOLED))
    assert "include" not in line and len(line["input"]) == 4


async def test_a_tool_loop_gives_the_thoughts_back_that_the_provider_told() -> None:
    """At the simulated provider, which tells them to those who ask alone."""
    first = {"model": "sim", "max_tokens": 400, "messages": [{"role": "user", "content": "Add 2 and 3."}],
             "tools": [{"name": "add", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}}  # fmt: skip
    server = await serve(SimulatorSettings(error=0.0, thinking_tokens=8))
    model = client(server)
    named = first | {"tool_choice": {"type": "tool", "name": "add"}}
    bodies = [json.dumps(each).encode() for each in (first, named)]
    said, bare = [await model.call(body, output_tokens_max=400, timeout_s=PATIENCE_S) for body in bodies]
    await model.close()
    await server.close()
    turn = json.loads(said.body)["content"]
    assert [block["type"] for block in turn] == ["thinking", "tool_use"]
    told = [{"type": "tool_result", "tool_use_id": turn[1]["id"], "content": "5"}]
    more = [*first["messages"], {"role": "assistant", "content": turn}, {"role": "user", "content": told}]
    items = json.loads(responses_body(json.dumps(first | {"messages": more}).encode()))["input"]
    assert [item.get("type") for item in items] == [None, "reasoning", "function_call", "function_call_output"]
    assert items[1]["encrypted_content"]
    assert json.loads(bare.body)["content"][0]["signature"] == ""


async def test_a_request_without_counterpart_is_rejected_unsent() -> None:
    found, requests, _ = await asked(lambda _: http(YES), BODY.replace(b'"max', b'"stop_sequences": ["X"], "max'))
    assert isinstance(found, Failure) and (found.kind, found.sent, requests) == (K.REJECTED, False, [])


@pytest.mark.parametrize("body", [b"<html><h1>404</h1></html>", b"404 page not found", b'{"detail":"Not Found"}'])
async def test_an_address_without_the_api_is_named_with_what_to_do(body: bytes) -> None:
    found, _, model = await asked(lambda _: http(body, 404, content_type="text/plain"))
    assert found.kind is K.BLOCKED and found.message.endswith(RESPONSES_ADDRESS)
    assert f"{model.url}/responses answered 404" in found.message


@pytest.mark.parametrize(
    ("name", "place", "url", "header"),
    [
        ("openai-responses", {}, "https://api.openai.com/v1", ("Authorization", f"Bearer {KEY}")),
        ("azure-responses", {"resource": "r"}, "https://r.openai.azure.com/openai/v1", ("api-key", KEY)),
    ],
)
def test_each_provider_is_asked_at_its_address_under_its_own_key(
    name: str, place: dict[str, str], url: str, header: tuple[str, str]
) -> None:
    row = row_of(name)
    account = opened(ProviderLocation(provider=name, **place), {row.key_variable: KEY})
    model = model_of(ClientSpec(endpoint=account.endpoint, provider=name, credential=account.credential))
    assert (model.url, of_endpoint(account.endpoint)) == (url, row)
    assert account.credential is not None and header in model._headers(account.credential)


def test_rows_of_one_account_differ_in_their_api_alone() -> None:
    same = ("base_url", "base_url_variable", "root", "appended", "hosts", "credential", "key_variable", "key_file_variable",
            "server_key_variable", "secret_variables", "setting_headers", "price_id", "limits_each_model", "structured",
            "place", "telemetry", "title")  # fmt: skip
    rows = [row for row in PROVIDERS.values() if row.client == RESPONSES_CLIENT]
    assert [row.of_account for row in rows] == ["openai", "azure"]
    for row in rows:
        other = row_of(row.of_account)
        assert {name: getattr(row, name) for name in same} == {name: getattr(other, name) for name in same}
        assert (over_api(other, "responses"), over_api(row, "chat"), over_api(row, "responses")) == (row, other, row)
    assert over_api(row_of("groq"), "responses") is None and set(APIS) == {"messages", "chat", "responses"}
