"""Replies of bounded calls, and parsers from text to a typed value or ``Malformed``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.endings import WHOLE_REASONS, Ending, ended_by_itself, ending_of, ending_of_reason

T = TypeVar("T")


class Malformed(ValueError):
    """A complete reply that does not fit the goal's reply type.

    Raised from a program's ``absorb`` (or by the parsers below), it discards the reply and requests the next sample;
    after ``limits.resamples_max`` resamples the goal fails as MALFORMED.
    """


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of one attempt as the provider reported them, in the canonical form (``cortex.values.canonical``).

    Billed input tokens are the sum of the first, third and fourth field: the canonical form counts cache reads and
    cache writes separately from ``input_tokens``. The last field is the part of the fourth that was written for an
    hour.
    """

    input_tokens: int = 0
    """Input tokens without cached ones."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    """Input tokens read from the prompt cache."""
    cache_creation_tokens: int = 0
    """Input tokens written to the prompt cache."""
    cache_creation_1h_tokens: int = 0
    """Part of ``cache_creation_tokens`` that was written for an hour."""
    unknown: bool = False
    """True if the provider reported no usage, or none that can be read. All counts are 0 then, and the attempt is
    charged at its worst case."""

    @property
    def input_tokens_billed(self) -> int:
        """All tokens of the prompt, cached or not."""
        return self.input_tokens + self.cache_read_tokens + self.cache_creation_tokens


UNKNOWN_USAGE: Final = Usage(unknown=True)
"""Usage of a reply whose provider reported none that can be read."""


class TextBlock(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """Text block of the model or the user."""

    text: str


class ToolUse(msgspec.Struct, frozen=True, tag="tool_use", tag_field="type"):
    """Tool use requested by the model; ``id`` links it to its result."""

    id: str
    """Id of this use."""
    name: str
    """Name of the tool."""
    input: dict[str, Any]
    """Arguments."""


class OtherBlock(msgspec.Struct, frozen=True, tag="other", tag_field="type"):
    """Block of another kind (for example thinking), kept unchanged: some providers require it back."""

    fields: dict[str, Any]


Block = TextBlock | ToolUse | OtherBlock


class Said(msgspec.Struct, frozen=True):
    """Turn of the model in a conversation."""

    blocks: tuple[Block, ...]
    """Content of the turn, in order."""
    stop_reason: str = "end_turn"
    """Reason why the reply ended, as the provider names it."""
    usage: Usage = Usage()
    """Tokens of the reply."""
    cost_nusd: int | None = None
    """Cost of its tokens at the route's price, in 1e-9 USD; None if no price is known."""

    @property
    def text(self) -> str:
        """Text blocks of the turn, joined."""
        return "".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        """Tool uses that it requests; empty: the model has finished its turn."""
        return tuple(block for block in self.blocks if isinstance(block, ToolUse))


class Reply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Complete reply: a message in the canonical form (``cortex.values.canonical``), and the fields that the core
    reads.

    ``body`` is the provider's own JSON, unchanged, where its wire form is the canonical one; else what its client
    translated the response into (``canonical_reply``).
    """

    body: bytes
    """The provider's message as JSON bytes."""
    stop_reason: str
    """Reason why the reply ended, as the provider names it."""
    model: str
    """Model that answered, as the provider names it."""
    usage: Usage
    """Tokens of the reply."""

    @property
    def text(self) -> str:
        """Text blocks of the message, joined; empty if the model gave none (for example in a refusal)."""
        try:
            blocks = decode_message(self.body).content
        except msgspec.DecodeError:
            return text_of(self.body)  # raises in its words
        return blocks[0].text if len(blocks) == 1 else text_of(self.body)

    @property
    def ending(self) -> Ending:
        """Kind of the reply's end: whole, cut, empty and so on (``cortex.values.endings``).

        UNKNOWN for a body that is no message.
        """
        try:
            text, asks_for_tool = text_and_tool(self.body)
        except Malformed:
            return Ending.UNKNOWN
        return ending_of(self.stop_reason, text, asks_for_tool)


def canonical_reply(
    content: Sequence[Mapping[str, Any]], *, stop_reason: str, model: str, usage: Usage, name: str = "",
    logprobs: Sequence[Any] | None = None,
) -> Reply:  # fmt: skip
    """Return the reply of a provider whose wire form is another than the canonical one.

    ``content``: blocks, as ``{"type": "text", "text": …}``. ``stop_reason``: one of ``cortex.values.canonical``.
    ``name``: the provider's own id of the reply; empty: none. ``logprobs``: log probabilities of its tokens
    (``cortex.calls.reply_tokens``); None: none.
    """
    counts = {
        "input_tokens": usage.input_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_creation_tokens,
        "output_tokens": usage.output_tokens,
    }
    message = {
        **({"id": name} if name else {}), "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": stop_reason, "stop_sequence": None, "usage": counts,
        **({} if logprobs is None else {"logprobs": logprobs}),
    }  # fmt: skip
    return Reply(msgspec.json.encode(message), stop_reason, model, usage)


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str = ""


class _Message(msgspec.Struct, gc=False):
    content: list[_Block]


_message_decoder = msgspec.json.Decoder(_Message)
decode_message = _message_decoder.decode
"""Return a message, of which ``content`` has each block's ``type`` and ``text``. Raises ``msgspec.DecodeError``."""


def text_of(body: bytes) -> str:
    """Return the text of a message in the provider's JSON form.

    Raises ``Malformed`` if the bytes are no message; callers outside the core have checked that before.
    """
    try:
        blocks = _message_decoder.decode(body).content
    except msgspec.DecodeError as error:
        raise Malformed(f"the reply is no message: {error}") from None
    if len(blocks) == 1:
        return blocks[0].text
    return "".join([block.text for block in blocks if block.type == "text"])


def text_and_tool(body: bytes) -> tuple[str, bool]:
    """Return the text of a message, and whether the message asks for a tool that the client has to run.

    Tools that the provider runs itself (``server_tool_use``) do not count. Raises ``Malformed`` as ``text_of`` does.
    """
    try:
        blocks = _message_decoder.decode(body).content
    except msgspec.DecodeError as error:
        raise Malformed(f"the reply is no message: {error}") from None
    if len(blocks) == 1:
        return blocks[0].text, blocks[0].type == "tool_use"
    text = "".join([block.text for block in blocks if block.type == "text"])
    return text, "tool_use" in [block.type for block in blocks]


def ending_message(ending: Ending, reply: Reply, text: str) -> str:
    """Return why a reply is no whole answer, in one line. ``text``: its text."""
    if ending is Ending.CUT:
        none = "" if text.strip() else ", before any text"
        where = "" if reply.usage.unknown else f" at {reply.usage.output_tokens:,} output tokens"
        return f"the reply was cut{where} ({reply.stop_reason}){none}"
    if ending is Ending.PAUSED:
        return f"the provider interrupted the model's turn ({reply.stop_reason})"
    blocks = _blocks_decoder.decode(reply.body).content
    if ending is Ending.TOOL_USE:
        names = ", ".join(str(block.get("name")) for block in blocks if block.get("type") == "tool_use")
        return f"the model asked for a tool ({names}) where an answer was wanted"
    others = ", ".join(dict.fromkeys(str(block["type"]) for block in blocks if block.get("type") != "text"))
    return "the reply holds no text" + (f", only {others}" if others else "")


class _Blocks(msgspec.Struct):
    content: list[dict[str, Any]]


_blocks_decoder = msgspec.json.Decoder(_Blocks)


def as_said(reply: Reply) -> Said:
    """Return the reply as a turn of a conversation: its text and its tool uses.

    Raises ``Malformed`` for an empty reply, or one that was cut within a tool's input.
    """
    try:
        blocks = tuple(map(_block, _blocks_decoder.decode(reply.body).content))
    except msgspec.DecodeError as error:
        raise Malformed(f"the reply is no turn of a conversation: {error}") from None
    blocks = tuple(block for block in blocks if block != TextBlock(""))
    if not blocks:
        raise Malformed("the reply is empty")
    if isinstance(blocks[-1], ToolUse) and ending_of_reason(reply.stop_reason) is Ending.CUT:
        raise Malformed("the reply was cut within a tool's input: it needs more max_tokens")
    return Said(blocks, reply.stop_reason, reply.usage)


def _block(fields: dict[str, Any]) -> Block:
    if fields.get("type") in ("text", "tool_use"):
        return msgspec.convert(fields, TextBlock | ToolUse)
    return OtherBlock(fields)


def as_choice(reply: Reply, choices: Sequence[str]) -> str:
    """Return the one of ``choices`` that the reply names, ignoring case, quotes and a full stop. Raises
    ``Malformed``.
    """
    text = reply.text.strip()
    if text in choices:
        return text
    bare = [choice for choice in choices if _bare(choice) == _bare(text)]
    if len(bare) == 1:
        return bare[0]
    raise Malformed(f"expected one of {', '.join(choices)}; got {text[:60]!r}")


def _bare(text: str) -> str:
    return text.strip().strip("\"'`*. \n").casefold()


def as_line(reply: Reply, length_max: int = 4_000) -> str:
    """Return the reply as one trimmed, non-empty text of at most ``length_max`` characters. Raises ``Malformed``."""
    text = reply.text.strip()
    if not text:
        raise Malformed("the reply is empty")
    if len(text) > length_max:
        raise Malformed(f"the reply has {len(text)} characters, more than {length_max}")
    return text


def as_json(reply: Reply, type_: type[T]) -> T:
    """Return the reply as a value of ``type_`` (any type that msgspec checks), with or without a code fence.

    Raises ``Malformed`` if it does not fit.
    """
    text = reply.text.strip()
    if text.startswith("```"):
        text = text.split("\n", 1)[-1].rsplit("```", 1)[0]
    if too_deep(text):
        raise Malformed(f"expected {_name(type_)}: the answer is {deep_words()}")
    try:
        return msgspec.json.decode(text, type=type_)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Malformed(f"expected {_name(type_)}: {error}") from None


def _name(type_: Any) -> str:
    return getattr(type_, "__name__", str(type_))


def finished(reply: Reply) -> bool:
    """Return True if the model ended its reply by itself, and not at ``max_tokens``; also if no reason was given."""
    return reply.stop_reason in WHOLE_REASONS or ended_by_itself(reply.stop_reason)
