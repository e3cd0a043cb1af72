"""Summary of a job: its figures for people and programs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from actors.jobs.bill_excess import excess_facts
from actors.jobs.limit_options import in_words
from actors.jobs.wait_reasons import wait_facts
from actors.programs.loader import place_of
from cortex.goals import shards
from cortex.programs.table import LONGER, Table
from cortex.state.state import State
from cortex.values.ledger import earlier_of
from cortex.values.limits import JobTerms, Route
from policies.estimates.price import usd, usd_text
from policies.estimates.reply_bounds import bounds

UNREADABLE = "unreadable"
"""Key among a job's places: number of records of the input from which no row could be read. They have no results, and
count as rows of the input that did not succeed."""

ENDINGS = {"cut": "cut", "paused": "paused", "empty": "empty", "refused": "refused", "unknown": "without a stop reason"}
"""Ending of a reply that is no whole answer -> its name in summaries, in order."""


def summary(k: State) -> dict[str, Any]:
    """Return the fields of ``--json``; money in USD, times in seconds."""
    tally, ledger = k.tally, k.ledger
    own, *others = k.terms.routes
    priced = own.price is not None and all(_priced(route) for route in others)
    earlier = earlier_of(k.terms.places)
    return {
        "job": k.terms.job,
        "outcome": k.outcome or "running",
        "why": k.why,
        "awaited": k.awaited(),
        "rows": tally.rows_read if k.terms.streams or k.shards else tally.succeeded + tally.failed,
        "rows_expected": counted(k.terms.places.get("rows", "")),
        "rows_succeeded": tally.succeeded,
        "rows_failed": tally.failed,
        "rows_unreadable": unreadable_rows(k),
        "rows_refused": tally.rows_refused,
        "rows_failed_by_kind": {str(kind): count for kind, count in sorted(tally.failed_for_good.items())},
        "rows_by_ending": dict(sorted(tally.endings.items())),
        "failed_said": tally.failed_said,
        "failed_row": tally.failed_row,
        "calls": calls_of(k),
        "calls_before": earlier.calls,
        "attempts": ledger.attempts,
        "failures": {str(kind): count for kind, count in sorted(tally.failures.items())},
        "paid_calls": ledger.paid_calls,
        "reused_calls": ledger.reused_calls,
        "paid_again": ledger.paid_again,
        "uncounted": tally.uncounted,
        "input_tokens": ledger.input_tokens,
        "output_tokens": ledger.output_tokens,
        "cache_read_tokens": ledger.cache_read_tokens,
        "cache_creation_tokens": ledger.cache_creation_tokens,
        "cost_usd": usd(ledger.known_nusd) if priced else None,
        "cost_assumed_usd": usd(ledger.assumed_nusd) if priced else None,
        "cost_before_usd": usd(earlier.known_nusd) if priced else None,
        "max_cost_usd": usd(cap) if (cap := k.terms.limits.max_cost_nusd) is not None else None,
        "max_job_tokens": k.terms.limits.max_job_tokens,
        **excess_facts(k),
        "known_nusd": ledger.known_nusd,
        "assumed_nusd": ledger.assumed_nusd,
        "batches": [
            {"number": made.number, "batch": made.name, "requests": len(made.keys), "state": str(made.stand)}
            for made in k.submissions.values()
        ],
        "assumed_tokens": ledger.assumed_tokens,
        "goals_live": k.live,
        "retry_tokens": larger_bound(k.terms),
        "results": shards.results(k) if k.shards else k.emitted,
        "results_restored": k.restored or 0,
        "reopened": k.edition,
        "results_written": k.written_rows,
        "bytes_written": k.written_bytes,
        "checksum_written": k.written_checksum,
        "position": k.position,
        "source_ended": k.source_ended,
        "elapsed_s": round(k.at_s - k.began_at_s, 3) if k.began_at_s else 0.0,
        "output": k.terms.places.get("output", ""),
        "labels": k.terms.labels,
        "limits": in_words(k.terms.limits),
        "limits_by": k.terms.limits_by,
        "limits_at_s": k.terms.limits_at_s,
        "epoch": k.epoch,
        "began_at_s": k.began_at_s,
        "last_turn_at_s": k.at_s,
        **wait_facts(k),
    }


def larger_bound(terms: JobTerms) -> str:
    """Return a bound on reply tokens for rows whose reply was cut: twice the largest that the job asked with, and no
    more than its model is known to write; empty if there is none, ``N`` if the rows hold their own bounds."""
    given, longer = _asking(terms.program, terms.params_json)
    if given:
        return "N"
    own, most = terms.limits.output_tokens_max, terms.reply_tokens_max()
    asked = max(bounds(own, most)) if longer else own
    tokens = 2 * asked if most is None else min(2 * asked, most)
    return str(tokens) if tokens > asked else ""


class _Asked(msgspec.Struct):
    """Parameters of ``table`` that decide about the bound on reply tokens."""

    prompt: str = ""
    on_cut: str = ""


@lru_cache(maxsize=64)
def _asking(program: str, params_json: bytes) -> tuple[bool, bool]:
    """Return whether the rows of a job are whole requests, and whether rows that are cut are asked with more tokens."""
    if program != place_of(Table):
        return False, False
    asked = msgspec.json.decode(params_json, type=_Asked)
    return not asked.prompt, asked.on_cut == LONGER


def calls_of(k: State) -> int:
    """Return the calls of the job, those before it began anew included: calls, attempts, tokens and cost are totals of
    the whole job."""
    return k.tally.calls + earlier_of(k.terms.places).calls


def unreadable_rows(k: State) -> int:
    """Return the number of records of the input from which no row could be read, counted when the job began."""
    return counted(k.terms.places.get(UNREADABLE, ""))


def rows_of_input(facts: dict[str, Any]) -> int:
    """Return the number of records of the whole input, the unreadable ones included; for a job without an input the
    number of its results."""
    return int(max(facts["rows_expected"], facts["rows"]) + facts.get("rows_unreadable", 0))


def earlier_text(facts: dict[str, Any]) -> str:
    """Return the calls and the cost of a job before it began anew, in words; empty if it never did."""
    calls, cost = facts.get("calls_before", 0), facts.get("cost_before_usd")
    if not calls and not cost:
        return ""
    money = "" if cost is None else f" and {usd_text(round(cost * 1e9))}"
    return f"{calls:,} {'call' if calls == 1 else 'calls'}{money} before it began anew"


def unreadable_text(facts: dict[str, Any]) -> str:
    """Return the number of unreadable records of the input in words; empty if there are none."""
    count = facts.get("rows_unreadable", 0)
    return f"{count:,} unreadable" if count else ""


def without_results(unreadable: int) -> str:
    """Return the unreadable records of the input as a part of a line about results; empty if there are none."""
    noun = "record" if unreadable == 1 else "records"
    return f"the input also has {unreadable:,} unreadable {noun}, without results" if unreadable else ""


def kept_endings(facts: dict[str, Any]) -> str:
    """Return counts of results that count as succeeded though their reply is no whole answer, by ending."""
    counts = facts.get("rows_by_ending") or {}
    return ", ".join(f"{counts[ending]:,} {name}" for ending, name in ENDINGS.items() if counts.get(ending))


def counted(text: str) -> int:
    """Return the rows of the whole input, counted at the job's start; 0 for a job without rows."""
    return int(text) if text.isdecimal() else 0


def _priced(route: Route) -> bool:
    """Return True if calls of the route have a known cost; the simulated provider is free."""
    return route.price is not None or route.endpoint.startswith("sim:")
