"""Building blocks of PromQL queries.

A metric has its own name from ``--metrics-listen`` and from OTLP, and the name ``ray_NAME`` from
Ray's metrics port, where each series also carries the id of its Ray worker. So a query matches both names, and

- a *rate* is a sum: the series of a dead worker stands still while its successor's rises;
- a *level* is the maximum over a subject: the successor of a dead worker continues its value, so a sum would count
  twice while both are present.
"""

from __future__ import annotations

import re

_ASKED = re.compile(r'__name__=~\\?"\(ray_\)\?([\w()|]+)\\?"')

JOB = ("namespace", "cortex_job_id")
WINDOW = "$__rate_interval"

# Filters of the dashboards. A metric scraped outside of Kubernetes has no namespace, which `.*` matches as well.
OF_JOBS = 'cortex_job_id=~"$job", namespace=~"$namespace"'
THROTTLED = 'cortex_kind="throttled"'
OF_CLUSTER = 'namespace=~"$namespace"'


def matching(name: str, *matchers: str) -> str:
    """Return a selector of the series of a metric, under either name."""
    inside = ", ".join([f'__name__=~"(ray_)?{name}"', *(one for one in matchers if one)])
    return "{" + inside + "}"


def metrics_in(text: str) -> list[str]:
    """Return the metrics that queries in a text ask for, under their own names."""
    return _ASKED.findall(text)


def by(how: str, labels: tuple[str, ...], what: str) -> str:
    """Return an aggregation."""
    return f"{how} by ({', '.join(labels)}) ({what})" if labels else f"{how}({what})"


def level(name: str, *matchers: str, labels: tuple[str, ...] = JOB) -> str:
    """Return the value of a gauge, or the current value of a counter, of each subject."""
    return by("max", labels, matching(name, *matchers))


def rate(name: str, *matchers: str, labels: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the rise of a counter per second."""
    return by("sum", labels, f"rate({matching(name, *matchers)}[{window}])")


def increase(name: str, *matchers: str, labels: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the rise of a counter within the window."""
    return by("sum", labels, f"increase({matching(name, *matchers)}[{window}])")


def lowest(name: str, *matchers: str, labels: tuple[str, ...] = JOB) -> str:
    """Return the least value of a gauge of each subject: of two disks of a machine the one that is fuller."""
    return by("min", labels, matching(name, *matchers))


def slope(name: str, *matchers: str, over: tuple[str, ...] = (), labels: tuple[str, ...] = JOB, window: str = "15m") -> str:
    """Return the rise of a counter per second, for a forecast. ``over``: labels to sum over.

    ``rate`` divides by the whole window, also in a job's first minutes, and its forecasts are then many times too long;
    ``deriv`` is the slope through the samples that there are. Counters of a job never decrease, since its journal keeps
    them.
    """
    rise = by("max", (*labels, *over), f"deriv({matching(name, *matchers)}[{window}])")
    return f"clamp_min({by('sum', labels, rise) if over else rise}, 0)"


def last(name: str, *matchers: str, labels: tuple[str, ...] = JOB, window: str = "30m") -> str:
    """Return the last value of a gauge that may have vanished since."""
    return by("max", labels, f"last_over_time({matching(name, *matchers)}[{window}])")


def quantile(q: float, name: str, *matchers: str, labels: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return a quantile of a histogram over the window."""
    return f"histogram_quantile({q}, {rate(f'{name}_bucket', *matchers, labels=('le', *labels), window=window)})"


def present(name: str, *matchers: str, labels: tuple[str, ...] = JOB) -> str:
    """Return what a job has now, over all its shards: calls in flight, permits, bytes."""
    return in_all(name, *matchers, over="cortex_shard", labels=labels)


def in_all(name: str, *matchers: str, over: str, labels: tuple[str, ...] = JOB) -> str:
    """Return the levels of a counter, summed over one label: rows of all outcomes, money of both certainties."""
    return by("sum", labels, level(name, *matchers, labels=(*labels, over)))
