"""When a job ends, and which kind of end it is."""

from __future__ import annotations

from cortex import commands
from cortex.authored import Out, said, stop
from cortex.program import Program
from cortex.state import State, Status
from cortex.transitions import reopen


def satisfied(k: State, program: Program) -> bool:
    """Whether the program says that its top goal is met. A cancelled job is not asked."""
    if k.stopping == "cancel":
        return False
    try:
        return bool(program.satisfied(k))
    except Exception as error:  # an author's code may raise anything
        stop(k, said("satisfied", error))
        return False


def see_end(k: State) -> None:
    """Give a job in which nothing can happen any more its outcome: ``partial`` ones can be resumed."""
    if k.outcome or k.errands or any(not flight.abandoned for flight in k.flights.values()):
        return
    if k.stopping:
        k.outcome, k.why = ("cancelled" if k.stopping == "cancel" else "partial"), k.stopping
    elif k.paused is not None:
        k.outcome, k.why = "partial", f"{k.paused.kind}: {k.paused.message}"
    elif k.short:
        k.outcome, k.why = "partial", "over_budget: the next call could pass the cap"
    elif k.source_ended and k.permits > 0 and k.due_at_s() is None:
        k.outcome, k.why = "failed", "nothing is left to do and the goal is not met"


def finish(k: State, out: Out) -> None:
    """Tell the world, and whoever still works for the job. What is under way stays charged in full."""
    for flight in k.flights.values():
        if not flight.abandoned:
            out.append(commands.Abandon(flight.goal, flight.attempt))
        k.ledger.assume(flight.charge)
        for goal_id in (flight.goal, *flight.followers):
            goal = k.goals.get(goal_id)
            if goal is not None and goal.status == Status.ASKED and goal.question == flight.hash:
                reopen(k, goal)
    k.flights.clear()
    k.asking.clear()
    out.append(commands.Finish(k.outcome, k.why))
