"""Events: everything that a channel's step depends on.

A ``Turn`` is the unit of the journal: the events that arrived together, and the time at which the channel took them.
Replaying the turns of a journal through ``cortex.loop.step`` gives the same K and the same commands.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cortex.state.budget_slice import BudgetSlice
from cortex.state.shard_record import ShardReport
from cortex.values.ledger import Ledger
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply
from policies.failures.failure import Failure


class _Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common format on the wire and in the journal: an array whose first element names the event."""


class Opened(_Event, frozen=True, tag="opened"):
    """A job begins, or begins anew because its program changed. K starts at this event; a replay starts at the latest
    one.
    """

    terms: JobTerms
    epoch: int
    first_goal: int = 1
    """Id of the first goal. Ids continue over all beginnings of a job, so that a late reply is attributed to no other
    goal."""
    carried: Ledger | None = None
    """Amounts that the job had spent before it began anew: its cap still counts them."""
    unmet: bool = False
    """True if a branch did not say what it holds of the job (``State.unmet``)."""


class Rejoined(_Event, frozen=True, tag="rejoined"):
    """A new incarnation of the channel owns the job. Attempts that no branch holds any more are lost."""

    epoch: int
    held: tuple[tuple[int, int], ...] = ()
    """(goal, attempt) of the calls that branches still hold."""
    unasked: tuple[tuple[int, int], ...] = ()
    """Those of ``held`` that no turn of the journal asked: the journal has lost its end. Their numbers are not given
    again."""
    unmet: bool = False
    """True if a branch did not say what it holds (``State.unmet``)."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """Row of a source after its checks: the question, or the reason why it is refused before it is asked."""

    key: str
    """Key of the row, unique in its source."""
    body: bytes = b""
    """Content: columns as a JSON object, or a whole request."""
    output_tokens_max: int = 0
    """``max_tokens`` of the row; 0: the job's default."""
    refusal: str = ""
    """Reason why the row is refused before it is asked; empty: it is valid."""
    place: int = -1
    """Position among the rows of the source, from 0, if the row failed and is asked again; otherwise -1."""


class RowsRead(_Event, frozen=True, tag="fed"):
    """A window of rows was read from a source."""

    rows: tuple[Row, ...]
    start: int
    """Position at which this window begins: it is taken only if the window before ended there."""
    position: int
    """Position at which reading continues: bytes of the source after decompression, or rows if the source is no
    text."""
    ended: bool


class PermitsGranted(_Event, frozen=True, tag="granted"):
    """The scheduler granted the job a lease on a route, replacing its earlier lease on that route."""

    permits: int
    """Attempts that may be in flight at once."""
    route: int = 0
    """Index of the job's route: 0 its own, then its declared fallbacks."""
    starts: int = -1
    """Attempts that may be begun under this grant; -1: any number."""
    generation: int = 0
    """Generation of the route's breaker."""
    requests_per_s: float = 0.0
    """0: no bound, here and in the two token rates."""
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    why: str = ""
    """Reason why the grant is less than was asked for; empty: no reason."""
    memo: bytes = b""
    """Opaque state of the scheduler, returned to it when it restarts."""
    again_s: float = 0.0
    """Seconds until the route's open breaker is probed; 0: the breaker is not open."""
    strays: bool = False
    """True if refusals of the route are known not to follow load: a Retry-After holds the call that got it alone."""
    phase: float = 0.0
    """Phase of the pace among those of other jobs, from 0 to 1 (``policies.limits.pace.put_off``)."""


class Answered(_Event, frozen=True, tag="answered"):
    """A call was answered."""

    goal: int
    sample: str
    attempt: int
    hash: bytes
    reply: Reply
    elapsed_s: float = 0.0
    """Seconds that the request took."""
    waited_s: float = 0.0
    """Seconds that the call waited at its branch before it was sent."""
    by: str = ""
    """Name of the branch; empty if none made the attempt."""


class ReplyRecalled(_Event, frozen=True, tag="recalled"):
    """A call was found among the stored replies: nothing is sent, nothing is paid.

    The journal keeps only a reference if this journal holds the reply; a reply that another job paid for is copied, so
    that a journal is complete by itself.
    """

    goal: int
    sample: str
    hash: bytes
    reply: Reply | None
    seq: int = 0
    position: int = 0


class AttemptFailed(_Event, frozen=True, tag="broke"):
    """An attempt ended without a reply."""

    goal: int
    sample: str
    attempt: int
    failure: Failure
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    by: str = ""


class GivenBack(_Event, frozen=True, tag="given_back"):
    """A call met an open breaker at its branch and was given back: nothing was sent, so that it was no attempt."""

    goal: int
    sample: str
    attempt: int
    generation: int = 0
    """Generation of the breaker as the branch knew it, later than the call's."""
    again_s: float = 0.0
    """Seconds until the open breaker is probed; 0: it is half open, or the time is not known."""
    by: str = ""
    """Name of the branch."""


class ToolRunBegun(_Event, frozen=True, tag="began"):
    """A worker has room for a run of a tool that must not run twice, and may begin it once this event is on disk."""

    goal: int
    attempt: int
    by: str = ""
    """Name of the worker."""


class Observed(_Event, frozen=True, tag="observed"):
    """A tool run ended: it read or changed external state."""

    goal: int
    attempt: int
    value: Any
    read_at_s: float
    """The job's time when a worker was asked."""
    failure: Failure | None = None
    elapsed_s: float = 0.0
    """Seconds since a worker was asked."""
    by: str = ""
    """Name of the worker."""


class ChildJobEnded(_Event, frozen=True, tag="returned"):
    """A child job ended."""

    goal: int
    attempt: int
    answer: Any
    known_nusd: int = 0
    assumed_nusd: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    failure: Failure | None = None
    assumed_tokens: int = 0
    partial: bool = False
    """True if the child stopped without failing, and continues when it is spawned again."""
    report: ShardReport | None = None
    """Final report of a shard, in place of its bill."""


class ShardReported(_Event, frozen=True, tag="reported"):
    """A shard reported its counts, and what it may commit and lacks."""

    goal: int
    report: ShardReport


class ShardsReopened(_Event, frozen=True, tag="shards_reopened"):
    """Shards have ended by this journal and not by their own, which have lost their end: they begin again, and are
    dealt the rows that they do not know. A complete job goes on with them.
    """

    goals: tuple[int, ...]


class ResultsWritten(_Event, frozen=True, tag="written"):
    """The sink holds the first ``rows`` results, complete, in its first ``size_bytes`` bytes, on disk."""

    rows: int
    size_bytes: int
    parts: tuple[int, ...] = ()
    """Number of results of each shard among them."""
    checksum: int = -1
    """CRC-32 of these bytes; -1: not known."""


class LimitsSet(_Event, frozen=True, tag="limits_set"):
    """An operator changed the job's limits: the operator's name, and the new limits."""

    who: str
    limits: Limits
    route: Route | None = None
    """Given if the credential or the price changed; another endpoint or model would be another job."""
    fallbacks: tuple[Route, ...] | None = None
    """New fallbacks, which may be others than before, or none; None: unchanged."""
    role_routes: tuple[Route, ...] = ()
    """Routes of the roles with other credentials or prices; empty: unchanged."""
    peers: int = 0
    """Number of leading routes in `fallbacks` that rank equal with the job's own; counts only with these."""
    closed: tuple[str, ...] = ()
    """Endpoints of servers among them that were taken out; counts only with `fallbacks`."""


NODE_ENDED: Final = "the end of its node"
"""``Stopped.who`` of a drain that no user asked for: the system ends the node of the channel, which then waits for its
disk elsewhere."""


class Stopped(_Event, frozen=True, tag="stopped"):
    """A user asked the job to end: ``cancel`` for good, ``drain`` to be resumed later.

    Or the scheduler stopped it (``condemn``), because its channel keeps dying: that ends the job at once, resumable.
    """

    who: str
    how: str
    story: str = ""
    """Account of what happened, if the scheduler stopped the job."""


class Resumed(_Event, frozen=True, tag="resumed"):
    """A user asked an ended but resumable job to continue."""

    who: str


class RowsReopened(_Event, frozen=True, tag="reopened"):
    """Failed rows are to be asked again, as a part of the same job: their results are withdrawn until the job rests.

    The rows themselves are fed again, after all rows read so far; then the rest of the input is read, if there is any.
    Only for a job that has ended, complete or partial, and whose program allows it (``Program.asks_again``).
    """

    who: str
    edition: int
    """Number of this event in its job, from 1: an event that arrives twice is applied once."""
    keys: tuple[str, ...]
    """Keys of the rows."""
    lines: tuple[int, ...]
    """Positions of their results among the results of the job so far, ascending."""
    kinds: dict[str, int]
    """Number of these rows by failure kind."""
    base: int
    """Position in the source after which they are fed."""
    ordered: bool = False
    """True if results come in the order of the input: then ``lines`` are the rows' positions in the input."""
    written: tuple[int, int] = (0, 0)
    """Results and bytes that the sink keeps: none for a file, which is written anew; all for a sink that cannot be cut
    back."""
    route: Route | None = None
    """Route of the job's calls from now on, if it is another model or endpoint; then no other row may be left to ask.
    """
    model: str = ""
    """Model in these rows' requests from now on; empty: unchanged."""
    output_tokens_max: int = 0
    """``max_tokens`` in these rows' requests from now on; 0: unchanged."""
    requests: bool = True
    """True if a row is a whole request, which holds both itself."""
    kind_of: tuple[int, ...] = ()
    """For each row the place of its failure kind in ``kinds``. Empty in journals of earlier releases, whose retries
    forgot the earlier results, and needed a source that was read to its end."""
    input_at: int = -1
    """Position in the input at which reading goes on after these rows; -1: the input was read to its end."""


class Ticked(_Event, frozen=True, tag="ticked"):
    """Time passed, and something was due."""


class SubmissionIntended(_Event, frozen=True, tag="intended"):
    """Calls of the channel are to be sent to the provider together, as a message batch."""

    number: int
    """Number of the submission within its job."""
    route: int
    keys: tuple[int, ...]
    """Attempts of the submission, by `flight_key`."""
    marker: str = ""
    """The account's newest batch at this time; empty if there is none."""
    marker_at_s: float = 0.0
    """Time of its creation by the provider's clock, in seconds since 1970; 0: not known."""


class SubmissionAccepted(_Event, frozen=True, tag="submitted"):
    """The provider has a submission, as a message batch of this name. ``who``: the person who says so, if any."""

    number: int
    name: str
    who: str = ""


class SubmissionRejected(_Event, frozen=True, tag="unsubmitted"):
    """The provider certainly does not have the submission, and why. ``who``: the person who says so, if any."""

    number: int
    failure: Failure
    who: str = ""


class SubmissionUncertain(_Event, frozen=True, tag="doubted"):
    """A submission was sent, and its outcome is unknown."""

    number: int
    failure: Failure


class SubmissionUnreadable(_Event, frozen=True, tag="stuck"):
    """A submission cannot be followed any more: its batch, or the list of batches, cannot be read."""

    number: int
    failure: Failure


class ResultsCollected(_Event, frozen=True, tag="collected"):
    """The results of a submission were read to their end."""

    number: int


class GoalMade(_Event, frozen=True, tag="made"):
    """A traced program made this goal in the turn before. A replay that makes another goal is detected by this
    event.
    """

    goal: int
    kind: str
    value: Any


class AnswerGiven(_Event, frozen=True, tag="told"):
    """A user gave the external answer of this name."""

    who: str
    name: str
    value: Any


class BudgetLeased(_Event, frozen=True, tag="leased"):
    """The budgets of the job's labels let it commit these slices, replacing the earlier ones."""

    slices: tuple[BudgetSlice, ...] = ()
    """Slices by budget that covers the job, at most one for each; empty if no budget does."""
    reason: str = ""
    """Reason why the next call's cost cannot be had: the budget that is used up. Empty: none."""
    again_s: float = 0.0
    """Time at which that budget is whole again, in seconds since 1970."""


def reported(goal: int, blob: bytes) -> ShardReported:
    """Decode a shard's report."""
    return ShardReported(goal, msgspec.msgpack.decode(blob, type=ShardReport))


Event = (
    Opened | Rejoined | RowsRead | PermitsGranted | Answered | ReplyRecalled | AttemptFailed | Observed | ChildJobEnded
    | ResultsWritten | LimitsSet
    | Stopped | Resumed | Ticked | SubmissionIntended | SubmissionAccepted | SubmissionRejected | SubmissionUncertain
    | SubmissionUnreadable | ResultsCollected | GoalMade
    | AnswerGiven | RowsReopened | BudgetLeased | ShardReported | GivenBack
    | ToolRunBegun | ShardsReopened
)  # fmt: skip


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """Events that a channel took together, in their order, and the job's time: seconds since 1970, never decreasing."""

    at_s: float
    batches: tuple[tuple[Event, ...], ...]
    """A batch is the content of one message; its bytes enter the journal unchanged."""
    account: bytes = b""
    """Counts of the job after this turn, independent of its program (``journal.Account``). Empty if unchanged; the step
    never reads it."""
    ahead_s: float = 0.0
    """Seconds by which the clock of the channel's machine is ahead of ``at_s``, which does not follow it when it is
    set; negative: behind. 0 below a second."""

    @property
    def wall_s(self) -> float:
        """Time of the turn for people, by the clock of the machine, in seconds since 1970."""
        return self.at_s + self.ahead_s
