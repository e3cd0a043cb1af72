"""What a program may want done to K: the author's imperative vocabulary.

A program never touches K. Its ``select`` and ``absorb`` yield these; the loop checks all of them together and then
applies all of them or none. ``Goal`` and ``Item`` (made new) belong to the vocabulary too.
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
    """Make one bounded call for an open goal. Only select may ask.

    Either ``prompt`` (rendered by this program) or ``body`` (a whole request in the Messages form, JSON) is given.
    ``uses`` names the items that the prompt was made of: observations among them that are stale are read again first,
    and select is asked once more.
    """

    goal: Goal
    prompt: Prompt | Conversation | None = None
    body: bytes | None = None
    output_tokens_max: int | None = None
    params: dict[str, Any] | None = None
    sample: str | None = None
    uses: tuple[Item, ...] = ()
    made: tuple[bytes, str, int, int] | None = None
    """What the prompt was made into already, as ``cortex.calls.request.rendered`` says it."""
    role: str = ""
    """Which model is asked: the one that the job's user gave this role, else the job's own."""


class Vote(msgspec.Struct, frozen=True):
    """Ask for an open goal until one answer is ahead of every other by ``k`` votes. Only select may ask.

    Which replies agree is the program's ``ballot``; ``absorb`` then gets the winner's first reply, as if it had been
    asked once. A reply that ``ballot`` refuses, or that stops at ``output_tokens_max``, is discarded, and another
    sample is asked for. ``policies.decisions.voting.k_min`` plans k.
    """

    goal: Goal
    prompt: Prompt | Conversation | None = None
    body: bytes | None = None
    k: int = 3
    output_tokens_max: int | None = None
    params: dict[str, Any] | None = None
    samples_max: int = 0
    """Samples after which the goal fails, MALFORMED, with nobody ahead; 0: 20 k + 20."""
    uses: tuple[Item, ...] = ()
    role: str = ""
    """As in ``Ask``."""


class Resolve(msgspec.Struct, frozen=True, gc=False):
    """The goal is met; this is its answer (plain data: text, numbers, lists, dicts, bytes)."""

    goal: Goal
    answer: Any = None


class Fail(msgspec.Struct, frozen=True):
    """The goal cannot be met; of which kind the failure is, where no call failed."""

    goal: Goal
    why: str
    kind: FailureKind = FailureKind.MALFORMED


class Wait(msgspec.Struct, frozen=True):
    """The goal waits for its children under a join; then it is open again, ``partial`` where the join was not met.

    The join is over the children that no earlier one has merged: each round has its own. ``deadline_s`` takes the place
    of the join's own; with no children to wait for, the goal waits for that time.
    """

    goal: Goal
    join: Join | None = Join()
    """None: it waits until the program itself ends or reopens it."""
    deadline_s: float | None = None


class Expect(msgspec.Struct, frozen=True):
    """The goal waits for an answer from outside, under this name; ``absorbed`` then gets it.

    A job that waits for nothing else rests until somebody answers.
    """

    goal: Goal
    name: str


class Checkpoint(msgspec.Struct, frozen=True):
    """To go on with this goal nothing is needed but ``value`` and its first ``children`` children: the rest leaves K.

    The value stands in ``goal.kept``. Children that live are abandoned.
    """

    goal: Goal
    value: Any = None
    children: int = 0


class Log(msgspec.Struct, frozen=True):
    """A line for whoever watches the job: said once, not when it is replayed."""

    text: str


class Reopen(msgspec.Struct, frozen=True):
    """The goal needs another turn: select will see it open. ``resample`` makes its next question a new sample.

    Whatever it waited for (a reply, a tool, a child job) is let go. ``refused``: why its reply was no answer, where the
    program asks for another by itself: counted as MALFORMED, and kept as ``goal.refused`` and in ``goal.resamples``.
    """

    goal: Goal
    resample: bool = False
    refused: str = ""


class Abandon(msgspec.Struct, frozen=True):
    """Nobody wants this goal any more, nor what serves it."""

    goal: Goal


class Emit(msgspec.Struct, frozen=True, gc=False):
    """A result for the job's sink. ``order`` is its place in the input, where the input's order is asked for."""

    value: Any
    order: int | None = None
    failed: bool = False
    row: str = ""
    """Key of the row that failed, and the kind of its failure: such a row can be asked again. Empty: it cannot."""
    kind: str = ""


class RunTool(msgspec.Struct, frozen=True):
    """Run one of the program's tools for an open goal; ``absorbed`` then gets what it returned."""

    goal: Goal
    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Observe(msgspec.Struct, frozen=True):
    """Read something of the outside world for an open goal, as an item of ``kind`` to be believed for ``trust_s``."""

    goal: Goal
    kind: str
    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    trust_s: float = 60.0


class Spawn(msgspec.Struct, frozen=True):
    """Let another program's answer be the answer of this open goal: a child job with a journal of its own."""

    goal: Goal
    program: Program
    max_cost_nusd: int | None = None
    shards: int = 0
    """It is one of so many shards of this job: its driver feeds it rows, and it is lent money as it goes."""


Change = (
    Goal | Item | Resolve | Fail | Wait | Expect | Checkpoint | Log | Reopen | Abandon | Emit | RunTool | Observe
    | Spawn
)
