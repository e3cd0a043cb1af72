"""Parser of a whole response of the Messages API: from the bytes of a message to a `Reply`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from actors.providers.transport.body import UnreadableResponse
from cortex.values.reply import Reply, Usage

Count = Annotated[int, msgspec.Meta(ge=0)]


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
    text: str | None = None


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


def read_reply(body: bytes) -> Reply:
    """Return the message in `body` as a reply, kept to the byte; a message over several lines is joined into one.

    A refusal, or a stop at `max_tokens`, is a reply like any other. Raises UnreadableResponse.
    """
    try:
        message = _DECODER.decode(body)
        if not body.isascii():
            body.decode()  # the decoder checks only the fields that it reads
    except msgspec.ValidationError as error:
        raise UnreadableResponse(f"the answer is no message: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableResponse(f"the answer is no JSON: {error}") from None
    for block in message.content:
        if block.type == "text" and block.text is None:
            raise UnreadableResponse("the answer is no message: a text block holds no text")
    if b"\n" in body or b"\r" in body:
        body = msgspec.json.format(body, indent=-1)
    usage = message.usage
    return Reply(
        body,
        message.stop_reason,
        message.model,
        Usage(
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
            _for_an_hour(usage.cache_creation) if usage.cache_creation_input_tokens else 0,
        ),
    )


def _for_an_hour(written: msgspec.Raw) -> int:
    """Return the tokens that were written to the cache for an hour; 0 where they cannot be read: a reply is not refused
    for its bill."""
    try:
        return _WRITTEN.decode(written).ephemeral_1h_input_tokens or 0
    except msgspec.DecodeError:
        return 0
