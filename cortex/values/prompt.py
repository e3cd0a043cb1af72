"""Bounded prompts: renderings of part of K.

A ``Prompt`` is built from parts, each with a role and a priority, and names the constructor that rendered it: the
framing of the material is part of select's decision, so it is recorded. ``fit`` bounds a prompt twice, in tokens and in
parts, because even a prompt that fits can hold too many parts to be useful.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import msgspec


class DoesNotFit(ValueError):
    """The prompt exceeds M even after all permitted dropping and cutting: select must cluster, summarise or split."""


class Role(enum.StrEnum):
    """Role of a part in the prompt."""

    SYSTEM = "system"
    """System text."""
    GOAL = "goal"
    """Task or question."""
    DOCUMENT = "document"
    """Source material."""
    ANNOTATION = "annotation"
    """Remark about material, or about an earlier answer."""
    CONNECTION = "connection"
    """Relation between documents."""


_SYSTEM = Role.SYSTEM  # looked up once: access to enum members is slow


class Rule(enum.StrEnum):
    """Treatment of a part that does not fit."""

    KEEP = "keep"
    """Keep the part whole."""
    CUT = "cut"
    """Shorten the part, and drop it if even that is too much."""
    DROP = "drop"
    """Drop the part."""


class Part(msgspec.Struct, frozen=True, gc=False):
    """Part of a prompt. ``priority`` rises with importance; parts that may go are dropped from the lowest priority
    up.
    """

    role: Role
    text: str
    priority: int = 0
    """Importance: parts of lower priority are dropped or cut first."""
    rule: Rule = Rule.KEEP
    """Treatment if the part does not fit; by default it is kept."""
    title: str = ""
    """Heading above the text; empty: none."""

    def render(self) -> str:
        """Return the part as it appears in the prompt."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """Prompt of one bounded call.

    ``constructor`` is the name of the framing; the journal distinguishes two framings of the same items by it. ``lead``
    is text that the reply continues (a completion model needs it at the very end).
    """

    constructor: str
    """Name of the framing."""
    parts: tuple[Part, ...]
    """Parts, in order; system parts form the system text."""
    separator: str = "\n\n"
    """Text between two parts."""
    lead: str = ""
    """Text that the reply continues; empty: none."""
    left_out: tuple[str, ...] = ()
    """Titles of the parts that were dropped or cut to fit."""

    def both(self) -> tuple[str, str]:
        """Return the text of the system parts, and all other text in the given order."""
        parts = self.parts
        if len(parts) == 1 and not self.lead:  # the usual case
            part = parts[0]
            text = part.render() if part.title else part.text + ""  # raises TypeError if it is no text
            return (text, "") if part.role == _SYSTEM else ("", text)
        system: list[str] = []
        user: list[str] = []
        for part in parts:
            (system if part.role == _SYSTEM else user).append(part.render() if part.title else part.text)
        message = self.separator.join(user)
        if self.lead:
            message = f"{message}{self.separator}{self.lead}" if message else self.lead
        return self.separator.join(system), message

    def system(self) -> str:
        """Return the text of the system parts."""
        return self.both()[0]

    def user(self) -> str:
        """Return all other text."""
        return self.both()[1]

    def text(self) -> str:
        """Return system and user text together: the text whose tokens are counted."""
        return self.separator.join(self.both())

    def preview(self) -> str:
        """Return the text of the first part with role `GOAL`."""
        return next((part.text for part in self.parts if part.role is Role.GOAL), "")

    def fields(self) -> dict[str, Any]:
        """Return the fields of a canonical request: one user message, and the system text."""
        system, user = self.both()
        messages = [{"role": "user", "content": user}]
        return {"system": system, "messages": messages} if system else {"messages": messages}

    def noted(self, text: str, title: str) -> Prompt:
        """Return this prompt with a remark at its end; ``title`` names the remark in the constructor's name."""
        part = Part(Role.ANNOTATION, text, priority=1_000)
        return msgspec.structs.replace(self, parts=(*self.parts, part), constructor=f"{self.constructor}+{title}")

    def fit(self, tokens_max: int, tokens: Callable[[str], int], parts_max: int = 200) -> Prompt:
        """Return this prompt within ``tokens_max`` tokens (as ``tokens`` counts them) and ``parts_max`` parts.

        Drops or cuts the parts whose rule permits it, from the lowest priority, the last of equals first. Raises
        ``DoesNotFit`` if the parts to keep are still too large.
        """
        within = self
        for _ in range(len(self.parts) - parts_max):
            within = within._without(within._weakest(tokens_max, tokens, parts_max))
        while tokens(within.text()) > tokens_max:
            index = within._weakest(tokens_max, tokens, parts_max)
            cut = within.parts[index].rule == Rule.CUT
            within = within._cut(index, tokens_max, tokens) if cut else within._without(index)
        return within

    def _weakest(self, tokens_max: int, tokens: Callable[[str], int], parts_max: int) -> int:
        free = [(part.priority, -i) for i, part in enumerate(self.parts) if part.rule != Rule.KEEP]
        if free:
            return -min(free)[1]
        raise DoesNotFit(
            f"{self.constructor}: {tokens(self.text())} tokens in {len(self.parts)} parts;"
            f" at most {tokens_max} in {parts_max}"
        )

    def _without(self, index: int) -> Prompt:
        part = self.parts[index]
        left_out = (*self.left_out, part.title or part.text[:40])
        return msgspec.structs.replace(self, parts=self.parts[:index] + self.parts[index + 1 :], left_out=left_out)

    def _cut(self, index: int, tokens_max: int, tokens: Callable[[str], int]) -> Prompt:
        """Find the longest beginning of the part that fits, by bisection; drop the part if none does."""
        part = self.parts[index]

        def headed(length: int) -> Prompt:
            head = msgspec.structs.replace(part, text=part.text[:length])
            return msgspec.structs.replace(self, parts=(*self.parts[:index], head, *self.parts[index + 1 :]))

        low, high = 0, len(part.text)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if tokens(headed(middle).text()) <= tokens_max else (low, middle - 1)
        if low == 0:
            return self._without(index)
        kept = headed(low)
        return msgspec.structs.replace(kept, left_out=(*self.left_out, f"{part.title or part.role}: cut"))


class RequestFields(Protocol):
    """Source of a request's fields: a ``Prompt`` or a ``Conversation``."""

    def fields(self) -> dict[str, Any]:
        """Return ``messages`` and the other fields of a request."""


def request_body(
    prompt: RequestFields, model: str, output_tokens_max: int, params: dict[str, Any] | None = None
) -> bytes:
    """Return the canonical request (``cortex.values.canonical``) with this prompt, as deterministic JSON bytes."""
    body: dict[str, Any] = dict(params or {})
    body.pop("stream", None)  # the branch decides about streaming
    body["model"] = model
    body["max_tokens"] = output_tokens_max
    body.update(prompt.fields())
    return msgspec.json.encode(body, order="sorted")


class _Message(msgspec.Struct, gc=False):
    content: str
    role: str = "user"


class _TextRequest(msgspec.Struct, gc=False):
    """Request of plain text, with its fields in alphabetical order as everywhere."""

    max_tokens: int
    messages: tuple[_Message]
    model: str
    system: str | msgspec.UnsetType = msgspec.UNSET


encode_json = msgspec.json.Encoder().encode


def fast_text_body(system: str, user: str, model: str, output_tokens_max: int) -> bytes:
    """Return the request of a prompt of these two texts only (fast path).

    Equal to ``request_body`` of the same prompt, byte for byte, by ``tests/properties/test_fast_paths.py``.
    """
    if system:
        return encode_json(_TextRequest(output_tokens_max, (_Message(user),), model, system))
    frame = text_frame(model, output_tokens_max)
    return frame.before + encode_json(user) + frame.after


class TextFrame(msgspec.Struct, frozen=True, gc=False):
    """Bytes around the user's text in a request with nothing else: equal for nearly all requests of a job."""

    before: bytes
    after: bytes
    ascii_only: bool
    """True if the frame is ASCII without numeric escapes: then its bytes bound its tokens."""


_MARK = "\0"
ESCAPED = b"\\u"
"""Beginning of a numeric escape, which takes more bytes and tokens than its character."""


@lru_cache(maxsize=64, typed=True)
def text_frame(model: str, output_tokens_max: int) -> TextFrame:
    """Return the frame of such requests to this model."""
    request = encode_json(_TextRequest(output_tokens_max, (_Message(_MARK),), model))
    before, _, after = request.partition(encode_json(_MARK))
    around = before + after
    return TextFrame(before, after, around.isascii() and ESCAPED not in around)


def with_model(body: bytes, model: str) -> bytes:
    """Return a whole request with another model and everything else unchanged.

    Raises ``ValueError`` if the bytes are no JSON object.
    """
    try:
        request = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ValueError(f"the request is no JSON object: {error}") from None
    request["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(request)
