"""Embeddings in the canonical form: a request of several texts, and a reply with a vector for each.

A canonical request for embeddings is one JSON object with ``input`` (a list of texts), ``model`` and perhaps
``dimensions``, its fields in alphabetical order. Its reply is a canonical reply (``cortex.values.canonical``) that has
a text block for each text, in their order: the vector as base64 of float32 numbers, least significant byte first, as
OpenAI's ``encoding_format`` ``base64`` has it (https://platform.openai.com/docs/api-reference/embeddings/create).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from cortex.values.reply import Malformed, decode_message

NUMBER_BYTES: Final = 4
_encode: Final = msgspec.json.Encoder().encode


def embedding_request(texts: Sequence[str], model: str, dimensions: int | None) -> bytes:
    """Return the canonical request for the vectors of these texts."""
    fields: dict[str, object] = {} if dimensions is None else {"dimensions": dimensions}
    return _encode({**fields, "input": texts, "model": model})


def is_embedding(body: bytes) -> bool:
    """Return whether a canonical request is one for embeddings. Cheap: it looks at the first bytes."""
    return body.startswith((b'{"input":[', b'{"dimensions":'))


def packed(numbers: Sequence[float]) -> str:
    """Return a vector as the text of its block. Raises ``ValueError`` for numbers that float32 cannot hold."""
    try:
        return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    except (struct.error, OverflowError) as error:
        raise ValueError(f"no vector: {error}") from None


def vectors_in(body: bytes) -> list[str]:
    """Return the vectors of a canonical reply, as the texts of its blocks. Raises ``Malformed``."""
    try:
        return [block.text for block in decode_message(body).content]
    except msgspec.DecodeError as error:
        raise Malformed(f"the reply is no message: {error}") from None


def is_vector(text: str) -> bool:
    """Return whether a text is a vector of at least one number."""
    try:
        size = len(base64.b64decode(text, validate=True))
    except ValueError:
        return False
    return size > 0 and size % NUMBER_BYTES == 0
