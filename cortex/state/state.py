"""K: the exact state of a job: items, goals, provenance, the ledger, and the indices over them.

K is owned by one channel and changed only by ``cortex.loop.step``; a program reads it through the methods of `State`.
All of it is plain records, so that replays of the same journal encode to the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from cortex.state.budget_slice import BudgetSlices, rests, wait_ends_s
from cortex.state.commands import LaunchChildJob, StartToolRun
from cortex.state.decision_hook import DecisionListener
from cortex.state.goals import ENDED as ENDED
from cortex.state.goals import TRANSITIONS as TRANSITIONS
from cortex.state.goals import TRIES_MAX as TRIES_MAX
from cortex.state.goals import Goal as Goal
from cortex.state.goals import IllegalTransition as IllegalTransition
from cortex.state.goals import LostAttempt as LostAttempt
from cortex.state.goals import Status as Status
from cortex.state.goals import flight_key as flight_key
from cortex.state.items import Item as Item
from cortex.state.items import Observation as Observation
from cortex.state.route_share import CallSizes, RouteShare, held_until_s, next_begin_s
from cortex.state.shard_record import ShardRecord
from cortex.values.batch_record import Submission
from cortex.values.counters import JobCounters as JobCounters
from cortex.values.election import VOTE, Election
from cortex.values.fast_setattr import fast_setattr
from cortex.values.ledger import Charge, ChildJobBill, Ledger, ReplyTimings
from cortex.values.limits import JobTerms
from policies.estimates.tokens import TokenEstimate
from policies.failures.failure import Failure
from policies.failures.timeout import attempt_timeout_s
from policies.limits.pace import Pace


class InFlightAttempt(msgspec.Struct, array_like=True, gc=False):
    """Attempt in flight: sent, or about to be, with no durable outcome yet."""

    goal: int
    attempt: int
    sample: str
    hash: bytes
    """Hash of the question as on the job's own route, whichever route it took."""
    asked_at_s: float
    """Time at which it was asked, in seconds since 1970."""
    charge: Charge
    """Amount reserved for the attempt."""
    text_bytes: int
    """UTF-8 bytes of the prompt's text, for the token estimate; 0: not used for it."""
    route: int = 0
    """Index of the job's route."""
    sent: bytes = b""
    """Hash of what was sent on a fallback; empty if it equals ``hash``."""
    output_max: int = 0
    """``max_tokens`` of the reply."""
    paced: tuple[float, float] | None = None
    """Input and output tokens charged to the pace for the attempt."""
    probe: bool = False
    """True if its answer reopens a blocked route."""
    followers: list[int] = msgspec.field(default_factory=list)
    """Goals that asked the same question meanwhile and share the answer."""
    abandoned: bool = False
    """True if no goal awaits it any more."""
    submission: int = 0
    """Number of its submission; 0: none."""
    prefix: bytes = b""
    """Cache prefix that this attempt warms; empty: none."""
    body: bytes = b""
    """Request as sent, if it may be sent a second time."""
    bounded: int = 0
    """Number of the bound under which it began, of ``RouteShare.bounded``; 0: any number might begin."""


class CancelledBatch(msgspec.Struct):
    """Message batch that was cancelled at the provider with results outstanding, because its job was complete."""

    made: Submission
    """Submission, with the attempts whose results are outstanding."""
    flights: list[InFlightAttempt]
    """These attempts, in the order of ``made.keys``. They are charged in full, as assumed."""


class PrefixState(msgspec.Struct, array_like=True):
    """State of a prompt prefix that the provider may cache."""

    ahead: int = 0
    """Attempt that was sent first and has no answer yet; 0: none."""
    until_s: float = 0.0
    """Time until which the prefix is warm; while an attempt is ahead, latest end of the other goals' wait."""
    waiting: list[int] = msgspec.field(default_factory=list)
    """Goals that wait for the attempt ahead."""


HELD = float("inf")
"""Due time of an errand that waits until the job continues."""


class ExternalRun(msgspec.Struct, array_like=True):
    """Tool run or child job in progress for a goal."""

    goal: int
    attempt: int
    name: str
    """Name of the tool, or location of the child's program."""
    item: int = 0
    """Observation that is being read again; 0: none."""
    charge: Charge | None = None
    """Amount reserved for a child job."""
    own_cap: bool = False
    """True if the program set the child's cap; False if the cap is what this job could spare."""
    repeatable: bool = False
    """True if it may be run again after a failure."""
    command: StartToolRun | LaunchChildJob | None = None
    """Command that was sent: a repeatable run is sent again with the same idempotency key."""
    broken: int = 0
    """Failed runs so far."""
    due_at_s: float = 0.0
    """Time at which it is sent again; 0 while it runs; ``HELD``: when the job continues, which begins nothing now."""
    abandoned: bool = False
    """True if the child job is not awaited any more; its bill is still to come."""
    resting: bool = False
    """True if the child job was asked to come to rest."""
    begun: bool = False
    """True if a worker may have begun this run. Set for runs whose beginning is journalled (``StartToolRun.told``)."""

    @property
    def is_shard(self) -> bool:
        """True if it is a child job that is a shard of this job."""
        return isinstance(self.command, LaunchChildJob) and self.command.shards > 0


@fast_setattr
class State(msgspec.Struct, dict=True):
    """State K of a job. Programs read it through its methods and never assign to it."""

    # set on an instance by `decision_hook.listen`; no part of K, and without effect on it
    on_decision: ClassVar[DecisionListener | None] = None
    terms: JobTerms
    """Terms of the job."""
    epoch: int = 1
    """Incarnation of the channel that owns the job."""
    at_s: float = 0.0
    """Time of the current turn, in seconds since 1970."""
    began_at_s: float = 0.0
    """Time at which the job began, in seconds since 1970."""
    goals: dict[int, Goal] = msgspec.field(default_factory=dict)
    """Goals in K, by id."""
    items: dict[int, Item] = msgspec.field(default_factory=dict)
    """Items in K, by id."""
    goals_by_kind: dict[str, dict[int, None]] = msgspec.field(default_factory=dict)
    """Ids of the goals of each kind, in order of creation."""
    items_by_kind: dict[str, dict[int, None]] = msgspec.field(default_factory=dict)
    """Ids of the items of each kind, in order of creation."""
    open_by_kind: dict[str, dict[int, None]] = msgspec.field(default_factory=dict)
    """Ids of the goals offered to select, by kind, longest open first."""
    parked: dict[int, dict[int, None]] = msgspec.field(default_factory=dict)
    """Open goals that select has already named, by the lane that had no free permit for them, in that order."""
    called: dict[int, None] = msgspec.field(default_factory=dict)
    """Parked goals for which there are permits now: select sees them first."""
    looking: bool = False
    """True if select has more to yield than was processed in one turn."""
    delayed: list[tuple[float, int]] = msgspec.field(default_factory=list)
    """Heap of (time, goal): goals that are open but not due, and deadlines of joins."""
    deadlines: list[tuple[float, int]] = msgspec.field(default_factory=list)
    """Heap of (time, goal): deadlines and timeouts of goals."""
    flights: dict[int, InFlightAttempt] = msgspec.field(default_factory=dict)
    """Attempts in flight, by `flight_key`."""
    asking: dict[bytes, int] = msgspec.field(default_factory=dict)
    """Flight that is asking a question now, by question hash."""
    unhedged: dict[int, float] = msgspec.field(default_factory=dict)
    """Time from which an attempt may be sent a second time, by attempt; the first is due first."""
    warmths: dict[bytes, PrefixState] = msgspec.field(default_factory=dict)
    """State of recently used prompt prefixes, by prefix."""
    elections: dict[int, Election] = msgspec.field(default_factory=dict)
    """Votes in progress, by goal."""
    errands: dict[int, ExternalRun] = msgspec.field(default_factory=dict)
    """Tool runs and child jobs in progress, by attempt."""
    submissions: dict[int, Submission] = msgspec.field(default_factory=dict)
    """Message batches that were intended and whose results are not all in K, by number."""
    next_submission: int = 1
    billed: dict[int, ChildJobBill] = msgspec.field(default_factory=dict)
    """Bill so far of goals whose child job ended resumable: the child's next bill includes it."""
    next_goal: int = 1
    """Id of the next goal."""
    next_item: int = 1
    """Id of the next item."""
    live: int = 0
    """Number of goals that have not ended."""
    ended: int = 0
    """Number of goals that have ended."""
    expected: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """Goals that wait for an external answer, by its name."""
    differs: str = ""
    """Line for the author about the first goal of a replay that differs from the journal; empty: none."""
    resting: int = 0
    """Number of open goals that are not due yet."""
    shares: list[RouteShare] = msgspec.field(default_factory=list)
    """Grants for ``terms.routes``, in their order."""
    pace: Pace | None = None
    """Rates set by the job's user, over all routes."""
    sizes: CallSizes = msgspec.field(default_factory=CallSizes)
    """Sizes of answered calls under a pace."""
    call_timeout_max_s: float = 0.0
    """Longest timeout of any attempt so far, in seconds."""
    wishes: bool = True
    """True if select may have more to ask than there were permits for; unknown while there are no permits."""
    unseen: bool = False
    """True if something has happened that select has not seen, for lack of a permit."""
    elsewhere: bool = False
    """True if a goal's prompt fits only the job's own route, and that route has no free permit; or if routes of equal
    rank failed a goal's call, and the others have none."""
    moved: bool = False
    """True if work goes to a fallback because the job's own route is unavailable or only probed."""
    successes: int = 0
    """Number of paid replies."""
    retries: int = 0
    """Retries made, or lapsed unused (``policies.failures.retry.lapsed``)."""
    alike: int = 0
    """Consecutive refusals with the same wording, without a success between them."""
    alike_said: str = ""
    """Wording of these refusals."""
    faulty_in_row: int = 0
    """Consecutive FAULTY failures."""
    estimate: TokenEstimate = msgspec.field(default_factory=TokenEstimate)
    """Bytes per token, learnt from reported usage."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    """Money and tokens of the job."""
    tally: JobCounters = msgspec.field(default_factory=JobCounters)
    """Counters of the job."""
    position: int = 0
    """Position in the source at which reading continues."""
    source_ended: bool = True
    """True if the source is read to its end."""
    held: dict[int, Any] = msgspec.field(default_factory=dict)
    """Results that wait for their turn, if input order is wanted."""
    emitted: int = 0
    """Number of results emitted."""
    written_rows: int = 0
    """Number of results that are in the sink, on disk."""
    written_bytes: int = 0
    """Size of these results in the sink, in bytes."""
    next_in_order: int = 0
    """Input position of the next result, if input order is wanted."""
    failed_held: dict[int, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Key of the row and failure kind of the failed results in ``held``."""
    edition: int = 0
    """Number of times that failed rows were opened again: each makes a new list of results
    (``cortex.goals.result_list``)."""
    again: dict[int, str | None] = msgspec.field(default_factory=dict)
    """Positions of reopened rows that are not emitted yet, ascending, if input order is wanted, with the row's key;
    None: its earlier result is forgotten."""
    withdrawn: dict[str, str] = msgspec.field(default_factory=dict)
    """Reopened rows without a new outcome, with the failure kind of their earlier result."""
    standing: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Reopened rows whose earlier result stands, since the new outcome is worse or the row will not be asked: failure
    kind of that result, and of the new outcome as long as it is counted instead."""
    restored: int | None = None
    """Number of earlier results that are listed while the job rests; None while it does not rest."""
    reading: dict[int, float] = msgspec.field(default_factory=dict)
    """Start time of the wait of goals that wait for readings: all readings since then are valid together."""
    purse: BudgetSlices | None = None
    """Budget slices of the job; None: no budget covers it."""
    shards: dict[int, ShardRecord] = msgspec.field(default_factory=dict)
    """State of each shard, by the goal that it answers."""
    short: bool = False
    """True if the ledger refused the next call; something must settle first."""
    paused: Failure | None = None
    """Failure that blocks the whole job: the account, the key, the model, the money."""
    paused_at_s: float = 0.0
    """Time at which the job was paused."""
    halted: str = ""
    """Reason why nothing new is begun although no end was requested: too many rows have failed."""
    forgiven: dict[str, int] = msgspec.field(default_factory=dict)
    """Rows finished when the user continued a halted job: by failure kind, good rows under an empty name."""
    stopping: str = ""
    """``drain`` or ``cancel`` once requested; otherwise empty."""
    stopped_by: str = ""
    """User who requested it; ``NODE_ENDED`` only if no user did."""
    outcome: str = ""
    """``complete``, ``partial``, ``failed`` or ``cancelled``; empty while the job runs."""
    why: str = ""
    """Reason of the outcome."""
    finished: bool = False
    """True once the outcome was announced."""
    took: ReplyTimings | None = None
    """Origin of the reply that is being absorbed; None between replies."""
    holders: dict[bytes, int] = msgspec.field(default_factory=dict)
    """Servers of equal rank that were asked a prompt with this beginning, as bits by place; the beginning that was not
    asked for the longest time is the first (``cortex.calls.affinity``)."""
    ahead_s: float = 0.0
    """Seconds by which the clock of the channel's machine is ahead of ``at_s`` (``events.Turn``): deadlines given as a
    date are read from it, and times for people."""
    late: dict[int, LostAttempt] = msgspec.field(default_factory=dict)
    """Attempts given up as lost whose goals have ended, the newest ``LATE_MAX`` by ``flight_key``: a reply that still
    comes replaces their assumed cost by the real one."""
    cancelled: dict[int, CancelledBatch] = msgspec.field(default_factory=dict)
    """Message batches that were cancelled at the end of a complete job, by number, until failed rows are opened again:
    their results are read then. They hold at most the attempts that were in flight at the end."""
    written_checksum: int = -1
    """CRC-32 of the results in the sink; -1: not known."""
    unmet: bool = False
    """True if a branch did not say what it holds when a channel of the job began. It may hold replies to calls of turns
    that the journal has lost, with the numbers of later calls: the question of each reply is compared."""

    def __post_init__(self) -> None:
        if not self.shares:
            self.shares = [RouteShare() for _ in self.terms.routes]

    # -- read by programs --------------------------------------------------------------------------------------------

    def open(self, kind: str | None = None) -> Iterator[Goal]:
        """Yield the goals that select may ask now, longest open first; without ``kind``, of all kinds, kind by kind."""
        if kind is None or self.called:
            return self._open(kind)
        return map(self.goals.__getitem__, self.open_by_kind.get(kind, ()))

    def _open(self, kind: str | None) -> Iterator[Goal]:
        yield from [goal for goal in map(self.goals.__getitem__, self.called) if _is(goal, kind)]
        for name in [kind] if kind is not None else [each for each in self.open_by_kind if each != VOTE]:
            yield from map(self.goals.__getitem__, self.open_by_kind.get(name, ()))

    def goals_of(self, kind: str) -> Iterator[Goal]:
        """Yield all goals of a kind in K, in order of creation."""
        return map(self.goals.__getitem__, self.goals_by_kind.get(kind, ()))

    def items_of(self, kind: str) -> Iterator[Item]:
        """Yield all items of a kind, in order of creation."""
        return map(self.items.__getitem__, self.items_by_kind.get(kind, ()))

    def children(self, goal: Goal) -> Iterator[Goal]:
        """Yield the children of a goal that are in K."""
        return (self.goals[child] for child in goal.children if child in self.goals)

    def tokens(self, text: str) -> int:
        """Return the estimated tokens of a text, from the usage reported so far: for packing, not for the bound."""
        return self.estimate.tokens(len(text.encode()))

    def prompt_tokens_max(self, output_tokens_max: int | None = None, role: str = "") -> int:
        """Return M, the prompt bound in tokens, for a call on the job's own route or on that of a role.

        ``output_tokens_max``: ``max_tokens`` of the call; None: the job's default.
        """
        out = output_tokens_max if output_tokens_max is not None else self.terms.limits.output_tokens_max
        return self.terms.prompt_tokens_max(out, self.terms.lane_places(self.terms.roles.get(role, 0))[0])

    def fresh(self, item: Item) -> bool:
        """Return True if an item may be used now. An item that is no observation always may."""
        seen = item.observation
        if seen is None:
            return True
        return seen.taken_at_s >= 0 and (seen.taken_at_s == self.at_s or self.at_s - seen.read_at_s <= seen.trust_s)

    def errand_of(self, goal: Goal) -> ExternalRun | None:
        """Return the tool run or child job that a goal waits for, if any."""
        return self.errands.get(flight_key(goal.id, goal.tries)) if self.errands else None

    # -- read by the channel -----------------------------------------------------------------------------------------

    def call_id(self, goal: int, sample: str) -> str:
        """Return the call's id ``job/goal/sample``: derived from K, never from randomness or a clock."""
        return f"{self.terms.job}/{goal}/{sample}"

    def chance_id(self, goal: int, sample: str) -> str:
        """Return the id from which a call's random numbers are derived: its own, or in a fork the id in the original
        job.
        """
        return f"{self.terms.drawn_as}/{goal}/{sample}"

    def awaited(self) -> list[str]:
        """Return the names of the external answers that goals wait for."""
        return [
            name for name, ids in self.expected.items()
            if any(goal_id in self.goals and self.goals[goal_id].expects == name for goal_id in ids)
        ]  # fmt: skip

    def rows_wanted(self) -> int:
        """Return how many more rows of the source may be open in K."""
        if self.source_ended or self.outcome or self.closing:
            return 0
        return max(0, self.terms.limits.window_rows - self.live - len(self.held))

    @property
    def permits(self) -> int:
        """Number of calls that may be in flight at once, over all routes."""
        return sum(share.permits for share in self.shares)

    @property
    def offered(self) -> int:
        """Number of open goals that wait only for a permit and their turn."""
        count = len(self.called)
        for goals in self.open_by_kind.values():
            count += len(goals)
        return count + sum(map(len, self.parked.values())) if self.parked else count

    @property
    def overdue(self) -> bool:
        """True if the job's deadline has passed."""
        deadline_at_s = self.terms.limits.deadline_at_s
        return deadline_at_s is not None and self.at_s + self.ahead_s >= deadline_at_s

    @property
    def closing(self) -> bool:
        """True if nothing new is begun: a stop was requested, too many rows failed, or the deadline has passed."""
        if self.stopping or self.halted:
            return True
        deadline_at_s = self.terms.limits.deadline_at_s
        return deadline_at_s is not None and self.at_s + self.ahead_s >= deadline_at_s

    @property
    def paused_until_s(self) -> float:
        """Time at which a paused job may continue, as the provider says; 0: it named no time, or nothing is paused."""
        blocked = [share for share in self.shares if share.blocked is not None]
        if self.paused is None or not blocked or (len(blocked) < len(self.shares) and not self.terms.role_routes):
            return 0.0
        times = [share.reset_s for share in blocked]
        return min(times) if min(times) > self.paused_at_s else 0.0

    @property
    def hold_until_s(self) -> float:
        """Earliest end of a Retry-After among the routes with permits; 0 if none is held."""
        return held_until_s(self)

    @property
    def longest_timeout_s(self) -> float:
        """Longest timeout of the job's attempts, in seconds."""
        limits = self.terms.limits
        return max(self.call_timeout_max_s, attempt_timeout_s(limits.timeout, limits.output_tokens_max, 0))

    def demand(self) -> int:
        """Return the calls that the job could have in flight now, given permits; 0 if it has nothing to ask."""
        under_way = len(self.flights)
        if self.outcome or self.closing or (self.purse is not None and rests(self)):
            return under_way
        more = self.resting
        if self.paused is not None:
            more = int(self.live > 0 and not under_way)  # one call, to test the block
        elif self.wishes:
            nothing_yet = self.source_ended and not (self.tally.calls or self.ended)  # select may make the first goal
            looks = self.unseen and not under_way and (self.live > 0 or nothing_yet)
            more += self.offered or int(looks)  # one permit, so that select is called
        wanted, most = under_way + more, self.terms.limits.concurrency
        return wanted if wanted <= most else max(under_way, most)

    def due_at_s(self) -> float | None:
        """Return when time alone will change something; None if it will not."""
        if (
            not (self.delayed or self.deadlines or self.unhedged or self.submissions or self.looking)
            and self.paused is None and self.purse is None and self.terms.limits.deadline_at_s is None
            and not (self.wishes and (any(self.open_by_kind.values()) or self.parked or self.called))
        ):  # fmt: skip
            return None  # the usual case: each call is asked at once
        times = [heap[0][0] for heap in (self.delayed, self.deadlines) if heap]
        deadline_at_s = self.terms.limits.deadline_at_s
        if deadline_at_s is not None and deadline_at_s - self.ahead_s > self.at_s:
            times.append(deadline_at_s - self.ahead_s)
        if self.unhedged and (slow_s := next(iter(self.unhedged.values()))) > self.at_s:
            times.append(slow_s)
        times += [begin_s] if (begin_s := next_begin_s(self)) is not None else []
        if self.paused is not None and self.at_s < (end_s := self.paused_at_s + self.terms.limits.blocked_wait_s):
            times.append(end_s)
        if (end_s := wait_ends_s(self)) > self.at_s:
            times.append(end_s)
        times += [made.due_at_s for made in self.submissions.values() if made.due_at_s]
        times += [self.at_s] * self.looking
        return min(times) if times else None


def _is(goal: Goal, kind: str | None) -> bool:
    return goal.kind == kind if kind is not None else goal.kind != VOTE
