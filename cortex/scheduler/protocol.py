"""What the cortex hears, and what it orders: events in the past tense, commands in the imperative.

Every event carries the time at which it was heard, in seconds of one clock that never goes back. Subjects are named by
role and slot, ``branch:3``, ``worker:0``, ``channel:job``; tools ``tool:name``; nodes ``node:name`` and routes
``route:name`` where a breaker's move is told.
"""

from __future__ import annotations

import msgspec

from cortex.scheduler.reports import Claims, Grant, ProgressReport
from policies.limits.limit import PoolCaps
from policies.limits.tenancy import TenantShare


class SchedulerStarted(msgspec.Struct, frozen=True):
    """The cortex came to life, as this incarnation. ``again``: an earlier one may have granted what nobody knows here.

    ``again`` also says that branches and workers may live: each is told as ``MemberStarted`` or ``MemberDied`` before
    long.
    """

    at_s: float
    cortex: str
    again: bool = False


class AllRejoined(msgspec.Struct, frozen=True):
    """After a restart: every channel that lives has joined. There is nothing left to wait for."""

    at_s: float


class ChannelJoined(msgspec.Struct, frozen=True):
    """A channel asks for its share, or renews it. It always gets one grant for each claim."""

    at_s: float
    claims: Claims


class JobLeft(msgspec.Struct, frozen=True):
    """A job ended: nothing of it is in flight any more. One that was resumed since goes on: word of the run before may
    come late."""

    at_s: float
    job: str
    epoch: int


class MemberReported(msgspec.Struct, frozen=True):
    """A branch or a worker told what it did."""

    at_s: float
    report: ProgressReport


class MemberStarted(msgspec.Struct, frozen=True):
    """A branch or worker is there: it was started as ordered, or found alive by a cortex that came back."""

    at_s: float
    subject: str
    node: str
    incarnation: str = ""


class PingAnswered(msgspec.Struct, frozen=True):
    """It was pinged, and answered."""

    at_s: float
    subject: str


class PingUnanswered(msgspec.Struct, frozen=True):
    """It was pinged, and did not answer."""

    at_s: float
    subject: str


class MemberDied(msgspec.Struct, frozen=True):
    """A branch, worker or channel is no more; also one that was killed, was retired, or could not be started.

    ``gone``: its end is certain. A subject that cannot be reached may come back: then it is false, and the event is
    repeated when it is certain.
    """

    at_s: float
    subject: str
    node: str = ""
    gone: bool = True


class PoolCapped(msgspec.Struct, frozen=True):
    """Bounds of a pool by hand, in place of those before; ``PoolCaps()`` takes them away. A pool's or a route's
    name.
    """

    at_s: float
    who: str
    pool: str
    caps: PoolCaps


class AccountShared(msgspec.Struct, frozen=True):
    """Other clusters draw on the same accounts. ``share``: what this one may use of a pool, until a moment; of a pool
    that nobody told of, nothing. Without a pool's name: that it is so."""

    at_s: float
    pool: str = ""
    share: TenantShare = TenantShare()
    until_s: float = 0.0


class DrainMember(msgspec.Struct, frozen=True):
    """A node (by its name) or a branch or worker is to finish what it has in flight, and to get nothing more."""

    at_s: float
    who: str
    subject: str


class NodesChanged(msgspec.Struct, frozen=True):
    """The nodes that live now, told when that changed."""

    at_s: float
    names: tuple[str, ...]
    cores: int = 0
    """Of all of them together: so many branches and so many workers there may be. 0: the bounds stay as they are."""


class ToolRunRequested(msgspec.Struct, frozen=True):
    """May a run of this tool begin?"""

    at_s: float
    job: str
    tool: str


class TimePassed(msgspec.Struct, frozen=True):
    """Time passed: told when ``due_at_s`` has come."""

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
    | AccountShared
    | DrainMember
    | NodesChanged
    | ToolRunRequested
    | TimePassed
)


class PingMember(msgspec.Struct, frozen=True):
    """Ask it whether it is there; ``PingAnswered`` or ``PingUnanswered`` is the answer."""

    subject: str


class KillMember(msgspec.Struct, frozen=True):
    """End it by force. ``MemberDied`` is the answer; it is started again by an order of its own."""

    subject: str
    why: str


class StartMember(msgspec.Struct, frozen=True):
    """Start a branch or worker, not on the nodes to be avoided. ``MemberStarted`` or ``MemberDied`` is the answer."""

    role: str
    name: str
    avoid: tuple[str, ...] = ()


class RetireMember(msgspec.Struct, frozen=True):
    """End it gently: it takes no new call, and ends when it is empty. ``MemberDied`` is the answer."""

    name: str


class MembersChanged(msgspec.Struct, frozen=True):
    """Those that take work from now on; told to every channel, and to each that joins later."""

    branches: tuple[str, ...]
    workers: tuple[str, ...]


class StopJob(msgspec.Struct, frozen=True):
    """This job stops, and says why: its channel keeps dying. It can be resumed when the cause is found."""

    job: str
    story: str


class BreakerMoved(msgspec.Struct, frozen=True):
    """A breaker moved; for its mirror and for telemetry. ``subject`` is ``route:…``, ``tool:…`` or ``node:…``."""

    subject: str
    old: str
    new: str
    why: str


class AdmitToolRun(msgspec.Struct, frozen=True):
    """The answer to ``ToolRunRequested``: the run may begin under this generation of the tool's breaker, or ask again
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
