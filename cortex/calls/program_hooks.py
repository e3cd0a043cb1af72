"""Running an author's code: what it yields is applied whole, what it raises fails one goal and never the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from cortex.calls import attempts, voting
from cortex.goals.apply_changes import ERRANDS, apply
from cortex.goals.apply_changes_fast import apply_plainly, may_be_plain
from cortex.goals.lifecycle import ASKED, asked, end, leave_errand, reopen
from cortex.state import commands
from cortex.state.changes import Change
from cortex.state.program import Program
from cortex.state.state import ENDED, Goal, State, Status
from cortex.values.election import VOTE
from cortex.values.reply import Malformed, Reply
from policies.failures.failure import Failure, FailureKind

Out = list[commands.Command]

REFUSAL = "refusal"
"""The stop reason of a message in which the model declined."""


def fold(k: State, program: Program, goal: Goal, where: Literal["absorb", "absorbed"], value: Any, out: Out) -> None:
    """Fold a value into K through the program's method of this name, which must say what becomes of the goal.

    The goal is asked at this moment; one that is not any more was ended by what came before in this turn.
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
    """Make what that method yielded."""
    try:
        if k.finished and _too_late(changed):
            reopen(k, goal)  # the job has ended, and nobody would run it: resumed, it is asked again, from memory
            return
        apply(k, changed, out, by=goal, program=program)
    except Exception as error:  # what it yielded may be anything too
        refuse(k, program, goal, where, error, out)
        return
    if goal.status == ASKED:
        if where == "absorb":
            faulty(k, program, goal, where, RuntimeError(f"it left the goal as it was: {goal.story()}"), out)
            return
        reopen(k, goal)  # what a worker brought is in K: select goes on from there
    if k.faulty_in_row:
        k.faulty_in_row = 0


def fold_plainly(k: State, program: Program, goal: Goal, reply: Reply, out: Out) -> None:
    """``fold`` of a reply to a goal that was asked, where changes may be plain (``may_be_plain``)."""
    try:
        changed = list(program.absorb(k, goal, reply))
        done = apply_plainly(k, changed, out, goal, program)
    except Exception as error:  # an author's code may raise anything
        refuse(k, program, goal, "absorb", error, out)
        return
    if not done:
        fold_changes(k, program, goal, "absorb", changed, out)
    elif goal.status is ASKED:  # it added a goal, or a result, and said nothing of its own
        fold_changes(k, program, goal, "absorb", [], out)
    elif k.faulty_in_row:
        k.faulty_in_row = 0


def refuse(k: State, program: Program, goal: Goal, where: str, error: Exception, out: Out) -> None:
    """The value was not folded: the reply is refused, or the program's own code is at fault."""
    if isinstance(error, Malformed):
        _malformed(k, program, goal, error, out)
    else:
        faulty(k, program, goal, where, error, out)


def fold_reply(k: State, program: Program, goal: Goal, reply: Reply, out: Out) -> None:
    """Fold a reply into K. One in which the model declined is no answer, unless the program reads those too."""
    if reply.stop_reason == REFUSAL and not program.reads_refusals and goal.status == Status.ASKED:
        k.tally.attempt_failed(FailureKind.REFUSED)
        give_up(k, program, goal, Failure(FailureKind.REFUSED, "the model declined"), out)
        return
    if goal.kind == VOTE:
        fold_vote(k, program, goal, reply, out)
        return
    fold(k, program, goal, "absorb", reply, out)


def fold_vote(k: State, program: Program, vote: Goal, reply: Reply, out: Out) -> None:
    """Count a vote. The one that decides its election folds the winner's reply into K, for the goal voted on."""
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
            said = f"nobody was ahead after {int(goal.sample) + 1} samples"
            give_up(k, program, goal, Failure(FailureKind.MALFORMED, said), out)
        elif may_be_plain(k, program, out) and goal.status is ASKED and not goal.question:
            fold_plainly(k, program, goal, winner, out)
        else:
            fold(k, program, goal, "absorb", winner, out)


def _malformed(k: State, program: Program, goal: Goal, error: Malformed, out: Out) -> None:
    k.tally.attempt_failed(FailureKind.MALFORMED)
    verdict = attempts.malformed(k, goal, str(error))
    if verdict is not None:
        give_up(k, program, verdict.goal, verdict.failure, out)


def _too_late(changed: Sequence[Change]) -> bool:
    """Whether these changes need a worker, or a child job, though the job has ended."""
    return any(type(change) in ERRANDS for change in changed)


def give_up(k: State, program: Program, goal: Goal, failure: Failure, out: Out) -> None:
    """The goal's call has failed for good: the program says what that changes; by default the goal fails."""
    if goal.status in ENDED:
        return
    if goal.kind == VOTE:  # without it nobody can be ahead: what was voted on has failed
        goal = voting.called_off(k, goal, out)
        if failure.kind == FailureKind.TOO_LARGE and attempts.too_large(k, goal, failure) is None:
            return
    if goal.status == Status.WAITING:
        leave_errand(k, goal, out)
        reopen(k, goal)
    if goal.status == Status.OPEN:
        asked(k, goal)  # so that a program may reopen it, whatever it was about
    k.tally.calls_failed += bool(goal.question)
    goal.failure = failure
    if k.tell is not None:
        k.tell(goal.id, "given_up", {"failure": failure})
    fault = failure.kind == FailureKind.FAULTY
    try:
        changed = list(program.failed(k, goal, failure))
        if not (k.finished and _too_late(changed)):
            apply(k, changed, out, by=goal, program=program)
    except Exception as error:  # the last word of an author's code: nothing else is asked of it
        if not fault:
            _count_fault(k, "failed", error)
        goal.failure = Failure(FailureKind.FAULTY, said("failed", error))
        fault = True
    if goal.status == Status.ASKED or (fault and goal.status not in ENDED):
        end(k, goal, Status.FAILED, out, program)


def faulty(k: State, program: Program, goal: Goal, where: str, error: Exception, out: Out) -> None:
    """The program's own code raised: that goal fails with the story; many in a row stop the job."""
    if goal.status in ENDED:
        return
    _count_fault(k, where, error)
    give_up(k, program, goal, Failure(FailureKind.FAULTY, said(where, error)), out)


def _count_fault(k: State, where: str, error: Exception) -> None:
    k.faulty_in_row += 1
    k.tally.attempt_failed(FailureKind.FAULTY)
    if k.faulty_in_row >= k.terms.limits.faulty_in_row_max:
        stop(k, f"{k.faulty_in_row} goals in a row: {said(where, error)}")


def stop(k: State, why: str) -> None:
    """The job cannot go on: it has failed, and says why."""
    if not k.outcome:
        k.outcome, k.why = "failed", why


def said(where: str, error: Exception) -> str:
    """What the author reads."""
    return f"the program's {where} raised {type(error).__name__}: {error}"
