"""What a goal waits for besides calls: tools on a worker, observations of a changing world, child jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from cortex import commands, events
from cortex.attempts import Verdict
from cortex.state import Errand, Goal, Item, State, Status
from cortex.transitions import errand, plain, reopen, size_bytes
from policies.failure import Failure, FailureKind


def refresh(k: State, goal: Goal, item: Item, out: list[commands.Command]) -> None:
    """Read a stale observation again; the goal waits for it. One reading serves all that ask meanwhile."""
    assert item.observation is not None
    if any(task.item == item.id for task in k.errands.values()):
        return
    errand(k, goal, item.observation.tool, item.observation.arguments, out, item=item.id)


def observed(k: State, event: events.Observed) -> tuple[Goal, Any] | Verdict | None:
    """Settle a tool run: the goal and the value that its program shall take in, or that it failed for good."""
    task = _settled(k, event.goal, event.attempt)
    if task is None:
        return None
    goal = k.goals[event.goal]
    if event.failure is not None:
        return _failed(k, goal, task, event.failure)
    if not task.item:
        return goal, plain(event.value)
    item = k.items[task.item]
    seen = item.observation
    assert seen is not None
    item.value = plain(event.value)
    item.size_bytes = size_bytes(item.value)
    item.observation = msgspec.structs.replace(seen, read_at_s=event.read_at_s, taken_at_s=k.at_s)
    reopen(k, goal)
    return None


def returned(k: State, event: events.Returned) -> tuple[Goal, Any] | Verdict | None:
    """Settle a child job: its money is the parent's, its answer the goal's."""
    task = _settled(k, event.goal, event.attempt)
    if task is None:
        return None
    if task.charge is not None:
        k.ledger.release(task.charge)
    k.ledger.known_nusd += event.known_nusd
    k.ledger.assumed_nusd += event.assumed_nusd
    k.ledger.known_tokens += event.input_tokens + event.output_tokens
    k.ledger.input_tokens += event.input_tokens
    k.ledger.output_tokens += event.output_tokens
    goal = k.goals[event.goal]
    if event.failure is not None:
        return Verdict(goal, event.failure)
    return goal, plain(event.answer)


def lost(k: State, out: list[commands.Command]) -> list[Verdict]:
    """The actors that ran the errands may be gone. What may run again does; what may not fails its goal.

    A child job is joined by its name, so it always may.
    """
    verdicts = []
    for task in list(k.errands.values()):
        del k.errands[task.goal]
        goal = k.goals[task.goal]
        failure = Failure(FailureKind.LOST, f"effect unknown: the worker that ran {task.name} died")
        if not task.repeatable:
            verdicts.append(Verdict(goal, failure))
            continue
        if task.charge is not None:
            k.ledger.release(task.charge)
        reopen(k, goal)
        if task.item:
            refresh(k, goal, k.items[task.item], out)
    return verdicts


def _settled(k: State, goal_id: int, attempt: int) -> Errand | None:
    task = k.errands.get(goal_id)
    if task is None or task.attempt != attempt or k.goals[goal_id].status != Status.WAITING:
        return None
    return k.errands.pop(goal_id)


def _failed(k: State, goal: Goal, task: Errand, failure: Failure) -> Verdict | None:
    """A reading that failed is tried once more per retry policy; a deed is not."""
    goal.broken += 1
    if not task.repeatable or goal.broken >= k.terms.limits.retry.attempts_max:
        return Verdict(goal, failure)
    reopen(k, goal, k.at_s + k.terms.limits.retry.base_s * goal.broken)
    return None
