"""Charts of a report: series with units, text, and a table with the same data."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from actors.report.figures import SEGMENTS_MAX, ReportFigures
from actors.report.labels import HALF_OPEN, HELD, OPEN
from actors.report.palette import mark_of
from actors.report.sketches import BinnedSeries, QuantileSketch, TimeAxis
from policies.estimates.price import usd

Chart = dict[str, Any]
WAITS_WORTH_S = 0.1
"""Least longest wait, in seconds, for which the chart of waits is drawn."""
_UNITS = ((2 * 86_400, 86_400.0, "days"), (2 * 3_600, 3_600.0, "hours"), (600, 60.0, "minutes"))


def charts(figures: ReportFigures, concurrency: int, cap_nusd: int | None) -> list[Chart]:
    """Return the charts that have data."""
    time, unit = _time(figures)
    found = [
        _calls(figures, time, unit), _flight(figures, time, unit, concurrency), _branches(figures, time, unit),
        _latency_over_time(figures, time, unit), _spent(figures, time, unit, cap_nusd),
        _distribution("latency", "Duration of answers", figures.latency, "seconds from sending to the whole answer"),
        _waits(figures),
        _distribution("input", "Size of prompts", figures.input_tokens, "input tokens, cached too", True),
        _distribution("output", "Length of replies", figures.output_tokens, "output tokens", True),
    ]  # fmt: skip
    return [chart for chart in found if chart is not None]


def _time(figures: ReportFigures) -> tuple[list[float], str]:
    """Return the middles of the bins since the beginning, and their unit."""
    seconds = figures.axis.middles()
    whole = figures.axis.width_s * figures.axis.bins
    scale, unit = next(((scale, unit) for least, scale, unit in _UNITS if whole >= least), (1.0, "seconds"))
    return [float(f"{at / scale:.5g}") for at in seconds], unit


def _scale(unit: str) -> float:
    return next((scale for _, scale, name in _UNITS if name == unit), 1.0)


def _over_time(
    name: str, title: str, unit: str, y: str, traces: list[Chart], figures: ReportFigures, text: str
) -> Chart:
    """Return a chart over time, with bands where a route's breaker was not closed or its provider asked to wait."""
    return {
        "id": name, "title": title, "x": f"{unit} since the beginning", "y": y, "traces": traces,
        "bands": _bands(figures, _scale(unit)), "said": text,
    }  # fmt: skip


def _bands(figures: ReportFigures, scale: float) -> list[Chart]:
    """Return the periods in which a route was open, half open or held. More than ``_BANDS`` periods of a state are
    given as the bins that they fill by half or more."""
    axis, marks = figures.axis, {OPEN: "open", HALF_OPEN: "half", HELD: "held"}
    bands: list[Chart] = []
    for state, mark in marks.items():
        some = sorted((period.from_s, period.to_s) for period in figures.periods if period.state == state)
        if len(some) > _BANDS:
            some = _filled(axis, some)
        for low_s, high_s in some:
            from_, to = round((low_s - axis.begin_s) / scale, 4), round((high_s - axis.begin_s) / scale, 4)
            bands.append({"from": from_, "to": to, "mark": mark, "said": state})
    return bands


_BANDS = 40
"""Most bands of one state that are drawn exactly."""


def _filled(axis: TimeAxis, periods: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return runs of bins of which half or more lies within the periods."""
    held = BinnedSeries(axis)
    for from_s, to_s in periods:
        held.hold(from_s, to_s)
    found: list[tuple[float, float]] = []
    for place, share in enumerate(held.means()):
        from_s = axis.begin_s + place * axis.width_s
        if share >= 0.5:
            begun_s = found.pop()[0] if found and abs(found[-1][1] - from_s) < axis.width_s / 2 else from_s
            found.append((begun_s, from_s + axis.width_s))
    return found


def _rates(values: list[float], width_s: float) -> list[float]:
    return [float(f"{value / width_s:.4g}") for value in values]


def _calls(figures: ReportFigures, time: list[float], unit: str) -> Chart:
    width_s = figures.axis.width_s
    named = [("answered", figures.answered)] + ([("reused", figures.reused)] if any(figures.reused.values) else [])
    named += sorted(figures.failed.items())
    traces = [
        {
            "type": "bar", "name": {"reused": "from memory"}.get(kind, kind), "mark": mark_of(kind), "x": time,
            "y": _rates(series.values, width_s),
        }
        for kind, series in named
    ]  # fmt: skip
    failed = sum(each.count for each in figures.failures.values())
    text = f"{figures.latency.count:,} answers and {failed:,} failed attempts, in bins of {width_s:.3g} s."
    title = "Answers and failed attempts over time"
    chart = _over_time("calls", title, unit, "attempts a second", traces, figures, text)
    return chart | {"stacked": True}


def _flight(figures: ReportFigures, time: list[float], unit: str, concurrency: int) -> Chart:
    flights, permits = figures.in_flight.means(), figures.permits.means()
    traces = [
        {"type": "area", "name": "in flight", "mark": "answered", "x": time, "y": flights},
        {"type": "step", "name": "permits granted", "mark": "permits", "x": time, "y": permits},
    ]
    traces = traces if any(flights) else traces[1:]
    limit = {"y": concurrency, "name": f"--concurrency {concurrency:,}"}
    most = f"; at most {max(flights):,.0f} of them in flight" if any(flights) else ""
    text = f"Mean of each bin. The job was granted {figures.permits_most:,} permits at most{most}."
    chart = _over_time("flight", "Calls in flight, against the limit", unit, "calls at once", traces, figures, text)
    return chart | ({"limit": limit} if concurrency <= 3 * max(1, figures.permits_most) else {})


def _branches(figures: ReportFigures, time: list[float], unit: str) -> Chart | None:
    if not figures.branches:
        return None
    rows = [
        [
            name, f"{branch.answered:,}", f"{branch.failed:,}", f"{branch.elapsed.quantile(0.5):.3g}",
            f"{sum(branch.busy.values) / max(0.001, figures.axis.width_s * figures.axis.bins):.3g}",
        ]
        for name, branch in sorted(figures.branches.items())
    ]  # fmt: skip
    columns = ["branch", "answered", "failed", "median answer (s)", "mean calls at once"]
    table = {"columns": columns, "rows": rows}
    if figures.segments is not None:
        return _lanes(figures, unit) | {"table": table}
    names = sorted(figures.branches)
    traces = [
        {
            "type": "heatmap", "name": "calls at once", "x": time, "y": names,
            "z": [[float(f"{mean:.3g}") for mean in figures.branches[name].busy.means()] for name in names],
        },
        {
            "type": "marks", "name": "failed attempts in this bin", "mark": "overloaded",
            "x": [time[place] for name in names for place, n in enumerate(figures.branches[name].broke.values) if n],
            "y": [name for name in names for n in figures.branches[name].broke.values if n],
            "size": [n for name in names for n in figures.branches[name].broke.values if n],
        },
    ]  # fmt: skip
    text = f"More than {SEGMENTS_MAX:,} attempts, so sums of each bin. Stronger: more calls at once; a cross: failures."
    chart = _over_time("branches", "Calls by branch over time", unit, "branch", traces, figures, text)
    return chart | {"table": table, "rows": len(names)}


def _lanes(figures: ReportFigures, unit: str) -> Chart:
    """Every attempt as a line: in its branch, each in a lane that is free."""
    scale, begin_s = _scale(unit), figures.axis.begin_s
    lanes: dict[str, list[float]] = {}
    placed: list[tuple[str, int, float, float, str, str]] = []
    for from_s, to_s, by, outcome, goal, job in sorted(figures.segments or ()):
        free = lanes.setdefault(by, [])
        lane = next((place for place, until_s in enumerate(free) if until_s <= from_s), len(free))
        free[lane:] = [to_s, *free[lane + 1 :]]
        at = (round((from_s - begin_s) / scale, 5), round((to_s - begin_s) / scale, 5))
        placed.append((by, lane, *at, outcome, f"{job}, goal {goal}"))
    first, offset = {}, 0
    for by in sorted(lanes):
        first[by], offset = offset, offset + len(lanes[by]) + 1
    traces = []
    for outcome in sorted({each[4] for each in placed}, key=lambda outcome: (outcome != "answered", outcome)):
        some = [each for each in placed if each[4] == outcome]
        traces.append(
            {
                "type": "spans", "name": outcome, "mark": mark_of(outcome), "from": [each[2] for each in some],
                "to": [each[3] for each in some], "lane": [first[each[0]] + each[1] for each in some],
                "said": [each[5] for each in some],
            }
        )  # fmt: skip
    ticks = [[first[by] + (len(lanes[by]) - 1) / 2, by] for by in sorted(lanes)]
    text = f"Each of {len(placed):,} attempts from sending to its end, in its branch; calls at once lie side by side."
    chart = _over_time("branches", "Calls by branch over time", unit, "branch", traces, figures, text)
    return chart | {"ticks": ticks, "rows": offset}


def _latency_over_time(figures: ReportFigures, time: list[float], unit: str) -> Chart | None:
    if not figures.latency.count:
        return None
    places = [place for place, each in enumerate(figures.latencies) if each.count]
    traces = [
        {
            "type": "line", "name": name, "mark": mark, "x": [time[place] for place in places],
            "y": [float(f"{figures.latencies[place].quantile(share):.4g}") for place in places], "dash": dash,
        }
        for name, share, mark, dash in (("median", 0.5, "p50", "solid"), ("95th percentile", 0.95, "p95", "dash"))
    ]  # fmt: skip
    text = f"Over the whole job the median was {figures.latency.quantile(0.5):.3g} s."
    return _over_time("latency-time", "Duration of answers over time", unit, "seconds", traces, figures, text)


def _spent(figures: ReportFigures, time: list[float], unit: str, cap_nusd: int | None) -> Chart | None:
    if not any(figures.spent.values):
        return None
    total = [float(f"{usd(round(amount)):.5g}") for amount in accumulate(figures.spent.values)]
    traces = [{"type": "area", "name": "spent so far", "mark": "cost", "x": time, "y": total}]
    text = f"In all ${total[-1]:,.6g}."
    chart = _over_time("spent", "Cost over time", unit, "USD", traces, figures, text)
    if cap_nusd is not None and usd(cap_nusd) <= 3 * total[-1]:
        chart["limit"] = {"y": usd(cap_nusd), "name": f"--max-cost ${usd(cap_nusd):g}"}
    return chart


def _waits(figures: ReportFigures) -> Chart | None:
    if figures.waits.most < WAITS_WORTH_S:
        return None
    title = "Waits in a branch's queue"
    return _distribution("waits", title, figures.waits, "seconds until sending")


def _distribution(name: str, title: str, digest: QuantileSketch, unit: str, whole: bool = False) -> Chart | None:
    """Return a histogram whose bars grow with the values; None without values."""
    if not digest.count or digest.most <= 0.001 * (not whole):
        return None
    bars = digest.bars(whole)
    traces = [
        {
            "type": "histogram", "name": "calls", "mark": "answered", "from": [bar[0] for bar in bars],
            "to": [bar[1] for bar in bars], "y": [bar[2] for bar in bars], "whole": whole,
        }
    ]  # fmt: skip
    form = "{:,.0f} tokens" if whole else "{:.3g} s"
    text = ", ".join(
        f"{words} {form.format(digest.quantile(share))}"
        for words, share in (("half at most", 0.5), ("95 % at most", 0.95), ("99 % at most", 0.99))
    )
    most, mean = form.format(digest.most), form.format(digest.total / digest.count)
    text = f"{digest.count:,} calls: {text}; mean {mean}, most {most} (percentiles to within 1 %)."
    rows = [[_range(low, high, whole), f"{count:,}"] for low, high, count in bars]
    table = {"columns": [unit, "calls"], "rows": rows}
    return {"id": name, "title": title, "x": unit, "y": "calls", "traces": traces, "said": text, "table": table}


def _range(low: float, high: float, whole: bool) -> str:
    if whole:
        return f"{low:,.0f}" if high - low <= 1 else f"{low:,.0f} to {high - 1:,.0f}"
    return f"{low:.3g} to {high:.3g}"
