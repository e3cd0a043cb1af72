"""The fast path of changes: those that most answers and most rows bring.

An answer brings the end of its goal, perhaps a result, perhaps a new goal in its place; a row brings a goal. There is
nothing around such goals: no children, no parent, no join. ``transitions.apply`` makes every other change; of these it
would make the same K and the same commands, or raise the same (``tests/properties/test_fast_paths.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from cortex.changes import Change, Emit, Resolve
from cortex.commands import Decided
from cortex.election import VOTE
from cortex.goals import NEVER
from cortex.moves import ASKED, OPEN, Out, end_alone
from cortex.plain import plain
from cortex.program import Program
from cortex.results import emit
from cortex.state import Goal, State

CHANGES_MAX = 3


def apply_plainly(k: State, changed: Sequence[Change], out: Out, by: Goal | None, program: Program) -> bool:
    """Make these changes where they are plain: at most the end of the goal ``by`` that was answered, one result in no
    order, and one new top goal. False where they are more, and nothing was changed.

    Raises what ``transitions.apply`` does for values that K cannot keep.
    """
    if len(changed) > CHANGES_MAX or program.traced or k.tell is not None or type(out) is not Decided:
        return False
    ended: Resolve | None = None
    emitted: Emit | None = None
    added: Goal | None = None
    for change in changed:
        if type(change) is Resolve:
            if ended is not None or by is None or change.goal is not by or not _is_alone(k, by):
                return False
            ended, answer = change, plain(change.answer)
        elif type(change) is Emit:
            if emitted is not None or change.order is not None:
                return False
            emitted, result = change, plain(change.value)
        elif type(change) is Goal:
            if added is not None or not _is_new(k, change):
                return False
            added, value = change, plain(change.value)
        else:
            return False
    if emitted is not None:
        if ended is not None and program.rows_are_goals:
            return False  # two results: their order counts
        emit(k, result, None, emitted.failed, out, emitted.row, emitted.kind)
    if added is not None:
        _add(k, added, value, out, program)
    if ended is not None:
        end_alone(k, ended.goal, answer, out, program)
    return True


def _is_alone(k: State, goal: Goal) -> bool:
    """Whether this goal was answered, and its end concerns nothing else."""
    return (
        goal.status is ASKED and not goal.question and not goal.parent and not goal.children and goal.join is None
        and goal.assumed is None and not k.elections and not k.errands and not k.reading
    )  # fmt: skip


def _is_new(k: State, goal: Goal) -> bool:
    """Whether this is a top goal that was never added, to be asked at once, and there is room for it."""
    return (
        not goal.id and goal.status is OPEN and not goal.tries and not goal.parent and not goal.children
        and goal.kind != VOTE and goal.due_at_s is NEVER and goal.deadline_at_s is NEVER
        and k.next_goal <= k.terms.limits.goals_max
    )  # fmt: skip


def _add(k: State, goal: Goal, value: object, out: Decided, program: Program) -> None:
    number = goal.id = k.next_goal
    k.next_goal = number + 1
    goal.value = value
    if goal.depth:
        goal.depth = 0
    k.goals[number] = goal
    k.live += 1
    if program.keeps:
        k.goals_by_kind.setdefault(goal.kind, {})[number] = None
    k.open_by_kind.setdefault(goal.kind, {})[number] = None
    out.made.append(goal)
