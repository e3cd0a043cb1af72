"""Values for people: previews of prompts and replies, and texts of others as a terminal may show them."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from cortex.values.limits import Route

PREVIEW_CHARACTERS = 100
"""Length of a preview in characters."""
_HIDDEN: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of characters that steer a terminal or end a line: control characters (C0, DEL, C1), halves of surrogate
pairs, line and paragraph separators."""
_TURNS: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""Characters that change the direction of a text: ``Bidi_Control`` of Unicode
(https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing), and the byte order mark."""


def simulated(route: Route) -> bool:
    """Return True if calls go to the simulated provider, which charges nothing."""
    return route.endpoint.startswith("sim:")


class _Block(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    content: str | list[_Block] = ""


class _Request(msgspec.Struct):
    messages: list[_Message] = []


def text_of(body: bytes) -> str:
    """Return the text of a request's last message; empty if it has no readable text."""
    try:
        messages = msgspec.json.decode(body, type=_Request).messages
    except msgspec.DecodeError:
        return ""
    content = messages[-1].content if messages else ""
    return content if isinstance(content, str) else " ".join(block.text for block in content)


def clipped(text: str, length: int = PREVIEW_CHARACTERS) -> str:
    """Return the text on one line, cut to ``length`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def printable(text: str) -> str:
    """Return a text with each control character escaped, ``\\x1b`` or ``\\u202e``, so that it cannot steer a terminal.

    Line breaks and tabs stay. A terminal acts on C0 and C1 alone: no escape sequence begins without one of them
    (ECMA-48, 5.3). JSON stays the same JSON: it holds no raw C0, and what lies above is escaped as JSON has it.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def one_line(text: str) -> str:
    """Return `printable` text whose further lines, if any, are indented: no line of it can pass for one of ours."""
    return printable(text).replace("\n", "\n    ")


def _shown(each: str) -> str:
    if each in "\n\t" or (unicodedata.category(each) not in _HIDDEN and each not in _TURNS):
        return each
    return f"\\x{ord(each):02x}" if ord(each) < 0x20 else f"\\u{ord(each):04x}"
