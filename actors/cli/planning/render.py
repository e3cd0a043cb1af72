"""A plan as text lines and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from actors.cli.jobs.rendering import size_text
from actors.common.units import clock, span
from actors.files.sources.row_source import InputCheck
from cortex.planning import BYTES_PER_TOKEN, JobPlan, PlanSample
from cortex.values.display import simulated
from cortex.values.limits import Route
from policies.estimates import duration
from policies.estimates.forecast import CONFIDENCE, EstimatedTotal
from policies.estimates.price import PRICE_FORM, usd, usd_text
from policies.estimates.transport_choice import BATCHES, MIXED, NOW, TransportLimits, TransportOption


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a plan."""

    job: str
    route: Route
    check: InputCheck
    all_rows: int
    """Rows that can be sent."""
    known: int
    """Rows among these whose replies are reused from earlier runs."""
    too_large: int
    sample: PlanSample | None
    seed: int = 0
    remembered: int = 0
    sample_job: str = ""
    paid_nusd: int = 0
    plan: JobPlan
    limits: duration.CallLimits
    transport_limits: TransportLimits
    deadline_at_s: float | None
    now_s: float
    transports: tuple[TransportOption, ...]
    transport: TransportOption | None
    notes: tuple[str, ...]
    result_bytes: int
    state: str
    free_bytes: int | None
    output: str
    output_free_bytes: int | None
    fresh: bool
    vectors: bool = False
    """True for a plan of ``cortex embed``."""
    longer: bool = False
    """True if rows whose reply was cut are asked again with a larger bound."""
    servers: int = 1
    """Number of servers that share the work, whose limits are added."""


# -- text ----------------------------------------------------------------------------------------------------------


def plan_lines(of: PlanReport) -> Iterator[str]:
    """Yield the lines of the plan."""
    for name, lines in (
        ("rows", _rows(of)), ("sample", _sample(of)), ("tokens", _tokens(of)), ("cost", _cost(of)), ("time", _time(of)),
        ("limits", _limits(of)), ("disk", _disk(of)), ("route", _routes(of)), ("note", _notes(of)),
        ("begin", _begin(of)),
    ):  # fmt: skip
        for place, line in enumerate(lines):
            yield f"{name if not place else '':<8}{line}"


def _rows(of: PlanReport) -> Iterator[str]:
    check = of.check
    line = f"{of.all_rows:,} to ask"
    if check.refused:
        line += f"; {check.refused:,} refused before sending"
    if check.unreadable:
        line += f"; {check.unreadable:,} unreadable"
    yield line
    if of.known:
        yield f"{of.known:,} of them answered by earlier runs: not paid again"
    if of.too_large:
        yield f"{of.too_large:,} of them too large for a prompt: they will fail unsent"


def _sample(of: PlanReport) -> Iterator[str]:
    if of.vectors:
        yield "none: a vector has no length that would have to be measured"
        return
    if of.sample is None:
        yield "none: the length of replies is assumed, not measured (--sample 100 asks 100 rows)"
        return
    answered, drawn = len(of.sample.answered), sum(len(each.drawn) for each in of.sample.strata)
    lengths = f"{len(of.sample.strata)} lengths" if len(of.sample.strata) > 1 else "rows of one length"
    line = f"{answered:,} of {drawn:,} rows answered, drawn from {lengths} (seed {of.seed})"
    if of.remembered:
        line += f", {of.remembered:,} remembered"
    yield line
    paid = f"the sample has cost {usd_text(of.paid_nusd)}; " if of.plan.cost is not None else ""
    reused = "with --fresh the job asks them again" if of.fresh else "the job reuses these replies"
    yield f"{paid}{reused}: {of.plan.rows:,} rows are left"


def _tokens(of: PlanReport) -> Iterator[str]:
    for name, each in (("input", of.plan.input_tokens), ("output", of.plan.output_tokens)):
        if of.vectors and name == "output":
            continue
        yield f"{name:<7}{each.expected:,.0f} ({each.low:,.0f} to {each.high:,.0f})"


def _cost(of: PlanReport) -> Iterator[str]:
    cost, worst = of.plan.cost, of.plan.worst_nusd
    if cost is None or worst is None:
        if simulated(of.route):
            yield "none: the provider is simulated (to rehearse a bill: --price input=3,output=15)"
        else:
            yield f"unknown: no price is known for {of.route.model!r}: give --price, {PRICE_FORM}"
        return
    ends = f"{_usd(cost.low)} to {_usd(cost.high)}"
    how = f"{ends} in {CONFIDENCE:.0%} of such samples" if of.sample else f"assumed, from {ends}"
    yield f"{_usd(cost.expected)} expected ({how}); {_usd(worst)} at worst"
    replies = "cut at each bound of --on-cut longer" if of.longer else "of --max-output-tokens"
    if of.vectors:
        yield "worst: texts at their bound of a token a byte, the whole retry budget spent"
    else:
        yield f"worst: prompts at their bound, every reply {replies}, the whole retry budget spent"
    if of.route.price is not None and of.route.price.source:
        yield f"price: {of.route.price.source}"


def _time(of: PlanReport) -> Iterator[str]:
    found = of.plan.duration
    by = f", bound by {_BOUNDS[found.binds]}" if found.binds else ""
    assumed = "" if of.sample else "; the time of an answer is assumed"
    yield f"{span(found.seconds)} in single calls{by}{assumed}"


_BOUNDS = {
    duration.REQUESTS: "requests a minute", duration.INPUT_TOKENS: "input tokens a minute",
    duration.OUTPUT_TOKENS: "output tokens a minute", duration.CONCURRENCY: "concurrency",
    duration.LONGEST: "the longest answer",
}  # fmt: skip


def _limits(of: PlanReport) -> Iterator[str]:
    if of.servers > 1:
        yield f"those of {of.servers} servers are added"
    for name, rate, cap in _limited(of):
        parts = [f"{rate.per_s * 60:,.0f} named by the provider"] if rate is not None else []
        parts += [f"{cap:,g} set by hand"] if cap is not None else []
        if parts:
            yield f"{_BOUNDS[name]}: {', '.join(parts)}"
    if of.limits.caps.concurrency is not None:
        yield f"concurrency: {of.limits.caps.concurrency:,} at most"
    if of.limits.caps.headroom:
        yield f"headroom: {of.limits.caps.headroom:.0%} of the provider's limits is left to others"
    if of.sample is None:
        yield "the account's own limits are unknown until a call is made"
    elif not any(rate for _, rate, _ in _limited(of)):
        yield "the provider named no limits: one that is met during the job makes it longer"


def _limited(of: PlanReport) -> list[tuple[str, duration.BucketRate | None, float | None]]:
    limits, caps = of.limits, of.limits.caps
    return [
        (duration.REQUESTS, limits.requests, caps.requests_per_min),
        (duration.INPUT_TOKENS, limits.input_tokens, caps.input_tokens_per_min),
        (duration.OUTPUT_TOKENS, limits.output_tokens, caps.output_tokens_per_min),
    ]


def _disk(of: PlanReport) -> Iterator[str]:
    about = f"about {size_text(of.plan.journal_bytes)} in {of.state}"
    if of.free_bytes is None:
        yield about
    else:
        short = "; free space is too small" if of.plan.journal_bytes > of.free_bytes else ""
        yield f"{about}, where {size_text(of.free_bytes)} are free{short}"
    free = of.output_free_bytes
    where = "" if free is None else f", where {size_text(free)} are free"
    short = "; free space is too small" if free is not None and of.result_bytes > free else ""
    yield f"about {size_text(of.result_bytes)} of results{f' in {of.output}' if of.output else ''}{where}{short}"


_NAMES = {NOW: "now", MIXED: "mixed", BATCHES: "--via batches"}


def _routes(of: PlanReport) -> Iterator[str]:
    asked = _asked(of)
    for each in of.transports:
        cost = f"{_usd(each.cost_nusd.expected)}, " if each.cost_nusd is not None else ""
        takes = span(each.seconds) if each.name == NOW else f"up to {span(each.seconds)}"
        fate = "" if not asked else ": meets " + asked if each.meets else f": misses {_missed(of, each)}"
        mark = " <- this one" if each is of.transport and asked else ""
        yield f"{_NAMES[each.name]}: {cost}{takes}{fate}{mark}"
    if asked and of.transport is None:
        yield f"none meets {asked}"
    if of.transport is not None and of.transport.name == MIXED and of.transport.cost_nusd is not None:
        yield (
            f"mixed is two jobs: first about {of.transport.rows_now:,} rows, "
            f"with --job {of.job}-now "
            f"--max-cost {int(_now_part(of) / 1e5) / 1e4:g}; when it stops at that cap, all rows with --via batches, "
            "which reuses those replies (give the two jobs different -o)"
        )


def _now_part(of: PlanReport) -> float:
    """Return the money in nano-USD that the first of the two jobs may spend."""
    assert of.transport is not None and of.plan.cost is not None
    return of.plan.cost.high * of.transport.rows_now / max(of.plan.rows, 1)


def _asked(of: PlanReport) -> str:
    wanted = of.transport_limits
    parts = [f"--max-cost {usd_text(wanted.max_cost_nusd)}"] if wanted.max_cost_nusd is not None else []
    parts += [f"the deadline, {clock(of.deadline_at_s)}"] if of.deadline_at_s is not None else []
    return " and ".join(parts)


def _missed(of: PlanReport, transport: TransportOption) -> str:
    parts = []
    if transport.over_nusd > 0:
        parts.append(f"--max-cost by up to {_usd(transport.over_nusd)}")
    if transport.over_s > 0:
        parts.append(f"the deadline by {span(transport.over_s)}")
    return " and ".join(parts)


def _notes(of: PlanReport) -> Iterator[str]:
    if simulated(of.route):
        yield "the provider is simulated: its times and lengths say nothing about a real provider"
    yield from of.notes
    if of.sample is None:
        ends = BYTES_PER_TOKEN
        size = f"assumed: {ends.expected:g} bytes a token of a prompt ({ends.high:g} to {ends.low:g})"
        yield size if of.vectors else f"{size}; replies of half of --max-output-tokens (one token to all of them)"


def _begin(of: PlanReport) -> Iterator[str]:
    where = "" if of.output else ", and -o FILE for its results"
    names = ("embed", "plan --embed") if of.vectors else ("batch", "plan")
    yield f"give the same command with `{names[0]}` in place of `{names[1]}`{where}"


def _usd(nusd: float) -> str:
    return usd_text(round(nusd))


# -- JSON ----------------------------------------------------------------------------------------------------------


def as_json(of: PlanReport) -> str:
    """Return the object of ``--json``. Money is in USD, null if no price is known. ``assumed`` marks figures without a
    sample."""
    plan, check = of.plan, of.check
    found: dict[str, Any] = {
        "job": of.job, "model": of.route.model, "simulated": simulated(of.route),
        "rows": {
            "to_ask": of.all_rows, "remembered": of.known, "left": plan.rows, "refused": check.refused,
            "unreadable": check.unreadable, "too_large": of.too_large,
        },
        "sample": None if of.sample is None else {
            "job": of.sample_job, "rows": sum(len(each.drawn) for each in of.sample.strata),
            "answered": len(of.sample.answered), "remembered": of.remembered, "lengths": len(of.sample.strata),
            "seed": of.seed, "paid_usd": None if plan.cost is None else usd(of.paid_nusd),
            "reused_by_job": not of.fresh,
        },
        "assumed": of.sample is None, "confidence": CONFIDENCE if of.sample else None,
        "input_tokens": _ends(plan.input_tokens), "output_tokens": _ends(plan.output_tokens),
        "cost_usd": None if plan.cost is None or plan.worst_nusd is None else {
            **_ends(plan.cost.scaled(1e-9), 9), "worst": usd(plan.worst_nusd),
        },
        "price": of.route.price.source if of.route.price is not None else None,
        "calls": round(plan.calls), "seconds": round(plan.duration.seconds, 3),
        "hours": round(plan.duration.seconds / 3_600, 4),
        "bound_by": plan.duration.binds or None,
        "bounds_seconds": {each.name: round(each.seconds, 3) for each in plan.duration.bounds},
        "limits": {
            name: {"told_per_min": rate and round(rate.per_s * 60, 3), "set_per_min": cap}
            for name, rate, cap in _limited(of)
        } | {"concurrency": of.limits.caps.concurrency, "headroom": of.limits.caps.headroom},
        "disk": {
            "journal_bytes": plan.journal_bytes, "results_bytes": of.result_bytes, "free_bytes": of.free_bytes,
        },
        "max_cost_usd": None if of.transport_limits.max_cost_nusd is None else usd(of.transport_limits.max_cost_nusd),
        "deadline_at_s": of.deadline_at_s, "finish_at_s": round(of.now_s + plan.duration.seconds, 3),
        "routes": [_transport_text(each) for each in of.transports],
        "route": None if of.transport is None else of.transport.name,
        "notes": list(of.notes),
    }  # fmt: skip
    return msgspec.json.encode(found).decode()


def _transport_text(of: TransportOption) -> dict[str, Any]:
    return {
        "route": of.name, "rows_now": of.rows_now, "seconds": round(of.seconds, 3), "meets": of.meets,
        "cost_usd": None if of.cost_nusd is None else _ends(of.cost_nusd.scaled(1e-9), 9),
        "over_usd": round(of.over_nusd / 1e9, 9), "over_seconds": round(of.over_s, 3),
    }  # fmt: skip


def _ends(of: EstimatedTotal, digits: int = 0) -> dict[str, Any]:
    ends = {"low": of.low, "expected": of.expected, "high": of.high}
    return {name: round(value, digits) if digits else round(value) for name, value in ends.items()}
