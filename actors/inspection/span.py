"""Span of a job's turns from one opening to the next."""

from __future__ import annotations

import msgspec

from cortex.state.program import Program
from cortex.values.limits import JobTerms


class TurnSpan(msgspec.Struct, frozen=True):
    """The turns of a job from one opening to the next: it began anew where its program had changed."""

    after: int
    """Number of the turn before its first."""
    upto: int
    """Number of its last turn."""
    terms: JobTerms
    first_goal: int
    program: Program | None
    """None where the program that took these turns is gone or has changed."""
