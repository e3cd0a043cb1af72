"""Addresses as people type and copy them, and schemas that a server refuses: one clear line that says what to do."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.cli_runner import Done, requests
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, compact, http

KEY = "key-of-nobody-0123456789"
COMPLETION = {
    "id": "c1", "object": "chat.completion", "model": "m", "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "bug"}, "finish_reason": "stop"}],
}  # fmt: skip
BATCH = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "m", "--job", "j")


def chat_below(root: str, missing: Answer) -> Callable[[Asked], Answer]:
    """Server of chat completions below a path, which answers anything else in its own way."""
    return lambda asked: http(COMPLETION) if asked.target == f"{root}/chat/completions" and asked.body != b"{}" else missing


def azure(asked: Asked) -> Answer:
    """Azure: the key is in a header of its own, and the API of deployments wants a version."""
    if "api-key" not in asked.headers:
        return http({"error": {"code": "401", "message": "Access denied due to invalid subscription key"}}, 401)
    return chat_below("/openai/v1", http({"error": {"code": "404", "message": "Resource not found"}}, 404))(asked)


OLLAMA = chat_below("/v1", http(b"404 page not found", 404, "text/plain"))
GO = http(b"Client sent an HTTP request to an HTTPS server.\n", 400, "text/plain")
DEPLOYMENT = "give --provider azure, --base-url URL, and its name as --model"


class Typed(NamedTuple):
    """What is typed."""

    options: tuple[str, ...]
    """Options; URL, HOST: address of the server, and its host and port."""
    script: Callable[[Asked], Answer]
    code: int
    words: str
    """Words of the line; empty: the job is done."""
    never: tuple[str, ...] = ("credit", "account")


TYPED = {
    "a slash at the end": Typed(("--base-url", "URL/v1/", "--api", "chat"), OLLAMA, 0, ""),
    "the path of a call": Typed(("--base-url", "URL/v1/chat/completions/", "--api", "chat"), OLLAMA, 0, ""),
    "Ollama's own API": Typed(("--base-url", "URL/api", "--api", "chat"), OLLAMA, 3, "leave out the path of its own API: give --base-url URL;"),
    "a call of it": Typed(("--base-url", "URL/api/chat", "--api", "chat"), OLLAMA, 3, "leave out the path of its own API: give --base-url URL;"),
    "http for https": Typed(("--base-url", "URL", "--api", "chat"), lambda asked: GO, 3, "give --base-url with https://, which that port wants;", ("--api",)),
    "a deployment of Azure": Typed(("--base-url", "URL/openai/deployments/gpt/chat/completions?api-version=2024-10-21"), azure, 2, DEPLOYMENT),
    "the same, without its version": Typed(("--base-url", "URL/openai/deployments/gpt", "--api", "chat"), azure, 3, DEPLOYMENT),
    "the same at Azure's row": Typed(("--base-url", "URL/openai/deployments/gpt", "--provider", "azure"), azure, 3, DEPLOYMENT),
    "as it is told": Typed(("--base-url", "URL", "--provider", "azure"), azure, 0, ""),
    "a key as a query": Typed(("--base-url", f"URL/v1?key={KEY}", "--api", "chat"), OLLAMA, 2, "set a key in CORTEX_SERVER_KEY"),
    "a key before the host": Typed(("--base-url", f"http://{KEY}@HOST", "--api", "chat"), OLLAMA, 2, "set a key in CORTEX_SERVER_KEY or --api-key-file"),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPED)
def test_an_address_is_understood_or_corrected_in_one_line(
    case: str, cortex: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = TYPED[case]
    requests(Path("in.jsonl"), 2)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "made-up-azure-0123456789")
    with served(typed.script) as server:
        host = server.url.removeprefix("http://")
        done = cortex(*BATCH, *(each.replace("URL", server.url).replace("HOST", host) for each in typed.options))
    lines = [line for line in done.said() if line.startswith(("blocked: ", "unauthorised: ", "--base-url "))]
    assert (done.code, len(lines)) == (typed.code, int(bool(typed.words))), done.err
    if typed.words:
        assert typed.words.replace("URL", server.url) in lines[0], lines[0]
        assert not any(words in lines[0] for words in typed.never) and KEY not in done.err, lines[0]


@contextlib.contextmanager
def plain_port() -> Iterator[str]:
    """Port that answers a handshake of TLS by HTTP, as servers without TLS do."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as client:
                        client.recv(65_536)  # all of it: a connection with unread bytes is closed by a reset
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nInvalid HTTP request received.")

        threading.Thread(target=serve, daemon=True).start()
        yield "{}:{}".format(*listening.getsockname())
        listening.shutdown(socket.SHUT_RDWR)


def test_https_typed_for_http_is_told_at_once_by_batch_and_doctor(cortex: Callable[..., Done]) -> None:
    requests(Path("in.jsonl"), 2)
    with plain_port() as port:
        done = cortex(*BATCH, "--base-url", f"https://{port}", "--api", "chat")
        assert done.code == 3, done.err
        assert f"blocked: {port} answers without TLS: give --base-url with http://" in done.err
        shown = " ".join(cortex("doctor", "--base-url", f"https://{port}", "--api", "chat").out.split())
    assert "give --base-url with http://" in shown and "SSL_CERT_FILE to a file" not in shown


REFUSED: dict[str, tuple[int, Any]] = {
    "OpenAI": (400, {"error": {"message": "Invalid schema for response_format 'answer': …", "type": "invalid_request_error"}}),
    "vLLM": (500, {"error": {"message": 'Grammar error: Unimplemented keys: ["propertyNames"]', "type": "InternalServerError"}}),
}


@pytest.mark.parametrize("server", REFUSED)
def test_a_schema_that_the_server_refuses_is_told_with_what_to_do(server: str, cortex: Callable[..., Done]) -> None:
    Path("in.csv").write_text("id,text\nr0,a\nr1,b\n")
    Path("s.json").write_text(json.dumps({"type": "object", "properties": {"label": {"type": "string"}}}))
    table = ("in.csv", "--prompt", "{{text}}", "--id", "id", "--schema", "s.json", "--model", "m", "--api", "chat")
    status, body = REFUSED[server]
    with served(lambda asked: http(compact(body), status)) as refusing:
        done = cortex("batch", *table, "-o", "out.csv", "--base-url", refusing.url, "--job", "j")
        assert done.code == 1 and "correct the schema, or have it asked in words (--schema-as prompt)" in done.err
        assert sum(b'"response_format"' in asked.body for asked in refusing.asked) == 2, "none is sent again"
        planned = cortex("plan", *table, "--sample", 2, "--base-url", refusing.url)
    assert planned.code == 1 and "correct why they failed" in planned.said()[-1]
