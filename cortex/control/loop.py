"""The loop: an ordinary messages-and-tools loop, one bounded call a turn, whose one extra tool is ``control``.

Each task has a conversation of its own, which is offered the task's tools and commands and nothing else; the state
machine says whose turn it is. State and conversations are kept in K, at a checkpoint before each turn: a run that is
killed goes on there. What the model does not see happens here too: approvals, retries, budgets, transforms, the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cortex.control import commands, progression, result_types, views
from cortex.control.machine import handle
from cortex.control.state import Approval, ControlState, over_budget
from cortex.control.tasks import CommandRefused, ControlTask
from cortex.control.transforms import transformed
from cortex.flows.awaitables import CallFailed
from cortex.flows.context import Context
from cortex.state.program import Program
from cortex.values.conversation import Conversation, ToolDef, ToolResult
from cortex.values.reply import Said, ToolUse
from policies.failures.failure import FailureKind

_change = msgspec.structs.replace


class TaskConversation(msgspec.Struct, frozen=True):
    """A task's conversation; and the use of a tool at which it stopped, where it waits for something."""

    life: int
    conversation: Conversation
    reply: Said | None = None
    results: tuple[ToolResult, ...] = ()
    open: ToolUse | None = None


class LoopState(msgspec.Struct, frozen=True):
    """All that a run is, between two turns."""

    control: ControlState
    began_s: float
    talks: dict[int, TaskConversation] = msgspec.field(default_factory=dict)

    def at(self, control: ControlState, task: ControlTask, talk: TaskConversation | None) -> LoopState:
        """With this state, and the task's conversation; a task that has ended needs none."""
        talks = {number: each for number, each in self.talks.items() if number != task.id}
        if talk is not None and control.tasks[task.id].live:
            talks[task.id] = talk
        return _change(self, control=control, talks=talks)


class ToolKit(msgspec.Struct, frozen=True):
    """The ordinary tools: functions marked ``cortex.tool``, how the model sees them, and what the loop adds to a use.

    ``apart`` makes the program of a task that is to be a job of its own.
    """

    tools: tuple[Callable[..., Any], ...]
    definitions: dict[str, ToolDef]
    adds: Callable[[ToolUse], Mapping[str, Any]] = lambda use: {}
    apart: Callable[[ControlState], Program] | None = None
    output_tokens_max: int | None = None
    """Of one turn; None: as the job has it."""


def alone(c: ControlState) -> ControlTask:
    """The active task as the first of a run of its own: what is projected into it goes with it."""
    me = c.task
    brief = "\n".join(each for each in (views.projected(c, me), me.brief) if each)
    return _change(me, apart=False, shows=(), brief=brief, group=0)


async def run(ctx: Context, control: ControlState, kit: ToolKit) -> ControlState:
    """Go on until the first task has ended, or a budget has; the state in which it did."""
    loop: LoopState = LoopState(control, ctx.now())
    while True:
        loop = await ctx.checkpoint(loop, LoopState)
        if loop.control.ended:
            return loop.control
        loop = await _round(ctx, loop, kit)


async def _round(ctx: Context, loop: LoopState, kit: ToolKit) -> LoopState:
    """One turn of one task; or one decision of a person."""
    c = loop.control
    spent = over_budget(c)
    if spent:
        ctx.log(f"over budget: {spent}")
        return _change(loop, control=progression.stopped(c, f"over budget: {spent}"), talks={})
    if not c.active:
        return await _approved(ctx, loop)
    task, talk = c.task, loop.talks.get(c.active)
    c, said = progression.heard(c)
    if task.apart and kit.apart is not None:
        return loop.at(await _apart(ctx, c, kit.apart(c)), task, None)
    if talk is None or talk.life != task.life:
        talk = TaskConversation(task.life, opening(c, task, kit))
    elif talk.open is not None:
        c, talk = await _closed(ctx, c, talk, said or "go on", kit)
        if c.active != task.id:
            return loop.at(c, task, None)
    try:
        sample = task.id if task.group else 0  # branches that are framed alike are asked apart
        reply: Said = await ctx.ask(talk.conversation, max_tokens=kit.output_tokens_max, sample=sample)
    except CallFailed as failed:
        return loop.at(_unanswered(c, talk, failed), task, talk)
    usage = reply.usage
    c = progression.turned(
        c, usage.input_tokens_billed + usage.output_tokens, reply.cost_nusd or 0, ctx.now() - loop.began_s
    )
    if c.bounds.usd_max and reply.cost_nusd is None:
        stopped = progression.stopped(c, "over budget: no price is known, so money cannot be counted")
        return _change(loop, control=stopped)
    c, talk = await _took(ctx, c, talk, reply, kit)
    task = c.tasks[task.id]
    if c.active == task.id and task.life == talk.life and task.turns >= task.stop.turns_max:
        c = progression.failed(c, f"no end after {task.turns} turns")
    return loop.at(c, task, talk)


def opening(c: ControlState, task: ControlTask, kit: ToolKit) -> Conversation:
    """The first that a task's conversation holds: what it is about, what it may use, what it returns."""
    told = [
        task.framing,
        task.goal,
        views.projected(c, task),
        task.brief,
        result_types.asked(task.returns) if task.stop.on == "answer" else "",
    ]
    tools = [kit.definitions[name] for name in task.tools]
    if task.commands:
        tools.append(commands.tool(task.commands))
    return Conversation(f"task {task.depth}", tools=tuple(tools)).said("\n\n".join(each for each in told if each))


def _unanswered(c: ControlState, talk: TaskConversation, failed: CallFailed) -> ControlState:
    """A call failed for good. One that had grown too large goes on in a fresh context; else its task has failed."""
    if failed.kind == FailureKind.TOO_LARGE and len(talk.conversation.turns) > 1:
        return progression.afresh(c, "").noted(c.active, "its context had grown too large")
    return progression.failed(c, f"{failed.kind}: {failed.story}")


async def _took(
    ctx: Context, c: ControlState, talk: TaskConversation, reply: Said, kit: ToolKit
) -> tuple[ControlState, TaskConversation]:
    """What the reply changes, and the conversation with it."""
    if not reply.uses:
        try:
            return progression.answered(c, reply.text), talk
        except CommandRefused as refused:
            return c, _change(talk, conversation=talk.conversation.replied(reply).said(str(refused)))
    me, results = c.active, []
    opened: ToolUse | None = None
    for use in reply.uses:
        if opened is not None or c.active != me:
            results.append(ToolResult(use.id, "not done: this task has stopped before it", failed=True))
        elif use.name == commands.NAME:
            if use.input.get("command") in commands.ALONE and len(reply.uses) > 1:
                said = f"refused: {use.input['command']} must be the only use of a tool in its turn"
                results.append(ToolResult(use.id, said, failed=True))
                continue
            done = handle(c, use.input)
            c, opened = done.control, use if done.handed else None
            if use.input.get("command") == "restore" and done.handed:
                return c, _gone_back(c, talk, str(use.input["name"]), done.said)
            if opened is None:
                results.append(ToolResult(use.id, done.said, done.failed))
        else:
            c, result = await _used(ctx, c, use, kit)
            opened = use if result is None else None
            results += [result] if result is not None else []
    if opened is not None:
        return c, _change(talk, reply=reply, results=tuple(results), open=opened)
    whole = talk.conversation.replied(reply, results)
    return progression.marked(c, me, len(whole.turns)), _change(talk, conversation=whole)


def _gone_back(c: ControlState, talk: TaskConversation, name: str, said: str) -> TaskConversation:
    """The conversation as it was at a checkpoint."""
    turns = talk.conversation.turns[: c.checkpoints[name].turns]
    return _change(talk, conversation=_change(talk.conversation, turns=turns).said(said))


async def _used(
    ctx: Context, c: ControlState, use: ToolUse, kit: ToolKit, allowed: bool = False
) -> tuple[ControlState, ToolResult | None]:
    """An ordinary tool was asked for; no result where it waits for an approval."""
    me, rules, most = c.task, c.rules, c.bounds.tools_max
    if use.name not in me.tools:
        return c, ToolResult(use.id, f"there is no tool {use.name}", failed=True)
    if most and c.spent.tools >= most:
        return c, ToolResult(use.id, f"over budget: {most} runs of tools", failed=True)
    if use.name in rules.approve and not allowed:
        what = f"{use.name} {msgspec.json.encode(use.input, order='sorted').decode()}"
        c = progression.blocked(c, Approval(me.id, what, use.name, use.input))
        ctx.log(f"waits for an approval: {what}")
        return c, None
    result = await ctx.use(use, kit.tools, kit.adds(use))
    c = progression.used(c)
    for _ in range(rules.retries.get(use.name, 0)):
        if not result.failed or (most and c.spent.tools >= most):
            break
        result = await ctx.use(use, kit.tools, kit.adds(use))
        c = progression.used(c).noted(me.id, f"{use.name} was run again")
    c = c.noted(me.id, f"{use.name}{' failed: ' + result.text if result.failed else ''}")
    if result.failed:
        return c, result
    text = transformed(result.text, rules.transforms.get(use.name, ()))
    c, refused = progression.did(c, use.name, use.input, text)
    return c, ToolResult(use.id, f"{text}\n{refused}" if refused else text)


async def _closed(
    ctx: Context, c: ControlState, talk: TaskConversation, said: str, kit: ToolKit
) -> tuple[ControlState, TaskConversation]:
    """The task goes on: the use at which it stopped is answered."""
    use, reply = talk.open, talk.reply
    assert use is not None and reply is not None
    result: ToolResult | None = ToolResult(use.id, said)
    if use.name != commands.NAME:
        if said == progression.DENIED:
            result = ToolResult(use.id, "denied by whoever must approve it", failed=True)
        else:
            c, result = await _used(ctx, c, use, kit, allowed=True)
    assert result is not None
    whole = talk.conversation.replied(reply, [*talk.results, result])
    return c, TaskConversation(talk.life, whole)


async def _approved(ctx: Context, loop: LoopState) -> LoopState:
    """Nobody can go on before a person has decided something."""
    c, since_s = loop.control, ctx.now()
    names = progression.open_approvals(c)
    if not names:
        return _change(loop, control=progression.stopped(c, "nothing is left that could go on"))
    there = await ctx.join(
        *(ctx.approved(name, c.approvals[name].what) for name in names), quorum=1, on_failure="raise"
    )
    places = [place for place in range(len(names)) if place not in there.missing]
    for place, granted in zip(places, there, strict=True):
        c = progression.decided(c, names[place], granted)
    return _change(loop, control=c, began_s=loop.began_s + ctx.now() - since_s)  # a person's time is not the run's


async def _apart(ctx: Context, c: ControlState, program: Program) -> ControlState:
    """The active task is a job of its own: its answer is the task's."""
    told = await ctx.run(program, on_failure="keep")
    if isinstance(told, CallFailed):
        return progression.failed(c, told.story)
    spent = told["spent"]
    c = progression.turned(c, spent["tokens"], spent["nusd"], c.spent.seconds, spent["turns"])
    c = progression.used(c, spent["tools"])
    for why in told["degraded"]:
        c = c.marked(why)
    if told["ended"] != "answered":
        return progression.failed(c, told["ended"])
    return progression.adopted(c, told["answer"])
