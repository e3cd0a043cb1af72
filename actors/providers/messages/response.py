"""Parser of a whole response of the Messages API: from the bytes of a message to a `Reply`."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from actors.providers.messages.flawed_response import plausible, read_flawed
from actors.providers.transport.body import UnreadableResponse
from cortex.values.bounds.counts import Count
from cortex.values.reply import Reply, Usage


class _Written(msgspec.Struct):
    ephemeral_1h_input_tokens: Count | None = None


class _Usage(msgspec.Struct):
    input_tokens: Count
    output_tokens: Count
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_creation: msgspec.Raw = msgspec.Raw()


class _Block(msgspec.Struct):
    type: str
    text: str | msgspec.UnsetType = msgspec.UNSET


class _Message(msgspec.Struct):
    """Fields that other packages rely on. All other fields of a message are kept unchanged."""

    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[_Block]
    stop_reason: str
    usage: _Usage


_DECODER: Final = msgspec.json.Decoder(_Message)
_WRITTEN: Final = msgspec.json.Decoder(_Written)


def read_message(body: bytes, charset: str = "") -> Reply:
    """Return the message in `body` as a reply; of a flawed one, what can be read (`flawed_response.read_flawed`).

    The one reader of messages, for plain responses, streams and message batches. ``charset``: the one that the content
    type names. Raises UnreadableResponse and StreamError, as `read_flawed` does.
    """
    try:
        return read_reply(body)
    except UnreadableResponse:
        return read_flawed(body, charset)


def read_reply(body: bytes) -> Reply:
    """Return the correct message in `body` as a reply, kept to the byte; one over several lines is joined into one.

    A refusal, or a stop at `max_tokens`, is a reply like any other. Raises UnreadableResponse for any flaw but an
    impossible count of 0, which makes the usage unknown.
    """
    try:
        message = _DECODER.decode(body)
        if not body.isascii():
            body.decode()  # the decoder checks only the fields that it reads
    except msgspec.ValidationError as error:
        raise UnreadableResponse(f"the answer is no message: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableResponse(f"the answer is no JSON: {error}") from None
    for block in message.content:
        if block.type == "text" and block.text is msgspec.UNSET:
            raise UnreadableResponse("the answer is no message: a text block holds no text")
    if b"\n" in body or b"\r" in body:
        body = msgspec.json.format(body, indent=-1)
    counts = message.usage
    usage = Usage(
        counts.input_tokens,
        counts.output_tokens,
        counts.cache_read_input_tokens or 0,
        counts.cache_creation_input_tokens or 0,
        _for_an_hour(counts.cache_creation) if counts.cache_creation_input_tokens else 0,
    )
    if not (counts.input_tokens and counts.output_tokens):
        usage = plausible(usage, any(block.text for block in message.content))
    return Reply(body, message.stop_reason, message.model, usage)


def _for_an_hour(written: msgspec.Raw) -> int:
    """Return the tokens that were written to the cache for an hour; 0 where they cannot be read: a reply is not refused
    for its bill."""
    try:
        return _WRITTEN.decode(written).ephemeral_1h_input_tokens or 0
    except msgspec.DecodeError:
        return 0
