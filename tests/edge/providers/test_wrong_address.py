"""Refusals that are the address's fault or the model's: told apart, named, and with a remedy of their own.

The bodies are made by hand after the servers' documentation and sources.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors.ports.message_batches import BatchRequest
from actors.providers.chat_completions.errors import ChatFailures
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.credentials.credential import Credential
from actors.providers.messages.client import AnthropicModel
from actors.providers.registry import load, row_of
from actors.providers.remedies import (
    ADDRESS,
    BATCHES,
    CLOSED,
    DEPLOYMENT,
    MODEL,
    NO_TLS,
    OLLAMA,
    PROXY_NO_TLS,
    SCHEMA,
    TLS,
    has_remedy,
)
from actors.providers.transport.failures import page_text
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.scripted_http_server import compact, http, scripted
from tests.edge.support.wired_model import CREDENTIAL, always, error, failed
from tests.support.patience import PATIENCE_S

K = FailureKind
NGINX = b"<html>\r\n<head><title>404 Not Found</title></head>\r\n<body>\r\n<center><h1>404 Not Found</h1></center>\r\n</body></html>"

# status, content type, body, kind, words of the message
ADDRESSES: list[tuple[int, str, bytes | dict[str, Any], str]] = [
    (404, "text/html", NGINX, "404 (404 Not Found)"),
    (404, "text/html", b"<!DOCTYPE html><html><head><title>Open WebUI</title></head></html>", "404 (Open WebUI)"),
    (405, "text/html", b"<h1>405 Not Allowed</h1>", "405 (405 Not Allowed)"),
    (501, "text/html", b"<h1>Unsupported method ('POST')</h1>", "501 (Unsupported method ('POST'))"),
    (404, "text/plain", b"404 page not found", "404 (404 page not found)"),  # Ollama, Go's net/http
    (404, "text/plain", b"default backend - 404", "404 (default backend - 404)"),  # an ingress of Kubernetes
    (404, "", b"", "answered 404:"),  # Envoy
    (404, "application/json", {"detail": "Not Found"}, "404 (Not Found)"),  # FastAPI: vLLM, SGLang, LiteLLM
    (405, "application/json", {"detail": "Method Not Allowed"}, "405 (Method Not Allowed)"),
    (404, "application/json", {"message": "no Route matched with those values"}, "404 (no Route matched"),  # Kong
    (404, "application/json", {"status": 404, "error": "Not Found", "path": "/v1/messages"}, "404 (Not Found)"),
    (404, "application/json", b'{"cut', '404 ({"cut)'),
    # In the form of an error of the API: llama.cpp, OpenAI, LM Studio.
    (404, "application/json", error("not_found_error", "File Not Found"), "404 (File Not Found)"),
    (404, "application/json", {"error": {"code": 404, "message": "File Not Found"}}, "404 (File Not Found)"),
    (404, "application/json", error("invalid_request_error", "Invalid URL (POST /x/v1/messages)"), "404 (Invalid URL"),
    (404, "application/json", error("x", "Unexpected endpoint or method. (POST /x)"), "404 (Unexpected endpoint"),
    # LM Studio answers any path that it does not have with 200, in either form.
    (200, "application/json", {"error": "Unexpected endpoint or method. (POST /v1/messages)"}, "200 (Unexpected endpoint"),
    (200, "application/json", error("x", "Unexpected endpoint or method. (POST /x)"), "200 (Unexpected endpoint"),
]

PORTS_OF_TLS: list[tuple[str, bytes]] = [
    ("text/html", b"<html><head><title>400</title></head><body>The plain HTTP request was sent to HTTPS port</body></html>"),  # nginx
    ("text/plain", b"Client sent an HTTP request to an HTTPS server.\n"),  # Go
    ("text/html", b"<p>Reason: You're speaking plain HTTP to an SSL-enabled server port.<br /></p>"),  # Apache
    ("text/plain", b"Bad Request\nThis combination of host and port requires TLS.\n"),  # Tomcat
]

SCHEMAS: list[tuple[int, str]] = [
    (400, "Invalid schema for response_format 'answer': In context=(), 'additionalProperties' is required"),  # OpenAI
    (400, "output_config.format.schema: For 'object' type, 'additionalProperties' must be set to false"),  # Anthropic
    (400, "The provided JSON schema contains features not supported by xgrammar."),  # vLLM
    (500, 'Grammar error: Unimplemented keys: ["propertyNames"]'),  # vLLM, over the Messages API
    (500, "ValueError: Grammar error: Unknown format: uri"),
    (400, "failed to parse grammar"),  # llama.cpp
    (400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."),  # OpenAI
    (500, "The provided JSON schema contains features not supported by xgrammar."),  # vLLM, over the Messages API
    (500, "ValueError: The provided JSON schema contains a '$ref' cycle with no base case, so no output"),
    (422, "Failed to transform json schema into a grammar: [10:08:22] json_schema_converter.cc:1: unsupported"),
    (500, "Failed to transform regex into a grammar: Regex parsing error"),
    (422, "This response_format type is unavailable now"),  # DeepSeek
]

GATEWAYS: list[tuple[int, str]] = [
    (500, "invalid response format: upstream service unavailable"),
    (500, "Bad response format from upstream (503 Service Unavailable)"),
    (500, "unexpected response_format from provider, service temporarily unavailable"),
    (500, "response_format is not supported by the upstream that is up"),
    (500, "upstream said: Grammar error: the engine is dead"),
    (500, "xgrammar compile worker crashed"),
    (500, "failed to parse grammar of the upstream's answer"),
    (500, "Internal server error"),
    (502, "invalid response format: upstream service unavailable"),
    (503, "response_format is temporarily unavailable"),
]
"""Status and words of faults of gateways and servers, which pass: they are about a response, or about no request."""

OWN_PATHS = {
    "/api": OLLAMA, "/api/chat": OLLAMA, "/api/generate/": OLLAMA, "/api/tags": OLLAMA,
    "/openai/deployments/gpt": DEPLOYMENT, "/x/openai/deployments/gpt/extensions": DEPLOYMENT,
    "/apis": None, "/api/v2": None, "/openai/deployments": None, "/gateway": None,
}  # fmt: skip
"""Path of an address, and the remedy that it calls for; None: that of any other."""

MODELS: list[tuple[int, bytes | dict[str, Any]]] = [
    (404, {"error": {"message": "The model `claude-test` does not exist.", "type": "NotFoundError", "code": 404}}),  # vLLM
    (404, {"object": "error", "message": "The model `claude-test` does not exist.", "type": "NotFoundError"}),  # vLLM 0.8
    (404, error("not_found_error", "The model `claude-test` does not exist.")),
    (404, error("not_found_error", "model 'claude-test' not found")),  # Ollama
    (404, {"error": "model 'claude-test' not found"}),
    (404, {"error": {"message": 'model "claude-test" not found, try pulling it first', "type": "api_error"}}),
    (400, error("invalid_request_error", "model not found")),  # llama.cpp with several models
    (404, error("not_found_error", "model not found")),
    (400, error("invalid_request_error", "/messages: Invalid model name passed in model=claude-test. Call `/v1/models`")),
    (400, {"error": {"message": "claude-test is not a valid model ID", "code": 400}}),  # OpenRouter
    (400, {"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}),  # DeepSeek
    (404, {"error": {"message": "The model `claude-test` does not exist or you do not have access", "type": "x"}}),
    (404, {"detail": "Model claude-test not found"}),
    (404, error("not_found_error", "model: claude-test")),  # Anthropic
]

OTHERS: list[tuple[int, str, bytes | dict[str, Any], K, str]] = [
    (404, "application/json", error("not_found_error", "File not found: file_abc"), K.REJECTED, "File not found: file_abc"),
    (400, "application/json", error("invalid_request_error", "messages.0: not found"), K.REJECTED, "messages.0: not found"),
    (400, "text/html", b"<h1>Bad Request</h1>", K.REJECTED, "URL/v1/messages answered 400 with a page: Bad Request"),
    (403, "text/html", b"<p>Blocked by policy</p>", K.UNAUTHORISED, "answered 403 with a page: Blocked by policy"),
    (503, "text/html", b"<h1>Back soon</h1>", K.OVERLOADED, "URL/v1/messages answered 503 with a page: Back soon"),
    (500, "text/html", b"<script>1 < 2</script> \n", K.TRANSIENT, "answered 500 with a page: it has no text"),
    (200, "text/html", NGINX, K.TRANSIENT, f"URL/v1/messages: the answer is of type text/html, not JSON: {ADDRESS}"),
    (401, "application/json", {"error": "Unauthorized"}, K.UNAUTHORISED, "Unauthorized"),
    (400, "application/json", {"detail": "prompt is longer than the maximum model length of 8"}, K.TOO_LARGE, "longer"),
]  # fmt: skip


async def _failure(status: int, kind: str, body: bytes | dict[str, Any], path: str = "/v1") -> Failure:
    async with scripted(always(http(body, status, kind))) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url.replace("://", "://me:pass-word@") + path)
        failure = await failed(model)
        await model.close()
    assert "pass-word" not in failure.message
    return Failure(failure.kind, failure.message.replace(server.url, "URL"), failure.status)


@pytest.mark.parametrize(("status", "kind", "body", "words"), ADDRESSES)
async def test_a_server_of_something_else_blames_the_address(status: int, kind: str, body: Any, words: str) -> None:
    failure = await _failure(status, kind, body)
    assert (failure.kind, failure.status) == (K.BLOCKED, status)
    assert failure.message.startswith(f"URL/v1/messages answered {status}") and words in failure.message
    assert failure.message.endswith(f": {ADDRESS}") and has_remedy(failure.message)


@pytest.mark.parametrize(("kind", "body"), PORTS_OF_TLS)
async def test_a_port_of_https_that_is_called_by_http_says_so(kind: str, body: bytes) -> None:
    failure = await _failure(400, kind, body)
    assert failure.kind is K.BLOCKED and failure.message.endswith(f": {TLS}") and has_remedy(failure.message)
    assert "https://" in failure.message and ADDRESS not in failure.message


@pytest.mark.parametrize(("path", "remedy"), OWN_PATHS.items())
@pytest.mark.parametrize("status", [404, 401])
async def test_an_address_of_ollamas_own_api_or_of_azures_deployments_is_known(path: str, remedy: str | None, status: int) -> None:
    """Other servers have Ollama's paths too, so what is due at any address stands behind its remedy."""
    failure = await _failure(status, "application/json", {"detail": "Not Found"}, path)
    before = path.partition("/openai/deployments/")[0] if remedy == DEPLOYMENT else ""
    told = remedy.format(f"URL{before}") if remedy else ADDRESS
    told += f"; else {ADDRESS}" if remedy == OLLAMA else ""
    if status == 404 or remedy == DEPLOYMENT:  # Azure wants the key in another header there
        assert failure.message.endswith(f": {told}") and has_remedy(failure.message), failure.message
    else:
        assert failure.message == "Not Found"


@pytest.mark.parametrize(("status", "said"), SCHEMAS)
async def test_a_schema_that_is_refused_is_not_sent_again_and_has_a_remedy(status: int, said: str) -> None:
    failure = await _failure(status, "application/json", error("invalid_request_error", said))
    assert failure.kind is K.REJECTED and failure.message.endswith(f": {SCHEMA}")
    assert ChatFailures(row_of("openai"), str).of_response(status, {}, compact(error("x", said))).message == failure.message


@pytest.mark.parametrize(("status", "said"), GATEWAYS)
async def test_a_fault_of_a_gateway_is_not_taken_for_a_schema_that_is_refused(status: int, said: str) -> None:
    wanted = K.OVERLOADED if status == 503 else K.TRANSIENT
    for name in ("server_error", "api_error", "new_api_error"):
        body = error(name, said)
        told = [await _failure(status, "application/json", body)]
        told += [ChatFailures(row_of("openai"), str).of_response(status, {}, compact(body))]
        assert [each.kind for each in told] == [wanted] * 2 and not [each for each in told if SCHEMA in each.message]


@asynccontextmanager
async def raw(answer: bytes) -> AsyncIterator[str]:
    """Server that answers whatever it gets with these bytes, and closes the connection; its host and port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


@pytest.mark.parametrize(
    ("scheme", "answer", "kind", "message"),
    [
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", K.BLOCKED, f"PORT answers without TLS: {NO_TLS}"),
        ("https", b"", K.TRANSIENT, "no connection: PORT closes it during the handshake of TLS"),
        ("http", b"", K.TRANSIENT, f"http://PORT closes the connection without an answer: {CLOSED}"),
        ("http", b"\x15\x03\x01\x00\x02\x02\x16", K.TRANSIENT, f"http://PORT answers with what is no HTTP: {CLOSED}"),  # an alert
    ],
)
async def test_a_scheme_that_is_not_the_servers_is_named(scheme: str, answer: bytes, kind: K, message: str) -> None:
    async with raw(answer) as port:
        model = AnthropicModel(CREDENTIAL, base_url=f"{scheme}://{port}")
        failure = await failed(model)
        await model.close()
    assert failure.kind is kind and failure.message.replace(port, "PORT").startswith(message), failure.message


async def test_a_proxy_that_takes_no_tls_is_not_taken_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        model = AnthropicModel(Credential(api_key="k" * 20, https_proxy=f"https://{port}"), base_url="https://gpu.example")
        failure = await failed(model)
        await model.close()
    assert failure.kind is K.BLOCKED and failure.message == f"{port} answers without TLS: {PROXY_NO_TLS}"


@pytest.mark.parametrize(("status", "body"), MODELS)
async def test_a_model_that_is_not_there_is_named(status: int, body: Any) -> None:
    failure = await _failure(status, "application/json", body)
    assert failure.kind is K.BLOCKED and "claude-test" in failure.message
    assert failure.message.endswith(f": {MODEL}") and ADDRESS not in failure.message


@pytest.mark.parametrize("said", ["model: claude-test", "model: claude-other"])
async def test_a_server_that_says_the_name_alone_is_said_not_to_have_it(said: str) -> None:
    """Anthropic's message is the name alone, under the type `not_found_error`."""
    failures = AnthropicModel(CREDENTIAL, base_url="http://a.test")._failures
    failure = failures.of_response(404, {}, compact(error("not_found_error", said)))
    named = failures.naming_model(failure, compact({"model": "claude-test"}))
    expected = "there is no model claude-test" if said.endswith("-test") else "model claude-test: model: claude-other"
    assert named.message == f"{expected}: {MODEL}"


@pytest.mark.parametrize(("status", "kind", "body", "expected", "words"), OTHERS)
async def test_any_other_refusal_stays_what_it_was(status: int, kind: str, body: Any, expected: K, words: str) -> None:
    failure = await _failure(status, kind, body)
    assert failure.kind is expected and words in failure.message


async def test_a_server_without_message_batches_is_no_wrong_address() -> None:
    async with scripted(always(http(error("not_found_error", "File Not Found"), 404))) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        listed = await model.batches.listed("", 0.0, 1)
        ended = await model.batches.cancel("msgbatch_1")
        await model.close()
    assert isinstance(listed, Failure) and listed.kind is K.BLOCKED
    assert listed.message == f"{server.url}/v1/messages/batches answered 404 (File Not Found): {BATCHES}"
    assert isinstance(ended, Failure) and ended.kind is K.REJECTED  # that batch is gone


@pytest.mark.parametrize("provider", ["openai", "openai-responses", "mistral"])
async def test_a_server_of_openais_forms_without_batches_is_no_wrong_address_either(provider: str) -> None:
    async with scripted(always(http({"detail": "Not Found"}, 404))) as server:
        account = opened(ProviderLocation(provider=provider, base_url=server.url), {"OPENAI_API_KEY": "k" * 20, "MISTRAL_API_KEY": "k" * 20})
        row = row_of(provider)
        model = load(row.client)(ClientSpec(endpoint=account.endpoint, provider=provider, credential=account.credential))
        found = [await model.batches.listed("", 0.0, 1)]
        found += [await model.batches.submit([BatchRequest("r", b"{}")], PATIENCE_S)]
        await model.close()
    assert {each.message.partition(": ")[2] for each in found} == {BATCHES} and {each.kind for each in found} == {K.BLOCKED}


async def test_a_long_message_keeps_its_remedy() -> None:
    said = f"The model {'m' * 190} does not exist {'x' * 900}"
    failure = await _failure(404, "application/json", error("x", said))
    assert failure.message.endswith(f"…: {MODEL}") and len(failure.message) <= 500


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no page: 1 < 2", "no page: 1 < 2"),
        ("<p>a &amp; b</p>\n<!-- no --> c", "a & b c"),
        ("\ufeff <html><head><title>T</title></head><body></body></html>", "T"),
        ("<html><head><title>T</title></head><body>B<style>x{}</style></body></html>", "B"),
        ("<p>cut <b", "cut"),
        ("<head>no end", "no end"),
        ("<p>a" + "<head " * 150_000, "a"),  # minutes, if each head is looked through to the end
    ],
)
def test_the_text_of_a_page(text: str, shown: str) -> None:
    assert page_text(text) == shown
