"""Endings of replies: one function says what a reply is, whichever program or transport asked for it.

A reply is an answer only if the model ended it by itself and it holds text. The stop reason alone does not say so: a
model that spends ``max_tokens`` on thinking, or ends its turn without a word, gives no text; a server that translates
another provider's reply may leave the reason out.

Stop reasons and their sources:

- Messages API (https://docs.claude.com/en/api/handling-stop-reasons; ``BetaStopReason`` of the package ``anthropic``):
  ``end_turn``, ``stop_sequence``, ``max_tokens``, ``model_context_window_exceeded``, ``pause_turn``, ``compaction``,
  ``tool_use``, ``refusal``
- Bedrock (``StopReason`` of ``bedrock-runtime``): those of the Messages API, and ``guardrail_intervened``,
  ``content_filtered``, ``malformed_model_output``, ``malformed_tool_use``
- OpenAI and the servers that follow it (``finish_reason``,
  https://platform.openai.com/docs/api-reference/chat/object): ``stop``, ``length``, ``tool_calls``,
  ``function_call``, ``content_filter``
- Gemini (``FinishReason``, https://ai.google.dev/api/generate-content#FinishReason): ``STOP``, ``MAX_TOKENS``,
  ``SAFETY``, ``RECITATION``, ``BLOCKLIST``, ``PROHIBITED_CONTENT``, ``SPII``, ``IMAGE_SAFETY``

A provider's client translates its own reasons into those of ``cortex.values.canonical``. The foreign ones are known
here as well, because gateways that serve the Messages API pass them through.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cortex.values.canonical import END_TURN, MAX_TOKENS, REFUSAL, STOP_SEQUENCE, TOOL_USE


class Ending(enum.StrEnum):
    """Kind of a reply's end. The value is shown to users and counted in summaries."""

    WHOLE = enum.auto()
    """The model ended its reply by itself, with text."""
    CUT = enum.auto()
    """The reply stopped at ``max_tokens`` or at the end of the context window; its text may be empty."""
    PAUSED = enum.auto()
    """The provider interrupted the turn, which the next request would continue."""
    TOOL_USE = enum.auto()
    """The model asks for the use of a tool, and waits for the tool's result."""
    EMPTY = enum.auto()
    """The model ended its reply without text, for example after thinking alone."""
    REFUSED = enum.auto()
    """The model, or a filter of the provider's, declined to answer."""
    UNKNOWN = enum.auto()
    """The reply holds text, but its stop reason is missing or not one of those above."""


CONTEXT_WINDOW: Final = "model_context_window_exceeded"
"""Stop reason of a reply that reached the end of the model's context window: a larger ``max_tokens`` cannot help."""

STOP_REASONS: Final[Mapping[str, Ending]] = MappingProxyType(
    {
        END_TURN: Ending.WHOLE, STOP_SEQUENCE: Ending.WHOLE, "stop": Ending.WHOLE,
        MAX_TOKENS: Ending.CUT, CONTEXT_WINDOW: Ending.CUT, "length": Ending.CUT,
        "pause_turn": Ending.PAUSED, "compaction": Ending.PAUSED,
        TOOL_USE: Ending.TOOL_USE, "tool_calls": Ending.TOOL_USE, "function_call": Ending.TOOL_USE,
        REFUSAL: Ending.REFUSED, "content_filter": Ending.REFUSED, "content_filtered": Ending.REFUSED,
        "guardrail_intervened": Ending.REFUSED, "safety": Ending.REFUSED, "recitation": Ending.REFUSED,
        "blocklist": Ending.REFUSED, "prohibited_content": Ending.REFUSED, "spii": Ending.REFUSED,
        "image_safety": Ending.REFUSED,
    }
)  # fmt: skip
"""Stop reason, in lower case -> ending that the reason alone suggests. A reason that is missing here is unknown."""


WHOLE_REASONS: Final = frozenset(reason for reason, ending in STOP_REASONS.items() if ending is Ending.WHOLE)
"""Stop reasons of a reply that the model ended by itself. Such a reply with text, and without a tool use, is whole."""


def ending_of_reason(stop_reason: str) -> Ending:
    """Return the ending that a stop reason alone suggests, whatever its letter case; UNKNOWN for one without meaning.

    Empty: the provider gave no stop reason.
    """
    found = STOP_REASONS.get(stop_reason)
    return found if found is not None else STOP_REASONS.get(stop_reason.lower(), Ending.UNKNOWN)


def ending_of(stop_reason: str, text: str, asks_for_tool: bool = False) -> Ending:
    """Return the ending of a reply.

    ``text``: its text blocks, joined; blank text is no text. ``asks_for_tool``: the reply holds a tool use that the
    client has to carry out. A reply that was cut, paused or refused is so with any content. Otherwise a tool use comes
    first, since the model has not answered yet, then missing text, then a stop reason that does not fit the content.
    """
    reason = ending_of_reason(stop_reason)
    if reason in _BY_REASON:
        return reason
    if asks_for_tool:
        return Ending.TOOL_USE
    if not text or text.isspace():
        return Ending.EMPTY
    return Ending.WHOLE if reason is Ending.WHOLE else Ending.UNKNOWN


_BY_REASON: Final = frozenset({Ending.CUT, Ending.PAUSED, Ending.REFUSED})
"""Endings that the stop reason decides alone."""


def ended_by_itself(stop_reason: str) -> bool:
    """Return False if the reason says that the reply was cut, paused or refused."""
    return ending_of_reason(stop_reason) not in _BY_REASON


def is_refusal(stop_reason: str) -> bool:
    """Return True if the model or a filter of the provider's declined to answer."""
    return ending_of_reason(stop_reason) is Ending.REFUSED


def may_grow(stop_reason: str) -> bool:
    """Return True if the reply was cut at ``max_tokens``, so that a larger bound may give a whole one."""
    return stop_reason != CONTEXT_WINDOW and ending_of_reason(stop_reason) is Ending.CUT
