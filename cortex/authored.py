"""Running an author's code: what it yields is applied whole, what it raises fails one goal and never the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cortex import attempts, commands
from cortex.changes import Change
from cortex.program import Program
from cortex.reply import Malformed
from cortex.state import ENDED, Goal, State, Status
from cortex.transitions import apply, end
from policies.failure import Failure, FailureKind

Out = list[commands.Command]


def make(k: State, program: Program, goal: Goal | None, changed: Sequence[Change], out: Out) -> None:
    """Apply a program's changes, all or none. Raises as ``transitions.apply``."""
    call = k.call_id(goal.id, goal.sample) if goal is not None else ""
    apply(k, changed, out, call=call, program=program)


def fold(k: State, program: Program, goal: Goal, where: str, yielded: Callable[[], Iterable[Change]], out: Out) -> None:
    """Fold a result into K through the program's own code, which must say what becomes of the goal."""
    try:
        make(k, program, goal, list(yielded()), out)
    except Malformed as error:
        verdict = attempts.malformed(k, goal, str(error))
        if verdict is not None:
            give_up(k, program, verdict.goal, verdict.failure, out)
        return
    except Exception as error:  # an author's code may raise anything
        faulty(k, program, goal, where, error, out)
        return
    if goal.status == Status.ASKED:
        faulty(k, program, goal, where, RuntimeError(f"it left the goal as it was: {goal.story()}"), out)
        return
    k.faulty_in_row = 0


def give_up(k: State, program: Program, goal: Goal, failure: Failure, out: Out) -> None:
    """The goal's call has failed for good: the program says what that changes; by default the goal fails."""
    goal.failure = failure
    goal.question = b""
    try:
        make(k, program, goal, list(program.failed(k, goal, failure)), out)
    except Exception as error:  # the last word of an author's code: nothing else is asked of it
        _count_fault(k, "failed", error)
        goal.failure = Failure(FailureKind.FAULTY, said("failed", error))
    if goal.status == Status.ASKED or (goal.failure.kind == FailureKind.FAULTY and goal.status not in ENDED):
        end(k, goal, Status.FAILED, out, program)


def faulty(k: State, program: Program, goal: Goal, where: str, error: Exception, out: Out) -> None:
    """The program's own code raised: that goal fails with the story; many in a row stop the job."""
    _count_fault(k, where, error)
    if goal.status not in ENDED:
        give_up(k, program, goal, Failure(FailureKind.FAULTY, said(where, error)), out)


def _count_fault(k: State, where: str, error: Exception) -> None:
    k.faulty_in_row += 1
    kind = FailureKind.FAULTY
    k.tally.failures[kind] = k.tally.failures.get(kind, 0) + 1
    if k.faulty_in_row >= k.terms.limits.faulty_in_row_max:
        stop(k, f"{k.faulty_in_row} goals in a row: {said(where, error)}")


def stop(k: State, why: str) -> None:
    """The job cannot go on: it has failed, and says why."""
    if not k.outcome:
        k.outcome, k.why = "failed", why


def said(where: str, error: Exception) -> str:
    """What the author reads."""
    return f"the program's {where} raised {type(error).__name__}: {error}"
