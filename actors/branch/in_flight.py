"""One call under way at a branch, and its times by the branch's own clock."""

from __future__ import annotations

import asyncio

import msgspec

from actors.branch.outcome_counters import OutcomeCounter
from cortex.state import commands
from policies.failures.failure import Failure, FailureKind

_NEVER_S = float("inf")


class InFlightCall(msgspec.Struct, eq=False):
    """Taken at ``taken_s``; its time begins at ``begun_s``: nothing counts for which it was queued."""

    job: str
    family: str
    """The job that its user started, whose credential it is made with."""
    call: commands.Call
    taken_s: float
    within: bool = False
    """Whether its prompt is known to be within M; else that is looked at before it is sent."""
    begun_s: float = _NEVER_S
    """When its time began; again, where its prompt had to be counted first."""
    count: OutcomeCounter | None = None
    """Where it is counted, from the moment at which its request goes out."""
    task: asyncio.Task[None] | None = None
    verdict: FailureKind | None = None
    """Why its request was cancelled, if it was; ``stop_s`` says when."""
    stop_s: float = 0.0
    streamed: int = 0
    """How much of its answer is here, in the model's own count: a long answer that grows is no stall."""

    def see(self, streamed: int) -> None:
        """More of the answer has come."""
        self.streamed = streamed

    @property
    def deadline_s(self) -> float:
        """When its time is over."""
        return self.begun_s + self.call.timeout_s

    def elapsed_s(self, now_s: float) -> float:
        """How long it has been going on; 0 before it began."""
        return max(0.0, now_s - self.begun_s)

    def stopped(self, now_s: float) -> Failure:
        """What became of it, where it was asked to stop."""
        assert self.verdict is not None
        said = "the deadline of the attempt passed" if self.verdict == FailureKind.TIMED_OUT else "abandoned"
        return Failure(self.verdict, f"{said} after {self.elapsed_s(now_s):.1f} s")


def goes_on(task: asyncio.Task[None]) -> None:
    """The call that it made was asked to stop; the task itself makes others."""
    while task.uncancel() > 0:
        pass
