"""Warm-first fan-out: where prompts share a long prefix that the provider may cache, one goes ahead.

The prefix is the part of a request up to its last ``cache_control``, in the provider's order: tools, system, messages
(https://docs.claude.com/en/docs/build-with-claude/prompt-caching). While the one that goes ahead has no answer the
others wait for it, and cost no permit; then all follow, and read what it wrote. One that failed lets the next go ahead.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from cortex.goals.lifecycle import be_woken, offer, take_back
from cortex.state.state import Goal, InFlightAttempt, PrefixState, State, Status

CACHED_S = 300.0
"""How long the provider keeps a prefix that nobody asks for."""
PREFIX_BYTES_MIN = 4_096
"""A shorter prefix is not cached: 1,024 tokens are the least, of four bytes or more."""
PATIENCE_S = 60.0
"""How long a goal waits for the one ahead before it goes without."""
_KEPT_MAX = 1_024


def prefix_of(place: int, body: bytes) -> bytes:
    """The identity of a request's cacheable prefix on one route; empty where it has none, or a short one."""
    try:
        request = msgspec.json.decode(body)
        blocks = _blocks(request)
        marked = [index for index, block in enumerate(blocks) if isinstance(block, dict) and "cache_control" in block]
    except (msgspec.DecodeError, AttributeError, TypeError):
        return b""
    if not marked:
        return b""
    shared = msgspec.json.encode(blocks[: marked[-1] + 1])
    if len(shared) < PREFIX_BYTES_MIN:
        return b""
    named = f"{place} {request.get('model')}".encode()
    return blake2b(named + shared, digest_size=16).digest()


def _blocks(request: dict[str, Any]) -> list[Any]:
    """All that can be marked, in the provider's order; who says a message belongs to its content."""
    blocks: list[Any] = []
    for part in (request.get("tools"), request.get("system")):
        blocks += part if isinstance(part, list) else [part]
    for message in request.get("messages") or ():
        content = message.get("content")
        blocks.append(message.get("role"))
        blocks += content if isinstance(content, list) else [content]
    return blocks


def goes(k: State, goal: Goal, prefix: bytes) -> bool:
    """Whether this goal may be asked now: its prefix is warm, or it goes ahead. Else it waits for the one that does."""
    warmth = k.warmths.get(prefix)
    if warmth is None or (not warmth.ahead and warmth.until_s <= k.at_s):
        return True
    if not warmth.ahead:
        warmth.until_s = k.at_s + CACHED_S  # whoever reads it keeps it warm
        return True
    if k.at_s >= warmth.until_s:
        return True
    be_woken(k, goal, warmth.until_s)
    k.resting += 1
    take_back(k, goal)
    warmth.waiting.append(goal.id)
    if k.tell is not None:
        k.tell(goal.id, "waits_for_prefix", {"ahead": warmth.ahead >> 20, "until_s": warmth.until_s})
    return False


def ahead(k: State, prefix: bytes, key: int) -> bytes:
    """This attempt goes ahead, where nobody does and the prefix is not warm. The prefix, if so."""
    warmth = k.warmths.get(prefix)
    if warmth is not None and (warmth.ahead or warmth.until_s > k.at_s):
        return b""
    if len(k.warmths) >= _KEPT_MAX:
        for old in [old for old, one in k.warmths.items() if not one.ahead and one.until_s <= k.at_s]:
            del k.warmths[old]
    k.warmths[prefix] = PrefixState(key, k.at_s + PATIENCE_S)
    return prefix


def came_home(k: State, flight: InFlightAttempt, warmed: bool) -> None:
    """The one that went ahead has an answer, and the prefix is warm; or it failed, and the next one goes ahead."""
    warmth = k.warmths.get(flight.prefix)
    if warmth is None or not warmth.ahead:
        return
    waiting, parted_s = warmth.waiting, warmth.until_s
    warmth.waiting, warmth.ahead, warmth.until_s = [], 0, k.at_s + CACHED_S
    if not warmed:
        del k.warmths[flight.prefix]
    for goal_id in waiting:
        goal = k.goals.get(goal_id)
        if goal is not None and goal.status == Status.OPEN and goal.due_at_s == parted_s:
            k.resting -= 1
            offer(k, goal, 0.0)
