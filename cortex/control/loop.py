"""Messages-and-tools loop, one bounded call per turn, with one extra tool, ``control``.

Each task has its own conversation, which is offered only the task's tools and commands; the state machine decides which
task has the next turn. State and conversations are stored in K, at a checkpoint before each turn: a killed run
continues from it. Work hidden from the model is done here too: approvals, retries, budgets, transforms, the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

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
from cortex.values.endings import Ending, ending_of
from cortex.values.reply import Said, ToolUse
from policies.failures.failure import FailureKind

_change = msgspec.structs.replace


class TaskConversation(msgspec.Struct, frozen=True):
    """Conversation of a task, and the tool use at which it stopped, if it waits for something."""

    life: int
    conversation: Conversation
    reply: Said | None = None
    results: tuple[ToolResult, ...] = ()
    open: ToolUse | None = None


class LoopState(msgspec.Struct, frozen=True):
    """State of a run between two turns."""

    control: ControlState
    began_s: float
    talks: dict[int, TaskConversation] = msgspec.field(default_factory=dict)

    def at(self, control: ControlState, task: ControlTask, talk: TaskConversation | None) -> LoopState:
        """Return the state with this control state and the task's conversation; an ended task needs none."""
        talks = {number: each for number, each in self.talks.items() if number != task.id}
        if talk is not None and control.tasks[task.id].live:
            talks[task.id] = talk
        return _change(self, control=control, talks=talks)


class ToolKit(msgspec.Struct, frozen=True):
    """Ordinary tools: functions marked ``cortex.tool``, their definitions for the model, and arguments that the loop
    adds.

    ``apart`` makes the program of a task that is a job of its own.
    """

    tools: tuple[Callable[..., Any], ...]
    definitions: dict[str, ToolDef]
    adds: Callable[[ToolUse], Mapping[str, Any]] = lambda use: {}
    apart: Callable[[ControlState], Program] | None = None
    output_tokens_max: int | None = None
    """``max_tokens`` of one turn; None: the job's default."""


def alone(c: ControlState) -> ControlTask:
    """Return the active task as the first task of a separate run, with the results projected into it."""
    me = c.task
    brief = "\n".join(each for each in (views.projected(c, me), me.brief) if each)
    return _change(me, apart=False, shows=(), brief=brief, group=0)


async def run(ctx: Context, control: ControlState, kit: ToolKit) -> ControlState:
    """Run until the first task has ended, or a budget is used up; return the final state."""
    loop: LoopState = LoopState(control, ctx.now())
    while True:
        loop = await ctx.checkpoint(loop, LoopState)
        if loop.control.ended:
            return loop.control
        loop = await _round(ctx, loop, kit)


async def _round(ctx: Context, loop: LoopState, kit: ToolKit) -> LoopState:
    """Run one turn of one task, or wait for one decision of a person."""
    c = loop.control
    spent = over_budget(c)
    if spent:
        ctx.log(f"over budget: {spent}")
        return _change(loop, control=progression.stopped(c, f"over budget: {spent}"), talks={})
    if not c.active:
        return await _approved(ctx, loop)
    task, talk = c.task, loop.talks.get(c.active)
    c, text = progression.pending_result(c)
    if task.apart and kit.apart is not None:
        return loop.at(await _apart(ctx, c, kit.apart(c)), task, None)
    if talk is None or talk.life != task.life:
        talk = TaskConversation(task.life, opening(c, task, kit))
    elif talk.open is not None:
        c, talk = await _closed(ctx, c, talk, text or "go on", kit)
        if c.active != task.id:
            return loop.at(c, task, None)
    try:
        sample = task.id if task.group else 0  # equal prompts of different branches are separate questions
        reply: Said = await ctx.ask(talk.conversation, max_tokens=kit.output_tokens_max, sample=sample, on_cut="keep")
    except CallFailed as failed:
        return loop.at(_unanswered(c, talk, failed), task, talk)
    usage = reply.usage
    c = progression.turned(
        c, usage.input_tokens_billed + usage.output_tokens, reply.cost_nusd or 0, ctx.now() - loop.began_s
    )
    if c.bounds.usd_max and reply.cost_nusd is None:
        stopped = progression.stopped(c, "over budget: no price is known, so money cannot be counted")
        return _change(loop, control=stopped)
    c, talk = await _apply_reply(ctx, c, talk, reply, kit)
    task = c.tasks[task.id]
    if c.active == task.id and task.life == talk.life and task.turns >= task.stop.turns_max:
        c = progression.failed(c, f"no end after {task.turns} turns")
    return loop.at(c, task, talk)


def opening(c: ControlState, task: ControlTask, kit: ToolKit) -> Conversation:
    """Return the beginning of a task's conversation: its goal, its tools, its result protocol."""
    lines = [
        task.framing,
        task.goal,
        views.projected(c, task),
        task.brief,
        result_types.asked(task.returns) if task.stop.on == "answer" else "",
    ]
    tools = [kit.definitions[name] for name in task.tools]
    if task.commands:
        tools.append(commands.tool(task.commands))
    return Conversation(f"task {task.depth}", tools=tuple(tools)).said("\n\n".join(each for each in lines if each))


def _unanswered(c: ControlState, talk: TaskConversation, failed: CallFailed) -> ControlState:
    """Handle a call that failed for good: a context that has grown too large is replaced; otherwise the task has
    failed.
    """
    if failed.kind == FailureKind.TOO_LARGE and len(talk.conversation.turns) > 1:
        return progression.afresh(c, "").noted(c.active, "its context had grown too large")
    return progression.failed(c, f"{failed.kind}: {failed.story}")


async def _apply_reply(
    ctx: Context, c: ControlState, talk: TaskConversation, reply: Said, kit: ToolKit
) -> tuple[ControlState, TaskConversation]:
    """Apply a reply to the state and to the conversation."""
    if not reply.uses:
        ending = ending_of(reply.stop_reason, reply.text)
        if ending not in _ANSWERS:
            if not reply.text.strip():
                return progression.failed(c, f"{ending}: the reply ended ({reply.stop_reason}) before any text"), talk
            whole = talk.conversation.replied(reply).said(_NO_ANSWER.format(ending, reply.stop_reason))
            return c, _change(talk, conversation=whole)
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
                text = f"refused: {use.input['command']} must be the only use of a tool in its turn"
                results.append(ToolResult(use.id, text, failed=True))
                continue
            done = handle(c, use.input)
            c, opened = done.control, use if done.handed else None
            if use.input.get("command") == "restore" and done.handed:
                return c, _gone_back(c, talk, str(use.input["name"]), done.text)
            if opened is None:
                results.append(ToolResult(use.id, done.text, done.failed))
        else:
            c, result = await _used(ctx, c, use, kit)
            opened = use if result is None else None
            results += [result] if result is not None else []
    if opened is not None:
        return c, _change(talk, reply=reply, results=tuple(results), open=opened)
    whole = talk.conversation.replied(reply, results)
    return progression.marked(c, me, len(whole.turns)), _change(talk, conversation=whole)


_ANSWERS: Final = frozenset({Ending.WHOLE, Ending.UNKNOWN})
"""Endings of replies that may end a task."""
_NO_ANSWER: Final = "This reply is no whole answer: it is {} ({}). Answer again, more briefly, or use a tool."
"""Message to the model after a fragment: its ending, and its stop reason."""


def _gone_back(c: ControlState, talk: TaskConversation, name: str, text: str) -> TaskConversation:
    """Return the conversation as it was at a checkpoint."""
    turns = talk.conversation.turns[: c.checkpoints[name].turns]
    return _change(talk, conversation=_change(talk.conversation, turns=turns).said(text))


async def _used(
    ctx: Context, c: ControlState, use: ToolUse, kit: ToolKit, allowed: bool = False
) -> tuple[ControlState, ToolResult | None]:
    """Run an ordinary tool; the result is None if it waits for an approval."""
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
    ctx: Context, c: ControlState, talk: TaskConversation, text: str, kit: ToolKit
) -> tuple[ControlState, TaskConversation]:
    """Continue a task: answer the tool use at which it stopped."""
    use, reply = talk.open, talk.reply
    assert use is not None and reply is not None
    result: ToolResult | None = ToolResult(use.id, text)
    if use.name != commands.NAME:
        if text == progression.DENIED:
            result = ToolResult(use.id, "denied by whoever must approve it", failed=True)
        else:
            c, result = await _used(ctx, c, use, kit, allowed=True)
    assert result is not None
    whole = talk.conversation.replied(reply, [*talk.results, result])
    return c, TaskConversation(talk.life, whole)


async def _approved(ctx: Context, loop: LoopState) -> LoopState:
    """Wait for a person's decision, because no task can continue without one."""
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
    return _change(loop, control=c, began_s=loop.began_s + ctx.now() - since_s)  # the wait for a person does not count


async def _apart(ctx: Context, c: ControlState, program: Program) -> ControlState:
    """Run the active task as a job of its own: the job's answer is the task's result."""
    failed = await ctx.run(program, on_failure="keep")
    if isinstance(failed, CallFailed):
        return progression.failed(c, failed.story)
    spent = failed["spent"]
    c = progression.turned(c, spent["tokens"], spent["nusd"], c.spent.seconds, spent["turns"])
    c = progression.used(c, spent["tools"])
    for why in failed["degraded"]:
        c = c.marked(why)
    if failed["ended"] != "answered":
        return progression.failed(c, failed["ended"])
    return progression.adopted(c, failed["answer"])
