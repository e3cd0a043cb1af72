"""After so many rounds without progress: go on, frame the task differently, or stop?"""

from enum import StrEnum

import msgspec


class Patience(msgspec.Struct, frozen=True):
    """How long to look on. Raises ``ValueError`` for numbers that make no sense."""

    quiet_rounds: int = 3
    """Rounds in a row without progress before something is done about it."""
    reframes: int = 1
    """How often that is an altered framing, in one run of work, before it is the end."""

    def __post_init__(self) -> None:
        if self.quiet_rounds < 1:
            raise ValueError(f"quiet_rounds must be 1 or more, not {self.quiet_rounds}")
        if self.reframes < 0:
            raise ValueError(f"reframes must be 0 or more, not {self.reframes}")


class Step(StrEnum):
    """What to do next."""

    GO_ON = "go on"
    REFRAME = "reframe"
    STOP = "stop"


def next_step(quiet: int, reframed: int, patience: Patience) -> Step:
    """``quiet``: rounds in a row without progress, since the last framing; ``reframed``: framings tried."""
    if quiet < patience.quiet_rounds:
        return Step.GO_ON
    return Step.REFRAME if reframed < patience.reframes else Step.STOP
