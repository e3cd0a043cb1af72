"""K at one moment, as JSON values."""

from __future__ import annotations

from collections import Counter
from typing import Any

from actors.inspection.decisions import Facts, charge_facts, failure_facts, ledger_facts, share_facts, to_json_value
from actors.jobs.limit_options import in_words
from actors.jobs.summary import unreadable_rows
from actors.jobs.wait_reasons import named, waits
from cortex.admission.budget_slices import unanswered
from cortex.state.state import ENDED, ExternalRun, Goal, InFlightAttempt, State, Status
from cortex.values.election import VOTE
from cortex.values.limits import Limits
from policies.estimates.tokens import TokenEstimate
from policies.failures.retry import budget


def moment(k: State) -> Facts:
    """Return K's figures, and everything in flight."""
    limits = k.terms.limits
    return {
        "job": k.terms.job, "at_s": k.at_s, "epoch": k.epoch, "outcome": k.outcome, "why": k.why, "waits": waits(k),
        "paused": failure_facts(k.paused) or None, "stopping": k.stopping, "halted": k.halted, "short": k.short,
        "goals": {
            "by_status": _counted(goal.status.name.lower() for goal in k.goals.values()),
            "by_kind": _counted(goal.kind for goal in k.goals.values()), "live": k.live, "offered": k.offered,
            "resting": k.resting, "made": k.next_goal - 1,
        },
        "rows": {
            "read": k.tally.rows_read, "refused": k.tally.rows_refused, "succeeded": k.tally.succeeded,
            "failed": k.tally.failed, "unreadable": unreadable_rows(k),
            "source_ended": k.source_ended, "position": k.position,
        },
        "items": {
            "by_kind": _counted(item.kind for item in k.items.values()),
            "bytes": sum(item.size_bytes for item in k.items.values()),
        },
        "ledger": {
            **ledger_facts(k.ledger, limits), "attempts": k.ledger.attempts, "paid_calls": k.ledger.paid_calls,
            "reused_calls": k.ledger.reused_calls, "paid_again": k.ledger.paid_again,
        },
        "retries": {"spent": k.retries, "allowed": budget(limits.retry, k.successes), "successes": k.successes},
        "failures": {str(kind): count for kind, count in sorted(k.tally.failures.items())},
        "routes": [{"route": named(route), **share_facts(k, place)} for place, route in enumerate(k.terms.routes)],
        "in_flight": [flight_facts(k, flight) for flight in k.flights.values()],
        "errands": [_errand(task) for task in k.errands.values()],
        "elections": {str(goal): _election(k, goal) for goal in k.elections},
        "submissions": [
            {"number": made.number, "batch": made.name, "requests": len(made.keys), "state": str(made.stand)}
            for made in k.submissions.values()
        ],
        "awaited": k.awaited(),
        "limits": {**in_words(limits), **_inner(limits)},
        "estimate": estimate_facts(k.estimate),
        "results": {"emitted": k.emitted, "written": k.written_rows, "held": len(k.held)},
    }  # fmt: skip


def _counted(names: Any) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _inner(limits: Limits) -> Facts:
    """Return limits that no option sets but that decisions depend on."""
    names = (
        "concurrency", "output_tokens_max", "parts_max", "resamples_max", "rejected_alike_max", "window_rows",
        "depth_max", "plan_goals_max",
    )  # fmt: skip
    return {name: getattr(limits, name) for name in names}


def estimate_facts(estimate: TokenEstimate) -> Facts:
    """Return the estimated tokens of prompts of 1,000 and of 100,000 bytes."""
    return {
        "calls_learnt_from": sum(estimate.counts), "tightenings": estimate.tightenings,
        "tokens_of_1000_bytes": estimate.tokens(1_000), "tokens_of_100000_bytes": estimate.tokens(100_000),
    }  # fmt: skip


def flight_facts(k: State, flight: InFlightAttempt) -> Facts:
    """Return an attempt in flight."""
    return {
        "call": k.call_id(flight.goal, flight.sample), "goal": flight.goal, "attempt": flight.attempt,
        "route": named(k.terms.routes[flight.route]), "asked_at_s": flight.asked_at_s,
        "age_s": round(k.at_s - flight.asked_at_s, 3), "reserved": charge_facts(flight.charge), "probe": flight.probe,
        "followers": list(flight.followers), "abandoned": flight.abandoned, "submission": flight.submission,
    }  # fmt: skip


def _errand(task: ExternalRun) -> Facts:
    return {
        "goal": task.goal, "attempt": task.attempt, "name": task.name, "runs_failed": task.broken,
        "due_at_s": task.due_at_s if task.due_at_s != float("inf") else None, "repeatable": task.repeatable,
        "set_aside": charge_facts(task.charge) if task.charge is not None else None,
    }  # fmt: skip


def _election(k: State, goal_id: int) -> Facts:
    election = k.elections[goal_id]
    return {
        "must_be_ahead_by": election.k, "out": len(election.votes), "in": len(election.ballots),
        "counts": [each.votes for each in election.candidates], "next_sample": election.next_sample,
    }  # fmt: skip


def goal_facts(k: State, goal: Goal) -> Facts:
    """Return the current state of a goal."""
    facts: Facts = {
        "goal": goal.id, "kind": goal.kind, "row": goal.row, "parent": goal.parent, "depth": goal.depth,
        "status": goal.status.name.lower(), "sample": goal.sample, "attempts": goal.tries - goal.unsent,
        "constructor": goal.constructor, "value": to_json_value(goal.value), "answer": to_json_value(goal.answer),
        "failure": failure_facts(goal.failure) or None,
    }  # fmt: skip
    facts |= {name: value for name in _COUNTS if (value := getattr(goal, name))}
    if goal.kind == VOTE:
        facts["votes_on"] = goal.parent
    if goal.children:
        facts["children"] = goal.children
    if goal.join is not None and goal.status == Status.WAITING:
        facts["join"] = goal.join.kind
    if goal.expects is not None:
        facts["expects"] = goal.expects
    if goal.assumed:
        facts["assumed"] = {str(attempt): charge_facts(missing.charge) for attempt, missing in goal.assumed.items()}
    under_way = [flight_facts(k, each) for each in k.flights.values() if goal.id in (each.goal, *each.followers)]
    if under_way:
        facts["in_flight"] = under_way
    if goal.status not in ENDED and (task := k.errand_of(goal)) is not None:
        facts["errand"] = _errand(task)
    return facts


_COUNTS = (
    "broken", "throttles", "resamples", "refused", "too_large", "due_at_s", "deadline_at_s", "timeout_at_s", "partial",
    "children_resolved", "children_failed", "hedge",
)  # fmt: skip


def held(k: State, goal: Goal) -> str:
    """Return why an open goal is not asked at this moment, as far as K shows: the first obstacle. Empty if there is
    none, or if the goal waits for a time."""
    if goal.due_at_s > k.at_s:
        return ""  # the entry that began the wait gives its end
    if k.outcome or k.closing:
        return f"the job starts no calls now: {k.why or k.stopping or k.halted or 'its deadline has passed'}"
    if k.paused is not None:
        return f"the job is paused: {k.paused.kind}: {k.paused.message}"
    if k.short:
        if unanswered(k):
            return "the budgets of the job's labels could not be requested yet"
        sliced = k.purse is not None and k.purse.lacks_nusd > 0
        return "the next call waits for a slice of its budget" if sliced else "the next call could pass the cap"
    places = [place for place in k.terms.lane_places(goal.lane) if place < len(k.shares)]
    reasons = []
    for place in places:
        share = k.shares[place]
        if share.blocked is not None:
            reasons.append(f"{named(k.terms.routes[place])} is blocked: {share.blocked.kind}")
        elif share.hold_until_s > k.at_s:
            who = "the provider asks to wait" if share.told_to_wait else "the next call waits"
            reasons.append(f"{who} {share.hold_until_s - k.at_s:.1f} s")
        elif share.why:
            reasons.append(share.why)
        elif not share.permits:
            reasons.append("no permit is leased yet")
        elif share.in_flight >= share.permits or not share.starts:
            reasons.append(f"all {share.permits} permits are in use")
    if len(k.flights) >= k.terms.limits.concurrency:
        reasons.append(f"all {k.terms.limits.concurrency} calls that may be in flight are")
    return "; ".join(dict.fromkeys(reasons))
