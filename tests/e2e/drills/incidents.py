"""Incidents that the drills cause, and what `cortex status` and the log say of each: the table of ``docs/runbook.md``.

``python -m tests.e2e.drills.incidents`` prints the table; a test compares it with the page. `…` stands for any text.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Incident(NamedTuple):
    """Incident. ``line``: name of the line of `cortex status`; ``says``: its words; ``log``: event of the log, and its
    level; ``do``: what helps, or the section of the page; ``alert``: the only one that fires in the drill, at most ``within_min``
    minutes after the cause; for a lost head after nothing is scraped of the job any more (empty: none)."""

    name: str
    line: str
    says: str
    log: str
    do: str
    alert: str = ""
    within_min: int = 0


INCIDENTS = (
    Incident("provider down", "waits",
             "the breaker is open: no usable reply from … since …: …; it is probed at …", "`job.waits` warning",
             "[CortexBreakerOpen](#cortexbreakeropen)", "CortexBreakerOpen", 6),
    Incident("provider hangs", "waits", "no reply for … to the oldest of … calls in flight…", "`job.progress` info",
             "[CortexNoProgress](#cortexnoprogress)", "CortexNoProgress", 16),
    Incident("storm of 429", "waits", "the provider says to wait until …", "`job.failures` info: throttled",
             "wait; [CortexThrottledShare](#cortexthrottledshare)", "CortexThrottledShare", 20),
    Incident("storm of 429 that names no wait", "waits", "…paced at …/s since …, after 429", "`pool.cut` info",
             "nothing: the pace rises by itself within seconds once the provider answers; `cortex limit ROUTE --forget`", "CortexThrottledShare", 20),
    Incident("wrong key", "why", "unauthorised: …; no row failed: …, then resume: …", "`job.blocked` error",
             "[CortexAccountBlocked](#cortexaccountblocked)", "CortexAccountBlocked", 1),
    Incident("key rotated, `--wait-blocked`", "waits", "unauthorised: …; it is probed at …",
             "`job.blocked` error", "put the new key into the file: the job goes on within a second", "CortexAccountBlocked", 1),
    Incident("cap near", "cost", "$…, of $… at most; cap at risk: all rows cost about $…, and at the cap the job ends, resumable",
             "none", "[CortexBudgetBurn](#cortexbudgetburn)", "CortexBudgetBurn", 20),
    Incident("cap reached", "why", "over_budget: the next call could pass the cap", "`job.ended` warning",
             "`cortex resume JOB --max-cost USD`", "CortexEndedEarly", 1),
    Incident("deadline near", "deadline", "…, in …; at risk: ends …", "`job.progress` warning",
             "[CortexDeadlineAtRisk](#cortexdeadlineatrisk)", "CortexDeadlineAtRisk", 25),
    Incident("disk full", "why", "the disk of … is full: make room on it, then resume", "error: the disk that holds … is full",
             "[CortexDiskFull](#cortexdiskfull)", "CortexDiskFull", 1),
    Incident("clock set", "clock", "the clock was set: it is … ahead of the job's; --deadline follows it, waits do not",
             "none", "set the clock right; `cortex set JOB --deadline +6h` while the job runs, or `cortex resume` with it"),
    Incident("PostgreSQL away", "", "cortex: cannot use the database …: …; start it, or correct the address: jobs that run wait for it, 15 minutes at most, and go on by themselves",
             "`job.waits` warning, then `job.goes_on`",
             "[PostgreSQL](#postgresql)", "CortexDatabaseAway", 3),
    Incident("node lost", "nodes", "…up; … lost at …, … ago", "`node.lost` warning", "[CortexNodeLost](#cortexnodelost)", "CortexNodeLost", 1),
    Incident("head of the Ray lost", "waits",
             "no Ray answers at …: its command waits 45 s for the head, then ends, resumable", "none",
             "start the head again; what waits goes on if it kept its state, else [CortexHeadLost](#cortexheadlost)", "CortexHeadLost", 3),
    Incident("head of the Ray lost, its command gone", "why", "no Ray answers at …: the job can be resumed elsewhere", "none",
             "[CortexHeadLost](#cortexheadlost)", "CortexHeadLost", 3),
)  # fmt: skip


def table() -> str:
    """Return the table of the page."""
    lines = ["| incident | `cortex status` says | log: event, level | alert, within | do |", "|---|---|---|---|---|"]
    for each in INCIDENTS:
        said = f"`{each.line}` {each.says}" if each.line else each.says
        alert = f"{each.alert}, {each.within_min} min" if each.alert else "none"
        lines.append(f"| {each.name} | {said} | {each.log} | {alert} | {each.do} |")
    return "\n".join(lines)


def named(name: str) -> Incident:
    """Return an incident by its name."""
    (found,) = (each for each in INCIDENTS if each.name == name)
    return found


def says(incident: Incident, status: dict[str, str]) -> bool:
    """Return whether a status says what the page says of the incident."""
    return like(incident.says, status.get(incident.line, ""))


def like(shown: str, said: str) -> bool:
    """Return whether a text is one of a page, in which `…` stands for any text."""
    return bool(re.fullmatch(".*".join(re.escape(part) for part in shown.split("…")), said, re.DOTALL))


if __name__ == "__main__":
    print(table())
