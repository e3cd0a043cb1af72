"""Status of a job as text lines and as JSON."""

from __future__ import annotations

import re
from decimal import Decimal
from shlex import quote
from typing import Any

import msgspec

from actors.cli.options.errors import COMPLETE, FAILED, PARTIAL
from actors.common.errors import USAGE
from actors.common.units import clock, span
from actors.jobs.bill_excess import cap_passed
from actors.jobs.summary import earlier_text, kept_endings, rows_of_input, unreadable_text
from actors.journal.state_folder import advised
from actors.providers.registry import DEFAULT, api_at, how_to_open, of_endpoint, row_of
from actors.providers.remedies import MODEL, has_remedy
from cortex.admission.pauses import ALIKE, UNREADABLE
from cortex.flows.context import APPROVAL
from cortex.state.events import NODE_ENDED
from policies.failures.failure import FailureKind

FIELDS = (
    "job", "outcome", "rows", "rows_succeeded", "rows_failed", "rows_unreadable", "calls", "attempts", "failures",
    "paid_calls", "reused_calls", "paid_again", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_creation_tokens", "cost_usd", "cost_assumed_usd", "calls_before", "cost_before_usd", "elapsed_s", "answer",
    "output", "resume", "replies_over_reserved", "cost_over_cap_usd", "tokens_over_cap",
)  # fmt: skip
"""Fields of ``--json``, in order: exactly these."""

STATUS_FIELDS = (
    *FIELDS, "why", "waits", "route", "routes", "permits", "in_flight", "deadline_at_s", "paused_until_s", "limits",
    "batches", "rows_failed_by_kind", "rows_by_ending", "rows_refused", "failed_row", "failed_said", "max_cost_usd",
    "limits_by", "limits_at_s", "labels", "awaited", "sleeps_until_s", "epoch", "began_at_s", "last_turn_at_s",
    "ended_at_s", "live", "projected_end_s", "deadline_at_risk",
)  # fmt: skip
"""Fields of ``status --json``: ``FIELDS`` and the present state. ``live`` is the scheduler's view while the job runs
(``as_of_s``, ``pools``, ``routes``, ``breakers``, ``staff``, ``nodes``, ``channels``), else null. Times that end in
``_at_s`` or ``_until_s`` are seconds since 1970; 0 or null: none."""

_RESUME = "resume: one call is sent first, the rest after its answer"
_ONE_FIRST = f"then {_RESUME}"
_OTHER_MODEL = (
    "no row failed for it; resume with --fallback MODEL asks another one, the job's command with another --model "
    f"begins anew; once it is served {_RESUME}"
)
_ADVICE = {
    "blocked": f"no row failed: correct the account (credit, spend limit) or the model's name, {_ONE_FIRST}",
    "throttled": "the wait is longer than a job may pause: resume it then",
    "deadline": "resume with a later --deadline",
    "condemned": "find what kills the job (its memory, its node, its program), then resume",
}
"""Advice by the first word of the reason for which a job stopped. A reason about a cap names the command to continue.
"""

_RIGHTS = re.compile(r"\b(?:allow(?:ed|list)?|permi(?:t|ssion)|forbidden|region|country|IP (?:address|not))", re.I)
"""Words for a key that is known and may not do something (403): Anthropic's `permission_error`, "Request not allowed"
(https://platform.claude.com/docs/en/api/errors); OpenAI's "Country, region, or territory not supported" and "IP not
authorized" (https://platform.openai.com/docs/guides/error-codes)."""

_AWAITS = "waits for an answer"

RESUMABLE = frozenset({"partial", "interrupted", "detached"})
OVER = frozenset({"complete", "failed", "cancelled"})


class JobStatus(msgspec.Struct, kw_only=True):
    """Status of a job: figures of ``actors.jobs.summary``, and further facts for users."""

    facts: dict[str, Any]
    state: str
    answer: Any = None
    unread_reason: str = ""
    """Reason, in one line, why the journal alone cannot give the numbers of succeeded and failed rows; empty if it can.
    """
    asks_again: bool = False
    """True if failed rows of the job can be retried one by one."""

    @property
    def rows(self) -> int:
        """Records of the whole input, the unreadable ones included; the number of results of a job without an input."""
        return rows_of_input(self.facts)

    @property
    def outcome(self) -> str:
        """``complete``, ``partial``, ``failed``, ``cancelled``, ``running``, ``interrupted`` or ``detached``."""
        return str(self.facts["outcome"])

    @property
    def forgotten(self) -> bool:
        """True if the prompts and replies of the job were removed."""
        return "forgotten_at_s" in self.facts

    @property
    def resume(self) -> str:
        """Command that continues the job; empty if the job cannot or need not continue."""
        if self.outcome not in RESUMABLE or self.forgotten:
            return ""
        verb = "attach" if self.outcome == "detached" else "resume"
        return self.longer or self.command(verb)

    @property
    def longer(self) -> str:
        """Command that continues a job which was halted because its rows were cut: ``cortex resume`` would have the
        others cut at the same bound. Empty for other jobs, and if no larger bound is known."""
        facts = self.facts
        reason, _, said = facts["why"].partition(":")
        cut = facts["rows_failed_by_kind"].get(FailureKind.CUT, 0)
        mostly = 2 * cut > facts["rows_failed"] if reason == "max_failed" else f"alike, {FailureKind.CUT}:" in said
        if not (self.asks_again and cut and mostly and reason in ("alike", "max_failed") and facts.get("retry_tokens")):
            return ""
        return self.command("retry", f"--kind {FailureKind.CUT} --max-output-tokens {facts['retry_tokens']}")

    @property
    def retry(self) -> str:
        """Command that retries the failed rows; empty if there are none, or if the job must be resumed first.

        Rows that were cut would be cut again at the same bound, so the command then asks for a larger one. Rows that
        are all too large would be too large again.
        """
        failed = self.facts["rows_failed"] > self.facts["rows_refused"]
        if not (failed and self.asks_again and self.outcome == "complete"):
            return ""
        command = self.command("retry")
        kinds = self.facts["rows_failed_by_kind"]
        if cut := kinds.get(FailureKind.CUT, 0):
            return f"{command} --max-output-tokens N ({cut:,} cut: give a larger N than before)"
        if kinds.keys() == {FailureKind.TOO_LARGE}:
            return f"{command} --model NAME (a model with a larger window), or shorten them and ask them as another job"
        return command

    def command(self, verb: str, options: str = "") -> str:
        """Return a command for this job."""
        return advised(self.state, verb, self.facts["job"], options)

    def as_json(self, names: tuple[str, ...] = FIELDS) -> str:
        """Return the object of ``--json``, on one line."""
        facts = {
            "calls_before": 0, "cost_before_usd": None,  # of a job that was forgotten by an earlier release
            "replies_over_reserved": 0, "cost_over_cap_usd": 0.0, "tokens_over_cap": 0,  # likewise
            **self.facts, "rows": self.rows, "answer": self.answer,
            "output": self.facts["output"] or None, "resume": self.resume or None,
        }  # fmt: skip
        if self.unread_reason:
            facts |= {"rows_succeeded": None, "rows_failed": None}
        return msgspec.json.encode({name: facts[name] for name in names}).decode()

    def code(self, failed_share_max: Decimal, partial_is_complete: bool) -> int:
        """Return the exit code of a run that ended with this status, signals apart."""
        facts = self.facts
        # a drained job rests: it is continued by the process that waits for it
        drained = facts["why"].startswith("drain: by ")
        if self.outcome != "complete" and (drained or not (partial_is_complete and self.outcome in RESUMABLE)):
            return PARTIAL if self.outcome in RESUMABLE else FAILED
        failed, refused, unreadable = facts["rows_failed"], facts["rows_refused"], facts["rows_unreadable"]
        if cap_passed(facts):
            return PARTIAL
        bad = failed if partial_is_complete else failed + unreadable  # results without these records are partial
        if not bad or Decimal(bad) / (facts["rows"] + unreadable) <= failed_share_max:
            return COMPLETE
        if failed > refused:
            return FAILED
        return USAGE if refused else PARTIAL


def headline(status: JobStatus) -> str:
    """Return the outcome of a job in one line."""
    facts = status.facts
    lines = [f"{facts['job']}: {status.outcome}"]
    rows = status.rows
    noun = "row" if facts["rows_expected"] or facts["rows_refused"] else "result"
    if rows:
        known = f"{facts['rows_succeeded']:,} of {_many(rows, noun)} succeeded"
        lines.append(_many(rows, noun) if status.unread_reason else known)
    if kept := kept_endings(facts):
        lines.append(f"of which {kept}")
    if facts["rows_failed"]:
        kinds = failed_kinds(facts)
        lines.append(f"{facts['rows_failed']:,} failed" + (f" ({kinds})" if kinds else ""))
    lines.append(unreadable_text(facts))
    lines.append(_many(facts["calls"], "call"))
    if facts["reused_calls"]:
        lines.append(f"{facts['reused_calls']:,} of them remembered" if facts["calls"] > 1 else "remembered")
    if facts.get("uncounted"):
        lines.append(f"{_replies(facts['uncounted'])} without a token count")
    if facts["cost_usd"] is not None:
        lines.append(cost(facts))
    if before := earlier_text(facts):
        lines.append(f"of which {before}")
    lines.append(span(facts["elapsed_s"]) + (", rests included" if facts["epoch"] > 1 else ""))
    return ", ".join(filter(None, lines))


def _replies(count: int) -> str:
    return f"{count:,} {'reply' if count == 1 else 'replies'}"


def failed_kinds(facts: dict[str, Any]) -> str:
    """Return counts of failed rows, by kind."""
    lines = [f"{count:,} {kind}" for kind, count in facts["rows_failed_by_kind"].items()]
    if facts["rows_refused"]:
        lines.append(f"{facts['rows_refused']:,} refused before sending")
    return ", ".join(lines)


def last_failed(facts: dict[str, Any]) -> str:
    """Return the row that failed last, with its error; empty if none failed."""
    row, answer = facts["failed_row"], facts["failed_said"]
    if not row:
        return ""
    return f"the last: {answer}" if answer.startswith(f"row {row}:") else f"the last: row {row}: {answer}"


def cost(facts: dict[str, Any]) -> str:
    """Return the cost as text; costs that may have been billed in addition are named apart."""
    from policies.estimates.price import usd_text

    known, assumed = usd_text(facts["known_nusd"]), facts["assumed_nusd"]
    return known + (f" (and perhaps {usd_text(assumed)} for attempts without a reported cost)" if assumed else "")


def least_and_most(facts: dict[str, Any]) -> str:
    """Return the cost as a range for a table: known cost, and cost at most."""
    from policies.estimates.price import usd_text

    known, assumed = facts["known_nusd"], facts["assumed_nusd"]
    return usd_text(known) + (f" to {usd_text(known + assumed)}" if assumed else "")


def batch_words(batches: list[dict[str, Any]]) -> str:
    """Return message batches in preparation or at the provider, at most five of them."""
    lines = [
        f"{each['number']}: {each['batch'] or each['state']} ({_many(each['requests'], 'request')})" for each in batches
    ]
    more = f" and {len(lines) - 5:,} more" if len(lines) > 5 else ""
    return ", ".join(lines[:5]) + more


def size_text(size_bytes: int) -> str:
    """Return a size in bytes as text, with three digits and a decimal unit."""
    if size_bytes < 1_000:
        return f"{size_bytes} B"
    for unit, above in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if size_bytes < 999.5 * above:
            return f"{size_bytes / above:.3g} {unit}"
    return f"{size_bytes / 1e12:.3g} TB"


def is_drained_by_a_user(status: JobStatus) -> bool:
    """Return whether a job that does not run was drained, and not for the end of its node: only a person goes on with
    it."""
    how, _, by = str(status.facts["why"]).partition(": by ")
    return how == "drain" and bool(by) and by != NODE_ENDED


def why(status: JobStatus) -> str:
    """Return the reason why the job is not complete, with advice; empty if it is complete."""
    text = str(status.facts["why"])
    if not text:
        return ""
    how, _, by = text.partition(": by ")
    if how == "cancel":
        return f"cancelled by {by}"
    if how == "drain":
        return f"drained by {by}" if status.facts["outcome"] in ("partial", "interrupted") else ""
    if how.startswith(_AWAITS):
        return _awaits(status)
    plain = f"cortex resume {status.facts['job']}"  # the journal does not know its state folder
    text = text.replace(f"{plain} ", f"{status.command('resume')} ")
    until_s = status.facts["paused_until_s"]
    times = [f"the provider names the time: {clock(until_s)}"] if until_s else []
    failing = _failing(status) if text.startswith("deadline:") else []
    advice = _advice(text, str(status.facts["route"]))
    return "; ".join([text.rstrip("."), *failing, *times, *([advice] if advice else [])])


def _failing(status: JobStatus) -> list[str]:
    """Return what the first route that fails has failed by since its last reply; empty if none does."""
    failing = [each for each in status.facts["routes"] if each["failing"]]
    return [f"{each['lacks']} from {each['route']}: {each['failing']}" for each in failing[:1]]


def _advice(text: str, route: str) -> str:
    """Return advice for a stopped job. Each cloud has its own credentials; a failure may name them already."""
    why = text.partition(":")[0].strip()
    if why == FailureKind.BLOCKED and UNREADABLE in text:
        return f"see that --base-url names a server that speaks {api_at(_endpoint(route))}, {_ONE_FIRST}"
    if why == FailureKind.BLOCKED and f"all {ALIKE}: " in text:
        return f"correct what the provider finds fault with, {_ONE_FIRST}"
    if why == FailureKind.BLOCKED and MODEL in text:
        return _OTHER_MODEL
    if why == FailureKind.BLOCKED and has_remedy(text):
        return f"no row failed for it; after that {_RESUME}"
    if why != FailureKind.UNAUTHORISED:
        return _ADVICE.get(why, "")
    if has_remedy(text):
        return f"no row failed; after that {_RESUME}"
    endpoint = _endpoint(route)
    rehearsal = of_endpoint(endpoint).by_model  # it says what the provider would
    opens = row_of(DEFAULT).how_to_open if rehearsal else how_to_open(endpoint)
    rights = "; if the key is right, allow it at the provider what it may not do;" if _RIGHTS.search(text) else ","
    return "no row failed" + (f"; after that {_RESUME}" if opens in text else f": {opens}{rights} {_ONE_FIRST}")


def _endpoint(route: str) -> str:
    """Return the endpoint of a route as ``actors.jobs.wait_reasons.named`` writes it, without http or https."""
    endpoint = route.rpartition(" at ")[2].partition(" ")[0]
    return f"http://{endpoint}" if of_endpoint(endpoint).name == DEFAULT else endpoint


def _awaits(status: JobStatus) -> str:
    """Return the answers that a job at rest still waits for; answers given meanwhile are left out."""
    names: list[str] = status.facts["awaited"]
    if not names:
        return "the awaited answer was given: resume the job"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    approval = names[0].startswith(APPROVAL)
    given = names[0].removeprefix(APPROVAL) if approval else f"{names[0]}=VALUE"
    command = status.command("approve" if approval else "answer", quote(given))
    return f"{_AWAITS}: {names[0]}{more}; give it, then resume: {command}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
