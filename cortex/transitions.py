"""Making a program's changes: all of them or none.

``apply`` checks them together against K as they would leave it, and turns every value into plain data; an illegal one
raises and nothing was changed. Then it makes them, and only then come their consequences: children without a goal are
abandoned, joins are looked at, what has ended leaves memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cortex import changes as c
from cortex.commands import Launch, RunTool
from cortex.ledger import Bill, Charge
from cortex.moves import (
    WAITING,
    Out,
    after,
    be_woken,
    close,
    emit,
    errand,
    leave_call,
    leave_errand,
    legal,
    look_at_join,
    offer,
    reopen,
    set_status,
)  # fmt: skip
from cortex.plain import plain as plain
from cortex.plain import size_bytes
from cortex.program import Program, params_of
from cortex.reply import Malformed
from cortex.state import ENDED, TRANSITIONS, Errand, Goal, IllegalTransition, Item, Observation, State, Status
from policies.failure import Failure, FailureKind

_TARGET = {c.Resolve: Status.RESOLVED, c.Fail: Status.FAILED, c.Wait: Status.WAITING, c.Reopen: Status.OPEN,
           c.Abandon: Status.ABANDONED, c.RunTool: Status.WAITING, c.Observe: Status.WAITING,
           c.Spawn: Status.WAITING}  # fmt: skip

ERRANDS = (c.RunTool, c.Observe, c.Spawn)
"""The changes that need a worker or a child job."""


def apply(k: State, changed: Sequence[c.Change], out: Out, *, by: Goal | None, program: Program) -> None:
    """Make these changes, all or none. ``by`` is the goal whose result they came from, if one.

    Raises ``IllegalTransition``; ``Malformed`` where they plan beyond the bounds; ``ValueError`` or ``TypeError`` for
    what K cannot keep or a worker cannot run.
    """
    values = _checked(k, changed, by, program)
    aimed: list[c.Change] = []
    for change, value in zip(changed, values, strict=True):
        make = _MAKE.get(type(change))
        if make is not None:
            make(k, change, value, by, out, program)
        else:
            _MOVE[type(change)](k, k.goals[change.goal.id], change, value, out, program)  # type: ignore[union-attr]
            aimed.append(change)
    for change in aimed:
        goal = k.goals.get(change.goal.id)  # type: ignore[union-attr]
        if goal is None:
            continue
        if goal.status > WAITING:  # it has ended
            after(k, goal, out, program)
        else:
            look_at_join(k, goal, out, program)


# -- checking -------------------------------------------------------------------------------------------------------


def _checked(k: State, changed: Sequence[c.Change], by: Goal | None, program: Program) -> list[Any]:
    """What each change carries, as plain data. Raises where one of them may not be made."""
    status: dict[int, Status] = {}
    made: list[Goal | Item | c.Emit] = []
    values = []
    try:
        for change in changed:
            kind = type(change)
            to = _TARGET.get(kind)
            if to is not None:
                goal = _known(k, change.goal.id)  # type: ignore[union-attr]
                now = status.get(goal.id, goal.status)
                if to not in TRANSITIONS[now]:
                    legal(goal, now, to)
                status[goal.id] = to
                check = _CHECK.get(kind)
                values.append(check(goal, change, program) if check is not None else None)
            elif kind is c.Emit:
                values.append(_new_result(k, change, made))  # type: ignore[arg-type]
            elif kind is Goal:
                values.append(_new_goal(k, change, status))  # type: ignore[arg-type]
                made.append(change)  # type: ignore[arg-type]
                change.id = -1  # type: ignore[union-attr]
            elif kind is Item:
                values.append(_new_item(k, change, by))  # type: ignore[arg-type]
                made.append(change)  # type: ignore[arg-type]
                change.id = -1  # type: ignore[union-attr]
            else:
                raise TypeError(f"a program may not yield {change!r:.80} here")
    finally:
        for one in made:
            if type(one) is not c.Emit:
                one.id = 0  # type: ignore[union-attr]
    if made:
        _within_bounds(k, sum(type(one) is Goal for one in made), planned=by is not None)
    return values


def _within_bounds(k: State, added: int, planned: bool) -> None:
    limits = k.terms.limits
    if planned and added > limits.plan_goals_max:
        raise Malformed(f"a plan of {added} goals; at most {limits.plan_goals_max} at once")
    if k.next_goal - 1 + added > limits.goals_max:
        raise Malformed(f"more than {limits.goals_max} goals in one job")


def _known(k: State, goal_id: int) -> Goal:
    goal = k.goals.get(goal_id)
    if goal is None:
        raise IllegalTransition(f"goal {goal_id} is not in K: it never was, or it has ended and left")
    return goal


def _new_goal(k: State, goal: Goal, status: dict[int, Status]) -> Any:
    if goal.id or goal.status or goal.tries or goal.children:
        raise IllegalTransition(f"a goal is added once, and new: {goal.story()}")
    if goal.parent:
        parent = _known(k, goal.parent)
        if status.get(parent.id, parent.status) in ENDED:
            raise IllegalTransition(f"a child for a goal that has ended: {parent.story()}")
        if parent.depth + 1 > k.terms.limits.depth_max:
            raise Malformed(f"goals nested deeper than {k.terms.limits.depth_max}: {parent.story()}")
    return plain(goal.value)


def _new_item(k: State, item: Item, by: Goal | None) -> tuple[Any, int, str]:
    if item.id:
        raise IllegalTransition(f"item {item.id} ({item.kind}) is in K already: an item is added once, and new")
    for source in item.sources:
        if source not in k.items:
            raise IllegalTransition(f"an item of kind {item.kind} names source {source}, which is not in K")
    value = plain(item.value)
    call = item.call or (k.call_id(by.id, by.sample) if by is not None else "")
    return value, item.size_bytes or size_bytes(value), call


def _new_result(k: State, change: c.Emit, made: list[Goal | Item | c.Emit]) -> Any:
    order = change.order
    if order is not None:
        beside = any(type(one) is c.Emit and one.order == order for one in made)
        if order < k.next_in_order or order in k.held or beside:
            raise ValueError(f"result {order} of the input was emitted already")
        made.append(change)
    return plain(change.value)


def _check_resolve(goal: Goal, change: c.Resolve, program: Program) -> Any:
    return plain(change.answer)


def _check_wait(goal: Goal, change: c.Wait, program: Program) -> float | None:
    within_s = change.deadline_s if change.deadline_s is not None else change.join.deadline_s
    if within_s is None:
        return None
    if not 0 <= within_s < float("inf"):
        raise ValueError(f"a deadline must be 0 s or more, not {within_s}")
    return float(within_s)


def _check_reopen(goal: Goal, change: c.Reopen, program: Program) -> None:
    if change.resample and not goal.sample.isdecimal():
        raise ValueError(f"sample {goal.sample!r} has no next number")


def _check_tool(goal: Goal, change: c.RunTool | c.Observe, program: Program) -> dict[str, Any]:
    if change.tool not in program.tools:
        raise ValueError(f"{type(program).__name__} has no tool named {change.tool!r}")
    if isinstance(change, c.Observe) and not change.trust_s >= 0:
        raise ValueError(f"an observation may be trusted for 0 s or more, not {change.trust_s}")
    arguments: dict[str, Any] = plain(dict(change.arguments))
    return arguments


def _check_spawn(goal: Goal, change: c.Spawn, program: Program) -> tuple[str, bytes]:
    if not isinstance(change.program, Program):
        raise TypeError(f"a child job needs a program, not {type(change.program).__name__}")
    if change.max_cost_nusd is not None and change.max_cost_nusd <= 0:
        raise ValueError(f"max_cost_nusd must be above zero, not {change.max_cost_nusd}")
    made = type(change.program)
    return f"{made.__module__}:{made.__qualname__}", params_of(change.program)


_CHECK: dict[type, Callable[[Goal, Any, Program], Any]] = {
    c.Resolve: _check_resolve, c.Wait: _check_wait, c.Reopen: _check_reopen, c.RunTool: _check_tool,
    c.Observe: _check_tool, c.Spawn: _check_spawn,
}  # fmt: skip


# -- the changes, one by one ----------------------------------------------------------------------------------------


def _add_result(k: State, change: c.Emit, value: Any, by: Goal | None, out: Out, program: Program) -> None:
    emit(k, value, change.order, change.failed, out)


def _add_goal(k: State, goal: Goal, value: Any, by: Goal | None, out: Out, program: Program) -> None:
    goal.id = k.next_goal
    k.next_goal += 1
    goal.value = value
    k.goals[goal.id] = goal
    k.live += 1
    goal.depth = 0
    if goal.parent:
        parent = k.goals[goal.parent]
        goal.depth = parent.depth + 1
        parent.children.append(goal.id)
    if program.keeps or goal.parent:
        k.goals_by_kind.setdefault(goal.kind, {})[goal.id] = None
    offer(k, goal, goal.due_at_s)


def _add_item(k: State, item: Item, value: tuple[Any, int, str], by: Goal | None, out: Out, program: Program) -> None:
    item.id = k.next_item
    k.next_item += 1
    item.value, item.size_bytes, item.call = value
    item.sources = tuple(item.sources)
    k.items[item.id] = item
    seen = item.observation
    if seen is not None:
        taken_at_s = k.at_s if seen.read_at_s >= 0 else -1.0
        item.observation = Observation(
            seen.tool, plain(seen.arguments), float(seen.read_at_s), float(seen.trust_s), taken_at_s
        )
    if seen is None or seen.read_at_s >= 0:
        k.items_by_kind.setdefault(item.kind, {})[item.id] = None


def _resolve(k: State, goal: Goal, change: c.Resolve, answer: Any, out: Out, program: Program) -> None:
    goal.answer = answer
    goal.failure = None
    close(k, goal, Status.RESOLVED, out, program)


def _fail(k: State, goal: Goal, change: c.Fail, value: None, out: Out, program: Program) -> None:
    if goal.failure is None:
        goal.failure = Failure(change.kind, change.why)
    close(k, goal, Status.FAILED, out, program)


def _abandon(k: State, goal: Goal, change: c.Abandon, value: None, out: Out, program: Program) -> None:
    close(k, goal, Status.ABANDONED, out, program)


def _wait(k: State, goal: Goal, change: c.Wait, within_s: float | None, out: Out, program: Program) -> None:
    set_status(k, goal, Status.WAITING)
    leave_call(k, goal, out)
    goal.join = msgspec.structs.replace(change.join, deadline_s=within_s)
    goal.partial, goal.due_at_s = False, 0.0
    if within_s is not None:
        be_woken(k, goal, k.at_s + within_s)


def _reopen(k: State, goal: Goal, change: c.Reopen, value: None, out: Out, program: Program) -> None:
    reopen(k, goal)
    leave_call(k, goal, out)
    leave_errand(k, goal, out)
    if change.resample:
        goal.sample = str(int(goal.sample) + 1)
        goal.broken = goal.throttles = 0


def _run_tool(
    k: State, goal: Goal, change: c.RunTool, arguments: dict[str, Any], out: Out, program: Program
) -> None:  # fmt: skip
    leave_call(k, goal, out)
    repeatable = bool(getattr(program.tools[change.tool], "repeatable", False))
    errand(k, goal, tool_errand(k, goal, change.tool, arguments, repeatable=repeatable), out)


def _observe(
    k: State, goal: Goal, change: c.Observe, arguments: dict[str, Any], out: Out, program: Program
) -> None:  # fmt: skip
    leave_call(k, goal, out)
    seen = Observation(change.tool, arguments, -1.0, float(change.trust_s))
    item = Item(change.kind, observation=seen)
    _add_item(k, item, (None, 0, ""), None, out, program)
    k.reading.setdefault(goal.id, k.at_s)
    errand(k, goal, tool_errand(k, goal, change.tool, arguments, item=item.id, repeatable=True), out)


def tool_errand(
    k: State, goal: Goal, tool: str, arguments: dict[str, Any], *, item: int = 0, repeatable: bool = False
) -> Errand:  # fmt: skip
    """A tool run for this goal. Its key is the same however often it is run."""
    key = k.call_id(goal.id, f"tool-{goal.tries + 1}")
    command = RunTool(goal.id, 0, tool, arguments, key, k.terms.limits.timeout.ceiling_s)
    return Errand(goal.id, 0, tool, item, repeatable=repeatable, command=command)


def _spawn(
    k: State, goal: Goal, change: c.Spawn, value: tuple[str, bytes], out: Out, program: Program
) -> None:  # fmt: skip
    """A child job gets a slice of what is left of the caps; where nothing is left the job pauses."""
    leave_call(k, goal, out)
    where, params = value
    nusd, tokens = _slice(k, goal)
    spent = k.billed.get(goal.id, Bill())  # the child's own ledger goes on from there
    cap_nusd = None if nusd is None else spent.known_nusd + spent.assumed_nusd + nusd
    own = change.max_cost_nusd
    own_cap = own is not None and (cap_nusd is None or own <= cap_nusd)
    if own is not None and own_cap:
        cap_nusd = own
        nusd = None if nusd is None else max(0, own - spent.known_nusd - spent.assumed_nusd)
    if nusd == 0 or tokens == 0:
        k.paused = Failure(FailureKind.OVER_BUDGET, f"nothing is left of the cap for a child job of goal {goal.id}")
        if goal.status != Status.OPEN:
            reopen(k, goal)
        return
    slice_ = Charge(nusd or 0, tokens or 0)
    k.ledger.set_aside(slice_)
    if tokens is not None:
        tokens += spent.input_tokens + spent.output_tokens + spent.assumed_tokens
    command = Launch(goal.id, 0, where, params, cap_nusd, tokens)
    errand(k, goal, Errand(goal.id, 0, where, charge=slice_, own_cap=own_cap, repeatable=True, command=command), out)


def _slice(k: State, goal: Goal) -> tuple[int | None, int | None]:
    """What a child job of this goal may spend: an equal share of what is left, for each open goal and one more."""
    limits = k.terms.limits
    others = sum(len(index) for index in k.open_by_kind.values()) - (goal.status == Status.OPEN)
    return (
        _share(limits.max_cost_nusd, k.ledger.committed_nusd, others + 2),
        _share(limits.max_job_tokens, k.ledger.committed_tokens, others + 2),
    )


def _share(cap: int | None, committed: int, among: int) -> int | None:
    return None if cap is None else max(0, cap - committed) // among


def more_than(k: State, goal: Goal, charge: Charge) -> bool:
    """Whether the slice that this goal's child job would get now is larger than the one that was not enough."""
    nusd, tokens = _slice(k, goal)
    return (nusd is None or nusd > charge.nusd) and (tokens is None or tokens > charge.tokens)


_MAKE: dict[type, Callable[[State, Any, Any, Goal | None, Out, Program], None]] = {
    c.Emit: _add_result, Goal: _add_goal, Item: _add_item,
}  # fmt: skip
_MOVE: dict[type, Callable[[State, Goal, Any, Any, Out, Program], None]] = {
    c.Resolve: _resolve, c.Fail: _fail, c.Wait: _wait, c.Reopen: _reopen, c.Abandon: _abandon, c.RunTool: _run_tool,
    c.Observe: _observe, c.Spawn: _spawn,
}  # fmt: skip
