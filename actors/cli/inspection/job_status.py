"""Lines of ``status`` for one job: from its journal, and from the live status of its process."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from actors.cli.jobs.rendering import (
    OVER,
    JobStatus,
    batch_words,
    cost,
    failed_kinds,
    is_drained_by_a_user,
    last_failed,
    why,
)
from actors.common.process_owner import stopped
from actors.common.units import clock, span
from actors.driver.live_status import LiveStatus
from actors.history.catalog import last_owner, last_terms
from actors.jobs.bill_excess import excess_line
from actors.jobs.summary import earlier_text, kept_endings, unreadable_text
from actors.jobs.wait_reasons import idle_servers
from actors.journal.journal import StateFolder, StoreError
from actors.limits import overrides
from actors.monitoring.deadline_monitor import risk_words
from actors.top.labels import caps_words, node_words, route_words

STATES = {
    "interrupted": "interrupted: resumable", "partial": "partial: resumable",
    "detached": "in a cluster, without a driver",
}  # fmt: skip
HEAD_LOST = "interrupted: its head is lost; resumable"
_ENDED = ("complete", "partial", "failed", "cancelled")
_ALIVE = ("running", "detached")


def state_words(status: JobStatus) -> str:
    """Return the state of a job in a few words."""
    if status.forgotten:
        return f"{status.outcome}, forgotten"
    if status.outcome in ("partial", "interrupted") and is_drained_by_a_user(status):
        return f"{status.outcome}: drained, resumable"
    lost = status.facts.get("head_lost") and status.outcome == "interrupted"
    return HEAD_LOST if lost else STATES.get(status.outcome, status.outcome)


def ago(then_s: float) -> str:
    """Return the time since ``then_s`` in words."""
    return span(max(0.0, time.time() - then_s)) + " ago"


def add_times(status: JobStatus, seen: LiveStatus | None) -> None:
    """Add the fields of ``status --json`` that a summary lacks: end of the job, and the live status."""
    facts = status.facts
    facts["ended_at_s"] = facts["last_turn_at_s"] if status.outcome in _ENDED else None
    reported = seen.facts if seen is not None else {}
    facts |= {name: reported.get(name) for name in ("projected_end_s", "deadline_at_risk")}
    if status.outcome == "running" and reported.get("waits") and not facts.get("head_lost"):
        # the process knows what the journal does not
        facts["waits"] = reported["waits"]
    facts["live"] = {"as_of_s": seen.asked_at_s, **_without_series(seen.cortex)} if seen is not None else None


def _without_series(status: dict[str, Any]) -> dict[str, Any]:
    """Return a live status without the per-second series, which only ``top`` shows."""
    routes = {
        name: {field: value for field, value in each.items() if field != "series"}
        for name, each in status.get("routes", {}).items()
    }
    return {**status, "routes": routes} if status else {}


def particulars(
    folder: StateFolder, job: str, status: JobStatus, seen: LiveStatus | None, now_s: float
) -> list[tuple[str, str]]:
    """Return (name, text) of each line; lines without text are left out."""
    facts = status.facts
    calls = f"{facts['calls']:,}, {facts['attempts']:,} attempts, {facts['reused_calls']:,} remembered"
    attempts = ", ".join(f"{count:,} {kind}" for kind, count in facts["failures"].items())
    lines = [
        ("job", job), ("state", _state(folder, job, status)), ("why", why(status)), ("waits", facts["waits"]),
        ("rows", _rows(status)), ("calls", calls),
        ("failed", f"attempts: {attempts}" if attempts else ""),
        ("tokens", f"{facts['input_tokens']:,} in, {facts['output_tokens']:,} out"),
        ("cost", _cost(facts)), ("bills", excess_line(facts)), ("route", _routes(status)),
        ("servers", idle_servers(facts)), ("limits", _limits(facts)),
        ("labels", " ".join(f"{name}={value}" for name, value in facts["labels"].items())),
        ("by hand", _by_hand(folder, job, status)), ("batches", batch_words(facts["batches"])),
        ("deadline", _deadline(facts)), ("clock", _clock(facts)), ("time", span(_elapsed_s(status, now_s))),
        ("last turn", ago(facts["last_turn_at_s"])), ("channel", _channel(facts, seen)),
        *(_live(seen, now_s) if seen is not None and seen.cortex else []),
        ("seen", _seen(seen, now_s) if seen is not None else ""),
        ("output", facts["output"]), ("resume", status.resume), ("results", _results(status)),
    ]  # fmt: skip
    return [(name, answer) for name, answer in lines if answer]


# -- from the journal ------------------------------------------------------------------------------------------------


def _state(folder: StateFolder, job: str, status: JobStatus) -> str:
    text = state_words(status)
    if status.forgotten:
        return text
    owner = last_owner(folder, job)
    if status.outcome == "running" and owner is not None:
        process = f"{text}: process {owner.pid} on {owner.host}, cluster {owner.cluster}"
        return "; ".join(filter(None, (process, stopped(owner))))
    if status.outcome == "detached" and owner is not None:
        return f"{text}: {owner.cluster}"
    at_s = status.facts["last_turn_at_s"]
    if status.outcome in _ENDED and at_s:
        return f"{text}; it ended {clock(at_s)}"
    return text


def _elapsed_s(status: JobStatus, now_s: float) -> float:
    """Return the seconds since the job began, to now while it runs, else to its last turn."""
    began_s = float(status.facts["began_at_s"])
    alive = status.outcome in _ALIVE and began_s
    return max(0.0, now_s - began_s) if alive else float(status.facts["elapsed_s"])


def _rows(status: JobStatus) -> str:
    facts = status.facts
    expected = status.rows
    if not expected:
        return ""
    if status.unread_reason:
        return f"{expected:,}"
    text = f"{facts['rows_succeeded']:,} of {expected:,} succeeded"
    if kept := kept_endings(facts):
        text += f", of which {kept}"
    kinds = failed_kinds(facts)
    if facts["rows_failed"]:
        text += f", {facts['rows_failed']:,} failed" + (f" ({kinds})" if kinds else "")
    if lost := unreadable_text(facts):
        text += f", {lost}"
    return f"{text}; {last}" if (last := last_failed(facts)) else text


def _cost(facts: dict[str, Any]) -> str:
    if facts["cost_usd"] is None:
        return ""
    cap = facts["max_cost_usd"]
    before = earlier_text(facts)
    text = cost(facts) + (f", of ${cap:g} at most" if cap is not None else "") + (f"; {before}" if before else "")
    return text + _cap_risk(facts)


COST_ROWS_MIN = 20
"""Finished rows from which the cost of all rows is projected: fewer may be the cheap ones by chance."""


def _cap_risk(facts: dict[str, Any]) -> str:
    """Return what all rows cost at the present cost of a row, if that is more than the cap; else empty."""
    cap, done, all_ = facts["max_cost_usd"], facts["rows_succeeded"] + facts["rows_failed"], facts["rows_expected"]
    if cap is None or facts["outcome"] not in _ALIVE or done < COST_ROWS_MIN or not all_:
        return ""
    projected_usd = facts["cost_usd"] / done * all_
    if projected_usd <= cap:
        return ""
    return f"; cap at risk: all rows cost about ${projected_usd:.3g}, and at the cap the job ends, resumable"


def _routes(status: JobStatus) -> str:
    """Return the route of calls with its permits in use, then the other routes and those of roles."""
    facts = status.facts
    lines = [str(facts["route"])]
    if status.outcome in _ALIVE:
        lines[0] += f", {facts['in_flight']} in flight of {facts['permits']} permits"
    others = [
        each["route"] for each in facts["routes"]
        if not each["roles"] and not each.get("shares_work") and not lines[0].startswith(each["route"])
    ]  # fmt: skip
    roles = [f"{', '.join(each['roles'])}: {each['route']}" for each in facts["routes"] if each["roles"]]
    return "; ".join(["; else ".join([*lines, *others]), *roles])


def _limits(facts: dict[str, Any]) -> str:
    text = " ".join(map(" ".join, facts["limits"].items()))
    if not facts["limits_by"]:
        return text
    return f"{text or 'none'}; last set by {facts['limits_by']}, {clock(facts['limits_at_s'])}"


def _by_hand(folder: StateFolder, job: str, status: JobStatus) -> str:
    """Return the manual limits (``cortex limit``) on pools that this job uses."""
    if status.forgotten or status.outcome not in (*_ALIVE, "interrupted", "partial"):
        return ""
    try:
        held = overrides.read(folder)
    except StoreError as error:
        return str(error)
    terms = last_terms(folder, job)
    own = {pool for pool, _ in overrides.pools_of(terms)} if terms is not None else set()
    return "; ".join(
        f"{caps_words(msgspec.structs.asdict(each))}, since {clock(each.at_s)}, for {route_words(pool)}"
        for pool, each in held.items() if pool in own and overrides.binds(each)
    )  # fmt: skip


def _deadline(facts: dict[str, Any]) -> str:
    at_s = facts["deadline_at_s"]
    if at_s is None:
        return ""
    if facts["outcome"] in OVER:
        early_s = at_s - facts["last_turn_at_s"]
        return f"{clock(at_s)}, " + (f"{span(early_s)} after the job's end" if early_s > 0 else "passed before its end")
    left_s = at_s - time.time()
    risk = risk_words(facts).removeprefix("deadline ")
    return f"{clock(at_s)}, {f'in {span(left_s)}' if left_s > 0 else 'passed'}" + (f"; {risk}" if risk else "")


def _clock(facts: dict[str, Any]) -> str:
    """Return by how much the machine's clock was set while the job ran; empty if it was not."""
    ahead_s = facts.get("clock_ahead_s") or 0.0
    if not ahead_s:
        return ""
    way = "ahead of" if ahead_s > 0 else "behind"
    return f"the clock was set: it is {span(abs(ahead_s))} {way} the job's; --deadline follows it, waits do not"


def _results(status: JobStatus) -> str:
    """Return the command that prints the results of an ended job, if no file holds them."""
    facts = status.facts
    if status.forgotten or status.outcome not in _ENDED or facts["output"] not in ("", "-") or not facts["results"]:
        return ""
    return status.command("results")


# -- while it runs ---------------------------------------------------------------------------------------------------


def _channel(facts: dict[str, Any], seen: LiveStatus | None) -> str:
    """Return the epoch of the channel (each run and each restart adds one) and its recent deaths."""
    text = f"epoch {facts['epoch']}" if facts["epoch"] > 1 else ""
    reported = seen.cortex.get("channels", {}).get(facts["job"], {}) if seen is not None else {}
    if reported.get("deaths"):
        text = f"epoch {facts['epoch']}, died {reported['deaths']} times recently"
    return text + (", given up" if reported.get("condemned") else "")


def _live(seen: LiveStatus, now_s: float) -> list[tuple[str, str]]:
    """Return lines of the live status: breakers that are not closed, pools, members and drained nodes."""
    status = seen.cortex
    open_ = [
        f"{_subject(name, status['nodes'])}: {each['state']}{_probed(each, now_s)}"
        + (f" ({each['why']})" if each["why"] else "")
        for name, each in status["breakers"].items() if each["state"] != "closed"
    ]  # fmt: skip
    pools = [_pool(name, each) for name, each in status["pools"].items()]
    return [
        *(("breaker", text) for text in open_),
        *(("pool", text) for text in pools),
        ("branches", _staff(status, "branch")),
        ("workers", _staff(status, "worker")),
        ("nodes", _nodes(status, now_s)),
    ]


def _seen(seen: LiveStatus, now_s: float) -> str:
    """Return where the live status is from, and how old it is. What does not change is not published again."""
    if not seen.facts:
        return f"the cortex of {seen.owner.cluster} was asked"
    text = f"in its process, {span(max(0.0, now_s - seen.at_s))} ago"
    if seen.cortex_at_s:
        text += f"; no news from the scheduler for {span(max(0.0, now_s - seen.cortex_at_s))}"
        return text + ": pools, branches and nodes are of then"
    return text if seen.cortex else f"{text}; the scheduler has not answered yet"


def _subject(name: str, nodes: dict[str, Any]) -> str:
    kind, _, rest = name.partition(":")
    return f"{kind} {route_words(rest) if kind == 'route' else node_words(rest, nodes) if kind == 'node' else rest}"


def _probed(breaker: dict[str, Any], now_s: float) -> str:
    until_s = breaker.get("until_s") or 0.0
    if breaker["state"] != "open" or not until_s:
        return ""
    return f", probed at {clock(until_s)}, in {max(0.0, until_s - now_s):.0f} s"


def _pool(name: str, pool: dict[str, Any]) -> str:
    text = (
        f"{route_words(name)}: limit {pool['concurrency']:,}, {pool['in_flight']:,} in flight, "
        f"{pool['granted']:,} granted, {pool['wanted']:,} wanted"
    )
    words = caps_words(pool["caps"])
    return f"{text}; by hand: {words}" if words else text


def _staff(status: dict[str, Any], role: str) -> str:
    members = {name: one for name, one in status["staff"].items() if name.startswith(role)}
    up = sum(one["state"] == "up" for one in members.values())
    lines = [f"{up:,} up"] if members else []
    for name, one in members.items():
        if one["state"] == "up":
            continue
        by = one["drained_by"] or status["nodes"].get(one["node"], {}).get("drained_by", "")
        lines.append(f"{name} {one['state']}" + (f", drained by {by}" if by else ""))
    return "; ".join(lines)


def _nodes(status: dict[str, Any], now_s: float) -> str:
    """Return drained and lost nodes, and the count of the others; empty for a single healthy node."""
    nodes = status["nodes"]
    lines = []
    for name, node in nodes.items():
        if node["drained_by"]:
            lines.append(f"{node_words(name, nodes)} drained by {node['drained_by']}")
        elif not node["alive"]:
            lines.append(f"{node_words(name, nodes)} gone")
    well, lost = len(nodes) - len(lines), status.get("lost", {})
    for name, one in lost.items():
        ago = span(max(0.0, now_s - one["at_s"]))
        lines.append(f"{node_words(name, {**nodes, **lost})} lost at {clock(one['at_s'])}, {ago} ago")
    return "; ".join([f"{well:,} up", *lines]) if lines or len(nodes) > 1 else ""
