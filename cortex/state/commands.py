"""Commands of the core to its channel, carried out after the commit that holds their cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from cortex.state.goals import Goal


class _Command(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common wire format: an array whose first element names the command."""


class Call(_Command, frozen=True, tag="call"):
    """Make one bounded request. Its id is ``job/goal/sample``, taken from K; ``attempt`` numbers the tries."""

    goal: int
    sample: str
    attempt: int
    hash: bytes
    """Hash of (endpoint, model, prompt, parameters, sample): the identity of the question."""
    body: bytes
    """Canonical request (``cortex.values.canonical``)."""
    output_tokens_max: int
    prompt_tokens_max: int
    """M, the prompt's bound in tokens: the branch refuses a larger prompt, whatever the core computed."""
    timeout_s: float
    """Seconds that the attempt may take."""
    route: int = 0
    """Index of the job's route."""
    generation: int = 0
    """Generation of the route's breaker when the permit was given."""
    trace: str = ""
    """W3C ``traceparent`` of this attempt, set on the way out if it is sent to the provider; empty in K."""


class SubmitBatch(_Command, frozen=True, tag="submit"):
    """Send this submission to the provider, once."""

    number: int


class FindSubmission(_Command, frozen=True, tag="find"):
    """Search for this submission among the provider's batches."""

    number: int


class CollectResults(_Command, frozen=True, tag="collect"):
    """Fetch the results of this submission as soon as there are any."""

    number: int


class CancelSubmission(_Command, frozen=True, tag="withdraw"):
    """Cancel this batch at the provider: its results are not wanted any more."""

    number: int
    route: int
    name: str


class DiscardFiles(_Command, frozen=True, tag="discard"):
    """Delete the files of this batch at the provider: all of its results are on disk."""

    number: int
    route: int
    name: str


class StartToolRun(_Command, frozen=True, tag="run_tool"):
    """Run one tool on a worker. ``key`` is the call's id, an idempotency key for tools that accept one."""

    goal: int
    attempt: int
    tool: str
    arguments: dict[str, Any]
    key: str
    timeout_s: float
    """Seconds that the run may take, from its beginning at the worker."""
    at_once: int = 0
    """Runs of this tool that the job may have under way at once; 0: as many as its workers begin."""
    told: bool = False
    """True if its beginning is journalled before it (``ToolRunBegun``), since the tool must not run twice."""


class LaunchChildJob(_Command, frozen=True, tag="launch"):
    """Start, or join, the child job whose answer resolves this goal."""

    goal: int
    attempt: int
    program: str
    params_json: bytes
    max_cost_nusd: int | None
    max_job_tokens: int | None
    shards: int = 0
    """Number of shards of which the child is one, as in ``Spawn``; 0: it is no shard."""


class SuspendChildJob(_Command, frozen=True, tag="rest"):
    """Let the child job of this goal come to rest, because this job stops or pauses; both are resumed together."""

    goal: int
    attempt: int


class AbandonAttempt(_Command, frozen=True, tag="abandon"):
    """Give up waiting for this attempt. A reply that arrives nevertheless is kept, since it may have been billed."""

    goal: int
    attempt: int


class EmitResult(_Command, frozen=True, tag="emit"):
    """Deliver result number ``index`` of the job to its sink."""

    index: int
    value: Any
    failed: bool = False
    row: str = ""
    """Key of a failed row that can be asked again; otherwise empty."""
    kind: str = ""
    """Failure kind of that row."""
    order: int = -1
    """Position in the input, if results are wanted in the order of the input; otherwise -1."""


class FinishJob(_Command, frozen=True, tag="finish"):
    """End the job: ``complete``, ``partial`` (resumable), ``failed`` or ``cancelled``, and the reason."""

    outcome: str
    why: str


class RecordGoal(_Command, frozen=True, tag="made"):
    """Record with the next turn that a traced program made this goal."""

    goal: int
    kind: str
    value: Any


class LogLine(_Command, frozen=True, tag="log"):
    """Show a line of the program to observers."""

    at_s: float
    text: str


Command = (
    Call | SubmitBatch | FindSubmission | CollectResults | CancelSubmission | DiscardFiles | StartToolRun
    | LaunchChildJob | SuspendChildJob | AbandonAttempt | EmitResult | RecordGoal | LogLine | FinishJob
)  # fmt: skip


class StepCommands(list[Command]):
    """Commands of a step, with the goals that it made and the goals that it ended, for observers.

    An ended goal may already have left K: it is visible for the last time in `ended`.
    """

    __slots__ = ("ended", "made")

    def __init__(self) -> None:
        self.made: list[Goal] = []
        self.ended: list[Goal] = []
