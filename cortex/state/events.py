"""What happened, in the past tense. Everything that a channel's step depends on arrives as one of these.

A ``Turn`` is the unit of the journal: the events that arrived together, and the time at which the channel took them.
Replaying the turns of a journal through ``loop.step`` gives the same K and the same commands.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.state.budget_slice import Slice
from cortex.state.shard_record import Report
from cortex.values.ledger import Ledger
from cortex.values.limits import Limits, Route, Terms
from cortex.values.reply import Reply
from policies.failures.failure import Failure


class _Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common form on the wire and in the journal: an array whose first element names the event."""


class Opened(_Event, frozen=True, tag="opened"):
    """A job begins, or begins anew because its program changed. K starts here; replay starts at the last one."""

    terms: Terms
    epoch: int
    first_goal: int = 1
    """Goals of a job are numbered on, however often it begins anew: a late reply can be taken for no other's."""
    carried: Ledger | None = None
    """What the job had spent before it began anew: its cap still counts it."""


class Rejoined(_Event, frozen=True, tag="rejoined"):
    """A new incarnation of the channel owns the job. Attempts that no branch still holds are lost."""

    epoch: int
    held: tuple[tuple[int, int], ...] = ()
    """(goal, attempt) of the calls that branches still hold."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One row of a source, already checked: what to ask, or why it is refused before it is asked."""

    key: str
    body: bytes = b""
    output_tokens_max: int = 0
    refusal: str = ""
    place: int = -1
    """Its place among the rows of the source, from 0 on, where it failed and is asked again."""


class Fed(_Event, frozen=True, tag="fed"):
    """A window of a source was read."""

    rows: tuple[Row, ...]
    start: int
    """Where this window begins: it is taken only if the one before it ended there."""
    position: int
    """Where reading goes on: bytes of the source after decompression, or rows of one that is no text."""
    ended: bool


class Granted(_Event, frozen=True, tag="granted"):
    """The cortex leases this to the job, in place of what it leased it of the same route before."""

    permits: int
    """Attempts in flight at once."""
    route: int = 0
    """Which of the job's routes: 0 its own, then its declared fallbacks."""
    starts: int = -1
    """Attempts that may be begun under this grant at all; -1: any number."""
    generation: int = 0
    """Of the route's breaker."""
    requests_per_s: float = 0.0
    """0: no bound; so for tokens."""
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    why: str = ""
    """Why it is less than was asked for; empty where nothing is the matter."""
    memo: bytes = b""
    """What the cortex wants told back, should it have to begin anew."""
    again_s: float = 0.0
    """Seconds until the route's open breaker is to be probed; 0: it is not open."""


class Answered(_Event, frozen=True, tag="answered"):
    """A call was answered."""

    goal: int
    sample: str
    attempt: int
    hash: bytes
    reply: Reply
    elapsed_s: float = 0.0
    """How long the request took."""
    waited_s: float = 0.0
    """How long it was at its branch before it was sent."""
    by: str = ""
    """The branch; empty where none made the attempt."""


class Recalled(_Event, frozen=True, tag="recalled"):
    """A call was found among the remembered replies: nothing is sent, nothing is paid.

    The journal keeps the reference alone where this same journal holds the reply; a reply that another job paid for is
    copied, so that a journal stands by itself.
    """

    goal: int
    sample: str
    hash: bytes
    reply: Reply | None
    seq: int = 0
    position: int = 0


class Broke(_Event, frozen=True, tag="broke"):
    """An attempt ended without a reply."""

    goal: int
    sample: str
    attempt: int
    failure: Failure
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    by: str = ""


class Observed(_Event, frozen=True, tag="observed"):
    """A tool read something of the outside world, or did something there."""

    goal: int
    attempt: int
    value: Any
    read_at_s: float
    failure: Failure | None = None
    elapsed_s: float = 0.0
    """From the moment at which a worker was asked."""
    by: str = ""
    """The worker."""


class Returned(_Event, frozen=True, tag="returned"):
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
    """It has not failed: it stopped, and goes on when it is spawned again."""
    report: Report | None = None
    """What a shard came to, in place of its bill."""


class Reported(_Event, frozen=True, tag="reported"):
    """A shard says what it has come to, and what it may commit and lacks."""

    goal: int
    report: Report


class Written(_Event, frozen=True, tag="written"):
    """The sink holds the first ``rows`` results, whole, in its first ``size_bytes`` bytes, on disk."""

    rows: int
    size_bytes: int
    parts: tuple[int, ...] = ()
    """Of how many results of each shard they are made."""


class LimitsSet(_Event, frozen=True, tag="limits_set"):
    """An operator changed the job's bounds: who, and what they are now."""

    who: str
    limits: Limits
    route: Route | None = None
    """Given where the credential or the price changed; another endpoint or model would be another job."""
    fallbacks: tuple[Route, ...] | None = None
    """Given where these changed: they may be others than before, or none."""
    role_routes: tuple[Route, ...] = ()
    """The same routes under other credentials or at other prices; none: as they were."""


class Stopped(_Event, frozen=True, tag="stopped"):
    """Someone asked the job to end: ``cancel`` for good, ``drain`` to be resumed later.

    Or the cortex condemns it (``condemn``), since its channel keeps dying: that ends it at once, resumable too.
    """

    who: str
    how: str
    story: str = ""
    """Of what happened, where the cortex condemns it."""


class Resumed(_Event, frozen=True, tag="resumed"):
    """Someone asked an ended but resumable job to go on."""

    who: str


class Reopened(_Event, frozen=True, tag="reopened"):
    """Rows that failed are to be asked again, as a part of the same job: their results are taken back.

    The rows themselves are fed again, after all others. Only for a job that has ended, complete or partial, and has
    read its source to the end; a program says whether it can be asked so (``Program.asks_again``).
    """

    who: str
    edition: int
    """Counts these events in a job, from 1 on: the same one twice is taken once."""
    keys: tuple[str, ...]
    """The rows."""
    lines: tuple[int, ...]
    """Where their results stand among those of the job so far, ascending."""
    kinds: dict[str, int]
    """How many of them failed how."""
    base: int
    """Position in the source after which they are fed."""
    ordered: bool = False
    """Whether results come in the order of the input: then ``lines`` are the rows' places in it."""
    written: tuple[int, int] = (0, 0)
    """Results and bytes that the sink keeps: none of a file, which is written anew; all of what cannot be cut back."""
    route: Route | None = None
    """Where the job's calls go from now on, if that is another model; then nothing else may be left to ask."""
    model: str = ""
    """The model that stands in these rows' requests from now on; empty: as it was."""
    output_tokens_max: int = 0
    """The same for ``max_tokens``; 0: as it was."""
    requests: bool = True
    """Whether a row is a whole request, which holds both itself."""


class Ticked(_Event, frozen=True, tag="ticked"):
    """Nothing but time passed: something was due."""


class Intended(_Event, frozen=True, tag="intended"):
    """These calls, in hand at the channel, shall go to the provider together."""

    number: int
    """Counts the submissions of a job."""
    route: int
    keys: tuple[int, ...]
    """Its attempts, as flights are named."""
    marker: str = ""
    """The account's newest batch at this time; empty where there is none."""


class Submitted(_Event, frozen=True, tag="submitted"):
    """The provider has a submission, as a message batch of this name. ``who``: the person who says so."""

    number: int
    name: str
    who: str = ""


class Unsubmitted(_Event, frozen=True, tag="unsubmitted"):
    """The provider surely has it not, and why. ``who``: the person who says so."""

    number: int
    failure: Failure
    who: str = ""


class Doubted(_Event, frozen=True, tag="doubted"):
    """A submission went out, and what came of it nobody heard."""

    number: int
    failure: Failure


class Stuck(_Event, frozen=True, tag="stuck"):
    """Nothing more can be learnt of a submission: its batch, or the list, cannot be read."""

    number: int
    failure: Failure


class Collected(_Event, frozen=True, tag="collected"):
    """The results of a submission were read to their end."""

    number: int


class Made(_Event, frozen=True, tag="made"):
    """In the turn before, a program that is traced made this goal. A replay in which it makes another is noticed."""

    goal: int
    kind: str
    value: Any


class Told(_Event, frozen=True, tag="told"):
    """Someone gave the answer of this name."""

    who: str
    name: str
    value: Any


class Leased(_Event, frozen=True, tag="leased"):
    """What the budgets of the job's labels let it commit, in place of what they did before."""

    slices: tuple[Slice, ...] = ()
    """One of each budget that covers it; none where none does."""
    said: str = ""
    """Why what the next call needs cannot be had, if so: which budget is used up."""
    again_s: float = 0.0
    """When that budget is whole again, in seconds since 1970."""


def reported(goal: int, blob: bytes) -> Reported:
    """What a shard says, as it came."""
    return Reported(goal, msgspec.msgpack.decode(blob, type=Report))


Event = (
    Opened | Rejoined | Fed | Granted | Answered | Recalled | Broke | Observed | Returned | Written | LimitsSet
    | Stopped | Resumed | Ticked | Intended | Submitted | Unsubmitted | Doubted | Stuck | Collected | Made
    | Told | Reopened | Leased | Reported
)  # fmt: skip


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """The events that a channel took together, in their order, and when: seconds since 1970, never decreasing."""

    at_s: float
    batches: tuple[tuple[Event, ...], ...]
    """A batch is what came in one message; its bytes enter the journal as they came."""
    account: bytes = b""
    """What the job came to in this turn, whatever its program is by now (``journal.Account``). Empty where that is what
    it was before; the step never reads it."""
