"""Models that answer at once, which leaves the cost of Cortex alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.harness.hanoi_verifier import solution
from benchmarks.harness.server import DIGITS, MARK
from cortex.programs.hanoi import pegs_text
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure

_ANSWER = (
    b'{"id":"msg_%b","type":"message","role":"assistant","model":"bench",'
    b'"content":[{"type":"text","text":"row %b"}],"stop_reason":"end_turn","stop_sequence":null,'
    b'"usage":{"input_tokens":40,"output_tokens":4}}'
)
_USAGE = Usage(40, 4)
_PEGS = re.compile(rb"Peg 0:[ \d]*\\nPeg 1:[ \d]*\\nPeg 2:[ \d]*")
_NUMBER = re.compile(rb" \d+")


class AtOnce:
    """Model that repeats the number of a row, like the benchmarks' server, without waiting."""

    endpoint, rate = "at-once", None

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Return the answer."""
        start = body.find(MARK) + len(MARK)
        number = body[start : start + DIGITS]
        return Reply(_ANSWER % (number, number), "end_turn", "bench", _USAGE)

    async def count_tokens(self, body: bytes) -> int | None:
        """Return None: the count is not needed."""
        return None

    async def close(self) -> None:
        """Do nothing: no resource is held."""


class Oracle:
    """Model that knows the moves of the towers: reads the position from the prompt and looks up the move."""

    endpoint, rate = "oracle", None

    def __init__(self) -> None:
        self._replies: dict[bytes, Reply] = {}

    async def call(self, body: bytes, **how: Any) -> Reply | Failure:
        """Return the move."""
        match = _PEGS.search(body)
        assert match is not None, "a prompt says where the disks are"
        pegs = match[0]
        found = self._replies.get(pegs)
        if found is None:
            self._learn(len(_NUMBER.findall(pegs)) - len("012"))
            found = self._replies[pegs]
        return found

    def _learn(self, disks: int) -> None:
        """Compute all moves of ``disks`` disks by starting position."""
        places = "0" * disks
        for move in solution(disks):
            self._replies[msgspec.json.encode(pegs_text(places))[1:-1]] = _reply("move = [{}, {}, {}]".format(*move))
            disk, _, put = move
            places = f"{places[: disk - 1]}{put}{places[disk:]}"

    async def count_tokens(self, body: bytes) -> int | None:
        """Return None: the count is not needed."""
        return None

    async def close(self) -> None:
        """Do nothing: no resource is held."""


def _reply(text: str) -> Reply:
    body = msgspec.json.encode({"id": "msg", "content": [{"type": "text", "text": text}]})
    return Reply(body, "end_turn", "oracle", Usage(130, 5))
