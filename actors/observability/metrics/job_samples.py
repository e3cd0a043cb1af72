"""Metric samples of a job, read from its K. K keeps all counters, so that no restart loses them."""

from __future__ import annotations

from collections.abc import Iterator

from actors.jobs.ending_cause import blocked_now
from actors.jobs.summary import unreadable_rows
from actors.observability.metrics.instruments import CERTAINTY as CERTAINTY
from actors.observability.metrics.instruments import (
    DEPRECATED,
    ENDING,
    JOB,
    KIND,
    LABEL,
    LABEL_VALUE,
    OUTCOME,
    TOKEN_TYPE,
)
from actors.observability.metrics.samples import Labels, NumberSample
from cortex.state.budget_slice import rests
from cortex.state.state import State
from cortex.values.counters import JobCounters
from cortex.values.endings import Ending
from policies.estimates.price import usd
from policies.failures.failure import FailureKind


def of_job(k: State, own: Labels = ()) -> Iterator[NumberSample]:
    """Yield the job's counters and gauges. Cheap: the cost does not grow with the job. ``own``: its labels.

    What its parent's K counts as well, a child job does not tell again: a shard nothing but its present state, another
    child neither rows nor tokens and cost, which the parent has from its end on.
    """
    found = _of_job(k, own or ((JOB, k.terms.job),))
    if k.terms.shard:
        return (each for each in found if each.name in _OF_SHARD)
    if "~" in k.terms.job:
        return (each for each in found if not each.name.startswith(_OF_PARENT))
    return found


def _of_job(k: State, own: Labels) -> Iterator[NumberSample]:
    tally, ledger, limits = k.tally, k.ledger, k.terms.limits
    # K of a job with shards counts what its shards report, attempts by their failures alone
    answered = tally.answered if k.shards else k.successes

    def by(name: str, attribute: str, values: dict[str, int]) -> Iterator[NumberSample]:
        for value, count in values.items():
            yield NumberSample(name, (*own, (attribute, value)), count)

    yield from by(
        "cortex.calls", OUTCOME,
        {"answered": tally.answered, "reused": ledger.reused_calls, "failed": tally.calls_failed},
    )  # fmt: skip
    yield from by("cortex.attempts", KIND, {"answered": answered, **_NO_FAILURES, **_by_kind(tally.failures)})
    refused = tally.rows_refused
    yield from by(
        "cortex.rows", OUTCOME, {"succeeded": tally.succeeded, "failed": tally.failed - refused, "refused": refused}
    )
    yield from by("cortex.rows.endings", ENDING, rows_by_ending(tally))
    yield from by(
        "cortex.tokens", TOKEN_TYPE,
        {
            "input": ledger.input_tokens, "output": ledger.output_tokens, "cache_read": ledger.cache_read_tokens,
            "cache_creation": ledger.cache_creation_tokens,
        },
    )  # fmt: skip
    plain: dict[str, float | None] = {
        "cortex.retries": tally.retries, "cortex.hedges": tally.hedges, "cortex.votes": tally.votes,
        "cortex.cost.usd": usd(ledger.known_nusd), "cortex.cost.assumed.usd": usd(ledger.assumed_nusd),
        "cortex.cost.reserved.usd": usd(ledger.reserved_nusd),
        "cortex.cost.cap.usd": None if limits.max_cost_nusd is None else usd(limits.max_cost_nusd),
        "cortex.tokens.cap": limits.max_job_tokens, "cortex.tokens.committed": ledger.committed_tokens,
        "cortex.rows.expected": rows_expected(k), "cortex.rows.unreadable": unreadable_rows(k),
        "cortex.calls.open": max(0, tally.calls - tally.answered - ledger.reused_calls - tally.calls_failed),
        "cortex.calls.in_flight": len(k.flights), "cortex.queue": k.offered, "cortex.permits": k.permits,
        "cortex.job.deadline": limits.deadline_at_s, "cortex.job.blocked": int(blocked_now(k)),
        "cortex.job.over_budget": int(rests(k) and not k.outcome),
    }  # fmt: skip
    for name, value in plain.items():
        if value is not None:
            yield NumberSample(name, own, value)
            if name in DEPRECATED:
                yield NumberSample(DEPRECATED[name], own, value)
    for label, text in k.terms.labels.items():  # separate series, to be joined by job
        yield NumberSample("cortex.job.label", (*own, (LABEL, label), (LABEL_VALUE, text)), 1)


def rows_expected(k: State) -> int:
    """Return the rows of the whole input if they were counted before the job began, else the rows read or made so
    far."""
    counted = k.terms.places.get("rows", "")
    known = k.tally.rows_read if k.terms.streams else k.tally.succeeded + k.tally.failed
    return max(known, int(counted) if counted.isdecimal() else 0)


def rows_by_ending(tally: JobCounters) -> dict[str, int]:
    """Return the rows, or other top goals, that had a reply, by the ending of the last one; all endings are there.

    A row whose reply is no whole answer has failed with the ending as its kind, or has a result all the same. A failed
    row of any other kind, such as ``malformed``, is not counted.
    """
    counts = {str(Ending.WHOLE): tally.succeeded - sum(tally.endings.values())}
    for ending in _NOT_WHOLE:
        counts[ending] = tally.endings.get(ending, 0) + tally.failed_for_good.get(ending, 0)
    return counts


_OF_SHARD = frozenset({"cortex.calls.in_flight", "cortex.queue", "cortex.permits"})
_OF_PARENT = ("cortex.rows", "cortex.cost", "cortex.tokens", "cortex.job.label")
_NO_FAILURES = {str(kind): 0 for kind in FailureKind}
"""Kinds of failure, each at 0: the rise of a counter is seen only from its first sample on."""
_NOT_WHOLE = tuple(str(ending) for ending in Ending if ending is not Ending.WHOLE)


def _by_kind(failures: dict[str, int]) -> dict[str, int]:
    return {str(kind): count for kind, count in failures.items()}
