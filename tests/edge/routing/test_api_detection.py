"""API of a server of the user's own: found by what it answers to an empty request, and asked only where nobody named it.

The answers are made by hand after the servers' sources and issues.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from actors.routing.api_detection import as_known, with_api, with_apis
from actors.routing.model_spec import ModelSpec
from actors.routing.routes import destination
from cortex.values.limits import BATCHES, Limits

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
Answer = tuple[int, Any]
KEYS = {"CORTEX_SERVER_KEY": "sk-of-the-server"}


class Asked:
    """Server, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, bytes, str]] = []
        """Path, body, and the key's header of each request."""
        self.got: list[tuple[str, str]] = []
        """Path and the key's header of what was got."""

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]


@contextmanager
def serving(
    answers: dict[str, Answer], other: Answer = (404, {"detail": "Not Found"}), server: str = "uvicorn",
    pages: dict[str, Any] | None = None,
) -> Iterator[Asked]:  # fmt: skip
    """Server that answers these paths; ``other`` answers any other path. ``server``: its header of that name. ``pages``:
    what is got at other paths."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.requests.append((self.path, body, self.headers.get("Authorization", "")))
            self.answer(*answers.get(self.path, other))

        def do_GET(self) -> None:
            asked.got.append((self.path, self.headers.get("Authorization", "")))
            self.answer(*((200, pages[self.path]) if pages and self.path in pages else other))

        def answer(self, status: int, found: Any) -> None:
            data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response_only(status)
            self.send_header("Server", server)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        asked = Asked(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield asked
        finally:
            listening.shutdown()
            thread.join()


def error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


BOTH: dict[str, dict[str, Answer]] = {
    "vLLM": {MESSAGES: (400, error("1 validation error: messages: Field required")), CHAT: (400, error("x"))},
    "a server with keys": {MESSAGES: (401, error("invalid x-api-key", "authentication_error")), CHAT: (401, {"error": "no"})},
    "a server that is busy": {MESSAGES: (429, error("slow down")), CHAT: (400, error("x"))},
    "a server with a fault": {MESSAGES: (500, "Internal Server Error"), CHAT: (400, error("x"))},
    "a gateway of a server that is away": {MESSAGES: (503, "no healthy upstream"), CHAT: (503, "no healthy upstream")},
    "the Messages API alone": {MESSAGES: (400, error("messages: Field required"))},
}  # fmt: skip
CHAT_ALONE: dict[str, tuple[dict[str, Answer], Answer]] = {
    "vLLM 0.10": (
        {CHAT: (400, {"object": "error", "message": "[{'type': 'missing', 'loc': ('body', 'messages')}]", "code": 400})},
        (404, {"detail": "Not Found"}),
    ),
    "FastAPI": ({CHAT: (422, {"detail": [{"type": "missing", "loc": ["body", "messages"]}]})}, (404, {"detail": "Not Found"})),
    "TGI": ({CHAT: (422, "Failed to deserialize the JSON body into the target type: missing field `messages`")}, (404, "")),
    "llama.cpp of 2024": (
        {CHAT: (500, {"error": {"code": 500, "message": "key 'messages' not found", "type": "server_error"}})},
        (404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}),
    ),
    "Ollama 0.13": (
        {CHAT: (400, {"error": {"message": "[] is too short - 'messages'", "type": "invalid_request_error"}})},
        (404, "404 page not found"),
    ),
    "LM Studio": (
        {CHAT: (400, {"error": "'messages' field is required"})},
        (200, {"error": "Unexpected endpoint or method. (POST /v1/messages)"}),
    ),
    "a server with keys": ({CHAT: (401, {"error": {"message": "Incorrect API key provided."}})}, (404, "")),
    "a method that is not allowed": ({CHAT: (400, {"error": "x"})}, (405, {"detail": "Method Not Allowed"})),
}  # fmt: skip
NEITHER: dict[str, Answer] = {
    "a page": (404, "<html><title>404 Not Found</title></html>"), "a site that answers all": (200, "<html></html>"),
    "LM Studio below another path": (200, {"error": "Unexpected endpoint or method."}),
    "a redirect": (302, ""), "a web server": (405, "<h1>405 Not Allowed</h1>"), "nothing there": (501, ""),
}  # fmt: skip


@pytest.fixture
def spec() -> Callable[..., ModelSpec]:
    return lambda asked, path="", **more: ModelSpec(model="m", base_url=asked.url + path, **more)


@pytest.mark.parametrize("answers", BOTH.values(), ids=BOTH)
async def test_a_server_of_the_messages_api_is_asked_by_it(spec, answers):
    with serving(answers) as asked:
        given = spec(asked)
        assert await with_api(given, KEYS) is given
        assert asked.paths == [MESSAGES]
        assert {key for _, key in asked.got} <= {"Bearer sk-of-the-server"}


@pytest.mark.parametrize(("answers", "other"), CHAT_ALONE.values(), ids=CHAT_ALONE)
async def test_a_server_of_chat_completions_alone_is_asked_by_these(spec, answers, other):
    with serving(answers, other) as asked:
        found, notice = await with_apis(spec(asked), KEYS)
        assert (found.provider, found.base_url) == ("openai", asked.url)
        assert notice == f"{asked.url} has no Messages API: asked by OpenAI's chat completions"
        key = "Bearer sk-of-the-server"
        assert asked.requests == [(MESSAGES, b"{}", key), (CHAT, b"{}", key)]
        assert destination(found, Limits(), KEYS, start=False).route.endpoint == f"openai://+{asked.url}"


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_llama_cpp_is_asked_by_the_api_that_keeps_to_schemas(spec, status):
    refused = (status, error("'messages' is required"))
    with serving({MESSAGES: refused, CHAT: refused}, server="llama.cpp") as asked:
        found, notice = await with_apis(spec(asked), KEYS)
        assert (found.provider, asked.paths) == ("openai", [MESSAGES, CHAT])
        assert notice == f"{asked.url} is llama.cpp, whose Messages API passes over schemas: asked by OpenAI's chat completions"
    with serving({MESSAGES: refused}, server="llama.cpp") as asked:  # a gateway that lets one path through
        given = spec(asked)
        assert await with_apis(given, KEYS) == (given, "")


@pytest.mark.parametrize("other", NEITHER.values(), ids=NEITHER)
async def test_where_nothing_is_found_out_the_calls_show_what_is_wrong(spec, other):
    with serving({}, other) as asked:
        given = spec(asked)
        assert await with_apis(given, KEYS) == (given, "")


async def test_nobody_answers_and_nothing_is_changed(spec):
    given = ModelSpec(model="m", base_url="http://127.0.0.1:1")
    assert await with_api(given, KEYS) is given


@pytest.mark.parametrize(("path", "chat"), [("/api", "/api/v1/chat/completions"), ("/openai", "/openai/chat/completions")])
async def test_below_a_path_the_version_may_be_there_or_not(spec, path, chat):
    with serving({chat: (400, error("x"))}) as asked:
        found = await with_api(spec(asked, path), KEYS)
        assert found.base_url == asked.url + chat.removesuffix("/chat/completions")


@pytest.mark.parametrize(
    "named", [{"provider": "anthropic"}, {"provider": "openai"}, {"provider": "groq"}, {"via": BATCHES}, {"model": "sim"}]
)  # fmt: skip
async def test_where_the_user_named_the_api_nothing_is_asked(spec, named):
    with serving({CHAT: (400, error("x"))}) as asked:
        given = msgspec.structs.replace(spec(asked), **named)
        assert await with_api(given, KEYS) is given
        assert asked.requests == []


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/v1", "{}/v1/messages", "{}/v1/chat/completions"])
@pytest.mark.parametrize("scheme", [True, False])
async def test_an_address_is_understood_in_all_its_forms(spec, form, scheme):
    with serving({CHAT: (400, error("x"))}) as asked:
        url = form.format(asked.url if scheme else asked.url.removeprefix("http://"))
        found = await with_api(ModelSpec(model="m", base_url=url), KEYS)
        assert destination(found, Limits(), KEYS, start=False).route.endpoint == f"openai://+{asked.url}"
        assert asked.paths == [MESSAGES, CHAT]


@pytest.mark.parametrize("url", ["https://api.anthropic.com", "", "no address", "http://"])
async def test_a_provider_of_the_registry_is_not_asked(url):
    given = ModelSpec(model="m", base_url=url)
    assert await with_api(given, {"ANTHROPIC_API_KEY": "sk-1"}) is given


async def test_a_job_that_exists_is_asked_as_before_without_a_request(spec):
    with serving({CHAT: (400, error("x"))}) as asked:
        chat, messages = f"openai://+{asked.url}", asked.url
        assert (await with_api(spec(asked), KEYS, [chat])).provider == "openai"
        assert (await with_api(spec(asked), KEYS, [messages])).provider == ""
        assert as_known(spec(asked), KEYS, [chat]).provider == "openai"
        assert as_known(spec(asked), KEYS, ["http://elsewhere"]).provider == ""
        assert asked.requests == []


async def test_fallbacks_and_roles_have_servers_of_their_own(spec):
    with serving({CHAT: (400, error("x"))}) as chat, serving({MESSAGES: (400, error("x"))}) as messages:
        roles = {"judge": spec(chat), "writer": spec(messages)}
        given = spec(messages, fallbacks=(spec(chat), spec(messages)), roles=roles)
        found, notice = await with_apis(given, KEYS)
        providers = [found.provider, *(each.provider for each in found.fallbacks)]
        assert providers == ["", "openai", ""]
        assert {name: each.provider for name, each in found.roles.items()} == {"judge": "openai", "writer": ""}
        assert notice.startswith(chat.url) and messages.url not in notice
