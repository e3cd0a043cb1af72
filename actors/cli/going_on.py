"""``resume``, ``attach`` and ``cancel``: what can be done with a job that has begun."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import msgspec

from actors import amending, control, programs
from actors.cli.beginning import (
    BATCH,
    BEGINS_ANEW,
    LINES,
    batch_source,
    check_output,
    complete_output,
    sink_of,
    tell_problems,
)
from actors.cli.carrying import Work, carry_out, report
from actors.cli.keys import taken_environ
from actors.cli.options import Options
from actors.cli.problems import COMPLETE, FAILED, CommandError, say
from actors.cli.settings import changed_wish, cluster_of, folder_of, limits_of, share_of
from actors.cli.standings import number, spool_of, standing_of
from actors.cli.telling import OVER, Standing, headline
from actors.destination import remembered
from actors.files.line_source import LineSource
from actors.files.lines import SourceError
from actors.joblock import is_held
from actors.ports import Away, ClusterError, Gone
from actors.records import in_use, last_owner, last_state
from actors.session import Order, Session, who, whole
from actors.store import Folder
from cortex.state import State

OBEDIENCE_S = 60.0
"""How long a run may take to hear that it is cancelled: it looks twice a second, unless it was stopped itself."""
_LOOK_S = 0.05


def go_on(job: str, options: Options, *, attaching: bool, copy: str = "") -> int:
    """``cortex resume`` and ``cortex attach``; the exit code. ``copy``: where the results are written besides."""
    share_of(options)
    folder = folder_of(options)
    if said := in_use(folder, job):
        raise CommandError(said)
    k = last_state(folder, job)
    if copy and whole(copy) == k.terms.places.get("output"):
        copy = ""
    if copy:
        check_output(_copying(copy, options), copy, options.overwrite)
    code = (
        _over(folder, job, k, options) if k.outcome in OVER else _resumed(folder, job, k, options, attaching)
    )
    if copy:
        count = amending.copy_results(folder, job, _copying(copy, options))
        say(f"{count:,} results copied to {copy}")
    return code


def _copying(copy: str, options: Options) -> Any:
    return sink_of(copy, "", options.overwrite)


def _over(folder: Folder, job: str, k: State, options: Options) -> int:
    """A job that has ended for good: its results file is made whole, nothing is asked."""
    standing = standing_of(folder, job, k)
    say(f"job {job} is {k.outcome} already: nothing is left to do")
    complete_output(folder, job, standing.facts, k.terms.places.get("input", ""), options.overwrite)
    return report(standing, options)


def _resumed(folder: Folder, job: str, k: State, options: Options, attaching: bool) -> int:
    terms = k.terms
    places = dict(terms.places)
    order = Order(
        program=programs.load(terms.program, terms.params_json), wish=changed_wish(options, remembered(places)),
        limits=limits_of(options, terms.limits), job=job, state=str(folder.path),
        cluster=cluster_of(options, places.get("cluster", "auto")), input=places.get("input", ""),
        output=places.get("output", ""), places=places,
    )  # fmt: skip
    source = _source(folder, order, k)
    sink = sink_of(order.output, order.input)
    if sink is not None:
        check_output(sink, order.output, True)
    session = Session(order, taken_environ(), source=source, sink=sink)
    note = "nobody runs it now, so it is resumed" if attaching else "resumed"
    if programs.fingerprint(terms.program, terms.params_json) != terms.fingerprint:
        note += f"; {BEGINS_ANEW}"
    work = Work(session=session, options=options, source=source, sink=sink, note=note)
    work.rows, work.unreadable = number(places, "rows"), number(places, "unreadable")
    return carry_out(work)


def _source(folder: Folder, order: Order, k: State) -> Any:
    """The job's rows, checked again: what has changed since is noticed before anything is sent."""
    kind = order.places.get("kind")
    if not k.terms.streams:
        return None
    if kind == BATCH:
        source: Any = batch_source(folder, order)
    elif kind == LINES:
        source = LineSource(order.input, spool=spool_of(folder, order.named()))
    else:
        raise CommandError(f"job {order.job} was begun from Python with rows of its own: go on with it there")
    try:
        check = source.check()
    except SourceError:
        where = k.terms.program
        unchanged = programs.fingerprint(where, k.terms.params_json) == k.terms.fingerprint
        if k.source_ended and unchanged:
            return None  # all rows are in the journal
        raise
    if check.digest != order.places.get("digest", check.digest):
        source.close()
        raise CommandError(
            f"{order.input} has changed since job {order.job} began: put it back, or begin another job"
        )
    tell_problems(order.input, check)
    return source


# -- cancel --------------------------------------------------------------------------------------------------------


def cancel(job: str, options: Options) -> int:
    """``cortex cancel``; the exit code: 0 when the job has ended."""
    folder = folder_of(options)
    k = last_state(folder, job)
    if k.outcome in OVER:
        return _told(
            standing_of(folder, job, k), options, f"job {job} is {k.outcome} already: nothing to cancel"
        )
    if not _asked_its_run(folder, job) and not _asked_its_cluster(folder, job):
        k = last_state(folder, job)
        if k.outcome not in OVER:
            k = amending.cancel(folder, job, who())
    k = last_state(folder, job)
    standing = standing_of(folder, job, k)
    if k.outcome == "cancelled" and not is_held(folder, job):
        with contextlib.suppress(OSError):
            complete_output(folder, job, standing.facts, k.terms.places.get("input", ""), False)
    return _told(standing, options, f"cancelled by {who()}" if k.outcome == "cancelled" else "")


def _told(standing: Standing, options: Options, said: str) -> int:
    if said:
        say(said)
    say(headline(standing))
    if options.as_json:
        print(standing.as_json(), flush=True)
    return COMPLETE if standing.outcome in OVER else FAILED


def _asked_its_run(folder: Folder, job: str) -> bool:
    """Leave word for the process that runs the job, and wait until it has obeyed; False where none runs it."""
    owner = last_owner(folder, job)
    if owner is None or not is_held(folder, job):
        return False
    wish = control.leave(folder, job, control.Wanted(how="cancel", who=who(), owner=owner))
    until_s = time.monotonic() + OBEDIENCE_S
    while wish.exists():
        if not is_held(folder, job):
            wish.unlink(missing_ok=True)
            return False
        if time.monotonic() > until_s:
            wish.unlink(missing_ok=True)
            whom = f"process {owner.pid} on {owner.host}"
            raise CommandError(f"{whom}, which runs job {job}, does not answer: end it", FAILED)
        time.sleep(_LOOK_S)
    return True


def _asked_its_cluster(folder: Folder, job: str) -> bool:
    """Ask the channel of a job that goes on in a cluster without a driver; False where there is none."""
    owner = last_owner(folder, job)
    if owner is None or owner.cluster in ("inline", "local", "child"):
        return False
    try:
        return asyncio.run(_ask_channel(job, owner.cluster))
    except ClusterError as error:
        say(f"{error}; what may still run there can write to this job no more")
        return False


async def _ask_channel(job: str, cluster: str) -> bool:
    from actors.runtime import start_runtime

    runtime = await start_runtime(cluster, taken_environ())
    try:
        peer = runtime.peer(f"channel:{job}")
        await peer.ask("stop", "cancel", who())
        until_s = time.monotonic() + OBEDIENCE_S
        while time.monotonic() < until_s:
            if msgspec.json.decode(await peer.ask("status"))["outcome"] != "running":
                await runtime.end_actor(f"channel:{job}")
                return True
            await asyncio.sleep(_LOOK_S)
        return True
    except (Away, Gone):
        return False
    finally:
        await runtime.close()
