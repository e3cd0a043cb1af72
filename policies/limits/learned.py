"""Bounds that a pool's limit was learned to have, with their sources and ages: for people who look at it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from policies.limits import probing as search
from policies.limits import told_queue
from policies.limits.limit import PoolLimit, tells_nothing
from policies.limits.limit_policy import ProbeMode


class LearnedFrom(StrEnum):
    """Source of a learned bound."""

    HEADERS = "headers"
    """Rate-limit headers of answers."""
    REFUSALS = "429"
    """Calls that were refused."""
    METRICS = "metrics"
    """Counts in the server's own metrics."""
    WAITS = "waits"
    """Time for which calls waited, as the durations of answers tell."""


class LearnedUnit(StrEnum):
    """Unit of a learned bound."""

    REQUESTS = "requests/s"
    INPUT_TOKENS = "input tokens/s"
    OUTPUT_TOKENS = "output tokens/s"
    TOKENS = "tokens/s"
    """Of both directions, the longest answers included, as OpenAI counts them."""
    AT_ONCE = "calls at once"
    STRAYS = "of the calls refused whatever is sent"
    """Share, from 0 to 1: such refusals begin no episode."""


class LearnedBound(msgspec.Struct, frozen=True):
    """Bound on all holders of a pool together."""

    source: LearnedFrom
    unit: LearnedUnit
    amount: float
    age_s: float
    """Seconds since the refusal from which on it has bound; of headers, metrics and waits: since the latest reading."""


def learned(limit: PoolLimit, at_s: float) -> tuple[LearnedBound, ...]:
    """Return what was learned about a pool, at `at_s` on its clock; empty while nothing was: slow start goes on."""
    found = [
        LearnedBound(LearnedFrom.HEADERS, unit, known.per_s, _age_s(at_s, known.reported_at_s))
        for unit, known in (
            (LearnedUnit.REQUESTS, limit.requests), (LearnedUnit.INPUT_TOKENS, limit.input_tokens),
            (LearnedUnit.OUTPUT_TOKENS, limit.output_tokens), (LearnedUnit.TOKENS, limit.tokens),
        )
        if known.per_s
    ]  # fmt: skip
    probing = limit.probing
    age_s = _age_s(at_s, probing.bound_at_s or probing.empty_at_s)
    if probing.mode is ProbeMode.RATE:
        rate = search.pace(probing)
        found.append(LearnedBound(LearnedFrom.REFUSALS, LearnedUnit.REQUESTS, rate, age_s))
    elif probing.mode is ProbeMode.CONCURRENCY:
        permits = float(int(probing.concurrency))
        found.append(LearnedBound(LearnedFrom.REFUSALS, LearnedUnit.AT_ONCE, permits, age_s))
    if probing.strays.tolerated:
        share, ended_s = probing.strays.tolerated, probing.strays.ended_at_s
        found.append(LearnedBound(LearnedFrom.REFUSALS, LearnedUnit.STRAYS, share, _age_s(at_s, ended_s)))
    return (*found, *_of_queue(limit, at_s))


def _of_queue(limit: PoolLimit, at_s: float) -> tuple[LearnedBound, ...]:
    """Bound at a server that queues calls; empty while none waits."""
    queue = limit.queue
    if queue is None or queue.left or not tells_nothing(limit):
        return ()
    permits = float(int(limit.probing.concurrency))
    if told_queue.is_told(queue.told, at_s):
        return (
            LearnedBound(LearnedFrom.METRICS, LearnedUnit.AT_ONCE, permits, _age_s(at_s, queue.told.heard_s)),
        )  # fmt: skip
    if queue.growing or not queue.waiting.heard_s:
        return ()
    return (LearnedBound(LearnedFrom.WAITS, LearnedUnit.AT_ONCE, permits, _age_s(at_s, queue.waiting.heard_s)),)


def _age_s(at_s: float, since_s: float) -> float:
    return max(at_s - since_s, 0.0)
