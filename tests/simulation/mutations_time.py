"""Faults planted in time limits and hedges: the job's deadline, timeouts of rows, deadlines of joins."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from actors.branch import batch_executor
from actors.channel import job_clock
from actors.channel.batches import orders
from cortex.admission import hedging
from cortex.calls import attempts
from cortex.goals import lifecycle
from cortex.loop import deadlines
from cortex.state import state
from policies.decisions import join
from tests.simulation.loop import LIFE
from tests.simulation.mutations import Patch, planted
from tests.simulation.scenario import Plan


def _hedged(made: Plan) -> bool:
    return any(job.hedge_after_s for job in made.jobs)


def _timed(made: Plan) -> bool:
    return any(job.goal_timeout_s for job in made.jobs)


def _ends(made: Plan) -> bool:
    return any(job.deadline_s for job in made.jobs)


def _nested(made: Plan) -> bool:
    return any(job.program == "nester" for job in made.jobs)


def _batched(made: Plan) -> bool:
    return any(job.batches for job in made.jobs)


def _set(made: Plan) -> bool:
    return any(one.kind == "clock_jumps" for one in made.troubles_at)


# -- clocks ------------------------------------------------------------------------------------------------------------


@planted("what waits does not wait longer, nor shorter, when a clock is set", 58, likely=_set)
def clock_of_the_machine(patch: Patch) -> None:
    patch.setattr(job_clock.JobClock, "now_s", lambda self: self._wall_s())


@planted("a clock that was set between two runs is not believed", 58, likely=_set)
def clock_believed_on_resume(patch: Patch) -> None:
    patch.setattr(job_clock, "base_at", lambda kept, boot, steady_s, wall_s, last, idle_s: wall_s - steady_s)


@planted("a deadline is read from the clock of the machine", 1470, likely=lambda made: _set(made) and _ends(made))
def deadline_by_the_clock_of_the_job(patch: Patch) -> None:
    patch.setattr(job_clock.JobClock, "ahead_s", lambda self, now_s: 0.0)
    patch.setattr(job_clock.JobClock, "was_set", lambda self: False)


@planted("no clocks of two machines are compared", 400019, likely=lambda made: _set(made) and _batched(made))
def submission_by_two_clocks(patch: Patch) -> None:
    """Orders hold until a time of the channel's machine, and are judged by the clock of the branch's."""
    carry_out, ask = batch_executor.BatchExecutor.carry_out, orders.BatchOrderRouter.ask

    async def judged(self: Any, blob: bytes, model: Any, wait_s: Any, channel: Any, clock: Any) -> bytes:
        now_s = asyncio.get_running_loop().time() + LIFE.get().node.wall_offset_s
        return await carry_out(self, blob, model, wait_s, channel, (clock[0], now_s))

    async def asked(self: Any, place: int, order: Any) -> Any:
        reply = await ask(self, place, order)
        if reply is None or not isinstance(order, batch_executor.ClockOrder):
            return reply
        now_s = asyncio.get_running_loop().time() + LIFE.get().node.wall_offset_s
        return msgspec.structs.replace(reply, clock_s=now_s)

    patch.setattr(batch_executor.BatchExecutor, "carry_out", judged)
    patch.setattr(orders.BatchOrderRouter, "ask", asked)


# -- deadlines -----------------------------------------------------------------------------------------------------------


@planted("at its deadline a job begins nothing new, and ends", likely=_ends)
def deadline_ignored(patch: Patch) -> None:
    patch.setattr(state.State, "overdue", property(lambda self: False))


@planted("a row whose time is over fails", 26, likely=_timed)
def goal_timeout_ignored(patch: Patch) -> None:
    patch.setattr(deadlines, "look", lambda k, program, out: None)


@planted("the clock of a row begins with its first attempt, and with no other", 72, likely=_timed)
def goal_timeout_begins_anew(patch: Patch) -> None:
    begin = lifecycle.begin_timeout

    def anew(k: Any, goal: Any) -> None:
        goal.timeout_at_s = 0.0
        begin(k, goal)

    patch.setattr(lifecycle, "begin_timeout", anew)
    patch.setattr("cortex.calls.request.begin_timeout", anew)


@planted("a row has all of its time", likely=_timed)
def goal_timeout_too_soon(patch: Patch) -> None:
    def soon(k: Any, goal: Any) -> None:
        begin(k, goal)
        if goal.timeout_at_s:
            k.deadlines.append((k.at_s + 1.0, goal.id))
            k.deadlines.sort()
            goal.timeout_at_s = k.at_s + 1.0

    begin = lifecycle.begin_timeout
    patch.setattr("cortex.calls.request.begin_timeout", soon)


# -- joins ---------------------------------------------------------------------------------------------------------------


@planted("a join whose time is over waits no longer", 70, likely=_nested)
def join_without_end(patch: Patch) -> None:
    look = lifecycle.look_at_join
    patch.setattr(lifecycle, "look_at_join", lambda k, goal, out, program, late=False: look(k, goal, out, program))


@planted("a merge of a part is labelled a part", 70, likely=_nested)
def partial_not_labelled(patch: Patch) -> None:
    decide = join.decide

    def whole(*args: Any) -> Any:
        found = decide(*args)
        return found if found is join.JoinVerdict.WAIT else join.JoinVerdict.MET

    patch.setattr(lifecycle, "decide", whole)


# -- hedges --------------------------------------------------------------------------------------------------------------


@planted("a call is asked twice only when it has waited as long as the user said", likely=_hedged)
def hedged_at_once(patch: Patch) -> None:
    look = hedging.look

    def soon(k: Any, out: Any) -> None:
        for key in k.unhedged:
            k.unhedged[key] = k.at_s
        look(k, out)

    patch.setattr(hedging, "look", soon)


@planted("the loser of a hedge is told to stop", likely=_hedged)
def loser_goes_on(patch: Patch) -> None:
    leave = lifecycle.leave_call

    def alone(k: Any, goal: Any, out: Any) -> None:
        goal.hedge = 0
        leave(k, goal, out)

    patch.setattr(lifecycle, "leave_call", alone)
    patch.setattr(attempts, "leave_call", alone)


@planted("both sides of a hedge are paid, so both are charged", 183, likely=_hedged)
def loser_is_free(patch: Patch) -> None:
    assume = attempts.assume
    patch.setattr(
        attempts,
        "assume",
        lambda k, flight, awaited: assume(k, flight, awaited) if awaited else k.ledger.release(flight.charge),
    )


@planted("one side of a hedge that fails leaves the goal to the other", 296, likely=_hedged)
def failure_of_one_fails_both(patch: Patch) -> None:
    patch.setattr(hedging, "other_of", lambda k, flight: None)
