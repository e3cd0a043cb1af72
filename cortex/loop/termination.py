"""End of a job: when it ends, and with which outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cortex.admission import budget_slices, pauses
from cortex.calls.attempts import asked_by, assume
from cortex.calls.cache_warming import prefix_settled
from cortex.calls.program_hooks import Out, error_text, stop
from cortex.goals.lifecycle import reopen
from cortex.goals.result_list import emit_held
from cortex.loop import batch_submissions
from cortex.state import budget_slice, commands
from cortex.state.goals import NEVER
from cortex.state.program import Program
from cortex.state.state import HELD, ExternalRun, State
from policies.failures.failure import FailureKind
from policies.failures.failure_budget import all_alike, too_many_failed
from policies.failures.reset_time import format_time


def satisfied(k: State, program: Program) -> bool:
    """Return whether the program says that the job is done. False, without calling the program, for a cancelled job."""
    if k.stopping == "cancel":
        return False
    try:
        return bool(program.satisfied(k))
    except Exception as error:  # an author's code may raise anything
        stop(k, error_text("satisfied", error))
        return False


def conclude(k: State, program: Program) -> None:
    """End a job with nothing left to do: complete, or failed if its program says that it has no answer."""
    try:
        k.why = program.unmet(k)
    except Exception as error:  # an author's code may raise anything
        stop(k, error_text("unmet", error))
        return
    k.outcome = "failed" if k.why else "complete"


def may_begin(k: State) -> bool:
    """Return True if new calls may begin: not in a job that stops, is past its deadline, or is paused for good."""
    return not k.closing and (k.paused is None or pauses.waits(k))


_REPAIRS: Final[Mapping[str, str]] = {
    FailureKind.CUT: "Retry the cut rows with a larger max_tokens, or resume to continue with this one",
}
"""Advice for a job of which all rows failed alike, by kind."""


def see_failures(k: State) -> None:
    """Halt the job if too many rows have failed, unreadable records of the input included. Rows that all failed alike
    before the user's latest resume are forgiven."""
    terms, limits, tally, failed = k.terms, k.terms.limits, k.tally, k.tally.failed_for_good
    unreadable = terms.rows_unreadable
    if k.halted or k.outcome or not (failed or unreadable):
        return
    lost = sum(failed.values())
    finished = tally.succeeded + lost
    if too_many_failed(limits.max_failed, lost, finished, unreadable, terms.rows_readable):
        k.halted = f"max_failed: {_counted_failures(k, lost, finished)}, {limits.max_failed:g} may"
        k.halted += f"; the last: {tally.failed_said!r}" if failed else ""
        k.halted += ". Look at them, then resume with a higher max_failed"
        return
    since = {kind: count - k.forgiven.get(kind, 0) for kind, count in failed.items()}
    kind = all_alike(limits.alike_first, tally.succeeded - k.forgiven.get("", 0) + sum(since.values()), since)
    if kind:
        k.halted = f"alike: all of the first {since[kind]} rows failed alike, {kind}: {tally.failed_said!r}. "
        k.halted += _REPAIRS.get(kind, "Repair what is wrong with all of them, or resume to continue")


def _counted_failures(k: State, lost: int, finished: int) -> str:
    """Return the failed rows by kind, and the unreadable records of the input, in words."""
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(k.tally.failed_for_good.items()))
    lines = [f"{lost} of {finished} finished rows failed ({counts})"] if lost else []
    if unreadable := k.terms.rows_unreadable:
        lines.append(f"{unreadable} of {unreadable + k.terms.rows_readable} records of the input are unreadable")
    return " and ".join(lines)


def go_on(k: State) -> None:
    """Continue a halted job, because its user has seen the failures and resumed it."""
    if k.halted:
        k.halted = ""
        k.forgiven = {"": k.tally.succeeded, **k.tally.failed_for_good}


def see_end(k: State) -> None:
    """Give the job its outcome if nothing can happen any more: a ``partial`` job can be resumed."""
    if k.outcome or (k.errands and any(map(_awaited(k), k.errands.values()))):
        return
    if k.closing or (k.paused is not None and not pauses.waits(k)):
        batch_submissions.hold_back(k)
        if batch_submissions.on_the_way(k):
            return
        if any(not flight.abandoned and batch_submissions.keeps_waiting(k, flight) for flight in k.flights.values()):
            return
    else:
        for flight in k.flights.values():
            if not flight.abandoned:
                return  # usually the first flight
    if k.stopping:
        k.outcome, k.why = ("cancelled" if k.stopping == "cancel" else "partial"), f"{k.stopping}: by {k.stopped_by}"
    elif k.halted:
        k.outcome, k.why = "partial", k.halted
    elif k.overdue:
        k.outcome, k.why = "partial", f"deadline: {format_time(k.terms.limits.deadline_at_s or 0.0)} has passed"
    elif k.paused is not None:
        if not pauses.waits(k):
            k.outcome, k.why = "partial", f"{k.paused.kind}: {k.paused.message}"
    elif k.flights or k.errands or batch_submissions.on_the_way(k):
        return  # abandoned work frees its permits and its money when it ends
    elif budget_slices.waits(k):
        return  # waits for more of a budget
    elif k.short or budget_slice.rests(k):
        batch_submissions.hold_back(k)
        k.outcome, k.why = "partial", f"over_budget: {budget_slices.why(k)}"
    elif not k.wishes and not k.elsewhere and k.due_at_s() is None:
        _see_stuck(k)


def _awaited(k: State) -> Callable[[ExternalRun], bool]:
    """Return a predicate for errands without which the job cannot end. A cancelled shard counts: its rows are the
    job's.
    """
    return lambda task: not ((task.abandoned and not task.is_shard) or (k.closing and task.due_at_s))


def _see_stuck(k: State) -> None:
    awaited = k.awaited() if k.expected and (k.source_ended or not k.rows_wanted()) else []
    if awaited:
        more = f" and {len(awaited) - 1} more" if len(awaited) > 1 else ""
        k.outcome, k.why = "partial", f"waits for an answer: {awaited[0]}{more}"
    elif k.source_ended:
        tops = (goal.failure for goal in k.goals.values() if not goal.parent and goal.failure is not None)
        first = next(tops, None)
        k.outcome, k.why = "failed", "nothing is left to do and the goal is not met"
        if first is not None:
            k.why += f": {first.kind}: {first.message}"
    elif not k.rows_wanted():
        k.outcome = "failed"
        k.why = f"{k.live} goals wait, and window_rows ({k.terms.limits.window_rows}) admits no more rows: raise it"


def finish(k: State, out: Out) -> None:
    """Announce the outcome, and stop all work of the job. Calls in flight stay charged in full.

    Message batches continue if the job may be resumed: their results stay available for weeks.
    """
    k.finished = True
    out_there = {}
    if k.outcome == "partial":
        out_there = {key: flight for key, flight in k.flights.items() if flight.submission}
    else:
        batch_submissions.withdraw(k, out)
    for key, flight in k.flights.items():
        if key in out_there:
            continue
        if not flight.abandoned:
            out.append(commands.AbandonAttempt(flight.goal, flight.attempt))
        if flight.prefix:
            prefix_settled(k, flight, warmed=False)
        assume(k, flight, True)
        for goal in asked_by(k, flight):
            reopen(k, goal)
    k.flights = out_there
    k.unhedged.clear()
    k.asking = {question: key for question, key in k.asking.items() if key in out_there}
    for place, share in enumerate(k.shares):
        share.in_flight = sum(flight.route == place for flight in out_there.values())
        share.probing = sum(flight.route == place and flight.probe for flight in out_there.values())
    for key, task in list(k.errands.items()):
        if k.outcome == "partial" and (task.due_at_s or (task.item and not task.abandoned)):
            if not task.due_at_s:  # a reading may be repeated, and is when the job goes on: else nobody reads its item
                out.append(commands.AbandonAttempt(task.goal, task.attempt))
            k.goals[task.goal].due_at_s, task.due_at_s = NEVER, HELD
            continue
        if not task.abandoned:
            rests = task.is_shard and k.outcome == "partial"
            out.append((commands.SuspendChildJob if rests else commands.AbandonAttempt)(task.goal, task.attempt))
            reopen(k, k.goals[task.goal])
        if task.charge is not None and task.is_shard:
            k.ledger.release(task.charge)  # its slices count until its final report
        elif task.charge is not None:
            k.ledger.assume(task.charge)
        del k.errands[key]
    if k.outcome != "partial":
        emit_held(k, out)
    out.append(commands.FinishJob(k.outcome, k.why))
