"""Events that the scheduler receives, and commands that it gives.

Every event carries the time at which it was received, in seconds of one clock that never goes back. Subjects are named
by role and slot, ``branch:3``, ``worker:0``, ``channel:job``; in a breaker's move, tools are ``tool:name``, nodes
``node:name`` and routes ``route:name``.
"""

from __future__ import annotations

import msgspec

from cortex.scheduler.reports import Claims, Grant, ProgressReport
from policies.limits.limit import PoolCaps
from policies.limits.tenancy import TenantShare


class SchedulerStarted(msgspec.Struct, frozen=True):
    """The scheduler started, as the incarnation ``cortex``. ``again``: an earlier incarnation may have granted leases.

    ``again`` also means that branches and workers may be alive: each is reported soon as ``MemberStarted`` or
    ``MemberDied``.
    """

    at_s: float
    cortex: str
    again: bool = False


class AllRejoined(msgspec.Struct, frozen=True):
    """Every live channel has joined after a restart: there is nothing left to wait for."""

    at_s: float


class ChannelJoined(msgspec.Struct, frozen=True):
    """A channel requests or renews its share. It always gets one grant for each claim."""

    at_s: float
    claims: Claims


class JobLeft(msgspec.Struct, frozen=True):
    """A job ended: nothing of it is in flight any more. A job that was resumed since continues, because the event may
    be late.
    """

    at_s: float
    job: str
    epoch: int


class MemberReported(msgspec.Struct, frozen=True):
    """A branch or worker reported its progress."""

    at_s: float
    report: ProgressReport


class MemberStarted(msgspec.Struct, frozen=True):
    """A branch or worker is alive: started as ordered, or found by a restarted scheduler."""

    at_s: float
    subject: str
    node: str
    incarnation: str = ""


class PingAnswered(msgspec.Struct, frozen=True):
    """A member that was pinged answered."""

    at_s: float
    subject: str


class PingUnanswered(msgspec.Struct, frozen=True):
    """A member that was pinged did not answer."""

    at_s: float
    subject: str


class MemberDied(msgspec.Struct, frozen=True):
    """A branch, worker or channel ended: died, was killed, was retired, or could not be started.

    ``gone``: its end is certain. A member that cannot be reached may return: then ``gone`` is False, and the event is
    repeated when its end is certain.
    """

    at_s: float
    subject: str
    node: str = ""
    gone: bool = True


class PoolCapped(msgspec.Struct, frozen=True):
    """An operator set caps on a pool (the name of a pool or route), replacing earlier ones; ``PoolCaps()`` removes
    them.
    """

    at_s: float
    who: str
    pool: str
    caps: PoolCaps


class PoolForgotten(msgspec.Struct, frozen=True):
    """An operator drops what was learned about the limits of a pool (the name of a pool or route)."""

    at_s: float
    who: str
    pool: str


class AccountShared(msgspec.Struct, frozen=True):
    """Other clusters draw on the same accounts. ``share``: what this cluster may use of a pool, until ``until_s``.

    Without a pool's name the event says only that accounts are shared; a pool without a reported share may not be used.
    """

    at_s: float
    pool: str = ""
    share: TenantShare = TenantShare()
    until_s: float = 0.0


class DrainMember(msgspec.Struct, frozen=True):
    """A node (by its name), branch or worker shall finish what it has in flight, and get nothing more."""

    at_s: float
    who: str
    subject: str


class NodesChanged(msgspec.Struct, frozen=True):
    """The live nodes changed."""

    at_s: float
    names: tuple[str, ...]
    cores: int = 0
    """Cores of all nodes together: upper bound of branches, and of workers. 0: the bounds are unchanged."""
    hosts: dict[str, str] = {}
    """Names of their pods or hosts, by node."""
    ended: tuple[str, ...] = ()
    """Nodes that were ended on purpose: a missing node that is not among them is lost."""
    now_s: float = 0.0
    """Unix time of the change."""
    lost: dict[str, tuple[str, float]] = {}
    """Nodes that were lost before this incarnation of the scheduler began, the earliest first: host and Unix time."""


class ToolRunRequested(msgspec.Struct, frozen=True):
    """A job asks whether a run of this tool may begin."""

    at_s: float
    job: str
    tool: str


class ToolRunReturned(msgspec.Struct, frozen=True):
    """A run that may begin, by ``AdmitToolRun`` of this generation, has not begun, and no worker will report of it."""

    at_s: float
    tool: str
    generation: int


class TimePassed(msgspec.Struct, frozen=True):
    """Time passed: sent when ``due_at_s`` has come."""

    at_s: float


Event = (
    SchedulerStarted
    | AllRejoined
    | ChannelJoined
    | JobLeft
    | MemberReported
    | MemberStarted
    | PingAnswered
    | PingUnanswered
    | MemberDied
    | PoolCapped
    | PoolForgotten
    | AccountShared
    | DrainMember
    | NodesChanged
    | ToolRunRequested
    | ToolRunReturned
    | TimePassed
)


class PingMember(msgspec.Struct, frozen=True):
    """Ask a member whether it is alive; answered by ``PingAnswered`` or ``PingUnanswered``."""

    subject: str


class KillMember(msgspec.Struct, frozen=True):
    """End a member by force; answered by ``MemberDied``. A restart is a command of its own."""

    subject: str
    why: str


class StartMember(msgspec.Struct, frozen=True):
    """Start a branch or worker, not on the nodes in ``avoid``; answered by ``MemberStarted`` or ``MemberDied``."""

    role: str
    name: str
    avoid: tuple[str, ...] = ()


class RetireMember(msgspec.Struct, frozen=True):
    """End a member gently: it takes no new call, and ends when it is empty; answered by ``MemberDied``."""

    name: str


class MembersChanged(msgspec.Struct, frozen=True):
    """Members that take work from now on; sent to every channel, and to each that joins later."""

    branches: tuple[str, ...]
    workers: tuple[str, ...]


class StopJob(msgspec.Struct, frozen=True):
    """Stop a job whose channel keeps dying, with the reason. It can be resumed when the cause is found."""

    job: str
    story: str


class BreakerMoved(msgspec.Struct, frozen=True):
    """A breaker changed its state; for its mirror and for telemetry. ``subject`` is ``route:…``, ``tool:…`` or
    ``node:…``.
    """

    subject: str
    old: str
    new: str
    why: str


class AdmitToolRun(msgspec.Struct, frozen=True):
    """Answer to ``ToolRunRequested``: the run may begin in this generation of the tool's breaker, or must ask again
    later.
    """

    job: str
    tool: str
    go: bool
    wait_s: float = 0.0
    generation: int = 0


Command = (
    Grant
    | PingMember
    | KillMember
    | StartMember
    | RetireMember
    | MembersChanged
    | StopJob
    | BreakerMoved
    | AdmitToolRun
)
