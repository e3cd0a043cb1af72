"""Fast path of `apply_changes`, for the changes that most answers and most rows cause.

An answer ends its goal, and may emit a result and add a new goal; a row adds a goal. Such goals have no children, no
parent and no join. ``apply_changes.apply`` makes all other changes; for these it would produce the same K and the same
commands, or raise the same error (``tests/properties/test_fast_paths.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cortex.goals.lifecycle import OPEN, Out, end_alone
from cortex.goals.result_list import emit
from cortex.state.changes import Change, Emit, Resolve
from cortex.state.commands import StepCommands
from cortex.state.goals import NEVER
from cortex.state.program import Program
from cortex.state.state import Goal, State
from cortex.values.election import VOTE
from cortex.values.plain_values import to_plain


def may_apply_fast(k: State, program: Program, out: Out) -> bool:
    """Return True if changes of this turn may take the fast path: no listener, no traced program, and a `StepCommands`
    output.
    """
    return k.on_decision is None and not program.traced and type(out) is StepCommands


def fast_apply(k: State, changed: Sequence[Change], out: Out, by: Goal | None, program: Program) -> bool:
    """Apply these changes if they qualify: at most one unordered result, one new top goal, and the end of the goal
    ``by``, which has just been answered. Return False otherwise, with nothing changed.

    Raises like ``apply_changes.apply`` for values that K cannot keep.
    """
    ended: Any = None
    emitted: Any = None
    added: Any = None
    for change in changed:
        kind = type(change)
        if kind is Resolve and ended is None:
            ended = change
            if (
                by is None or ended.goal is not by or by.parent or by.children or by.join is not None
                or by.assumed is not None or k.errands or k.reading
            ):  # fmt: skip
                return False  # its end affects other goals or running work
            answer = to_plain(ended.answer) if ended.answer is not None else None
        elif kind is Goal and added is None:
            added = change
            if not _is_new(k, added):
                return False
            value = to_plain(added.value)
        elif kind is Emit and emitted is None:
            emitted = change
            if emitted.order is not None:
                return False
            result = to_plain(emitted.value)
        else:
            return False
    if emitted is not None:
        if ended is not None and program.rows_are_goals:
            return False  # two results: their order matters
        emit(k, result, None, emitted.failed, out, emitted.row, emitted.kind)
    if added is not None:
        _add(k, added, value, out, program)
    if ended is not None:
        end_alone(k, ended.goal, answer, out, program)
    return True


def _is_new(k: State, goal: Goal) -> bool:
    """Return True for a new top goal without a due time, if there is room for it."""
    return not (
        goal.id or goal.status is not OPEN or goal.tries or goal.parent or goal.children or goal.kind == VOTE
        or goal.due_at_s is not NEVER or goal.deadline_at_s is not NEVER or k.next_goal > k.terms.limits.goals_max
    )  # fmt: skip


def _add(k: State, goal: Goal, value: Any, out: Any, program: Program) -> None:
    number = goal.id = k.next_goal
    k.next_goal = number + 1
    if goal.value is not value:
        goal.value = value
    if goal.depth:
        goal.depth = 0
    kind = goal.kind
    k.goals[number] = goal
    k.live += 1
    if program.keeps:
        k.goals_by_kind.setdefault(kind, {})[number] = None
    ready = k.open_by_kind.get(kind)
    if ready is None:
        ready = k.open_by_kind[kind] = {}
    ready[number] = None
    out.made.append(goal)
