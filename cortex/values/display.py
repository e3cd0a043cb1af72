"""Shortened values for people: previews of prompts and replies."""

from __future__ import annotations

import msgspec

from cortex.values.limits import Route

PREVIEW_CHARACTERS = 100
"""Length of a preview in characters."""


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
