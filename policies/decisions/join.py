"""Has a goal that waits for its children waited long enough?"""

import enum
from typing import Final, Literal

import msgspec

JoinKind = Literal["all", "any", "majority", "quorum"]
_KINDS: Final = ("all", "any", "majority", "quorum")


class Join(msgspec.Struct, frozen=True):
    """How many children must be resolved, and until when. Raises ValueError, one line, for what is no
    join."""

    kind: JoinKind = "all"
    n: int = 0
    """For `quorum`: how many. Unused by the others."""
    deadline_s: float | None = None
    """Seconds from the moment the wait begins; None waits until every child has ended."""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"a join is one of {', '.join(_KINDS)}, not {self.kind!r}")
        if (self.kind == "quorum") != (self.n > 0):
            raise ValueError(f"n belongs to a quorum and is 1 or more there; not {self.kind} with {self.n}")
        if self.deadline_s is not None and not 0 <= self.deadline_s < float("inf"):
            raise ValueError(f"the deadline of a join must be 0 s or more, not {self.deadline_s}")


class Verdict(enum.StrEnum):
    """What has become of a wait."""

    WAIT = enum.auto()  # not yet decided
    MET = enum.auto()  # enough are resolved; what still runs is not needed
    PARTIAL = enum.auto()  # over, and not met: some are resolved, and the merge is to be labelled a part
    IMPOSSIBLE = enum.auto()  # over, and nothing is resolved that could be merged


def needed(join: Join, total: int) -> int:
    """How many of `total` children must be resolved."""
    if join.kind == "all":
        return total
    if join.kind == "any":
        return 1
    if join.kind == "majority":
        return total // 2 + 1
    return join.n


def decide(join: Join, total: int, resolved: int, failed: int, deadline_passed: bool = False) -> Verdict:
    """What has become of a wait for `total` children, of which some are resolved and some have failed.

    A join that can no longer be met in full still waits for the children that run, up to its deadline: its
    merge is then as large a part as can be had. One that is met on the stroke of its deadline is met.
    Raises ValueError for counts that contradict each other.
    """
    if min(total, resolved, failed) < 0 or resolved + failed > total:
        raise ValueError(f"{resolved} resolved and {failed} failed of {total} children")
    if resolved >= needed(join, total):
        return Verdict.MET
    if resolved + failed < total and not deadline_passed:
        return Verdict.WAIT
    return Verdict.PARTIAL if resolved else Verdict.IMPOSSIBLE
