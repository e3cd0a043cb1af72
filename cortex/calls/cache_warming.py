"""Warm-first fan-out: of calls that share a long cacheable prompt prefix, one goes ahead.

The prefix is the part of a request up to its last ``cache_control``, in the provider's order: tools, system, messages
(https://docs.claude.com/en/docs/build-with-claude/prompt-caching). While the first call has no answer the others wait
for it, and use no permit; then all follow, and read the cache it wrote. If it fails, the next call goes ahead.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from cortex.goals.lifecycle import be_woken, offer, take_back
from cortex.state.state import Goal, InFlightAttempt, PrefixState, State, Status

CACHED_S = 300.0
"""Seconds for which the provider keeps a prefix without use."""
PREFIX_BYTES_MIN = 4_096
"""Bytes of the shortest prefix considered: the provider caches 1,024 tokens or more, of four bytes or more each."""
PATIENCE_S = 60.0
"""Seconds for which a goal waits for the call ahead before it is asked anyway."""
_KEPT_MAX = 1_024
"""Number of prefixes above which cold ones are forgotten."""


def prefix_of(place: int, body: bytes) -> bytes:
    """Return the identity of a request's cacheable prefix on one route; empty if it has none, or a short one."""
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
    """All content that can be marked, in the provider's order; a message's role is part of its content."""
    blocks: list[Any] = []
    for part in (request.get("tools"), request.get("system")):
        blocks += part if isinstance(part, list) else [part]
    for message in request.get("messages") or ():
        content = message.get("content")
        blocks.append(message.get("role"))
        blocks += content if isinstance(content, list) else [content]
    return blocks


def goes(k: State, goal: Goal, prefix: bytes) -> bool:
    """Return True if this goal may be asked now: its prefix is warm, or it goes ahead. Otherwise it waits."""
    warmth = k.warmths.get(prefix)
    if warmth is None or (not warmth.ahead and warmth.until_s <= k.at_s):
        return True
    if not warmth.ahead:
        warmth.until_s = k.at_s + CACHED_S  # each use keeps it warm
        return True
    if k.at_s >= warmth.until_s:
        return True
    be_woken(k, goal, warmth.until_s)
    k.resting += 1
    take_back(k, goal)
    warmth.waiting.append(goal.id)
    if k.on_decision is not None:
        k.on_decision(goal.id, "waits_for_prefix", {"ahead": warmth.ahead >> 20, "until_s": warmth.until_s})
    return False


def ahead(k: State, prefix: bytes, key: int) -> bytes:
    """Let this attempt go ahead if the prefix is cold and no other attempt does. Return the prefix, if so."""
    warmth = k.warmths.get(prefix)
    if warmth is not None and (warmth.ahead or warmth.until_s > k.at_s):
        return b""
    if len(k.warmths) >= _KEPT_MAX:
        for old in [old for old, one in k.warmths.items() if not one.ahead and one.until_s <= k.at_s]:
            del k.warmths[old]
    k.warmths[prefix] = PrefixState(key, k.at_s + PATIENCE_S)
    return prefix


def prefix_settled(k: State, flight: InFlightAttempt, warmed: bool) -> None:
    """Note the end of the attempt ahead: after an answer the prefix is warm; after a failure the next attempt goes
    ahead.
    """
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
