"""Fields by which a request of a table asks for an answer that fits a schema."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from cortex.values.json_schema.structured import closed

TOOL: Final = "answer"
_encode = msgspec.json.Encoder().encode
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@lru_cache(maxsize=64)
def answer_form(schema: str, how: str) -> dict[str, Any]:
    """Fields of a request that make its answer fit the schema."""
    if how == "prompt":
        return {}
    form = closed(msgspec.json.decode(schema))
    if how == "format":
        return {"output_config": {"format": {"type": "json_schema", "schema": form}}}
    tool = {"name": TOOL, "description": "Give the answer.", "input_schema": form}
    return {"tools": [tool], "tool_choice": {"type": "tool", "name": TOOL}}


def joined(before: msgspec.Raw | None, value: Any) -> msgspec.Raw:
    """A field's value, merged with the request's own value of that name if it is an object."""
    if before is None or not isinstance(value, dict):
        return msgspec.Raw(_encode(value))
    return msgspec.Raw(_encode(_raw(before) | value))


def noted(messages: msgspec.Raw, note: str) -> msgspec.Raw:
    """The messages with a note at the end of the last one."""
    found = msgspec.json.decode(messages, type=list[dict[str, msgspec.Raw]])
    content = msgspec.json.decode(found[-1]["content"], type=str | list[msgspec.Raw])
    longer = f"{content}\n\n{note}" if isinstance(content, str) else [*content, {"type": "text", "text": note}]
    found[-1]["content"] = msgspec.Raw(_encode(longer))
    return msgspec.Raw(_encode(found))
