"""Content of a request whose size its bytes do not bound: what refers to something elsewhere, and what is not known.

A block, tool or field that is not known here may stand for anything: a video behind a link, the pages of a search, a
file of the account. So only what is known to have no more tokens than bytes counts by its bytes; the size of all else
is asked of the provider's counter, or is taken for the most that fits.
"""

from typing import Any, Final

import msgspec

BYTES_BOUND: Final = frozenset(
    {
        "text", "image", "image_url", "tool_use", "tool_result", "thinking", "redacted_thinking", "search_result",
        "refusal", "input_text", "output_text",
    }
)  # fmt: skip
"""Types of blocks whose tokens their bytes bound, pictures apart (``tokens.IMAGE_TOKENS``): of the Messages API
(``ContentBlockParam`` of the anthropic SDK 2.12), of chat completions and of the Responses API
(https://platform.openai.com/docs/api-reference/chat/create). Documents, audio, video, files and what servers ran are
left out."""
REACHING: Final = (
    "container", "mcp_servers", "web_search_options", "data_sources", "previous_response_id", "conversation",
    "context_management", "plugins", "documents", "file_ids", "attachments",
)  # fmt: skip
"""Fields of a request by which more is read than was sent: skills and files of a container, earlier responses, searches
and stores of documents, of the Messages API, of OpenAI, Azure (``data_sources``), OpenRouter (``plugins``) and Cohere
(``documents``)."""
_MESSAGE_FIELDS: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "reasoning_content",
     "reasoning", "reasoning_details", "cache_control", "annotations"}
)  # fmt: skip
"""Fields of a message whose values are text."""
_OWN_TOOLS: Final = ("bash_", "text_editor_", "memory_", "computer_2")
"""Beginnings of types of tools that the provider defines and the client runs."""


def reaches_outside(body: bytes) -> bool:
    """Return True if a request holds what its bytes do not bound. A body that is no request is bounded: it is refused.
    """
    try:
        request = msgspec.json.decode(body)
        if not isinstance(request, dict):
            return False
        if any(request.get(name) for name in REACHING):
            return True
        return any(map(_tool_reaches, _listed(request.get("tools")))) or _content_reaches(request)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeError):
        return False


def _content_reaches(request: dict[str, Any]) -> bool:
    if any(map(_block_reaches, _listed(request.get("system")))):
        return True
    for message in _listed(request.get("messages")):
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, dict) or any(map(_block_reaches, _listed(content))):
            return True
        if any(isinstance(message[name], dict | list) for name in message.keys() - _MESSAGE_FIELDS):
            return True
    return False


def _block_reaches(block: Any) -> bool:
    if not isinstance(block, dict):
        return False
    kind = block.get("type", "text" if "text" in block else None)
    known = isinstance(kind, str) and kind in BYTES_BOUND
    return not known or any(map(_block_reaches, _listed(block.get("content"))))


def _tool_reaches(tool: Any) -> bool:
    if not isinstance(tool, dict):
        return False
    kind = tool.get("type")
    if kind is None:
        return "name" not in tool
    return kind not in ("custom", "function") and not (isinstance(kind, str) and kind.startswith(_OWN_TOOLS))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
