"""Failed goals and rows as text: a line each, or a line for each kind and message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from actors.cli.inspection.text_lines import time_of
from actors.common.units import clock

GROUPS_MAX = 1_000
"""Most groups; failures of further messages are counted together."""
_STATUS = (
    r"\b(?:https?(?:/\d(?:\.\d)?)?|status|code|error|errno)[\s:=_'\"(\[]*(?:(?:code|error)[\s:='\"]*)?\d{1,3}\b"
    rf"|\b[45]\d\d (?:client error|server error|error|{'|'.join(re.escape(each.phrase) for each in HTTPStatus)})\b"
)
"""Number of a cause and not of a row, as servers and HTTP clients write it: *HTTP 503*, *HTTP Error 503*, *status 503*,
*Error code: 429*, *503 Server Error*, *'503 Service Unavailable'*, *[Errno 28]*, *exit status 1*."""
_NUMBER = re.compile(rf"(?P<status>{_STATUS})|\w*\d\w*", re.IGNORECASE)
"""Status, or a word with a digit: a number, a request's id, a row's key. Messages that differ in such words alone are
of one group; those of two statuses are not."""


def line_of(each: dict[str, Any], timed: bool = False) -> str:
    """Return the line of one failure (``actors.inspection.turn_list.failures_of``). ``timed``: with its time of day;
    the columns without it stay as they are, as programs read them."""
    row, goal = (f"row {each['row']}" if each["row"] else ""), f"goal:{each['goal']}" if each["goal"] else "refused"
    at = f"turn {each['turn']:>7,}" + (f"  {time_of(each['at_s'])}" if timed else "")
    kind, message, _ = _cause(each)
    return f"{goal:<12} {row:<20} {at}  {each['attempts']:>2} attempts  {kind}: {message}"


def _cause(each: dict[str, Any]) -> tuple[str, str, int]:
    """Return the kind of a failure, its message in one line, and its HTTP status; 0: none."""
    failure = each["failure"]
    return str(failure.get("kind", "")), " ".join(failure.get("message", "").split()), int(failure.get("status") or 0)


class FailureGroup(msgspec.Struct):
    """Failures of one kind and HTTP status, with one message."""

    kind: str
    status: int
    message: str
    """Message of the first of them."""
    example: str
    """Row, or goal, of the first of them."""
    first_s: float
    last_s: float
    count: int = 0


class FailureList:
    """Listing of failures for a person. ``lines_max``: failures up to which each has a line."""

    def __init__(self, lines_max: int) -> None:
        self._max = lines_max
        self._lines: list[str] = []
        self._groups: dict[tuple[str, int, str], FailureGroup] = {}
        self.count = 0

    @property
    def grouped(self) -> bool:
        """True if failures are too many for a line each."""
        return self.count > self._max

    def take(self, each: dict[str, Any]) -> None:
        """Add a failure."""
        self.count += 1
        if self.count <= self._max:
            self._lines.append(line_of(each, timed=True))
        kind, message, status = _cause(each)
        key = kind, status, _NUMBER.sub(lambda found: found["status"] or "0", message)
        if key not in self._groups and len(self._groups) >= GROUPS_MAX:
            key, kind, message, status = ("", 0, ""), "", "other messages", 0
        group = self._groups.get(key)
        if group is None:
            example = f"row {each['row']}" if each["row"] else f"goal:{each['goal']}" if each["goal"] else "refused"
            group = self._groups[key] = FailureGroup(kind, status, message, example, each["at_s"], each["at_s"])
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
            text += f" (HTTP {group.status})" if group.status >= 400 and str(group.status) not in group.message else ""
            yield f"{group.count:>7,}  {span}  e.g. {group.example:<16}  {text}"
