"""Application of a program's changes to K: all of them or none.

``apply`` checks all changes together against K as they would leave it, and converts every value to plain data; an
illegal change raises and nothing was changed. Then all changes are made, and only then their consequences: children of
an ended goal are abandoned, joins are decided, ended goals leave memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from cortex.goals.child_jobs import spawn
from cortex.goals.lifecycle import (  # fmt: skip
    OPEN,
    RESOLVED,
    WAITING,
    Out,
    after,
    be_woken,
    begin_run,
    begin_timeout,
    close,
    end_alone,
    forget_children,
    leave_call,
    leave_errand,
    legal,
    look_at_join,
    note_refused,
    offer,
    reopen,
    set_status,
    tool_errand,
)
from cortex.goals.result_list import emit
from cortex.state import changes
from cortex.state.changes import Emit, Resolve
from cortex.state.commands import LogLine, RecordGoal, StepCommands
from cortex.state.goals import NEVER
from cortex.state.program import Program, params_of
from cortex.state.state import ENDED, TRANSITIONS, Goal, IllegalTransition, Item, Observation, State, Status
from cortex.values.election import VOTE
from cortex.values.plain_values import size_bytes
from cortex.values.plain_values import to_plain as to_plain
from cortex.values.reply import Malformed
from policies.failures.failure import Failure, FailureKind

_Make = Callable[[State, Any, Any, Out, Program], None]

_INFINITE = float("inf")

ERRANDS = (changes.RunTool, changes.Observe, changes.Spawn)
"""Changes that need a worker or a child job."""


def apply(k: State, changed: Sequence[changes.Change], out: Out, *, by: Goal | None, program: Program) -> None:
    """Apply these changes, all or none. ``by`` is the goal whose result they came from, if any.

    Raises ``IllegalTransition``; ``Malformed`` for plans beyond the limits; ``ValueError`` or ``TypeError`` for values
    that K cannot keep or runs that a worker cannot make.
    """
    view = _PendingView(by, program)
    checked = _checked(k, changed, view)
    listener = k.on_decision
    if listener is not None:
        listener(by.id if by is not None else 0, "changes", {"changed": changed})
    for make, change, value in checked:
        make(k, change, value, out, program)
    if listener is not None and view.goals:
        listener(by.id if by is not None else 0, "made", {"changed": changed})
    for goal_id in view.status:
        goal = k.goals.get(goal_id)
        if goal is None:
            continue
        if goal.status > WAITING:  # the goal has ended
            after(k, goal, out, program)
        elif goal.join is not None:
            look_at_join(k, goal, out, program)


# -- the fast path ---------------------------------------------------------------------------------------------------


def may_apply_fast(k: State, program: Program, out: Out) -> bool:
    """Return True if ``fast_apply`` may be used in this turn.

    No listener sees decisions, the program is not traced, and the commands are a ``StepCommands``.
    """
    return k.on_decision is None and not program.traced and type(out) is StepCommands


def fast_apply(k: State, changed: Sequence[changes.Change], out: Out, by: Goal | None, program: Program) -> bool:
    """Apply these changes as ``apply`` does, if all are eligible (fast path). Else change nothing, and return False.

    ``may_apply_fast`` must hold for the turn. Eligible is at most one change of each of these kinds, as nearly every
    answer and every row causes them:

    - ``Resolve`` of the goal ``by``, which has just been answered, where the end concerns nothing else: the goal has no
      parent, no children, no join and no lost attempts, and no tool run or child job is in progress;
    - a new top goal as its constructor leaves it, without a due time or a deadline, while there is room for a goal;
    - ``Emit`` of an unordered result, unless the end of ``by`` is a result as well: the order of two would matter.

    Raises like ``apply`` for values that K cannot keep. Equal to ``apply`` by ``tests/properties/test_fast_paths.py``:
    the same K and the same commands, byte for byte, or the same error.
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
            if (
                added.id or added.status is not OPEN or added.tries or added.parent or added.children
                or added.kind == VOTE or added.due_at_s is not NEVER or added.deadline_at_s is not NEVER
                or k.next_goal > k.terms.limits.goals_max
            ):  # fmt: skip
                return False  # no new top goal without a due time, or no room for one
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
        emit(k, result, None, emitted.failed, out, emitted.row, emitted.kind, emitted.ending)
    if added is not None:  # as `_add_goal` does, which fits goals with a parent or a due time as well
        number = added.id = k.next_goal
        k.next_goal = number + 1
        if added.value is not value:
            added.value = value
        if added.depth:
            added.depth = 0
        k.goals[number] = added
        k.live += 1
        if program.keeps:
            k.goals_by_kind.setdefault(added.kind, {})[number] = None
        try:
            k.open_by_kind[added.kind][number] = None
        except KeyError:  # the first of its kind
            k.open_by_kind[added.kind] = {number: None}
        out.made.append(added)  # type: ignore[attr-defined]
    if ended is not None:
        end_alone(k, ended.goal, answer, out, program)
    return True


# -- checking -------------------------------------------------------------------------------------------------------


class _PendingView(msgspec.Struct):
    """State shared by changes that are checked together."""

    by: Goal | None
    program: Program
    status: dict[int, Status] = {}
    """Status of each affected goal after the changes so far."""
    made: list[Goal | Item] = []
    goals: int = 0
    orders: tuple[int, ...] = ()


def _checked(
    k: State, changed: Sequence[changes.Change], view: _PendingView
) -> list[tuple[_Make, changes.Change, Any]]:
    """Return each change with the function that makes it and its value as plain data. Raises for an illegal change."""
    checked = []
    status = view.status
    try:
        for change in changed:
            to, check, make = _KINDS.get(type(change)) or _no_change(change)
            if to is not None:
                goal = k.goals.get(change.goal.id) or _unknown(change.goal.id)  # type: ignore[union-attr]
                now = status.get(goal.id, goal.status)
                if to not in TRANSITIONS[now]:
                    legal(goal, now, to)
                status[goal.id] = to
            checked.append((make, change, check(k, change, view)))
    finally:
        for one in view.made:
            one.id = 0
    if added := view.goals:
        limits = k.terms.limits
        if view.by is not None and added > limits.plan_goals_max:
            raise Malformed(f"a plan of {added} goals; at most {limits.plan_goals_max} at once")
        if k.next_goal - 1 + added > limits.goals_max:
            raise Malformed(f"more than {limits.goals_max} goals in one job")
    return checked


def _no_change(change: Any) -> NoReturn:
    raise TypeError(f"a program may not yield {change!r:.80} here")


def _unknown(goal_id: int) -> NoReturn:
    raise IllegalTransition(f"goal {goal_id} is not in K: it never was, or it has ended and left")


def _check_goal(k: State, goal: Goal, view: _PendingView) -> Any:
    if goal.id or goal.status or goal.tries or goal.children:
        raise IllegalTransition(f"a goal must be new when it is added: {goal.story()}")
    if goal.kind == VOTE:
        raise ValueError(f"goals of kind {VOTE} are made by Vote alone")
    if goal.parent:
        parent = k.goals.get(goal.parent) or _unknown(goal.parent)
        if view.status.get(parent.id, parent.status) in ENDED:
            raise IllegalTransition(f"a child for a goal that has ended: {parent.story()}")
        if parent.depth + 1 > k.terms.limits.depth_max:
            raise Malformed(f"goals nested deeper than {k.terms.limits.depth_max}: {parent.story()}")
    if (goal.due_at_s or goal.deadline_at_s) and not (
        0 <= goal.due_at_s < _INFINITE and 0 <= goal.deadline_at_s < _INFINITE
    ):
        raise ValueError(f"a goal's times are seconds since 1970, not {goal.due_at_s} and {goal.deadline_at_s}")
    view.made.append(goal)
    view.goals += 1
    goal.id = -1  # so that a second use of the same object is detected
    return to_plain(goal.value)


def _check_item(k: State, item: Item, view: _PendingView) -> tuple[Any, int, str]:
    if item.id:
        raise IllegalTransition(f"item {item.id} ({item.kind}) is in K already: an item must be new when it is added")
    for source in item.sources:
        if source not in k.items:
            raise IllegalTransition(f"an item of kind {item.kind} names source {source}, which is not in K")
    view.made.append(item)
    item.id = -1
    value, by = to_plain(item.value), view.by
    call = item.call or (k.call_id(by.id, by.sample) if by is not None else "")
    return value, item.size_bytes or size_bytes(value), call


def _check_emit(k: State, change: changes.Emit, view: _PendingView) -> Any:
    order = change.order
    if order is not None:
        if (order < k.next_in_order and order not in k.again) or order in k.held or order in view.orders:
            raise ValueError(f"result {order} of the input was emitted already")
        view.orders += (order,)
    return to_plain(change.value)


def _check_resolve(k: State, change: changes.Resolve, view: _PendingView) -> Any:
    return to_plain(change.answer)


def _check_fail(k: State, change: changes.Fail, view: _PendingView) -> Any:
    kind = None if change.kind is None else FailureKind(change.kind)
    return kind, to_plain(str(change.why))


def _check_nothing(k: State, change: changes.Abandon, view: _PendingView) -> None:
    """Check nothing: the change has only its goal."""


def _check_wait(k: State, change: changes.Wait, view: _PendingView) -> float | None:
    within_s = change.deadline_s
    if within_s is None and change.join is not None:
        within_s = change.join.deadline_s
    if within_s is not None and change.join is None:
        raise ValueError("a wait without a join cannot have a deadline: leave it out, or give a join")
    if within_s is None:
        return None
    if not 0 <= within_s < _INFINITE:
        raise ValueError(f"a deadline must be 0 s or more, not {within_s}")
    return float(within_s)


def _check_expect(k: State, change: changes.Expect, view: _PendingView) -> str:
    name: str = to_plain(str(change.name))
    if not name:
        raise ValueError("an external answer needs a name")
    return name


def _check_checkpoint(k: State, change: changes.Checkpoint, view: _PendingView) -> Any:
    goal = k.goals.get(change.goal.id)
    if goal is None:
        _unknown(change.goal.id)
    if view.status.get(goal.id, goal.status) in ENDED:
        raise IllegalTransition(f"a checkpoint of a goal that has ended: {goal.story()}")
    if not 0 <= change.children <= len(goal.children):
        raise ValueError(f"a checkpoint after child {change.children} of a goal that has {len(goal.children)}")
    if any(child in view.status for child in goal.children[change.children :]):
        raise ValueError("a checkpoint may not come with other changes to the children that it drops")
    return to_plain(change.value)


def _check_log(k: State, change: changes.Log, view: _PendingView) -> Any:
    return to_plain(str(change.text))


def _check_reopen(k: State, change: changes.Reopen, view: _PendingView) -> None:
    sample = k.goals[change.goal.id].sample
    if change.resample and not sample.isdecimal():
        raise ValueError(f"sample {sample!r} has no next number")


def _check_tool(k: State, change: changes.RunTool | changes.Observe, view: _PendingView) -> dict[str, Any]:
    if change.tool not in view.program.tools:
        raise ValueError(f"{type(view.program).__name__} has no tool named {change.tool!r}")
    if isinstance(change, changes.Observe) and not change.trust_s >= 0:
        raise ValueError(f"an observation may be trusted for 0 s or more, not {change.trust_s}")
    arguments: dict[str, Any] = to_plain(dict(change.arguments))
    return arguments


def _check_spawn(k: State, change: changes.Spawn, view: _PendingView) -> tuple[str, bytes]:
    if not isinstance(change.program, Program):
        raise TypeError(f"a child job needs a program, not {type(change.program).__name__}")
    if change.max_cost_nusd is not None and change.max_cost_nusd <= 0:
        raise ValueError(f"max_cost_nusd must be above zero, not {change.max_cost_nusd}")
    made = type(change.program)
    return f"{made.__module__}:{made.__qualname__}", params_of(change.program)


# -- the changes, one by one ----------------------------------------------------------------------------------------


def _emit(k: State, change: changes.Emit, value: Any, out: Out, program: Program) -> None:
    emit(k, value, change.order, change.failed, out, change.row, change.kind, change.ending)


def _add_goal(k: State, goal: Goal, value: Any, out: Out, program: Program) -> None:
    number = goal.id = k.next_goal
    k.next_goal = number + 1
    goal.value = value
    k.goals[number] = goal
    k.live += 1
    if goal.parent:
        parent = k.goals[goal.parent]
        goal.depth = parent.depth + 1
        parent.children.append(number)
    elif goal.depth:
        goal.depth = 0
    if program.keeps or goal.parent:
        k.goals_by_kind.setdefault(goal.kind, {})[number] = None
    if goal.deadline_at_s:
        heapq.heappush(k.deadlines, (goal.deadline_at_s, number))
    offer(k, goal, goal.due_at_s)
    if type(out) is StepCommands:
        out.made.append(goal)
    if program.traced:
        out.append(RecordGoal(number, goal.kind, value))


def _add_item(k: State, item: Item, value: tuple[Any, int, str], out: Out, program: Program) -> None:
    item.id = k.next_item
    k.next_item += 1
    item.value, item.size_bytes, item.call = value
    item.sources = tuple(item.sources)
    k.items[item.id] = item
    seen = item.observation
    if seen is not None:
        taken_at_s = k.at_s if seen.read_at_s >= 0 else -1.0
        item.observation = Observation(
            seen.tool, to_plain(seen.arguments), float(seen.read_at_s), float(seen.trust_s), taken_at_s
        )
    if seen is None or seen.read_at_s >= 0:
        k.items_by_kind.setdefault(item.kind, {})[item.id] = None


def _resolve(k: State, change: changes.Resolve, answer: Any, out: Out, program: Program) -> None:
    goal = k.goals[change.goal.id]
    goal.answer = answer
    if goal.failure is not None:
        goal.failure = None
    close(k, goal, RESOLVED, out, program)


def _fail(k: State, change: changes.Fail, value: tuple[FailureKind | None, str], out: Out, program: Program) -> None:
    goal, (kind, why) = k.goals[change.goal.id], value
    if goal.failure is None or (kind is not None and kind is not goal.failure.kind):
        goal.failure = Failure(kind or FailureKind.MALFORMED, why)
    close(k, goal, Status.FAILED, out, program)


def _abandon(k: State, change: changes.Abandon, value: None, out: Out, program: Program) -> None:
    close(k, k.goals[change.goal.id], Status.ABANDONED, out, program)


def _wait(k: State, change: changes.Wait, within_s: float | None, out: Out, program: Program) -> None:
    goal = k.goals[change.goal.id]
    set_status(k, goal, WAITING)
    leave_call(k, goal, out)
    if change.join is None:
        goal.join, goal.expects = None, ""
    else:
        goal.join = msgspec.structs.replace(change.join, deadline_s=within_s)
    goal.partial, goal.due_at_s = False, NEVER
    begin_timeout(k, goal)
    if within_s is not None:
        be_woken(k, goal, k.at_s + within_s)


def _expect(k: State, change: changes.Expect, name: str, out: Out, program: Program) -> None:
    goal = k.goals[change.goal.id]
    set_status(k, goal, WAITING)
    leave_call(k, goal, out)
    goal.join, goal.expects = None, name
    begin_timeout(k, goal)
    k.expected.setdefault(name, []).append(goal.id)


def _checkpoint(k: State, change: changes.Checkpoint, value: Any, out: Out, program: Program) -> None:
    goal = k.goals[change.goal.id]
    goal.kept = value
    forget_children(k, goal, change.children, out, program)


def _log(k: State, change: changes.Log, text: str, out: Out, program: Program) -> None:
    out.append(LogLine(k.at_s, text))


def _reopen(k: State, change: changes.Reopen, value: None, out: Out, program: Program) -> None:
    goal = k.goals[change.goal.id]
    reopen(k, goal)
    leave_call(k, goal, out)
    leave_errand(k, goal, out)
    if change.resample:
        goal.sample = str(int(goal.sample) + 1)
        goal.broken = goal.throttles = 0
    if change.refused:
        k.tally.attempt_failed(FailureKind.MALFORMED)
        note_refused(goal, change.refused)


def _run_tool(k: State, change: changes.RunTool, arguments: dict[str, Any], out: Out, program: Program) -> None:
    goal = k.goals[change.goal.id]
    leave_call(k, goal, out)
    begin_run(k, goal, tool_errand(k, program, goal, change.tool, arguments), out)


def _observe(k: State, change: changes.Observe, arguments: dict[str, Any], out: Out, program: Program) -> None:
    goal = k.goals[change.goal.id]
    leave_call(k, goal, out)
    item = Item(change.kind, observation=Observation(change.tool, arguments, -1.0, float(change.trust_s)))
    _add_item(k, item, (None, 0, ""), out, program)
    k.reading.setdefault(goal.id, k.at_s)
    begin_run(k, goal, tool_errand(k, program, goal, change.tool, arguments, item=item.id), out)


class _ChangeKind(NamedTuple):
    """Handling of one type of change: the status it leads to, its check, and the function that makes it."""

    to: Status | None
    check: Callable[[State, Any, _PendingView], Any]
    make: _Make


_KINDS: dict[type, _ChangeKind] = {
    Goal: _ChangeKind(None, _check_goal, _add_goal),
    Item: _ChangeKind(None, _check_item, _add_item),
    changes.Emit: _ChangeKind(None, _check_emit, _emit),
    changes.Resolve: _ChangeKind(RESOLVED, _check_resolve, _resolve),
    changes.Fail: _ChangeKind(Status.FAILED, _check_fail, _fail),
    changes.Abandon: _ChangeKind(Status.ABANDONED, _check_nothing, _abandon),
    changes.Reopen: _ChangeKind(Status.OPEN, _check_reopen, _reopen),
    changes.Wait: _ChangeKind(WAITING, _check_wait, _wait),
    changes.RunTool: _ChangeKind(WAITING, _check_tool, _run_tool),
    changes.Observe: _ChangeKind(WAITING, _check_tool, _observe),
    changes.Spawn: _ChangeKind(WAITING, _check_spawn, spawn),
    changes.Expect: _ChangeKind(WAITING, _check_expect, _expect),
    changes.Checkpoint: _ChangeKind(None, _check_checkpoint, _checkpoint),
    changes.Log: _ChangeKind(None, _check_log, _log),
}
