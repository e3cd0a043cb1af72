"""Views of the state for a task: selected, compared, merged and summarised by code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from cortex.control import result_types
from cortex.control.commands import Compare, Merge, Project
from cortex.control.state import ControlState
from cortex.control.tasks import CommandRefused, ControlTask, TaskStatus


def named(task: ControlTask) -> str:
    """Return a short name of a task."""
    text = " ".join((task.framing or task.goal).split())
    return f"task {task.id} ({text[:50]})"


def result(task: ControlTask) -> str:
    """Return the task's result, or its status."""
    if task.status == TaskStatus.DONE:
        return result_types.shown(task.value)
    return f"{task.status}{': ' + task.why if task.why else ''}"


def members(c: ControlState, me: ControlTask, group: int) -> list[ControlTask]:
    """Return a fork's branches, or all children. Raises ``CommandRefused`` if there are none."""
    found = [task for task in c.children(me) if group in (0, task.group)]
    if not found:
        raise CommandRefused(f"task {me.id} has no {'children' if not group else f'group {group}'}")
    return found


def project(c: ControlState, me: ControlTask, wanted: Project) -> str:
    """Return the requested part of the state."""
    mine = [c.tasks[each] for each in wanted.of] if known(c, wanted.of) else [*c.children(me)]
    lines = _PARTS[wanted.what](c, me, mine)
    return "\n".join(lines[-wanted.last :] if wanted.last > 0 else lines) or "nothing"


def known(c: ControlState, of: Sequence[int]) -> bool:
    """Return True if any tasks are named. Raises ``CommandRefused`` for an unknown task."""
    unknown = [each for each in of if each not in c.tasks]
    if unknown:
        raise CommandRefused(f"there is no task {unknown[0]}")
    return bool(of)


def _task(c: ControlState, me: ControlTask, _: list[ControlTask]) -> list[str]:
    return [f"task {me.id}: {me.goal}", f"status: {me.status}, try {me.tries}, depth {me.depth}",
            *([f"items: {', '.join(me.items)}"] if me.items else [])]  # fmt: skip


def _budget(c: ControlState, me: ControlTask, _: list[ControlTask]) -> list[str]:
    spent, bounds = c.spent, c.bounds
    most = {"turns": bounds.turns_max, "tokens": bounds.tokens_max, "tools": bounds.tools_max}
    lines = [f"{name}: {getattr(spent, name)} of {bound or 'any'}" for name, bound in most.items()]
    return [*lines, f"seconds: {spent.seconds:.0f} of {bounds.seconds_max or 'any'}",
            f"USD: {spent.nusd / 1e9:g} of {bounds.usd_max or 'any'}"]  # fmt: skip


_PARTS: dict[str, Any] = {
    "task": _task,
    "budget": _budget,
    "results": lambda c, me, of: [f"{named(task)}: {result(task)}" for task in of],
    "failures": lambda c, me, of: [f"{named(task)}: {task.why}" for task in of if task.status == TaskStatus.FAILED],
    "deeds": lambda c, me, of: [
        f"{deed.tool} {msgspec.json.encode(deed.given, order='sorted').decode()}"
        for task in (of or [me]) for deed in task.deeds
    ],
    "checkpoints": lambda c, me, of: [
        f"{name}: {each.note}" for name, each in c.checkpoints.items() if each.task == me.id
    ],
    "approvals": lambda c, me, of: [
        f"{name}: {'open' if each.granted is None else 'granted' if each.granted else 'denied'}"
        for name, each in c.approvals.items()
    ],
    "missing": lambda c, me, of: me.missing(),
}  # fmt: skip


def projected(c: ControlState, me: ControlTask) -> str:
    """Return the results of other tasks with which a task's context begins."""
    most = c.bounds.shown_max
    return "\n".join(f"{named(c.tasks[each])}: {result(c.tasks[each])[:most]}" for each in me.shows)


def merge(c: ControlState, me: ControlTask, wanted: Merge) -> tuple[str, list[ControlTask]]:
    """Merge results; return the merged result and the tasks without one. Raises ``CommandRefused`` while some are
    live.
    """
    of = members(c, me, wanted.group)
    live = [str(task.id) for task in of if task.live]
    if live:
        raise CommandRefused(f"not yet: {', '.join(live)} {'has' if len(live) == 1 else 'have'} not ended")
    done = [task for task in of if task.status == TaskStatus.DONE]
    without = [task for task in of if task.status != TaskStatus.DONE]
    if not done:
        raise CommandRefused("none of them came to a result")
    return _MERGED[wanted.how](done), without


def _sum(done: list[ControlTask]) -> str:
    counts: Counter[str] = Counter()
    total: float = 0
    for task in done:
        value = task.value
        if isinstance(value, dict) and all(type(each) in (int, float) for each in value.values()):
            for name, number in value.items():
                counts[name] += number
        elif type(value) in (int, float):
            total += value
        else:
            raise CommandRefused(f"the result of task {task.id} is neither a number nor counts")
    if counts and total:
        raise CommandRefused("some results are numbers and others counts")
    return result_types.shown(dict(counts)) if counts else f"{total:g}"


def _majority(done: list[ControlTask]) -> str:
    facts = Counter(result_types.shown(task.value) for task in done)
    value, votes = facts.most_common(1)[0]
    if 2 * votes <= len(done):
        raise CommandRefused(f"no majority: {', '.join(f'{name[:60]!r} {count}' for name, count in facts.items())}")
    return value


_MERGED: dict[str, Any] = {
    "sum": _sum,
    "majority": _majority,
    "first": lambda done: result_types.shown(done[0].value),
    "list": lambda done: "\n".join(f"{named(task)}: {result_types.shown(task.value)}" for task in done),
}


def compare(c: ControlState, me: ControlTask, wanted: Compare) -> str:
    """Return the results side by side."""
    of = members(c, me, wanted.group)
    facts = Counter(result_types.shown(task.value) for task in of if task.status == TaskStatus.DONE)
    lines = [f"{named(task)}: {result(task)}" for task in of]
    most = f"{facts.most_common(1)[0][1]} of {len(of)} agree" if facts else f"0 of {len(of)} have a result"
    return "\n".join([*lines, most])


def restated(c: ControlState, me: ControlTask, note: str) -> str:
    """Return a summary of a task's state, for a new context."""
    lines = [f"{len(me.deeds)} uses of tools so far."] if me.deeds else []
    done = {value for deed in me.deeds for value in map(str, deed.given.values())}
    if me.items:
        lines.append(f"Done so far: {', '.join(item for item in me.items if item in done) or 'none'}")
    lines += [f"{named(task)}: {result(task)}" for task in c.children(me)]
    return "\n".join([*lines, note] if note else lines)
