"""Limits that the jobs of a state folder have learned, as their journals tell, of jobs that run or can be resumed."""

from __future__ import annotations

import contextlib

from actors.history import final_state
from actors.history.catalog import by_events
from actors.jobs.learned_limits import LearnedLimit, learned_at
from actors.journal.journal import Journal, StateFolder, StoreError
from actors.limits import forgotten
from actors.limits.overrides import pools_of
from cortex.state.state import State

_OVER = ("complete", "failed", "cancelled")


def learned_limits(folder: StateFolder) -> dict[str, tuple[LearnedLimit, ...]]:
    """Return what was learned about each pool, from the newest state that a job has of it. What an operator dropped
    since, and pools of which nothing was learned, are left out."""
    found: dict[str, tuple[float, tuple[LearnedLimit, ...]]] = {}
    dropped = forgotten.times(folder.address)
    for job in folder.jobs():
        with contextlib.suppress(StoreError, ValueError):  # a damaged journal does not hide other jobs
            source = folder.journal(job)
            try:
                k = _state(source)
            finally:
                source.close()
            if k is None or k.outcome in _OVER:
                continue
            for (pool, _), share in zip(pools_of(k.terms), k.shares, strict=False):
                if share.granted_at_s > found.get(pool, (0.0, ()))[0]:
                    # a grant may be newer than the order and older than its arrival at the scheduler
                    kept = tuple(each for each in learned_at(share) if each.at_s > dropped.get(pool, 0.0))
                    found[pool] = share.granted_at_s, kept
    return {pool: limits for pool, (_, limits) in sorted(found.items()) if limits}


def _state(source: Journal) -> State | None:
    with source.as_it_is():
        ended = final_state.read(source)
        return ended.k if ended is not None else by_events(source)
