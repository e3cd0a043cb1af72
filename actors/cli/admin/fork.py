"""``fork``: a new job that continues from a turn of another job."""

from __future__ import annotations

from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import headline
from actors.cli.jobs.settings import folder_of
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.cli.run.sinks import check_output, sink_of
from actors.common.errors import CommandError
from actors.maintenance.fork import ForkSpec, fork


def fork_job(job: str, at: int, program: str, output: str, options: Options) -> int:
    """Run ``cortex fork`` and return the exit code."""
    name = options.job or f"{job}-{at}"
    if "~" in name or "~" in job:
        raise CommandError(f"job name {name!r}: '~' is reserved for names of child jobs: choose another name")
    folder = folder_of(options)
    sink = sink_of(folder, job, output, options.overwrite)
    if sink is not None:
        check_output(sink, output, options.overwrite)  # a resume would truncate an existing file
    k = fork(folder, ForkSpec(job=job, at=at, name=name, output=output, program=program))
    status = standing_of(folder, name, k)
    if options.as_json:
        print(status.as_json())
        return COMPLETE
    print_error(f"{headline(status)}; its results and costs are those of {job} up to turn {at:,}")
    print_error(
        f"to go on: {status.resume}" if status.resume else f"{job} had ended by that turn: nothing is left to do"
    )
    return COMPLETE
