"""Reaction to rounds without progress: continue, reframe the task, or stop."""

from enum import StrEnum

import msgspec


class StagnationPolicy(msgspec.Struct, frozen=True):
    """Bounds on rounds without progress. Raises ``ValueError`` for invalid numbers."""

    quiet_rounds: int = 3
    """Consecutive rounds without progress before the task is reframed or stopped."""
    reframes: int = 1
    """Number of reframings in one run of work before it is stopped."""

    def __post_init__(self) -> None:
        if self.quiet_rounds < 1:
            raise ValueError(f"quiet_rounds must be 1 or more, not {self.quiet_rounds}")
        if self.reframes < 0:
            raise ValueError(f"reframes must be 0 or more, not {self.reframes}")


class StagnationStep(StrEnum):
    """Next step of the work."""

    GO_ON = "go on"
    """Continue with the next round."""
    REFRAME = "reframe"
    """Frame the task differently."""
    STOP = "stop"
    """End the work."""


def next_step(quiet: int, reframed: int, patience: StagnationPolicy) -> StagnationStep:
    """Return the next step after ``quiet`` consecutive rounds without progress since the last of ``reframed``
    framings.
    """
    if quiet < patience.quiet_rounds:
        return StagnationStep.GO_ON
    return StagnationStep.REFRAME if reframed < patience.reframes else StagnationStep.STOP
