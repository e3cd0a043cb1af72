"""Refusals that are the address's fault or the model's: told apart, named, and with a remedy of their own.

The bodies are made by hand after the servers' documentation and sources.
"""

from __future__ import annotations

from typing import Any

import pytest

from actors.providers.messages.client import AnthropicModel
from actors.providers.remedies import ADDRESS, BATCHES, MODEL, has_remedy
from actors.providers.transport.failures import page_text
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.scripted_http_server import http, scripted
from tests.edge.support.wired_model import CREDENTIAL, always, error, failed

K = FailureKind
NGINX = b"<html>\r\n<head><title>404 Not Found</title></head>\r\n<body>\r\n<center><h1>404 Not Found</h1></center>\r\n</body></html>"
TLS = b"<html><head><title>400</title></head><body>The plain HTTP request was sent to HTTPS port</body></html>"

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
    (400, "text/html", TLS, "400 (The plain HTTP request was sent"),
    (400, "text/plain", b"Client sent an HTTP request to an HTTPS server.\n", "400 (Client sent an HTTP"),
]

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


async def _failure(status: int, kind: str, body: bytes | dict[str, Any]) -> Failure:
    async with scripted(always(http(body, status, kind))) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url.replace("://", "://me:pass-word@") + "/v1")
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


@pytest.mark.parametrize(("status", "body"), MODELS)
async def test_a_model_that_is_not_there_is_named(status: int, body: Any) -> None:
    failure = await _failure(status, "application/json", body)
    assert failure.kind is K.BLOCKED and "claude-test" in failure.message
    assert failure.message.endswith(f": {MODEL}") and ADDRESS not in failure.message


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
