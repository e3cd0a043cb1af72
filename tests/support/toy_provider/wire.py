"""Wire form of the made-up provider, from and to the canonical form.

A request is ``{"engine", "limit", "turns": [{"who", "says"}]}``, a response ``{"said", "why", "engine", "units"}``, whose
units of input include those read from a cache. Limits come as ``requests=100;left=99;back=6s, units=40000;left=39000;back=1m6s``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from actors.providers.transport.body import UnreadableResponse
from cortex.values.canonical import END_TURN, MAX_TOKENS, REFUSAL
from cortex.values.reply import Reply, Usage, canonical_reply
from policies.limits.limit import RateLimits, ReportedBucket

LIMITS: Final = "x-toy-limits"
_REASONS: Final = {"done": END_TURN, "limit": MAX_TOKENS, "declined": REFUSAL}
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}


class _Units(msgspec.Struct):
    taken: int
    cached: int
    given: int


class _Answer(msgspec.Struct):
    said: str
    why: str
    engine: str
    units: _Units


def encoded(body: bytes) -> bytes:
    """Return a canonical request in the provider's form."""
    request = msgspec.json.decode(body)
    turns = [{"who": "rules", "says": _text(request["system"])}] if request.get("system") else []
    turns += [{"who": each["role"], "says": _text(each["content"])} for each in request["messages"]]
    return msgspec.json.encode({"engine": request["model"], "limit": request.get("max_tokens", 0), "turns": turns})


def decoded(body: bytes) -> Reply:
    """Return the canonical reply in a response. Raises ``UnreadableResponse``."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
        reason = _REASONS[answer.why]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise UnreadableResponse(f"the response is no answer: {error}") from None
    units = answer.units
    usage = Usage(units.taken - units.cached, units.given, cache_read_tokens=units.cached)
    content = [{"type": "text", "text": answer.said}]
    return canonical_reply(content, stop_reason=reason, model=answer.engine, usage=usage)


def rate_limits(headers: Mapping[str, str]) -> RateLimits | None:
    """Return the rate limits in the headers of a response; None if there are none."""
    found = {}
    for part in filter(None, headers.get(LIMITS, "").split(",")):
        pairs = dict(pair.strip().split("=", 1) for pair in part.split(";"))
        name = next(name for name in pairs if name not in ("left", "back"))
        found[name] = ReportedBucket(int(pairs[name]), int(pairs["left"]), seconds(pairs["back"]))
    empty = ReportedBucket()
    return RateLimits(found.get("requests", empty), input_tokens=found.get("units", empty)) if found else None


def seconds(text: str) -> float:
    """Return the seconds of ``1m6s`` or ``250ms``."""
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h)", text))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
