"""Decisions of a step as JSON values: the decision, and the figures it was based on.

The facts are built at once, while K is unchanged; no object of K is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from actors.jobs.wait_reasons import named
from cortex.state import changes
from cortex.state.state import Goal, Item, State
from cortex.values.ledger import Charge, Ledger
from cortex.values.limits import Limits
from policies.estimates.price import usd
from policies.failures.failure import Failure
from policies.failures.retry import RetryDecision, RetryPolicy, budget

Facts = dict[str, Any]
_TEXT_CHARS_MAX = 2_000
"""Most characters of a failure's message."""


def facts_of(k: State, what: str, seen: Facts) -> Facts:
    """Return a decision as JSON values."""
    made = _FACTS.get(what)
    return made(k, seen) if made is not None else dict(seen)


def _retry(k: State, seen: Facts) -> Facts:
    decision: RetryDecision = seen["decision"]
    policy: RetryPolicy = seen["policy"]
    return {
        "again": decision.again, "hold": decision.hold, "deferred": decision.deferred, "rule": decision.reason,
        "failed_attempts": seen["broken"], "throttled_attempts": seen["throttles"],
        "attempts_max": policy.attempts_max, "timed_out_attempts_max": policy.timed_out_attempts_max,
        "throttled_attempts_max": policy.throttled_attempts_max, "retries_spent": seen["retries"],
        "retries_allowed": budget(policy, seen["successes"]), "successes": seen["successes"],
    }  # fmt: skip


def _backoff(k: State, seen: Facts) -> Facts:
    return {**seen, "until_s": k.at_s + seen["wait_s"]}


def _asked(k: State, seen: Facts) -> Facts:
    flight, place, limits = seen["flight"], seen["place"], k.terms.limits
    share = k.shares[place]
    lane = seen["lane"]
    passed = [each for each in k.terms.lane_places(lane) if each < place]
    return {
        "sample": flight.sample, "attempt": flight.attempt, "call": k.call_id(flight.goal, flight.sample),
        "constructor": k.goals[flight.goal].constructor,
        "route": named(k.terms.routes[place]), "place": place,
        "role": next((role for role, its in k.terms.roles.items() if lane and its == lane), ""),
        "passed_over": [{"route": named(k.terms.routes[each]), "why": share_facts(k, each)} for each in passed],
        "leave": share_facts(k, place), "probe": flight.probe, "prompt_tokens_bound": seen["tokens_bound"],
        "output_tokens_max": flight.output_max, "reserved": charge_facts(flight.charge),
        "ledger": ledger_facts(k.ledger, limits), "in_flight": len(k.flights), "concurrency": limits.concurrency,
        "generation": share.generation,
    }  # fmt: skip


def share_facts(k: State, place: int) -> Facts:
    """Return the job's share of a route at this moment, and the reasons that limit it."""
    share = k.shares[place]
    return {
        "permits": share.permits, "in_flight": share.in_flight, "starts": share.starts, "why": share.why,
        "held_s": round(max(0.0, share.hold_until_s - k.at_s), 3),
        "blocked": f"{share.blocked.kind}: {share.blocked.message}" if share.blocked is not None else "",
        "breaker_generation": share.generation,
        "breaker_probed_at_s": share.again_at_s,
    }  # fmt: skip


def charge_facts(charge: Charge) -> Facts:
    """Return the maximum cost of an attempt."""
    return {"usd": usd(charge.nusd), "tokens": charge.tokens}


def ledger_facts(ledger: Ledger, limits: Limits) -> Facts:
    """Return known, assumed and reserved amounts, with their caps."""
    cap = limits.max_cost_nusd
    return {
        "known_usd": usd(ledger.known_nusd), "assumed_usd": usd(ledger.assumed_nusd),
        "reserved_usd": usd(ledger.reserved_nusd), "cap_usd": None if cap is None else usd(cap),
        "known_tokens": ledger.known_tokens, "assumed_tokens": ledger.assumed_tokens,
        "reserved_tokens": ledger.reserved_tokens, "cap_tokens": limits.max_job_tokens,
    }  # fmt: skip


def _over_budget(k: State, seen: Facts) -> Facts:
    return {"next": charge_facts(seen["charge"]), "ledger": ledger_facts(seen["ledger"], seen["limits"])}


def failure_facts(failure: Failure | None) -> Facts:
    """Return a failure as JSON values; empty for None."""
    if failure is None:
        return {}
    facts: Facts = {"kind": str(failure.kind), "message": failure.message[:_TEXT_CHARS_MAX], "sent": failure.sent}
    if failure.status:
        facts |= {"status": failure.status}
    if failure.error_type:
        facts |= {"error_type": failure.error_type}
    if failure.retry_after_s is not None:
        facts |= {"retry_after_s": failure.retry_after_s}
    return facts


def _failure(k: State, seen: Facts) -> Facts:
    rest = {name: value for name, value in seen.items() if name not in ("failure", "limits", "place")}
    where = {"route": named(k.terms.routes[seen["place"]])} if "place" in seen else {}
    alike = {"alike_max": seen["limits"].rejected_alike_max} if "limits" in seen else {}
    return {**failure_facts(seen["failure"]), **where, **rest, **alike}


def _given_back(k: State, seen: Facts) -> Facts:
    share = k.shares[seen["place"]]
    return {
        "route": named(k.terms.routes[seen["place"]]), "breaker_generation": seen["generation"],
        "own_generation": share.generation, "again_s": seen["again_s"],
    }  # fmt: skip


def _elsewhere(k: State, seen: Facts) -> Facts:
    return {"route": named(k.terms.routes[seen["place"]]), "why": k.shares[seen["place"]].why}


def _hedged(k: State, seen: Facts) -> Facts:
    limits, flight = seen["limits"], seen["flight"]
    return {
        "first_attempt": flight.attempt, "waited_s": seen["waited_s"], "hedge_after_s": limits.hedge_after_s,
        "retries_spent": seen["retries"], "retries_allowed": budget(limits.retry, seen["successes"]),
        "successes": seen["successes"], "reserved": charge_facts(flight.charge),
    }  # fmt: skip


def _tally(k: State, seen: Facts) -> Facts:
    counts = [{"votes": each.votes, "for": _ballot(each.answer)} for each in seen["candidates"]]
    counts.sort(key=lambda each: -each["votes"])
    ahead = counts[0]["votes"] - (counts[1]["votes"] if len(counts) > 1 else 0) if counts else 0
    return {"counts": counts, "ahead_by": ahead, "must_be_ahead_by": seen["k"], "more_needed": seen["needed"]}


def _ballot(data: bytes) -> Any:
    return to_json_value(msgspec.msgpack.decode(data))


def _join(k: State, seen: Facts) -> Facts:
    join = seen["join"]
    return {
        "join": join.kind, "n": join.n, "deadline_s": join.deadline_s, "verdict": str(seen["verdict"]),
        "resolved": seen["resolved"], "failed": seen["failed"], "of": seen["total"], "late": seen["late"],
    }  # fmt: skip


def _ended(k: State, seen: Facts) -> Facts:
    return {
        "status": seen["status"].name.lower(), "answer": to_json_value(seen["answer"]),
        "failure": failure_facts(seen["failure"]) or None,
    }  # fmt: skip


def _tool_failed(k: State, seen: Facts) -> Facts:
    task = seen["task"]
    again = seen["again"] and task.broken < seen["attempts_max"]
    return {"tool": task.name, "runs_failed": task.broken, "attempts_max": seen["attempts_max"], "again": again,
            "repeatable": task.repeatable}  # fmt: skip


def _without(seen: Facts, name: str) -> Facts:
    return {each: value for each, value in seen.items() if each != name}


def _prefix(k: State, seen: Facts) -> Facts:
    return {"ahead_goal": seen["ahead"], "until_s": seen["until_s"]}


_FACTS: dict[str, Callable[[State, Facts], Facts]] = {
    "retry": _retry, "backoff": _backoff, "asked": _asked, "over_budget": _over_budget, "blocked": _failure,
    "paused": _failure, "refused": _failure, "too_large": _failure, "given_up": _failure, "goes_elsewhere": _elsewhere,
    "given_back": _given_back,
    "hedged": _hedged, "tally": _tally, "join": _join, "ended": _ended, "tool_failed": _tool_failed,
    "waits_for_prefix": _prefix,
    "resample": lambda k, seen: {**_without(seen, "sample"), "next_sample": seen["sample"]},
    "shares": lambda k, seen: {**_without(seen, "goal"), "with_goal": seen["goal"]},
    "ballot": lambda k, seen: {"for": _ballot(seen["said"]), "still_out": seen["open"]},
    "round": lambda k, seen: {
        "votes": list(seen["votes"]), "must_be_ahead_by": seen["k"], "samples_end": seen["samples_end"],
    },
}  # fmt: skip
"""Converters by decision. Decisions without a converter consist of JSON values already."""


def change_facts(change: Any) -> Facts:
    """Return one change that a program yielded, as JSON values."""
    kind = type(change).__name__.lower()
    if isinstance(change, Goal):
        return {"change": "goal", "goal": change.id, "kind": change.kind, "parent": change.parent}
    if isinstance(change, Item):
        return {"change": "item", "item": change.id, "kind": change.kind, "bytes": change.size_bytes}
    facts: Facts = {"change": kind}
    for name in ("why", "name", "tool", "resample", "text"):
        value = getattr(change, name, None)
        if value not in (None, False):
            facts[name] = to_json_value(value)
    if isinstance(change, changes.Wait):
        facts["join"] = change.join.kind if change.join is not None else None
    if isinstance(change, (changes.Resolve, changes.Emit, changes.Checkpoint)):
        value = change.answer if isinstance(change, changes.Resolve) else change.value
        facts["value"] = to_json_value(value)
    return facts


def to_json_value(value: Any) -> Any:
    """Return a value as JSON can represent it; bytes become text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, dict):
        return {str(name): to_json_value(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(each) for each in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    try:
        return to_json_value(msgspec.to_builtins(value, str_keys=True))
    except (TypeError, ValueError, RecursionError):  # a type of the author's, which K cannot store either
        return f"{value!r:.200}"
