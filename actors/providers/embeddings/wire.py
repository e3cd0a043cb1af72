"""Requests and responses of embeddings, from and to the canonical form (``cortex.programs.parts.embedding``).

The form: https://platform.openai.com/docs/api-reference/embeddings/create; ``CreateEmbeddingResponse`` of the package
``openai`` 3.57. Vectors are asked for as base64, which has a third of the bytes of the numbers in decimal. Servers that
do not know ``encoding_format`` pass over it and send numbers (SGLang, sgl-project/sglang#30434; Ollama), or refuse it
("base64 encoding is not currently supported", vllm-project/vllm#5734): then it is left out.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from actors.providers.chat_completions.response import with_whole
from actors.providers.messages.flawed_response import plausible
from actors.providers.transport.body import UnreadableAnswer
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.json_text import plain_value
from cortex.programs.parts.embedding import NUMBER_BYTES, is_vector, packed, vectors_in
from cortex.values.bounds.counts import count_of
from cortex.values.canonical import END_TURN
from cortex.values.chat_form.completion import EMBEDDING_LIST
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage, canonical_reply
from policies.failures.failure import Failure
from policies.failures.told_retry import refuses_request

BASE64, NUMBERS = "base64", "numbers"
"""Spellings of a request: vectors as base64, or as the server has them."""
_AS_BASE64: Final = b',"encoding_format":"base64"}'
_REFUSES: Final = ("encoding_format", "base64")
"""Words of a refusal of the format."""


class _Vector(msgspec.Struct, gc=False):
    embedding: str | list[float]
    index: int | None = None
    """Place of the text in the request; None: that of the vector in the answer. Gemini leaves the number 0 out, and
    writes the others (samfoy/pi-session-search#13, spring-projects/spring-ai#7019)."""


class _Counts(msgspec.Struct, gc=False):
    prompt_tokens: Any = None
    total_tokens: Any = None


class _Response(msgspec.Struct, gc=False):
    data: list[_Vector]
    model: str = ""
    usage: _Counts | None = None


_DECODER: Final = msgspec.json.Decoder(_Response)


def vectors_body(body: bytes, streamed: bool, variant: str) -> bytes:
    """Return the body of a canonical request: the canonical form is OpenAI's but for the format of vectors."""
    return body[:-1] + _AS_BASE64 if variant == BASE64 else body


def other_format(variant: str, outcome: Failure) -> str | None:
    """Return the other spelling where the server refuses base64; None for any other failure."""
    text = outcome.message.lower()
    refused = refuses_request(outcome) and any(word in text for word in _REFUSES)
    return NUMBERS if variant == BASE64 and refused else None


def read_vectors(body: bytes, charset: str = "") -> Reply:
    """Return the vectors in a response as a canonical reply, in the order of the request.

    Raises UnreadableAnswer for an answer without vectors that can be read, UnreadableResponse for a body that is no
    JSON, and StreamError for one that names an error.
    """
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _flawed(plain_value(body, charset, "data"))
    entries = found.data
    places = [at if entry.index is None else entry.index for at, entry in enumerate(entries)]
    if sorted(places) != list(range(len(entries))):
        raise UnreadableAnswer(f"the answer has vectors for the places {places[:8]}, not one for each text in turn")
    entries = [entries[at] for at in sorted(range(len(entries)), key=places.__getitem__)]
    try:
        texts = [each.embedding if isinstance(each.embedding, str) else packed(each.embedding) for each in entries]
    except ValueError as error:
        raise UnreadableAnswer(f"the answer holds no vector: {error}") from None
    if not texts or not all(map(is_vector, texts)):
        raise UnreadableAnswer("the answer holds no vectors, or one that is none")
    content = [{"type": "text", "text": text} for text in texts]
    return canonical_reply(content, stop_reason=END_TURN, model=found.model, usage=_usage(found.usage))


def read_list(body: bytes, charset: str = "") -> Reply:
    """Return the reply to a request that its user wrote: it holds the list of vectors as it came, and tells their
    number. Raises as ``read_vectors`` does."""
    found = read_vectors(body, charset)
    vectors = vectors_in(found.body)
    numbers = len(vectors[0].rstrip("=")) * 3 // 4 // NUMBER_BYTES
    content = [{"type": "text", "text": f"{len(vectors)} vectors of {numbers} numbers"}]
    told = canonical_reply(content, stop_reason=END_TURN, model=found.model, usage=found.usage)
    return with_whole(told, body, EMBEDDING_LIST)


def _flawed(body: bytes) -> _Response:
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as error:
        value = msgspec.json.decode(body)
        if isinstance(value, dict) and value.get("error"):
            raise StreamError(value["error"]) from None
        raise UnreadableAnswer(f"the answer is no list of vectors: {error}") from None


def _usage(counts: _Counts | None) -> Usage:
    """Return the usage: the tokens of the texts, which some servers count as a total alone."""
    if counts is None:
        return UNKNOWN_USAGE
    given = count_of(counts.total_tokens if counts.prompt_tokens is None else counts.prompt_tokens)
    if given is None:
        return UNKNOWN_USAGE
    return plausible(Usage(given, 0), False)
