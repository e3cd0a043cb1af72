"""Deadlines of the job and of its goals.

A goal fails as TIMED_OUT when its deadline passes, whatever it waits for; its descendants are abandoned. A deadline set
by a program is a fixed time. A timeout (``Limits.goal_timeout_s``) is a duration: it begins with the first attempt at a
top goal, is stopped while the job is paused, and begins anew when the job is resumed. At the job's own deadline nothing
new is begun; calls in flight end, and the job ends partial.
"""

from __future__ import annotations

import heapq

from cortex.calls.program_hooks import Out, give_up
from cortex.goals.lifecycle import begin_timeout, end
from cortex.state.goals import NEVER
from cortex.state.program import Program
from cortex.state.state import ENDED, Goal, State, Status
from policies.failures.failure import Failure, FailureKind

_STALE_MIN = 64


def look(k: State, program: Program, out: Out) -> None:
    """Fail the goals whose deadline has passed at ``k.at_s``."""
    heap = k.deadlines
    while heap:
        due_at_s, goal_id = heap[0]
        goal = k.goals.get(goal_id)
        stale = goal is None or goal.status in ENDED or due_at_s not in (goal.deadline_at_s, goal.timeout_at_s)
        if not stale and due_at_s > k.at_s:
            break
        heapq.heappop(heap)
        if stale or goal is None:
            continue
        if due_at_s == goal.timeout_at_s and due_at_s != goal.deadline_at_s and k.paused is not None:
            goal.timeout_at_s = NEVER  # the timeout begins anew when the goal is asked again
            continue
        _time_out(k, program, goal, out)
    if len(heap) > _STALE_MIN + 4 * k.live:
        k.deadlines = sorted(entry for entry in heap if _stands(k, *entry))


def _stands(k: State, due_at_s: float, goal_id: int) -> bool:
    goal = k.goals.get(goal_id)
    return goal is not None and goal.status not in ENDED and due_at_s in (goal.deadline_at_s, goal.timeout_at_s)


def _time_out(k: State, program: Program, goal: Goal, out: Out) -> None:
    """Fail a goal at its deadline. The program may resolve it with what there is, as after any failure, but not keep it
    open.
    """
    failure = Failure(FailureKind.TIMED_OUT, "the goal's deadline passed before it was met", sent=False)
    give_up(k, program, goal, failure, out)
    if goal.status not in ENDED:
        goal.failure = failure
        end(k, goal, Status.FAILED, out, program)


def begin_anew(k: State) -> None:
    """Restart the timeouts when the job is resumed: the time of the interruption does not count."""
    for goal in k.goals.values():
        if goal.timeout_at_s and goal.status not in ENDED:
            goal.timeout_at_s = NEVER
            if goal.status != Status.OPEN:
                begin_timeout(k, goal)
