"""Handlers of all events except answers to calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cortex.admission import budget_slices, pauses
from cortex.admission.permits import close_servers, granted_pace, own_pace, reroute, reroute_own
from cortex.calls import attempts, lost_turns
from cortex.calls.program_hooks import Out, error_text, fold, fold_reply, give_up, stop
from cortex.goals import result_list, shards
from cortex.goals.apply_changes import apply, fast_apply, may_apply_fast
from cortex.goals.lifecycle import end, hurry
from cortex.loop import batch_submissions, deadlines, tool_runs
from cortex.loop.termination import go_on
from cortex.state import events
from cortex.state.program import Program
from cortex.state.state import ENDED, Goal, State, Status, flight_key
from cortex.values.plain_values import to_plain
from policies.failures.failure import Failure, FailureKind


def take(k: State, program: Program, event: events.Event, out: Out) -> None:
    """Apply one event to K."""
    _TAKE[type(event)](k, program, event, out)


def _opened(k: State, program: Program, event: events.Opened, out: Out) -> None:
    k.epoch = event.epoch
    k.began_at_s = k.at_s
    k.source_ended = not event.terms.streams
    k.pace = own_pace(None, k.at_s, k.terms.limits)
    k.next_goal, k.unmet = event.first_goal, event.unmet
    if event.carried is not None:
        k.ledger = msgspec.structs.replace(event.carried)  # a copy: events are immutable
    try:
        apply(k, list(program.begin(k)), out, by=None, program=program)
    except Exception as error:
        stop(k, error_text("begin", error))


def _rejoined(k: State, program: Program, event: events.Rejoined, out: Out) -> None:
    if event.epoch <= k.epoch:
        return  # duplicate message, or an incarnation that has ended
    k.epoch = event.epoch
    k.unmet = k.unmet or event.unmet
    lost_turns.leave_out(k, event.unasked)
    for share in k.shares:
        share.permits, share.starts = 0, -1  # the new incarnation requests its own lease
    budget_slices.void(k)
    held = {flight_key(goal, attempt) for goal, attempt in event.held} | batch_submissions.rejoin(k)
    died = Failure(FailureKind.LOST, "its channel, branch or node died")
    for key in [key for key in k.flights if key not in held]:
        flight = k.flights[key]
        _broke(k, program, events.AttemptFailed(flight.goal, flight.sample, flight.attempt, died), out)
    for verdict in tool_runs.lost(k, held, out):
        give_up(k, program, verdict.goal, verdict.failure, out)
    if not k.outcome:
        batch_submissions.take_up(k, out)


def _rows_read(k: State, program: Program, event: events.RowsRead, out: Out) -> None:
    if k.outcome not in ("", "partial") or k.stopping == "cancel":
        return
    if k.source_ended or event.start != k.position:
        return  # duplicate window: its driver did not receive the answer, or another driver took over
    k.position, k.source_ended = event.position, event.ended
    read, tally, fast = program.read, k.tally, may_apply_fast(k, program, out)
    for row in event.rows:
        if row.place < 0:
            tally.rows_read += 1
            if row.refusal:
                tally.rows_refused += 1
        try:
            made = list(read(k, row))
            for change in made:
                if type(change) is Goal and not (change.parent or change.id):
                    change.row = row.key
            if not (fast and fast_apply(k, made, out, None, program)):
                apply(k, made, out, by=None, program=program)
        except Exception as error:
            stop(k, error_text("read", error))
            return


def _granted(k: State, program: Program, event: events.PermitsGranted, out: Out) -> None:
    if not 0 <= event.route < len(k.shares):
        return
    share = k.shares[event.route]
    held = not share.starts
    share.permits, share.starts, share.generation = event.permits, event.starts, event.generation
    if event.starts >= 0:
        share.bounded += 1
    share.why, share.memo, share.granted_at_s = event.why, event.memo, k.at_s
    share.strays = event.strays
    share.again_at_s = k.at_s + event.again_s if event.again_s else 0.0
    rates = event.requests_per_s, event.input_tokens_per_s, event.output_tokens_per_s
    granted_pace(share, k.at_s, rates, event.phase, held and event.starts < 0)
    if k.terms.fallbacks:
        _see_way(k)


def _see_way(k: State) -> None:
    """Move work to a fallback without the waits that the route before it asked for."""
    peers = k.terms.peers
    others = k.shares[1 + peers : 1 + len(k.terms.fallbacks)]
    if any(own.permits and own.starts < 0 for own in k.shares[: 1 + peers]):
        k.moved = False
    elif not k.moved and any(share.permits and share.starts for share in others):
        k.moved = True
        hurry(k)


def _recalled(k: State, program: Program, event: events.ReplyRecalled, out: Out) -> None:
    reply = event.reply
    assert reply is not None, "the store fills in the reply of a recalled call"
    for goal in attempts.recalled(k, event, out):
        fold_reply(k, program, goal, reply, out)
    k.took = None


def _broke(k: State, program: Program, event: events.AttemptFailed, out: Out) -> None:
    for verdict in attempts.broke(k, event):
        give_up(k, program, verdict.goal, verdict.failure, out)


def _given_back(k: State, program: Program, event: events.GivenBack, out: Out) -> None:
    attempts.given_back(k, event)


def _begun(k: State, program: Program, event: events.ToolRunBegun, out: Out) -> None:
    tool_runs.begun(k, event)


def _observed(k: State, program: Program, event: events.Observed, out: Out) -> None:
    _take_settled(k, program, tool_runs.observed(k, event), out)


def _returned(k: State, program: Program, event: events.ChildJobEnded, out: Out) -> None:
    _take_settled(k, program, tool_runs.returned(k, event), out)


def _take_settled(k: State, program: Program, settled: Any, out: Out) -> None:
    if isinstance(settled, attempts.FinalFailure):
        give_up(k, program, settled.goal, settled.failure, out)
    elif settled is not None:
        goal, value = settled
        tool_runs.take_in(k, goal)
        fold(k, program, goal, "absorbed", value, out)


def _written(k: State, program: Program, event: events.ResultsWritten, out: Out) -> None:
    k.written_rows, k.written_bytes, k.written_checksum = event.rows, event.size_bytes, event.checksum
    shards.written(k, event.parts)


def _limits_set(k: State, program: Program, event: events.LimitsSet, out: Out) -> None:
    if event.who and event.limits != k.terms.limits:
        k.terms = msgspec.structs.replace(k.terms, limits_by=event.who, limits_at_s=k.at_s)
    k.terms = msgspec.structs.replace(
        k.terms, limits=event.limits, route=event.route or k.terms.route,
        role_routes=event.role_routes or k.terms.role_routes,
    )  # fmt: skip
    if event.fallbacks is not None and (event.fallbacks, event.peers) != (k.terms.fallbacks, k.terms.peers):
        reroute(k, event.fallbacks, event.peers)
    if event.fallbacks is not None and event.closed != k.terms.closed:
        close_servers(k, event.closed)
    k.short = False
    if not k.outcome:
        k.halted = ""  # set again if it still holds
        if k.paused is not None and k.paused.kind == FailureKind.OVER_BUDGET:
            k.paused = None
    k.pace = own_pace(k.pace, k.at_s, event.limits)
    if not k.outcome:
        tool_runs.go_on(k, out)


def _stopped(k: State, program: Program, event: events.Stopped, out: Out) -> None:
    cancel = event.how == "cancel"
    if k.stopping == "cancel" or k.outcome not in ("", "partial" if cancel else ""):
        if k.outcome == "partial" and k.stopping == event.how == "drain" and k.stopped_by == events.NODE_ENDED:
            k.stopped_by = event.who  # it rests already: what a user has drained is not continued without a person
        return
    if event.how == "condemn":
        k.outcome, k.why = "partial", f"condemned: {event.story}"
        return  # calls in flight are not awaited: they may be what kills the channel
    result_list.withdraw(k)
    k.outcome = k.why = ""
    k.finished = False
    if not (k.stopping == event.how == "drain" and event.who == events.NODE_ENDED):
        k.stopped_by = event.who  # else it stays drained by whoever was first, a user most often
    k.stopping = event.how
    if not cancel:
        return
    failure = Failure(FailureKind.CANCELLED, f"cancelled by {event.who}", sent=False)
    for goal in [goal for goal in k.goals.values() if not goal.parent and goal.status not in ENDED]:
        give_up(k, program, goal, failure, out)
        if goal.status not in ENDED:
            end(k, goal, Status.ABANDONED, out, program)


def _resumed(k: State, program: Program, event: events.Resumed, out: Out) -> None:
    if k.outcome in ("", "partial") and k.stopping != "cancel":
        result_list.withdraw(k)
        k.outcome = k.why = k.stopping = ""
        k.finished = False
        go_on(k)
        pauses.try_again(k)
        budget_slices.try_again(k)
        deadlines.begin_anew(k)
        k.alike = 0
        batch_submissions.take_up(k, out)
        tool_runs.go_on(k, out)


def _reopened(k: State, program: Program, event: events.RowsReopened, out: Out) -> None:
    if not result_list.may_reopen(k, event):
        return  # duplicate or late message
    other_model = event.route is not None and event.route != k.terms.route
    batch_submissions.look_again(k, other_model)
    if event.route is not None and other_model:
        reroute_own(k, event.route)
    k.outcome, k.why = "partial", f"retry: {len(event.keys)} rows that failed are to be asked again"
    k.source_ended, k.halted, k.faulty_in_row = False, "", 0
    if k.live:
        again = set(event.keys)
        for goal in [goal for goal in k.goals.values() if goal.row in again and goal.status not in ENDED]:
            end(k, goal, Status.ABANDONED, out, program)  # the row is fed again
    result_list.take_back(k, event, out)
    k.forgiven = {"": k.tally.succeeded, **k.tally.failed_for_good}


def _intended(k: State, program: Program, event: events.SubmissionIntended, out: Out) -> None:
    batch_submissions.intended(k, event, out)


def _submitted(k: State, program: Program, event: events.SubmissionAccepted, out: Out) -> None:
    batch_submissions.submitted(k, event, out)


def _unsubmitted(k: State, program: Program, event: events.SubmissionRejected, out: Out) -> None:
    batch_submissions.unsubmitted(k, event)


def _doubted(k: State, program: Program, event: events.SubmissionUncertain, out: Out) -> None:
    batch_submissions.doubted(k, event, out)


def _stuck(k: State, program: Program, event: events.SubmissionUnreadable, out: Out) -> None:
    batch_submissions.stuck(k, event)


def _made(k: State, program: Program, event: events.GoalMade, out: Out) -> None:
    goal = k.goals.get(event.goal)
    if k.differs or (goal is None and event.goal < k.next_goal):
        return  # the goal has ended since, and left K
    if goal is None or goal.kind != event.kind or goal.value != event.value:
        k.differs = program.differs(event.kind, event.value, goal)


def _answer_given(k: State, program: Program, event: events.AnswerGiven, out: Out) -> None:
    if k.outcome not in ("", "partial") or k.stopping == "cancel":
        return
    try:
        value = to_plain(event.value)
    except (TypeError, ValueError, OverflowError):
        return  # whoever gives an answer has it checked first: the goal still waits
    for goal_id in k.expected.pop(event.name, ()):
        goal = k.goals.get(goal_id)
        if goal is not None and goal.expects == event.name:
            tool_runs.take_in(k, goal)
            fold(k, program, goal, "absorbed", value, out)


def _leased(k: State, program: Program, event: events.BudgetLeased, out: Out) -> None:
    budget_slices.lease(k, event.slices, event.reason, event.again_s)


def _shards_reopened(k: State, program: Program, event: events.ShardsReopened, out: Out) -> None:
    if k.outcome not in ("", "partial", "complete") or k.stopping == "cancel":
        return
    if shards.begin_again(k, event.goals) and k.outcome == "complete":
        k.outcome = k.why = k.stopping = ""
        k.finished = False


def _reported(k: State, program: Program, event: events.ShardReported, out: Out) -> None:
    shards.take(k, event.goal, event.report)


def _ticked(k: State, program: Program, event: events.Ticked, out: Out) -> None:
    """Do nothing: the time is in the turn, and ``wake`` acts on it."""


_TAKE: dict[type, Callable[[State, Program, Any, Out], None]] = {
    events.Opened: _opened, events.Rejoined: _rejoined, events.RowsRead: _rows_read, events.PermitsGranted: _granted,
    events.ReplyRecalled: _recalled, events.AttemptFailed: _broke, events.GivenBack: _given_back,
    events.ToolRunBegun: _begun, events.Observed: _observed,
    events.ChildJobEnded: _returned,
    events.ResultsWritten: _written, events.LimitsSet: _limits_set, events.Stopped: _stopped, events.Resumed: _resumed,
    events.Ticked: _ticked, events.SubmissionIntended: _intended, events.SubmissionAccepted: _submitted,
    events.SubmissionRejected: _unsubmitted, events.SubmissionUncertain: _doubted, events.SubmissionUnreadable: _stuck,
    events.ResultsCollected: batch_submissions.collected, events.GoalMade: _made, events.AnswerGiven: _answer_given,
    events.RowsReopened: _reopened, events.BudgetLeased: _leased, events.ShardReported: _reported,
    events.ShardsReopened: _shards_reopened,
}  # fmt: skip
