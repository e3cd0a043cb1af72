"""A conversation with tools, as a request holds it: who said what, which tools were used, what they said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec


class OfferedTool(NamedTuple):
    """A tool that the next turn may use."""

    name: str
    description: str
    schema: dict[str, Any]

    @property
    def properties(self) -> dict[str, Any]:
        """Its arguments' schemas, by name."""
        found = self.schema.get("properties")
        return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}

    @property
    def required(self) -> list[str]:
        """Names of those that must be given."""
        found = self.schema.get("required")
        return found if isinstance(found, list) else []

    def allowed(self, name: str) -> list[str]:
        """What a text argument may be, where its schema lists it."""
        found = self.properties.get(name, {}).get("enum")
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


class PastToolUse(NamedTuple):
    """A use of a tool, and what came of it."""

    name: str
    given: dict[str, Any]
    result: str = ""
    failed: bool = False


class TurnContext(NamedTuple):
    """What a reasoner sees that is to take the next step."""

    task: str
    """The system's text and the first user's."""
    uses: tuple[PastToolUse, ...]
    """All uses of tools so far, in their order."""
    instructions: tuple[str, ...]
    """Texts of the user's after the first, in their order."""
    offers: tuple[OfferedTool, ...]
    asked: bool
    """Whether the last thing in it is a text of the user's, after others: not a tool's result."""


class ContentBlock(Protocol):
    """A content block, as the request's reader decodes it."""

    type: str
    text: str
    id: str
    name: str
    tool_use_id: str
    is_error: bool
    input: msgspec.Raw


class MessageTurn(Protocol):
    """A message."""

    role: str
    content: Any


def unpaired(turns: Sequence[MessageTurn]) -> str:
    """What the provider says where uses of tools and their results do not match; empty where they do."""
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
    """The tools that a request defines itself; those that the provider would run are left out.

    Raises ``ValueError`` with the provider's words for what is no list of tools.
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
    """The conversation so far. ``result_text`` reads a tool's result."""
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
