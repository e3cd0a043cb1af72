"""Watch over goals: joins end when enough children are resolved, and jobs end when too many rows have failed.

Requirements of joins and failure rules are computed here, from the children and the results themselves.
"""

from __future__ import annotations

from collections import defaultdict

from cortex.state import commands, events
from cortex.state.goals import Goal, Status
from cortex.state.state import State
from policies.decisions.join import Join
from tests.simulation.invariants import JobWatch, Observer, Watch
from tests.simulation.provider import ELECT, elected

SHARE_MIN = 20
"""Finished rows below which a share of them is not judged."""
_ENDED = (Status.RESOLVED, Status.FAILED)


class _Rows:
    """Results of one job."""

    def __init__(self) -> None:
        self.finished = 0
        self.failed = 0
        self.over = False
        """True once more rows had failed than permitted."""


class GoalsWatch(Observer):
    """Observer of turns."""

    by_turns = True

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._waiting: dict[str, dict[int, tuple[Join, float]]] = defaultdict(dict)
        """By job and goal: the join it waits for, and its deadline; 0: none."""
        self._links: dict[str, dict[tuple[str, int], str]] = defaultdict(dict)
        """By job: winner of each link of each chain."""
        self._rows: dict[str, _Rows] = defaultdict(_Rows)

    def lost(self, record: JobWatch, gone: list[list[commands.Command]]) -> None:
        """Forget a job."""
        for table in (self._waiting, self._links, self._rows):
            table.pop(record.name, None)  # type: ignore[attr-defined]

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""
        k = record.k
        assert k is not None
        if not k.terms.streams:
            self._joins(record.name, k, turn.at_s)
            if k.terms.program.endswith(":Elector"):
                self._winners(record.name, out)
        elif k.terms.limits.max_failed is not None:
            if any(type(event) is events.Resumed for batch in turn.batches for event in batch):
                self._rows[record.name].over = False  # rows that were under way may have brought the share below the rule
            self._failures(record.name, k, k.terms.limits.max_failed, out)

    # -- joins ---------------------------------------------------------------------------------------------------------

    def _joins(self, job: str, k: State, at_s: float) -> None:
        waiting = self._waiting[job]
        for goal in k.goals.values():
            if goal.status == Status.WAITING and goal.join is not None and goal.children:
                due_at_s = waiting.get(goal.id, (goal.join, goal.due_at_s))[1]  # as recorded at the begin of the wait
                waiting[goal.id] = goal.join, due_at_s
                if _met(k, goal, goal.join):
                    self._watch.say(f"{job}: goal {goal.id} waits on, its join is met")
                if due_at_s and at_s >= due_at_s and not k.outcome:
                    self._watch.say(f"{job}: goal {goal.id} waits on, the time of its join is over")
            elif goal.id in waiting:
                join, due_at_s = waiting.pop(goal.id)
                over = bool(due_at_s) and at_s >= due_at_s
                if goal.status not in (Status.FAILED, Status.ABANDONED) and not over and not _met(k, goal, join):
                    self._watch.say(f"{job}: goal {goal.id} goes on before its join, {join.kind}, is met")
                if goal.status not in (Status.FAILED, Status.ABANDONED) and goal.partial == _enough(k, goal, join):
                    self._watch.say(
                        f"{job}: goal {goal.id} merges what its join, {join.kind}, had, as partial: {goal.partial}"
                    )

    # -- elections -----------------------------------------------------------------------------------------------------

    def _winners(self, job: str, out: list[commands.Command]) -> None:
        """Check that votes are won by the answer of all replies but one, whatever was lost, throttled, discarded or
        late.
        """
        for command in out:
            if type(command) is commands.EmitResult and isinstance(command.value, list):
                chain, place, winner = command.value
                before = self._links[job]
                right = elected(f"{ELECT}{chain} {place} {before.get((chain, place - 1), '')}")
                if winner != right:
                    self._watch.say(
                        f"{job}: {winner!r} has won link {place} of {chain}, all votes but one were for {right!r}"
                    )
                if before.setdefault((chain, place), winner) != winner:
                    self._watch.say(f"{job}: link {place} of {chain} is won by another than before")

    # -- rows that fail ------------------------------------------------------------------------------------------------

    def _failures(self, job: str, k: State, rule: float, out: list[commands.Command]) -> None:
        rows = self._rows[job]
        asks = False
        for command in out:
            if type(command) is commands.Call:
                asks = True
            elif type(command) is commands.EmitResult and isinstance(command.value, bytes):
                rows.finished += 1
                rows.failed += b'"errored"' in command.value
        if asks and rows.over:
            self._watch.say(f"{job} asks on: {rows.failed} of {rows.finished} rows have failed, the rule is {rule}")
        ordered = b'"ordered":true' in k.terms.params_json
        if rule >= 1:
            rows.over |= rows.failed >= rule
        elif not ordered:  # ordered results are held back, the last of them for ever, so they prove too little
            rows.over |= rows.finished >= SHARE_MIN and rows.failed >= rule * rows.finished
        if k.outcome and k.why.startswith("max_failed") and not rows.over and not ordered:
            self._watch.say(f"{job} ended {k.why}, though {rows.failed} of {rows.finished} rows failed")


def _met(k: State, goal: Goal, join: Join) -> bool:
    """Return whether enough children are resolved, or all have ended."""
    return _enough(k, goal, join) or all(k.goals[child].status in _ENDED for child in goal.children)


def _enough(k: State, goal: Goal, join: Join) -> bool:
    stands = [k.goals[child].status for child in goal.children]
    resolved = stands.count(Status.RESOLVED)
    if join.kind == "majority":
        return 2 * resolved > len(stands)
    return resolved >= {"all": len(stands), "any": 1, "quorum": join.n}[join.kind]
