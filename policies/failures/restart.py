"""Supervision: restart or escalation after a death, and probing or killing of silent and overdue subjects.

Restarts follow a declared spec of bounded intensity and then escalate, as in the supervisors of Erlang/OTP
(https://www.erlang.org/doc/system/sup_princ.html, "Maximum Restart Intensity").
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Restart spec of a subject. Raises ValueError, in one line, for a value that makes no sense."""

    restarts_max: int = 3
    """Restarts within `period_s` without progress between them; the next death escalates."""
    period_s: float = 60.0
    """Seconds over which deaths are counted."""
    backoff_s: float = 1.0
    """Seconds before the second restart, doubled with each further one. The first restart is immediate."""
    backoff_max_s: float = 15.0
    """Longest wait before a restart, in seconds."""
    grace_s: float = 5.0
    """Seconds between asking a subject to stop and killing it."""
    stale_s: float = 10.0
    """Seconds of silence after which a subject is asked whether it is alive."""
    kills_per_tick: int = 1
    """Kills per tick: a judgement that many subjects are dead at once is more likely wrong than right."""
    delayed_share: float = 0.5
    """Share of subjects on one path that are silent together from which the path counts as delayed, not the subjects as
    dead."""
    lag_max_s: float = 2.0
    """Seconds of the observer's own absence from which its view of silence is not trusted."""

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
"""Spec of branches and workers. Escalates to their node, which takes no branch or worker for a while."""
CHANNEL: Final = RestartPolicy(restarts_max=4, period_s=120.0)
"""Spec of channels. Escalates to the job, which stops with the reason, to be resumed when the cause is found."""


class RestartVerdict(msgspec.Struct, frozen=True):
    """Decision about a dead subject."""

    escalate: bool
    """True to escalate, False to restart."""
    wait_s: float
    """Seconds before the restart."""
    why: str
    """Reason, for people."""


def decide(policy: RestartPolicy, deaths: Sequence[float], at_s: float) -> RestartVerdict:
    """Decide between restart and escalation.

    `deaths` are the times since the subject last made progress, in order, the last one its newest death, in seconds.
    Progress is settled work. A subject that makes progress between deaths continues, however often it dies; one without
    progress would die forever.
    """
    recent = sum(death_s > at_s - policy.period_s for death_s in deaths)
    text = f"died {recent} times in {policy.period_s:.0f} s without progress" if recent > 1 else "died"
    if recent > policy.restarts_max:
        return RestartVerdict(True, 0.0, text)
    doublings = min(max(recent - 2, 0), 32)
    return RestartVerdict(
        False, 0.0 if recent < 2 else min(policy.backoff_s * (1 << doublings), policy.backoff_max_s), text
    )


def remembered(policy: RestartPolicy, deaths: Sequence[float], at_s: float) -> list[float]:
    """Return the deaths that can still count; at most as many as escalate."""
    return [death_s for death_s in deaths if death_s > at_s - policy.period_s][-policy.restarts_max - 1 :]


class EscalationStep(enum.StrEnum):
    """Escalation ladder. Before it, a call's own deadline has asked the attempt to stop."""

    NONE = enum.auto()
    """Do nothing."""
    ASK = enum.auto()
    """Ask the subject directly whether it is alive."""
    KILL = enum.auto()
    """Kill, and restart under a new incarnation."""


def rung(
    policy: RestartPolicy,
    silent_s: float,
    overdue_s: float,
    unanswered: bool,
    path_delayed: bool,
    kills_left: int,
) -> EscalationStep:
    """Return the step on the ladder for one subject.

    `overdue_s`: by how much its most overdue attempt, according to its newest report, is past its deadline; beyond
    `grace_s`, asking it to stop did not help. `silent_s`: seconds since its last report. `unanswered`: it was asked and
    did not answer. A missing report kills nothing while the path is delayed, or before the subject was asked.
    """
    stuck = overdue_s > policy.grace_s and silent_s < policy.stale_s
    gone = silent_s >= policy.stale_s + policy.grace_s and unanswered and not path_delayed
    if stuck or gone:
        return EscalationStep.KILL if kills_left > 0 else EscalationStep.NONE
    return EscalationStep.ASK if silent_s >= policy.stale_s else EscalationStep.NONE


def path_delayed(policy: RestartPolicy, silent: int, subjects: int, lag_s: float) -> bool:
    """Return True if the path is delayed, rather than one of the `subjects` observed over it (of a node, or all) dead.

    `silent` of the `subjects` are silent; `lag_s` is how long the observer itself was absent. A single subject may be
    dead.
    """
    return lag_s > policy.lag_max_s or (silent > 1 and silent >= policy.delayed_share * subjects)
