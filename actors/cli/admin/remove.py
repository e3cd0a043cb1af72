"""``rm``, ``gc`` and ``forget``: remove jobs, or only their prompts and replies, from the state folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.cli.inspection.job_status import state_words
from actors.cli.inspection.status import age_s
from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import OVER, RESUMABLE, JobStatus, size_text
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError, UserError
from actors.common.units import duration_s, span
from actors.files.paths import is_remote
from actors.history import costs
from actors.history.catalog import in_use, last_state, last_terms
from actors.jobs.sink_selection import is_table
from actors.journal.journal import NoSuchJob, StateFolder, UnsupportedFormat
from actors.journal.state_folder import advised
from actors.maintenance import removal


def rm(jobs: Sequence[str], resumable: bool, options: Options) -> int:
    """Run ``cortex rm`` and return the exit code. All jobs are checked before the first is removed.

    ``resumable``: also remove a job that holds the only copy of paid results.
    """
    folder = named_folder(options)
    for job in jobs:
        _refuse(folder, job)
        if not resumable:
            _refuse_losing(folder, job)
    entries = []
    for job in dict.fromkeys(jobs):
        size = removal.size_bytes(folder, job)
        removal.remove(folder, job)
        entries.append({"job": job, "size_bytes": size})
        print_error(f"{job}: removed, {size_text(size)}")
    if options.as_json:
        print(msgspec.json.encode({"removed": entries}).decode())
    return COMPLETE


def gc(older_than: str, dry_run: bool, resumable: bool, options: Options) -> int:
    """Run ``cortex gc`` and return the exit code."""
    folder = named_folder(options)
    if (number := older_than.strip()).isdecimal():  # a bare number means days to people, and seconds to the parser
        raise CommandError(f"--older-than: {number!r} has no unit: write {number}d, or {number}h")
    try:
        limit_s = duration_s(older_than)
    except ValueError as error:
        raise CommandError(f"--older-than: {error}") from None
    removed, kept = [], []
    for job in (name for name in folder.jobs() if "~" not in name):
        if (old_s := age_s(folder, job)) < limit_s or in_use(folder, job):
            continue
        status = _status(folder, job)
        over = status is not None and status.outcome in OVER
        if not (over or (resumable and status is not None and status.outcome in ("partial", "interrupted"))):
            kept.append(job)
            continue
        text = f"{job}: {state_words(status)}, last turn {span(old_s)} ago" if status else job
        size = removal.size_bytes(folder, job)
        if not dry_run:
            _refuse(folder, job)
            removal.remove(folder, job)
        removed.append({"job": job, "size_bytes": size})
        print_error(f"{text}: {'would be removed' if dry_run else 'removed'}, {size_text(size)}")
    total = size_text(sum(int(str(each["size_bytes"])) for each in removed))
    jobs = "1 job" if len(removed) == 1 else f"{len(removed):,} jobs"
    print_error(f"{jobs} {'would be removed' if dry_run else 'removed'}, {total}")
    if kept:
        more = ", ..." if len(kept) > 5 else ""
        print_error(f"kept jobs that can be resumed or cannot be read: {', '.join(kept[:5])}{more}")
    if options.as_json:
        print(msgspec.json.encode({"dry_run": dry_run, "removed": removed, "kept": kept}).decode())
    return COMPLETE


def forget(jobs: Sequence[str], options: Options) -> int:
    """Run ``cortex forget`` and return the exit code. All jobs are checked before the first is changed."""
    folder = named_folder(options)
    for job in jobs:
        _refuse(folder, job)
    for job in dict.fromkeys(jobs):
        status = standing_of(folder, job)
        if status.forgotten:
            removal.forget(folder, job, status.facts)  # an earlier forget may have been killed in the middle
            print_error(f"{job} was forgotten already")
            continue
        if status.outcome in RESUMABLE:
            print_error(f"{job} was {status.outcome}: the job can no longer be resumed")
        forks = [name for name in folder.jobs() if _forked_from(folder, name) == job]
        removal.forget(folder, job, _figures(folder, status))
        print_error(
            f"{job}: prompts and replies are removed, figures are kept; the job cannot be resumed, retried or replayed"
        )
        if output := status.facts["output"]:
            print_error(_of_results(str(output)))
        for name in forks:
            forgets = advised(folder, "forget", name)
            print_error(f"{name} was forked from {job} and still holds a copy of its first turns: {forgets}")
    return COMPLETE


def _of_results(output: str) -> str:
    """Return a line about the results file: untouched, or missing if a table was never completed."""
    if output == "-" or is_remote(output) or Path(output).exists():
        return f"results are not touched: {output if output != '-' else 'they went to standard output'}"
    return f"no results are left: {output} does not exist"


def _figures(folder: StateFolder, status: JobStatus) -> dict[str, Any]:
    """Return the facts that stay of a job: counts, money, times and paths. Texts of people and models are removed."""
    facts = dict(status.facts)
    facts["why"] = str(facts["why"]).partition(":")[0]
    facts |= {"failed_said": "", "failed_row": "", "waits": "", "awaited": [], "forgotten_at_s": time.time()}
    facts |= {"rows_counted": facts["rows_expected"], "lines_unreadable": facts["rows_unreadable"]}
    facts["spent"] = costs.marks_in(folder, str(facts["job"]))
    return facts


def _refuse(folder: StateFolder, job: str) -> None:
    """Raise ``CommandError`` for a job that runs or has calls with the provider, and for a child job."""
    if "~" in job:
        raise CommandError(f"{job} is a child of the job {job.partition('~')[0]}: name that job")
    if not folder.has(job):
        raise NoSuchJob(f"no job {job!r} in {folder.address}; `{advised(folder, 'jobs')}` lists what is there")
    for name in removal.family(folder, job):
        if text := in_use(folder, name):
            raise CommandError(text)
    status = _status(folder, job, refuse_others=True)
    if status is None or status.forgotten:
        return
    if status.outcome == "detached":
        raise CommandError(f"job {job} runs in a cluster: {advised(folder, 'cancel', job)} first")
    if requests := sum(len(made.keys) for made in last_state(folder, job).submissions.values()):
        there = f"{requests:,} requests of {job} are in message batches with the provider"
        raise CommandError(f"{there}: {advised(folder, 'cancel', job)} first")


def _refuse_losing(folder: StateFolder, job: str) -> None:
    """Raise ``CommandError`` for an interrupted job whose journal holds the only copy of paid results.

    A table is written completely when its job ends or stops; a killed job has its rows only in the journal.
    """
    status = _status(folder, job)
    if status is None or status.outcome != "interrupted" or status.forgotten:
        return
    facts = status.facts
    output, done = str(facts["output"]), facts["rows_succeeded"]
    if done and output != "-" and is_table(output):
        results = "1 paid result" if done == 1 else f"{done:,} paid results"
        raise CommandError(
            f"job {job} is interrupted, and {results} of {output} would be lost: a table is written when its job ends. "
            f"{status.resume} continues it, {status.command('results', '-o FILE')} saves the results, "
            "--resumable removes the job all the same"
        )


def _status(folder: StateFolder, job: str, *, refuse_others: bool = False) -> JobStatus | None:
    """Return the state of a job; None if it cannot be read: damaged, its program gone, or of another release.

    ``refuse_others``: raise ``UnsupportedFormat`` for the last, since a cluster or the provider may still hold calls of
    the job.
    """
    try:
        return standing_of(folder, job)
    except UnsupportedFormat:
        if refuse_others:
            raise
        return None
    except (UserError, ValueError):
        return None


def _forked_from(folder: StateFolder, job: str) -> str:
    try:
        terms = last_terms(folder, job)
    except (UserError, ValueError):
        return ""
    return terms.origin if terms is not None else ""
