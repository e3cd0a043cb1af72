"""Enforcement of the bound on prompts: no prompt above M is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import repeat
from typing import Final

from actors.ports.model import Model
from cortex.state.commands import Call
from policies.estimates.tokens import (
    FRAMING_TOKENS,
    UNBOUNDED,
    bodies_ascii_bound,
    body_tokens_bound,
    text_within_tokens_bound,
    tokens_besides,
)
from policies.failures.failure import Failure, FailureKind

FRAME_BYTES_MAX: Final = 1 << 16
"""Bytes of a request up to which the frame around its text is remembered; larger requests are examined singly."""
_CONTENT: Final = re.compile(rb'"content":"((?:[^"\\]|\\.)*)"', re.DOTALL)


class PromptLimit:
    """Upper bound of the tokens of requests, with a memory of the last request.

    Samples of one question follow each other, so the last result is reused. Rows of a table have the same schema or
    tools around different texts, so the tokens of this frame are reused.
    """

    def __init__(self) -> None:
        self._body, self._tokens = b"", 0
        self._before, self._after, self._besides = b"", b"", 0
        """Bytes before and after the text of the last request that held more than text, and the tokens they add."""

    def of(self, body: bytes) -> int:
        """Return the bound (``policies.estimates.tokens.body_tokens_bound``)."""
        if body == self._body:
            return self._tokens
        self._body, self._tokens = body, self._found(body)
        return self._tokens

    def _found(self, body: bytes) -> int:
        before, after = self._before, self._after
        if before and body.startswith(before) and body.endswith(after):
            text = body[len(before) : -len(after)]
            if within_string(text):
                return text_within_tokens_bound(body, text, self._besides)
        bound = body_tokens_bound(body)
        if len(body) + FRAMING_TOKENS < bound < UNBOUNDED and len(body) <= FRAME_BYTES_MAX:
            self._learn(body)
        return bound

    def all_within(self, calls: Sequence[Call]) -> bool:
        """Return True if the calls are together proven to be within their M. If False, each must be checked singly."""
        bound = self._framed([call.body for call in calls]) if self._before else UNBOUNDED
        if bound == UNBOUNDED:
            bound = bodies_ascii_bound({call.body for call in calls})  # samples of one question share one body
        return bound <= min([call.prompt_tokens_max for call in calls], default=0)

    def _framed(self, bodies: Sequence[bytes]) -> int:
        """Return the largest bound of several requests if each is the frame around text; otherwise UNBOUNDED."""
        before, after = self._before, self._after
        begin, end = len(before), -len(after)
        texts = [body[begin:end] for body in bodies if body.startswith(before) and body.endswith(after)]
        if not texts or len(texts) < len(bodies) or min(map(len, bodies)) < begin - end:
            return UNBOUNDED
        together = b"\n".join(texts)
        if b"\\\n" in together or b"\\u" in together or not within_string(together):
            return UNBOUNDED  # a text that ends with a backslash may end within an escape
        if not together.isascii():
            return max(map(text_within_tokens_bound, bodies, texts, repeat(self._besides)))
        return max(map(len, bodies)) + FRAMING_TOKENS + self._besides

    def _learn(self, body: bytes) -> None:
        found = _CONTENT.search(body)
        besides = None if found is None else tokens_besides(body[: found.start(1)] + body[found.end(1) :])
        if found is not None and besides is not None:
            self._before, self._after, self._besides = body[: found.start(1)], body[found.end(1) :], besides


def within_string(text: bytes) -> bool:
    """Return True if this text inside a JSON string neither ends the string nor escapes the character after it."""
    if b'"' not in text and not text.endswith(b"\\"):
        return True
    text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    return b'"' not in text and not text.endswith(b"\\")


async def over_bound(model: Model, call: Call) -> Failure | None:
    """Return the failure of a call that must not be sent, or None.

    The bytes bound the tokens; above M by that measure the provider's counter decides. For calls whose bytes alone
    prove nothing: callers with many calls check ``PromptLimit`` first, which costs less.
    """
    counted = await model.count_tokens(call.body)
    if counted is not None and counted <= call.prompt_tokens_max:
        return None
    bound = body_tokens_bound(call.body)
    if counted is None and bound >= UNBOUNDED:
        refusal = getattr(model, "refusal", None)
        if refusal is not None and (refused := refusal(call.body)) is not None:
            return refused  # type: ignore[no-any-return]
        text = "the prompt holds a document, file, link, provider tool or content of a size only the provider knows"
        return Failure(FailureKind.TOO_LARGE, f"{text}, and there is no counter to ask (count_tokens)", sent=False)
    fit = f"at most {call.prompt_tokens_max} fit"
    text = f"the prompt has {counted} tokens; {fit}"
    if counted is None:
        text = f"the prompt has up to {bound} tokens by its bytes, {fit}, and there is no counter to ask (count_tokens)"
    return Failure(FailureKind.TOO_LARGE, text, sent=False)
