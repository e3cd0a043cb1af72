"""Servers that pass over schemas in the Messages API are asked by chat completions; Ollama tells how much it holds.

What the servers say of themselves is made by hand after their sources.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from actors.doctor import provider
from actors.doctor.checks import DoctorOptions, examine
from actors.routing.api_detection import wants_schemas, with_apis
from actors.routing.model_spec import ModelSpec
from actors.routing.server_features import is_ollama, lacks_field, loaded_tokens
from cortex.programs.batch import Batch
from cortex.programs.embed import Embed
from cortex.programs.hanoi import Hanoi
from cortex.programs.shards import Shards
from cortex.programs.table import Table
from tests.edge.routing.test_api_detection import CHAT, KEYS, MESSAGES, error, serving
from tests.support.patience import PATIENCE_S

FIELDS = ("model", "messages", "max_tokens", "metadata", "stop_sequences", "stream", "system", "temperature", "thinking",
          "tool_choice", "tools", "top_k", "top_p")  # fmt: skip
VERSION, DESCRIPTION, LOADED = "/api/version", "/openapi.json", "/api/ps"
BY_OLLAMA, BY_DESCRIPTION = "is Ollama, whose Messages API passes over schemas", "has a Messages API that passes over schemas"


def described(*fields: str, named: bool = True, **more: Any) -> dict[str, Any]:
    """Description that FastAPI makes of a server whose Messages API reads these fields."""
    schema = {"type": "object", "properties": {name: {} for name in fields}, "title": "AnthropicMessagesRequest"} | more
    body = {"$ref": "#/components/schemas/AnthropicMessagesRequest"} if named else schema
    post = {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
    return {
        "openapi": "3.1.0", "paths": {"/v1/messages": {"post": post}, "/v1/chat/completions": {"post": {}}},
        "components": {"schemas": {"AnthropicMessagesRequest": schema}},
    }  # fmt: skip


WITHOUT_BODY: dict[str, Any] = {"openapi": "3.1.0", "paths": {"/v1/messages": {"post": {"responses": {}}}}}
SERVERS: dict[str, tuple[dict[str, Any], str]] = {
    "Ollama: `server/routes.go`": ({VERSION: {"version": "0.40.12"}}, BY_OLLAMA),
    "SGLang: `entrypoints/anthropic/protocol.py`": ({DESCRIPTION: described(*FIELDS)}, BY_DESCRIPTION),
    "vLLM before it read schemas": ({DESCRIPTION: described(*FIELDS)}, BY_DESCRIPTION),
    "FastAPI, the schema in its place": ({DESCRIPTION: described(*FIELDS, named=False)}, BY_DESCRIPTION),
    "vLLM": ({DESCRIPTION: described(*FIELDS, "output_config")}, ""),
    "vLLM with `--disable-fastapi-docs`": ({}, ""),
    "LiteLLM, which takes the body as it comes": ({DESCRIPTION: WITHOUT_BODY}, ""),
    "a gateway that passes on further fields": ({DESCRIPTION: described(*FIELDS, additionalProperties=True)}, ""),
    "a server of something else": ({VERSION: {"version": "1.0.0", "service": "x"}, DESCRIPTION: {"paths": {}}}, ""),
    "a page for each path": ({VERSION: "<html>0.5</html>", DESCRIPTION: "<html></html>"}, ""),
}


@pytest.mark.parametrize(("pages", "why"), SERVERS.values(), ids=SERVERS)
async def test_a_server_with_both_apis_is_asked_by_the_one_that_keeps_to_schemas(pages: dict[str, Any], why: str) -> None:
    refused = (400, error("model is required"))
    with serving({MESSAGES: refused, CHAT: refused}, pages=pages) as asked:
        found, notice = await with_apis(ModelSpec(model="m", base_url=asked.url), KEYS)
    assert notice == (f"{asked.url} {why}: asked by OpenAI's chat completions" if why else "")
    assert found.provider == ("openai" if why else "")
    assert asked.paths == ([MESSAGES, CHAT] if why else [MESSAGES])
    assert sorted(asked.got) == [(VERSION, "Bearer sk-of-the-server"), (DESCRIPTION, "Bearer sk-of-the-server")]


@pytest.mark.parametrize(
    ("program", "api", "notice"),
    [
        (Table(prompt="p", schema="{}"), "openai", f"{BY_OLLAMA}: asked by OpenAI's chat completions"),
        (Table(prompt="p", top_logprobs=0), "openai", f"{BY_OLLAMA}: asked by OpenAI's chat completions"),
        (Shards(2, table=Table(prompt="p")), "", ""),
        (Table(prompt="p"), "", ""),
        (Batch(), "", f"{BY_OLLAMA}: give --api chat if rows hold some"),
        (Hanoi(), "openai", f"{BY_OLLAMA}: asked by OpenAI's chat completions"),
        (Embed(prompt="p"), "openai", f"{BY_OLLAMA}: asked by OpenAI's chat completions"),
    ],
)
async def test_a_job_without_schemas_stays_with_the_messages_api(program: Any, api: str, notice: str) -> None:
    """Prompts are counted over it, thoughts have a budget, and results of tools hold images."""
    refused = (400, error("model is required"))
    for answers, found_api, told in (
        ({MESSAGES: refused, CHAT: refused}, api, notice),
        ({CHAT: refused}, "openai", "has no Messages API: asked by OpenAI's chat completions"),
    ):
        with serving(answers, pages={VERSION: {"version": "0.40.12"}}) as asked:
            given = ModelSpec(model="m", base_url=asked.url)
            found, said = await with_apis(given, KEYS, schemas=wants_schemas(program))
        assert (found.provider, said) == (found_api, f"{asked.url} {told}" if told else "")


_CHAT_WITH = "asked by OpenAI's chat completions with a schema or --logprobs, by the Messages API without"
_ALONE = "has no Messages API: asked by OpenAI's chat completions with a schema or without"
_MESSAGES = "asked by the Messages API, with a schema or without"


@pytest.mark.parametrize(
    ("paths", "pages", "line"),
    [
        ((MESSAGES, CHAT), {VERSION: {"version": "0.40.12"}}, f" {BY_OLLAMA}: {_CHAT_WITH}"),
        ((MESSAGES, CHAT), {DESCRIPTION: described(*FIELDS)}, f" {BY_DESCRIPTION}: {_CHAT_WITH}"),
        ((MESSAGES, CHAT), {DESCRIPTION: described(*FIELDS, "output_config")}, f": {_MESSAGES}"),
        ((MESSAGES,), {VERSION: {"version": "0.40.12"}}, f": {_MESSAGES}"),
        ((CHAT,), {}, f" {_ALONE}"),
        ((), {}, None),
    ],
)
async def test_the_doctor_says_which_api_a_job_uses_with_a_schema_and_without(
    paths: tuple[str, ...], pages: dict[str, Any], line: str | None
) -> None:
    """As jobs do, which are asked here too."""
    refused = (400, error("model is required"))
    with serving(dict.fromkeys(paths, refused), pages=pages) as asked:
        options = DoctorOptions(environ=KEYS, base_url=asked.url, timeout_s=PATIENCE_S)
        entries = await asyncio.to_thread(examine, [("check", provider.connection_findings)], options, [], 2 * PATIENCE_S)
        told = [each.message for each in entries if each.check == "api"]
        given = ModelSpec(model="m", base_url=asked.url)
        used = [(await with_apis(given, KEYS, schemas=each))[0].provider for each in (True, False)]
    assert told == ([] if line is None else [f"{asked.url}{line}"])
    by = {_CHAT_WITH: ["openai", ""], _ALONE: ["openai", "openai"], _MESSAGES: ["", ""]}
    assert line is None or used == next(apis for words, apis in by.items() if words in line)


@pytest.mark.parametrize("path", ["", "/v1", "/v1/messages", "/ollama"])
async def test_what_it_says_of_itself_stands_at_its_root(path: str) -> None:
    below = "/ollama" if path == "/ollama" else ""
    refused = (400, error("model is required"))
    answers = {below + each: refused for each in (MESSAGES, CHAT)}
    with serving(answers, pages={below + VERSION: {"version": "0.40.12"}}) as asked:
        found, _ = await with_apis(ModelSpec(model="m", base_url=asked.url + path), KEYS)
    assert found.provider == "openai" and found.base_url == asked.url + below + ("/v1" if below else "")


@pytest.mark.parametrize(("size", "provider"), [(3_000_000, "openai"), (5_000_000, "")])
async def test_a_description_of_many_paths_is_read_up_to_a_bound(size: int, provider: str) -> None:
    """It comes in many pieces. LiteLLM's has some megabytes, and says nothing of this path."""
    refused = (400, error("model is required"))
    pages = {DESCRIPTION: described(*FIELDS) | {"info": {"description": "x" * size}}}
    with serving({MESSAGES: refused, CHAT: refused}, pages=pages) as asked:
        found, _ = await with_apis(ModelSpec(model="m", base_url=asked.url), KEYS)
    assert found.provider == provider


async def test_ollama_with_the_messages_api_alone_is_asked_by_it() -> None:
    """A proxy that lets one path through."""
    with serving({MESSAGES: (400, error("x"))}, pages={VERSION: {"version": "0.40.12"}}) as asked:
        given = ModelSpec(model="m", base_url=asked.url)
        assert await with_apis(given, KEYS) == (given, "")


@pytest.mark.parametrize("body", [None, b"", b"\xff", b"[]", b"{}", b'"x"', b"1", b"[" * 10_000])
def test_anything_else_says_nothing(body: bytes | None) -> None:
    assert not is_ollama(body) and loaded_tokens(body, "m") is None
    assert body is None or not lacks_field(body)


def loaded(**model: Any) -> bytes:
    return json.dumps({"models": [{"name": "other:latest", "model": "other:latest", "context_length": 1}, model]}).encode()


@pytest.mark.parametrize(
    ("listed", "asked", "tokens"),
    [
        (loaded(name="qwen3:8b", model="qwen3:8b", context_length=4096), "qwen3:8b", 4096),
        (loaded(name="qwen3:latest", model="qwen3:latest", context_length=32768), "qwen3", 32768),
        (loaded(name="qwen3:8b", model="qwen3:8b", context_length=4096), "qwen3", None),
        (loaded(name="qwen3:8b", model="qwen3:8b"), "qwen3:8b", None),  # earlier releases
        (loaded(name="qwen3:8b", model="qwen3:8b", context_length=0), "qwen3:8b", None),
        (b'{"models": []}', "qwen3:8b", None),
        (b'{"models": null}', "qwen3:8b", None),
    ],
)
def test_the_tokens_of_a_loaded_model(listed: bytes, asked: str, tokens: int | None) -> None:
    assert loaded_tokens(listed, asked) == tokens


@pytest.mark.parametrize(
    ("listed", "state", "words"),
    [
        ([{"name": "m:latest", "context_length": 4096}], "warning", "holds 4,096 tokens of prompt and answer for m"),
        ([{"name": "m:latest", "context_length": 32768}], "ok", "holds 32,768 tokens of prompt and answer for m"),
        ([], "warning", "once m is loaded"),
        (None, "", ""),
    ],
)
async def test_the_doctor_says_how_much_ollama_holds(listed: Any, state: str, words: str) -> None:
    refused = (400, error("model is required"))
    pages: dict[str, Any] = {"/v1/models": {"object": "list", "data": [{"id": "m"}]}, LOADED: {"models": listed}}
    pages |= {} if listed is None else {VERSION: {"version": "0.40.12"}}
    server = {CHAT: refused} if listed is None else {CHAT: refused, MESSAGES: refused}
    with serving(server, pages=pages) as asked:
        options = DoctorOptions(environ=KEYS, base_url=asked.url, model="m", timeout_s=PATIENCE_S)
        entries = await asyncio.to_thread(examine, [("check", provider.connection_findings)], options, [], 2 * PATIENCE_S)
    found = {each.check: each for each in entries}
    assert (found["context"].state if "context" in found else "") == state, entries
    if state:
        assert words in found["context"].message
        assert ("OLLAMA_CONTEXT_LENGTH" in found["context"].do) is (state == "warning")
