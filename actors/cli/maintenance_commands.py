"""Commands on jobs at rest, and their arguments: retry, results, config, backup, removal; and ``down``."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.arguments import Job, Jobs, Results
from actors.cli.options.options import GOING_ON, LOOKING, Options, takes

_NOTHING: list[str] = []


@takes(*GOING_ON, "overwrite", lines=("model", "max_output_tokens"))
def retry(
    job: Job, options: Options,
    kind: Annotated[
        list[str], typer.Option("--kind", help="only failures of this kind; several with commas", metavar="KIND,...")
    ] = _NOTHING,
) -> int:  # fmt: skip
    """Ask failed rows again, within the same job: its cap still counts, its results file is written anew."""
    from actors.cli.run.retry import retry as ask_again

    return ask_again(job, list(kind or ()), options)


@takes("state", "overwrite", "verbose")
def results(
    job: Job, options: Options, output: Results = "-",
    failed: Annotated[bool, typer.Option("--failed", help="only results of failed rows")] = False,
    sample: Annotated[int, typer.Option("--sample", help="only N, spread over the job", metavar="N", min=0)] = 0,
    tail: Annotated[int, typer.Option("--tail", help="only the last N", metavar="N", min=0)] = 0,
    bad: Annotated[bool, typer.Option("--bad", help="instead the unreadable records of the input")] = False,
) -> int:  # fmt: skip
    """Write the results that a job has so far."""
    from actors.cli.inspection.status import results as show

    return show(job, output, options, failed=failed, sample=sample, tail=tail, bad=bad)


@takes(*LOOKING)
def config(job: Job, options: Options) -> int:
    """Show the options that a job runs under, and the source of each."""
    from actors.cli.jobs.config import config as show

    return show(job, options)


@takes(*LOOKING)
def rm(
    jobs: Jobs, options: Options,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="also a job that holds the only copy of paid results (a partial table)")
    ] = False,
) -> int:  # fmt: skip
    """Remove jobs from the state folder, with their journals; results files stay."""
    from actors.cli.admin.remove import rm as remove

    return remove(list(jobs), resumable, options)


@takes(*LOOKING)
def gc(
    options: Options,
    older_than: Annotated[
        str, typer.Option("--older-than", help="jobs whose last turn is older: 30d, 12h", metavar="TIME")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list the jobs")] = False,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="also jobs that could be resumed (kept by default)")
    ] = False,
) -> int:
    """Remove old jobs that are over: complete, failed or cancelled."""
    from actors.cli.admin.remove import gc as clean

    return clean(older_than, dry_run, resumable, options)


@takes(*LOOKING)
def forget(jobs: Jobs, options: Options) -> int:
    """Remove the prompts and replies of jobs and keep their figures; such jobs cannot be resumed or retried."""
    from actors.cli.admin.remove import forget as lose

    return lose(list(jobs), options)


@takes(*LOOKING)
def backup(
    to: Annotated[str, typer.Argument(metavar="FOLDER", help="folder to create for the copy")],
    options: Options,
) -> int:
    """Copy the whole state folder, also while jobs run. The copy is a state folder: `cortex resume JOB --state
    FOLDER`.
    """
    from actors.cli.admin.backup import backup as copy

    return copy(to, options)


@takes(*LOOKING)
def verify(
    job: Job, options: Options,
    cut: Annotated[
        bool, typer.Option("--cut", help="give up turns of a damaged write-ahead log; a copy of it is kept")
    ] = False,
) -> int:  # fmt: skip
    """Check that the journal of a job, and of its child jobs, is what was written: 0 if all is whole, 1 if not."""
    from actors.cli.admin.verify import verify as check

    return check(job, cut, options)


@takes("state", "verbose")
def metrics(
    options: Options,
    metrics_listen: Annotated[
        str, typer.Option("--metrics-listen", help="serve them here until a signal comes", metavar="HOST:PORT")
    ] = "",
    keep: Annotated[
        str, typer.Option("--keep", help="how long the end of a job is told", metavar="TIME")
    ] = "24h",
    create: Annotated[bool, typer.Option("--create", help="make the state folder if there is none")] = False,
) -> int:  # fmt: skip
    """Print the ends of jobs as metrics for Prometheus, from the journals: outcome, cause, time, rows, cost."""
    from actors.cli.inspection.metrics import metrics as tell

    return tell(metrics_listen, keep, create, options)


@takes("state", "cluster", "api_key_file", "verbose", "log_format", "log_level")
def tend(
    options: Options,
    every: Annotated[
        str, typer.Option("--every", help="look again after each TIME, until a signal comes", metavar="TIME")
    ] = "",
) -> int:
    """Continue the jobs that rest because the head of their cluster was lost, where no person and no input is needed.

    Never one that was cancelled or drained.
    """
    from actors.cli.control.tend import tend as look_after

    return look_after(every, options)


@takes("cluster", "as_json", "verbose")
def down(
    options: Options,
    within: Annotated[
        str, typer.Option("--within", help="how long jobs may finish calls in flight", metavar="TIME")
    ] = "",
) -> int:
    """End everything that Cortex runs in a cluster, once its jobs rest. Journals stay; `cortex resume` continues a
    job.
    """
    from actors.cli.control.drain import down as end

    return end(within, options)


COMMANDS = {
    "results": results, "retry": retry, "config": config, "backup": backup, "rm": rm, "gc": gc, "forget": forget,
    "verify": verify, "metrics": metrics, "tend": tend, "down": down,
}  # fmt: skip
