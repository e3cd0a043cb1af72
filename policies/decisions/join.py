"""Joins: whether a goal that waits for its children has waited long enough."""

import enum
from typing import Final, Literal

import msgspec

JoinKind = Literal["all", "any", "majority", "quorum"]
"""Kind of a join."""
_KINDS: Final = ("all", "any", "majority", "quorum")


class Join(msgspec.Struct, frozen=True):
    """Number of children that must be resolved, and the deadline. Raises ValueError, in one line, for an invalid
    join.
    """

    kind: JoinKind = "all"
    """Children that must be resolved: ``all``, ``any`` one, a ``majority``, or a ``quorum`` of ``n``."""
    n: int = 0
    """Number of children for `quorum`; must be 0 for the other kinds."""
    deadline_s: float | None = None
    """Seconds from the moment the wait begins; None waits until every child has ended."""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"a join is one of {', '.join(_KINDS)}, not {self.kind!r}")
        if (self.kind == "quorum") != (self.n > 0):
            raise ValueError(f"n must be 1 or more for a quorum and 0 for other joins; not {self.n} for {self.kind}")
        if self.deadline_s is not None and not 0 <= self.deadline_s < float("inf"):
            raise ValueError(f"the deadline of a join must be 0 s or more, not {self.deadline_s}")


class JoinVerdict(enum.StrEnum):
    """State of a wait."""

    WAIT = enum.auto()
    """Not yet decided."""
    MET = enum.auto()
    """Enough children are resolved; children that still run are not needed."""
    PARTIAL = enum.auto()
    """Over and not met: some children are resolved, and the merge must be labelled partial."""
    IMPOSSIBLE = enum.auto()
    """Over, and no child is resolved."""


def needed(join: Join, total: int) -> int:
    """Return how many of `total` children must be resolved."""
    if join.kind == "all":
        return total
    if join.kind == "any":
        return 1
    if join.kind == "majority":
        return total // 2 + 1
    return join.n


def decide(join: Join, total: int, resolved: int, failed: int, deadline_passed: bool = False) -> JoinVerdict:
    """Return the state of a wait for `total` children, of which some are resolved and some have failed.

    A join that can no longer be met in full still waits for running children, up to its deadline, so that its partial
    merge is as large as possible. A join that is met at the moment of its deadline is met. Raises ValueError for counts
    that contradict each other.
    """
    if min(total, resolved, failed) < 0 or resolved + failed > total:
        raise ValueError(f"{resolved} resolved and {failed} failed of {total} children")
    if resolved >= needed(join, total):
        return JoinVerdict.MET
    if resolved + failed < total and not deadline_passed:
        return JoinVerdict.WAIT
    return JoinVerdict.PARTIAL if resolved else JoinVerdict.IMPOSSIBLE
