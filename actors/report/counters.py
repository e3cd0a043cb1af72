"""Counters of a report by route, kind, branch and failure. Their size does not grow with the job."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.history.annotated_turns import SettledAttempt
from actors.report.sketches import BinnedSeries, QuantileSketch, TimeAxis
from cortex.state import events
from cortex.values.display import clipped

MESSAGES_KEPT = 40
"""Most distinct messages counted for one kind of failure; others are counted together."""
MESSAGE_CHARACTERS = 300
"""Most characters of a kept message."""


class CallTotals(msgspec.Struct):
    """Calls and their cost, of one route, one kind of goal or one label."""

    attempts: int = 0
    answered: int = 0
    reused: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    known_nusd: int = 0
    assumed_nusd: int = 0

    def take(self, each: SettledAttempt) -> None:
        """Add an attempt, or a remembered reply."""
        event = each.event
        if not each.counts:
            return
        self.known_nusd += each.known_nusd
        self.assumed_nusd += each.assumed_nusd
        if isinstance(event, events.ReplyRecalled):
            self.reused += 1
            return
        self.attempts += not each.late
        if isinstance(event, events.AttemptFailed):
            self.failed += 1
            return
        usage = event.reply.usage
        self.answered += 1
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cache_read_tokens += usage.cache_read_tokens
        self.cache_creation_tokens += usage.cache_creation_tokens

    def add(self, more: CallTotals) -> None:
        """Add other totals to these."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


class FailureCount(msgspec.Struct):
    """Failures of one kind."""

    count: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    messages: dict[str, int] = msgspec.field(default_factory=dict)
    """Occurrences by message, for the first ``MESSAGES_KEPT`` messages."""
    goals: dict[str, str] = msgspec.field(default_factory=dict)
    """Name of an example goal, by message."""
    others: int = 0

    def take(self, at_s: float, count: int = 1) -> None:
        """Add failures. Shards are read one after another, so times may come out of order."""
        self.first_s = min(self.first_s or at_s, at_s)
        self.last_s = max(self.last_s, at_s)
        self.count += count

    def record(self, message: str, goal: str) -> None:
        """Count a failure's message, with the name of its goal."""
        text = clipped(message, MESSAGE_CHARACTERS)
        if text in self.messages:
            self.messages[text] += 1
        elif len(self.messages) < MESSAGES_KEPT:
            self.messages[text] = 1
            self.goals[text] = goal
        else:
            self.others += 1


class BranchActivity:
    """Attempts of one branch, over time."""

    def __init__(self, axis: TimeAxis) -> None:
        self.busy = BinnedSeries(axis)
        self.broke = BinnedSeries(axis)
        self.answered = self.failed = 0
        self.elapsed = QuantileSketch()

    def take(self, each: SettledAttempt) -> None:
        """Add an attempt."""
        self.busy.hold(each.begun_s, each.at_s)
        if isinstance(each.event, events.AttemptFailed):
            self.failed += 1
            self.broke.add(each.at_s)
        else:
            self.answered += 1
            self.elapsed.add(each.elapsed_s)


class BreakerPeriod(msgspec.Struct):
    """Period in which a route's breaker was not closed, or its provider asked to wait."""

    route: str
    state: str
    """``open``: no calls; ``half open``: probes alone; ``held``: the provider asked to wait."""
    from_s: float
    to_s: float
    why: str


class GoalTrack(msgspec.Struct):
    """Figures of a goal, while it is in progress or because it is outstanding."""

    job: str
    goal: int
    name: str = ""
    """Display name, of its author or its row."""
    kind: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    attempts: int = 0
    failed: int = 0
    known_nusd: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    failure: str = ""
    """Kind of the last failure; ``said`` is its message. The goal may have been answered since."""
    message: str = ""
    lost: bool = False
    """Whether the goal failed for good."""
    row: str = ""
    """Key of its row; empty without one."""
    object: Any = None
    """K's goal, while it is in progress."""

    @property
    def took_s(self) -> float:
        """Seconds from the first call to the last answer, waits and retries included."""
        return max(0.0, self.last_s - self.first_s)

    def add(self, more: GoalTrack) -> None:
        """Add the figures of another goal."""
        self.first_s = min(self.first_s, more.first_s)
        self.last_s = max(self.last_s, more.last_s)
        self.attempts += more.attempts
        self.failed += more.failed
        self.known_nusd += more.known_nusd
        self.tokens += more.tokens
        self.busy_s += more.busy_s
