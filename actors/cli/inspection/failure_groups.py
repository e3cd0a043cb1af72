"""Failed goals and rows as text: one line each while they are few, else one line for each kind and message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from actors.cli.inspection.text_lines import time_of
from actors.common.units import clock

GROUPS_MAX = 1_000
"""Most groups; failures of further messages are counted together."""
_VARIABLE = re.compile(r"\w*\d\w*")
"""Word with a digit: a number, a request's id, a row's key. Messages that differ in such words are of one group."""


class FailureGroup(msgspec.Struct):
    """Failures of one kind, with one message."""

    kind: str
    message: str
    """Message of the first of them."""
    example: str
    """Row, or goal, of the first of them."""
    first_s: float
    last_s: float
    count: int = 0


class FailureList:
    """Listing of failures. ``lines_max``: failures up to which each has a line."""

    def __init__(self, lines_max: int) -> None:
        self._max = lines_max
        self._lines: list[str] = []
        self._groups: dict[tuple[str, str], FailureGroup] = {}
        self.count = 0

    @property
    def grouped(self) -> bool:
        """True if failures are too many for a line each."""
        return self.count > self._max

    def take(self, each: dict[str, Any]) -> None:
        """Add a failure (``actors.inspection.turn_list.failures_of``)."""
        self.count += 1
        failure = each["failure"]
        kind, message = str(failure.get("kind", "")), " ".join(failure.get("message", "").split())
        row, goal = (f"row {each['row']}" if each["row"] else ""), f"goal:{each['goal']}" if each["goal"] else "refused"
        at = f"turn {each['turn']:>7,}  {time_of(each['at_s'])}"
        if self.count <= self._max:
            self._lines.append(f"{goal:<12} {row:<20} {at}  {each['attempts']:>2} attempts  {kind}: {message}")
        key = kind, _VARIABLE.sub("0", message)
        if key not in self._groups and len(self._groups) >= GROUPS_MAX:
            key, message = ("", ""), "other messages"
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = FailureGroup(kind, message, row or goal, each["at_s"], each["at_s"])
        group.count += 1
        group.first_s, group.last_s = min(group.first_s, each["at_s"]), max(group.last_s, each["at_s"])

    def lines(self) -> Iterator[str]:
        """Yield the lines: of each failure in their order, or of each group, the largest first."""
        if not self.grouped:
            yield from self._lines
            return
        for group in sorted(self._groups.values(), key=lambda group: -group.count):
            span = f"{clock(group.first_s)} to {clock(group.last_s)}"
            text = f"{group.kind}: {group.message}" if group.kind else group.message
            yield f"{group.count:>7,}  {span}  e.g. {group.example:<16}  {text}"
