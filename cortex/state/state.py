"""K: the exact state of a job. Items, goals, where they came from, the ledger, and the indices over them.

K is owned by one channel and changed only by ``loop.step``; a program reads it through the methods below. All of it is
plain records, so that it encodes to the same bytes whenever the same journal is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from cortex.state.budget_slice import Purse, rests, wait_ends_s
from cortex.state.commands import Launch, RunTool
from cortex.state.decision_hook import Tell
from cortex.state.goals import ENDED as ENDED
from cortex.state.goals import TRANSITIONS as TRANSITIONS
from cortex.state.goals import TRIES_MAX as TRIES_MAX
from cortex.state.goals import Goal as Goal
from cortex.state.goals import IllegalTransition as IllegalTransition
from cortex.state.goals import Missing as Missing
from cortex.state.goals import Status as Status
from cortex.state.goals import flight_key as flight_key
from cortex.state.items import Item as Item
from cortex.state.items import Observation as Observation
from cortex.state.route_share import Share, Sizes, held_until_s, next_begin_s
from cortex.state.shard_record import Shard
from cortex.values.batch_record import Submission
from cortex.values.counters import Tally as Tally
from cortex.values.election import VOTE, Election
from cortex.values.fast_setattr import quick_to_set
from cortex.values.ledger import Bill, Charge, Ledger, Took
from cortex.values.limits import Terms
from policies.estimates.tokens import Estimate
from policies.failures.failure import Failure
from policies.failures.timeout import attempt_timeout_s
from policies.limits.pace import Pace


class Flight(msgspec.Struct, array_like=True, gc=False):
    """One attempt under way: sent, or about to be, and not yet durable."""

    goal: int
    attempt: int
    sample: str
    hash: bytes
    """The question, as the job's own route would be asked it: the same on whichever route it went."""
    asked_at_s: float
    charge: Charge
    text_bytes: int
    route: int = 0
    sent: bytes = b""
    """Hash of what was sent, where a fallback was asked; empty where it is the question's own."""
    output_max: int = 0
    """The reply's ``max_tokens``."""
    paced: tuple[float, float] | None = None
    """Input and output tokens that were taken of the rates for it."""
    probe: bool = False
    """Its answer opens a blocked route again."""
    followers: list[int] = msgspec.field(default_factory=list)
    """Goals that asked the same question meanwhile and share the answer."""
    abandoned: bool = False
    submission: int = 0
    """Which submission it belongs to; 0: none."""
    prefix: bytes = b""
    """The prefix for which it went ahead; empty where it did not."""
    body: bytes = b""
    """What was sent, where it may be asked a second time."""


class Warmth(msgspec.Struct, array_like=True):
    """What is known of a prefix that the provider may cache."""

    ahead: int = 0
    """The attempt that went ahead and has no answer yet; 0: none."""
    until_s: float = 0.0
    """It is warm until then; or, while one is ahead, the others wait until then at most."""
    waiting: list[int] = msgspec.field(default_factory=list)
    """Goals that wait for the one ahead."""


HELD = float("inf")


class Errand(msgspec.Struct, array_like=True):
    """A tool run or a child job under way for a goal."""

    goal: int
    attempt: int
    name: str
    item: int = 0
    """The observation that is being read again, if that is what it is."""
    charge: Charge | None = None
    """What is set aside for a child job."""
    own_cap: bool = False
    """The child's cap is the one that the program gave it, not what this job could spare."""
    repeatable: bool = False
    command: RunTool | Launch | None = None
    """What was sent: what may run again is sent again under the same idempotency key."""
    broken: int = 0
    """Runs that failed so far."""
    due_at_s: float = 0.0
    """When it is sent again; 0 while it is under way; ``HELD``: when the job goes on, for it begins nothing now."""
    abandoned: bool = False
    """Nobody waits for the child job any more; its bill is still to come."""
    resting: bool = False
    """The child job was told to come to rest."""

    @property
    def is_shard(self) -> bool:
        """Whether it is a child job that is one of several parts of this one."""
        return isinstance(self.command, Launch) and self.command.shards > 0


@quick_to_set
class State(msgspec.Struct, dict=True):
    """K. The methods are for reading; programs never assign."""

    tell: ClassVar[Tell | None] = None  # of an instance, by ``decisions.listen``: no part of K, and of no effect on it
    terms: Terms
    epoch: int = 1
    at_s: float = 0.0
    began_at_s: float = 0.0
    goals: dict[int, Goal] = msgspec.field(default_factory=dict)
    items: dict[int, Item] = msgspec.field(default_factory=dict)
    goals_by_kind: dict[str, dict[int, None]] = msgspec.field(default_factory=dict)
    items_by_kind: dict[str, dict[int, None]] = msgspec.field(default_factory=dict)
    open_by_kind: dict[str, dict[int, None]] = msgspec.field(default_factory=dict)
    parked: dict[int, dict[int, None]] = msgspec.field(default_factory=dict)
    """Open goals that select has named already, by the lane that had no permit free for them: in that order."""
    called: dict[int, None] = msgspec.field(default_factory=dict)
    """Of those, the ones that there are permits for now: select sees them again, before the others."""
    looking: bool = False
    """Select has more to name than was looked at in one turn."""
    delayed: list[tuple[float, int]] = msgspec.field(default_factory=list)
    """A heap of (when, goal): goals that are open but not due, and deadlines of joins."""
    deadlines: list[tuple[float, int]] = msgspec.field(default_factory=list)
    """A heap of (when, goal): deadlines and timeouts of goals."""
    flights: dict[int, Flight] = msgspec.field(default_factory=dict)
    asking: dict[bytes, int] = msgspec.field(default_factory=dict)
    """Question -> flight that is asking it now."""
    unhedged: dict[int, float] = msgspec.field(default_factory=dict)
    """Attempts that may be asked a second time, and when; the first is due first."""
    warmths: dict[bytes, Warmth] = msgspec.field(default_factory=dict)
    """Prefixes that were asked for of late."""
    elections: dict[int, Election] = msgspec.field(default_factory=dict)
    """By the goal that is voted on."""
    errands: dict[int, Errand] = msgspec.field(default_factory=dict)
    """By attempt, as flights are."""
    submissions: dict[int, Submission] = msgspec.field(default_factory=dict)
    """Message batches that were intended and of which not all results are in K, by their number."""
    next_submission: int = 1
    billed: dict[int, Bill] = msgspec.field(default_factory=dict)
    """Goals whose child job ended resumable, and what it had cost by then: its next bill counts that again."""
    next_goal: int = 1
    next_item: int = 1
    live: int = 0
    """Goals that have not ended."""
    ended: int = 0
    """Goals that have ended."""
    expected: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """Goals that wait for an answer from outside, by its name."""
    differs: str = ""
    """Where a replayed program made other goals than its journal has: the first of them, as a line for its author."""
    resting: int = 0
    """Open goals that are not due yet."""
    shares: list[Share] = msgspec.field(default_factory=list)
    """What may be used of each of ``terms.routes``, in their order."""
    pace: Pace | None = None
    """The rates that the job's own user set, over all routes."""
    sizes: Sizes = msgspec.field(default_factory=Sizes)
    call_timeout_max_s: float = 0.0
    """The longest that any attempt so far might take."""
    wishes: bool = True
    """Whether select may have more to ask than there were permits for; without any, nobody knows."""
    unseen: bool = False
    """Whether something has come that select has not looked at, for want of a permit."""
    elsewhere: bool = False
    """A goal's prompt fits the job's own route alone, and that one has no permit free."""
    moved: bool = False
    """Work goes to a fallback, since the job's own route may not be asked, or by probes alone."""
    successes: int = 0
    retries: int = 0
    """Made, or lapsed unused (``policies.failures.retry.lapsed``)."""
    alike: int = 0
    """Refusals with the same words in a row, no success between."""
    alike_said: str = ""
    faulty_in_row: int = 0
    estimate: Estimate = msgspec.field(default_factory=Estimate)
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    tally: Tally = msgspec.field(default_factory=Tally)
    position: int = 0
    source_ended: bool = True
    held: dict[int, Any] = msgspec.field(default_factory=dict)
    """Results that wait for their turn, where input order was asked for."""
    emitted: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    next_in_order: int = 0
    """Place in the input of the result that goes out next, where input order was asked for."""
    failed_held: dict[int, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Of those in ``held``, the ones that tell of a failure: key of the row, and kind."""
    edition: int = 0
    """How often failed rows were opened again: each time the results are another list
    (``cortex.goals.result_list``)."""
    again: dict[int, None] = msgspec.field(default_factory=dict)
    """Places of rows that were opened again and are not given out yet, ascending, where input order was asked for."""
    reading: dict[int, float] = msgspec.field(default_factory=dict)
    """Goals that wait for readings, and since when: what was read since then is believed together."""
    purse: Purse | None = None
    """What budgets let it commit; None while none covers it."""
    shards: dict[int, Shard] = msgspec.field(default_factory=dict)
    """By the goal that each of them answers."""
    short: bool = False
    """The ledger refused the next call; something must settle first."""
    paused: Failure | None = None
    """What blocks the whole job: the account, the key, the model, the money."""
    paused_at_s: float = 0.0
    halted: str = ""
    """Why nothing new is begun though nobody asked for an end: too many rows have failed."""
    forgiven: dict[str, int] = msgspec.field(default_factory=dict)
    """Rows that had finished when someone said to go on all the same: by failure, under an empty name the good ones."""
    stopping: str = ""
    """``drain`` or ``cancel``, once somebody asked for it; and who."""
    stopped_by: str = ""
    outcome: str = ""
    why: str = ""
    finished: bool = False
    """The world was told of the outcome."""
    took: Took | None = None
    """How the reply that is being absorbed came about; nothing between replies."""

    def __post_init__(self) -> None:
        if not self.shares:
            self.shares = [Share() for _ in self.terms.routes]

    # -- what a program reads ------------------------------------------------------------------------------------

    def open(self, kind: str | None = None) -> Iterator[Goal]:
        """Goals that select may ask now, those that have been open longest first; of all kinds, kind by kind."""
        if kind is None or self.called:
            return self._open(kind)
        return map(self.goals.__getitem__, self.open_by_kind.get(kind, ()))

    def _open(self, kind: str | None) -> Iterator[Goal]:
        yield from [goal for goal in map(self.goals.__getitem__, self.called) if _is(goal, kind)]
        for name in [kind] if kind is not None else [each for each in self.open_by_kind if each != VOTE]:
            yield from map(self.goals.__getitem__, self.open_by_kind.get(name, ()))

    def goals_of(self, kind: str) -> Iterator[Goal]:
        """All goals of a kind that K keeps, in the order in which they were made."""
        return map(self.goals.__getitem__, self.goals_by_kind.get(kind, ()))

    def items_of(self, kind: str) -> Iterator[Item]:
        """All items of a kind, in the order in which they were made."""
        return map(self.items.__getitem__, self.items_by_kind.get(kind, ()))

    def children(self, goal: Goal) -> Iterator[Goal]:
        """The goals made in the service of this one."""
        return (self.goals[child] for child in goal.children if child in self.goals)

    def tokens(self, text: str) -> int:
        """How many tokens a text has, estimated from the usage reported so far: for packing, not for the bound."""
        return self.estimate.tokens(len(text.encode()))

    def prompt_tokens_max(self, output_tokens_max: int | None = None, role: str = "") -> int:
        """M for a call that may answer with so many tokens, on the job's own route or on that of a role."""
        out = output_tokens_max if output_tokens_max is not None else self.terms.limits.output_tokens_max
        return self.terms.prompt_tokens_max(out, self.terms.lane_places(self.terms.roles.get(role, 0))[0])

    def fresh(self, item: Item) -> bool:
        """Whether an item may be believed now. One that is no observation always may."""
        seen = item.observation
        if seen is None:
            return True
        return seen.taken_at_s >= 0 and (seen.taken_at_s == self.at_s or self.at_s - seen.read_at_s <= seen.trust_s)

    def errand_of(self, goal: Goal) -> Errand | None:
        """What this goal waits for at a worker or in a child job, if it does."""
        return self.errands.get(flight_key(goal.id, goal.tries)) if self.errands else None

    # -- what a channel reads ------------------------------------------------------------------------------------

    def call_id(self, goal: int, sample: str) -> str:
        """``job/goal/sample``: from K, never from chance or a clock."""
        return f"{self.terms.job}/{goal}/{sample}"

    def chance_id(self, goal: int, sample: str) -> str:
        """What chance is drawn by for this call: its id, or in a fork the one that it has in the job forked from."""
        return f"{self.terms.drawn_as}/{goal}/{sample}"

    def awaited(self) -> list[str]:
        """Names of the answers from outside that goals wait for."""
        return [
            name for name, ids in self.expected.items()
            if any(goal_id in self.goals and self.goals[goal_id].expects == name for goal_id in ids)
        ]  # fmt: skip

    def rows_wanted(self) -> int:
        """How many more rows of the source may be open in K."""
        if self.source_ended or self.outcome or self.closing:
            return 0
        return max(0, self.terms.limits.window_rows - self.live - len(self.held))

    @property
    def permits(self) -> int:
        """Calls that may be in flight at once, over all routes."""
        return sum(share.permits for share in self.shares)

    @property
    def offered(self) -> int:
        """Open goals that wait for nothing but a permit and their turn."""
        count = len(self.called)
        for goals in self.open_by_kind.values():
            count += len(goals)
        return count + sum(map(len, self.parked.values())) if self.parked else count

    @property
    def overdue(self) -> bool:
        """Whether the job's deadline has passed."""
        deadline_at_s = self.terms.limits.deadline_at_s
        return deadline_at_s is not None and self.at_s >= deadline_at_s

    @property
    def closing(self) -> bool:
        """Whether nothing new is begun any more: someone said to stop, too much failed, or the deadline has passed."""
        if self.stopping or self.halted:
            return True
        deadline_at_s = self.terms.limits.deadline_at_s
        return deadline_at_s is not None and self.at_s >= deadline_at_s

    @property
    def paused_until_s(self) -> float:
        """When the provider said that a paused job may go on; 0 where it named no time, or nothing is paused."""
        blocked = [share for share in self.shares if share.blocked is not None]
        if self.paused is None or not blocked or (len(blocked) < len(self.shares) and not self.terms.role_routes):
            return 0.0
        times = [share.reset_s for share in blocked]
        return min(times) if min(times) > self.paused_at_s else 0.0

    @property
    def hold_until_s(self) -> float:
        """When the first of the routes that the provider holds back may be asked again; 0 where none is held."""
        return held_until_s(self)

    @property
    def longest_timeout_s(self) -> float:
        """The longest that one of this job's attempts may take."""
        limits = self.terms.limits
        return max(self.call_timeout_max_s, attempt_timeout_s(limits.timeout, limits.output_tokens_max, 0))

    def demand(self) -> int:
        """Calls that this job could have in flight now, were there permits; 0 where it has nothing to ask."""
        under_way = len(self.flights)
        if self.outcome or self.closing or (self.purse is not None and rests(self)):
            return under_way
        more = self.resting
        if self.paused is not None:
            more = int(self.live > 0 and not under_way)  # one, to find out
        elif self.wishes:
            nothing_yet = self.source_ended and self.next_goal == 1  # select itself may make the first goal
            looks = self.unseen and not under_way and (self.live > 0 or nothing_yet)
            more += self.offered or int(looks)  # one, so that select may look
        wanted, most = under_way + more, self.terms.limits.concurrency
        return wanted if wanted <= most else max(under_way, most)

    def due_at_s(self) -> float | None:
        """When time alone will change something; None if it will not."""
        if (
            not (self.delayed or self.deadlines or self.unhedged or self.submissions or self.looking)
            and self.paused is None and self.purse is None and self.terms.limits.deadline_at_s is None
            and not (self.wishes and (any(self.open_by_kind.values()) or self.parked or self.called))
        ):  # fmt: skip
            return None  # as it is where each call is asked at once
        times = [heap[0][0] for heap in (self.delayed, self.deadlines) if heap]
        deadline_at_s = self.terms.limits.deadline_at_s
        if deadline_at_s is not None and deadline_at_s > self.at_s:
            times.append(deadline_at_s)
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
