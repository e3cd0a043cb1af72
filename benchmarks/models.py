"""Models that answer at once, so that what remains is what Cortex does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.server import DIGITS, MARK
from benchmarks.towers import solution
from cortex.reply import Reply, Usage
from policies.failure import Failure

_ANSWER = (
    b'{"id":"msg_%b","type":"message","role":"assistant","model":"bench",'
    b'"content":[{"type":"text","text":"row %b"}],"stop_reason":"end_turn","stop_sequence":null,'
    b'"usage":{"input_tokens":40,"output_tokens":4}}'
)
_USAGE = Usage(40, 4)


class AtOnce:
    """Says the number of a row again, as the server of the benchmarks does, without waiting for anything."""

    endpoint, rate = "at-once", None

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """The answer."""
        start = body.find(MARK) + len(MARK)
        number = body[start : start + DIGITS]
        return Reply(_ANSWER % (number, number), "end_turn", "bench", _USAGE)

    async def count_tokens(self, body: bytes) -> int | None:
        """It is not asked."""
        return None

    async def close(self) -> None:
        """Nothing is held."""


class Oracle:
    """Knows the moves of the towers, and asks of a prompt only whether it was seen before: if not, it is the next of
    whichever chain is ahead."""

    endpoint, rate = "oracle", None

    def __init__(self, disks: int) -> None:
        self._replies = [_reply("move = [{}, {}, {}]".format(*move)) for move in solution(disks)]
        self._seen: dict[bytes, Reply] = {}

    async def call(self, body: bytes, **how: Any) -> Reply | Failure:
        """The move."""
        found = self._seen.get(body)
        if found is None:
            found = self._seen[body] = self._replies[len(self._seen)]
        return found

    async def count_tokens(self, body: bytes) -> int | None:
        """It is not asked."""
        return None

    async def close(self) -> None:
        """Nothing is held."""


def _reply(text: str) -> Reply:
    body = msgspec.json.encode({"id": "msg", "content": [{"type": "text", "text": text}]})
    return Reply(body, "end_turn", "oracle", Usage(130, 5))
