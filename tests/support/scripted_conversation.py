"""Model whose turns of a conversation are given by a function: for tool loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import cortex
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure

Turn = str | tuple[str, dict[str, Any]] | list[tuple[str, dict[str, Any]]]
"""Text, use of a tool (name and input), or several uses."""


class Talker:
    """Model whose next turn is ``said(request)``. It records its requests."""

    endpoint = "talker"
    rate = None

    def __init__(self, said: Callable[[dict[str, Any]], Turn | Failure | Reply], usage: Usage | None = None) -> None:
        self._said, self._usage = said, usage or Usage(10, 2)
        self.asked: list[dict[str, Any]] = []

    async def call(self, body: bytes, **_: Any) -> Reply | Failure:
        """Return the next turn."""
        request = msgspec.json.decode(body)
        self.asked.append(request)
        turn = self._said(request)
        if isinstance(turn, Failure | Reply):
            return turn
        if isinstance(turn, str):
            return _reply([{"type": "text", "text": turn}], "end_turn", self._usage)
        uses = turn if isinstance(turn, list) else [turn]
        blocks = [
            {"type": "tool_use", "id": f"t{len(self.asked)}_{at}", "name": name, "input": given}
            for at, (name, given) in enumerate(uses)
        ]
        return _reply(blocks, "tool_use", self._usage)

    async def count_tokens(self, body: bytes) -> int | None:
        """Return a count of four bytes a token."""
        return len(body) // 4

    async def close(self) -> None:
        """Do nothing."""


def _reply(blocks: list[dict[str, Any]], reason: str, usage: Usage) -> Reply:
    return Reply(msgspec.json.encode({"content": blocks}), reason, "talker", usage)


def ended(text: str, stop_reason: str) -> Reply:
    """Return a turn that ended in another way: its text, or only thinking if that is empty."""
    block = {"type": "text", "text": text} if text else {"type": "thinking", "thinking": "hm", "signature": "s"}
    return _reply([block], stop_reason, Usage(10, 2))


def scripted(*turns: Turn | Reply) -> Talker:
    """Return a model with these turns, whatever it is asked; one request more is an error of the test."""
    left = list(turns)
    return Talker(lambda request: left.pop(0))


def ran(program: cortex.Program, model: Any, state: Path, **more: Any) -> Any:
    """Run a program in this process."""
    return cortex.run(program, model=model, cluster="inline", state=str(state), progress=False, **more)


def results(request: dict[str, Any]) -> list[str]:
    """Return the results of tools, of all turns of a request."""
    blocks = [block for turn in request["messages"] for block in turn["content"]]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]
