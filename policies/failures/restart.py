"""What died: is it started again? What is silent or late: is it asked, or killed?

Restarts follow a declared spec of bounded intensity and then escalate, as the supervisors of Erlang/OTP do
(https://www.erlang.org/doc/system/sup_princ.html, "Maximum Restart Intensity").
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The spec. Raises ValueError, one line, for a bound that makes no sense."""

    restarts_max: int = 3
    """Restarts within `period_s` with no progress between; the next death escalates."""
    period_s: float = 60.0
    backoff_s: float = 1.0
    """Wait before the second restart; it doubles with each further one. The first is at once."""
    backoff_max_s: float = 15.0
    grace_s: float = 5.0
    """What was asked to stop has so long before it is killed."""
    stale_s: float = 10.0
    """Silent for so long, a subject is asked whether it is there."""
    kills_per_tick: int = 1
    """A judgement that many are dead at once is more likely wrong than right."""
    delayed_share: float = 0.5
    """Silent together, so many on one path are the path's silence, not theirs."""
    lag_max_s: float = 2.0
    """Whoever judges and was itself away for longer has not listened."""

    def __post_init__(self) -> None:
        for name in ("restarts_max", "kills_per_tick"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("period_s", "backoff_s", "backoff_max_s", "grace_s", "stale_s", "lag_max_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 0 < self.delayed_share <= 1:
            raise ValueError(f"delayed_share must be above 0 and at most 1, not {self.delayed_share}")


BRANCH: Final = RestartPolicy()
"""Escalates to its node, which takes no branch or worker for a while. So does a worker."""
CHANNEL: Final = RestartPolicy(restarts_max=4, period_s=120.0)
"""Escalates to its job, which stops with the story, to be resumed when the cause is found."""


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of what died."""

    escalate: bool
    wait_s: float
    """Before the restart."""
    why: str


def decide(policy: RestartPolicy, deaths: Sequence[float], at_s: float) -> Verdict:
    """Restart or escalate? `deaths` are the times since the subject last made progress, in order, the last one its
    newest death.

    Progress is settled work. What makes some between two deaths gets on, however often it is killed; what makes none
    would die for ever.
    """
    recent = sum(death_s > at_s - policy.period_s for death_s in deaths)
    told = f"died {recent} times in {policy.period_s:.0f} s without getting on" if recent > 1 else "died"
    if recent > policy.restarts_max:
        return Verdict(True, 0.0, told)
    doublings = min(max(recent - 2, 0), 32)
    return Verdict(False, 0.0 if recent < 2 else min(policy.backoff_s * (1 << doublings), policy.backoff_max_s), told)


def remembered(policy: RestartPolicy, deaths: Sequence[float], at_s: float) -> list[float]:
    """The deaths that can still count; never more than escalate."""
    return [death_s for death_s in deaths if death_s > at_s - policy.period_s][-policy.restarts_max - 1 :]


class Rung(enum.StrEnum):
    """The ladder. Below it, a call's own deadline has asked the attempt to stop."""

    NONE = enum.auto()
    ASK = enum.auto()  # ask the subject itself, past its reports, whether it is there
    KILL = enum.auto()  # and restart under a new incarnation


def rung(
    policy: RestartPolicy,
    silent_s: float,
    overdue_s: float,
    unheard: bool,
    path_delayed: bool,
    kills_left: int,
) -> Rung:
    """How far up the ladder one subject has come.

    `overdue_s`: how far, by its own newest report, its most overdue attempt is past its deadline: beyond the grace,
    asking it to stop did not help. `silent_s`: since its last report. `unheard`: it was asked and did not answer.
    Missing news kills nothing where the path itself is delayed, or where nobody has asked yet.
    """
    stuck = overdue_s > policy.grace_s and silent_s < policy.stale_s
    gone = silent_s >= policy.stale_s + policy.grace_s and unheard and not path_delayed
    if stuck or gone:
        return Rung.KILL if kills_left > 0 else Rung.NONE
    return Rung.ASK if silent_s >= policy.stale_s else Rung.NONE


def path_delayed(policy: RestartPolicy, silent: int, subjects: int, lag_s: float) -> bool:
    """Is it the path that brings no news, rather than one of the `subjects` heard over it (of a node, or of all)?

    `silent` of them are; `lag_s` is how long the listener itself was away. One of one may be dead.
    """
    return lag_s > policy.lag_max_s or (silent > 1 and silent >= policy.delayed_share * subjects)
