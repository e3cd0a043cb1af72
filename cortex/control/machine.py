"""Control runtime: a pure state machine, ``(state, command) -> state, text for the model``.

A command comes from the active task, and is carried out whole or refused with one line; a refused command changes
nothing. Events without a command (an answer, a failure, an approval) are in ``cortex.control.progression``. Allowed
moves of tasks are the table ``cortex.control.tasks.MOVES``; the handlers of commands are the table at the end of this
file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from cortex.control import commands, result_types, views
from cortex.control.commands import ALONE
from cortex.control.progression import afresh, again, back, blocked, dropped, returned, unblocked, verdict
from cortex.control.state import Approval, ControlState, TaskCheckpoint
from cortex.control.tasks import BEGUN, CommandRefused, ControlTask, TaskStatus

_change = msgspec.structs.replace


class CommandOutcome(NamedTuple):
    """Outcome of a command. ``handed``: another context may have the loop now, and this use is answered later."""

    control: ControlState
    text: str
    failed: bool = False
    handed: bool = False


def handle(c: ControlState, given: dict[str, Any]) -> CommandOutcome:
    """Carry out a command of the active task."""
    try:
        command = commands.read(given)
        me = c.task
        name = str(given["command"])
        if name not in me.commands:
            raise CommandRefused(
                f"{name} is none of the commands of task {me.id}: {', '.join(me.commands) or 'it has none'}"
            )
        after, text = _HANDLERS[type(command)](c.noted(me.id, name), me, command)
    except CommandRefused as refused:
        why = " ".join(str(refused).split())[: c.bounds.shown_max]
        return CommandOutcome(c, f"refused: {why}", failed=True)
    most = c.bounds.shown_max
    text = text if len(text) <= most else f"{text[:most]} (cut)"
    return CommandOutcome(after, text, handed=name in ALONE and (after.active != me.id or name in ("fresh", "restore")))


# -- subtasks -------------------------------------------------------------------------------------------------------


def _push(c: ControlState, me: ControlTask, command: commands.PushSubtasks) -> tuple[ControlState, str]:
    wanted = list(command.children)
    if command.at_most:
        wanted += _split(me, command.at_most)
    if not wanted:
        raise CommandRefused("no children are given")
    c, made = _made(c, me, wanted)
    return c, f"{len(made)} tasks: {', '.join(map(str, made))}"


def _split(me: ControlTask, at_most: int) -> list[commands.ChildSpec]:
    if at_most < 1 or me.each is None or not me.items:
        raise CommandRefused(f"task {me.id} has no items to be split by {at_most}")
    each = me.each
    parts = [me.items[at : at + at_most] for at in range(0, len(me.items), at_most)]
    return [
        commands.ChildSpec(
            each.goal.replace("{items}", ", ".join(some)),
            some,
            each.tools,
            each.grants,
            each.commands,
            each.stop,
            each.returns,
            apart=each.apart,
        )
        for some in parts
    ]


def _made(
    c: ControlState, me: ControlTask, wanted: list[commands.ChildSpec], group: int = 0
) -> tuple[ControlState, list[int]]:
    """Make children of a task, within all limits and with tools of the task only. Raises ``CommandRefused``."""
    bounds, count = c.bounds, len(wanted)
    if me.depth + 1 > bounds.depth_max:
        raise CommandRefused(f"at depth {me.depth} of {bounds.depth_max} there are no more subtasks")
    if len(me.children) + count > bounds.breadth_max:
        raise CommandRefused(f"{len(me.children)} children and {count} more are over {bounds.breadth_max}")
    if len(c.tasks) + count > bounds.tasks_max:
        raise CommandRefused(f"{len(c.tasks)} tasks and {count} more are over {bounds.tasks_max}")
    made = []
    for number, each in enumerate(wanted, start=max(c.tasks) + 1):
        tools = tuple(me.tools if each.tools is None else each.tools)
        _fits(me, each, tools)
        views.known(c, each.shows)
        made.append(
            ControlTask(
                number, each.goal, me.id, me.depth + 1, TaskStatus.PENDING, each.items, tools, each.grants,
                each.commands,
                each.stop, each.returns, me.each, each.framing, each.apart, each.shows, group,
            )
        )  # fmt: skip
    ids = [task.id for task in made]
    return c.with_task(_change(me, children=(*me.children, *ids)), *made), ids


def _fits(me: ControlTask, each: commands.ChildSpec, tools: tuple[str, ...]) -> None:
    """Raise ``CommandRefused`` for an invalid child."""
    may = (*me.tools, *me.grants)
    unknown = [name for name in (*tools, *each.grants) if name not in may]
    if unknown:
        raise CommandRefused(f"task {me.id} has no tool {unknown[0]} to give: {', '.join(may) or 'it has none'}")
    strange = [name for name in each.commands if name not in commands.KINDS]
    if strange:
        raise CommandRefused(f"there is no command {strange[0]}")
    if not each.goal.strip():
        raise CommandRefused("a child needs a goal")
    if not result_types.known(each.returns):
        kinds = ", ".join(result_types.KINDS)
        raise CommandRefused(f"there is no return protocol {each.returns!r}: {kinds}, choice:a|b, tally:TOOL.FIELD")
    on, covers = each.stop.on, each.stop.covers
    if on == "submit" and "submit" not in each.commands:
        raise CommandRefused("a child that stops on submit needs that command")
    if on.startswith("tool:") and on.removeprefix("tool:") not in tools:
        raise CommandRefused(f"a child that stops on {on} needs that tool")
    if not (on in ("answer", "submit") or on.startswith("tool:")):
        raise CommandRefused(f"a child stops on answer, submit or tool:NAME, not on {on!r}")
    if each.stop.turns_max < 1:
        raise CommandRefused("a child has one turn at least")
    if covers and covers not in tools:
        raise CommandRefused(f"a child that covers its items with {covers} needs that tool")


def _next(c: ControlState, me: ControlTask, command: commands.NextTask) -> tuple[ControlState, str]:
    children = c.children(me)
    for status in (TaskStatus.PENDING, TaskStatus.DEFERRED):
        found = next((task for task in children if task.status == status), None)
        if found is not None:
            return _hand_over(c, me, found, "begin", "go on"), ""
    held = [task for task in children if task.status == TaskStatus.BLOCKED]
    for task in held:
        if verdict(c, task):
            return unblocked(c.with_task(me.moved("wait")), task), ""
    if held:  # nothing else is left: the parent waits too
        return c.with_task(me.moved("wait"), active=0).noted(me.id, f"waits for approval of {held[0].id}"), ""
    aside = [str(task.id) for task in children if task.status == TaskStatus.SUSPENDED]
    results = "; ".join(f"{task.id}: {views.result(task)}" for task in children)
    left = f" (suspended: {', '.join(aside)})" if aside else ""
    return c, f"no task is left{left}. {results}"


def _hand_over(c: ControlState, me: ControlTask, to: ControlTask, what: str, listener: str) -> ControlState:
    inbox = {**c.inbox, to.id: listener} if to.status in BEGUN else c.inbox
    return c.with_task(me.moved("wait"), to.moved(what), active=to.id, inbox=inbox).noted(to.id, what)


def _suspend(c: ControlState, me: ControlTask, command: commands.Suspend) -> tuple[ControlState, str]:
    return back(c, me.moved("suspend", why=command.why), f"task {me.id} is suspended: {command.why}"), ""


def _resume(c: ControlState, me: ControlTask, command: commands.Resume) -> tuple[ControlState, str]:
    return _hand_over(c, me, _child(c, me, command.task), "resume", "resumed"), ""


def _child(c: ControlState, me: ControlTask, number: int) -> ControlTask:
    if number not in me.children:
        raise CommandRefused(f"task {me.id} has no child {number}")
    return c.tasks[number]


def _retry(c: ControlState, me: ControlTask, command: commands.Retry) -> tuple[ControlState, str]:
    child = _child(c, me, command.task)
    if child.tries > c.bounds.retries_max:
        raise CommandRefused(f"task {child.id} was tried {child.tries} times")
    anew = again(child, command.framing or child.framing).moved("retry")
    return c.with_task(anew), f"task {child.id} is pending again, try {anew.tries}"


def _drop(c: ControlState, me: ControlTask, command: commands.Drop) -> tuple[ControlState, str]:
    child = _child(c, me, command.task)
    child.moved("drop")
    return dropped(c, [child.id]).marked(f"task {child.id} was dropped"), f"task {child.id} is dropped"


def _defer(c: ControlState, me: ControlTask, command: commands.Defer) -> tuple[ControlState, str]:
    if command.task and command.task != me.id:
        child = _child(c, me, command.task)
        return c.with_task(child.moved("defer", why=command.why)), f"task {child.id} is deferred"
    return back(c, me.moved("defer", why=command.why), f"task {me.id} is deferred: {command.why}"), ""


# -- branches -------------------------------------------------------------------------------------------------------


def _fork(c: ControlState, me: ControlTask, command: commands.Fork) -> tuple[ControlState, str]:
    if len(command.framings) < 2 or not all(framing.strip() for framing in command.framings):
        raise CommandRefused("a fork has two framings or more")
    inherited = tuple(name for name in me.commands if name not in ("fork", "push_subtasks", "next_task"))
    stop = _change(me.stop, on="answer") if me.stop.on == "submit" and "submit" not in inherited else me.stop
    wanted = [
        commands.ChildSpec(me.goal, me.items, me.tools, (), inherited, stop, me.returns, framing)
        for framing in command.framings
    ]
    group = 1 + max(task.group for task in c.tasks.values())
    c, made = _made(c, me, wanted, group)
    return c, f"group {group}: tasks {', '.join(map(str, made))}"


def _merge(c: ControlState, me: ControlTask, command: commands.Merge) -> tuple[ControlState, str]:
    text, without = views.merge(c, me, command)
    for task in without:
        c = c.marked(f"merged without task {task.id}: {views.result(task)}")
    return c, text


def _compare(c: ControlState, me: ControlTask, command: commands.Compare) -> tuple[ControlState, str]:
    return c, views.compare(c, me, command)


def _project(c: ControlState, me: ControlTask, command: commands.Project) -> tuple[ControlState, str]:
    return c, views.project(c, me, command)


# -- contexts -------------------------------------------------------------------------------------------------------


def _checkpoint(c: ControlState, me: ControlTask, command: commands.CheckpointTask) -> tuple[ControlState, str]:
    if not command.name.strip():
        raise CommandRefused("a checkpoint needs a name")
    saved = TaskCheckpoint(me.id, me.life, me.children, len(me.deeds), command.note)
    return _change(c, checkpoints={**c.checkpoints, command.name: saved}), f"kept as {command.name}"


def _restore(c: ControlState, me: ControlTask, command: commands.Restore) -> tuple[ControlState, str]:
    saved = c.checkpoints.get(command.name)
    if saved is None or saved.task != me.id or saved.life != me.life or saved.turns < 0:
        raise CommandRefused(f"task {me.id} has no checkpoint {command.name!r} in this context")
    c = dropped(c, [child for child in me.children if child not in saved.children])
    back = _change(c.tasks[me.id], children=saved.children, deeds=me.deeds[: saved.deeds])
    return c.with_task(back), f"back at {command.name}. {saved.note}"


def _fresh(c: ControlState, me: ControlTask, command: commands.Fresh) -> tuple[ControlState, str]:
    return afresh(c, command.note), ""


# -- people, and the record -----------------------------------------------------------------------------------------


def _request(c: ControlState, me: ControlTask, command: commands.RequestApproval) -> tuple[ControlState, str]:
    return blocked(c, Approval(me.id, command.subject)), ""


def _submit(c: ControlState, me: ControlTask, command: commands.SubmitResult) -> tuple[ControlState, str]:
    if me.stop.on != "submit":
        raise CommandRefused(f"task {me.id} stops on {me.stop.on}")
    return returned(c, command.value), ""


def _degrade(c: ControlState, me: ControlTask, command: commands.Degrade) -> tuple[ControlState, str]:
    return c.marked(command.why or f"task {me.id} says so"), "marked"


def _trace(c: ControlState, me: ControlTask, command: commands.ShowTrace) -> tuple[ControlState, str]:
    some = c.trace[-max(1, command.last) :]
    return c, "\n".join(f"turn {entry.turn}, task {entry.task}: {entry.what}" for entry in some)


_HANDLERS: dict[type, Callable[[ControlState, ControlTask, Any], tuple[ControlState, str]]] = {
    commands.PushSubtasks: _push, commands.NextTask: _next, commands.Suspend: _suspend, commands.Resume: _resume,
    commands.SubmitResult: _submit, commands.Project: _project, commands.Fork: _fork, commands.Merge: _merge,
    commands.Compare: _compare, commands.CheckpointTask: _checkpoint, commands.Restore: _restore,
    commands.Fresh: _fresh,
    commands.Retry: _retry, commands.Drop: _drop, commands.Defer: _defer, commands.RequestApproval: _request,
    commands.Degrade: _degrade, commands.ShowTrace: _trace,
}  # fmt: skip
