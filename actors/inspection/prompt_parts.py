"""Parts of a prompt, and which of them were sent."""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.values.conversation import Conversation, ToolDef, ToolResult
from cortex.values.prompt import Part, Prompt
from cortex.values.reply import TextBlock, ToolUse
from policies.estimates.tokens import TokenEstimate, tokens_bound


def prompt_facts(
    before: Prompt | Conversation, sent: Prompt | Conversation | None, estimate: TokenEstimate, seen: dict[str, Any]
) -> dict[str, Any]:
    """Return the prompt's constructor, its parts with their sizes, the parts left out, and the bounds applied.

    ``sent``: the prompt after fitting; None if it could not be made to fit. Tokens are by the estimate as calibrated at
    that time; ``tokens_bound`` is an upper bound.
    """
    text = before.text()
    whole = sent if sent is not None else before
    return {
        "constructor": before.constructor,
        "prompt_tokens_max": seen["tokens_max"],
        "parts_max": seen.get("parts_max"),
        "tokens_bound_before": tokens_bound(text),
        "tokens_estimated_before": estimate.tokens(len(text.encode())),
        "bytes": len(whole.text().encode()),
        "tokens_estimated": estimate.tokens(len(whole.text().encode())),
        "tokens_bound": tokens_bound(whole.text()),
        "fits": sent is not None,
        "left_out": list(whole.left_out),
        "parts": _parts(before, sent, estimate) if sent is not None else _none_sent(before, estimate),
    }


def _parts(before: Any, sent: Any, estimate: TokenEstimate) -> list[dict[str, Any]]:
    if isinstance(before, Prompt):
        return _prompt_parts(before, sent, estimate)
    kept = {block.use: block for block in sent.parts if isinstance(block, ToolResult)} if sent is not None else {}
    entries = [_part("system", "", before.system, estimate)] if before.system else []
    for block in before.parts:
        fact = _part(_role(block), _title(block), _spoken(block), estimate)
        if isinstance(block, ToolResult) and block.use in kept and kept[block.use].text != block.text:
            fact |= {"fate": "cut", "bytes_sent": len(kept[block.use].text.encode())}
        entries.append(fact)
    return entries


def _none_sent(before: Any, estimate: TokenEstimate) -> list[dict[str, Any]]:
    return [{**part, "fate": "not sent", "bytes_sent": 0} for part in _parts(before, before, estimate)]


def _prompt_parts(before: Prompt, sent: Prompt | None, estimate: TokenEstimate) -> list[dict[str, Any]]:
    """Return the parts of a prompt. Fitting keeps their order, so that a missing part was left out."""
    left = list(sent.parts) if sent is not None else list(before.parts)
    entries = []
    for part in before.parts:
        fact = _part(str(part.role), part.title, part.text, estimate)
        fact |= {"priority": part.priority, "rule": str(part.rule)}
        if left and _same(part, left[0]):
            kept = left.pop(0)
            if kept.text != part.text:
                fact |= {"fate": "cut", "bytes_sent": len(kept.text.encode())}
        else:
            fact |= {"fate": "left out", "bytes_sent": 0}
        entries.append(fact)
    return entries


def _same(part: Part, kept: Part) -> bool:
    """Return whether ``kept`` is this part, whole or its beginning."""
    named = (part.role, part.title, part.priority, part.rule) == (kept.role, kept.title, kept.priority, kept.rule)
    return named and part.text.startswith(kept.text)


def _part(role: str, title: str, text: str, estimate: TokenEstimate) -> dict[str, Any]:
    size = len(text.encode())
    return {
        "role": role, "title": title, "bytes": size, "bytes_sent": size, "tokens": estimate.tokens(size, framing=0),
        "fate": "sent", "begins": text[:80],
    }  # fmt: skip


def _role(block: Any) -> str:
    known = ((ToolDef, "tool"), (ToolResult, "tool result"), (TextBlock, "text"), (ToolUse, "tool use"))
    return next((role for kind, role in known if isinstance(block, kind)), "block")


def _title(block: Any) -> str:
    return str(getattr(block, "name", "") or getattr(block, "use", ""))


def _spoken(block: Any) -> str:
    if isinstance(block, (TextBlock, ToolResult)):
        return block.text
    return msgspec.json.encode(block).decode()


def request_text(body: bytes) -> dict[str, Any]:
    """Return a request's system text and messages as text, and its other fields unchanged."""
    try:
        request = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"messages": [{"role": "", "text": body.decode(errors="replace")}], "parameters": {}}
    parts = [
        {"role": str(each.get("role", "")), "text": _content(each.get("content", ""))}
        for each in request.pop("messages", ()) if isinstance(each, dict)
    ]  # fmt: skip
    system = request.pop("system", None)
    if system:
        parts.insert(0, {"role": "system", "text": _content(system)})
    return {"messages": parts, "parameters": request}


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block) for block in content) if isinstance(content, list) else str(content)


def _block_text(block: Any) -> str:
    if isinstance(block, dict):
        for name in ("text", "content"):
            if isinstance(block.get(name), str):
                return str(block[name])
        return msgspec.json.encode(block).decode()
    return str(block)
