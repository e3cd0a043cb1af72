"""Tool runs on workers, observations of external state, and child jobs: what goals wait for besides calls."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from cortex.calls.attempts import FinalFailure, drawn
from cortex.goals import shards
from cortex.goals.child_jobs import more_than
from cortex.goals.lifecycle import Out, asked, be_woken, begin_run, reopen, send, tool_errand
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import ENDED, HELD, ExternalRun, Goal, Item, State, flight_key
from cortex.values.ledger import ChildJobBill
from cortex.values.plain_values import size_bytes, to_plain
from policies.failures.failure import RULES, Failure, FailureKind
from policies.failures.retry import backoff_s, beyond_patience

_UNKNOWN = frozenset({FailureKind.LOST, FailureKind.TIMED_OUT, FailureKind.TRANSIENT, FailureKind.CANCELLED})
"""Failures after which it is unknown whether a tool had its effect."""


def believed(k: State, program: Program, goal: Goal, uses: tuple[Item, ...], out: Out) -> bool:
    """Return True if all items in this goal's prompt are valid now; otherwise start reading a stale one again.

    A goal that needs several readings gets them one after the other. Readings taken in since it began to wait are valid
    together, in the turn that brings the last of them.
    """
    stale = [item for item in uses if not k.fresh(item)]
    since_s = k.reading.get(goal.id)
    if stale and since_s is not None and any(_taken_at_s(item) == k.at_s for item in uses):
        stale = [item for item in stale if _taken_at_s(item) < since_s]
    elif stale:
        k.reading[goal.id] = k.at_s
    if not stale:
        return True
    item = stale[0]
    seen = item.observation
    assert seen is not None
    if not any(task.item == item.id for task in k.errands.values()):  # one reading serves all goals that need it
        task = tool_errand(k, program, goal, seen.tool, seen.arguments, item=item.id)
        begin_run(k, goal, task, out)
    return False


def _taken_at_s(item: Item) -> float:
    return item.observation.taken_at_s if item.observation is not None else -1.0


def begun(k: State, event: events.ToolRunBegun) -> None:
    """Note that a run may have its effect from now on: if it is lost, it is not known whether it had."""
    task = _under_way(k, event.goal, event.attempt, commands.StartToolRun)
    if task is not None:
        task.begun = True


def observed(k: State, event: events.Observed) -> tuple[Goal, Any] | FinalFailure | None:
    """Settle a tool run: return the goal and the value for its program, or the final failure."""
    task = _under_way(k, event.goal, event.attempt, commands.StartToolRun)
    if task is None:
        return None
    goal = k.goals[event.goal]
    if event.failure is not None:
        return _failed(k, goal, task, event.failure)
    try:
        value = to_plain(event.value)
    except (TypeError, ValueError, OverflowError) as error:
        return _failed(k, goal, task, Failure(FailureKind.FAULTY, f"the tool's value cannot be kept: {error}"))
    _over(k, task)
    if not task.item:
        return goal, value
    item = k.items[task.item]
    seen = item.observation
    assert seen is not None
    item.value = value
    item.size_bytes = size_bytes(item.value)
    item.observation = msgspec.structs.replace(seen, read_at_s=float(event.read_at_s), taken_at_s=k.at_s)
    k.items_by_kind.setdefault(item.kind, {})[item.id] = None
    reopen(k, goal)
    return None


def returned(k: State, event: events.ChildJobEnded) -> tuple[Goal, Any] | FinalFailure | None:
    """Settle a child job: its cost is the parent's, its answer the goal's."""
    task = _under_way(k, event.goal, event.attempt, commands.LaunchChildJob)
    if task is None:
        return None
    _over(k, task)
    assert task.charge is not None
    k.ledger.release(task.charge)
    if task.is_shard:
        return _shard_returned(k, event, task)
    bill = ChildJobBill(
        event.known_nusd, event.assumed_nusd, event.input_tokens, event.output_tokens, event.assumed_tokens
    )
    k.ledger.bill(bill, k.billed.pop(event.goal, ChildJobBill()))
    goal = k.goals.get(event.goal)
    if goal is None or goal.status in ENDED:
        return None
    k.billed[goal.id] = bill
    if task.abandoned:
        return None
    failure = event.failure
    if failure is None:
        del k.billed[goal.id]
        return goal, to_plain(event.answer)
    over_budget = failure.kind == FailureKind.OVER_BUDGET
    held = not task.own_cap if over_budget else event.partial or RULES[failure.kind].again == "hold"
    if not held:
        return FinalFailure(goal, failure)
    reopen(k, goal)  # the child can be resumed: it will be spawned again, and joined by its name
    # stopped as intended, or by this job's own deadline
    as_meant = task.resting or k.closing or failure.kind == FailureKind.TIMED_OUT
    if not (as_meant or (over_budget and more_than(k, goal, task.charge))):
        k.paused, k.paused_at_s = failure, k.at_s
    return None


def _shard_returned(k: State, event: events.ChildJobEnded, task: ExternalRun) -> tuple[Goal, Any] | FinalFailure | None:
    """Settle a shard: its results belong to the whole. A stopped shard rests with the job until the job continues."""
    if event.report is not None:
        shards.take(k, event.goal, event.report)
    goal, failure = k.goals.get(event.goal), event.failure
    if goal is None or goal.status in ENDED or task.abandoned:
        return None
    if failure is None:
        return goal, to_plain(event.answer)
    if not event.partial:
        return FinalFailure(goal, failure)
    reopen(k, goal)
    if not (task.resting or k.closing or failure.kind == FailureKind.TIMED_OUT):
        k.paused, k.paused_at_s = failure, k.at_s
    return None


def rest(k: State, out: Out) -> None:
    """Let child jobs finish their calls in flight and rest, because this job begins nothing new; all are resumed
    together.
    """
    for task in k.errands.values():
        if isinstance(task.command, commands.LaunchChildJob) and not (task.resting or task.abandoned or task.due_at_s):
            task.resting = True
            out.append(commands.SuspendChildJob(task.goal, task.attempt))


def go_on(k: State, out: Out) -> None:
    """Send the errands that were held back, because the job may begin work again."""
    for task in [task for task in k.errands.values() if task.due_at_s == HELD]:
        if not k.closing:
            send(k, k.goals[task.goal], task, out)


def lost(k: State, held: Collection[int], out: Out) -> list[FinalFailure]:
    """Handle the possible loss of the actors that ran the errands: runs that may be repeated, and those that never
    began, are sent again; others fail their goal.

    A child job is joined by its name. The slice of an abandoned child stays charged in full.
    """
    verdicts = []
    for task in list(k.errands.values()):
        if flight_key(task.goal, task.attempt) in held or task.due_at_s:
            continue
        if isinstance(task.command, commands.LaunchChildJob):
            if not task.abandoned or task.is_shard:
                out.append(task.command)
                task.resting = False  # joining a child lets it continue
                if task.abandoned:
                    out.append(commands.AbandonAttempt(task.goal, task.attempt))
                continue
            assert task.charge is not None
            k.ledger.assume(task.charge)
            _over(k, task)
        elif task.repeatable or (task.command is not None and task.command.told and not task.begun):
            send(k, k.goals[task.goal], task, out)
        else:
            _over(k, task)
            verdicts.append(FinalFailure(k.goals[task.goal], _effect_unknown(Failure(FailureKind.LOST, _died(task)))))
    return verdicts


def _died(task: ExternalRun) -> str:
    return f"the worker that ran {task.name} died"


def _under_way(k: State, goal_id: int, attempt: int, kind: type) -> ExternalRun | None:
    task = k.errands.get(flight_key(goal_id, attempt))
    if task is None or task.due_at_s or not isinstance(task.command, kind):
        return None
    return task


def _over(k: State, task: ExternalRun) -> None:
    del k.errands[flight_key(task.goal, task.attempt)]


def _failed(k: State, goal: Goal, task: ExternalRun, failure: Failure) -> FinalFailure | None:
    """Retry a failed reading as the retry policy says; a tool run only if it is repeatable."""
    policy = k.terms.limits.retry
    task.broken += 1
    k.tally.attempt_failed(failure.kind)
    again = task.repeatable and (task.item > 0 or RULES[failure.kind].again in ("after", "backoff", "policy"))
    if k.on_decision is not None:
        k.on_decision(goal.id, "tool_failed", {"task": task, "again": again, "attempts_max": policy.attempts_max})
    if not again or task.broken >= policy.attempts_max or beyond_patience(policy, failure):
        _over(k, task)
        k.reading.pop(goal.id, None)
        return FinalFailure(goal, failure if task.repeatable else _effect_unknown(failure))
    draw = drawn(k.chance_id(goal.id, task.name), task.attempt)
    task.due_at_s = k.at_s + max(0.001, backoff_s(policy, task.broken, failure.kind, failure.retry_after_s, draw))
    be_woken(k, goal, task.due_at_s)
    return None


def _effect_unknown(failure: Failure) -> Failure:
    if failure.kind not in _UNKNOWN or not failure.sent or failure.message.startswith("effect unknown"):
        return failure
    return msgspec.structs.replace(failure, message=f"effect unknown: {failure.message}")


def take_in(k: State, goal: Goal) -> None:
    """Prepare the goal to take its result in, as for a reply."""
    reopen(k, goal)
    asked(k, goal)
