"""What the core wants done, in the imperative. A channel carries these out after the commit that holds their cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from cortex.state.goals import Goal


class _Command(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common form on the wire: an array whose first element names the command."""


class Call(_Command, frozen=True, tag="call"):
    """Make one bounded request. Its id is ``job/goal/sample``, taken from K; ``attempt`` numbers the tries."""

    goal: int
    sample: str
    attempt: int
    hash: bytes
    """Hash of (endpoint, model, prompt, parameters, sample): the question's identity."""
    body: bytes
    """The request in the Messages form, JSON, without ``stream``."""
    output_tokens_max: int
    prompt_tokens_max: int
    """M: the branch refuses a prompt above it, whatever the core thought."""
    timeout_s: float
    route: int = 0
    """Which of the job's routes."""
    generation: int = 0
    """Of that route's breaker, when the permit was given."""
    trace: str = ""
    """The W3C ``traceparent`` of this attempt, put in on the way out where it is to go to the provider; K has none."""


class Submit(_Command, frozen=True, tag="submit"):
    """Hand this submission to the provider, once."""

    number: int


class Find(_Command, frozen=True, tag="find"):
    """Look for this submission among the provider's batches."""

    number: int


class Collect(_Command, frozen=True, tag="collect"):
    """Bring the results of this submission as soon as there are any."""

    number: int


class Withdraw(_Command, frozen=True, tag="withdraw"):
    """Nobody waits for this batch any more: cancel it at the provider."""

    number: int
    route: int
    name: str


class RunTool(_Command, frozen=True, tag="run_tool"):
    """Run one tool on a worker. ``key`` is the call's id, an idempotency key for tools that take one."""

    goal: int
    attempt: int
    tool: str
    arguments: dict[str, Any]
    key: str
    timeout_s: float


class Launch(_Command, frozen=True, tag="launch"):
    """Start, or join, the child job whose answer resolves this goal."""

    goal: int
    attempt: int
    program: str
    params_json: bytes
    max_cost_nusd: int | None
    max_job_tokens: int | None
    shards: int = 0
    """As in ``Spawn``."""


class Rest(_Command, frozen=True, tag="rest"):
    """This job stops or pauses: let the child job that works for the goal come to rest too, to be resumed with it."""

    goal: int
    attempt: int


class Abandon(_Command, frozen=True, tag="abandon"):
    """Nobody waits for this attempt any more. Its reply is welcome all the same: it may have been paid."""

    goal: int
    attempt: int


class Emit(_Command, frozen=True, tag="emit"):
    """Result number ``index`` of the job is ready for its sink."""

    index: int
    value: Any
    failed: bool = False
    row: str = ""
    """Of one that failed and could be asked again: key of the row, and kind of the failure."""
    kind: str = ""
    order: int = -1
    """Its place in the input, where the input's order was asked for."""


class Finish(_Command, frozen=True, tag="finish"):
    """The job has ended: ``complete``, ``partial`` (resumable), ``failed`` or ``cancelled``, and why."""

    outcome: str
    why: str


class Made(_Command, frozen=True, tag="made"):
    """A program that is traced made this goal: to be written down with the next turn."""

    goal: int
    kind: str
    value: Any


class Log(_Command, frozen=True, tag="log"):
    """A line of the program for whoever watches."""

    at_s: float
    text: str


Command = (
    Call | Submit | Find | Collect | Withdraw | RunTool | Launch | Rest | Abandon | Emit | Made | Log | Finish
)  # fmt: skip


class Decided(list[Command]):
    """What a step wants done; and beside it, for whoever looks on, the goals that it made and those that it ended.

    A goal that has ended may have left K already: here it is seen once more.
    """

    __slots__ = ("ended", "made")

    def __init__(self) -> None:
        self.made: list[Goal] = []
        self.ended: list[Goal] = []
