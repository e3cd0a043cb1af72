"""The commands that tend to jobs at rest, and their arguments: asked again, looked into, removed, forgotten."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.arguments import Job, Jobs, Results
from actors.cli.options.options import GOING_ON, LOOKING, Options, takes

_NOTHING: list[str] = []


@takes(*GOING_ON, said=("model", "max_output_tokens"))
def retry(
    job: Job, options: Options,
    kind: Annotated[
        list[str], typer.Option("--kind", help="only rows that failed so; several with commas", metavar="KIND,...")
    ] = _NOTHING,
) -> int:  # fmt: skip
    """Ask failed rows again, as a part of the same job: its cap goes on counting, its results file is written anew."""
    from actors.cli.run.retry import retry as ask_again

    return ask_again(job, list(kind or ()), options)


@takes("state", "overwrite", "verbose")
def results(
    job: Job, options: Options, output: Results = "-",
    failed: Annotated[bool, typer.Option("--failed", help="only those of rows that failed")] = False,
    sample: Annotated[int, typer.Option("--sample", help="only so many, from all over", metavar="N", min=0)] = 0,
    tail: Annotated[int, typer.Option("--tail", help="only the last so many", metavar="N", min=0)] = 0,
) -> int:  # fmt: skip
    """Write the results that a job has so far."""
    from actors.cli.inspection.status import results as show

    return show(job, output, options, failed=failed, sample=sample, tail=tail)


@takes(*LOOKING)
def config(job: Job, options: Options) -> int:
    """Show which options a job runs under, and where each comes from."""
    from actors.cli.jobs.config import config as show

    return show(job, options)


@takes(*LOOKING)
def rm(
    jobs: Jobs, options: Options,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="also one whose paid results are nowhere else yet: a table half made")
    ] = False,
) -> int:  # fmt: skip
    """Remove jobs from the state folder, with what they remember; results files stay."""
    from actors.cli.admin.remove import rm as remove

    return remove(list(jobs), resumable, options)


@takes(*LOOKING)
def gc(
    options: Options,
    older_than: Annotated[
        str, typer.Option("--older-than", help="with the last turn so long ago: 30d, 12h", metavar="TIME")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say which")] = False,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="also those that could be resumed; without it they are kept")
    ] = False,
) -> int:
    """Remove old jobs that are over: complete, failed or cancelled."""
    from actors.cli.admin.remove import gc as clean

    return clean(older_than, dry_run, resumable, options)


@takes(*LOOKING)
def forget(jobs: Jobs, options: Options) -> int:
    """Remove prompts and replies of jobs, and keep their figures; they cannot be resumed or retried after that."""
    from actors.cli.admin.remove import forget as lose

    return lose(list(jobs), options)


@takes(*LOOKING)
def backup(
    to: Annotated[str, typer.Argument(metavar="FOLDER", help="where the copy is to be: it must not be there yet")],
    options: Options,
) -> int:
    """Copy the state folder whole, also while jobs run. The copy is one, too: `cortex resume JOB --state FOLDER`."""
    from actors.cli.admin.backup import backup as copy

    return copy(to, options)


@takes("cluster", "as_json", "verbose")
def down(
    options: Options,
    within: Annotated[
        str, typer.Option("--within", help="how long jobs may finish what is in flight", metavar="TIME")
    ] = "",
) -> int:
    """End all that Cortex has in a cluster, once its jobs rest. Journals and results stay; `cortex resume` goes on."""
    from actors.cli.control.drain import down as end

    return end(within, options)


COMMANDS = {
    "results": results, "retry": retry, "config": config, "backup": backup, "rm": rm, "gc": gc, "forget": forget,
    "down": down,
}  # fmt: skip
