"""Watch over time limits of a job: its deadline, the timeouts of its rows, and hedges.

Times are those of turns, by the job's clock, which nobody sets; deadlines are read from the wall clock of the channel's
node. If no turn is taken though one is due, the world's clock applies.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from typing import Any

import msgspec

from actors.messaging.answer_bounds import ANSWER_S
from actors.messaging.answer_bounds import LOOK_S as PROCESS_LOOK_S
from cortex.state import commands, events
from cortex.state.commands import LaunchChildJob
from cortex.state.state import ENDED, State
from cortex.values.limits import Limits
from tests.simulation.invariants import JobWatch, Observer, Watch, awake
from tests.simulation.mini_driver import LOOK_S
from tests.simulation.provider import spoken

IN_TIME_S = 8.0
"""Seconds after which a channel that lives throughout must have handled a due event."""
HOME_S = 15.0
"""Seconds beyond its timeout that a call may take to return: grace, sweeps, deaths of branches."""
DEAF_S = ANSWER_S + LOOK_S
"""Seconds that the driver of the simulation may stand still, at most: nobody answers its question to a channel that has
died. That of users asks for results in a task of its own, and sends credentials to new branches meanwhile."""
ANSWERED_S = ANSWER_S + PROCESS_LOOK_S
"""Seconds until a channel learns that a process which it has asked about a batch has ended, at most."""
CLOCK_S = 25.0
"""Seconds that a turn may be on disk later than it was taken, at most: its channel may stand still meanwhile."""
_TIMED_OUT = b"deadline passed before it was met"


class _Times:
    """Records of one job."""

    def __init__(self) -> None:
        self.out: dict[tuple[int, int], float] = {}
        """Begin of each call under way."""
        self.abandoned: set[tuple[int, int]] = set()
        self.launched: set[int] = set()
        """Goals whose child job was begun: a restarted channel joins the child again."""
        self.longest_s = 0.0
        self.first_s: dict[str, float] = {}
        """By row: time of its first attempt."""
        self.began_s: dict[int, float] = {}
        """By goal: begin of its timeout, as far as no pause has stopped it."""
        self.due: list[tuple[float, int]] = []
        self.alive_s = 0.0
        """Time since which its channel has lived without a break, by the world's clock."""
        self.passed_s = 0.0
        """Deadline that has passed by the clock of some turn: it stays passed, though the clock is set back."""
        self.over_s = math.inf
        """Time since which its deadline has passed by the clock of its node, by the world's clock."""
        self.excused_s = 0.0
        """Time, by the world's clock, at which a branch lacked a credential last, since its driver stood still, or a child
        job its staff."""
        self.last_s = (0.0, 0.0)
        """Time of the last turn, by the job's clock and by the world's."""
        self.ahead_s: float | None = None
        """Difference of the two in the first turn since the machine was started: how long it had no power, only its
        clock of wall time tells, and somebody may have set that."""
        self.boots = 0
        """Number of starts of the machine by then."""


class TimeWatch(Observer):
    """Observer of turns, with a periodic check."""

    by_turns = True

    def __init__(self, watch: Watch, world: Any, epoch_s: float) -> None:
        self._watch, self._world, self._loop, self._epoch_s = watch, world, world.loop, epoch_s
        self._times: dict[str, _Times] = defaultdict(_Times)

    def lost(self, record: JobWatch, gone: list[list[commands.Command]]) -> None:
        """Forget a job."""
        self._times.pop(record.name, None)

    def rebuilt(self, record: JobWatch) -> None:
        """Begin anew: the turns that are left were taken long ago."""
        times = self._times[record.name]
        times.alive_s, times.ahead_s = self._loop.time(), None

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""
        k = record.k
        assert k is not None
        limits = k.terms.limits
        self._runs(record.name, turn)
        if limits.deadline_at_s is not None:
            self._deadline(record, limits.deadline_at_s, turn.wall_s, out)
        if k.terms.streams and (limits.hedge_after_s is not None or limits.goal_timeout_s is not None):
            times = self._times[record.name]
            self._home(record, times, turn, out)
            for command in out:
                if type(command) is commands.Call:
                    self._call(record, times, command, turn.at_s)
                elif (
                    type(command) is commands.EmitResult
                    and isinstance(command.value, bytes)
                    and _TIMED_OUT in command.value
                ):
                    self._failed(record, times, command.value, turn.at_s)
            if limits.goal_timeout_s is not None:
                self._rows(record, times, turn)

    def _runs(self, name: str, turn: events.Turn) -> None:
        """Check that the job's clock runs as the world's does, whatever the clocks of nodes are set to, and that the
        turn tells the time by the clock of its node."""
        times, now_s, at_s = self._times[name], self._loop.time(), turn.at_s
        node = self._world.nodes[0]  # that of all channels
        off_s = self._epoch_s + now_s + node.wall_offset_s - turn.wall_s
        if now_s - node.set_s > CLOCK_S and abs(off_s) > CLOCK_S:
            self._watch.say(f"{name}: a turn tells a time that is {off_s:.0f} s off the clock of its node")
        if times.ahead_s is None or times.boots != node.boots:
            times.ahead_s, times.boots = at_s - now_s, node.boots
        if at_s - now_s > times.ahead_s + CLOCK_S:
            self._watch.say(f"{name}: its clock has leapt ahead by {at_s - now_s - times.ahead_s:.0f} s")
        times.last_s = at_s, now_s

    # -- the job's deadline --------------------------------------------------------------------------------------------

    def _deadline(self, record: JobWatch, deadline_s: float, at_s: float, out: list[commands.Command]) -> None:
        k = record.k
        assert k is not None
        times = self._times[record.name]
        begun: list[commands.Command] = [
            one for one in out if isinstance(one, (commands.Call, commands.StartToolRun, commands.SubmitBatch))
        ]
        for one in out:
            if type(one) is commands.LaunchChildJob and one.goal not in times.launched:
                times.launched.add(one.goal)
                begun.append(one)
        for call in begun:
            if type(call) is commands.Call:
                times.longest_s = max(times.longest_s, call.timeout_s)
        if at_s >= deadline_s:
            times.passed_s = deadline_s
        over = times.passed_s == deadline_s
        if begun and over:
            self._watch.say(f"{record.name} begins something {at_s - deadline_s:.3f} s after its deadline")
        if over and not k.outcome and not k.flights and not k.errands and not k.submissions:
            self._watch.say(
                f"{record.name} goes on {at_s - deadline_s:.3f} s after its deadline, with nothing under way"
            )
        if k.why.startswith("deadline") and not over:
            self._watch.say(f"{record.name} ended for its deadline, {deadline_s - at_s:.3f} s before it")

    # -- rows and hedges -----------------------------------------------------------------------------------------------

    def _home(self, record: JobWatch, times: _Times, turn: events.Turn, out: list[commands.Command]) -> None:
        """Note the calls that ended, and check that the other attempt of an answered question is abandoned."""
        entries = {(one.goal, one.attempt) for one in out if type(one) is commands.AbandonAttempt}
        assert record.k is not None
        for batch in turn.batches:
            for event in batch:
                if isinstance(event, (events.Answered, events.AttemptFailed, events.GivenBack)):
                    was_out = times.out.pop((event.goal, event.attempt), None)
                    if type(event) is events.Answered and was_out is not None:
                        for key in self._others(times, event.goal):
                            if key not in entries and not record.k.outcome:
                                self._watch.say(
                                    f"{record.name}: goal {key[0]} is answered, attempt {key[1]} is not told to stop"
                                )
                elif isinstance(event, (events.Rejoined, events.ReplyRecalled)):
                    held = {(flight.goal, flight.attempt) for flight in record.k.flights.values()}
                    times.out = {key: at_s for key, at_s in times.out.items() if key in held}
                elif type(event) is events.Resumed:
                    times.began_s.clear()
        times.abandoned |= entries
        if record.k.outcome:
            times.out.clear()

    def _others(self, times: _Times, goal: int) -> list[tuple[int, int]]:
        return [key for key in times.out if key[0] == goal and key not in times.abandoned]

    def _call(self, record: JobWatch, times: _Times, call: commands.Call, at_s: float) -> None:
        assert record.k is not None
        limits = record.k.terms.limits
        others = self._others(times, call.goal)
        if others:
            self._hedge(record, times, limits, call, others, at_s)
        times.out[call.goal, call.attempt] = at_s
        times.first_s.setdefault(_row(call), at_s)
        if limits.goal_timeout_s is not None and call.goal not in times.began_s:
            times.began_s[call.goal] = at_s
            heapq.heappush(times.due, (at_s + limits.goal_timeout_s, call.goal))

    def _hedge(
        self,
        record: JobWatch,
        times: _Times,
        limits: Limits,
        call: commands.Call,
        others: list[tuple[int, int]],
        at_s: float,
    ) -> None:
        say, after_s = self._watch.say, limits.hedge_after_s
        if after_s is None or len(others) > 1:
            say(f"{record.name}: goal {call.goal} is asked again while attempts {[key[1] for key in others]} are out")
        elif at_s < times.out[others[0]] + after_s - 1e-6:
            say(
                f"{record.name}: goal {call.goal} is asked twice after {at_s - times.out[others[0]]:.3f} s, not {after_s}"
            )

    def _failed(self, record: JobWatch, times: _Times, value: bytes, at_s: float) -> None:
        assert record.k is not None
        key, timeout_s = msgspec.json.decode(value)["custom_id"], record.k.terms.limits.goal_timeout_s
        if timeout_s is None or at_s < times.first_s[key] + timeout_s - 1e-6:
            self._watch.say(
                f"{record.name}: row {key} has failed for its timeout {at_s - times.first_s[key]:.3f} s after it began"
            )

    def _rows(self, record: JobWatch, times: _Times, turn: events.Turn) -> None:
        k = record.k
        assert k is not None
        if k.paused is not None:
            times.began_s.clear()  # a pause stops the clocks
        for goal, at_s in self._overdue(record, times, turn.at_s):
            self._watch.say(f"{record.name}: goal {goal} lives on {turn.at_s - at_s:.3f} s after its clock began")

    def _overdue(self, record: JobWatch, times: _Times, at_s: float) -> list[tuple[int, float]]:
        """Return goals that live though their time is over, and the begin of their clocks."""
        k = record.k
        assert k is not None
        timeout_s = k.terms.limits.goal_timeout_s
        assert timeout_s is not None
        found = []
        while times.due and times.due[0][0] <= at_s:
            due_s, goal = heapq.heappop(times.due)
            began_s = times.began_s.get(goal)
            if began_s is None or began_s + timeout_s != due_s:
                continue
            now = k.goals.get(goal)
            if now is not None and now.status not in ENDED and not k.outcome:
                found.append((goal, began_s))
        return found

    # -- events that are due
    # -------------------------------------------------------------------------------------------------

    def _calls_below(self, name: str) -> bool:
        """Return whether a job, or a child job for which it waits, has calls in flight."""
        below = f"{name}~"
        each = [record.k for other, record in self._watch.jobs.items() if other == name or other.startswith(below)]
        return any(k is not None and not k.outcome and bool(k.flights) for k in each)

    def _child_hangs(self, name: str) -> bool:
        """Return whether the channel of a child job is suspended: it has not told its end to the job that waits."""
        below = f"channel:{name}~"
        return any(each.frozen for at, each in self._world.lives.items() if at.startswith(below))

    def _child_waits_for_staff(self, name: str) -> bool:
        """Return whether the channel of a child job has not begun yet while a branch hangs: a cortex that was started
        meanwhile answers for its staff once that branch was found (`actors.scheduler.supervisor.BIRTH_S`)."""
        lives = self._world.lives
        children = (life for at, life in lives.items() if at.startswith(f"channel:{name}~") and not life.halted)
        hangs = any(life.frozen for at, life in lives.items() if at.startswith("branch:"))
        return hangs and any("_k" not in vars(life.seat._actor) for life in children)

    def _lacks_credential(self) -> bool:
        """Return whether questions can stay open for ever, and a branch has calls that wait for a credential."""
        branches = (life for at, life in self._world.lives.items() if at.startswith("branch:") and not life.halted)
        return self._world.plan.endless > 0 and any(life.seat._actor._credentials.waiting for life in branches)

    def _asks_a_child(self, k: State) -> bool:
        """Return whether questions can stay open for ever, and a job asks a child job for its end: as long as for any
        other answer (``answer_bounds.ANSWER_S``)."""
        return self._world.plan.endless > 0 and any(isinstance(each.command, LaunchChildJob) for each in k.errands.values())

    def standing(self) -> None:
        """Check that no channel misses a due event."""
        now_s = self._loop.time()
        for name, record in self._watch.jobs.items():
            k, times = record.k, self._times[name]
            life = self._world.lives.get(f"channel:{name}")
            frozen, orders = any(each.frozen for each in self._world.lives.values()), k is not None and bool(k.submissions)
            if frozen and orders:  # an order about a batch returns once its channel has looked after the process
                times.excused_s = now_s + ANSWERED_S
            hung = frozen and (orders or self._calls_below(name))
            hung |= self._child_hangs(name)
            if self._child_waits_for_staff(name):
                hung, times.excused_s = True, now_s
            if k is None or k.outcome or life is None or life.halted or hung or not awake(life):
                times.alive_s = now_s  # what a hung branch has returns once it has been found and ended
                continue
            limits, wall_s = k.terms.limits, self._epoch_s + now_s + life.node.wall_offset_s
            if now_s - times.alive_s < IN_TIME_S:
                continue
            deadline_s = limits.deadline_at_s
            late_s = IN_TIME_S
            late_s += times.longest_s + HOME_S if k.flights or k.errands else 0.0
            late_s += (
                limits.batching.submit_timeout_s if k.submissions else 0.0
            )  # calls being handed over are checked in the other watch
            over = deadline_s is not None and wall_s >= deadline_s
            times.over_s = min(times.over_s, max(now_s - wall_s + deadline_s, life.node.set_s)) if over else math.inf
            deaf = (k.flights and self._lacks_credential()) or self._asks_a_child(k)
            if now_s <= times.over_s + DEAF_S and deaf:
                times.excused_s = now_s
            if now_s > max(times.over_s, times.excused_s) + late_s:
                self._watch.say(f"{name} has not ended {now_s - times.over_s:.0f} s after its deadline")
            job_s = times.last_s[0] + now_s - times.last_s[1]
            if limits.goal_timeout_s is not None and k.paused is None:
                for goal, began_s in self._overdue(record, times, job_s - IN_TIME_S):
                    self._watch.say(f"{name}: goal {goal} lives on {job_s - began_s:.0f} s after its clock began")


def _row(call: commands.Call) -> str:
    """Return the row of a batch that a call asks."""
    words = spoken(call.body).split()
    return f"r{words[2]}" if len(words) > 2 else ""
