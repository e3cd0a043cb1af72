"""A provider's answer, read: the bytes of a message into a `Reply`, or the reason why they are none."""

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
    """The fields that everything downstream relies on; whatever else a message holds is kept as it came."""

    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[_Block]
    stop_reason: str
    usage: _Usage


_DECODER: Final = msgspec.json.Decoder(_Message)
_WRITTEN: Final = msgspec.json.Decoder(_Written)


def read_reply(body: bytes) -> Reply:
    """The message in `body`, kept to the byte (a message laid out over lines is joined into one: the tokens stay).

    A refusal, or a stop at `max_tokens`, is a reply like any other. Raises Unreadable.
    """
    try:
        message = _DECODER.decode(body)
        if not body.isascii():
            body.decode()  # fields that are not looked at above are not checked above
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
    """Tokens that went into the cache for an hour; 0 where nobody says so: a reply is not refused for its bill."""
    try:
        return _WRITTEN.decode(written).ephemeral_1h_input_tokens or 0
    except msgspec.DecodeError:
        return 0
