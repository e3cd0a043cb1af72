"""Sentences of a report: the program, how the job ended, its cost, its failures, and what to do."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.common.units import clock
from actors.history.annotated_turns import JournalReader
from actors.jobs.summary import earlier_text, kept_endings, unreadable_text
from actors.jobs.wait_reasons import named
from actors.report.figures import PERIODS_MAX, ReportFigures
from actors.report.labels import HALF_OPEN, OPEN
from actors.report.sketches import QuantileSketch
from policies.estimates.price import usd_text


class JobEnding(msgspec.Struct, kw_only=True):
    """State of the job, as ``cortex status`` shows it."""

    facts: dict[str, Any]
    outcome: str
    rows: int
    """Records of the whole input, the unreadable ones included, if they were counted; else the rows read."""
    why: str
    """Reason why the job is not complete, and what to do; empty if it is complete."""
    resume: str
    """Command that resumes the job; empty if it cannot or need not be resumed."""
    cost: str
    """Empty if the price is unknown."""
    time: str
    now_s: float


_OUTCOMES = {
    "complete": "It is complete.", "partial": "It stopped before its end, and can be resumed.",
    "failed": "It failed.", "cancelled": "It was cancelled.", "running": "It is still running.",
    "interrupted": "Its run was interrupted, and it can be resumed.",
    "detached": "Its driver left it in a cluster, where it may still go on.",
}  # fmt: skip

MEANINGS = {
    "throttled": (
        "the provider's rate limit",
        "tried again after the wait that the provider asks for; to avoid it, bound the job with --rpm, --itpm, --otpm "
        "or --concurrency",
    ),
    "overloaded": (
        "the provider was out of capacity",
        "tried again after a growing wait; where it lasts, a --fallback keeps the work going",
    ),
    "expired": (
        "the provider did not process the request before its message batch expired, and bills nothing for it",
        "asked again in a later batch, up to a limit; where there are many, leave --via batches out",
    ),
    "transient": (
        "a server error, or a connection or body that was cut",
        "tried again after a growing wait; where there are many, look at the network, a proxy, or the gateway",
    ),
    "unreadable": (
        "no message could be read in the provider's answer, which was paid for",
        "tried again once; look at --base-url: a gateway may speak another API than Messages",
    ),
    "timed_out": (
        "no answer within the time an attempt may take",
        "tried again by the job's retry policy; look at the slowest calls, and at the reply length they ask for",
    ),
    "malformed": (
        "a complete reply that the program refused",
        "discarded and asked again, up to a limit; look at the replies, and state the required form in the prompt",
    ),
    "refused": ("the model declined", "never tried again; look at the prompts of these goals"),
    "cut": (
        "the reply stopped at --max-output-tokens, or at the end of the model's context window",
        "tried again only with --on-cut longer; ask these again: cortex retry JOB --kind cut --max-output-tokens N",
    ),
    "paused": (
        "the provider interrupted the model's turn",
        "never tried again by itself; ask these again with cortex retry JOB --kind paused",
    ),
    "empty": (
        "the reply holds no text, for example only thinking",
        "never tried again by itself; ask these again: cortex retry JOB --kind empty --max-output-tokens N",
    ),
    "tool_use": (
        "the model asked for a tool where an answer was wanted",
        "never tried again by itself; look at the tools that these requests offer",
    ),
    "too_large": (
        "the prompt was over the bound",
        "the program is asked for a shorter prompt; a prompt it cannot shrink fails: split or shorten these",
    ),
    "blocked": (
        "the account or the model, not the row",
        "the job pauses: put right what its message names: the account (credit, spend limit), the model's name or the "
        "address, then resume",
    ),
    "unauthorised": ("the key, or its permissions", "the job pauses: set a good key, then resume"),
    "rejected": (
        "the provider finds fault with the request",
        "never tried again: put these rows right, then run them as a job of their own",
    ),
    "lost": (
        "its branch, worker or node died",
        "tried again at once; a few after a crash are no reason to worry",
    ),
    "faulty": (
        "the program's, or a tool's, own code raised",
        "never tried again: put the code right, then resume; the replies are remembered",
    ),
    "over_budget": ("the cap on money or tokens", "resume with a higher --max-cost or --max-job-tokens"),
    "cancelled": ("it was cancelled, or its result was no longer needed", "nothing need be done"),
}
"""Meaning of each kind of failure, and what Cortex does and a person can do about it."""

ONSET_KINDS = ("rejected", "refused", "malformed", "cut", "paused", "empty", "tool_use", "unreadable")
"""Kinds that fail a row for what the provider answered: a gateway or a model that changed makes them of good rows."""
ONSET_CHANCE = 0.001
"""Chance below which a first failure this late is an onset: how often all rows that failed would come so late if they
lay in the input by chance."""
BEFORE_MIN = 10
"""Fewest answers before an onset: of fewer, all may be rows of another form at the head of the input."""


def sentences(ending: JobEnding, figures: ReportFigures, reading: JournalReader) -> list[str]:
    """Return the summary of the report, for a reader who did not watch the job."""
    facts = ending.facts
    program = reading.terms.program.rpartition("/")[2]
    going = ending.outcome in ("running", "detached")
    began = f"It began at {clock(reading.begin_s)} and {'has been running for' if going else 'took'} {ending.time}."
    lines = [
        f"The job {facts['job']} {'runs' if going else 'ran'} the program {program} on {_routes(reading)}. {began}",
        f"{_OUTCOMES.get(ending.outcome, ending.outcome)}{_why(ending)}{_rows(ending)}",
        _cost(ending, figures), _wrong(facts, figures), _unwell(figures), _speed(figures),
    ]  # fmt: skip
    return [each.strip() for each in lines if each]


def _routes(reading: JournalReader) -> str:
    own, *others = [named(route) for route in reading.terms.routes]
    return own + (f" (and {', '.join(others)})" if others else "")


def _why(ending: JobEnding) -> str:
    if not ending.why:
        return ""
    return f" {ending.why[0].upper()}{ending.why[1:]}".rstrip(".") + "."


def _rows(ending: JobEnding) -> str:
    facts = ending.facts
    if not ending.rows:
        return f" {facts['results_written']:,} results had been written." if facts["results_written"] else ""
    noun = "rows" if facts.get("rows") and ending.rows != 1 else "result" if ending.rows == 1 else "results"
    text = f" {facts['rows_succeeded']:,} of {ending.rows:,} {noun} succeeded"
    if kept := kept_endings(facts):
        text += f", of which {kept}"
    text += f", {facts['rows_failed']:,} failed" if facts["rows_failed"] else ", none failed"
    if refused := facts["rows_refused"]:
        text += f" ({refused:,} refused before sending: `cortex inspect {facts['job']} --failed` says why)"
    if lost := unreadable_text(facts):
        text += f", {lost}: these records of the input were not asked and have no result"
        text += f" (`cortex results {facts['job']} --bad` lists them)"
    return text + "."


def _cost(ending: JobEnding, figures: ReportFigures) -> str:
    facts = ending.facts
    tokens = f"{facts['input_tokens'] + facts['cache_read_tokens'] + facts['cache_creation_tokens']:,} tokens in and "
    tokens += f"{facts['output_tokens']:,} out"
    money = f"It cost {ending.cost}" if ending.cost else "No price is known for it; it used"
    text = f"{money}: {tokens}" if ending.cost else f"{money} {tokens}"
    text += f", over {_many(facts['calls'], 'call')} in {_many(facts['attempts'], 'attempt')}"
    before = facts.get("calls_before", 0)
    below = figures.calls - (facts["calls"] - before)
    text += f", and {below:,} more calls in its child jobs." if len(figures.jobs) > 1 and below > 0 else "."
    if text_before := earlier_text(facts):
        text += f" Of this, the job had made {text_before}."
    if facts["reused_calls"]:
        was = "call was" if facts["reused_calls"] == 1 else "calls were"
        text += f" {facts['reused_calls']:,} {was} answered from memory, at no cost."
    if facts["paid_again"]:
        many = "attempt" if facts["paid_again"] == 1 else "attempts"
        text += f" {facts['paid_again']:,} {many} may have been paid too, for calls answered by another attempt."
    return text


def _wrong(facts: dict[str, Any], figures: ReportFigures) -> str:
    failed = sum(facts["failures"].values())
    if not failed:
        return "No attempt failed."
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in facts["failures"].items())
    share = f" ({100 * failed / facts['attempts']:.3g} %)" if facts["attempts"] else ""
    text = f"{failed:,} of {_many(facts['attempts'], 'attempt')} failed{share}: {kinds}."
    refused = facts["rows_refused"]
    if facts["rows_failed"] <= refused and not figures.goals_failed:
        what = "nothing that was sent" if refused else "nothing"
        return f"{text} All retryable failures were retried, and {what} failed for good."
    worst = max(facts["rows_failed_by_kind"] or facts["failures"], key=lambda kind: _count(facts, kind))
    meaning, advice = MEANINGS.get(worst, ("", ""))
    if not meaning:
        return text
    text += f" The most frequent permanent failure is {worst} ({meaning})"
    since_s = onset_s(worst, figures, facts["rows_failed_by_kind"].get(worst, 0) or figures.goals_failed)
    if since_s is None:
        return f"{text}: {advice}."
    return f"{text}. {_since(worst, since_s, int(figures.answered.before(since_s)), facts, advice)}"


def onset_s(kind: str, figures: ReportFigures, rows: int = 0) -> float | None:
    """Return the Unix time since which rows fail by this kind; None if they may have failed from the beginning.

    Of n rows, m of them since the first failure, c failed ones that lie in the input by chance are all among those m
    with the probability C(m, c) / C(n, c), which is at most (m / n) ** c. An input may be sorted, so an onset alone
    does not tell whose fault it is. ``rows``: rows that failed by this kind, as the attempts of one row fail together;
    0: not known, then each failed attempt counts.
    """
    found = figures.failures.get(kind)
    if kind not in ONSET_KINDS or found is None or not found.first_s:
        return None
    before = figures.answered.before(found.first_s)
    since = sum(figures.answered.values) - before + found.count
    chance = (since / (before + since)) ** min(rows or found.count, found.count)
    return found.first_s if before >= BEFORE_MIN and chance < ONSET_CHANCE else None


def _since(kind: str, since_s: float, before: int, facts: dict[str, Any], advice: str) -> str:
    job = facts["job"]
    alive = facts["outcome"] in ("running", "detached")
    first = f"`cortex drain {job}`, and " if alive else ""
    return (
        f"The first was at {clock(since_s)}, after {before:,} answers or more. Compare a row that failed with one that "
        f"was answered (`cortex inspect {job} --failed`, `cortex inspect {job} ROW`). Where their prompts are of the "
        f"same form, the provider or a gateway before it fails good rows: {first}when it is well, "
        f"`cortex retry {job} --kind {kind}`. Where these rows are faulty themselves: {advice}."
    )


def _count(facts: dict[str, Any], kind: str) -> int:
    return int((facts["rows_failed_by_kind"] or facts["failures"])[kind])


def _unwell(figures: ReportFigures) -> str:
    lines = []
    least = "at least " if len(figures.periods) == PERIODS_MAX else ""
    for route in dict.fromkeys(period.route for period in figures.periods):
        some = [period for period in figures.periods if period.route == route and period.state in (OPEN, HALF_OPEN)]
        opened = sum(period.state == OPEN for period in some)
        if opened:
            shut_s = sum(period.to_s - period.from_s for period in some)
            times = "once" if opened == 1 else f"{opened:,} times"
            whole = f"for {shut_s:.1f} s in all it was open or probed"
            lines.append(f"The breaker of {route} opened {least}{times}; {whole}.")
    held = [period for period in figures.periods if period.state not in (OPEN, HALF_OPEN)]
    if held:
        held_s = sum(period.to_s - period.from_s for period in held)
        lines.append(f"The provider asked to wait {least}{len(held):,} times, {held_s:.1f} s in all.")
    return " ".join(lines)


def _speed(figures: ReportFigures) -> str:
    digest: QuantileSketch = figures.latency
    if not digest.count or digest.most <= 0:
        return ""
    text = f"Half of the answers came within {_seconds(digest.quantile(0.5))}, 95 in 100 within "
    return f"{text}{_seconds(digest.quantile(0.95))}; the slowest took {_seconds(digest.most)}."


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _seconds(amount: float) -> str:
    return f"{amount:.3g} s"


def cautions(reading: JournalReader, figures: ReportFigures, carried: int | None) -> list[str]:
    """Return remarks that a reader needs to interpret the figures."""
    lines = []
    if reading.changed:
        lines.append(
            "The job's program has changed since, or is gone. This report is therefore limited to the recorded events: "
            "prompts, kinds of goals, reserved money and the goal tree are not known, and an attempt is assigned to "
            "the route whose model answered."
        )
    elif not reading.same:
        lines.append(
            "The source of the job's program, or of cortex itself, has changed since the job ran. A replay asks "
            "exactly the same questions, so everything below holds."
        )
    if carried:
        lines.append(
            f"The program changed before the job had ended, so the job began anew. {usd_text(carried)} had been spent "
            "before; this is included in the job's cost, but not in the charts and tables."
        )
    if figures.more_happenings:
        lines.append(f"{figures.more_happenings:,} more events are not listed.")
    return lines
