"""Two runs of one job: the second is refused, or with ``--wait`` waits for the first and takes what came of it."""

from __future__ import annotations

import time

from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import OVER
from actors.cli.options.errors import print_error
from actors.cli.options.options import Options
from actors.cli.run.execute import report
from actors.cli.run.sinks import complete_output
from actors.common.errors import CommandError
from actors.history.catalog import forgotten, in_use, last_state
from actors.journal.journal import StateFolder

_LOOK_S = 0.2


def in_turn(folder: StateFolder, job: str, options: Options) -> int | None:
    """The exit code where another run was waited for, and ended its job; None where the job is ours to go on with.

    The results file is made whole on this machine, too. A run that was killed left its job to whoever waits. Raises
    ``CommandError`` where another has the job and it is not to be waited for.
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
        print_error(f"the run that had job {job} was interrupted: going on")
        return None
    print_error(f"the run that had job {job} has ended it: nothing is asked again")
    if status.outcome in OVER and not forgotten(folder, job):  # its disk may be another machine's
        terms = last_state(folder, job).terms
        complete_output(folder, job, status.facts, terms.places, terms.program, options.overwrite)
    return report(status, options)
