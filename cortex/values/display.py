"""Values shortened for people: previews of prompts and replies."""

from __future__ import annotations

import msgspec

from cortex.values.limits import Route

PREVIEW_CHARACTERS = 100


def simulated(route: Route) -> bool:
    """Whether calls go to the simulated provider, which takes nothing."""
    return route.endpoint.startswith("sim:")


class _Block(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    content: str | list[_Block] = ""


class _Request(msgspec.Struct):
    messages: list[_Message] = []


def text_of(body: bytes) -> str:
    """The text of a request's last message; empty where it has none that can be read."""
    try:
        messages = msgspec.json.decode(body, type=_Request).messages
    except msgspec.DecodeError:
        return ""
    content = messages[-1].content if messages else ""
    return content if isinstance(content, str) else " ".join(block.text for block in content)


def clipped(text: str, length: int = PREVIEW_CHARACTERS) -> str:
    """A text on one line, cut where it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
