"""Features of a server of the user's own that its API does not tell: whether it keeps to schemas over the Messages API,
and at Ollama how long a prompt may be.

Servers with both APIs are asked over the one that keeps to schemas (``output_config``). Over Messages some read no such
field, and each typed row would be asked again in words: llama.cpp (``server_chat_convert_anthropic_to_oai`` of
``tools/server/server-chat.cpp``, b11434), Ollama (``OutputConfig`` of ``anthropic/anthropic.go`` holds the effort
alone; ``tool_choice`` is not supported, https://docs.ollama.com/api/anthropic-compatibility) and SGLang
(``AnthropicMessagesRequest`` of ``entrypoints/anthropic/protocol.py``). vLLM reads it, and early releases of it do not:
the description that FastAPI makes of a server names the fields that it reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

MESSAGES_PATH: Final = "/v1/messages"
VERSION_PATH: Final = "/api/version"
"""Path at which Ollama tells its release and nothing else (``server/routes.go``)."""
DESCRIPTION_PATH: Final = "/openapi.json"
"""Path at which FastAPI describes a server, unless it is switched off (vLLM: ``--disable-fastapi-docs``)."""
LOADED_PATH: Final = "/api/ps"
"""Path at which Ollama lists the models that are loaded, with the tokens that each was given
(``ProcessModelResponse.ContextLength`` of ``api/types.go``)."""
OLLAMA_TOKENS: Final = 4_096
"""Tokens of prompt and answer that Ollama holds by default with less than 24 GiB of VRAM; with more 32k, and 256k from
48 GiB (https://docs.ollama.com/context-length). A longer prompt keeps its beginning and its end
(``completionPromptForRequest`` of ``llm/llama_server.go``), and a longer conversation loses early turns
(``server/prompt.go``); neither the status nor the stop reason says so."""
LLAMA_CPP: Final = "llama.cpp"
"""Header ``Server`` of llama.cpp (``tools/server/server-http.cpp``)."""
PASSES_OVER: Final = "whose Messages API passes over schemas"
DESCRIBED: Final = "has a Messages API that passes over schemas"
_FIELD: Final = "output_config"

Got = Callable[[str], Awaitable[bytes | None]]
"""Function that gets what a server has at a path; None: nothing, or no answer."""


async def without_schemas(server: str, got: Got) -> str:
    """Return why a server that has the Messages API keeps to no schema over it, as the end of a sentence; empty:
    nothing says so. ``server``: its header of that name."""
    if server == LLAMA_CPP:
        return f"is llama.cpp, {PASSES_OVER}"
    version, description = await asyncio.gather(got(VERSION_PATH), got(DESCRIPTION_PATH))
    if is_ollama(version):
        return f"is Ollama, {PASSES_OVER}"
    return DESCRIBED if description is not None and lacks_field(description) else ""


def is_ollama(version: bytes | None) -> bool:
    """Return whether an answer at ``VERSION_PATH`` is Ollama's."""
    found = _decoded(version)
    return isinstance(found, dict) and list(found) == ["version"] and isinstance(found["version"], str)


def lacks_field(description: bytes) -> bool:
    """Return whether a description says that requests of the Messages API have no field for a schema. Nothing is said
    where a server takes the body as it comes, as LiteLLM does, or further fields."""
    found = _decoded(description)
    try:
        post = found["paths"][MESSAGES_PATH]["post"]
        schema = post["requestBody"]["content"]["application/json"]["schema"]
        schema = found["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        fields = schema["properties"]
        closed = not schema.get("additionalProperties")
    except (LookupError, TypeError, AttributeError):
        return False
    return closed and "messages" in fields and _FIELD not in fields


def loaded_tokens(listed: bytes | None, model: str) -> int | None:
    """Return the tokens of prompt and answer together that Ollama holds for a model; None where it is not loaded, or
    its release does not tell. ``listed``: the answer at ``LOADED_PATH``. A name without a tag has the tag ``latest``.
    """
    found = _decoded(listed)
    models = found.get("models") if isinstance(found, dict) else None
    names = {model, model if ":" in model else f"{model}:latest"}
    for each in models if isinstance(models, list) else ():
        if isinstance(each, dict) and names & {each.get("name"), each.get("model")}:
            tokens = each.get("context_length")
            return tokens if isinstance(tokens, int) and tokens > 0 else None
    return None


def _decoded(body: bytes | None) -> Any:
    try:
        return None if body is None else msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
