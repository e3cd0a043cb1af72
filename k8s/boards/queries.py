"""PromQL, said once.

A metric arrives under its own name from ``--metrics-listen`` and from OTLP, and as ``ray_NAME``, in small letters, from
Ray's metrics port, where each also carries the id of the Ray worker that told it. So a query matches both names, and

- a *rate* is summed: the series of a dead worker stands still, and its successor's rises;
- a *level* is the highest of its subject: the successor of a dead worker goes on where that one was, so a sum would
  count twice while both are still seen.
"""

from __future__ import annotations

import re

EITHER_CASE = "(USD|usd)"
_ASKED = re.compile(r'__name__=~\\?"\(ray_\)\?([\w()|]+)\\?"')

JOB = ("namespace", "cortex_job_id")
WINDOW = "$__rate_interval"

# What the dashboards choose by. A metric that was not scraped in Kubernetes has no namespace, and `.*` matches that too.
OF_JOBS = 'cortex_job_id=~"$job", namespace=~"$namespace"'
THROTTLED = 'cortex_kind="throttled"'
OF_CLUSTER = 'namespace=~"$namespace"'


def matching(name: str, *matchers: str) -> str:
    """The series of a metric, under either name."""
    either = f"(ray_)?{name.replace('USD', EITHER_CASE)}"
    inside = ", ".join([f'__name__=~"{either}"', *(one for one in matchers if one)])
    return "{" + inside + "}"


def metrics_in(text: str) -> list[str]:
    """The metrics that queries in a text ask for, under their own names."""
    return [name.replace(EITHER_CASE, "USD") for name in _ASKED.findall(text)]


def by(how: str, labels: tuple[str, ...], what: str) -> str:
    """An aggregation."""
    return f"{how} by ({', '.join(labels)}) ({what})" if labels else f"{how}({what})"


def level(name: str, *matchers: str, labels: tuple[str, ...] = JOB) -> str:
    """What a gauge, or a counter as it stands, says of each subject."""
    return by("max", labels, matching(name, *matchers))


def rate(name: str, *matchers: str, labels: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """How fast a counter rises, a second."""
    return by("sum", labels, f"rate({matching(name, *matchers)}[{window}])")


def increase(name: str, *matchers: str, labels: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """By how much a counter rose within the window."""
    return by("sum", labels, f"increase({matching(name, *matchers)}[{window}])")


def quantile(q: float, name: str, *matchers: str, labels: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """A quantile of a histogram, over the window."""
    return f"histogram_quantile({q}, {rate(f'{name}_bucket', *matchers, labels=('le', *labels), window=window)})"


def in_all(name: str, *matchers: str, over: str, labels: tuple[str, ...] = JOB) -> str:
    """The levels of a counter, added up over one label: rows of all outcomes, money of both certainties."""
    return by("sum", labels, level(name, *matchers, labels=(*labels, over)))
