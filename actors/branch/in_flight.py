"""Call under way at a branch, with its times by the branch's clock."""

from __future__ import annotations

import asyncio

import msgspec

from actors.branch.outcome_counters import OutcomeCounter
from cortex.state import commands
from policies.failures.failure import Failure, FailureKind

_NEVER_S = float("inf")


class InFlightCall(msgspec.Struct, eq=False):
    """Call that was taken at ``taken_s`` and began at ``begun_s``; its time in the queue does not count."""

    job: str
    family: str
    """Job that the user started, whose credential is used."""
    call: commands.Call
    taken_s: float
    within: bool = False
    """True if the prompt is known to be within M; otherwise the prompt is checked before it is sent."""
    begun_s: float = _NEVER_S
    """Time of the begin; set again if the prompt had to be counted first."""
    count: OutcomeCounter | None = None
    """Counter of the attempt, from the moment when its request is sent."""
    task: asyncio.Task[None] | None = None
    verdict: FailureKind | None = None
    """Reason for the cancellation at ``stop_s``; None: not cancelled."""
    stop_s: float = 0.0
    streamed: int = 0
    """Size of the answer so far, in the model's own unit: a long answer that grows is no stall."""

    def see(self, streamed: int) -> None:
        """Note the size of the answer so far."""
        self.streamed = streamed

    @property
    def deadline_s(self) -> float:
        """Time at which the attempt ends."""
        return self.begun_s + self.call.timeout_s

    def elapsed_s(self, now_s: float) -> float:
        """Return the seconds since the begin; 0 before it."""
        return max(0.0, now_s - self.begun_s)

    def stopped(self, now_s: float) -> Failure:
        """Return the failure of a cancelled call."""
        assert self.verdict is not None
        text = "the deadline of the attempt passed" if self.verdict == FailureKind.TIMED_OUT else "abandoned"
        return Failure(self.verdict, f"{text} after {self.elapsed_s(now_s):.1f} s", sent=self.count is not None)


def goes_on(task: asyncio.Task[None]) -> None:
    """Clear the task's cancellation, which was meant for its call: the task goes on with other calls."""
    while task.uncancel() > 0:
        pass
