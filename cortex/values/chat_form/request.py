"""Requests in OpenAI's forms as a job holds them: unchanged in what they ask, whatever fields they have.

The canonical form (``cortex.values.canonical``) has no place for some fields of chat completions. A request that a user
wrote in that form is therefore kept as it is, behind a mark: ``{"api":"chat","model":…,"max_tokens":…,…}``. Only the
bound of the reply has one name, ``max_tokens``, whichever of the two names the user gave it. Clients of chat
completions send such a request as it stands; clients of other APIs translate it first
(``cortex.values.chat_form.messages``). Requests of the Responses API and of embeddings are kept likewise, behind marks
of their own; they are sent over their own API alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

CHAT: Final = "chat"
"""Name of the API, as ``--api`` takes it."""
RESPONSES: Final = "responses"
"""The same, of OpenAI's Responses API."""
EMBEDDINGS: Final = "embeddings"
"""Name of OpenAI's embeddings."""
WRITTEN: Final = b'{"api":"'
"""Beginning of every request that its user wrote in one of these forms."""
RESPONSES_MARK: Final = b'{"api":"responses",'
EMBEDDINGS_MARK: Final = b'{"api":"embeddings",'
CHAT_MARK: Final = b'{"api":"chat",'
"""Beginning of such a request. No canonical request begins so."""
NOT_STREAMED: Final = ("logprobs", "modalities", "audio", "functions")
"""Fields whose answers are lost where the parts of a stream are put together: such a request is not streamed."""

_encode: Final = msgspec.json.Encoder().encode
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def chat_request(fields: Mapping[str, Any]) -> bytes:
    """Return a request with these fields, ``model`` and ``max_tokens`` among them. Equal requests have equal bytes: the
    fields are sorted by name at the top level."""
    return written_request(CHAT_MARK, fields)


def written_request(mark: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return a request with these fields behind a mark, sorted as ``chat_request`` says."""
    return mark + _encode({name: fields[name] for name in sorted(fields)})[1:]


def is_written(body: bytes) -> bool:
    """Return whether a request is one that its user wrote in one of these forms."""
    return body.startswith(WRITTEN)


def fields_of(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of such a request without the mark. Raises ``msgspec.DecodeError`` for bytes that are none."""
    fields = _FIELDS.decode(body)
    fields.pop("api", None)
    return fields


def may_stream(body: bytes) -> bool:
    """Return whether a streamed answer to this request loses nothing (``NOT_STREAMED``)."""
    return not any(b'"%b"' % name.encode() in body for name in NOT_STREAMED)
