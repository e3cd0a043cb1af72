"""Conversation with tools, as a request holds it: messages, tool uses and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec


class OfferedTool(NamedTuple):
    """Tool that the next turn may use."""

    name: str
    description: str
    schema: dict[str, Any]

    @property
    def properties(self) -> dict[str, Any]:
        """Schemas of the arguments, by name."""
        found = self.schema.get("properties")
        return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}

    @property
    def required(self) -> list[str]:
        """Names of the required arguments."""
        found = self.schema.get("required")
        return found if isinstance(found, list) else []

    def allowed(self, name: str) -> list[str]:
        """Return the allowed values of a text argument, if its schema lists them."""
        found = self.properties.get(name, {}).get("enum")
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


class PastToolUse(NamedTuple):
    """Use of a tool, with its result."""

    name: str
    given: dict[str, Any]
    result: str = ""
    failed: bool = False


class TurnContext(NamedTuple):
    """Input of the reasoner for the next turn."""

    task: str
    """System text and first text of the user."""
    uses: tuple[PastToolUse, ...]
    """All uses of tools so far, in order."""
    instructions: tuple[str, ...]
    """Texts of the user after the first, in order."""
    offers: tuple[OfferedTool, ...]
    asked: bool
    """True if the last content is a further text of the user and not a tool's result."""


class ContentBlock(Protocol):
    """Content block, as decoded by the parser of requests."""

    type: str
    text: str
    id: str
    name: str
    tool_use_id: str
    is_error: bool
    input: msgspec.Raw


class MessageTurn(Protocol):
    """Message of a conversation."""

    role: str
    content: Any


def unpaired(turns: Sequence[MessageTurn]) -> str:
    """Return the provider's error if uses of tools and results do not match; empty if they do."""
    before: set[str] = set()
    for at, turn in enumerate(turns):
        blocks = turn.content if isinstance(turn.content, list) else []
        results = {each.tool_use_id for each in blocks if each.type == "tool_result"}
        if missing := before - results:
            return (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately after:"
                f" {', '.join(sorted(missing))}. Each `tool_use` block must have a corresponding `tool_result` block"
                " in the next message."
            )
        if orphans := results - before:
            return (
                f"messages.{at}.content: unexpected `tool_use_id` found in `tool_result` blocks:"
                f" {', '.join(sorted(orphans))}. Each `tool_result` block must have a corresponding `tool_use` block"
                " in the previous message."
            )
        before = {each.id for each in blocks if each.type == "tool_use"}
    if before:
        return f"messages.{len(turns) - 1}: the final message must not end with a use of a tool"
    return ""


def offers_of(tools: bytes) -> tuple[OfferedTool, ...]:
    """Return the tools that a request defines itself, without those that the provider would run.

    Raises ``ValueError`` with the provider's words for an invalid list of tools.
    """
    given = msgspec.json.decode(tools)
    if not isinstance(given, list):
        raise ValueError("tools: Input should be a valid list")
    found = []
    for at, tool in enumerate(given):
        if not isinstance(tool, dict):
            raise ValueError(f"tools.{at}: Input should be an object")
        if isinstance(tool.get("input_schema"), dict) and tool.get("name"):
            found.append(OfferedTool(str(tool["name"]), str(tool.get("description") or ""), tool["input_schema"]))
    if len({offer.name for offer in found}) < len(found):
        raise ValueError("tools: Tool names must be unique.")
    return tuple(found)


def scene_of(
    turns: Sequence[MessageTurn], system: str, offers: tuple[OfferedTool, ...], result_text: Any
) -> TurnContext:
    """Return the conversation so far. ``result_text``: function that reads a tool's result."""
    texts: list[str] = []
    uses: dict[str, PastToolUse] = {}
    asked = False
    for turn in turns:
        if isinstance(turn.content, str):
            if turn.role == "user":
                texts.append(turn.content)
                asked = True
            continue
        for block in turn.content:
            asked = block.type == "text" and turn.role == "user"
            if asked:
                texts.append(block.text)
            elif block.type == "tool_use":
                uses[block.id] = PastToolUse(block.name, _given(bytes(block.input)))
            elif block.type == "tool_result":
                uses[block.tool_use_id] = uses[block.tool_use_id]._replace(
                    result=result_text(block), failed=block.is_error
                )
    task = "\n\n".join(each for each in (system, *texts[:1]) if each)
    return TurnContext(task, tuple(uses.values()), tuple(texts[1:]), offers, asked and len(texts) > 1)


def _given(raw: bytes) -> dict[str, Any]:
    given = msgspec.json.decode(raw) if raw else {}
    return given if isinstance(given, dict) else {}
