"""Client of chat completions against a server of this machine: what is sent, and what each answer becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from actors.providers.chat_completions.client import ChatModel, model_of
from actors.providers.client.http_model import STREAM_ABOVE_TOKENS
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.registry import PROVIDERS, address_in, api_at, is_own_server, load, of_api, of_endpoint
from cortex.values.endings import Ending
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind
from tests.edge.providers.test_chat_errors import AZURE_FILTER, openai
from tests.edge.providers.test_chat_response import chunks, completion, events
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, Scripted, Step, http
from tests.support.patience import PATIENCE_S

KEY = "sk-made-up-0123456789"
BODY = json.dumps({"model": "gpt", "max_tokens": 8, "messages": [{"role": "user", "content": "Yes?"}]}).encode()
YES = completion({"content": "yes"})
FORCED = json.dumps({
    "model": "gpt", "max_tokens": 8, "messages": [{"role": "user", "content": "Yes?"}],
    "tools": [{"name": "look", "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": "look"},
}).encode()  # fmt: skip


def client(server: Scripted, environ: dict[str, str] | None = None, provider: str = "openai", **where: str) -> ChatModel:
    account = opened(ProviderLocation(provider=provider, base_url=server.url, **where), environ or {"OPENAI_API_KEY": KEY})
    return model_of(ClientSpec(endpoint=account.endpoint, provider=provider, credential=account.credential))


async def asked(script: Callable[[Asked], Answer], body: bytes = BODY, tokens: int = 8) -> tuple[Any, list[Asked], ChatModel]:
    with served(script) as server:
        model = client(server)
        found = await model.call(body, output_tokens_max=tokens, timeout_s=PATIENCE_S)
        await model.close()
        return found, server.asked, model


async def test_a_call_is_sent_with_its_key_and_its_limits_are_heard() -> None:
    limits = {"x_ratelimit_limit_requests": "60", "x_ratelimit_remaining_requests": "59", "x_ratelimit_reset_requests": "1s"}
    found, requests, model = await asked(lambda _: http(YES, **limits))
    assert isinstance(found, Reply) and (found.text, found.usage) == ("yes", Usage(10, 3))
    assert (requests[0].target, requests[0].headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert requests[0].json == {"model": "gpt", "messages": [{"role": "user", "content": "Yes?"}], "max_tokens": 8}
    assert model.rate is not None and model.rate.requests.limit == 60
    assert KEY not in repr(model)


async def test_a_long_reply_is_streamed() -> None:
    stream = events(chunks({"content": "y"}, {"content": "es"}))
    found, requests, _ = await asked(lambda _: http(stream, content_type="text/event-stream"), tokens=STREAM_ABOVE_TOKENS + 1)
    assert isinstance(found, Reply) and (found.text, found.usage) == ("yes", Usage(10, 3))
    assert requests[0].json["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("provider", "answer", "count"),
    [
        ("local", http({"input_tokens": 7}), 7),
        ("local", http({"error": {"message": "no"}}, 404), None),
        ("local", http({"tokens": 7}), None),
        ("local", http(b"7 tokens"), None),
        ("local", [Step.RESET], None),
        ("openai", http({"input_tokens": 7}), 7),
        ("groq", http({"input_tokens": 7}), None),
    ],
)  # fmt: skip
async def test_tokens_are_counted_where_the_server_has_a_counter_beside_the_api(provider: str, answer: Answer, count: int | None) -> None:
    with served(lambda _: answer) as server:
        credential = Credential(api_key=KEY, base_url=server.url)
        model = model_of(ClientSpec(endpoint="e", provider=provider, credential=credential))
        assert await model.count_tokens(BODY) == count
        assert model.counts_tokens == (provider != "groq" and answer != http({"error": {"message": "no"}}, 404))
        await model.count_tokens(BODY)
        await model.close()
        seen = [(each.target, each.body, each.headers["authorization"]) for each in server.asked]
        times = 0 if provider == "groq" else 1 if count is None and not model.counts_tokens else 2
        assert seen == [("/v1/messages/count_tokens", BODY, f"Bearer {KEY}")] * times


@pytest.mark.parametrize(
    ("answer", "kind", "came"),
    [
        (http(openai("slow", "requests", "rate_limit_exceeded"), 429), FailureKind.THROTTLED, False),
        (http({"error": {"code": 502, "message": "upstream"}}), FailureKind.TRANSIENT, False),
        (http({"choices": []}), FailureKind.UNREADABLE, True),
        (http(b"<html>One moment</html>", content_type="text/html"), FailureKind.TRANSIENT, False),
        (http(events([*chunks({"content": "y"})[:1], {"error": {"code": 503, "message": "full"}}]),
              content_type="text/event-stream"), FailureKind.OVERLOADED, True),
        ([Step.RESET], FailureKind.TRANSIENT, False),
    ],
)  # fmt: skip
async def test_each_failure_has_its_kind(answer: Answer, kind: FailureKind, came: bool) -> None:
    found, _, _ = await asked(lambda _: answer)
    assert isinstance(found, Failure) and (found.kind, found.answer_came) == (kind, came)


@pytest.mark.parametrize("told", [{}, {"x_should_retry": "true"}, {"x_should_retry": "false"}])
@pytest.mark.parametrize(
    "words", ["Unsupported parameter: 'max_tokens' is not supported with this model.", "Use `max_completion_tokens` instead."]
)
async def test_a_model_that_wants_the_other_bound_gets_it_from_then_on(words: str, told: dict[str, str]) -> None:
    def script(asked: Asked) -> Answer:
        if "max_tokens" in asked.json:
            return http(openai(words), 400, **told)
        return http(YES)

    with served(script) as server:
        model = client(server)
        for _ in range(2):
            assert isinstance(await model.call(BODY, output_tokens_max=8, timeout_s=PATIENCE_S), Reply)
        await model.close()
        assert [sorted(each.json.keys() & {"max_tokens", "max_completion_tokens"}) for each in server.asked] == [
            ["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"],
        ]  # fmt: skip


async def test_a_server_that_knows_no_usage_of_streams_is_asked_without(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = events(chunks({"content": "yes"})[:-1])

    def script(asked: Asked) -> Answer:
        if "stream_options" in asked.json:
            return http({"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]}, 422)
        return http(stream, content_type="text/event-stream")

    with served(script) as server:
        model = client(server)
        found = [await model.call(BODY, output_tokens_max=9_000, timeout_s=PATIENCE_S) for _ in range(2)]
        await model.close()
    assert [each.usage for each in found if isinstance(each, Reply)] == [Usage(unknown=True)] * 2
    assert len(server.asked) == 3


@pytest.mark.parametrize("told", [{}, {"x_should_retry": "true"}])
@pytest.mark.parametrize(
    "words",
    [
        "Unsupported parameter: 'max_tokens' is not supported with this model.",
        "Thinking mode does not support this tool_choice",
    ],
)
async def test_a_spelling_is_not_kept_whose_request_was_refused_all_the_same(words: str, told: dict[str, str]) -> None:
    odd = FORCED.replace(b"Yes?", b"odd")

    def script(asked: Asked) -> Answer:
        return http(openai(words), 400, **told) if b"odd" in asked.body else http(YES)

    with served(script) as server:
        model = client(server)
        found = [await model.call(each, output_tokens_max=8, timeout_s=PATIENCE_S) for each in (FORCED, odd, FORCED)]
        await model.close()
        assert [type(each) for each in found] == [Reply, Failure, Reply]
        assert len(server.asked) == 4, "asked in another spelling, once"
        assert server.asked[-1].body == server.asked[0].body


async def test_a_server_that_refuses_both_bounds_is_asked_twice_and_no_more() -> None:
    found, requests, _ = await asked(lambda a: http(openai(f"Unsupported: {[n for n in a.json if 'max_' in n]}"), 400))
    assert isinstance(found, Failure) and found.kind is FailureKind.REJECTED
    assert len(requests) == 2


async def test_a_refusal_that_is_to_be_repeated_is_asked_in_both_spellings_and_left_to_the_retries() -> None:
    def script(asked: Asked) -> Answer:
        return http(openai(f"Unsupported: {[n for n in asked.json if 'max_' in n]}"), 400, x_should_retry="true")

    found, requests, _ = await asked(script)
    assert isinstance(found, Failure) and found.kind is FailureKind.TRANSIENT
    assert [[n for n in each.json if "max_" in n] for each in requests] == [["max_tokens"], ["max_completion_tokens"]]


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (http(AZURE_FILTER, 400), Usage(unknown=True)),  # billed for its prompt
        (http(openai("flagged as potentially violating our usage policy", code="invalid_prompt"), 400), Usage()),
    ],
)
async def test_a_prompt_that_a_filter_declines_is_a_refusal_not_a_failure(answer: Answer, usage: Usage) -> None:
    found, _, _ = await asked(lambda _: answer)
    assert isinstance(found, Reply) and (found.ending, found.usage, found.model) == (Ending.REFUSED, usage, "gpt")


@pytest.mark.parametrize("body", [b"[]", b'{"model":"m","messages":[{"role":"user","content":[{"type":"search_result"}]}]}'])
async def test_a_request_without_counterpart_is_rejected_unsent(body: bytes) -> None:
    found, requests, _ = await asked(lambda _: http(YES), body)
    assert isinstance(found, Failure) and (found.kind, found.sent, requests) == (FailureKind.REJECTED, False, [])


async def test_a_renewed_key_is_read_from_its_file(tmp_path: Any) -> None:
    (tmp_path / "key").write_text("sk-old-made-up-0123")

    def script(asked: Asked) -> Answer:
        if "old" in asked.headers["authorization"]:
            (tmp_path / "key").write_text("sk-new-made-up-0123")
            return http(openai("Incorrect API key provided", code="invalid_api_key"), 401)
        return http(YES)

    with served(script) as server:
        model = client(server, {}, key_file=str(tmp_path / "key"))
        found = await model.call(BODY, output_tokens_max=8, timeout_s=PATIENCE_S)
        await model.close()
    assert isinstance(found, Reply), found


# -- rows ------------------------------------------------------------------------------------------------------------

CHAT_ROWS = [row for row in PROVIDERS.values() if "chat_completions" in row.client and row.key_variable and not row.by_model]


def environ_of(row: Any) -> dict[str, str]:
    return {row.key_variable: KEY}


@pytest.mark.parametrize("row", CHAT_ROWS, ids=lambda row: row.name)
def test_each_provider_is_asked_at_its_address_under_its_own_key(row: Any) -> None:
    place = {"resource": "r"} if row.place else {}
    account = opened(ProviderLocation(provider=row.name, **place), environ_of(row))
    model = model_of(ClientSpec(endpoint=account.endpoint, provider=row.name, credential=account.credential))
    url = {
        "openai": "https://api.openai.com/v1", "azure": "https://r.openai.azure.com/openai/v1",
        "gemini": "https://generativelanguage.googleapis.com/v1beta/openai", "groq": "https://api.groq.com/openai/v1",
        "openrouter": "https://openrouter.ai/api/v1", "mistral": "https://api.mistral.ai/v1",
        "together": "https://api.together.xyz/v1", "deepseek": "https://api.deepseek.com/v1",
    }.get(row.name, row.base_url)  # fmt: skip
    assert model.url == url
    assert of_endpoint(account.endpoint) is row
    header = ("api-key", KEY) if row.name == "azure" else ("Authorization", f"Bearer {KEY}")
    if (own := load(row.dialect).key_header) not in ("api-key", "Authorization"):
        header = (own, KEY)
    assert header in model._headers(account.credential)
    with pytest.raises(CredentialError, match=f"no key: set a good key in {row.key_variable}"):
        opened(ProviderLocation(provider=row.name, **place), {})


@pytest.mark.parametrize(
    ("base_url", "endpoint", "asked_at"),
    [
        ("http://gpu:8000", "openai://+http://gpu:8000", "http://gpu:8000/v1"),
        ("http://gpu:8000/v1/", "openai://+http://gpu:8000", "http://gpu:8000/v1"),
        ("http://gpu:8000/v1/chat/completions", "openai://+http://gpu:8000", "http://gpu:8000/v1"),
        ("https://x.example/api/paas/v4", "openai://+https://x.example/api/paas/v4", "https://x.example/api/paas/v4"),
        ("https://x.example/inference", "openai://+https://x.example/inference", "https://x.example/inference"),
    ],
)
def test_addresses_as_users_write_them(base_url: str, endpoint: str, asked_at: str) -> None:
    account = opened(ProviderLocation(provider="openai", base_url=base_url), {})
    assert account.endpoint == endpoint
    assert model_of(ClientSpec(endpoint=endpoint, provider="openai", credential=account.credential)).url == asked_at


def test_a_server_of_ones_own_needs_no_key_and_has_one_to_itself() -> None:
    account = opened(ProviderLocation(provider="openai", base_url="http://gpu:8000"), {})
    assert account.credential is not None and not account.credential.api_key
    assert is_own_server(account.endpoint) and address_in(account.endpoint) == "http://gpu:8000"
    both = {"OPENAI_API_KEY": KEY, "CORTEX_SERVER_KEY": "of-the-server"}
    account = opened(ProviderLocation(provider="openai", base_url="http://gpu:8000"), both)
    assert account.credential is not None and account.credential.api_key == "of-the-server"
    assert is_own_server("https://api.deepseek.com/anthropic")  # a server of the Messages API there


def test_an_organisation_is_named_to_openai_alone() -> None:
    environ = {"OPENAI_API_KEY": KEY, "OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "p-1"}
    named = opened(ProviderLocation(provider="openai"), environ).credential
    assert named is not None and dict(named.custom_headers) == {"OpenAI-Organization": "org-1", "OpenAI-Project": "p-1"}
    elsewhere = opened(ProviderLocation(provider="openai", base_url="http://gpu:8000"), environ).credential
    assert elsewhere is not None and not elsewhere.custom_headers


@pytest.mark.parametrize(
    ("location", "environ", "problem"),
    [
        ({}, {}, "no resource: give --provider azure,resource=NAME, or set AZURE_OPENAI_ENDPOINT"),
        ({"resource": "r", "base_url": "http://gw:8"}, {}, "resource=r and an address"),
    ],
)
def test_azure_needs_one_place(location: dict[str, str], environ: dict[str, str], problem: str) -> None:
    with pytest.raises(CredentialError, match=problem):
        opened(ProviderLocation(provider="azure", **location), {"AZURE_OPENAI_API_KEY": KEY} | environ)


def test_an_api_and_an_address_lead_to_a_row() -> None:
    def name(api: str, url: str) -> str:
        row = of_api(api, url)
        return row.name if row is not None else ""

    assert [name("chat", url) for url in ("", "gpu:8000", "https://api.groq.com/openai/v1")] == ["openai", "openai", "groq"]
    assert (name("messages", "http://gpu:8000"), name("completions", "")) == ("anthropic", "")
    assert [name("responses", url) for url in ("gpu:8000", "https://api.openai.com/v1")] == ["openai-responses"] * 2
    assert api_at("openai://+http://gpu:8000") == "OpenAI's chat completions"
    assert api_at("openai-responses://+http://gpu:8000") == "OpenAI's Responses API"
    assert api_at("http://gpu:8000") == "the Messages API"
