"""A submission: calls of one job that go to the provider together, as one message batch."""

from __future__ import annotations

import enum

import msgspec

from policies.failures.failure import Failure


class Stand(enum.StrEnum):
    """Where a submission stands."""

    INTENDED = "intended"
    """The intent is in the journal; the request may be on its way. Ends in one of the next three."""
    RESTING = "resting"
    """The provider surely has it not; it goes again when it is due."""
    DOUBTED = "doubted"
    """Nobody knows whether the provider has it: its batches are being looked through."""
    OUT = "out"
    """The provider has it, under a name."""
    ASKING = "asking"
    """Code cannot decide what became of it: a person must say."""


class Submission(msgspec.Struct):
    """One submission, from its intent until all of its results are in K."""

    number: int
    route: int
    """Which of the job's routes."""
    keys: list[int]
    """Its attempts, as flights are named."""
    marker: str
    """The account's newest batch when it was intended: what is newer was made since. Empty: there was none."""
    intended_at_s: float
    settled_at_s: float
    """From then on nothing of it can be on its way: a list that does not show it proves that it was never made."""
    stand: Stand = Stand.INTENDED
    name: str = ""
    """The provider's id of the batch."""
    tries: int = 1
    throttles: int = 0
    due_at_s: float = 0.0
    failure: Failure | None = None
    """Why it is not with the provider, or why nobody knows."""
    orphaned: bool = False
    """The bodies of its requests died with the channel that held them."""

    def story(self) -> str:
        """A few words for a person."""
        named = f", batch {self.name}" if self.name else ""
        return f"submission {self.number} ({len(self.keys):,} requests{named})"
