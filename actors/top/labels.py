"""The words of ``top``: rates, spans, routes, who set what, and how old something is. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from actors.top.sources import ClusterSnapshot, JobSnapshot
from policies.estimates.price import usd_text
from policies.limits.limit import NO_CAPS, PoolCaps

OLD_S = 5.0
"""What is older than this says how old it is."""


def seen_words(job: JobSnapshot, now_s: float, whole: bool = False) -> str:
    """Where it was seen, and how long ago."""
    source = {"live": "its process", "journal": "its journal", "cluster": "its channel"}[job.source]
    age = now_s - job.as_of_s
    if whole and job.source == "journal":
        return f"{source}: the last turn was {span(age)} ago"
    return f"{source if whole else job.source} {span(age)}" if age >= OLD_S else source if whole else job.source


def route_words(name: str) -> str:
    """A route's name for people: model and address; the credential's fingerprint stands in the details."""
    endpoint, _, rest = name.partition("|")
    return f"{rest.partition('|')[2]} at {endpoint.removeprefix('https://').removeprefix('http://')}"


def node_words(name: str) -> str:
    """A node's name; Ray's own is 56 digits long, of which the first tell it from the others."""
    return name if len(name) <= 16 else f"{name[:12]}…"


def where_words(seen: ClusterSnapshot, now_s: float) -> str:
    """In which process or cluster it was seen, and how long ago."""
    age = now_s - seen.as_of_s
    return seen.where + (f", {span(age)} ago" if age >= OLD_S else "")


def why_words(why: str) -> str:
    """Why a job ended as it did."""
    how, found, by = why.partition(": by ")
    done = {"drain": "drained", "cancel": "cancelled"}.get(how) if found else None
    return f"{done} by {by}" if done else why


def caps_words(facts: dict[str, Any] | None) -> str:
    """What somebody set by hand, as the status of a cortex has it; empty where nobody did."""
    caps = PoolCaps(**facts) if facts else NO_CAPS
    lines = [f"{label} {value:g}" for label, field in _CAPS if (value := getattr(caps, field))]
    return f"{', '.join(lines)} by {caps.who or 'somebody'}" if lines else ""


_CAPS = (
    ("concurrency", "concurrency"), ("rpm", "requests_per_min"), ("itpm", "input_tokens_per_min"),
    ("otpm", "output_tokens_per_min"), ("headroom", "headroom"),
)  # fmt: skip


def money(facts: dict[str, Any]) -> str:
    """What it has cost, of what it may; empty where no price is known."""
    if facts.get("cost_usd") is None:
        return ""
    cap = facts.get("max_cost_usd")
    return usd_text(facts["known_nusd"]) + (f"/${cap:g}" if cap else "")


def rate(per_s: float | None) -> str:
    """How many a second."""
    if not per_s:
        return "0"
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 0.1 else f"{per_s:.3f}"


def ms(seconds: float) -> str:
    """Milliseconds, to three figures."""
    if seconds <= 0:
        return "-"
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


def span(seconds: float | None) -> str:
    """A time in few characters."""
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
    """The time of day, here."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%H:%M:%S")
