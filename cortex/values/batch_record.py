"""Submissions: calls of one job that go to the provider together, as one message batch."""

from __future__ import annotations

import enum

import msgspec

from policies.failures.failure import Failure


class SubmissionStatus(enum.StrEnum):
    """State of a submission."""

    INTENDED = "intended"
    """The intent is in the journal; the request may be on its way. Followed by one of the next three states."""
    RESTING = "resting"
    """The provider certainly does not have the submission; it is sent again when due."""
    DOUBTED = "doubted"
    """The outcome is unknown: the provider's batches are being searched for the submission."""
    OUT = "out"
    """The provider has the submission, under a name."""
    ASKING = "asking"
    """Code cannot decide the outcome: a person must say."""


class Submission(msgspec.Struct):
    """Submission, from its intent until all of its results are in K."""

    number: int
    route: int
    """Index of the job's route."""
    keys: list[int]
    """Attempts of the submission, by `flight_key`."""
    marker: str
    """The account's newest batch at the intent: batches newer than it were made since. Empty: there was none."""
    intended_at_s: float
    settled_at_s: float
    """Time from which no request can be pending: a list of later date that does not show the batch proves it was never
    made."""
    stand: SubmissionStatus = SubmissionStatus.INTENDED
    name: str = ""
    """The provider's id of the batch."""
    tries: int = 1
    """Number of attempts to submit it."""
    throttles: int = 0
    """Number of these that the provider throttled."""
    due_at_s: float = 0.0
    """Time of the next action, in seconds since 1970; 0: none."""
    failure: Failure | None = None
    """Reason why the provider does not have it, or why its outcome is unknown."""
    orphaned: bool = False
    """True if the bodies of its requests were lost with the channel that held them."""
    marker_at_s: float = 0.0
    """Time at which ``marker`` was created by the provider's clock, in seconds since 1970; 0: not known."""
    cancelled: bool = False
    """True if the job had the provider cancel it: results that came before the cancellation are still to be had."""

    def story(self) -> str:
        """Return a short description for people."""
        named = f", batch {self.name}" if self.name else ""
        return f"submission {self.number} ({len(self.keys):,} requests{named})"
