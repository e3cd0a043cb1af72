"""``status``, ``jobs`` and ``results``: views of the journals, without a runtime and without a key."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from actors.cli.control.limit import asked_cortex
from actors.cli.inspection.job_status import STATES, add_times, ago, particulars, state_words
from actors.cli.jobs.causes import see_cause
from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.lost_heads import LostHeads
from actors.cli.jobs.rendering import STATUS_FIELDS, least_and_most, size_text
from actors.cli.jobs.settings import named_folder, shared_cluster
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import Options
from actors.cli.run.sinks import check_output, sink_of
from actors.common.errors import CommandError, UserError
from actors.common.process_owner import this_owner
from actors.common.text_table import aligned
from actors.driver import live_status
from actors.files.errors import SinkClosed, SinkFailed
from actors.history.catalog import forgotten, last_turn_s
from actors.history.sampling import sample_results
from actors.jobs.summary import without_results
from actors.journal.journal import ContentRemoved, NoSuchJob, StateFolder, StoreError
from actors.maintenance.offline_edits import copy_results, copy_some
from actors.maintenance.removal import size_bytes
from actors.ports.runtime import Peer
from cortex.values.display import one_line

UNREADABLE = "unreadable"
NOT_BEGUN = "not begun"


def jobs(options: Options, every: bool = False) -> int:
    """Run ``cortex jobs``: list the jobs, the latest first. ``every``: child jobs too. Return the exit code."""
    folder = named_folder(options)
    heads = LostHeads(folder)
    found = [_row(folder, name, at_s, heads) for name, at_s in _latest_first(folder, every)]
    if options.as_json:
        print(msgspec.json.encode({"jobs": [facts for facts, _ in found]}).decode())
        return COMPLETE
    if not found:
        print_error(f"no jobs in {folder.address}")
        return COMPLETE
    table = [("JOB", "STATE", "ROWS", "FAILED", "COST", "SIZE", "LAST TURN"), *(line for _, line in found)]
    print("\n".join(aligned(table)))
    for facts, _ in found:
        if facts["outcome"] == UNREADABLE:
            why = str(facts["why"])
            print_error(why if str(facts["job"]) in why else f"{facts['job']}: {why}")
    for facts, _ in found:
        if facts.get("untold"):
            print_error(str(facts["untold"]))
    for text in heads.lines():
        print_error(text)
    return COMPLETE


def _latest_first(folder: StateFolder, every: bool = False) -> list[tuple[str, float]]:
    """Return jobs and the times of their last turns, the latest first; child jobs only with ``every``."""
    found = [(name, _last_turn_s(folder, name)) for name in folder.jobs() if every or "~" not in name]
    return sorted(found, key=lambda pair: -pair[1])


def _last_turn_s(folder: StateFolder, name: str) -> float:
    try:
        return last_turn_s(folder, name) or folder.changed_s(name)
    except ContentRemoved:
        return float(msgspec.json.decode(forgotten(folder, name))["last_turn_at_s"])
    except StoreError:
        return folder.changed_s(name)


def _row(folder: StateFolder, name: str, at_s: float, heads: LostHeads) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a job as facts for ``--json`` and as a line of the table."""
    size = size_bytes(folder, name)
    try:
        standing = standing_of(folder, name)
        if not standing.forgotten:
            heads.see(name, standing)
    except (
        UserError,
        ValueError,
    ) as error:  # a damaged journal or a missing program: the other jobs are shown
        text = _just_beginning(folder, name, error) or str(error)
        reported = {"job": name, "outcome": UNREADABLE, "why": text, "size_bytes": size}
        state = NOT_BEGUN if isinstance(error, NoSuchJob) else UNREADABLE
        return reported, (name, state, "", "", "", size_text(size), ago(at_s) if at_s else "")
    facts = standing.facts
    ended = "?" if standing.unread_reason else f"{facts['rows_succeeded'] + facts['rows_failed']:,}"
    rows = f"{ended}/{standing.rows:,}"
    failed = "?" if standing.unread_reason else f"{facts['rows_failed']:,}" if facts["rows_failed"] else ""
    money = least_and_most(facts) if facts["cost_usd"] is not None else ""
    reported = {**msgspec.json.decode(standing.as_json()), "size_bytes": size, "labels": facts["labels"]}
    reported |= {"untold": standing.unread_reason} if standing.unread_reason else {}
    return reported, (name, state_words(standing), rows, failed, money, size_text(size), ago(at_s))


def _just_beginning(folder: StateFolder, job: str, error: Exception) -> str:
    """Return one line about a job whose run is alive and has no turn on disk yet; empty for another error."""
    held = isinstance(error, NoSuchJob) and folder.is_held(job)
    return f"job {job} is just beginning: no turn of it is on disk yet: ask again in a moment" if held else ""


def age_s(folder: StateFolder, job: str) -> float:
    """Return the seconds since the last turn of a job."""
    return max(0.0, time.time() - _last_turn_s(folder, job))


def status(job: str, options: Options) -> int:
    """Run ``cortex status`` for one job, by default the latest. Return the exit code."""
    folder = named_folder(options)
    if not job:
        found = _latest_first(folder)
        if not found:
            raise CommandError(f"no jobs in {folder.address}")
        job = found[0][0]
    try:
        standing = standing_of(folder, job)
    except NoSuchJob as error:
        if text := _just_beginning(folder, job, error):
            raise CommandError(text) from None
        raise
    see_cause(folder, job, standing)
    cluster = shared_cluster(options) if options.cluster else ""
    seen = asyncio.run(_of_cluster(cluster)) if cluster else live_status.read(folder, job)
    add_times(standing, seen)
    if standing.unread_reason:
        print_error(standing.unread_reason)
    if options.as_json:
        print(standing.as_json(STATUS_FIELDS))
        return COMPLETE
    for name, text in particulars(folder, job, standing, seen, time.time()):
        print(f"{name:<10}{one_line(text)}")
    return COMPLETE


async def _of_cluster(cluster: str) -> live_status.LiveStatus:
    """Return the present status of a cluster's scheduler."""
    found: list[live_status.LiveStatus] = []

    async def send(peer: Peer) -> int:
        now_s = time.time()
        reported = live_status.dated(await peer.ask("status"), now_s)
        found.append(live_status.LiveStatus(owner=this_owner(cluster), at_s=now_s, facts={}, cortex=reported))
        return COMPLETE

    await asked_cortex(cluster, send)
    return found[0]


def results(
    job: str, output: str, options: Options, *, failed: bool = False, sample: int = 0, tail: int = 0,
    bad: bool = False,
) -> int:  # fmt: skip
    """Run ``cortex results``: write the present results to standard output or a file. Return the exit code."""
    folder = named_folder(options)
    folder.journal(job).close()  # raises for an unknown job, before a file is created
    if bad:
        if failed or sample or tail:
            raise CommandError("--bad lists records without results: leave out --failed, --sample and --tail")
        from actors.cli.inspection.bad_records import write_list

        return write_list(folder, job, output or "-", options)
    sink = sink_of(folder, job, output or "-", options.overwrite)
    assert sink is not None
    check_output(sink, output or "-", options.overwrite)
    try:
        if failed or sample or tail:
            count = copy_some(
                folder, job, sink, lambda found: sample_results(found, failed=failed, sample=sample, tail=tail)
            )
        else:
            count = copy_results(folder, job, sink)
    except SinkClosed:
        return COMPLETE  # a reader like `head` has read enough
    except SinkFailed as error:
        raise CommandError(str(error), FAILED) from None
    standing = standing_of(folder, job)
    found = f"{count:,} {'failed ' * failed}result{'s' * (count != 1)}"
    found = f"{found} of {job}, which is {STATES.get(standing.outcome, standing.outcome)}"
    print_error("; ".join(filter(None, (found, without_results(standing.facts["rows_unreadable"])))))
    return COMPLETE
