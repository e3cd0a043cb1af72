"""The watch over goals: joins that open when enough children are resolved, and jobs that end when too many rows failed.

What a join needs and what a rule forbids is reckoned here, from the children and the results themselves.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cortex import commands, events
from cortex.goals import Goal, Status
from cortex.state import State
from policies.join import Join
from tests.simulation.watch import JobWatch, Watch

SHARE_MIN = 20
"""Finished rows below which a share of them says nothing."""
_ENDED = (Status.RESOLVED, Status.FAILED)


class _Rows:
    """Results of one job."""

    def __init__(self) -> None:
        self.finished = 0
        self.failed = 0
        self.over = False
        """At some moment more had failed than may."""


class GoalsWatch:
    """Told by ``watch`` of turns."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._waiting: dict[str, dict[int, tuple[Join, float]]] = defaultdict(dict)
        """By job and goal: the join it waits for, and when its time is over; 0: never."""
        self._rows: dict[str, _Rows] = defaultdict(_Rows)

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""
        k = record.k
        assert k is not None
        if not k.terms.streams:
            self._joins(record.name, k, turn.at_s)
        elif k.terms.limits.max_failed is not None:
            self._failures(record.name, k, k.terms.limits.max_failed, out)

    # -- joins ---------------------------------------------------------------------------------------------------------

    def _joins(self, job: str, k: State, at_s: float) -> None:
        waiting = self._waiting[job]
        for goal in k.goals.values():
            if goal.status == Status.WAITING and goal.join is not None and goal.children:
                waiting[goal.id] = goal.join, goal.due_at_s
                if _met(k, goal, goal.join):
                    self._watch.say(f"{job}: goal {goal.id} waits on, its join is met")
            elif goal.id in waiting:
                join, due_at_s = waiting.pop(goal.id)
                over = bool(due_at_s) and at_s >= due_at_s
                if goal.status not in (Status.FAILED, Status.ABANDONED) and not over and not _met(k, goal, join):
                    self._watch.say(f"{job}: goal {goal.id} goes on before its join, {join.kind}, is met")

    # -- rows that fail ------------------------------------------------------------------------------------------------

    def _failures(self, job: str, k: State, rule: float, out: list[commands.Command]) -> None:
        rows = self._rows[job]
        asks = False
        for command in out:
            if type(command) is commands.Call:
                asks = True
            elif type(command) is commands.Emit and isinstance(command.value, bytes):
                rows.finished += 1
                rows.failed += b'"errored"' in command.value
        if asks and rows.over:
            self._watch.say(f"{job} asks on: {rows.failed} of {rows.finished} rows have failed, the rule is {rule}")
        ordered = b'"ordered":true' in k.terms.params_json
        if rule >= 1:
            rows.over |= rows.failed >= rule
        elif not ordered:  # else results are held back, the last of them for ever, and tell too little
            rows.over |= rows.finished >= SHARE_MIN and rows.failed >= rule * rows.finished
        if k.outcome and k.why.startswith("max_failed") and not rows.over and not ordered:
            self._watch.say(f"{job} ended {k.why}, though {rows.failed} of {rows.finished} rows failed")

    # -- what others look at -------------------------------------------------------------------------------------------

    def asked(self, request: Any) -> None:
        """Requests are looked at elsewhere."""

    def billed(self, request: Any) -> None:
        """So is money."""

    def sent(self, life: Any, name: str, method: str, args: Any) -> None:
        """A message leaves."""

    def standing(self) -> None:
        """Nothing is due here."""

    def took(self, job: str, epoch: int) -> None:
        """Epochs are looked at elsewhere."""

    def stepped(self, state: Any, event: Any, out: Any) -> None:
        """Leases are looked at elsewhere."""

    def answered(self, message: Any, value: Any) -> None:
        """So are their answers."""


def _met(k: State, goal: Goal, join: Join) -> bool:
    """Enough children are resolved, or all have ended."""
    stands = [k.goals[child].status for child in goal.children]
    resolved = stands.count(Status.RESOLVED)
    if all(one in _ENDED for one in stands):
        return True
    if join.kind == "majority":
        return 2 * resolved > len(stands)
    return resolved >= {"all": len(stands), "any": 1, "quorum": join.n}[join.kind]
