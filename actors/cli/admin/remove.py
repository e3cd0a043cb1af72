"""``rm``, ``gc`` and ``forget``: jobs leave the disk, or what they said does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.cli.inspection.job_status import state_words
from actors.cli.inspection.status import age_s
from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import OVER, RESUMABLE, Standing, size_text
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, say
from actors.cli.options.options import Options
from actors.common.errors import ClearError, CommandError
from actors.common.units import duration_s, span
from actors.files.paths import is_remote
from actors.history import costs
from actors.history.catalog import in_use, last_state, last_terms
from actors.jobs.sink_selection import is_table
from actors.journal.journal import Folder, NoSuchJob, OtherRelease
from actors.maintenance import removal


def rm(jobs: Sequence[str], resumable: bool, options: Options) -> int:
    """``cortex rm``; the exit code. All are looked at before the first is removed. ``resumable``: also one that has the
    only copy of results that were paid for."""
    folder = named_folder(options)
    for job in jobs:
        _refuse(folder, job)
        if not resumable:
            _refuse_losing(folder, job)
    told = []
    for job in dict.fromkeys(jobs):
        size = removal.size_bytes(folder, job)
        removal.remove(folder, job)
        told.append({"job": job, "size_bytes": size})
        say(f"{job}: removed, {size_text(size)}")
    if options.as_json:
        print(msgspec.json.encode({"removed": told}).decode())
    return COMPLETE


def gc(older_than: str, dry_run: bool, resumable: bool, options: Options) -> int:
    """``cortex gc``; the exit code."""
    folder = named_folder(options)
    if (number := older_than.strip()).isdecimal():  # of days, people mean, and it would be seconds
        raise CommandError(f"--older-than: {number!r} of what? write {number}d, or {number}h")
    try:
        limit_s = duration_s(older_than)
    except ValueError as error:
        raise CommandError(f"--older-than: {error}") from None
    removed, kept = [], []
    for job in (name for name in folder.jobs() if "~" not in name):
        if (old_s := age_s(folder, job)) < limit_s or in_use(folder, job):
            continue
        standing = _standing(folder, job)
        over = standing is not None and standing.outcome in OVER
        if not (over or (resumable and standing is not None and standing.outcome in ("partial", "interrupted"))):
            kept.append(job)
            continue
        said = f"{job}: {state_words(standing)}, last turn {span(old_s)} ago" if standing else job
        size = removal.size_bytes(folder, job)
        if not dry_run:
            _refuse(folder, job)
            removal.remove(folder, job)
        removed.append({"job": job, "size_bytes": size})
        say(f"{said}: {'would be removed' if dry_run else 'removed'}, {size_text(size)}")
    total = size_text(sum(int(str(each["size_bytes"])) for each in removed))
    jobs = "1 job" if len(removed) == 1 else f"{len(removed):,} jobs"
    say(f"{jobs} {'would be removed' if dry_run else 'removed'}, {total}")
    if kept:
        more = ", ..." if len(kept) > 5 else ""
        say(f"kept, since they can be resumed or cannot be read: {', '.join(kept[:5])}{more}")
    if options.as_json:
        print(msgspec.json.encode({"dry_run": dry_run, "removed": removed, "kept": kept}).decode())
    return COMPLETE


def forget(jobs: Sequence[str], options: Options) -> int:
    """``cortex forget``; the exit code. All are looked at before the first is forgotten."""
    folder = named_folder(options)
    for job in jobs:
        _refuse(folder, job)
    for job in dict.fromkeys(jobs):
        standing = standing_of(folder, job)
        if standing.forgotten:
            removal.forget(folder, job, standing.facts)  # it may have been killed in the middle
            say(f"{job} was forgotten already")
            continue
        if standing.outcome in RESUMABLE:
            say(f"{job} was {standing.outcome}: it cannot be resumed any more")
        forks = [name for name in folder.jobs() if _forked_from(folder, name) == job]
        removal.forget(folder, job, _figures(folder, standing))
        say(f"{job}: prompts and replies are forgotten, its figures stay; nothing can resume, retry or show it again")
        if output := standing.facts["output"]:
            say(_of_results(str(output)))
        for name in forks:
            say(f"{name} was forked from it and holds what it took over: cortex forget {name}")
    return COMPLETE


def _of_results(output: str) -> str:
    """Where the results of a job are, of which no more can be made; a table that was never made whole is nowhere."""
    if output == "-" or is_remote(output) or Path(output).exists():
        return f"its results are not touched: {output if output != '-' else 'they went to standard output'}"
    return f"its results are nowhere any more: there is no {output}"


def _figures(folder: Folder, standing: Standing) -> dict[str, Any]:
    """What stays of a job: counts, money, times and places. What a person or a model wrote does not."""
    facts = dict(standing.facts)
    facts["why"] = str(facts["why"]).partition(":")[0]
    facts |= {"failed_said": "", "failed_row": "", "waits": "", "awaited": [], "forgotten_at_s": time.time()}
    facts |= {"rows_counted": standing.rows, "lines_unreadable": standing.unreadable}
    facts["spent"] = costs.marks_in(folder, str(facts["job"]))
    return facts


def _refuse(folder: Folder, job: str) -> None:
    """A job that runs, or whose calls are with the provider, is ended first."""
    if "~" in job:
        raise CommandError(f"{job} is a part of the job {job.partition('~')[0]}, and goes with it")
    if not folder.has(job):
        raise NoSuchJob(f"no job {job!r} in {folder.address}; `cortex jobs` lists what is there")
    for name in removal.family(folder, job):
        if said := in_use(folder, name):
            raise CommandError(said)
    standing = _standing(folder, job, refuse_others=True)
    if standing is None or standing.forgotten:
        return
    if standing.outcome == "detached":
        raise CommandError(f"job {job} goes on in a cluster: cortex cancel {job} first")
    if requests := sum(len(made.keys) for made in last_state(folder, job).submissions.values()):
        there = f"{requests:,} requests of {job} are in message batches with the provider"
        raise CommandError(f"{there}: cortex cancel {job} first")


def _refuse_losing(folder: Folder, job: str) -> None:
    """A table is made whole when its job ends, or comes to rest: one that was killed has its rows by itself."""
    standing = _standing(folder, job)
    if standing is None or standing.outcome != "interrupted" or standing.forgotten:
        return
    facts = standing.facts
    output, done = str(facts["output"]), facts["rows_succeeded"]
    if done and output != "-" and is_table(output):
        results = "1 paid result" if done == 1 else f"{done:,} paid results"
        raise CommandError(
            f"job {job} is interrupted, and {results} of {output} would be lost, which is made whole when the job "
            f"ends: {standing.resume} goes on, cortex results {job}{standing.where} -o FILE saves them; --resumable "
            "removes it all the same"
        )


def _standing(folder: Folder, job: str, *, refuse_others: bool = False) -> Standing | None:
    """None for one that cannot be read: damaged, its program gone, of another release. ``refuse_others``: the last are
    no one's to remove who cannot tell whether calls of theirs are with a cluster or the provider."""
    try:
        return standing_of(folder, job)
    except OtherRelease:
        if refuse_others:
            raise
        return None
    except (ClearError, ValueError):
        return None


def _forked_from(folder: Folder, job: str) -> str:
    try:
        terms = last_terms(folder, job)
    except (ClearError, ValueError):
        return ""
    return terms.origin if terms is not None else ""
