"""Two runs of one job: the second is refused, or with ``--wait`` waits and returns the result of the first."""

from __future__ import annotations

import time

from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import OVER
from actors.cli.options.errors import print_error
from actors.cli.options.options import Options
from actors.cli.run.execute import report
from actors.cli.run.sinks import complete_list, complete_output
from actors.common.errors import CommandError
from actors.history.catalog import forgotten, in_use, last_state
from actors.journal.journal import StateFolder

_LOOK_S = 0.2


def in_turn(folder: StateFolder, job: str, options: Options) -> int | None:
    """Return the exit code of another run that was waited for; None if this run may have the job.

    The results file is completed on this machine too. If the other run was killed, this run continues the job. Raises
    ``CommandError`` if another run has the job and ``--wait`` is not given.
    """
    text = in_use(folder, job)
    if not text:
        return None
    if not options.wait:
        raise CommandError(text)
    print_error(f"{text.partition(':')[0]}: waiting for its end")
    while in_use(folder, job):
        time.sleep(_LOOK_S)
    status = standing_of(folder, job)
    if status.outcome not in (*OVER, "partial"):
        print_error(f"the other run of job {job} was interrupted: continuing")
        return None
    print_error(f"the other run of job {job} has ended it: nothing is asked again")
    # the other run may have written on another machine's disk
    if status.outcome in OVER and not forgotten(folder, job):
        terms = last_state(folder, job).terms
        complete_output(folder, job, status.facts, terms.places, terms.program, options.overwrite)
        complete_list(folder, job, terms)
    return report(status, options)
