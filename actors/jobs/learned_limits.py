"""Limits that were learned from a provider or server, with their sources and times, in words."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from cortex.scheduler.pools import learned_in
from cortex.state.route_share import RouteShare
from policies.limits.learned import LearnedBound, LearnedFrom, LearnedUnit
from policies.limits.pace import Pace

_FROM = {
    LearnedFrom.HEADERS: "from rate-limit headers, read", LearnedFrom.REFUSALS: "after 429, since",
    LearnedFrom.METRICS: "from the server's metrics, read", LearnedFrom.WAITS: "from the wait of its answers, read",
}  # fmt: skip
_MINUTE = {
    LearnedUnit.REQUESTS: "requests a minute", LearnedUnit.INPUT_TOKENS: "input tokens a minute",
    LearnedUnit.OUTPUT_TOKENS: "output tokens a minute", LearnedUnit.TOKENS: "tokens a minute",
}  # fmt: skip


class LearnedLimit(msgspec.Struct, frozen=True):
    """Learned bound with the time of day to which its age leads."""

    bound: LearnedBound
    at_s: float
    """Time of the refusal or of the reading, in seconds since 1970."""

    def words(self, clock: str) -> str:
        """Return the bound, its source, and ``clock``, the time as text: ``0.4 requests/s after 429, since 07:43``."""
        return f"{_amount(self.bound)} {_FROM[self.bound.source]} {clock}"


def learned_at(share: RouteShare) -> tuple[LearnedLimit, ...]:
    """Return what the pool of a route had learned when its latest grant was given."""
    return tuple(LearnedLimit(bound, share.granted_at_s - bound.age_s) for bound in learned_in(share.memo))


def pace_words(share: RouteShare) -> str:
    """Return by which rate, since when and why a route is paced: ``paced at 0.4/s since 07:43:12, after 429``."""
    pace = share.pace
    if pace is None:
        return "paced"
    unit, rate = _binding(pace)
    found = learned_at(share)
    refused = next((each for each in found if each.bound.source is LearnedFrom.REFUSALS and _bounds(each, unit)), None)
    told = any(each.bound.source is LearnedFrom.HEADERS and _sets(each.bound, unit) for each in found)
    if told and (refused is None or not _is_less(refused.bound, found)):
        return f"paced at {_per_s(unit, rate)}, by rate-limit headers"
    if refused is None:
        return f"paced at {_per_s(unit, rate)}"
    return f"paced at {_per_s(unit, rate)} since {time_of_day(refused.at_s)}, after 429"


def limit_words(share: RouteShare) -> str:
    """Return the learned limit of calls at once, with its source and time; empty where none was learned."""
    found = [each for each in learned_at(share) if each.bound.unit is LearnedUnit.AT_ONCE]
    return found[0].words(time_of_day(found[0].at_s)) if found else ""


def time_of_day(at_s: float) -> str:
    """Return a time in local time, with the date unless it is today."""
    moment = datetime.fromtimestamp(at_s, UTC).astimezone()
    today = datetime.now(UTC).astimezone().date()
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M")


def _binding(pace: Pace) -> tuple[LearnedUnit, float]:
    """Return unit and rate of the bound by which the next call is due last."""
    rates = (
        (pace.requests_per_s, pace.requests_due_s, LearnedUnit.REQUESTS),
        (pace.input_tokens_per_s, pace.input_due_s, LearnedUnit.INPUT_TOKENS),
        (pace.output_tokens_per_s, pace.output_due_s, LearnedUnit.OUTPUT_TOKENS),
    )
    rate, _, unit = max((each for each in rates if each[0]), key=lambda each: each[1], default=rates[0])
    return unit, rate


def _bounds(each: LearnedLimit, unit: LearnedUnit) -> bool:
    """Return whether a bound from refusals sets a rate of this unit: one of calls at once does, by their duration."""
    return unit is LearnedUnit.REQUESTS and each.bound.unit in (LearnedUnit.REQUESTS, LearnedUnit.AT_ONCE)


def _sets(told: LearnedBound, unit: LearnedUnit) -> bool:
    """Return whether a bound from headers sets a rate of this unit: tokens of both directions bound requests."""
    return told.unit is unit or (told.unit is LearnedUnit.TOKENS and unit is LearnedUnit.REQUESTS)


def _is_less(refused: LearnedBound, found: tuple[LearnedLimit, ...]) -> bool:
    """Return whether a bound from refusals is below that of the headers."""
    if refused.unit is not LearnedUnit.REQUESTS:
        return False
    told = (each.bound for each in found if each.bound.source is LearnedFrom.HEADERS)
    return all(refused.amount < each.amount for each in told if each.unit is LearnedUnit.REQUESTS)


def _per_s(unit: LearnedUnit, rate: float) -> str:
    if unit is LearnedUnit.REQUESTS:
        return f"{_number(rate)}/s"
    return f"{_number(60 * rate)} {_MINUTE[unit]}"


def _amount(bound: LearnedBound) -> str:
    if bound.unit is LearnedUnit.STRAYS:
        return f"{100 * bound.amount:.0f} % {bound.unit},"
    if bound.source is LearnedFrom.HEADERS:
        return f"{_number(60 * bound.amount)} {_MINUTE[bound.unit]}"
    return f"{_number(bound.amount)} {bound.unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.3g}"
