"""Signatures of tool calls at Google: encrypted thoughts, without which a model does not go on after a tool.

Gemini puts them beside a tool call, as ``extra_content.google.thought_signature``, Vertex AI as
``extra_content.vertex.thought_signature``, and `generateContent` as ``thoughtSignature`` of the part; of parallel calls
only the first has one. From generation 3 on a call that comes back without it is refused with status 400: "Function
call is missing a thought_signature in functionCall parts." (https://ai.google.dev/gemini-api/docs/thought-signatures;
as reported at earendil-works/pi#6733, securo-finance/securo#884, openai-php/client#768).

In a canonical reply a signature is a thought without words before its tool use: other wire forms leave the thoughts of
others out, that of Claude once it refuses one (``messages.foreign_thoughts``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

PREFIX: Final = "tool_call:"
"""Beginning of the signature of such a thought; a JSON object follows, with the id of the tool use."""
UNSIGNED: Final[Mapping[str, Any]] = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""Content of the first call of a turn that another model made, and that Gemini is to go on from: the value that its
page names for such histories."""


class _Kept(msgspec.Struct, gc=False):
    id: str
    extra_content: dict[str, Any]


_KEPT: Final = msgspec.json.Decoder(_Kept)


def signature_block(use: str, extra_content: Any) -> list[dict[str, Any]]:
    """Return the thought that keeps what a server put beside a tool call, for the tool use of this id; none where it
    put nothing."""
    if not isinstance(extra_content, dict) or not extra_content:
        return []
    kept = msgspec.json.encode(_Kept(use, extra_content)).decode()
    return [{"type": "thinking", "thinking": "", "signature": PREFIX + kept}]


def signatures_in(blocks: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what stood beside the tool calls of a turn, by the id of the tool use."""
    found: dict[str, dict[str, Any]] = {}
    for block in blocks:
        signature = block.get("signature")
        if isinstance(signature, str) and signature.startswith(PREFIX):
            try:
                kept = _KEPT.decode(signature[len(PREFIX) :])
            except msgspec.DecodeError:
                continue
            found[kept.id] = kept.extra_content
    return found


def bare_signature(extra_content: Mapping[str, Any] | None) -> str:
    """Return the signature proper; empty where there is none."""
    for place in (extra_content or {}).values():
        if isinstance(place, dict) and isinstance(signature := place.get("thought_signature"), str):
            return signature
    return ""
