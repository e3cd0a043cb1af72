"""Texts of ``top``: rates, time spans, routes, authors of limits, ages. Pure functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from actors.top.sources import ClusterSnapshot, JobSnapshot
from policies.estimates.price import usd_text
from policies.limits.limit import NO_CAPS, PoolCaps

OLD_S = 5.0
"""Age in seconds above which the age of a state is shown."""


def seen_words(job: JobSnapshot, now_s: float, whole: bool = False) -> str:
    """Return the source of a job's state, and its age."""
    source = {"live": "its process", "journal": "its journal", "cluster": "its channel"}[job.source]
    age = now_s - job.as_of_s
    if whole and job.source == "journal":
        return f"{source}: the last turn was {span(age)} ago"
    return f"{source if whole else job.source} {span(age)}" if age >= OLD_S else source if whole else job.source


def route_words(name: str) -> str:
    """Return model and address of a route; the credential's fingerprint is shown in the details only."""
    endpoint, _, rest = name.partition("|")
    return f"{rest.partition('|')[2]} at {endpoint.removeprefix('https://').removeprefix('http://')}"


def node_words(name: str, nodes: dict[str, Any] | None = None) -> str:
    """Return the name of a node's pod or host, as the nodes of a status tell it, else the node's own name; of Ray's ids
    of 56 digits the first 12.

    Where several nodes are on one host, the beginning of its id tells a node apart.
    """
    short = name if len(name) <= 16 else f"{name[:12]}…"
    told = nodes or {}
    host = told.get(name, {}).get("host", "")
    if not host:
        return short
    return host if sum(node.get("host", "") == host for node in told.values()) == 1 else f"{host} ({short})"


def where_words(seen: ClusterSnapshot, now_s: float) -> str:
    """Return the process or cluster of a state, and its age."""
    age = now_s - seen.as_of_s
    return seen.where + (f", {span(age)} ago" if age >= OLD_S else "")


def why_words(why: str) -> str:
    """Return the reason for the end of a job."""
    how, found, by = why.partition(": by ")
    done = {"drain": "drained", "cancel": "cancelled"}.get(how) if found else None
    return f"{done} by {by}" if done else why


def caps_words(facts: dict[str, Any] | None) -> str:
    """Return manual limits of a scheduler's status, with their author; empty if there are none."""
    caps = PoolCaps(**facts) if facts else NO_CAPS
    lines = [f"{label} {value:g}" for label, field in _CAPS if (value := getattr(caps, field))]
    return f"{', '.join(lines)} by {caps.who or 'somebody'}" if lines else ""


_CAPS = (
    ("concurrency", "concurrency"), ("rpm", "requests_per_min"), ("itpm", "input_tokens_per_min"),
    ("otpm", "output_tokens_per_min"), ("headroom", "headroom"),
)  # fmt: skip


def money(facts: dict[str, Any]) -> str:
    """Return the cost and its cap; empty if no price is known."""
    if facts.get("cost_usd") is None:
        return ""
    cap = facts.get("max_cost_usd")
    return usd_text(facts["known_nusd"]) + (f"/${cap:g}" if cap else "")


def rate(per_s: float | None) -> str:
    """Return a rate per second; a dash for one that is not known."""
    if per_s is None:
        return "-"
    if not per_s:
        return "0"
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 0.1 else f"{per_s:.3f}"


def ms(seconds: float) -> str:
    """Return seconds as milliseconds, with three digits."""
    if seconds <= 0:
        return "-"
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


def span(seconds: float | None) -> str:
    """Return a time span in few characters."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def clock(at_s: float) -> str:
    """Return the local time of day."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%H:%M:%S")
