"""A bounded rendering of part of K.

A ``Prompt`` is built from parts, each with a role and a priority, and names the constructor that rendered it: how
material is framed is part of the choice that select makes, so it is kept. ``fit`` bounds it twice, in tokens and in
parts, since what fits can still be too much to use.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import msgspec


class DoesNotFit(ValueError):
    """A prompt that no permitted dropping or shortening brings within M: select must cluster, summarise or split."""


class Role(enum.StrEnum):
    """What a part is to the reader of the prompt."""

    SYSTEM = "system"
    GOAL = "goal"
    DOCUMENT = "document"
    ANNOTATION = "annotation"
    CONNECTION = "connection"


_SYSTEM = Role.SYSTEM  # looked up once: an enumeration's members are slow to find


class Rule(enum.StrEnum):
    """What may be done to a part that does not fit."""

    KEEP = "keep"
    CUT = "cut"
    DROP = "drop"


class Part(msgspec.Struct, frozen=True, gc=False):
    """One piece of a prompt. ``priority`` counts up with importance; parts that may go, go from the lowest."""

    role: Role
    text: str
    priority: int = 0
    rule: Rule = Rule.KEEP
    title: str = ""

    def render(self) -> str:
        """The part as it stands in the prompt."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What one bounded call reads.

    ``constructor`` is the name of the framing; two framings of the same items differ by it in the journal. ``lead`` is
    text that the reply continues (a completion model needs it at the very end).
    """

    constructor: str
    parts: tuple[Part, ...]
    separator: str = "\n\n"
    lead: str = ""
    left_out: tuple[str, ...] = ()
    """Titles of what was dropped or cut to fit, for the story of the call."""

    def both(self) -> tuple[str, str]:
        """The text of the system parts, and all other text in the order given."""
        parts = self.parts
        if len(parts) == 1 and not self.lead:  # as in most prompts
            part = parts[0]
            text = part.render() if part.title else part.text + ""  # which raises for what is no text
            return (text, "") if part.role == _SYSTEM else ("", text)
        system: list[str] = []
        user: list[str] = []
        for part in parts:
            (system if part.role == _SYSTEM else user).append(part.render() if part.title else part.text)
        said = self.separator.join(user)
        if self.lead:
            said = f"{said}{self.separator}{self.lead}" if said else self.lead
        return self.separator.join(system), said

    def system(self) -> str:
        """The text of the system parts."""
        return self.both()[0]

    def user(self) -> str:
        """All other text."""
        return self.both()[1]

    def text(self) -> str:
        """System and user text together: what the tokens are counted of."""
        return self.separator.join(self.both())

    def preview(self) -> str:
        """The first that it asks."""
        return next((part.text for part in self.parts if part.role is Role.GOAL), "")

    def fields(self) -> dict[str, Any]:
        """What of a request in the Messages form it makes up: one message of the user's."""
        system, user = self.both()
        messages = [{"role": "user", "content": user}]
        return {"system": system, "messages": messages} if system else {"messages": messages}

    def noted(self, text: str, title: str) -> Prompt:
        """The same with a remark at its end, for this asking; ``title`` says in its constructor's name what it is."""
        part = Part(Role.ANNOTATION, text, priority=1_000)
        return msgspec.structs.replace(self, parts=(*self.parts, part), constructor=f"{self.constructor}+{title}")

    def fit(self, tokens_max: int, tokens: Callable[[str], int], parts_max: int = 200) -> Prompt:
        """This prompt within ``tokens_max`` tokens (as ``tokens`` counts them) and ``parts_max`` parts.

        Drops, then cuts, the parts whose rule permits it, from the lowest priority, the last of equals first. Raises
        ``DoesNotFit`` where what must stay is still too much.
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
        return msgspec.structs.replace(
            self, parts=self.parts[:index] + self.parts[index + 1 :], left_out=left_out
        )

    def _cut(self, index: int, tokens_max: int, tokens: Callable[[str], int]) -> Prompt:
        """Halve the interval of lengths until the longest head that fits is found; none is left: drop the part."""
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


class Fields(Protocol):
    """Whatever can make up a request: a ``Prompt``, or a ``Conversation``."""

    def fields(self) -> dict[str, Any]:
        """``messages``, and what else of a request it makes up."""


def request_body(prompt: Fields, model: str, output_tokens_max: int, params: dict[str, Any] | None = None) -> bytes:
    """The request that carries this prompt, in the Messages form, as deterministic JSON bytes."""
    body: dict[str, Any] = dict(params or {})
    body.pop("stream", None)  # how a reply travels is the branch's affair
    body["model"] = model
    body["max_tokens"] = output_tokens_max
    body.update(prompt.fields())
    return msgspec.json.encode(body, order="sorted")


class _Message(msgspec.Struct, gc=False):
    content: str
    role: str = "user"


class _TextRequest(msgspec.Struct, gc=False):
    """The fields in the order of their names, as everywhere."""

    max_tokens: int
    messages: tuple[_Message]
    model: str
    system: str | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


def text_request(system: str, user: str, model: str, output_tokens_max: int) -> bytes:
    """The request of a prompt of these two texts and nothing else: to the byte what ``request_body`` makes of it."""
    if system:
        return _encode(_TextRequest(output_tokens_max, (_Message(user),), model, system))
    frame = text_frame(model, output_tokens_max)
    return frame.before + _encode(user) + frame.after


class Frame(msgspec.Struct, frozen=True, gc=False):
    """What stands around the user's text in a request of nothing else: the same for nearly all requests of a job."""

    before: bytes
    after: bytes
    plain: bool
    """Whether it is ASCII, with nothing escaped by its number: then its bytes bound its tokens."""


_MARK = "\0"
_BY_NUMBER = b"\\u"


@lru_cache(maxsize=64, typed=True)
def text_frame(model: str, output_tokens_max: int) -> Frame:
    """The frame of such requests to this model."""
    request = _encode(_TextRequest(output_tokens_max, (_Message(_MARK),), model))
    before, _, after = request.partition(_encode(_MARK))
    around = before + after
    return Frame(before, after, around.isascii() and _BY_NUMBER not in around)


def one_text(prompt: Prompt, frame: Frame) -> tuple[bytes, int] | None:
    """The request of a prompt of one text in ASCII of the user's, as most are, in this frame, and the text's size as
    ``Prompt.text`` has it; None where it is another, or its bytes do not bound its tokens."""
    parts, separator = prompt.parts, prompt.separator
    if len(parts) != 1 or prompt.lead or not frame.plain:
        return None
    part = parts[0]
    text = part.text
    if type(text) is not str or part.title or part.role == _SYSTEM or not (text.isascii() and separator.isascii()):
        return None
    said = _encode(text)
    size = len(text)
    if len(said) != size + 2 and _BY_NUMBER in said:  # more than its quotes: something is escaped
        return None
    return frame.before + said + frame.after, len(separator) + size


def with_model(body: bytes, model: str) -> bytes:
    """A whole request, asked of another model: nothing else of it is touched.

    Raises ``ValueError`` where the bytes are no JSON object.
    """
    try:
        request = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ValueError(f"the request is no JSON object: {error}") from None
    request["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(request)
