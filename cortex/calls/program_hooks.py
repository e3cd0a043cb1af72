"""Calls of a program's methods: their changes are applied whole, and their exceptions fail one goal, never the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from cortex.calls import attempts, voting
from cortex.goals.apply_changes import ERRANDS, apply, fast_apply, may_apply_fast
from cortex.goals.lifecycle import ASKED, asked, end, leave_errand, reopen
from cortex.state import commands
from cortex.state.changes import Change
from cortex.state.program import Program
from cortex.state.state import ENDED, Goal, State, Status
from cortex.values.election import VOTE
from cortex.values.endings import WHOLE_REASONS, is_refusal
from cortex.values.reply import Malformed, Reply
from policies.failures.failure import Failure, FailureKind

Out = list[commands.Command]


def fold(k: State, program: Program, goal: Goal, where: Literal["absorb", "absorbed"], value: Any, out: Out) -> None:
    """Fold a value into K through the program's method of this name, which must decide the goal's next status.

    A goal that is not ASKED any more was ended earlier in this turn; its value is ignored.
    """
    if goal.status != ASKED:
        return
    try:
        changed = list(program.absorb(k, goal, value) if where == "absorb" else program.absorbed(k, goal, value))
    except Exception as error:  # an author's code may raise anything
        refuse(k, program, goal, where, error, out)
    else:
        fold_changes(k, program, goal, where, changed, out)


def fold_changes(k: State, program: Program, goal: Goal, where: str, changed: list[Change], out: Out) -> None:
    """Apply the changes that the method yielded."""
    try:
        if k.finished and _too_late(changed):
            # the job has ended, and no worker would run it: after a resume the goal is asked again, from the stored
            # reply
            reopen(k, goal)
            return
        apply(k, changed, out, by=goal, program=program)
    except Exception as error:  # a program may yield anything
        refuse(k, program, goal, where, error, out)
        return
    if goal.status == ASKED:
        if where == "absorb":
            faulty(k, program, goal, where, RuntimeError(f"it left the goal as it was: {goal.story()}"), out)
            return
        reopen(k, goal)  # the worker's result is in K: select continues from there
    if k.faulty_in_row:
        k.faulty_in_row = 0


def fast_fold(k: State, program: Program, goal: Goal, reply: Reply, out: Out) -> None:
    """Fold a reply into K like ``fold``, trying ``fast_apply`` first (fast path). ``may_apply_fast`` must hold.

    Equal to ``fold`` by ``tests/properties/test_fast_paths.py``.
    """
    try:
        changed = list(program.absorb(k, goal, reply))
        done = fast_apply(k, changed, out, goal, program)
    except Exception as error:  # an author's code may raise anything
        refuse(k, program, goal, "absorb", error, out)
        return
    if not done:
        fold_changes(k, program, goal, "absorb", changed, out)
    elif goal.status is ASKED:  # it added a goal or a result, and did not decide its own status
        fold_changes(k, program, goal, "absorb", [], out)
    elif k.faulty_in_row:
        k.faulty_in_row = 0


def refuse(k: State, program: Program, goal: Goal, where: str, error: Exception, out: Out) -> None:
    """Handle a failed fold: the reply is malformed, or the program's own code is at fault."""
    if isinstance(error, Malformed):
        _malformed(k, program, goal, error, out)
    else:
        faulty(k, program, goal, where, error, out)


def fold_reply(k: State, program: Program, goal: Goal, reply: Reply, out: Out) -> None:
    """Fold a reply into K. A reply in which the model declined fails the goal, unless the program reads refusals."""
    reason = reply.stop_reason
    if reason not in WHOLE_REASONS and not program.reads_refusals and is_refusal(reason) and goal.status == ASKED:
        k.tally.attempt_failed(FailureKind.REFUSED)
        give_up(k, program, goal, Failure(FailureKind.REFUSED, "the model declined"), out)
        return
    if goal.kind == VOTE:
        fold_vote(k, program, goal, reply, out)
        return
    fold(k, program, goal, "absorb", reply, out)


def fold_vote(k: State, program: Program, vote: Goal, reply: Reply, out: Out) -> None:
    """Count a vote. The deciding vote folds the winner's reply into K, for the goal voted on."""
    if vote.status != ASKED:
        return
    try:
        decided = voting.cast(k, program, vote, reply, out)
    except Malformed as error:
        _malformed(k, program, vote, error, out)
    except Exception as error:  # an author's code may raise anything
        faulty(k, program, vote, "ballot", error, out)
    else:
        if decided is None:
            return
        goal, winner = decided
        if winner is None:
            text = f"no answer was ahead after {int(goal.sample) + 1} samples"
            give_up(k, program, goal, Failure(FailureKind.MALFORMED, text), out)
        elif may_apply_fast(k, program, out) and goal.status is ASKED and not goal.question:
            fast_fold(k, program, goal, winner, out)
        else:
            fold(k, program, goal, "absorb", winner, out)


def _malformed(k: State, program: Program, goal: Goal, error: Malformed, out: Out) -> None:
    k.tally.attempt_failed(FailureKind.MALFORMED)
    verdict = attempts.malformed(k, goal, str(error))
    if verdict is not None:
        give_up(k, program, verdict.goal, verdict.failure, out)


def _too_late(changed: Sequence[Change]) -> bool:
    """True if these changes need a worker or a child job."""
    return any(type(change) in ERRANDS for change in changed)


def give_up(k: State, program: Program, goal: Goal, failure: Failure, out: Out) -> None:
    """Fail the goal's call for good: the program decides what that changes; by default the goal fails."""
    if goal.status in ENDED:
        return
    if goal.kind == VOTE:  # without this vote no candidate can win: the goal voted on has failed
        goal = voting.called_off(k, goal, out)
        if failure.kind == FailureKind.TOO_LARGE and attempts.too_large(k, goal, failure) is None:
            return
    if goal.status == Status.WAITING:
        leave_errand(k, goal, out)
        reopen(k, goal)
    if goal.status == Status.OPEN:
        asked(k, goal)  # so that the program may reopen it, whatever it waited for
    k.tally.calls_failed += bool(goal.question)
    goal.failure = failure
    if k.on_decision is not None:
        k.on_decision(goal.id, "given_up", {"failure": failure})
    fault = failure.kind == FailureKind.FAULTY
    try:
        changed = list(program.failed(k, goal, failure))
        if not (k.finished and _too_late(changed)):
            apply(k, changed, out, by=goal, program=program)
    except Exception as error:  # the last method of the program that is called for this goal
        if not fault:
            _count_fault(k, "failed", error)
        goal.failure = Failure(FailureKind.FAULTY, error_text("failed", error))
        fault = True
    if goal.status == Status.ASKED or (fault and goal.status not in ENDED):
        end(k, goal, Status.FAILED, out, program)


def faulty(k: State, program: Program, goal: Goal, where: str, error: Exception, out: Out) -> None:
    """Fail the goal because the program's own code raised; many consecutive faults stop the job."""
    if goal.status in ENDED:
        return
    _count_fault(k, where, error)
    give_up(k, program, goal, Failure(FailureKind.FAULTY, error_text(where, error)), out)


def _count_fault(k: State, where: str, error: Exception) -> None:
    k.faulty_in_row += 1
    k.tally.attempt_failed(FailureKind.FAULTY)
    if k.faulty_in_row >= k.terms.limits.faulty_in_row_max:
        stop(k, f"{k.faulty_in_row} goals in a row: {error_text(where, error)}")


def stop(k: State, why: str) -> None:
    """End the job as failed, with the reason."""
    if not k.outcome:
        k.outcome, k.why = "failed", why


def error_text(where: str, error: Exception) -> str:
    """Return the error text for the program's author."""
    return f"the program's {where} raised {type(error).__name__}: {error}"
