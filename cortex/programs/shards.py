"""``shards``: a job of rows divided into several child jobs. Each shard is a goal whose answer is a child job's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from cortex.programs.batch import Batch
from cortex.programs.embed import Embed
from cortex.programs.table import Table
from cortex.state.changes import Change, Spawn
from cortex.state.program import Program
from cortex.state.state import Goal, State, Status


class Shards(Program, frozen=True):
    """Run ``batch``, ``table`` or ``embed`` as several child jobs."""

    name: ClassVar[str] = "shards"
    rows_are_goals: ClassVar[bool] = False
    calls_models: ClassVar[bool] = False

    shards: int
    batch: Batch | None = None
    table: Table | None = None
    embed: Embed | msgspec.UnsetType = msgspec.UNSET
    """Unset in journals of release 0.1.0, whose parameters are thus unchanged."""

    @property
    def of(self) -> Batch | Table:
        """Program that each shard runs."""
        return self.table or self.batch or Batch() if self.embed is msgspec.UNSET else self.embed

    def rows_are_requests(self) -> bool:
        """Return the value of the shards' program."""
        return self.of.rows_are_requests()

    def answer_types(self) -> tuple[str, ...]:
        """Return the types of the shards' program."""
        return self.of.answer_types()

    def begin(self, k: State) -> Iterable[Change]:
        """Return a goal for each shard, in the order in which rows are assigned."""
        return [Goal("shard", number) for number in range(self.shards)]

    def select(self, k: State) -> Iterable[Change]:
        """Yield all open shards, and again those that came to rest."""
        for goal in k.open("shard"):
            yield Spawn(goal, self.of, shards=self.shards)

    def unmet(self, k: State) -> str:
        """Return the failure of the first shard that failed for good."""
        for goal in k.goals_of("shard"):
            if goal.status == Status.FAILED and goal.failure is not None:
                return f"{goal.failure.kind}: {goal.failure.message}"
        return ""

    def answer(self, k: State) -> None:
        """Return None: the answer is the file of results."""


def sharded(program: Program, shards: int) -> Program:
    """Return the program divided into this number of shards, or the program itself for one shard.

    Raises ``ValueError`` for a program without rows.
    """
    if shards <= 1:
        return program
    if isinstance(program, Embed):
        return Shards(shards=shards, embed=program)
    if isinstance(program, Table):
        return Shards(shards=shards, table=program)
    if isinstance(program, Batch):
        return Shards(shards=shards, batch=program)
    raise ValueError(f"shards are for rows of `cortex batch` and `cortex embed`, not for {type(program).__name__}")


def unsharded(program: Program) -> tuple[Program, int]:
    """Return the program of a job's rows, and the number of its shards."""
    return (program.of, program.shards) if isinstance(program, Shards) else (program, 1)
