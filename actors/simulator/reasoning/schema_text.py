"""JSON schemas in requests: some are in words at the end of the prompt; most hold references."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_SPOKEN: Final = re.compile(r"[^\n]*\bJSON schema:\s*(?=\{)", re.IGNORECASE)
_DEPTH_MAX: Final = 8


def spoken(text: str) -> tuple[str, dict[str, Any] | None]:
    """Return the text without the JSON schema that it holds, and the schema; None if there is none."""
    if "schema:" not in text.lower():
        return text, None
    found = _SPOKEN.search(text)
    if found is None:
        return text, None
    try:
        schema, end = json.JSONDecoder().raw_decode(text, found.end())
    except ValueError:
        return text, None
    return (text[: found.start()] + text[end:]).strip() or text, schema


def inlined(schema: Any, whole: dict[str, Any] | None = None, depth: int = 0) -> Any:
    """Return the schema with its references replaced by their targets."""
    whole = schema if whole is None else whole
    if isinstance(schema, list):
        return [inlined(each, whole, depth) for each in schema]
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        return schema
    ref = schema.get("$ref")
    if isinstance(ref, str) and whole is not None:
        found: Any = whole
        for step in ref.removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        return inlined(found if found is not None else {}, whole, depth + 1)
    return {name: inlined(each, whole, depth) for name, each in schema.items() if name not in ("$defs", "definitions")}
