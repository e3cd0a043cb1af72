"""Slices of budgets that a job was lent, as records of K."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from cortex.state.state import State


JOB, TOKENS = "job", "tokens"
"""Periods of slices of what a job may cost, and of its tokens, that its parent lends a shard: from its beginning on."""


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """What the job was lent of one budget."""

    budget: str
    """Its name, for people."""
    period: str
    """``day``, ``month``, or ``JOB`` and ``TOKENS``, which have no window."""
    window: int
    """The day on which it begins for which it was lent, counted from 1970-01-01 UTC."""
    upto_nusd: int
    """So much the job may commit in that window, all told, in 1e-9 USD."""


class Purse(msgspec.Struct, array_like=True):
    """What the job was lent, and what it lacks."""

    slices: tuple[Slice, ...] = ()
    said: str = ""
    """Why no more is to be had; empty where more may come."""
    again_s: float = 0.0
    """When the budget is whole again."""
    since_s: float = 0.0
    """Since when no more is to be had."""
    lacks_nusd: int = 0
    """What the call costs at most for which there was no room; 0 where there was none such since the last slice."""
    lacks_tokens: int = 0
    """The same in tokens."""


NOTHING_YET = Slice("of its labels", "day", -1, 0)
"""Of a job that could not ask for the budgets of its labels yet: nothing, on no day."""


def wait_ends_s(k: State) -> float:
    """When a job that waits for its budget has waited as long as its user wanted; 0 where it does not wait for that."""
    purse = k.purse
    return purse.since_s + k.terms.limits.blocked_wait_s if purse is not None and purse.said else 0.0


def rests(k: State) -> bool:
    """Whether a call is held back for which no budget has anything left."""
    return k.purse is not None and bool(k.purse.said)
