"""JSON of embeddings at the simulated provider, in OpenAI's form.

Own code, not that of the client (``actors.providers.embeddings``): each is a check of the other.
"""

from typing import Any, Final

import msgspec

from actors.simulator.api import chat_wire
from actors.simulator.api.vectors import from_base64
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest

BEHIND_CONTENT: Final = b',"model":'
"""Beginning of what stands behind the vectors of a response."""

_encode = msgspec.json.Encoder().encode


def messages_request(body: bytes) -> bytes:
    """Return a request in the form that the provider reads. Raises ``BadRequest``."""
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"We could not parse the JSON body of your request: {error}") from None
    if "input" not in given:
        raise BadRequest("Missing required parameter: 'input'.")
    return _encode({"input": given.pop("input"), **given})


def whole(facts: dict[str, Any]) -> bytes:
    """Return the body of a response."""
    vectors = [block["text"] for block in facts["content"]]
    data = [
        {"object": "embedding", "index": at, "embedding": text if facts["as_base64"] else from_base64(text)}
        for at, text in enumerate(vectors)
    ]
    tokens = facts["usage"]["input_tokens"]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _encode({"object": "list", "data": data, "model": facts["model"], "usage": usage})


def events(facts: dict[str, Any]) -> list[tuple[bytes, int]]:
    """Return no events: vectors are never streamed."""
    return []


def error_event(refusal: ErrorResponse) -> bytes:
    """Return the event of an error, as chat completions have it."""
    return chat_wire.error_event(refusal)
