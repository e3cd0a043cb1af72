"""Watch over restarts: a member is given up only after the specified number of deaths.

The watch counts lives that ended, by name and by node, and epochs that began; never what the scheduler remembers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cortex.scheduler.job_families import spoken_for
from cortex.scheduler.protocol import BreakerMoved, StopJob
from cortex.scheduler.state import SchedulerState
from policies.failures.breaker import BreakerState
from tests.simulation.invariants import Observer, Watch
from tests.simulation.loop import Life

LATE_S = 30.0
"""Seconds after the end of a life in which a cortex must learn of it."""


class StaffWatch(Observer):
    """Observer of lives, of epochs, and of the steps of every cortex."""

    def __init__(self, watch: Watch, world: Any) -> None:
        self._watch, self._world, self._loop = watch, world, world.loop
        self._ended: dict[str, list[float]] = defaultdict(list)
        """By node: times at which branches and workers ended."""
        self._epochs: dict[str, list[float]] = defaultdict(list)
        """By job: times at which its epochs began."""

    def died(self, life: Life) -> None:
        """A life has ended, or is thought to have ended."""
        if life.name.startswith(("branch:", "worker:")):
            self._ended[life.node.name].append(self._loop.time())

    def took(self, job: str, epoch: int) -> None:
        """An epoch begins. Each but the first follows a death, or a returning driver."""
        self._epochs[job].append(self._loop.time())

    def stepped(self, state: SchedulerState, event: Any, out: list[Any]) -> None:
        """Check decisions to give up a job or node."""
        for order in out:
            if isinstance(order, StopJob):
                policy = state.settings.channel
                deaths = self._since(self._epochs[spoken_for(order.job)], policy.period_s)
                if deaths < policy.restarts_max:
                    self._watch.say(f"{order.job} is condemned ({order.story}), {deaths} epochs of it began lately")
            elif isinstance(order, BreakerMoved) and (order.old, order.new) == (BreakerState.CLOSED, BreakerState.OPEN):
                self._opened(state, order)

    def _opened(self, state: SchedulerState, order: BreakerMoved) -> None:
        kind, _, node = order.subject.partition(":")
        if kind != "node":
            return
        policy = state.settings.node
        deaths = self._since(self._ended[node], policy.window_s)
        if deaths < min(policy.volume_min, state.settings.restart.restarts_max + 1):
            self._watch.say(f"{node} is taken out ({order.why}), {deaths} branches and workers ended there lately")

    def _since(self, times_s: list[float], period_s: float) -> int:
        return sum(at_s > self._loop.time() - period_s - LATE_S for at_s in times_s)
