"""Transitions of goals, which keep every index and count of K consistent. No other module assigns to a status.

A goal ends in two steps: ``close`` for the goal itself, ``after`` for the consequences for other goals. So all changes
that a program yields together are made before any of them has consequences.
"""

from __future__ import annotations

import heapq
from typing import Any

import msgspec

from cortex.goals.result_list import emit
from cortex.state import commands
from cortex.state.goals import LATE_MAX, NEVER
from cortex.state.program import Program
from cortex.state.state import (
    ENDED,
    HELD,
    TRANSITIONS,
    ExternalRun,
    Goal,
    IllegalTransition,
    LostAttempt,
    State,
    Status,
    flight_key,
)  # fmt: skip
from policies.decisions.join import JoinVerdict, decide
from policies.failures.timeout import TOOL_S

Out = list[commands.Command]
_MESSAGE_CHARS_MAX = 200
"""Characters of a failure message that the tally keeps."""
REFUSED_CHARACTERS_MAX = 1_000
"""Characters of the reason of a refused reply that are kept."""
OPEN, ASKED, WAITING, RESOLVED = Status.OPEN, Status.ASKED, Status.WAITING, Status.RESOLVED


def legal(goal: Goal, now: Status, to: Status) -> None:
    """Raise ``IllegalTransition``, with the goal's story, unless the transition from ``now`` to ``to`` is allowed."""
    if to not in TRANSITIONS[now]:
        raise IllegalTransition(f"{now.name.lower()} -> {to.name.lower()} is not an allowed transition: {goal.story()}")


def set_status(k: State, goal: Goal, to: Status) -> None:
    """Assign a goal's status and update the index of open goals. All changes of a status are made here, in `set_asked`,
    `drop_vote` or `end_alone`.
    """
    now = goal.status
    if to not in TRANSITIONS[now]:
        legal(goal, now, to)
    if now == OPEN:
        k.open_by_kind[goal.kind].pop(goal.id, None)
        if k.parked or k.called:
            take_back(k, goal)
        if goal.due_at_s:
            goal.due_at_s = NEVER
            k.resting -= 1
    elif now == WAITING:
        goal.expects = None
    goal.status = to


def set_asked(k: State, goal: Goal) -> None:
    """Do the work of ``set_status`` for an open goal that is asked (fast path)."""
    k.open_by_kind[goal.kind].pop(goal.id, None)
    if k.parked or k.called:
        take_back(k, goal)
    goal.status = ASKED
    if goal.due_at_s:
        goal.due_at_s = NEVER
        k.resting -= 1


def take_back(k: State, goal: Goal) -> None:
    """Withdraw the goal from the goals offered to select."""
    k.open_by_kind[goal.kind].pop(goal.id, None)
    if k.parked or k.called:
        k.called.pop(goal.id, None)
        lane = k.parked.get(goal.lane)
        if lane is not None and lane.pop(goal.id, HELD) is None and not lane:
            del k.parked[goal.lane]


def asked(k: State, goal: Goal) -> None:
    """Mark the goal as asked: its call is being made, or its result is being taken in."""
    set_status(k, goal, ASKED)


def note_refused(goal: Goal, text: str) -> None:
    """Note that a reply of this goal was refused: it is asked again with another sample, and may be told the reason."""
    goal.resamples += 1
    goal.refused = text[:REFUSED_CHARACTERS_MAX]


def reopen(k: State, goal: Goal, due_at_s: float = 0.0) -> None:
    """Open the goal again; select sees it from ``due_at_s`` on."""
    set_status(k, goal, Status.OPEN)
    goal.join = None
    offer(k, goal, due_at_s)


def offer(k: State, goal: Goal, due_at_s: float) -> None:
    """Offer an open goal to select, at once or later."""
    index = k.open_by_kind.setdefault(goal.kind, {})
    if due_at_s > k.at_s:
        k.resting += 1
        be_woken(k, goal, due_at_s)
    else:
        if goal.due_at_s is not NEVER:
            goal.due_at_s = NEVER
        index[goal.id] = None


def hurry(k: State) -> None:
    """Offer at once the goals of the job's own lane that wait only because their last attempt failed.

    Called when another route of that lane has become available.
    """
    for due_at_s, goal_id in sorted(k.delayed):
        goal = k.goals.get(goal_id)
        if goal is None or goal.lane:
            continue
        if goal.status == Status.OPEN and goal.broken and goal.due_at_s == due_at_s:
            k.resting -= 1
            offer(k, goal, 0.0)


def be_woken(k: State, goal: Goal, due_at_s: float) -> None:
    """Schedule the goal for a time at which time alone will change its state."""
    goal.due_at_s = due_at_s
    heapq.heappush(k.delayed, (due_at_s, goal.id))


def begin_timeout(k: State, goal: Goal) -> None:
    """Start the timeout of a top goal at its first attempt or first wait."""
    timeout_s = k.terms.limits.goal_timeout_s
    if timeout_s is not None and not goal.timeout_at_s and not goal.parent:
        goal.timeout_at_s = k.at_s + timeout_s
        heapq.heappush(k.deadlines, (goal.timeout_at_s, goal.id))


def leave_call(k: State, goal: Goal, out: Out) -> None:
    """Stop awaiting a reply for the goal. An attempt that no other goal awaits is abandoned."""
    if k.elections:
        leave_votes(k, goal, out)
    question, goal.question = goal.question, b""
    hedge, goal.hedge = goal.hedge, 0
    if not question or not k.flights:
        return
    latest = flight_key(goal.id, goal.tries)
    asking = k.asking.get(question, latest)
    _leave(k, asking, question, out)
    if hedge:
        for key in (latest, flight_key(goal.id, hedge)):
            if key != asking:
                _leave(k, key, question, out)


def leave_votes(k: State, goal: Goal, out: Out) -> None:
    """End the vote on this goal, if there is one. Its next question is a new sample."""
    election = k.elections.pop(goal.id, None)
    if election is not None:
        goal.sample = str(election.next_sample - 1)
        for vote_id in election.votes:
            drop_vote(k, k.goals[vote_id], out)


def drop_vote(k: State, vote: Goal, out: Out) -> None:
    """Remove a vote from memory that was counted, or is no longer wanted."""
    if vote.status is ASKED:
        vote.status = Status.ABANDONED  # ``set_status`` has nothing to do for an asked goal
    else:
        set_status(k, vote, Status.ABANDONED)
    k.live -= 1
    if type(out) is commands.StepCommands:
        out.ended.append(vote)
    if vote.question:
        leave_call(k, vote, out)
    del k.goals[vote.id]


def _leave(k: State, key: int, question: bytes, out: Out) -> None:
    flight = k.flights.get(key)
    if flight is None or flight.abandoned or flight.hash != question:
        return
    for goal_id in (flight.goal, *flight.followers):
        other = k.goals.get(goal_id)
        if other is not None and other.question == question and other.status == Status.ASKED:
            return
    flight.abandoned = True
    out.append(commands.AbandonAttempt(flight.goal, flight.attempt))


# -- errands --------------------------------------------------------------------------------------------------------


def begin_run(k: State, goal: Goal, task: ExternalRun, out: Out) -> None:
    """Let the goal wait for a tool or a child job, which begins now, or later if the job begins nothing now."""
    set_status(k, goal, Status.WAITING)
    if k.terms.limits.goal_timeout_s is not None and not task.is_shard:
        begin_timeout(k, goal)
    goal.join = None
    send(k, goal, task, out)


def tool_errand(
    k: State, program: Program, goal: Goal, tool: str, arguments: dict[str, Any], *, item: int = 0
) -> ExternalRun:  # fmt: skip
    """Return a tool run for this goal, with the bounds that the tool declares. Its idempotency key is the same for
    every run. ``item``: an observation is read, which may be repeated.
    """
    function = program.tools.get(tool)
    repeatable = item > 0 or bool(getattr(function, "repeatable", False))
    command = commands.StartToolRun(
        goal.id, 0, tool, arguments, k.call_id(goal.id, f"tool-{goal.next_attempt}"),
        getattr(function, "timeout_s", None) or TOOL_S, getattr(function, "at_once", None) or 0,
        k.terms.tells_begun and not repeatable,
    )  # fmt: skip
    return ExternalRun(goal.id, 0, tool, item, repeatable=repeatable, command=command)


def send(k: State, goal: Goal, task: ExternalRun, out: Out) -> None:
    """Send an errand, for the first time or again: a new attempt with the same idempotency key."""
    assert task.command is not None
    k.errands.pop(flight_key(goal.id, task.attempt), None)
    goal.count_attempt()
    goal.due_at_s, task.due_at_s = NEVER, HELD if k.closing else 0.0
    task.attempt, task.begun = goal.tries, False
    k.errands[flight_key(goal.id, task.attempt)] = task
    task.command = msgspec.structs.replace(task.command, attempt=goal.tries)
    if not task.due_at_s:
        out.append(task.command)


def leave_errand(k: State, goal: Goal, out: Out) -> None:
    """Stop awaiting a worker for the goal. A child job is asked to stop, and stays until its bill arrives."""
    task = k.errand_of(goal)
    if task is None or task.abandoned:
        return
    if not task.due_at_s:
        out.append(commands.AbandonAttempt(goal.id, task.attempt))
    if task.charge is not None and not task.due_at_s:
        task.abandoned = True
        return
    if task.charge is not None:
        k.ledger.release(task.charge)
    del k.errands[flight_key(goal.id, task.attempt)]


# -- the end of a goal ----------------------------------------------------------------------------------------------


def end(k: State, goal: Goal, to: Status, out: Out, program: Program) -> None:
    """End the goal: abandon its children, decide its parent's join, and remove it from memory if it need not stay."""
    close(k, goal, to, out, program)
    after(k, goal, out, program)


def close(k: State, goal: Goal, to: Status, out: Out, program: Program) -> None:
    """End the goal itself: its status, its work in progress, its parent's counts, its result."""
    set_status(k, goal, to)
    if k.on_decision is not None:
        k.on_decision(goal.id, "ended", {"status": to, "answer": goal.answer, "failure": goal.failure})
    k.live -= 1
    if type(out) is commands.StepCommands:
        out.ended.append(goal)
    if program.traced:
        k.ended += 1
        goal.ended, goal.ended_at_s = k.ended, k.at_s
    if goal.join is not None or goal.assumed is not None:
        if goal.assumed:
            keep_late(k, goal.id, goal.assumed)
        goal.join = goal.assumed = None
    if goal.due_at_s is not NEVER or goal.timeout_at_s is not NEVER:
        goal.due_at_s = goal.timeout_at_s = NEVER
    if goal.question:
        leave_call(k, goal, out)
    if k.elections:
        leave_votes(k, goal, out)
    if k.errands:
        leave_errand(k, goal, out)
    if k.reading:
        k.reading.pop(goal.id, None)
    if goal.parent:
        parent = k.goals[goal.parent]
        parent.children_resolved += to == RESOLVED
        parent.children_failed += to != RESOLVED
    elif program.rows_are_goals:
        if goal.row:
            kind = goal.failure.kind if goal.failure is not None else ""
            emit(k, line_of(goal), None, to != RESOLVED, out, goal.row, kind if to == Status.FAILED else "")
        elif to == RESOLVED:
            emit(k, goal.answer, None, False, out)
        else:
            k.tally.failed += 1
    if k.withdrawn and to == RESOLVED:
        k.withdrawn.pop(goal.row, None)
    if to == Status.FAILED and not goal.parent and goal.failure is not None:
        kinds = k.tally.failed_for_good
        kinds[goal.failure.kind] = kinds.get(goal.failure.kind, 0) + 1
        k.tally.failed_said, k.tally.failed_row = goal.failure.message[:_MESSAGE_CHARS_MAX], goal.row


def keep_late(k: State, goal_id: int, lost: dict[int, LostAttempt]) -> None:
    """Keep lost attempts at a goal that has ended, by their numbers, for replies that still come."""
    for attempt, missing in lost.items():
        k.late[flight_key(goal_id, attempt)] = missing
    while len(k.late) > LATE_MAX:
        del k.late[next(iter(k.late))]


def end_alone(k: State, goal: Goal, answer: Any, out: Any, program: Program) -> None:
    """Do the work of ``end`` for an answered goal without parent, children or running work: it is resolved (fast
    path).
    """
    goal.status, goal.answer = RESOLVED, answer
    if goal.failure is not None:
        goal.failure = None
    if goal.due_at_s is not NEVER or goal.timeout_at_s is not NEVER:
        goal.due_at_s = goal.timeout_at_s = NEVER
    k.live -= 1
    out.ended.append(goal)
    if k.withdrawn:
        k.withdrawn.pop(goal.row, None)
    if program.rows_are_goals:
        result, row = line_of(goal) if goal.row else answer, goal.row
        if k.restored is None:  # as ``emit`` does; its call for each goal cost 1 % of the step
            k.tally.succeeded += 1
            out.append(commands.EmitResult(k.emitted, result, False, row))
            k.emitted += 1
        else:
            emit(k, result, None, False, out, row)
    if not program.keeps:
        del k.goals[goal.id]


def line_of(goal: Goal) -> dict[str, Any]:
    """Return the result of a row: the row, and its answer or its failure."""
    row = int(goal.row) if goal.row.isdecimal() else goal.row
    if goal.status == RESOLVED:
        return {"row": row, "answer": goal.answer}
    why = goal.failure
    kind, message = ("cancelled", "") if why is None else (str(why.kind), why.message)
    return {"row": row, "failed": {"kind": kind, "message": message}}


def after(k: State, goal: Goal, out: Out, program: Program) -> None:
    """Apply the consequences of the goal's end for other goals."""
    if goal.children:
        _abandon_children(k, goal, out, program)
    if goal.parent:
        parent = k.goals.get(goal.parent)
        if parent is not None:
            look_at_join(k, parent, out, program)
    elif not program.keeps:
        del k.goals[goal.id]
        if goal.children:
            _forget_all(k, list(goal.children))


def _abandon_children(k: State, goal: Goal, out: Out, program: Program) -> None:
    """Abandon live descendants, without recursion, so that any depth works."""
    parents = [goal]
    while parents:
        for child_id in parents.pop().children:
            child = k.goals.get(child_id)
            if child is not None and child.status not in ENDED:
                close(k, child, Status.ABANDONED, out, program)
                parents.append(child)


def forget_children(k: State, goal: Goal, kept: int, out: Out, program: Program) -> None:
    """Remove all but the first ``kept`` children of a goal from K, with their descendants; live ones are abandoned
    first.
    """
    ids = goal.children[kept:]
    for child_id in ids:
        child = k.goals[child_id]
        if child.status not in ENDED:
            close(k, child, Status.ABANDONED, out, program)
            _abandon_children(k, child, out, program)
        goal.children_resolved -= child.status == RESOLVED
        goal.children_failed -= child.status != RESOLVED
    del goal.children[kept:]
    goal.merged_resolved = min(goal.merged_resolved, goal.children_resolved)
    goal.merged_failed = min(goal.merged_failed, goal.children_failed)
    _forget_all(k, ids)


def _forget_all(k: State, ids: list[int]) -> None:
    while ids:
        child = k.goals.pop(ids.pop(), None)
        if child is not None:
            del k.goals_by_kind[child.kind][child.id]
            ids += child.children


# -- joins and time -------------------------------------------------------------------------------------------------


def look_at_join(k: State, goal: Goal, out: Out, program: Program, late: bool = False) -> None:
    """Decide the goal's join. If it is met or can no longer be met, open the goal again and abandon the other children.

    A join covers the children that no earlier join has merged. A wait for no children is a wait for its deadline.
    """
    if goal.status != Status.WAITING or goal.join is None:
        return
    resolved = goal.children_resolved - goal.merged_resolved
    failed = goal.children_failed - goal.merged_failed
    total = len(goal.children) - goal.merged_resolved - goal.merged_failed
    if not total and goal.due_at_s and not late:
        return
    verdict = decide(goal.join, total, resolved, failed, late)
    if verdict == JoinVerdict.WAIT:
        return
    if k.on_decision is not None:
        seen = {"resolved": resolved, "failed": failed, "total": total, "late": late}
        k.on_decision(goal.id, "join", {"join": goal.join, "verdict": verdict, **seen})
    goal.partial = verdict != JoinVerdict.MET
    reopen(k, goal)
    _abandon_children(k, goal, out, program)
    goal.merged_resolved, goal.merged_failed = goal.children_resolved, goal.children_failed


def wake(k: State, out: Out, program: Program) -> None:
    """Apply the passage of time up to ``k.at_s``: offer or resend what was delayed, close joins past their deadline."""
    while k.delayed:
        due_at_s, goal_id = k.delayed[0]
        goal = k.goals.get(goal_id)
        stale = goal is None or goal.due_at_s != due_at_s
        if not stale and due_at_s > k.at_s:
            return
        heapq.heappop(k.delayed)
        if stale or goal is None:
            continue
        if goal.status == Status.OPEN:
            k.resting -= 1
            offer(k, goal, due_at_s)
        elif (task := k.errand_of(goal)) is not None:
            send(k, goal, task, out)
        else:
            look_at_join(k, goal, out, program, late=True)
