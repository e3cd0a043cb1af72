"""Bills above what was reserved, and caps that they passed: as facts of a job, and in words."""

from __future__ import annotations

from typing import Any

from cortex.state.state import State
from policies.estimates.bill_excess import BillExcess
from policies.estimates.price import usd, usd_text


def excess_facts(k: State) -> dict[str, Any]:
    """Return the fields of ``--json`` about bills above their reservations, and about caps that were passed."""
    found = [share.excess for share in k.shares if share.excess is not None]
    found += [excess for shard in k.shards.values() for excess in shard.excess]
    ledger, limits = k.ledger, k.terms.limits
    spent, tokens = ledger.known_nusd + ledger.assumed_nusd, ledger.known_tokens + ledger.assumed_tokens
    cap, cap_tokens = limits.max_cost_nusd, limits.max_job_tokens
    return {
        "replies_over_reserved": sum(each.replies for each in found),
        "cost_over_reserved_usd": usd(sum(each.over_nusd for each in found)),
        "reserved_times": max((each.times for each in found), default=1.0),
        "cost_over_cap_usd": usd(spent - cap) if cap is not None and spent > cap else 0.0,
        "tokens_over_cap": tokens - cap_tokens if cap_tokens is not None and tokens > cap_tokens else 0,
    }


def cap_passed(facts: dict[str, Any]) -> bool:
    """Return True if a job has cost more than a cap allows."""
    return bool(facts.get("cost_over_cap_usd") or facts.get("tokens_over_cap"))


def excess_line(facts: dict[str, Any]) -> str:
    """Return in one line that a cap was passed, or that replies cost more than was reserved; empty if neither."""
    lines = []
    if over := facts.get("cost_over_cap_usd"):
        lines.append(f"--max-cost was passed by {usd_text(round(over * 1e9))}")
    if over := facts.get("tokens_over_cap"):
        lines.append(f"--max-job-tokens was passed by {over:,} tokens")
    if count := facts.get("replies_over_reserved"):
        lines.append(
            f"{count:,} {'reply' if count == 1 else 'replies'} cost more than was reserved, up to "
            f"{times_text(facts['reserved_times'])}: the provider bills more than the prompt and max_tokens come to"
        )
    return "; ".join(lines)


def held_back(excess: BillExcess, at_once: int) -> str:
    """Return why a route gets only so many calls at once, in a few words."""
    calls = "one call at a time" if at_once == 1 else f"{at_once:,} calls at a time"
    return f"{calls}: the provider billed {times_text(excess.times)} what was reserved"


def times_text(times: float) -> str:
    """Return a ratio in words, such as ``12.5 times``."""
    return f"{times:,.0f} times" if times >= 100 else f"{times:.3g} times"
