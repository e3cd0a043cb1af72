"""What happens to the tasks without a command: an answer, a failure, an approval, spending; and who goes on then."""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.control import result_types, views
from cortex.control.state import Approval, ControlState, RunUsage
from cortex.control.tasks import CommandRefused, CompletedToolUse, ControlTask, TaskStatus

DENIED = "denied"
_change = msgspec.structs.replace


def back(c: ControlState, me: ControlTask, said: str) -> ControlState:
    """A task gives the loop back; its parent hears why."""
    if not me.parent:
        raise CommandRefused("the first task has no parent to go back to")
    parent = c.tasks[me.parent]
    inbox = {number: each for number, each in c.inbox.items() if number != me.id}
    inbox[parent.id] = said[: c.bounds.shown_max]
    return c.with_task(me, parent.moved("go on"), active=parent.id, inbox=inbox)


def again(task: ControlTask, framing: str) -> ControlTask:
    """The same in a new context, which is told how it ended before."""
    before = f"An earlier try ended so: {views.result(task)}"
    return _change(
        task, framing=framing, life=task.life + 1, tries=task.tries + 1, turns=0, brief=before, deeds=(), children=(),
        value=None, why="",
    )  # fmt: skip


def dropped(c: ControlState, numbers: list[int]) -> ControlState:
    """These and all below them, where they live."""
    for number in numbers:
        task = c.tasks[number]
        c = dropped(c, list(task.children))
        if task.live:
            inbox = {each: said for each, said in c.inbox.items() if each != number}
            c = c.with_task(task.moved("drop"), inbox=inbox)
    return c


def returned(c: ControlState, said: Any) -> ControlState:
    """The active task ends with this result; its parent goes on. Raises ``CommandRefused`` where it may not, and
    why.
    """
    me = c.task
    live = [str(task.id) for task in c.children(me) if task.live]
    if live:
        raise CommandRefused(f"not done yet: tasks {', '.join(live)} have not ended")
    missing = me.missing()
    if missing:
        raise CommandRefused(f"Not done yet: {', '.join(missing)}")
    return adopted(c, result_types.read(me, said))


def adopted(c: ControlState, value: Any) -> ControlState:
    """This is the active task's result."""
    done = c.task.moved("return", value=value)
    c = c.with_task(done).noted(done.id, f"returned {result_types.shown(value)[:80]}")
    if not done.parent:
        return _change(c, ended="answered", active=0, inbox={})
    return back(c, done, f"task {done.id} returned: {result_types.shown(value)}")


def afresh(c: ControlState, note: str) -> ControlState:
    """The active task goes on in a new context, which is told the state in short."""
    me = c.task
    return c.with_task(_change(me, life=me.life + 1, brief=views.restated(c, me, note)))


def answered(c: ControlState, text: str) -> ControlState:
    """The active task said this, and used no tool. Raises ``CommandRefused`` where that is not how it ends."""
    on = c.task.stop.on
    if on == "submit":
        raise CommandRefused("End this task with the command submit.")
    if on.startswith("tool:"):
        raise CommandRefused(f"This task ends with a use of {on.removeprefix('tool:')}.")
    return returned(c, text)


def failed(c: ControlState, why: str) -> ControlState:
    """The active task cannot go on: it begins anew in a new context, or has failed, and its parent hears of it."""
    me = c.task
    c = dropped(c, list(me.children)).noted(me.id, f"failed: {why}")
    if me.tries <= c.bounds.retries_max:
        anew = again(me.moved("fail", why=why), me.framing).moved("retry").moved("begin")
        inbox = {each: said for each, said in c.inbox.items() if each != me.id}
        return c.with_task(anew, inbox=inbox)
    gone = me.moved("fail", why=why)
    c = c.with_task(gone).marked(f"task {me.id} failed: {why}")
    if not me.parent:
        return _change(c, ended=f"failed: {why}", active=0, inbox={})
    return back(c, gone, f"task {me.id} failed: {why}")


def stopped(c: ControlState, why: str) -> ControlState:
    """The run ends here, labelled."""
    c = dropped(c, [1]).marked(why).noted(1, f"stopped: {why}")
    return _change(c, ended=why, active=0, inbox={})


def blocked(c: ControlState, approval: Approval) -> ControlState:
    """The active task waits for this approval; what else there is goes on."""
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
    """Names of what people are asked for."""
    return [name for name, each in c.approvals.items() if each.granted is None and c.tasks[each.task].live]


def decided(c: ControlState, name: str, granted: bool) -> ControlState:
    """Somebody has decided. Where nobody is active the task goes on, unless others below it do first."""
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
    """What was decided about a task that is blocked; empty where nothing was yet."""
    mine = [each for each in c.approvals.values() if each.task == task.id]
    if not mine or mine[-1].granted is None:
        return ""
    return "approved" if mine[-1].granted else DENIED


def unblocked(c: ControlState, task: ControlTask) -> ControlState:
    """The task has the loop, and hears what was decided."""
    inbox = {**c.inbox, task.id: verdict(c, task)}
    return c.with_task(task.moved("decide", why=""), active=task.id, inbox=inbox)


def did(c: ControlState, tool: str, given: dict[str, Any], said: str) -> tuple[ControlState, str]:
    """The active task used a tool, and it succeeded. Where that is its stop condition it returns what the tool said, or
    hears why it may not."""
    me = c.task
    c = c.with_task(_change(me, deeds=(*me.deeds, CompletedToolUse(tool, given))))
    if me.stop.on != f"tool:{tool}":
        return c, ""
    try:
        return returned(c, said), ""
    except CommandRefused as refused:
        return c, str(refused)


def used(c: ControlState, runs: int = 1) -> ControlState:
    """So many runs of ordinary tools."""
    return _change(c, spent=_change(c.spent, tools=c.spent.tools + runs))


def turned(c: ControlState, tokens: int, nusd: int, seconds: float, turns: int = 1) -> ControlState:
    """The active task had a turn (or several), of so many tokens and so much money; the run is so many seconds old."""
    old = c.spent
    spent = RunUsage(old.turns + turns, old.tokens + tokens, old.tools, old.nusd + nusd, max(old.seconds, seconds))
    return c.with_task(_change(c.task, turns=c.task.turns + 1), spent=spent)


def heard(c: ControlState) -> tuple[ControlState, str | None]:
    """What the active task hears at the use of ``control`` at which it stopped; None where it did not."""
    inbox = dict(c.inbox)
    said = inbox.pop(c.active, None)
    return _change(c, inbox=inbox), said


def marked(c: ControlState, task: int, turns: int) -> ControlState:
    """Checkpoints that this task has just made stand at so many turns of its conversation."""
    saved = {
        name: _change(each, turns=turns) if each.task == task and each.turns < 0 else each
        for name, each in c.checkpoints.items()
    }
    return c if saved == c.checkpoints else _change(c, checkpoints=saved)
