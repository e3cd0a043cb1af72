"""Span of a job's turns from one opening to the next."""

from __future__ import annotations

import msgspec

from cortex.state.program import Program
from cortex.values.limits import JobTerms


class TurnSpan(msgspec.Struct, frozen=True):
    """Turns of a job from one opening to the next. A job is opened again when its program has changed."""

    after: int
    """Number of the turn before the first of the span."""
    upto: int
    """Number of the last turn of the span."""
    terms: JobTerms
    first_goal: int
    program: Program | None
    """Program that took these turns; None if it is gone or has changed."""
