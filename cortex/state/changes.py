"""Changes of K that a program may request.

A program never modifies K. Its ``select`` and ``absorb`` yield changes; the loop checks all of them together and then
applies all of them or none. New ``Goal`` and ``Item`` objects are changes too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cortex.state.state import Goal, Item
from cortex.values.conversation import Conversation
from cortex.values.prompt import Prompt
from policies.decisions.join import Join
from policies.failures.failure import FailureKind

if TYPE_CHECKING:
    from cortex.state.program import Program


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Make one bounded call for an open goal. Only select may yield it.

    Give either ``prompt`` (rendered by this program) or ``body`` (a whole canonical request,
    ``cortex.values.canonical``). ``uses`` names the items that the prompt was made of: stale observations among them
    are read again first, and select is called once more.
    """

    goal: Goal
    """Open goal."""
    prompt: Prompt | Conversation | None = None
    """Prompt or conversation, rendered within M."""
    body: bytes | None = None
    """Whole request in the Messages format, JSON."""
    output_tokens_max: int | None = None
    """``max_tokens`` of the call; None: the job's default."""
    params: dict[str, Any] | None = None
    """Further parameters of the request, such as ``temperature``."""
    sample: str | None = None
    """Sample number; None: the goal's own."""
    uses: tuple[Item, ...] = ()
    """Items that the prompt was made of."""
    made: tuple[bytes, str, int, int] | None = None
    """Rendered prompt, if the caller has it already, as returned by ``cortex.calls.request.rendered``."""
    role: str = ""
    """Role whose model is asked: the model that the user assigned to it, else the job's own."""


class Vote(msgspec.Struct, frozen=True):
    """Ask for an open goal until one answer is ahead of every other by ``k`` votes. Only select may yield it.

    The program's ``ballot`` decides which replies agree; ``absorb`` then gets the winner's first reply, as if it had
    been the only one. A reply that ``ballot`` refuses, or that stops at ``output_tokens_max``, is discarded, and
    another sample is requested. ``policies.decisions.voting.k_min`` computes k.
    """

    goal: Goal
    """Open goal."""
    prompt: Prompt | Conversation | None = None
    body: bytes | None = None
    k: int = 3
    """Votes by which the winner must be ahead."""
    output_tokens_max: int | None = None
    """``max_tokens`` of a vote; None: the job's default."""
    params: dict[str, Any] | None = None
    """Further parameters of the request."""
    samples_max: int = 0
    """Samples after which the goal fails as MALFORMED if no answer is ahead; 0: 20 k + 20."""
    uses: tuple[Item, ...] = ()
    """Items that the prompt was made of."""
    role: str = ""
    """Role whose model is asked, as in ``Ask``."""


class Resolve(msgspec.Struct, frozen=True, gc=False):
    """End a goal as met, with its answer (plain data: text, numbers, lists, dicts, bytes)."""

    goal: Goal
    answer: Any = None


class Fail(msgspec.Struct, frozen=True):
    """End a goal as failed."""

    goal: Goal
    why: str
    """Reason, in one line."""
    kind: FailureKind | None = None
    """Kind of the failure; None: that of the call that failed, or ``malformed`` if none did."""


class Wait(msgspec.Struct, frozen=True):
    """Let a goal wait for its children under a join; then it is open again, ``partial`` if the join was not met.

    The join covers the children that no earlier join has merged, so each round has its own. ``deadline_s`` (seconds)
    replaces the join's own deadline; without children to wait for, the goal waits for that time.
    """

    goal: Goal
    join: Join | None = Join()
    """None: the goal waits until the program ends or reopens it."""
    deadline_s: float | None = None
    """Seconds until the wait ends; None: the join's own deadline."""


class Expect(msgspec.Struct, frozen=True):
    """Let a goal wait for an external answer with this name; ``absorbed`` then gets the answer.

    A job that waits for nothing else rests until the answer is given.
    """

    goal: Goal
    name: str


class Checkpoint(msgspec.Struct, frozen=True):
    """Remove from K everything that a goal no longer needs: only ``value`` and its first ``children`` children stay.

    The value is available as ``goal.kept``. Live children beyond the first ``children`` are abandoned.
    """

    goal: Goal
    value: Any = None
    children: int = 0


class Log(msgspec.Struct, frozen=True):
    """Show a line to observers of the job: once, and not again when the turn is replayed."""

    text: str


class Reopen(msgspec.Struct, frozen=True):
    """Open a goal again, so that select sees it once more. ``resample`` makes its next question a new sample.

    Anything the goal waited for (a reply, a tool, a child job) is abandoned. ``refused`` is the reason why the reply
    was no answer, if the program asks for another by itself: the reply counts as MALFORMED, and the reason is kept as
    ``goal.refused`` and counted in ``goal.resamples``.
    """

    goal: Goal
    resample: bool = False
    refused: str = ""


class Abandon(msgspec.Struct, frozen=True):
    """End a goal, and the goals that serve it, because its result is not needed any more."""

    goal: Goal


class Emit(msgspec.Struct, frozen=True, gc=False):
    """Deliver a result to the job's sink. ``order`` is its position in the input, if the input's order is wanted."""

    value: Any
    """Plain data: a line of the results."""
    order: int | None = None
    failed: bool = False
    """True if the result says that a row failed."""
    row: str = ""
    """Key of a failed row that can be asked again; empty: it cannot."""
    kind: str = ""
    """Failure kind of that row."""
    ending: str = ""
    """Ending of the reply (``cortex.values.endings``) if the result is no failure and the reply no whole answer."""


class RunTool(msgspec.Struct, frozen=True):
    """Run one of the program's tools for an open goal; ``absorbed`` then gets its return value."""

    goal: Goal
    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Observe(msgspec.Struct, frozen=True):
    """Read external state with a tool for an open goal, as an item of ``kind`` that stays valid for ``trust_s``
    seconds.
    """

    goal: Goal
    kind: str
    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    trust_s: float = 60.0
    """Seconds for which the value may be used; 60 by default."""


class Spawn(msgspec.Struct, frozen=True):
    """Answer an open goal with the answer of another program, run as a child job with its own journal."""

    goal: Goal
    program: Program
    max_cost_nusd: int | None = None
    """Cost cap of the child in 1e-9 USD; None: what this job can spare."""
    shards: int = 0
    """Number of shards of this job of which the child is one: the driver feeds it rows, and money is lent to it in
    slices. 0: the child is no shard."""


Change = (
    Goal | Item | Resolve | Fail | Wait | Expect | Checkpoint | Log | Reopen | Abandon | Emit | RunTool | Observe
    | Spawn
)
"""Any change that a program may yield."""
