"""Transitions of tasks without a command: answers, failures, approvals, usage; and the task that continues then."""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.control import result_types, views
from cortex.control.state import Approval, ControlState, RunUsage
from cortex.control.tasks import CommandRefused, CompletedToolUse, ControlTask, TaskStatus

DENIED = "denied"
_change = msgspec.structs.replace


def back(c: ControlState, me: ControlTask, text: str) -> ControlState:
    """Return the loop from a task to its parent, with the reason."""
    if not me.parent:
        raise CommandRefused("the first task has no parent to go back to")
    parent = c.tasks[me.parent]
    inbox = {number: each for number, each in c.inbox.items() if number != me.id}
    inbox[parent.id] = text[: c.bounds.shown_max]
    return c.with_task(me, parent.moved("go on"), active=parent.id, inbox=inbox)


def again(task: ControlTask, framing: str) -> ControlTask:
    """Return the task for another try in a new context, which contains the previous outcome."""
    before = f"An earlier try ended so: {views.result(task)}"
    return _change(
        task, framing=framing, life=task.life + 1, tries=task.tries + 1, turns=0, brief=before, deeds=(), children=(),
        value=None, why="",
    )  # fmt: skip


def dropped(c: ControlState, numbers: list[int]) -> ControlState:
    """Drop these tasks and their live descendants."""
    for number in numbers:
        task = c.tasks[number]
        c = dropped(c, list(task.children))
        if task.live:
            inbox = {each: text for each, text in c.inbox.items() if each != number}
            c = c.with_task(task.moved("drop"), inbox=inbox)
    return c


def returned(c: ControlState, answer: Any) -> ControlState:
    """End the active task with this result; its parent continues. Raises ``CommandRefused``, with the reason, if it may
    not.
    """
    me = c.task
    live = [str(task.id) for task in c.children(me) if task.live]
    if live:
        raise CommandRefused(f"not done yet: tasks {', '.join(live)} have not ended")
    missing = me.missing()
    if missing:
        raise CommandRefused(f"Not done yet: {', '.join(missing)}")
    return adopted(c, result_types.read(me, answer))


def adopted(c: ControlState, value: Any) -> ControlState:
    """End the active task with this value, without further checks."""
    done = c.task.moved("return", value=value)
    c = c.with_task(done).noted(done.id, f"returned {result_types.shown(value)[:80]}")
    if not done.parent:
        return _change(c, ended="answered", active=0, inbox={})
    return back(c, done, f"task {done.id} returned: {result_types.shown(value)}")


def afresh(c: ControlState, note: str) -> ControlState:
    """Continue the active task in a new context, which contains a summary of the state."""
    me = c.task
    return c.with_task(_change(me, life=me.life + 1, brief=views.restated(c, me, note)))


def answered(c: ControlState, text: str) -> ControlState:
    """Take in a reply of the active task without a tool use. Raises ``CommandRefused`` if the task does not end that
    way.
    """
    on = c.task.stop.on
    if on == "submit":
        raise CommandRefused("End this task with the command submit.")
    if on.startswith("tool:"):
        raise CommandRefused(f"This task ends with a use of {on.removeprefix('tool:')}.")
    return returned(c, text)


def failed(c: ControlState, why: str) -> ControlState:
    """Fail the active task: retry it in a new context, or end it as failed and return to its parent."""
    me = c.task
    c = dropped(c, list(me.children)).noted(me.id, f"failed: {why}")
    if me.tries <= c.bounds.retries_max:
        anew = again(me.moved("fail", why=why), me.framing).moved("retry").moved("begin")
        inbox = {each: text for each, text in c.inbox.items() if each != me.id}
        return c.with_task(anew, inbox=inbox)
    gone = me.moved("fail", why=why)
    c = c.with_task(gone).marked(f"task {me.id} failed: {why}")
    if not me.parent:
        return _change(c, ended=f"failed: {why}", active=0, inbox={})
    return back(c, gone, f"task {me.id} failed: {why}")


def stopped(c: ControlState, why: str) -> ControlState:
    """End the run here, labelled with the reason."""
    c = dropped(c, [1]).marked(why).noted(1, f"stopped: {why}")
    return _change(c, ended=why, active=0, inbox={})


def blocked(c: ControlState, approval: Approval) -> ControlState:
    """Let the active task wait for this approval; other tasks continue."""
    me, base = c.task, approval.tool or f"task-{c.active}"
    same = [each for each in c.approvals.values() if each.tool == approval.tool]
    before = len(same if approval.tool else [each for each in same if each.task == me.id])
    name = f"{base}-{before + 1}" if approval.tool or before else base
    c = _change(c, approvals={**c.approvals, name: approval}).noted(me.id, f"waits for approval: {name}")
    waiting = me.moved("block", why=f"approval {name}")
    if not me.parent:
        return c.with_task(waiting, active=0)
    return back(c, waiting, f"task {me.id} waits for the approval of {name}")


def open_approvals(c: ControlState) -> list[str]:
    """Return the names of approvals that are not decided."""
    return [name for name, each in c.approvals.items() if each.granted is None and c.tasks[each.task].live]


def decided(c: ControlState, name: str, granted: bool) -> ControlState:
    """Take in a person's decision. If no task is active the task continues, unless tasks below it continue first."""
    approval = c.approvals.get(name)
    if approval is None or approval.granted is not None or not c.tasks[approval.task].live:
        raise CommandRefused(f"nothing named {name!r} waits for an approval")
    c = _change(c, approvals={**c.approvals, name: _change(approval, granted=granted)})
    c = c if granted else c.marked(f"{name} was denied: {approval.what}")
    c = c.noted(approval.task, f"{name}: {'approved' if granted else DENIED}")
    if c.active:
        return c
    waiting = [task for task in c.tasks.values() if task.status == TaskStatus.WAITING]
    last = max(waiting, key=lambda task: task.depth) if waiting else None
    for task in c.children(last) if last is not None else [c.root]:
        if task.status == TaskStatus.BLOCKED and verdict(c, task):
            return unblocked(c, task)
    return c


def verdict(c: ControlState, task: ControlTask) -> str:
    """Return the decision about a blocked task; empty if there is none yet."""
    mine = [each for each in c.approvals.values() if each.task == task.id]
    if not mine or mine[-1].granted is None:
        return ""
    return "approved" if mine[-1].granted else DENIED


def unblocked(c: ControlState, task: ControlTask) -> ControlState:
    """Continue a blocked task with the decision."""
    inbox = {**c.inbox, task.id: verdict(c, task)}
    return c.with_task(task.moved("decide", why=""), active=task.id, inbox=inbox)


def did(c: ControlState, tool: str, given: dict[str, Any], text: str) -> tuple[ControlState, str]:
    """Note a successful tool use of the active task.

    If it is the task's stop condition the task returns the tool's result, or the reason why it may not is returned.
    """
    me = c.task
    c = c.with_task(_change(me, deeds=(*me.deeds, CompletedToolUse(tool, given))))
    if me.stop.on != f"tool:{tool}":
        return c, ""
    try:
        return returned(c, text), ""
    except CommandRefused as refused:
        return c, str(refused)


def used(c: ControlState, runs: int = 1) -> ControlState:
    """Count runs of ordinary tools."""
    return _change(c, spent=_change(c.spent, tools=c.spent.tools + runs))


def turned(c: ControlState, tokens: int, nusd: int, seconds: float, turns: int = 1) -> ControlState:
    """Count a turn (or several) of the active task with its tokens and its cost; ``seconds`` is the age of the run."""
    old = c.spent
    spent = RunUsage(old.turns + turns, old.tokens + tokens, old.tools, old.nusd + nusd, max(old.seconds, seconds))
    return c.with_task(_change(c.task, turns=c.task.turns + 1), spent=spent)


def pending_result(c: ControlState) -> tuple[ControlState, str | None]:
    """Return what the active task receives at the use of ``control`` at which it stopped; None if it did not stop."""
    inbox = dict(c.inbox)
    text = inbox.pop(c.active, None)
    return _change(c, inbox=inbox), text


def marked(c: ControlState, task: int, turns: int) -> ControlState:
    """Set the number of conversation turns at the checkpoints that this task has just made."""
    saved = {
        name: _change(each, turns=turns) if each.task == task and each.turns < 0 else each
        for name, each in c.checkpoints.items()
    }
    return c if saved == c.checkpoints else _change(c, checkpoints=saved)
