"""Thoughts of other models in a conversation that goes on at Claude, for example after a fallback within a tool loop.

Claude refuses a thought that it has not signed, with status 400: "messages.1.content.0: Invalid `signature` in
`thinking` block" (as reported at NoeFabris/opencode-antigravity-auth#70, after tool calls of Gemini, and at
ding113/claude-code-hub#518). Its own signatures are base64. Those of OpenAI and Google hold a colon
(``responses.request``, ``chat_completions.tool_signatures``); a thought that its API does not sign has an empty one.

A single call leaves them out once one was refused, since a server of the user's own that serves this API may want them
back. Lines of message batches never hold them: a line that is refused costs its row, and is not asked again.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from actors.providers.client.canonical_request import FIELDS, TURNS, is_text
from policies.failures.failure import Failure
from policies.failures.told_retry import refuses_request

OWN: Final = "own thoughts"
"""Spelling of requests in which thoughts of other models are left out."""
_REFUSAL: Final = re.compile(r"\bsignature\b.{0,20}\bthinking\b", re.IGNORECASE)


def other_thoughts(variant: object, outcome: Failure) -> str | None:
    """Return ``OWN`` where a thought was refused for its signature; None for any other failure."""
    refused = refuses_request(outcome) and _REFUSAL.search(outcome.message)
    return OWN if refused and variant != OWN else None


def without_foreign(body: bytes) -> bytes:
    """Return a request without thoughts that Claude has not signed. A turn that holds nothing else stays as it is."""
    if b'"thinking"' not in body:
        return body
    fields = FIELDS.decode(body)
    turns = TURNS.decode(fields["messages"])
    for turn in turns:
        if turn.role == "assistant" and not is_text(turn.content):
            blocks: list[dict[str, Any]] = msgspec.json.decode(turn.content)
            if kept := [block for block in blocks if not _is_foreign(block)]:
                turn.content = msgspec.Raw(msgspec.json.encode(kept))
    fields["messages"] = msgspec.Raw(msgspec.json.encode(turns))
    return msgspec.json.encode(fields)


def _is_foreign(block: dict[str, Any]) -> bool:
    signature = block.get("signature")
    return block.get("type") == "thinking" and (not signature or ":" in str(signature))
