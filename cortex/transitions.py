"""The only code that changes goals and items, and the law it keeps.

``apply`` checks a program's changes together against K as they would leave it, then makes them; an illegal one raises
and nothing was changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import msgspec

from cortex import changes as c
from cortex import commands
from cortex.ledger import Charge
from cortex.program import Program, params_of
from cortex.reply import Malformed
from cortex.state import ENDED, TRANSITIONS, Errand, Goal, IllegalTransition, Item, Observation, State, Status
from policies.failure import Failure, FailureKind
from policies.join import Verdict, decide

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_TARGET: dict[type[Any], Status] = {
    c.Resolve: Status.RESOLVED, c.Fail: Status.FAILED, c.Abandon: Status.ABANDONED, c.Reopen: Status.OPEN,
    c.Wait: Status.WAITING, c.RunTool: Status.WAITING, c.Observe: Status.WAITING, c.Spawn: Status.WAITING,
}  # fmt: skip


def plain(value: Any) -> Any:
    """A value as plain data, so that K read from a snapshot equals K replayed from its journal."""
    if type(value) in _PLAIN:
        return value
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def apply(k: State, changed: Sequence[c.Change], out: list[commands.Command], *, call: str, program: Program) -> None:
    """Make these changes, all or none. Raises ``IllegalTransition``; ``Malformed`` for a plan beyond the bounds."""
    _check(k, changed)
    for change in changed:
        _APPLY[type(change)](k, change, out, call, program)


def _check(k: State, changed: Sequence[c.Change]) -> None:
    limits = k.terms.limits
    status: dict[int, Status] = {}
    kind: type[Any]
    added = 0
    for change in changed:
        kind = type(change)
        if kind is Goal:
            assert isinstance(change, Goal)
            added += 1
            if change.id:
                raise IllegalTransition(f"added twice: {change.story()}")
            if change.parent:
                parent = _known(k, change.parent)
                if status.get(parent.id, parent.status) in ENDED:
                    raise IllegalTransition(f"a child for a goal that has ended: {parent.story()}")
                if parent.depth + 1 > limits.depth_max:
                    raise Malformed(f"goals nested deeper than {limits.depth_max}: {parent.story()}")
        elif kind in _TARGET:
            about: Any = change
            goal = _known(k, about.goal.id)
            _legal(goal, status.get(goal.id, goal.status), _TARGET[kind])
            status[goal.id] = _TARGET[kind]
        elif kind not in _APPLY:
            raise TypeError(f"a program may not yield {change!r:.80} here")
    if added > limits.plan_goals_max:
        raise Malformed(f"a plan of {added} goals; at most {limits.plan_goals_max} at once")
    if k.next_goal - 1 + added > limits.goals_max:
        raise Malformed(f"more than {limits.goals_max} goals in one job")


def _known(k: State, goal_id: int) -> Goal:
    goal = k.goals.get(goal_id)
    if goal is None:
        raise IllegalTransition(f"goal {goal_id} is not in K: it never was, or it has ended and left")
    return goal


def _legal(goal: Goal, now: Status, to: Status) -> None:
    if to not in TRANSITIONS[now]:
        raise IllegalTransition(f"{now.name.lower()} -> {to.name.lower()} is no step of a goal's life: {goal.story()}")


# -- the changes, one by one -------------------------------------------------------------------------------------


def _add_goal(k: State, goal: Goal, out: list[commands.Command], call: str, program: Program) -> None:
    goal.id = k.next_goal
    k.next_goal += 1
    goal.value = plain(goal.value)
    goal.status = Status.OPEN
    k.goals[goal.id] = goal
    k.live += 1
    if goal.parent:
        parent = k.goals[goal.parent]
        goal.depth = parent.depth + 1
        parent.children.append(goal.id)
    if program.keeps or goal.parent:
        k.goals_by_kind.setdefault(goal.kind, {})[goal.id] = None
    k.open_by_kind.setdefault(goal.kind, {})[goal.id] = None


def _add_item(k: State, item: Item, out: list[commands.Command], call: str, program: Program) -> None:
    item.id = k.next_item
    k.next_item += 1
    item.value = plain(item.value)
    item.call = item.call or call
    if not item.size_bytes:
        item.size_bytes = size_bytes(item.value)
    k.items[item.id] = item
    k.items_by_kind.setdefault(item.kind, {})[item.id] = None


def size_bytes(value: Any) -> int:
    """UTF-8 bytes of a text, bytes of bytes, else of the value as JSON."""
    if isinstance(value, str):
        return len(value.encode())
    return len(value) if isinstance(value, bytes) else len(msgspec.json.encode(value))


def _resolve(k: State, change: c.Resolve, out: list[commands.Command], call: str, program: Program) -> None:
    goal = k.goals[change.goal.id]
    goal.answer = plain(change.answer)
    end(k, goal, Status.RESOLVED, out, program)


def _fail(k: State, change: c.Fail, out: list[commands.Command], call: str, program: Program) -> None:
    goal = k.goals[change.goal.id]
    if goal.failure is None:
        goal.failure = Failure(FailureKind.MALFORMED, change.why)
    end(k, goal, Status.FAILED, out, program)


def _abandon(k: State, change: c.Abandon, out: list[commands.Command], call: str, program: Program) -> None:
    end(k, k.goals[change.goal.id], Status.ABANDONED, out, program)


def _wait(k: State, change: c.Wait, out: list[commands.Command], call: str, program: Program) -> None:
    goal = k.goals[change.goal.id]
    _set(k, goal, Status.WAITING)
    goal.join, goal.partial = change.join, False
    if change.join.deadline_s is not None:
        goal.due_at_s = k.at_s + change.join.deadline_s
        heapq.heappush(k.delayed, (goal.due_at_s, goal.id))
    look_at_join(k, goal, out, program)


def _reopen(k: State, change: c.Reopen, out: list[commands.Command], call: str, program: Program) -> None:
    goal = k.goals[change.goal.id]
    if change.resample:
        goal.sample = str(int(goal.sample) + 1)
        goal.broken = 0
    reopen(k, goal)


def _emit(k: State, change: c.Emit, out: list[commands.Command], call: str, program: Program) -> None:
    if change.failed:
        k.tally.failed += 1
    else:
        k.tally.succeeded += 1
    if change.order is not None:
        k.held[change.order] = change.value
        while k.emitted in k.held:
            _next_result(k, k.held.pop(k.emitted), out)
        return
    _next_result(k, change.value, out)


def _next_result(k: State, value: Any, out: list[commands.Command]) -> None:
    out.append(commands.Emit(k.emitted, value))
    k.emitted += 1


def _run_tool(k: State, change: c.RunTool, out: list[commands.Command], call: str, program: Program) -> None:
    repeatable = bool(getattr(program.tools.get(change.tool), "repeatable", False))
    errand(k, k.goals[change.goal.id], change.tool, change.arguments, out, repeatable=repeatable)


def _observe(k: State, change: c.Observe, out: list[commands.Command], call: str, program: Program) -> None:
    goal = k.goals[change.goal.id]
    seen = Observation(change.tool, plain(change.arguments), -1.0, change.trust_s)
    item = Item(change.kind, None, observation=seen)
    _add_item(k, item, out, call, program)
    errand(k, goal, change.tool, change.arguments, out, item=item.id)


def _spawn(k: State, change: c.Spawn, out: list[commands.Command], call: str, program: Program) -> None:
    goal = k.goals[change.goal.id]
    _set(k, goal, Status.WAITING)
    goal.join = None
    goal.tries += 1
    where = f"{type(change.program).__module__}:{type(change.program).__qualname__}"
    limits = k.terms.limits
    slice_ = Charge(
        _share(limits.max_cost_nusd, k.ledger.committed_nusd, change.max_cost_nusd),
        _share(limits.max_job_tokens, k.ledger.committed_tokens, None),
    )
    k.ledger.set_aside(slice_)
    k.errands[goal.id] = Errand(goal.id, goal.tries, where, charge=slice_, repeatable=True)
    max_cost_nusd = slice_.nusd if limits.max_cost_nusd is not None else change.max_cost_nusd
    max_job_tokens = slice_.tokens if limits.max_job_tokens is not None else None
    params = params_of(change.program)
    out.append(commands.Launch(goal.id, goal.tries, where, params, max_cost_nusd, max_job_tokens))


def _share(cap: int | None, committed: int, wanted: int | None) -> int:
    """The slice of a cap that a child job may spend: what it was given, or half of what is left."""
    if cap is None:
        return 0
    left = max(0, cap - committed)
    return min(left, wanted) if wanted is not None else left // 2


_APPLY: dict[type, Any] = {
    Goal: _add_goal, Item: _add_item, c.Resolve: _resolve, c.Fail: _fail, c.Wait: _wait, c.Reopen: _reopen,
    c.Abandon: _abandon, c.Emit: _emit, c.RunTool: _run_tool, c.Observe: _observe, c.Spawn: _spawn,
}  # fmt: skip


# -- moves that the loop makes too --------------------------------------------------------------------------------


def _set(k: State, goal: Goal, to: Status) -> None:
    """The one assignment to a goal's status, with the index of open goals kept right."""
    if to not in TRANSITIONS[goal.status]:
        _legal(goal, goal.status, to)
    if goal.status == Status.OPEN:
        k.open_by_kind[goal.kind].pop(goal.id, None)
    goal.status = to


def asked(k: State, goal: Goal) -> None:
    """The goal's call is being made."""
    _set(k, goal, Status.ASKED)


def reopen(k: State, goal: Goal, due_at_s: float = 0.0) -> None:
    """The goal is open again; select sees it from ``due_at_s`` on."""
    _set(k, goal, Status.OPEN)
    goal.due_at_s = due_at_s
    if due_at_s > k.at_s:
        heapq.heappush(k.delayed, (due_at_s, goal.id))
    else:
        k.open_by_kind.setdefault(goal.kind, {})[goal.id] = None


def errand(
    k: State, goal: Goal, tool: str, arguments: dict[str, Any], out: list[commands.Command], item: int = 0,
    repeatable: bool = False,
) -> None:  # fmt: skip
    """Send a worker for this goal, which waits for it. Reading again is always repeatable: it changes nothing."""
    _set(k, goal, Status.WAITING)
    goal.join = None
    goal.tries += 1
    k.errands[goal.id] = Errand(goal.id, goal.tries, tool, item, repeatable=repeatable or item > 0)
    key = k.call_id(goal.id, f"tool-{goal.tries}")
    timeout_s = k.terms.limits.timeout.ceiling_s
    out.append(commands.RunTool(goal.id, goal.tries, tool, plain(arguments), key, timeout_s))


def end(k: State, goal: Goal, to: Status, out: list[commands.Command], program: Program) -> None:
    """The goal has ended. What serves it is abandoned, its parent's join is looked at, and it may leave memory."""
    _set(k, goal, to)
    k.live -= 1
    goal.join = None
    _let_go(k, goal, out)
    for child_id in goal.children:
        child = k.goals.get(child_id)
        if child is not None and child.status not in ENDED:
            end(k, child, Status.ABANDONED, out, program)
    if goal.parent:
        parent = k.goals[goal.parent]
        parent.children_resolved += to == Status.RESOLVED
        parent.children_failed += to != Status.RESOLVED
        look_at_join(k, parent, out, program)
        return
    if program.rows_are_goals and to == Status.RESOLVED:
        _emit(k, c.Emit(goal.answer), out, "", program)
    elif program.rows_are_goals:
        k.tally.failed += 1
    if not program.keeps:
        _forget(k, goal)


def _let_go(k: State, goal: Goal, out: list[commands.Command]) -> None:
    """Calls and errands still under way for an ended goal: nobody waits for them any more."""
    goal.assumed = None
    k.errands.pop(goal.id, None)
    for key in range(goal.id << 20 | max(0, goal.tries - 2), (goal.id << 20 | goal.tries) + 1):
        flight = k.flights.get(key)
        if flight is not None and not flight.abandoned and not flight.followers:
            flight.abandoned = True
            out.append(commands.Abandon(goal.id, flight.attempt))


def _forget(k: State, goal: Goal) -> None:
    for child_id in goal.children:
        child = k.goals.get(child_id)
        if child is not None:
            _forget(k, child)
            k.goals_by_kind[child.kind].pop(child_id, None)
    k.goals.pop(goal.id, None)


def look_at_join(k: State, goal: Goal, out: list[commands.Command], program: Program, late: bool = False) -> None:
    """Whether the goal's join is met now. Met or beyond hope, the goal is open again and the rest is abandoned."""
    if goal.status != Status.WAITING or goal.join is None:
        return
    total = len(goal.children)
    verdict = decide(goal.join, total, goal.children_resolved, goal.children_failed, late)
    if verdict == Verdict.WAIT:
        return
    goal.partial = verdict != Verdict.MET
    goal.join = None
    reopen(k, goal)
    for child_id in goal.children:
        child = k.goals.get(child_id)
        if child is not None and child.status not in ENDED:
            end(k, child, Status.ABANDONED, out, program)


def wake(k: State, out: list[commands.Command], program: Program) -> None:
    """Time has come to ``k.at_s``: goals that were delayed are offered again, joins past their deadline are closed."""
    while k.delayed and k.delayed[0][0] <= k.at_s:
        due_at_s, goal_id = heapq.heappop(k.delayed)
        goal = k.goals.get(goal_id)
        if goal is None or goal.due_at_s != due_at_s:
            continue
        if goal.status == Status.OPEN:
            k.open_by_kind.setdefault(goal.kind, {})[goal_id] = None
        elif goal.status == Status.WAITING:
            look_at_join(k, goal, out, program, late=True)
