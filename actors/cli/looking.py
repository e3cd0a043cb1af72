"""``status``, ``jobs`` and ``results``: what the journals tell, without a runtime and without a key."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from actors.amending import copy_results
from actors.cli.beginning import check_output, sink_of
from actors.cli.options import Options
from actors.cli.problems import COMPLETE, CommandError, say
from actors.cli.settings import named_folder
from actors.cli.standings import standing_of
from actors.cli.telling import STATUS_FIELDS, Standing, batch_words, cost, failed_kinds, span, why
from actors.errors import ClearError
from actors.files.sink import SinkClosed
from actors.ports import ClusterError
from actors.records import last_owner, last_turn_s
from actors.store import Folder, Journal, StoreError
from actors.wording import clock

_STATES = {
    "interrupted": "interrupted: resumable", "partial": "partial: resumable",
    "detached": "in a cluster, without a driver",
}  # fmt: skip


def jobs(options: Options) -> int:
    """``cortex jobs``: every job of the state folder, the latest first; the exit code."""
    folder = named_folder(options)
    found = [_row(folder, name, at_s) for name, at_s in _latest_first(folder)]
    if options.as_json:
        print(msgspec.json.encode({"jobs": [told for told, _ in found]}).decode())
        return COMPLETE
    if not found:
        say(f"no jobs in {folder.path}")
        return COMPLETE
    table = [("JOB", "STATE", "ROWS", "COST", "LAST TURN"), *(line for _, line in found)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    return COMPLETE


def _latest_first(folder: Folder) -> list[tuple[str, float]]:
    """Jobs, without those that serve another one, and when their last turn was."""
    found = [(name, _last_turn_s(folder, name)) for name in folder.jobs() if "~" not in name]
    return sorted(found, key=lambda pair: -pair[1])


def _last_turn_s(folder: Folder, name: str) -> float:
    path = folder.journal_path(name)
    try:
        return last_turn_s(folder, name) or path.stat().st_mtime
    except StoreError:
        return path.stat().st_mtime


def _row(folder: Folder, name: str, at_s: float) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A job for programs, and as a line of the table."""
    try:
        standing = standing_of(folder, name)
    except (
        ClearError,
        ValueError,
    ) as error:  # a damaged journal, a program that is gone: the others are shown
        said = str(error)
        return {"job": name, "outcome": "unreadable", "why": said}, (name, said, "", "", _ago(at_s))
    facts = standing.facts
    rows = f"{facts['rows_succeeded'] + facts['rows_failed']:,}/{max(standing.rows, facts['rows']):,}"
    money = cost(facts) if facts["cost_usd"] is not None else ""
    state = _STATES.get(standing.outcome, standing.outcome)
    return msgspec.json.decode(standing.as_json()), (name, state, rows, money, _ago(at_s))


def _ago(then_s: float) -> str:
    return span(max(0.0, time.time() - then_s)) + " ago"


def status(job: str, options: Options) -> int:
    """``cortex status``: one job, by default the latest; the exit code."""
    folder = named_folder(options)
    if not job:
        found = _latest_first(folder)
        if not found:
            raise CommandError(f"no jobs in {folder.path}")
        job = found[0][0]
    standing = standing_of(folder, job)
    _see_cluster(folder, job, standing)
    if options.as_json:
        print(standing.as_json(STATUS_FIELDS))
        return COMPLETE
    for name, said in _particulars(folder, job, standing):
        print(f"{name:<10}{said}")
    return COMPLETE


def _see_cluster(folder: Folder, job: str, standing: Standing) -> None:
    """A job that its driver left in a cluster goes on only as long as that lives."""
    owner = last_owner(folder, job)
    if standing.outcome != "detached" or owner is None:
        return
    from actors.cluster.start import checked_address

    try:
        checked_address(owner.cluster)
    except ClusterError as error:
        standing.facts |= {"outcome": "interrupted", "why": f"{error}: the job can be resumed elsewhere", "waits": ""}


def _particulars(folder: Folder, job: str, standing: Standing) -> list[tuple[str, str]]:
    facts = standing.facts
    owner = last_owner(folder, job)
    state = _STATES.get(standing.outcome, standing.outcome)
    if standing.outcome == "running" and owner is not None:
        state += f": process {owner.pid} on {owner.host}, cluster {owner.cluster}"
    rows = f"{facts['rows_succeeded']:,} of {max(standing.rows, facts['rows']):,} succeeded"
    kinds = failed_kinds(facts)
    if facts["rows_failed"]:
        rows += f", {facts['rows_failed']:,} failed" + (f" ({kinds})" if kinds else "")
    attempts = ", ".join(f"{count:,} {kind}" for kind, count in facts["failures"].items())
    calls = f"{facts['calls']:,}, {facts['attempts']:,} attempts, {facts['reused_calls']:,} remembered"
    lines = [("job", job), ("state", state), ("why", why(standing)), ("waits", facts["waits"]), ("rows", rows)]
    lines += [("calls", calls)]
    lines += [("failed", f"attempts: {attempts}" if attempts else "")]
    lines += [("tokens", f"{facts['input_tokens']:,} in, {facts['output_tokens']:,} out")]
    lines += [("cost", cost(facts) if facts["cost_usd"] is not None else "")]
    lines += [("route", _routes(standing)), ("limits", " ".join(map(" ".join, facts["limits"].items())))]
    lines += [("batches", batch_words(facts["batches"]))]
    lines += [("deadline", _deadline(facts["deadline_at_s"]))]
    lines += [("time", span(facts["elapsed_s"])), ("last turn", _ago(_last_turn_s(folder, job)))]
    lines += [("output", facts["output"]), ("resume", standing.resume)]
    return [(name, said) for name, said in lines if said]


def _routes(standing: Standing) -> str:
    """Where calls go now, with what they may use of it; the other routes behind it."""
    facts = standing.facts
    said = [str(facts["route"])]
    if standing.outcome in ("running", "detached"):
        said[0] += f", {facts['in_flight']} in flight of {facts['permits']} permits"
    others = [each["route"] for each in facts["routes"] if not each["roles"] and not said[0].startswith(each["route"])]
    roles = [f"{', '.join(each['roles'])}: {each['route']}" for each in facts["routes"] if each["roles"]]
    return "; ".join(["; else ".join([*said, *others]), *roles])


def _deadline(at_s: float | None) -> str:
    if at_s is None:
        return ""
    left_s = at_s - time.time()
    return f"{clock(at_s)}, {f'in {span(left_s)}' if left_s > 0 else 'passed'}"


def results(job: str, output: str, options: Options) -> int:
    """``cortex results``: the results that a job has so far, to standard output or a file; the exit code."""
    folder = named_folder(options)
    Journal(folder.journal_path(job)).close()  # raises where there is no such job, before a file is made
    sink = sink_of(output or "-", "", options.overwrite)
    assert sink is not None
    check_output(sink, output or "-", options.overwrite)
    try:
        count = copy_results(folder, job, sink)
    except SinkClosed:
        return COMPLETE  # `| head` has seen enough
    standing = standing_of(folder, job)
    say(f"{count:,} results of {job}, which is {_STATES.get(standing.outcome, standing.outcome)}")
    return COMPLETE
